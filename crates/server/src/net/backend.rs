//! The kernel interface that the event loops use for sockets.

use std::fmt;

/// The kernel interface in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Readiness: epoll, recv, send.
    Epoll,
    /// Completion: io_uring with a ring per worker.
    Uring,
}

impl BackendKind {
    /// Returns the interface's name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Epoll => "epoll",
            BackendKind::Uring => "uring",
        }
    }
}

/// The kernel interface in use, and the reason why it was chosen.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The interface.
    pub kind: BackendKind,
    /// The reason for the choice, for the log. After a fall-back to epoll, the reason names the
    /// operation that the kernel refused.
    pub reason: String,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind.name(), self.reason)
    }
}
