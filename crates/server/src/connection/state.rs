//! A client connection in the service: what it has begun, what it waits for, and what it publishes
//! for statistics.

use super::body::Body;
use super::gates::Gates;
use crate::clients::{ClientProtocol, Registered, Unfinished};
use crate::command::{Dump, LongValue};
use crate::net::{ConnectionId, Flow};
use crate::waits::{Wait, Waits};
use larder_engine::Reads;
use larder_protocol::text::Get;
use std::sync::Arc;

/// The state of one client connection in the service.
#[derive(Debug)]
pub struct Connection {
    pub(super) id: ConnectionId,
    /// The facts about this connection that statistics and the admin page show.
    pub(super) registered: Arc<Registered>,
    /// The protocol as in `registered`, but without an atomic load.
    pub(super) protocol: ClientProtocol,
    /// Bytes of the buffers that the event loop keeps for this connection.
    pub(super) buffers: u32,
    /// All reasons for which the next request to be executed has waited so far. Valid only if
    /// `waits_since` is not 0.
    waited_for: Waits,
    /// The rest of a long value that is being sent. It is sent before any other output.
    pub(super) value: Option<Box<LongValue>>,
    pub(super) state: State,
    /// The queue of withheld replies; `None` if no reply is withheld.
    pub(super) gates: Option<Box<Gates>>,
    /// Reads of records that are not in memory. The connection continues when these records have
    /// arrived.
    pub(super) reads: Option<Reads>,
    /// The server's time at which the next request to be executed began to wait, in nanoseconds. It
    /// is 0 if no request waits.
    pub(super) waits_since: u64,
}

/// The work that the connection has begun but not finished.
#[derive(Debug)]
pub(super) enum State {
    /// No work is unfinished. The next input begins a request.
    Ready,
    /// A retrieval is answered in part. Its remaining keys are in the input.
    Keys(Get),
    /// A request was refused, and the rest of it is discarded as it arrives. Holds the number of
    /// bytes still to discard.
    Swallow(usize),
    /// A line was refused. The input up to the end of the line is discarded.
    SkipLine,
    /// A long value that is being received.
    Body(Box<Body>),
    /// A dump that is being sent.
    Dump(Box<Dump>),
}

/// How the connection continues after one part of its work.
pub(super) enum Step {
    /// Continue with the next part of the work.
    Next,
    /// Stop, and return this [`Flow`] to the event loop.
    Stop(Flow),
}

impl Connection {
    /// Creates a connection that has begun nothing.
    pub(super) fn new(id: ConnectionId, registered: Arc<Registered>) -> Connection {
        Connection {
            id,
            registered,
            waited_for: Waits::NONE,
            protocol: ClientProtocol::Undecided,
            buffers: 0,
            value: None,
            state: State::Ready,
            gates: None,
            reads: None,
            waits_since: 0,
        }
    }

    /// Returns true if the connection withholds replies that wait for commits.
    pub(crate) fn withholds(&self) -> bool {
        self.gates.is_some()
    }

    /// Returns all reasons for which the next request to be executed has waited so far.
    #[inline]
    pub(super) fn waits(&self) -> Waits {
        if self.waits_since == 0 { Waits::NONE } else { self.waited_for }
    }

    /// Notes that the next request to be executed has waited since `since_ns`, and that it now
    /// waits for `reason`.
    #[cold]
    pub(super) fn park(&mut self, since_ns: u64, reason: Wait) {
        self.waited_for = self.waits().with(reason);
        self.waits_since = since_ns;
        self.registered.set_waits(Waits::NONE.with(reason));
    }

    /// Returns the work that the connection has begun but not finished.
    #[inline]
    pub(super) fn unfinished(&self) -> Unfinished {
        match &self.state {
            _ if self.value.is_some() => Unfinished::Reply,
            State::Ready => Unfinished::Nothing,
            State::Keys(_) | State::Swallow(_) | State::SkipLine | State::Body(_) => {
                Unfinished::Request
            }
            State::Dump(_) => Unfinished::Reply,
        }
    }

    /// Publishes the connection's unfinished work and the memory that is kept for the connection,
    /// for statistics and the admin page.
    #[cold]
    pub(super) fn show_unfinished(&self) {
        self.registered.set_unfinished(self.unfinished());
        self.show_kept();
    }

    /// Publishes the number of bytes that are kept for the connection: its buffers, and the part of
    /// a value that has arrived.
    pub(super) fn show_kept(&self) {
        let arrived = if let State::Body(body) = &self.state { body.filled() } else { 0 };
        self.registered.set_kept((self.buffers as usize).saturating_add(arrived));
    }

    /// Notes that the next request to be executed no longer waits.
    #[cold]
    pub(super) fn unpark(&mut self) {
        self.waits_since = 0;
        self.registered.set_waits(Waits::NONE);
    }

    /// Returns true if a long value may not continue yet because its beginning is withheld.
    pub(super) fn is_open(&self) -> bool {
        self.gates.as_ref().is_some_and(|gates| gates.is_open())
    }

    /// Returns what the connection waits for when it parks. `reads` is true if the connection waits
    /// for reads of records.
    #[cold]
    pub(super) fn parks_for(&self, reads: bool) -> Wait {
        match &self.state {
            _ if self.is_open() => Wait::Commit,
            State::Body(body) if body.waits_for_place() => Wait::Place,
            _ if reads => Wait::Read,
            _ => Wait::Space,
        }
    }
}
