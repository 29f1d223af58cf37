//! The heartbeat of the page: once a second it samples the server, adds the sample to the history,
//! and sends it to every open page.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::events::EventFinder;
use super::headers::HARDENED;
use super::history::History;
use super::series::{Moment, SERIES, Span, Values};
use super::state::AdminState;
use crate::condition::Condition;
use crate::server::Running;

/// Interval between two samples.
const BEAT: Duration = Duration::from_secs(1);
/// The largest number of open pages.
const PAGES: usize = 24;
/// Length of the history that `/v1/history` returns unless the request asks for another, in
/// seconds.
const PAST: u64 = 600;

/// The history of a server, and the latest message to all pages.
#[derive(Debug)]
pub(super) struct Live {
    history: Mutex<History>,
    latest: watch::Sender<Arc<str>>,
}

/// The message that every open page receives once a second.
#[derive(Serialize)]
struct Beat<'a> {
    /// Milliseconds since the Unix epoch.
    time: u64,
    condition: Condition,
    series: Vec<&'static str>,
    values: Vec<Option<f32>>,
    /// All rows of `stats`.
    rows: Vec<(&'a str, &'a str)>,
}

impl Live {
    pub(super) fn new() -> Live {
        Live { history: Mutex::default(), latest: watch::Sender::new("".into()) }
    }

    fn take(&self, span: Span<'_>, finder: &mut EventFinder, running: &Running) {
        let values = span.values();
        {
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            history.push(span.to.time, values);
            finder.look(span, running, &mut |event| history.note(event));
        }
        if self.latest.receiver_count() > 0
            && let Ok(message) = serde_json::to_string(&Beat::of(span, &values))
        {
            self.latest.send_replace(message.into());
        }
    }
}

impl<'a> Beat<'a> {
    fn of(span: Span<'a>, values: &Values) -> Beat<'a> {
        Beat {
            time: span.to.time,
            condition: Condition::of(&span),
            series: SERIES.iter().map(|series| series.name).collect(),
            values: values.iter().map(|value| value.is_finite().then_some(*value)).collect(),
            rows: span.to.texts(|_| true),
        }
    }
}

/// Samples the server once a second, for ever.
pub(super) async fn beat(state: Arc<AdminState>) {
    let mut interval = tokio::time::interval(BEAT);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<Moment> = None;
    let mut finder = EventFinder::default();
    loop {
        interval.tick().await;
        state.clients.forget();
        let Some(running) = state.running() else { continue };
        if let Some(context) = running.context() {
            let now_ms = running.clock.millis();
            context.hot_keys.beat(now_ms);
            context.policies().refused().beat(now_ms);
        }
        state.recent_store.beat(running);
        state.recent_times.beat(running);
        let now = Moment::of(running);
        if let Some(last) = &last {
            state.live.take(Span { from: last, to: &now }, &mut finder, running);
        }
        last = Some(now);
    }
}

/// Returns the history of the server as JSON. The query `seconds=N` selects the last N seconds.
pub(super) async fn history(
    State(state): State<Arc<AdminState>>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(seconds) = seconds_of(query.as_deref()) else {
        return (StatusCode::BAD_REQUEST, "the query is seconds=N\n").into_response();
    };
    let past = {
        let history = state.live.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.past(seconds)
    };
    (HARDENED, axum::Json(past)).into_response()
}

fn seconds_of(query: Option<&str>) -> Option<u64> {
    match query {
        None | Some("") => Some(PAST),
        Some(query) => query.strip_prefix("seconds=")?.parse().ok(),
    }
}

/// Sends a message to the page every second. Each open page occupies a connection of the admin
/// port. So that other clients can connect, at most [`PAGES`] pages may be open.
pub(super) async fn stream(State(state): State<Arc<AdminState>>) -> Response {
    if state.live.latest.receiver_count() >= PAGES {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n").into_response();
    }
    (HARDENED, Sse::new(messages(state.live.latest.subscribe()))).into_response()
}

fn messages(
    receiver: watch::Receiver<Arc<str>>,
) -> impl Stream<Item = Result<Message, std::convert::Infallible>> {
    unfold(receiver, |mut receiver| async move {
        receiver.changed().await.ok()?;
        let text = Arc::clone(&receiver.borrow_and_update());
        Some((Ok(Message::default().data(&*text)), receiver))
    })
}
