//! Options of the event loops, and their interface to the memory budget.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::listener::Listener;

/// The requested kernel interface for the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring if the kernel allows it, otherwise epoll.
    #[default]
    Auto,
    /// epoll, which every kernel has.
    Epoll,
    /// io_uring. The start fails if the kernel does not allow it.
    Uring,
}

/// The account for the memory of connection buffers, which is part of the server's memory limit.
/// Every charge succeeds. When the charges exceed the account's [limit](Self::held), the event
/// loops close some connections (`relief.rs`).
pub trait Budget: Send + Sync {
    /// Charges `bytes` that a connection keeps between turns.
    fn charge(&self, bytes: usize);
    /// Releases `bytes` that were charged.
    fn release(&self, bytes: usize);
    /// Returns the number of bytes that all connections keep, and the limit for that number.
    fn held(&self) -> (u64, u64);
}

/// A budget without a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Budget for Unlimited {
    fn charge(&self, _bytes: usize) {}
    fn release(&self, _bytes: usize) {}
    fn held(&self) -> (u64, u64) {
        (0, u64::MAX)
    }
}

/// Settings for all workers. `Options::default()` has no listeners.
#[derive(Clone)]
pub struct Options {
    /// The kernel interface to use.
    pub backend: BackendChoice,
    /// The listeners, already bound by [`Listener::bind`].
    pub listeners: Vec<Listener>,
    /// The largest number of open connections, over all workers. Further clients receive an error
    /// and are closed.
    pub max_connections: usize,
    /// A connection is closed if no byte was sent or received on it for this time, unless it waits
    /// for the server.
    pub idle_timeout: Option<Duration>,
    /// The longest time that a graceful shutdown waits for the rest of a half-sent command. For
    /// unsent replies, the shutdown waits longer, at most for the time that was passed to
    /// [`Control::shut_down`](super::Control::shut_down).
    pub unfinished_grace: Duration,
    /// The soft limit of a connection's unsent output, in bytes. At this limit, the service stops
    /// until the output is sent.
    pub output_limit: usize,
    /// The account of connection buffers.
    pub budget: Arc<dyn Budget>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            backend: BackendChoice::Auto,
            listeners: Vec::new(),
            max_connections: 1024,
            idle_timeout: None,
            unfinished_grace: Duration::from_secs(1),
            output_limit: 64 << 10,
            budget: Arc::new(Unlimited),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("backend", &self.backend)
            .field("listeners", &self.listeners)
            .field("max_connections", &self.max_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field("output_limit", &self.output_limit)
            .finish_non_exhaustive()
    }
}
