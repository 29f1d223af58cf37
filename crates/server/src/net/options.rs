//! What the loops can be told, and whom they ask for memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::listener::Listener;

/// Which kernel interface carries the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    /// epoll, always there.
    Epoll,
    /// io_uring; refused at start where the kernel does not allow it.
    Uring,
}

/// Who keeps the account of buffer memory, which counts inside the server's memory limit. Nothing is
/// refused: when connections keep more than they may, the loops close those that keep most.
pub trait Budget: Send + Sync {
    /// Charges `bytes` that a connection keeps between turns.
    fn charge(&self, bytes: usize);
    /// Gives back what was charged.
    fn release(&self, bytes: usize);
    /// Bytes that all connections keep, and how many they may.
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

/// Settings of all workers. `Options::default()` listens nowhere.
#[derive(Clone)]
pub struct Options {
    /// Which kernel interface to use.
    pub backend: BackendChoice,
    /// Where clients connect, bound already; see [`Listener::bind`].
    pub listeners: Vec<Listener>,
    /// The most connections at a time over all workers; one more is told so and closed.
    pub max_connections: usize,
    /// Connections that have neither sent nor read a byte for this long are closed.
    pub idle_timeout: Option<Duration>,
    /// How long a graceful shutdown waits for the rest of a command that a client has sent half of.
    /// Replies that are due are waited for as long as the shutdown may take.
    pub unfinished_grace: Duration,
    /// The soft limit of one connection's unsent output, in bytes.
    pub output_limit: usize,
    /// Who keeps the account of connection buffers.
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
