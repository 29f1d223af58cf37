//! State that the workers share, and the handle with which other threads control them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::counters::Counters;
use super::options::Options;
use super::wake::Alarm;
use super::{ConnectionId, transport};

/// An order to all workers. Only a greater order replaces the order in force. So no later order
/// makes stopped workers serve again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Order {
    /// Accept and serve connections.
    Serve = 0,
    /// Serve the open connections, but accept no new ones.
    Close = 1,
    /// Finish the commands that are in flight, then end.
    Stop = 2,
}

/// The part of a worker that other threads use.
#[derive(Debug)]
pub(super) struct WorkerHandle {
    pub(super) alarm: Arc<Alarm>,
    pub(super) counters: Arc<Counters>,
    /// Sockets that another worker accepted and that this worker has not taken over yet.
    inbox: Mutex<Vec<OwnedFd>>,
    /// Number of connections that this worker serves or will serve. Includes connections in
    /// `inbox`.
    load: AtomicUsize,
    /// True if another worker has asked this worker to close some of its own connections. A worker
    /// asks when the buffers of all connections exceed the budget and closing its own connections
    /// does not help enough: see `relief.rs`.
    pub(super) relief_wanted: AtomicBool,
}

/// Limits that can change while the workers run.
#[derive(Debug)]
struct Limits {
    max_connections: AtomicUsize,
    /// The idle timeout; 0 means none.
    idle_timeout_ms: AtomicU64,
}

impl Limits {
    fn set(&self, max_connections: usize, idle_timeout: Option<Duration>) {
        let idle_ms = idle_timeout.map_or(0, |timeout| (timeout.as_millis() as u64).max(1));
        self.max_connections.store(max_connections, Ordering::Relaxed);
        self.idle_timeout_ms.store(idle_ms, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    limits: Limits,
    /// Number of connections of all workers.
    placed: AtomicUsize,
    pub(super) backend: Backend,
    pub(super) workers: Vec<WorkerHandle>,
    order: AtomicU8,
    deadline: Mutex<Option<Instant>>,
}

/// The next connection id. Ids are unique in the process, not only within one group of workers.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Shared {
    pub(super) fn new(options: Options, backend: Backend, workers: usize) -> io::Result<Self> {
        let worker = || {
            Ok(WorkerHandle {
                alarm: Alarm::new()?,
                counters: Arc::default(),
                inbox: Mutex::default(),
                load: AtomicUsize::new(0),
                relief_wanted: AtomicBool::new(false),
            })
        };
        let limits =
            Limits { max_connections: AtomicUsize::new(0), idle_timeout_ms: AtomicU64::new(0) };
        limits.set(options.max_connections, options.idle_timeout);
        Ok(Shared {
            options,
            limits,
            placed: AtomicUsize::new(0),
            backend,
            workers: (0..workers.max(1)).map(|_| worker()).collect::<io::Result<_>>()?,
            order: AtomicU8::new(Order::Serve as u8),
            deadline: Mutex::new(None),
        })
    }

    pub(super) fn next_id(&self) -> ConnectionId {
        ConnectionId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Serve,
            1 => Order::Close,
            _ => Order::Stop,
        }
    }

