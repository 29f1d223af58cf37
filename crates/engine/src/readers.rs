//! Threads that read records from the store for sessions that cannot read by themselves.

use crate::fetch::{Inbox, Read};
use crate::lane::Lane;
use crate::lock::lock;
use larder_log::{Address, Budget};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// Each waits for one read at a time.
const READERS: usize = 8;

/// The reads of all sessions take at most this part of a lane's memory.
const SHARE_OF_MEMORY: u64 = 8;
/// The most bytes that one session's reads take, beside a single larger record.
const SHARE_MOST: u64 = 4 << 20;
/// Reads are charged in steps of this many bytes, so that sessions seldom write to the budget.
const SHARE_STEP: u64 = 128 << 10;

/// How long a reader pauses when the operating system has no memory for a value.
const NO_MEMORY: Duration = Duration::from_millis(10);

/// Reads that wait for a reader.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    queue: Mutex<VecDeque<Request>>,
    ready: Condvar,
    ended: AtomicBool,
    /// Sessions that there are.
    sessions: AtomicUsize,
}

/// A record that is to be read.
#[derive(Debug)]
pub(crate) struct Request {
    /// Where it lies, in which use of its segment.
    pub(crate) place: (Address, u32),
    /// So many bytes from there on are to be read, if that is known.
    pub(crate) size: Option<usize>,
    /// The memory for a large value.
    pub(crate) charge: Option<Charge>,
    /// Where it goes, and who is told.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) waker: Waker,
}

/// Memory that is charged to the budget until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: Cell<u64>,
}

impl Charge {
    /// What is needed now: see [`Budget::charge`].
    pub(crate) fn needed(budget: &Arc<Budget>, bytes: u64) -> Charge {
        budget.charge(bytes);
        Charge { budget: Arc::clone(budget), bytes: Cell::new(bytes) }
    }

    /// For a large value; `None` if there is no room, and then the cleaner knows what is wanted.
    pub(crate) fn wanted(budget: &Arc<Budget>, bytes: u64) -> Option<Charge> {
        if !budget.try_charge_wanted(bytes) {
            budget.want(bytes);
            return None;
        }
        Some(Charge { budget: Arc::clone(budget), bytes: Cell::new(bytes) })
    }

    /// Charges so many bytes in place of what it did.
    fn resize(&self, bytes: u64) {
        let before = self.bytes.replace(bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.budget.charge(more),
            None => self.budget.release(before - bytes),
        }
    }
}

/// Memory of a session's reads, charged to the lane's budget in [steps](SHARE_STEP), and the session's share of
/// what all of them may use.
#[derive(Debug)]
pub(crate) struct ReadShare {
    readers: Arc<Readers>,
    charge: Charge,
}

impl ReadShare {
    pub(crate) fn new(readers: &Arc<Readers>, budget: &Arc<Budget>) -> ReadShare {
        readers.sessions.fetch_add(1, Ordering::Relaxed);
        ReadShare { readers: Arc::clone(readers), charge: Charge::needed(budget, 0) }
    }

    /// Bytes that the session may use. One read may always be on its way, however large it is.
    pub(crate) fn most(&self) -> usize {
        let sessions = self.readers.sessions.load(Ordering::Relaxed).max(1) as u64;
        (self.charge.budget.limit() / SHARE_OF_MEMORY / sessions).min(SHARE_MOST) as usize
    }

    /// The session uses so many bytes.
    #[inline]
    pub(crate) fn set(&self, bytes: usize) {
        let (wanted, charged) =
            ((bytes as u64).next_multiple_of(SHARE_STEP), self.charge.bytes.get());
        if wanted > charged || charged - wanted > SHARE_STEP {
            self.charge.resize(wanted);
        }
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        self.readers.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.bytes.get());
    }
}

impl Readers {
    pub(crate) fn ask(&self, request: Request) {
        lock(&self.queue).push_back(request);
        self.ready.notify_one();
    }

    /// The readers end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        drop(lock(&self.queue));
        self.ready.notify_all();
    }

    /// The next request; `None` when the readers end.
    fn wait(&self) -> Option<Request> {
        let mut queue = lock(&self.queue);
        loop {
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            match queue.pop_front() {
                Some(request) => return Some(request),
                None => queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Starts the readers. They hold no handle of the engine while they wait.
pub(crate) fn spawn(lane: &Arc<Lane>) -> io::Result<()> {
    for number in 0..READERS {
        let (weak, readers) = (Arc::downgrade(lane), Arc::clone(&lane.readers));
        let builder = thread::Builder::new().name(format!("reader-{number}"));
        builder.spawn(move || run(&weak, &readers))?;
    }
    Ok(())
}

fn run(weak: &Weak<Lane>, readers: &Readers) {
    while let Some(request) = readers.wait() {
        let Some(lane) = weak.upgrade() else { return };
        lane.serve(request);
    }
}

impl Lane {
    /// Reads what sessions wait for, for engines without threads of their own; the answer is whether
    /// anybody waited.
    pub(crate) fn serve_reads(&self) -> bool {
        let mut any = false;
        loop {
            let Some(request) = lock(&self.readers.queue).pop_front() else { return any };
            any = true;
            self.serve(request);
        }
    }

    fn serve(&self, request: Request) {
        let Request { place: (address, generation), size, charge, inbox, waker } = request;
        let read = match charge {
            None if self.log.segment(address.segment()).is_jumbo() => {
                self.log.read_jumbo_head(address.segment()).map(Read::Record)
            }
            None => self.log.read_records(address, size).map(Read::Record),
            Some(charge) => self
                .log
                .load_absent_jumbo(address.segment(), generation, || drop(charge))
                .map(|()| {
                    let now = self.now.load(Ordering::Relaxed);
                    lock(&self.just_read).insert(address.segment(), now);
                    Read::InMemory
                }),
        };
        let read = read.unwrap_or_else(|error| match error.kind() {
            // The item is well: who wants it asks again, but not at once.
            io::ErrorKind::OutOfMemory => {
                thread::park_timeout(NO_MEMORY);
                Read::InMemory
            }
            _ => Read::Failed,
        });
        inbox.put((address, generation), read);
        waker.wake();
    }
}
