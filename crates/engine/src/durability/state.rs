//! The state with which the threads of a lane make its writes durable.

use crate::durability::StoreHistograms;
use crate::durability::gather::{Gather, WaitingAnswers};
use crate::durability::options::Durability;
use crate::index::slot::Slot;
use crate::lane::options::LaneStore;
use crate::lock::lock;
use larder_disk::Recorder;
use larder_log::commit::Committer as LogCommitter;
use larder_log::{Address, DeadMap};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

/// A busy thread delays its commit request by up to `GATHER` × the duration of the last commit. The
/// commit then covers the changes of more client requests. This saves processor time, which is most
/// of a commit's cost.
const GATHER: u64 = 8;
/// The longest time for which a busy thread delays its commit request, in microseconds.
const GATHER_MOST_US: u64 = 2000;
/// A thread polls for a requested commit for up to `POLL` × the duration of the last commit.
const POLL: u64 = 2;
/// The longest time for which a thread polls, in microseconds. If polling would take longer, the
/// thread does not poll at all.
const POLL_MOST_US: u64 = 1000;
/// Number of commits whose durations are kept for the percentiles.
pub(super) const REMEMBERED: usize = 1024;

/// The health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything written is durable, or about to be.
    Good,
    /// Commits fail. Writes are refused, reads continue, and the committer tries again.
    Failing {
        /// The device's error.
        reason: String,
    },
}

/// A change that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// The address of the new record.
    pub(crate) address: Address,
    /// The previous contents of the slot. `before_size` is the size in bytes of the record that the
    /// slot led to. `before_is_item` is true if that record was an item.
    pub(crate) before: Slot,
    pub(crate) before_size: u32,
    pub(crate) before_is_item: bool,
    /// True if the new record is a tombstone, which leaves the index once it is durable.
    pub(crate) is_tombstone: bool,
}

/// The changes of one session that are not durable yet.
pub(crate) type Changes = Mutex<Vec<Change>>;

/// The state of the early writer's thread, which rests while no records are appended.
#[derive(Debug, Default)]
pub(super) struct EarlyWriterState {
    pub(super) resting: AtomicBool,
    pub(super) thread: Mutex<Option<Thread>>,
}

/// The state that the sessions, the cleaner, the committer and the early writer of a lane with a
/// store share, and the committer's own state.
pub(crate) struct Durable {
    /// The device, and its options.
    pub(crate) store: LaneStore,
    /// True if writes are refused.
    pub(super) failing: AtomicBool,
    pub(super) reason: Mutex<String>,
    /// A lock that is held for the whole duration of a commit.
    pub(super) committing: Mutex<()>,
    /// The committer's state. This lock is not held during a sync.
    pub(super) committer: Mutex<Committer>,
    /// Dead maps waiting for the committer to write them.
    pub(crate) dead_maps: Mutex<Vec<DeadMap>>,
    /// The superblock's clock, in Unix seconds. A change of it may become durable only with the
    /// next commit.
    pub(crate) remembered: AtomicU32,
    pub(super) changes: Mutex<Vec<Arc<Changes>>>,
    pub(super) waiting: Mutex<Vec<Waker>>,
    /// True if a commit was requested.
    pub(super) wanted: AtomicBool,
    pub(super) thread: Mutex<Option<Thread>>,
    pub(super) early: EarlyWriterState,
    /// In sync mode, the time of the oldest acknowledged change that no commit covers, in
    /// microseconds, from [`Durable::now_us`]; 0 if there is none. See [`Durable::owe`].
    pub(super) owed_since: AtomicU64,
    /// A time of [`Durable::now_us`], in microseconds. Everything written before it is durable.
    pub(super) synced_until: AtomicU64,
    pub(super) commits: AtomicU64,
    pub(super) answers: WaitingAnswers,
    /// Duration of the last commit, in microseconds.
    pub(super) last_us: AtomicU64,
    pub(super) times: Mutex<VecDeque<u64>>,
    /// The bytes that each commit made durable. Only the holder of the committer's state adds to
    /// this histogram.
    pub(super) commit_bytes: Recorder,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

impl Durable {
    pub(crate) fn new(store: LaneStore) -> Self {
        let now_us = (store.common.clock.0)().as_micros() as u64;
        Durable {
            store,
            failing: AtomicBool::new(false),
            reason: Mutex::default(),
            committing: Mutex::default(),
            committer: Mutex::default(),
            dead_maps: Mutex::default(),
            remembered: AtomicU32::new(0),
            changes: Mutex::default(),
            waiting: Mutex::default(),
            wanted: AtomicBool::new(false),
            thread: Mutex::default(),
            early: EarlyWriterState::default(),
            owed_since: AtomicU64::new(0),
            synced_until: AtomicU64::new(now_us),
            commits: AtomicU64::new(0),
            answers: WaitingAnswers::new(now_us),
            last_us: AtomicU64::new(0),
            times: Mutex::default(),
            commit_bytes: Recorder::default(),
        }
    }

