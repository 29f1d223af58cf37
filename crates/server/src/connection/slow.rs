//! Records slow commands. The worker times *calls*: a call answers all commands of a connection
//! that arrived together. Only after a slow call does the worker parse the call's first request
//! again, to learn the request's name and key. So calls that are not slow pay little.

use super::scratch::KeyBatch;
use super::state::{Connection, State};
use super::worker::Worker;
use crate::clients::{ClientProtocol, Registered};
use crate::command::Dialect;
use crate::command::binary::Binary;
use crate::command::text::Text;
use crate::latency::{Answered, CommandClass, Timing};
use crate::net::{ConnectionId, InputBuffer};
use crate::slow::{SentBy, SlowCommand};
use larder_engine::SecretHash;
use larder_protocol::Parse;
use std::sync::Arc;

/// The longest name of a command that is recorded, in bytes.
const NAME_MAX: usize = 16;

/// Where to find the first request of a call of the service.
pub(super) enum First<'i> {
    /// The request begins with these bytes of the input.
    Input(&'i [u8]),
    /// The request's value was being received when the call began. Holds the request's header, and
    /// the number of bytes of the request that had arrived, those of the header included.
    Header(Arc<[u8]>, usize),
    /// The call did not begin with a request. For example, it continued a reply that was sent in
    /// part.
    Unknown,
}

impl<'i> First<'i> {
    /// Finds the first request of a call. Must be called before the call consumes input.
    #[inline]
    pub(super) fn of(connection: &Connection, input: &InputBuffer<'i>) -> First<'i> {
        match &connection.state {
            _ if connection.value.is_some() => First::Unknown,
            State::Ready => First::Input(input.bytes()),
            State::Body(body) => {
                let (header, len) = body.request();
                First::Header(header, len - body.missing())
            }
            _ => First::Unknown,
        }
    }
}

/// What the list of slow commands shows about the first request of a slow call.
struct FirstRequest {
    class: CommandClass,
    name: Option<Box<str>>,
    key: Option<SecretHash>,
}

/// Returns the name of a text command, or the opcode of a binary command. Returns `None` if the
/// input does not look like a command.
fn name_of(protocol: ClientProtocol, request: &[u8]) -> Option<Box<str>> {
    if protocol == ClientProtocol::Binary {
        return request.get(1).map(|opcode| format!("{opcode:#04x}").into());
    }
    let name = request.split(u8::is_ascii_whitespace).next()?;
    let is_name = name.len() <= NAME_MAX && name.iter().all(u8::is_ascii_graphic);
    if is_name { Some(str::from_utf8(name).ok()?.into()) } else { None }
}

impl Worker {
    /// Parses the first request of a slow call again to find its class, name and key.
    fn first_request<D: Dialect>(
        &self,
        protocol: ClientProtocol,
        bytes: &[u8],
    ) -> Option<FirstRequest> {
        let mut keys = KeyBatch::new(&self.session, Vec::new());
        let (Parse::Request { request, .. } | Parse::NeedValue { request, .. }) =
            D::parse(bytes, &mut keys)
        else {
            return None;
        };
        let key = self.first_hash::<D>(&request, keys.all());
        Some(FirstRequest { class: D::class(&request), name: name_of(protocol, bytes), key })
    }

    /// Records a slow call. `received` and `sent` are the lengths of its input and its output, in
    /// bytes.
    #[cold]
    #[inline(never)]
    pub(super) fn note_slow_call(
        &self,
        connection: &Connection,
        answered: &Answered,
        first: First<'_>,
        received: usize,
        sent: usize,
    ) {
        let time_ns = self.timer.began_ns().saturating_add(answered.took_ns);
        if !self.timer.count_slow(answered.commands, time_ns) {
            return;
        }
        let (bytes, request_bytes) = match &first {
            // If `follows` is true, the call's first request is timed alone, and `note_released`
            // records it. So the entry for the call must not name that request.
            _ if answered.follows => (&[][..], received),
            First::Input(bytes) => (*bytes, received),
            First::Header(header, arrived) => (&**header, arrived + received),
            First::Unknown => (&[][..], received),
        };
        let protocol = connection.protocol;
        let first = match protocol {
            ClientProtocol::Binary => self.first_request::<Binary>(protocol, bytes),
            ClientProtocol::Undecided | ClientProtocol::Text => {
                self.first_request::<Text>(protocol, bytes)
            }
        };
        let unknown = FirstRequest { class: answered.class, name: None, key: None };
        let FirstRequest { class, name, key } = first.unwrap_or(unknown);
        self.context.slow.push(SlowCommand {
            time_ns,
            took_ns: answered.took_ns,
            sent_by: sent_by(connection.id, &connection.registered),
            class,
            name,
            commands: answered.commands,
            key,
            request_bytes: request_bytes as u64,
            reply_bytes: sent as u64,
            waits: connection.waits(),
        });
    }

    /// Counts a command that was timed alone, not with the other commands of its call, and records
    /// it if it was slow. Called when the command's reply of `len` bytes may be sent.
    pub(super) fn note_released(
        &self,
        id: ConnectionId,
        registered: &Registered,
        timing: &Timing,
        len: usize,
        now_ns: u64,
    ) {
        registered.answered(1);
        let took_ns = self.timer.released(timing, now_ns);
        if !self.timer.is_slow(took_ns) || !self.timer.count_slow(1, now_ns) {
            return;
        }
        self.context.slow.push(SlowCommand::apart(
            sent_by(id, registered),
            timing,
            took_ns,
            now_ns,
            len,
        ));
    }
}

fn sent_by(id: ConnectionId, registered: &Registered) -> SentBy {
    let peer = registered.peer.clone();
    SentBy::Connection { id, peer, protocol: registered.protocol() }
}
