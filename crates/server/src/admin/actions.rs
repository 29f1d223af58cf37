//! Actions: requests to the admin port that change the server or show stored items. Each action is
//! a POST with a JSON body and needs the admin token. [`origin`](super::origin) says what else is
//! required. The log gets the client's address and the outcome of each action.
//!
//! Keys, values and replies use the notation of [`escape`](super::escape).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use larder_protocol::{BINARY_MAGIC, KEY_LEN_MAX, Parse, text};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::warn;

use super::action_session::{Done, Task, TaskError};
use super::authorization::Authorized;
use super::escape::{escape, unescape};
use super::headers::HARDENED;
use super::state::{AdminState, Serving};
use crate::command::Dialect;
use crate::command::text::Text;
use crate::net::Peer;

/// The largest body of a request, in bytes.
pub(super) const BODY_MAX: usize = 64 << 10;
/// The longest time in which the body of an action must arrive after its head. If it arrives later,
/// the reply is 408.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(5);
/// The largest number of characters of a command, name or outcome in the log. Longer texts are cut.
const LOGGED: usize = 300;

/// A request that needs the admin token.
pub(super) struct AdminAction {
    pub(super) path: &'static str,
    pub(super) handler: fn() -> MethodRouter<Arc<AdminState>>,
}

/// All actions. A POST to any other path is refused.
pub(super) static ACTIONS: &[AdminAction] = &[
    AdminAction { path: "/v1/command", handler: || post(command) },
    AdminAction { path: "/v1/item", handler: || post(item) },
    AdminAction { path: "/v1/delete", handler: || post(delete) },
    AdminAction { path: "/v1/drain", handler: || post(drain) },
];

type BadAction = (StatusCode, String);

fn bad(reason: impl Into<String>) -> BadAction {
    (StatusCode::BAD_REQUEST, reason.into())
}

/// Extractor for the JSON body of an action.
struct JsonBody<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<AdminState>> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &Arc<AdminState>) -> Result<Self, Response> {
        read(request).await.map(JsonBody).map_err(refuse)
    }
}

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, BadAction> {
    let body = timeout(BODY_PATIENCE, to_bytes(request.into_body(), BODY_MAX)).await;
    let body = body
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the body comes too slowly".to_owned()))?
        .map_err(|_| {
            let reason = format!("the body is broken or has more than {BODY_MAX} bytes");
            (StatusCode::PAYLOAD_TOO_LARGE, reason)
        })?;
    serde_json::from_slice(&body)
        .map_err(|error| bad(format!("the body is not as needed: {error}")))
}

fn refuse((code, reason): BadAction) -> Response {
    (code, HARDENED, format!("{reason}\n")).into_response()
}

/// Returns the HTTP status and a sentence that says how much of the task was executed.
fn explain(undone: TaskError) -> BadAction {
    let (code, reason) = match undone {
        TaskError::Busy => {
            (StatusCode::SERVICE_UNAVAILABLE, "not executed: other requests wait, try again")
        }
        TaskError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "not executed: the server stops"),
        TaskError::Late => (
            StatusCode::GATEWAY_TIMEOUT,
            "no reply in time: it was not executed, or not completely",
        ),
        TaskError::Unconfirmed => (
            StatusCode::GATEWAY_TIMEOUT,
            "executed, but not durable in time: it may be lost or kept",
        ),
        TaskError::Asked => (
            StatusCode::GATEWAY_TIMEOUT,
            "asked for; it happens once the devices have recorded it, unless the server stops before",
        ),
        TaskError::Broken => {
            (StatusCode::BAD_GATEWAY, "the reply broke off; a change may or may not be kept")
        }
        TaskError::Incomplete => (StatusCode::BAD_REQUEST, "the command is incomplete"),
        TaskError::Refused(reason) => return (StatusCode::CONFLICT, reason),
    };
    (code, reason.to_owned())
}

fn answer<T: Serialize>(body: T) -> Response {
    (HARDENED, axum::Json(body)).into_response()
}