    /// Returns the durability mode, which says when a write is acknowledged.
    #[inline]
    pub(crate) fn mode(&self) -> Durability {
        self.store.common.durability
    }

    /// Returns the sync interval, which limits the age of acknowledged changes that are not
    /// durable.
    pub(super) fn interval(&self) -> Duration {
        self.store.common.sync_interval
    }

    pub(crate) fn now_us(&self) -> u64 {
        (self.store.common.clock.0)().as_micros() as u64
    }

    /// Returns the duration of the last commit, in microseconds.
    pub(super) fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::Relaxed)
    }

    /// Returns how long a busy thread delays its commit request, in microseconds.
    pub(crate) fn gather_us(&self) -> u64 {
        (self.last_us.load(Ordering::Relaxed) * GATHER).min(GATHER_MOST_US)
    }

    /// Returns how long a thread polls for a requested commit, in microseconds; 0 if the commit
    /// will probably take too long to poll for it.
    pub(crate) fn poll_us(&self) -> u64 {
        let wanted = self.last_us.load(Ordering::Relaxed) * POLL;
        if wanted <= POLL_MOST_US { wanted } else { 0 }
    }

    /// Returns true if answers must not depend on changes that are not durable.
    #[inline]
    pub(crate) fn is_sync(&self) -> bool {
        self.mode() == Durability::Sync
    }

    /// Returns true if the durability mode limits what a crash may lose.
    pub(crate) fn promises(&self) -> bool {
        self.mode() != Durability::None
    }

    /// Returns true if writes are refused because commits fail.
    #[inline]
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Returns true if the oldest acknowledged write that is not durable is at least as old as the
    /// sync interval. Then no further write may be acknowledged before it is durable.
    pub(crate) fn is_overdue(&self) -> bool {
        let since = match self.mode() {
            Durability::Async => self.synced_until.load(Ordering::Relaxed),
            Durability::Sync => match self.owed_since.load(Ordering::Relaxed) {
                0 => return false,
                since => since,
            },
            Durability::None => return false,
        };
        self.now_us().saturating_sub(since) >= self.interval().as_micros() as u64
    }

    /// In sync mode: notes that the calling thread acknowledges the change that it has just
    /// written, before the change is durable. A commit begins within a quarter of the sync
    /// interval.
    pub(crate) fn owe(&self) {
        // Pairs with the fence in `settle_owed`, which clears `owed_since` before a commit. Either
        // this thread sees the cleared field and sets it again, or that commit covers the change
        // that this thread has just written.
        fence(Ordering::SeqCst);
        if self.owed_since.load(Ordering::Relaxed) == 0 {
            self.owed_since.store(self.now_us().max(1), Ordering::Relaxed);
        }
    }

    /// Returns true if a change is [owed](Durable::owe).
    pub(super) fn owes(&self) -> bool {
        self.owed_since.load(Ordering::Relaxed) != 0
    }

    /// Notes that the commit about to be closed covers all changes that are owed.
    pub(super) fn settle_owed(&self) {
        if self.owes() {
            self.owed_since.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Returns the largest possible age of a byte that is not durable.
    pub(crate) fn unsynced_age(&self) -> Duration {
        let now = self.now_us();
        Duration::from_micros(now.saturating_sub(self.synced_until.load(Ordering::Relaxed)))
    }

    /// Creates a list for a new session's changes.
    pub(crate) fn new_changes(&self) -> Arc<Changes> {
        let changes = Arc::new(Changes::default());
        lock(&self.changes).push(Arc::clone(&changes));
        changes
    }

    pub(super) fn take_changes(&self, into: &mut Vec<Change>) {
        let mut all = lock(&self.changes);
        for list in &*all {
            into.append(&mut lock(list));
        }
        all.retain(|list| Arc::strong_count(list) > 1);
    }

    /// Requests a commit.
    pub(crate) fn want_commit(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.wake_committer();
        }
    }

    pub(super) fn wake_committer(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    /// Returns true if a commit was requested since the last call.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Registers `waker`, which is woken when the state of any commit has changed.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    pub(super) fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn health(&self) -> Health {
        if self.is_failing() {
            Health::Failing { reason: lock(&self.reason).clone() }
        } else {
            Health::Good
        }
    }

    /// Returns the median and the 99th percentile of the last commits' durations, in microseconds.
    pub(crate) fn commit_times(&self) -> (u64, u64) {
        let mut times: Vec<u64> = lock(&self.times).iter().copied().collect();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or(0);
        (at(50), at(99))
    }

    /// Returns histograms of the times of the lane's device calls and of the sizes of its commits.
    pub(crate) fn histograms(&self) -> StoreHistograms {
        self.store.times.with_commits(self.commit_bytes.read())
    }

    /// Returns the number of commits since the start.
    pub(crate) fn commit_count(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

/// The committer's own state.
#[derive(Debug, Default)]
pub(super) struct Committer {
    pub(super) log: LogCommitter,
    pub(super) gather: Gather,
    /// Changes that no settled commit covers.
    pub(super) changes: Vec<Change>,
    /// True if the store was closed: nothing more is written to it.
    pub(super) ended: bool,
}
