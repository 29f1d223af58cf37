//! Options of the loops, and the interface to the memory budget.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::listener::Listener;

/// The requested kernel interface for the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    /// epoll, which every kernel has.
    Epoll,
    /// io_uring. The start fails if the kernel does not allow it.
    Uring,
}

/// The account of buffer memory, which is part of the server's memory limit. It refuses nothing.
/// When connections keep more than they may, the loops close those that keep most.
pub trait Budget: Send + Sync {
    /// Charges `bytes` that a connection keeps between turns.
    fn charge(&self, bytes: usize);
    /// Releases a charge.
    fn release(&self, bytes: usize);
    /// Returns the bytes that all connections keep, and their limit.
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

/// Settings of all workers. `Options::default()` has no listeners.
#[derive(Clone)]
pub struct Options {
    /// Which kernel interface to use.
    pub backend: BackendChoice,
    /// The bound listeners, see [`Listener::bind`].
    pub listeners: Vec<Listener>,
    /// The largest number of connections of all workers. A further client is told so and closed.
    pub max_connections: usize,
    /// Time without a byte sent or read after which a connection is closed.
    pub idle_timeout: Option<Duration>,
    /// Time that a graceful shutdown waits for the rest of a half-sent command. It waits for
    /// replies until its own time limit.
    pub unfinished_grace: Duration,
    /// The soft limit of a connection's unsent output, in bytes.
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
