//! `/v1/refused`: the keys that rate limits refuse most, as JSON. The reply contains names of keys,
//! so only [`Trusted`] clients get it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::authorization::Trusted;
use super::escape::escape;
use super::headers::HARDENED;
use super::state::Serving;
use crate::keys::{RefusedKey, RefusedList};

#[derive(Debug, Serialize)]
struct RefusedReport {
    /// Milliseconds since the Unix epoch.
    time: u64,
    /// False if refusals are not counted. All fields of `parts` are then absent.
    on: bool,
    #[serde(flatten)]
    parts: Option<RefusedParts>,
}

#[derive(Debug, Serialize)]
struct RefusedParts {
    half_life_seconds: f64,
    lost_per_second: f64,
    keys: Vec<RefusedRow>,
}

/// See [`RefusedKey`].
#[derive(Debug, Serialize)]
struct RefusedRow {
    policy: Option<String>,
    key: String,
    refused_per_second: f64,
    shadow_per_second: f64,
    missing: f64,
    error: f64,
}

pub(super) async fn show(_: Trusted, Serving(running): Serving) -> Response {
    let Some(context) = running.context() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (table, time) = (context.policies().table(), running.clock.millis());
    let names = table.iter().map(|policy| &*policy.name);
    let parts = context.policies().refused().list(names, time).map(parts);
    (HARDENED, axum::Json(RefusedReport { time, on: parts.is_some(), parts })).into_response()
}

fn parts(list: RefusedList) -> RefusedParts {
    let row = |key: RefusedKey| RefusedRow {
        policy: key.policy,
        key: escape(&key.key),
        refused_per_second: key.refused_per_second,
        shadow_per_second: key.shadow_per_second,
        missing: key.missing,
        error: key.error,
    };
    RefusedParts {
        half_life_seconds: list.half_life_seconds,
        lost_per_second: list.lost_per_second,
        keys: list.keys.into_iter().map(row).collect(),
    }
}
