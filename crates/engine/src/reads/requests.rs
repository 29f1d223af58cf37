//! Reads that sessions ask for: the queue of the readers, the memory that reads take, and where their
//! results go.

use crate::lock::lock;
use larder_disk::ReadBuffer;
use larder_log::{Address, Budget};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;

type Place = (Address, u32);

/// The reads of all sessions take at most this part of a lane's memory.
const SHARE_OF_MEMORY: u64 = 8;
/// The most bytes that one session's reads take, beside a single larger record.
const SHARE_MOST: u64 = 4 << 20;
/// Reads are charged in steps of this many bytes, so that sessions seldom write to the budget.
const SHARE_STEP: u64 = 128 << 10;

/// How a read ended.
#[derive(Debug)]
pub(crate) enum Read {
    /// With a buffer that begins with the record; of a large value, with its first block.
    Record(ReadBuffer),
    /// A large value is in memory now, for all, unless there was none for it: whoever wants it looks
    /// again.
    InMemory,
    /// The record cannot be read.
    Failed,
}

/// Where readers put what a session asked for.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) arrived: Mutex<Vec<(Place, Read)>>,
    pub(super) any: AtomicBool,
}

impl Inbox {
    pub(crate) fn put(&self, place: Place, read: Read) {
        lock(&self.arrived).push((place, read));
        self.any.store(true, Ordering::Release);
    }
}

/// Reads that wait for a reader.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    pub(super) queue: Mutex<VecDeque<Request>>,
    pub(super) ready: Condvar,
    pub(super) ended: AtomicBool,
    /// Sessions that there are.
    pub(super) sessions: AtomicUsize,
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
    pub(super) budget: Arc<Budget>,
    pub(super) bytes: Cell<u64>,
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
    pub(super) fn resize(&self, bytes: u64) {
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
    pub(super) readers: Arc<Readers>,
    pub(super) charge: Charge,
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
    pub(super) fn wait(&self) -> Option<Request> {
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
