//! The event loop: sockets in, bytes out, one loop per worker. What the bytes mean is the
//! [`Service`]'s business, so the same loops carry the server and the responder of the lab that
//! only answers.

mod backend;
mod buffer;
mod connection;
mod control;
mod counters;
mod epoll;
mod event_loop;
mod held;
mod listener;
mod options;
mod relief;
pub mod responder;
mod slab;
mod transport;
mod uring;
mod wake;

pub use backend::{Backend, BackendKind};
pub use buffer::{InputBuffer, OutputBuffer, OutputMemory};
pub use control::Control;
pub use counters::{Counter, Counters};
pub use event_loop::{EventLoop, open};
pub use listener::{BindError, Endpoint, Listener};
pub use options::{BackendChoice, Budget, Options, Unlimited};

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A TCP client.
    Tcp {
        /// Its address.
        from: SocketAddr,
        /// The address that it reached.
        to: SocketAddr,
    },
    /// A client of the Unix socket.
    Unix,
}

/// A connection's number; never given twice in the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// For tests and for services that are driven without a loop.
    pub fn new(number: u64) -> Self {
        ConnectionId(number)
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything that could be executed was; more input is needed.
    Read,
    /// The output limit is reached: call again when the client has read.
    Drain,
    /// An answer is waited for: call again when the worker's waker was woken. No input is read
    /// meanwhile.
    Park,
    /// As [`Flow::Read`], but the service keeps replies that may not be sent yet: call again with
    /// more input, and also when the worker's waker was woken.
    Hold,
    /// Send what is in the output, then close.
    Close,
}

impl Flow {
    /// Whether more input is wanted.
    #[inline]
    fn reads(self) -> bool {
        matches!(self, Flow::Read | Flow::Hold)
    }

    /// Whether the connection goes on when the waker was woken.
    #[inline]
    fn waits(self) -> bool {
        matches!(self, Flow::Park | Flow::Hold)
    }
}

/// What the loops call. One service per worker, on the worker's thread.
pub trait Service {
    /// State of one connection.
    type Connection;

    /// A turn of the loop begins: the wait for events has ended.
    fn turn(&mut self);

    /// Nothing is to be done. Whether, and for how long, the loop should wait for events before it
    /// [sleeps](Service::sleep), because what that begins could be shared with others; no time: it
    /// should look for them once more.
    fn lingers(&mut self) -> Option<Duration> {
        None
    }

    /// The loop is about to block in the kernel.
    fn sleep(&mut self);

    /// Whether the loop, after [sleep](Service::sleep), should look for events again instead of blocking,
    /// because one is expected at any moment.
    fn polls(&mut self) -> bool {
        false
    }

    /// The longest that the loop may sleep: the service has to look at the time before long.
    fn wakes_within(&self) -> Option<Duration>;

    /// What the service keeps for a connection and has charged to the budget, in bytes.
    fn keeps(&self, connection: &Self::Connection) -> usize;

    /// Whether a connection that [parks](Flow::Park) waits for something that the service can
    /// [give up](Service::gives_up).
    fn can_give_up(&self, connection: &Self::Connection) -> bool;

    /// The loops keep too much for a connection that [parks](Flow::Park). Whether the service gives up what
    /// it waits for, and consumes the input at the next call.
    fn gives_up(&mut self, connection: &mut Self::Connection) -> bool;

    /// A client has connected.
    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection;

    /// These inputs of different connections are about to be [processed](Self::process), most probably: what they
    /// need can be brought into the processor's cache for all of them at once.
    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>);

    /// New input has arrived, the output has drained after [`Flow::Drain`], or the waker was woken
    /// after [`Flow::Park`] or [`Flow::Hold`].
    ///
    /// `output` is always empty at the beginning: a client that does not read its replies is not
    /// processed. `input` may be empty when the call is a resumption. With [`Flow::Read`] and
    /// [`Flow::Hold`] less than [`MAX_INPUT_HELD`] bytes may be left unconsumed, if they are not
    /// [postponed](InputBuffer::postpone); a connection that leaves more is closed, for it could never go on.
    fn process(
        &mut self,
        connection: &mut Self::Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow;

    /// Whether a connection that [parks](Flow::Park) would only do so again: a wake-up is not for it.
    fn awaits(&self, _connection: &mut Self::Connection) -> bool {
        false
    }

    /// Whether the connection stands between two commands as far as the service knows: nothing is
    /// half received or waited for. A graceful shutdown closes such connections at once and gives
    /// the others time.
    fn is_idle(&self, _connection: &Self::Connection) -> bool {
        true
    }

    /// The connection has ended, whatever the reason.
    fn disconnect(&mut self, connection: Self::Connection);
}

/// Inputs that a service [foresees](Service::foresee) at a time: enough for the processor to wait for their memory at
/// once, few enough for what the first needs to be there still when its turn comes.
const FORESEEN: usize = 8;

/// The most unconsumed bytes a connection may keep while it waits for more input.
pub const MAX_INPUT_HELD: usize = 64 << 10;

#[cfg(test)]
mod tests;
