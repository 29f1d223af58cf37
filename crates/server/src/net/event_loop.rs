//! Creates the workers' event loops. The kernel interface for the sockets is chosen here, before
//! any worker starts.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use super::backend::{Backend, BackendKind};
use super::control::{Control, Shared};
use super::counters::Counters;
use super::options::{BackendChoice, Options};
use super::{Service, epoll, uring};

/// An event loop that does not run yet. Move the loop to its thread, and [run](Self::run) it there
/// with a service.
#[derive(Debug)]
pub struct EventLoop {
    shared: Arc<Shared>,
    index: usize,
}

/// Creates `workers` event loops over the same listeners.
///
/// # Errors
/// Returns an error if io_uring was requested and cannot be used, or if the process has no
/// descriptors left.
pub fn open(options: Options, workers: usize) -> io::Result<(Control, Vec<EventLoop>)> {
    let backend = choose(options.backend)?;
    for listener in &options.listeners {
        // epoll needs non-blocking listeners, and io_uring needs blocking ones.
        listener.set_nonblocking(backend.kind == BackendKind::Epoll)?;
    }
    let shared = Arc::new(Shared::new(options, backend, workers)?);
    let workers = (0..shared.workers.len())
        .map(|index| EventLoop { shared: Arc::clone(&shared), index })
        .collect();
    Ok((Control { shared }, workers))
}

fn choose(choice: BackendChoice) -> io::Result<Backend> {
    let (kind, reason) = match (choice, uring::probe) {
        (BackendChoice::Epoll, _) => (BackendKind::Epoll, "asked for".to_owned()),
        (BackendChoice::Uring, probe) => match probe() {
            Ok(()) => (BackendKind::Uring, "asked for".to_owned()),
            Err(refusal) => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("io_uring cannot be used here: {refusal}; use epoll or auto"),
                ));
            }
        },
        (BackendChoice::Auto, probe) => match probe() {
            Ok(()) => (BackendKind::Uring, "the kernel offers all it needs".to_owned()),
            Err(refusal) => {
                (BackendKind::Epoll, format!("io_uring cannot be used here: {refusal}"))
            }
        },
    };
    Ok(Backend { kind, reason })
}

impl EventLoop {
    /// Returns the worker's index, counted from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns a waker with which any thread can wake the loop. The loop then processes its parked
    /// connections again.
    pub fn waker(&self) -> Waker {
        self.shared.workers[self.index].alarm.waker()
    }

    /// Returns an eventfd. A write to it wakes the loop, as [`waker`](Self::waker) does. The kernel
    /// can write to it too, when a read of the device ends.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.workers[self.index].alarm.event()
    }

    /// Returns the counters of this worker. Any thread may read them at any time.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.workers[self.index].counters)
    }

    /// Serves connections until [`Control::shut_down`] ends the workers.
    ///
    /// # Errors
    /// Returns the kernel's error if the loop cannot continue. All connections of the loop are then
    /// closed.
    pub fn run<S: Service>(self, service: S) -> io::Result<()> {
        match self.shared.backend.kind {
            BackendKind::Epoll => epoll::run(self.shared, self.index, service),
            BackendKind::Uring => uring::run(self.shared, self.index, service),
        }
    }
}