/// Executes a task. Returns its result, or an error reply with the reason.
async fn execute(
    running: Serving,
    state: &AdminState,
    task: Task,
    mut logged: Logged,
) -> Result<Done, Response> {
    state.token.note_action();
    match state.action_session.execute(&running.0, task).await {
        Ok(done) => {
            logged.outcome = outcome(&done);
            Ok(done)
        }
        Err(undone) => {
            let (code, reason) = explain(undone);
            logged.outcome.clone_from(&reason);
            Err(refuse((code, reason)))
        }
    }
}

/// Returns the outcome that the log shows for an action: the first line of an error reply, or else
/// `done` or `no item`. The outcome never contains the value of an item.
fn outcome(done: &Done) -> String {
    const ERRORS: [&[u8]; 3] = [b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"];
    match done {
        Done::Replied(reply) if ERRORS.iter().any(|error| reply.bytes.starts_with(error)) => {
            split_lines(&reply.bytes).next().map_or(String::new(), escape)
        }
        Done::Seen(None) | Done::Deleted(false) => "no item".to_owned(),
        Done::Replied(_) | Done::Seen(Some(_)) | Done::Deleted(true) | Done::Drained => {
            "done".to_owned()
        }
    }
}

/// The log lines of an action. The first line is written before the action is executed, so that no
/// executed action is missing from the log. The second line has the outcome. Both lines are
/// warnings, because they show that a person changes the server by hand.
struct Logged {
    action: &'static str,
    client: String,
    what: String,
    outcome: String,
}

impl Logged {
    fn begin(action: &'static str, client: Option<SocketAddr>, what: &str) -> Logged {
        let client = client.map_or("unknown".to_owned(), |client| client.to_string());
        let what: String = what.chars().take(LOGGED).collect();
        warn!(event = "admin_action", action, client, what);
        // If the client disconnects before the reply, the action's handler is dropped and this
        // outcome is logged. A task that has begun is nevertheless executed to its end.
        let outcome = "the client has gone".to_owned();
        Logged { action, client, what, outcome }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let Logged { action, client, what, outcome } = self;
        let outcome: String = outcome.chars().take(LOGGED).collect();
        warn!(event = "admin_action_ended", action, client, what, outcome);
    }
}

fn bytes(text: &str) -> Result<Vec<u8>, BadAction> {
    unescape(text).ok_or_else(|| bad("a backslash is \\\\ and any other byte is \\xHH"))
}

/// Returns the bytes of a key. The key never becomes a part of a command line, so any byte may
/// occur.
fn key(text: &str) -> Result<Vec<u8>, BadAction> {
    let key = bytes(text)?;
    match key.len() {
        1..=KEY_LEN_MAX => Ok(key),
        length => Err(bad(format!("a key has 1 to {KEY_LEN_MAX} bytes, and this has {length}"))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandRequest {
    command: String,
    value: Option<String>,
}

#[derive(Serialize)]
struct CommandAnswer {
    /// The server's reply to the command. Each CR LF is replaced by LF.
    reply: String,
    /// True if `reply` has only the beginning of the server's reply.
    truncated: bool,
}

impl CommandRequest {
    /// Returns the bytes of exactly one command of the text protocol, with its value.
    fn input(&self) -> Result<Vec<u8>, BadAction> {
        let mut input = bytes(&self.command)?;
        if input.first() == Some(&BINARY_MAGIC) {
            return Err(bad("a command is one of the text protocol"));
        }
        // A line end within the command would begin a second command.
        if input.iter().any(u8::is_ascii_control) {
            return Err(bad("a command is one line without control characters"));
        }
        input.extend(b"\r\n");
        let (announced, is_silent) = match text::parse(&input, &mut Vec::<&[u8]>::new()) {
            Parse::NeedValue { request, value, .. } => {
                (Some(value), Text::properties(&request).noreply)
            }
            Parse::Request { request, .. } => (None, Text::properties(&request).noreply),
            Parse::Refused { reply, .. } => {
                (None, reply.is_empty() && input.ends_with(b" noreply\r\n"))
            }
            Parse::NeedMore { .. } => (None, false),
        };
        // Commands with `noreply` are refused. Without a reply, the client would not wait for the
        // command's commit, and would not learn whether the command was executed.
        if is_silent {
            return Err(bad("an action has a reply: leave noreply out"));
        }
        match (announced, &self.value) {
            (None, None) => {}
            (None, Some(_)) => return Err(bad("this command takes no value")),
            (Some(_), None) => return Err(bad("this command needs a value")),
            (Some(announced), Some(value)) => {
                let value = bytes(value)?;
                if value.len() != announced {
                    let length = value.len();
                    return Err(bad(format!(
                        "the command announces {announced} bytes, but the value has {length}"
                    )));
                }
                input.extend(value);
                input.extend(b"\r\n");
            }
        }
        Ok(input)
    }
}

async fn command(
    authorized: Authorized,
    running: Serving,
    state: axum::extract::State<Arc<AdminState>>,
    JsonBody(request): JsonBody<CommandRequest>,
) -> Response {
    let input = match request.input() {
        Ok(input) => input,
        Err(refusal) => return refuse(refusal),
    };
    // The log gets the command line without the value.
    let line = input.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let logged = Logged::begin("command", authorized.client, &escape(line));
    let client = match authorized.client {
        Some(from) => Peer::Tcp { from, to: state.address },
        None => Peer::Unix,
    };
    match execute(running, &state, Task::Command(input, client), logged).await {
        Ok(Done::Replied(reply)) => {
            let lines: Vec<String> = split_lines(&reply.bytes).map(escape).collect();
            answer(CommandAnswer { reply: lines.join("\n"), truncated: reply.truncated })
        }
        Ok(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(refusal) => refusal,
    }
}

/// Splits `bytes` at each CR LF.
fn split_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let bytes = rest?;
        match bytes.windows(2).position(|pair| pair == b"\r\n") {
            Some(end) => {
                rest = Some(&bytes[end + 2..]);
                Some(&bytes[..end])
            }
            None => rest.take(),
        }
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    key: String,
}

/// Extractor for the key in the JSON body of an action.
struct KeyBody(Vec<u8>);

impl FromRequest<Arc<AdminState>> for KeyBody {
    type Rejection = Response;

    async fn from_request(request: Request, _: &Arc<AdminState>) -> Result<Self, Response> {
        let key = read::<KeyRequest>(request).await.and_then(|request| key(&request.key));
        key.map(KeyBody).map_err(refuse)
    }
}

#[derive(Serialize)]
struct ItemAnswer {
    found: bool,
    #[serde(flatten)]
    item: Option<ItemFields>,
}

#[derive(Serialize)]
struct ItemFields {
    /// Client flags.
    flags: u32,
    /// Seconds until the item expires; absent if it does not.
    ttl: Option<u32>,
    /// Length of the value, in bytes.
    size: usize,
    /// The cas id. It is text, because a JSON number may lose digits.
    cas: String,
    /// Seconds since the last use, estimated.
    idle: u32,
    /// True if the item was read since it was stored.
    fetched: bool,
    /// True if a meta command with the flag `I` has marked the item stale.
    stale: bool,
    value: String,
    /// True if the item's value is longer than [`VALUE_MAX`](super::action_session::VALUE_MAX)
    /// bytes, so that `value` has only its first bytes.
    truncated: bool,
}

async fn item(
    authorized: Authorized,
    running: Serving,
    state: axum::extract::State<Arc<AdminState>>,
    KeyBody(key): KeyBody,
) -> Response {
    let logged = Logged::begin("look-up", authorized.client, &escape(&key));
    match execute(running, &state, Task::Look(key), logged).await {
        Ok(Done::Seen(seen)) => {
            let item = seen.map(|seen| ItemFields {
                flags: seen.flags,
                ttl: seen.ttl,
                size: seen.size,
                cas: seen.cas.to_string(),
                idle: seen.idle,
                fetched: seen.fetched,
                stale: seen.stale,
                truncated: seen.value.len() < seen.size,
                value: escape(&seen.value),
            });
            answer(ItemAnswer { found: item.is_some(), item })
        }
        Ok(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(refusal) => refusal,
    }
}

#[derive(Serialize)]
struct DeleteAnswer {
    /// False if the key had no item.
    deleted: bool,
}

async fn delete(
    authorized: Authorized,
    running: Serving,
    state: axum::extract::State<Arc<AdminState>>,
    KeyBody(key): KeyBody,
) -> Response {
    let logged = Logged::begin("delete", authorized.client, &escape(&key));
    match execute(running, &state, Task::Delete(key), logged).await {
        Ok(Done::Deleted(deleted)) => answer(DeleteAnswer { deleted }),
        Ok(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(refusal) => refusal,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainRequest {
    /// The device as `--store` names it.
    device: String,
    /// False to stop the drain of the device.
    drain: bool,
}

#[derive(Serialize)]
struct DrainAnswer {
    draining: bool,
}

async fn drain(
    authorized: Authorized,
    running: Serving,
    state: axum::extract::State<Arc<AdminState>>,
    JsonBody(request): JsonBody<DrainRequest>,
) -> Response {
    let DrainRequest { device, drain } = request;
    if !running.0.settings().switches.control {
        let reason = "--disable-control forbids drains".to_owned();
        return refuse((StatusCode::FORBIDDEN, reason));
    }
    let action = if drain { "drain" } else { "keep" };
    let logged = Logged::begin(action, authorized.client, &escape(device.as_bytes()));
    match execute(running, &state, Task::Drain(device, drain), logged).await {
        Ok(_) => answer(DrainAnswer { draining: drain }),
        Err(refusal) => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(command: &str, value: Option<&str>) -> Result<Vec<u8>, String> {
        let value = value.map(str::to_owned);
        let request = CommandRequest { command: command.to_owned(), value };
        request.input().map_err(|(code, reason)| format!("{} {reason}", code.as_u16()))
    }

    #[test]
    fn a_request_has_exactly_one_command() {
        for (command, value, wanted) in [
            ("get a", None, &b"get a\r\n"[..]),
            ("set a 0 0 3", Some("abc"), b"set a 0 0 3\r\nabc\r\n"),
            ("ms a 2", Some("\r\n"), b"ms a 2\r\n\r\n\r\n"),
            ("set a 0 0 0", Some(""), b"set a 0 0 0\r\n\r\n"),
            ("get a\\xff\\\\", None, b"get a\xff\\\r\n"),
            ("get noreply", None, b"get noreply\r\n"),
            ("nonsense", None, b"nonsense\r\n"),
            // The parser refuses this command line, so no value follows it, and the request needs
            // none.
            ("set a 0 0 x", None, b"set a 0 0 x\r\n"),
        ] {
            assert_eq!(input(command, value).as_deref(), Ok(wanted), "{command}");
        }
        for (command, value, reason) in [
            ("get a\r\nflush_all", None, "one line"),
            ("get a\nflush_all", None, "one line"),
            ("get a\\x0d\\x0aflush_all", None, "one line"),
            ("get \0", None, "one line"),
            ("get a", Some("flush_all"), "takes no value"),
            ("set a 0 0 x", Some("flush_all"), "takes no value"),
            ("set a 0 0 3", None, "needs a value"),
            ("set a 0 0 3", Some("abc\r\nflush_all"), "announces 3"),
            ("set a 0 0 3", Some("ab"), "announces 3"),
            ("get \\", None, "backslash"),
            // A request of the binary protocol begins with 0x80. It must be refused, because
            // `--protocol ascii` forbids that protocol.
            ("\\x80                       ", None, "text protocol"),
            // Commands with `noreply` must be refused, because no reply would tell whether they
            // were executed.
            ("set a 0 0 3 noreply", Some("abc"), "leave noreply out"),
            ("delete a noreply", None, "leave noreply out"),
            ("flush_all noreply", None, "leave noreply out"),
            ("flush_all x noreply", None, "leave noreply out"),
            ("incr a 1 noreply", None, "leave noreply out"),
        ] {
            let refused = input(command, value).unwrap_err();
            assert!(
                refused.starts_with("400 ") && refused.contains(reason),
                "{command}: {refused}"
            );
        }
    }

    #[test]
    fn lines_keep_every_byte() {
        for bytes in [&b""[..], b"a", b"a\r\n", b"a\r\n\r\nb\r\n", b"\r\r\n\n", b"\r\n"] {
            let lines: Vec<&[u8]> = split_lines(bytes).collect();
            assert_eq!(lines.join(&b"\r\n"[..]), bytes);
        }
    }
}
