//! What the workers share, and the handle by which the rest of the process steers them.

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

/// What the workers are asked to do. Only ever goes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Order {
    /// Serve and accept.
    Serve = 0,
    /// Serve the connections there are, accept none.
    Close = 1,
    /// Finish what is in flight and end.
    Stop = 2,
}

/// One worker as the others see it.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) alarm: Arc<Alarm>,
    pub(super) counters: Arc<Counters>,
    /// Accepted by another worker, waiting to be taken over.
    inbox: Mutex<Vec<OwnedFd>>,
    /// Connections placed here, whether taken over yet or not.
    load: AtomicUsize,
    /// Connections keep too much, and those of another worker are not to blame.
    pub(super) relief_wanted: AtomicBool,
}

/// What may change while the workers run.
#[derive(Debug)]
struct Limits {
    max_connections: AtomicUsize,
    /// 0 is no limit.
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
    pub(super) backend: Backend,
    pub(super) desks: Vec<Desk>,
    order: AtomicU8,
    deadline: Mutex<Option<Instant>>,
}

/// Numbers are unique in the process, not only within one group of workers.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Shared {
    pub(super) fn new(options: Options, backend: Backend, workers: usize) -> io::Result<Self> {
        let desk = || {
            Ok(Desk {
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
            backend,
            desks: (0..workers.max(1)).map(|_| desk()).collect::<io::Result<_>>()?,
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

    /// Connections that are silent for so many milliseconds are closed.
    pub(super) fn idle_timeout_ms(&self) -> Option<u64> {
        match self.limits.idle_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            timeout => Some(timeout),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker that a new connection goes to: `own` unless another one has fewer. `None` when
    /// there are too many connections already.
    pub(super) fn place(&self, own: usize) -> Option<usize> {
        let load = |desk: &Desk| desk.load.load(Ordering::Relaxed);
        let limit = self.limits.max_connections.load(Ordering::Relaxed);
        if self.desks.iter().map(load).sum::<usize>() >= limit {
            return None;
        }
        let mut best = own;
        for (index, desk) in self.desks.iter().enumerate() {
            if load(desk) < load(&self.desks[best]) {
                best = index;
            }
        }
        self.desks[best].load.fetch_add(1, Ordering::Relaxed);
        Some(best)
    }

    /// A placed connection has ended.
    pub(super) fn displace(&self, worker: usize) {
        self.desks[worker].load.fetch_sub(1, Ordering::Relaxed);
    }

    /// Hands a placed connection to its worker.
    pub(super) fn hand_over(&self, worker: usize, socket: OwnedFd) {
        let desk = &self.desks[worker];
        desk.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        desk.alarm.ring();
    }

    /// What was handed to this worker.
    pub(super) fn take_over(&self, worker: usize) -> Vec<OwnedFd> {
        let mut inbox = self.desks[worker].inbox.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *inbox)
    }

    /// Has the other workers look whether their connections keep too much.
    pub(super) fn ask_for_relief(&self, own: usize) {
        for (_, desk) in self.desks.iter().enumerate().filter(|(index, _)| *index != own) {
            if !desk.relief_wanted.swap(true, Ordering::AcqRel) {
                desk.alarm.ring();
            }
        }
    }

    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        // The others stay open for the next process: each loop takes its own hands off them.
        for listener in self.options.listeners.iter().filter(|l| !l.is_inherited()) {
            transport::stop_listening(listener.fd());
        }
        self.ring_all();
    }

    fn ring_all(&self) {
        for desk in &self.desks {
            desk.alarm.ring();
        }
    }
}

/// Steers the workers from any thread.
#[derive(Clone, Debug)]
pub struct Control {
    pub(super) shared: Arc<Shared>,
}

impl Control {
    /// Refuses new connections from now on, for good; those there are go on.
    pub fn stop_accepting(&self) {
        self.shared.give(Order::Close);
    }

    /// Asks all workers to end. New connections are refused; connections between two commands are
    /// closed at once; the others may finish what they are at, for `grace` at most. Every worker's
    /// [`run`](super::EventLoop::run) returns then. Does not wait for that.
    pub fn shut_down(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut given = self.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        // A second order may only shorten the grace.
        *given = Some(given.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(given);
        self.shared.give(Order::Stop);
    }

    /// Changes these limits of the [`Options`]. Connections beyond a lower one stay.
    pub fn set_limits(&self, max_connections: usize, idle_timeout: Option<Duration>) {
        self.shared.limits.set(max_connections, idle_timeout);
        // Who sleeps without a limit must plan anew.
        self.shared.ring_all();
    }

    /// The counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.shared.desks.iter().map(|desk| &*desk.counters)
    }

    /// The kernel interface that was chosen, and why.
    pub fn backend(&self) -> &Backend {
        &self.shared.backend
    }

    /// What the workers were opened with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }
}
