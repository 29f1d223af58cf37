//! The event loops, one per worker. An event loop moves bytes between sockets and a [`Service`].
//! Only the service knows the meaning of the bytes. So `larder bench` can use the same loops for
//! its responder, a server that answers without storing anything.

mod backend;
mod buffer;
mod byte_queue;
mod connection;
mod control;
mod counters;
mod epoll;
mod event_loop;
mod incoming;
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
pub(crate) use counters::counters;
pub use counters::{Counter, Counters, LoopTotals};
pub use event_loop::{EventLoop, open};
pub use incoming::Incoming;
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
        /// The client's address.
        from: SocketAddr,
        /// The address to which the client connected.
        to: SocketAddr,
    },
    /// A client of a Unix socket.
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

/// What the loop should do next with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Wait for more input. All complete commands were executed.
    Read,
    /// Send the output, then call the service again. The service has more to do. Usually the
    /// connection's unsent output has reached its limit.
    Drain,
    /// Wait until the worker's waker is woken, then call the service again. No input is processed
    /// until then.
    Park,
    /// Like [`Flow::Read`], but the service also withholds replies. Call the service again after
    /// more input, and also after the worker's waker is woken.
    Hold,
    /// Send the output, then close the connection.
    Close,
}

impl Flow {
    /// Returns true if the service wants more input.
    #[inline]
    fn reads(self) -> bool {
        matches!(self, Flow::Read | Flow::Hold)
    }

    /// Returns true if the connection continues when the worker's waker is woken.
    #[inline]
    fn waits(self) -> bool {
        matches!(self, Flow::Park | Flow::Hold)
    }
}

/// The interface through which the event loops call the server. Each worker has its own service,
/// and calls it on its own thread.
pub trait Service {
    /// The service's state of one connection.
    type Connection;

    /// Begins a turn of the loop. Called when the loop has received events from the kernel, before
    /// it handles them.
    fn turn(&mut self);

    /// Called when the loop has no work. Returns how long the loop should wait for events before it
    /// [sleeps](Service::sleep). The service may begin work in `sleep`, such as a commit. If the
    /// loop first waits a little, requests of more clients can share this work. For a zero
    /// duration, the loop checks for events once more without waiting. For `None`, the loop sleeps
    /// at once.
    fn lingers(&mut self) -> Option<Duration> {
        None
    }

    /// Prepares for the loop's blocking wait in the kernel.
    fn sleep(&mut self);

    /// Called after [sleep](Service::sleep). Returns true if the loop should poll for events
    /// instead of blocking, because an event is expected at any moment.
    fn polls(&mut self) -> bool {
        false
    }

    /// Returns the longest time for which the loop may sleep, if the service has periodic work in
    /// [`turn`](Service::turn). Returns `None` if there is no such limit.
    fn wakes_within(&self) -> Option<Duration>;

    /// Returns the number of bytes that the service keeps for a connection and has charged to the
    /// budget.
    fn keeps(&self, connection: &Self::Connection) -> usize;

    /// Tells the service the sizes of the buffers that the loop keeps for a connection, in bytes.
    /// Called when a size changes.
    fn notes_buffers(&mut self, _connection: &mut Self::Connection, _input: usize, _output: usize) {
    }

    /// Returns true if a [parked](Flow::Park) connection waits for something that the service can
    /// [give up](Service::gives_up).
    fn can_give_up(&self, connection: &Self::Connection) -> bool;

    /// Asks the service to give up what a [parked](Flow::Park) connection waits for, because the
    /// buffers of all connections exceed the budget. Returns true if the service has given up the
    /// wait. The next call of [`process`](Self::process) then consumes the connection's unconsumed
    /// input.
    fn gives_up(&mut self, connection: &mut Self::Connection) -> bool;

    /// Creates the service's state of a new connection.
    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection;

    /// Prefetches memory for the requests in `inputs`, which arrived on different connections. The
    /// next calls will most probably [process](Self::process) these inputs.
    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>);

    /// Processes new input. After [`Flow::Drain`], the loop also calls this function once the
    /// output was sent. After [`Flow::Park`] or [`Flow::Hold`], the loop also calls this function
    /// after a wake-up.
    ///
    /// `output` is always empty at the beginning, because the loop does not call the service for a
    /// client that has unread replies. `input` may be empty when a connection continues. A service
    /// that returns [`Flow::Read`] or [`Flow::Hold`] must leave fewer than [`MAX_INPUT_HELD`] bytes
    /// unconsumed, unless it [postpones](InputBuffer::postpone) them. Otherwise the loop closes the
    /// connection, because it does not keep so much input for any connection.
    fn process(
        &mut self,
        connection: &mut Self::Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow;

    /// Receives input of a connection into memory of the service. Called if the last call of
    /// [`process`](Self::process) has returned [`Flow::Read`] or [`Flow::Hold`], has consumed all
    /// input, and [expects](InputBuffer::expect_value) bytes of a long value. If the service has no
    /// memory for these bytes, it receives nothing, and the loop receives as usual. If any bytes
    /// have arrived, the loop then calls [`process`](Self::process).
    fn receive(&mut self, connection: &mut Self::Connection, incoming: &mut Incoming<'_>);

    /// Returns true if a [parked](Flow::Park) connection must still wait. After a wake-up, the loop
    /// then skips the call of [`process`](Self::process), because the connection would only park
    /// again.
    fn awaits(&self, _connection: &mut Self::Connection) -> bool {
        false
    }

    /// Returns true if the connection is between two commands: no command is half received, and
    /// none waits for a result. A graceful shutdown closes such connections at once. It gives other
    /// connections time to finish.
    fn is_idle(&self, _connection: &Self::Connection) -> bool {
        true
    }

    /// Ends a connection. Called once for every connection, for any reason.
    fn disconnect(&mut self, connection: Self::Connection);
}

/// The largest number of inputs for which a service [prefetches](Service::foresee) together. This
/// number is large enough that many cache misses overlap, and small enough that the prefetched
/// lines are still in the cache when they are used.
const FORESEEN: usize = 8;

/// Limit of the unconsumed input of a connection that waits for more, in bytes. A connection that
/// keeps this many bytes or more is closed.
pub const MAX_INPUT_HELD: usize = 64 << 10;

#[cfg(test)]
mod tests;
