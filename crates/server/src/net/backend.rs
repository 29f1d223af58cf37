//! Which kernel interface carries the sockets.

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
    /// Returns its name as in the settings.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Epoll => "epoll",
            BackendKind::Uring => "uring",
        }
    }
}

/// The chosen kernel interface and the reason.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The interface.
    pub kind: BackendKind,
    /// The reason, for the log. For a fall-back, what the kernel refused.
    pub reason: String,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind.name(), self.reason)
    }
}
