//! Reads that sessions request: the readers' queue, the memory that reads take, and the delivery of
//! results.

use crate::lock::lock;
use crate::reads::large::LargeReads;
use larder_disk::ReadBuffer;
use larder_log::{Budget, RecordId};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;

/// The reads of all sessions take at most 1/`SHARE_OF_MEMORY` of a lane's memory, except for large
/// values and for a single larger record per session.
const SHARE_OF_MEMORY: u64 = 8;
/// The largest number of bytes that one session's reads take, except for a single larger record.
const SHARE_MOST: u64 = 4 << 20;
/// Reads are charged in steps of this many bytes, so that sessions rarely write to the shared
/// budget.
const SHARE_STEP: u64 = 128 << 10;

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Read {
    /// A buffer that begins with the record, or with the first block of a large value.
    Record(ReadBuffer),
    /// The read of a large value has ended. The value is in memory for all sessions, unless there
    /// was no memory for it. Calls that need the value look it up again.
    InMemory,
    /// The record cannot be read.
    Failed,
}

/// A session's inbox, into which reader threads put the results of its reads.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) arrived: Mutex<Vec<(RecordId, Read)>>,
    pub(super) any: AtomicBool,
}

impl Inbox {
    pub(crate) fn put(&self, id: RecordId, read: Read) {
        lock(&self.arrived).push((id, read));
        self.any.store(true, Ordering::Release);
    }
}

/// The reads that wait for a reader thread, and other state that sessions and readers share.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    pub(super) queue: Mutex<VecDeque<Request>>,
    pub(super) ready: Condvar,
    pub(super) ended: AtomicBool,
    /// The large values that calls need.
    pub(crate) large: LargeReads,
    /// The number of sessions, which share the memory limit of reads.
    pub(super) sessions: AtomicUsize,
}

/// A record to be read.
#[derive(Debug)]
pub(crate) struct Request {
    /// The record's address and the generation of its segment.
    pub(crate) id: RecordId,
    /// The number of bytes to read. If `None`, the log chooses the number.
    pub(crate) size: Option<usize>,
    /// The memory that is reserved for a large value. `None` if the value itself is not to be read.
    pub(crate) charge: Option<Charge>,
    /// The destination of the result, and the waker that is woken when the result is there.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) waker: Waker,
}

/// A charge on the budget, which is released on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(super) budget: Arc<Budget>,
    pub(super) bytes: Cell<u64>,
}

impl Charge {
    /// Charges memory even beyond the limit: see [`Budget::charge`].
    pub(crate) fn needed(budget: &Arc<Budget>, bytes: u64) -> Charge {
        budget.charge(bytes);
        Charge { budget: Arc::clone(budget), bytes: Cell::new(bytes) }
    }

    /// Charges memory for a large value. If there is no room, returns `None` and tells the cleaner
    /// how much memory is needed.
    pub(crate) fn wanted(budget: &Arc<Budget>, bytes: u64) -> Option<Charge> {
        if !budget.try_charge_wanted(bytes) {
            budget.want(bytes);
            return None;
        }
        Some(Charge { budget: Arc::clone(budget), bytes: Cell::new(bytes) })
    }

    /// Changes the charge to this many bytes.
    pub(super) fn resize(&self, bytes: u64) {
        let before = self.bytes.replace(bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.budget.charge(more),
            None => self.budget.release(before - bytes),
        }
    }
}

/// Charges the memory of a session's reads to the lane's budget, in [steps](SHARE_STEP). Also
/// limits this memory: all sessions share one limit, and each has the same share of it.
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

    /// Returns the largest number of bytes that the session's reads may take. A single read may
    /// take more.
    pub(crate) fn most(&self) -> usize {
        let sessions = self.readers.sessions.load(Ordering::Relaxed).max(1) as u64;
        (self.charge.budget.limit() / SHARE_OF_MEMORY / sessions).min(SHARE_MOST) as usize
    }

    /// Notes that the session uses this many bytes.
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

    /// Ends the reader threads.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        drop(lock(&self.queue));
        self.ready.notify_all();
    }

    /// Waits for the next request. Returns `None` when the readers end.
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
