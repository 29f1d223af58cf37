//! The event loops, one per worker, which move bytes between sockets and a [`Service`]. Only the
//! service knows what the bytes mean. So the same loops carry the server and the lab's responder.

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

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A TCP client.
    Tcp {
        /// Its address.
        from: SocketAddr,
        /// The address it connected to.
        to: SocketAddr,
    },
    /// A client of the Unix socket.
    Unix,
}

/// A connection's number. The process never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// Creates an id, for tests and for services that run without a loop.
    pub fn new(number: u64) -> Self {
        ConnectionId(number)
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything possible was executed. More input is needed.
    Read,
    /// The output limit is reached. Call again when the client has read.
    Drain,
    /// The connection waits for a result. Call again after a wake-up of the worker's waker. No
    /// input is read meanwhile.
    Park,
    /// Like [`Flow::Read`], but the service withholds replies. Call again with more input, and also
    /// after a wake-up of the worker's waker.
    Hold,
    /// Send the output, then close.
    Close,
}

impl Flow {
    /// Returns true if more input is wanted.
    #[inline]
    fn reads(self) -> bool {
        matches!(self, Flow::Read | Flow::Hold)
    }

    /// Returns true if the connection continues after a wake-up of the waker.
    #[inline]
    fn waits(self) -> bool {
        matches!(self, Flow::Park | Flow::Hold)
    }
}

/// The calls of the loops. Each worker has one service, on its own thread.
pub trait Service {
    /// State of one connection.
    type Connection;

    /// Begins a turn of the loop, after the wait for events.
    fn turn(&mut self);

    /// Called when the loop has no work. Returns how long the loop should wait for events before it
    /// [sleeps](Service::sleep), because more clients may soon share the work that the sleep
    /// begins. A zero duration means one more look without a wait. `None` means to sleep now.
    fn lingers(&mut self) -> Option<Duration> {
        None
    }

    /// Prepares for the loop to block in the kernel.
    fn sleep(&mut self);

    /// Returns true if the loop, after [sleep](Service::sleep), should poll for events instead of
    /// blocking, because one is expected at any moment.
    fn polls(&mut self) -> bool {
        false
    }

    /// Returns the longest time that the loop may sleep, because the service has to check the time.
    fn wakes_within(&self) -> Option<Duration>;

    /// Returns the bytes that the service keeps for a connection and has charged to the budget.
    fn keeps(&self, connection: &Self::Connection) -> usize;

    /// Returns true if a [parked](Flow::Park) connection waits for something that the service can
    /// [give up](Service::gives_up).
    fn can_give_up(&self, connection: &Self::Connection) -> bool;

    /// Asks the service to give up what a [parked](Flow::Park) connection waits for, because the
    /// loops keep too much for it. Returns true if the service does, and consumes the input at the
    /// next call.
    fn gives_up(&mut self, connection: &mut Self::Connection) -> bool;

    /// Creates the state of a new connection.
    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection;

    /// Prefetches for these inputs of different connections, which will most probably be
    /// [processed](Self::process) next.
    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>);

    /// Processes new input. Also called when the output has drained after [`Flow::Drain`], and
    /// after a wake-up of the waker that follows [`Flow::Park`] or [`Flow::Hold`].
    ///
    /// `output` is always empty at the beginning, because a client that does not read its replies
    /// is not processed. `input` may be empty when a connection resumes. With [`Flow::Read`] and
    /// [`Flow::Hold`], fewer than [`MAX_INPUT_HELD`] bytes may stay unconsumed unless they are
    /// [postponed](InputBuffer::postpone). A connection that leaves more could never continue, so
    /// it is closed.
    fn process(
        &mut self,
        connection: &mut Self::Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow;

    /// Returns true if a [parked](Flow::Park) connection would only park again, so that a wake-up
    /// can skip it.
    fn awaits(&self, _connection: &mut Self::Connection) -> bool {
        false
    }

    /// Returns true if the connection is between two commands as far as the service knows: nothing
    /// is half received or waited for. A graceful shutdown closes such connections at once and
    /// gives the others time.
    fn is_idle(&self, _connection: &Self::Connection) -> bool {
        true
    }

    /// Ends a connection, for whatever reason.
    fn disconnect(&mut self, connection: Self::Connection);
}

/// Number of inputs that a service [foresees](Service::foresee) at a time. Enough to overlap their
/// cache misses, and few enough that the prefetched lines are still in the cache when they are
/// used.
const FORESEEN: usize = 8;

/// The largest number of unconsumed bytes that a connection may keep while it waits for more input.
pub const MAX_INPUT_HELD: usize = 64 << 10;

#[cfg(test)]
mod tests;