    /// Returns the idle timeout in milliseconds; `None` if there is none.
    pub(super) fn idle_timeout_ms(&self) -> Option<u64> {
        match self.limits.idle_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            timeout => Some(timeout),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the worker that serves a new connection, and adds the connection to that worker's
    /// load. Returns `own` unless another worker has fewer connections. Returns `None` if no
    /// further connection is allowed.
    pub(super) fn place(&self, own: usize) -> Option<usize> {
        let limit = self.limits.max_connections.load(Ordering::Relaxed);
        let more = |placed: usize| (placed < limit).then_some(placed + 1);
        self.placed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let load = |worker: &WorkerHandle| worker.load.load(Ordering::Relaxed);
        let mut best = own;
        for (index, worker) in self.workers.iter().enumerate() {
            if load(worker) < load(&self.workers[best]) {
                best = index;
            }
        }
        self.workers[best].load.fetch_add(1, Ordering::Relaxed);
        Some(best)
    }

    /// Records that a connection of `worker` has ended.
    pub(super) fn displace(&self, worker: usize) {
        self.workers[worker].load.fetch_sub(1, Ordering::Relaxed);
        self.placed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Hands a socket over to `worker`, which [`place`](Self::place) has chosen for it.
    pub(super) fn hand_over(&self, worker: usize, socket: OwnedFd) {
        let worker = &self.workers[worker];
        worker.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        worker.alarm.ring();
    }

    /// Takes the sockets that were handed over to this worker.
    pub(super) fn take_over(&self, worker: usize) -> Vec<OwnedFd> {
        let mut inbox = self.workers[worker].inbox.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *inbox)
    }

    /// Asks the other workers to check whether they must close some of their own connections,
    /// because the buffers of all connections exceed the budget.
    pub(super) fn ask_for_relief(&self, own: usize) {
        for (_, worker) in self.workers.iter().enumerate().filter(|(index, _)| *index != own) {
            if !worker.relief_wanted.swap(true, Ordering::AcqRel) {
                worker.alarm.ring();
            }
        }
    }

    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        // Inherited listeners must keep listening for the next process. So only other listeners are
        // stopped here, and each event loop stops accepting on the inherited ones itself.
        for listener in self.options.listeners.iter().filter(|l| !l.is_inherited()) {
            transport::stop_listening(listener.fd());
        }
        self.ring_all();
    }

    fn ring_all(&self) {
        for worker in &self.workers {
            worker.alarm.ring();
        }
    }
}

/// Controls the workers from any thread.
#[derive(Clone, Debug)]
pub struct Control {
    pub(super) shared: Arc<Shared>,
}

impl Control {
    /// Refuses new connections permanently. Open connections continue.
    pub fn stop_accepting(&self) {
        self.shared.give(Order::Close);
    }

    /// Asks all workers to end. The workers refuse new connections, close idle connections at once,
    /// and give other connections at most `grace` to finish. Then every worker's
    /// [`run`](super::EventLoop::run) returns. This function does not wait for the workers.
    pub fn shut_down(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut given = self.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        // A later call can make the deadline earlier, but not later.
        *given = Some(given.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(given);
        self.shared.give(Order::Stop);
    }

    /// Changes two limits of the [`Options`]. If more connections are open than the new limit
    /// allows, they stay open.
    pub fn set_limits(&self, max_connections: usize, idle_timeout: Option<Duration>) {
        self.shared.limits.set(max_connections, idle_timeout);
        // A worker without an idle timeout may sleep until its next event. Wake it, so that it
        // plans its first check for idle connections.
        self.shared.ring_all();
    }

    /// Returns the counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.shared.workers.iter().map(|worker| &*worker.counters)
    }

    /// Returns the kernel interface in use, and the reason why it was chosen.
    pub fn backend(&self) -> &Backend {
        &self.shared.backend
    }

    /// Returns the options of the workers.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::BackendKind;
    use super::*;

    #[test]
    fn workers_that_accept_at_once_exceed_no_limit() {
        const LIMIT: usize = 1000;
        let options = Options { max_connections: LIMIT, ..Options::default() };
        let backend = Backend { kind: BackendKind::Epoll, reason: String::new() };
        let shared = Shared::new(options, backend, 4).unwrap();
        let placed = || -> Vec<usize> {
            let accepting = |own: usize| (0..LIMIT).filter_map(|_| shared.place(own)).collect();
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|own| scope.spawn(move || -> Vec<usize> { accepting(own) }))
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            })
        };
        let first = placed();
        assert_eq!(first.len(), LIMIT);
        first[..10].iter().for_each(|worker| shared.displace(*worker));
        assert_eq!(placed().len(), 10);
    }
}
