//! The heartbeat of the page: once a second it samples the server, keeps the past, and tells every
//! open page.

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
use super::history::History;
use super::series::{Moment, SERIES, Span, Values};
use super::{HARDENED, Subject};
use crate::condition::Condition;
use crate::server::Running;

/// Interval between two samples.
const BEAT: Duration = Duration::from_secs(1);
/// The largest number of open pages.
const PAGES: usize = 24;
/// The past that `/v1/history` returns unless the request says otherwise, in seconds.
const PAST: u64 = 600;

/// The past of a server, and the latest message to all pages.
#[derive(Debug)]
pub(super) struct Live {
    history: Mutex<History>,
    latest: watch::Sender<Arc<str>>,
}

/// The message of one second.
#[derive(Serialize)]
struct Beat<'a> {
    /// Milliseconds since the Unix epoch.
    time: u64,
    condition: Condition,
    series: Vec<&'static str>,
    values: Vec<Option<f32>>,
    /// The rows of `stats` that are text or describe lanes and policies.
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
pub(super) async fn beat(subject: Arc<Subject>) {
    let mut interval = tokio::time::interval(BEAT);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<Moment> = None;
    let mut finder = EventFinder::default();
    loop {
        interval.tick().await;
        let Some(running) = subject.running() else { continue };
        let now = Moment::of(running);
        if let Some(last) = &last {
            subject.live.take(Span { from: last, to: &now }, &mut finder, running);
        }
        last = Some(now);
    }
}

/// Returns the past as JSON. The query `seconds=N` says how much of it.
pub(super) async fn history(
    State(subject): State<Arc<Subject>>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(seconds) = seconds_of(query.as_deref()) else {
        return (StatusCode::BAD_REQUEST, "the query is seconds=N\n").into_response();
    };
    let past = {
        let history = subject.live.history.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Sends a message to the page every second. Each open page holds a connection, and others need some
/// too, so a page above the limit is refused.
pub(super) async fn stream(State(subject): State<Arc<Subject>>) -> Response {
    if subject.live.latest.receiver_count() >= PAGES {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n").into_response();
    }
    (HARDENED, Sse::new(messages(subject.live.latest.subscribe()))).into_response()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;
    use crate::settings::{ListenAddress, Settings};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{SocketAddr, TcpStream};

    fn request(address: SocketAddr, path: &str) -> BufReader<TcpStream> {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        BufReader::new(client)
    }

    fn body(address: SocketAddr, path: &str) -> (String, serde_json::Value) {
        let mut reply = String::new();
        request(address, path).read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), serde_json::from_str(body).unwrap_or_default())
    }

    #[test]
    fn a_page_gets_a_message_every_second_and_the_past() {
        let settings = Settings {
            listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }],
            admin: Some("127.0.0.1:0".parse().unwrap()),
            threads: 1,
            ..Settings::default()
        };
        let server = Server::start(settings).unwrap();
        let address = server.admin_address().unwrap();
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"get a\r\n").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let lines = request(address, "/v1/live").lines().map(Result::unwrap);
        let mut beats = lines.filter_map(|line| {
            Some(serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).unwrap())
        });
        let (first, second) = (beats.next().unwrap(), beats.next().unwrap());
        assert!(second["time"].as_u64() > first["time"].as_u64());
        assert_eq!(first["condition"]["level"], "good");
        assert_eq!(first["series"].as_array().unwrap().len(), SERIES.len());
        let at = SERIES.iter().position(|series| series.name == "connections").unwrap();
        assert_eq!(first["values"][at], 1.0);

        let (head, past) = body(address, "/v1/history?seconds=60");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-security-policy"));
        let times = past["times"].as_array().unwrap();
        assert!(times.contains(&first["time"]) && past["step"] == 1);
        assert_eq!(past["values"][at].as_array().unwrap().len(), times.len());
        assert_eq!(past["events"][0]["name"], "start");
        assert!(body(address, "/v1/history?seconds=x").0.starts_with("HTTP/1.1 400"));
        assert!(body(address, "/v1/history?minutes=5").0.starts_with("HTTP/1.1 400"));
    }
}
