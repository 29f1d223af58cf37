//! Health checks, and the statistics as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::state::AdminState;
use super::state::Serving;
use crate::server::Running;
use crate::stats;

/// A value with its JSON type.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Whole(u64),
    Fraction(f64),
    Text(String),
}

impl Value {
    fn of(text: String) -> Value {
        if let Ok(number) = text.parse() {
            return Value::Whole(number);
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && text.starts_with(|c: char| c.is_ascii_digit()) => {
                Value::Fraction(number)
            }
            _ => Value::Text(text),
        }
    }
}

/// Rows of statistics by name.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Rows(BTreeMap<String, Value>);

impl Rows {
    /// Returns the rows of `stats`, `stats limits`, `stats latency` and `stats durability`.
    pub(super) fn all(running: &Running) -> Rows {
        let mut rows = BTreeMap::new();
        let mut put = |name: &str, value: fmt::Arguments<'_>| {
            // Versions and prefixes are text, even if they look like a number.
            let is_text = name.ends_with("version") || name.ends_with(":prefix");
            let text = value.to_string();
            let value = if is_text { Value::Text(text) } else { Value::of(text) };
            rows.insert(name.to_owned(), value);
        };
        stats::metric_groups(running, &["", "limits", "latency", "durability"], &mut put);
        Rows(rows)
    }
}

/// The reply to a health check with the query `verbose`.
#[derive(Serialize)]
struct Report {
    status: Cow<'static, str>,
    version: &'static str,
    uptime_seconds: u64,
    workers: usize,
    threads: usize,
    draining: bool,
    connections: u64,
    memory_used: u64,
    memory_limit: u64,
    /// The number of places in the store of which some bytes cannot be read.
    bad_places: u64,
}

/// Handles `/livez`. The process counts as alive while it starts, and while every worker runs.
pub(super) async fn live(State(state): State<Arc<AdminState>>, query: RawQuery) -> Response {
    let Some(running) = state.running() else { return "ok\n".into_response() };
    let health = match running.workers.load(Relaxed) {
        // During a stop, workers end one by one. The process still counts as alive then.
        workers if workers < running.settings().threads && !running.draining.load(Relaxed) => {
            Err("a worker has ended".into())
        }
        _ => Ok(()),
    };
    answer(running, query, health)
}

/// Handles `/readyz` and `/healthz`: reports whether the server is ready for traffic.
pub(super) async fn ready(Serving(running): Serving, query: RawQuery) -> Response {
    let health = running.readiness();
    answer(&running, query, health)
}

fn answer(
    running: &Running,
    RawQuery(query): RawQuery,
    health: Result<(), Cow<'static, str>>,
) -> Response {
    let (code, status) = match health {
        Ok(()) => (StatusCode::OK, "ok".into()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
    };
    let query = query.unwrap_or_default();
    if !query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")) {
        return (code, format!("{status}\n")).into_response();
    }
    let engine = running.engine.stats();
    let report = Report {
        status,
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: running.clock.uptime().as_secs(),
        workers: running.workers.load(Relaxed),
        threads: running.settings().threads,
        draining: running.draining.load(Relaxed),
        connections: running.net_totals().loops.current_connections,
        memory_used: engine.memory_used,
        memory_limit: engine.memory_limit,
        bad_places: engine.bad_places,
    };
    (code, axum::Json(report)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_numbers_and_text_stays_text() {
        let json = |text: &str| match Value::of(text.to_owned()) {
            Value::Whole(number) => format!("{number}"),
            Value::Fraction(number) => format!("{number:?}"),
            Value::Text(text) => format!("{text:?}"),
        };
        assert_eq!(json("18446744073709551615"), "18446744073709551615");
        assert_eq!(json("0.003213"), "0.003213");
        assert_eq!(json("none"), "\"none\"");
        assert_eq!(json("nan"), "\"nan\"");
        assert_eq!(json(""), "\"\"");
    }
}
