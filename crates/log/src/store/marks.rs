//! How far commits have come: which one is open, which are closed, settled, durable or failed.

use crate::commit::failed::FailedCommits;
use crate::segment::Segment;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock, spin};

/// How far a commit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Everything that belongs to it is durable.
    Durable,
    /// It is being filled or written.
    Pending,
    /// It could not be made durable; what belongs to it was undone.
    Failed,
}

/// The marks of a store's commits.
#[derive(Debug)]
pub struct CommitMarks {
    /// The commit that new records belong to, or the one before it if it is being closed.
    open: AtomicU64,
    /// The last commit of which it is decided, and written in the segments, what it covers.
    closed: AtomicU64,
    /// The last commit that is durable or has failed.
    settled: AtomicU64,
    /// The last commit that is durable. One that failed and is written again is settled, and durable
    /// only with a later one.
    durable: AtomicU64,
    failed: Mutex<FailedCommits>,
    /// The last commit that has failed; 0: none has.
    last_failed: AtomicU64,
    /// Counts when the changes of failed commits begin to be undone, and when that has ended: odd meanwhile.
    undoings: AtomicU64,
}

impl CommitMarks {
    /// Creates the marks of a store whose next commit is `next`.
    pub(crate) fn new(next: u64) -> Self {
        CommitMarks {
            open: AtomicU64::new(next),
            closed: AtomicU64::new(next - 1),
            settled: AtomicU64::new(next - 1),
            durable: AtomicU64::new(next - 1),
            failed: Mutex::default(),
            last_failed: AtomicU64::new(0),
            undoings: AtomicU64::new(0),
        }
    }

    /// Continues with commit `next`, as a recovery has found.
    pub(crate) fn continue_with(&self, next: u64) {
        self.open.store(next, Ordering::Release);
        self.closed.store(next - 1, Ordering::Release);
        self.settle(next - 1);
    }

    /// Opens the next commit and returns the number of the one that is being closed.
    pub(crate) fn open_next(&self) -> u64 {
        self.open.fetch_add(1, Ordering::AcqRel)
    }

    /// Notes that it is decided, and written in the segments, what the commit covers.
    pub(crate) fn set_closed(&self, commit: u64) {
        self.closed.store(commit, Ordering::Release);
    }

    /// A commit that will cover what was reserved before this call, by the calling thread in an
    /// [`Appending`](crate::Appending) that still lives, or by another thread and published. While a
    /// commit is being closed that one may do so already: see [`CommitMarks::of`].
    #[inline]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// The last commit that is durable or has failed.
    #[inline]
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// The last commit that is durable: everything of it and of all before it is, unless it was undone.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The commit that decides about what lies before `end` in a segment, no earlier and no later one,
    /// so that what is answered when it fails has not happened; `None` if that is durable. For the
    /// thread that has just reserved it, while its [`Appending`](crate::Appending) lives, and for
    /// whoever has found it published.
    #[inline]
    pub fn of(&self, segment: &Segment, end: u32) -> Option<u64> {
        let mut turn = 0;
        loop {
            let settled = self.settled();
            if segment.is_durable(end) {
                return None;
            }
            let open = self.open();
            let closing = self.closed.load(Ordering::Acquire) + 1 != open;
            let covered = segment.closed() >= end;
            // Marks move in the order open, closed, durable, settled. So if no commit was being closed
            // or settled meanwhile, what is covered belongs to the one in flight, and the rest to the
            // one that is open.
            if covered && self.settled() == settled {
                return Some(settled + 1);
            }
            if !covered && !closing && self.open() == open {
                return Some(open);
            }
            spin(&mut turn);
        }
    }

    /// How far a commit has come.
    #[inline]
    pub fn state(&self, commit: u64) -> CommitState {
        if self.settled() < commit {
            CommitState::Pending
        } else if commit <= self.last_failed.load(Ordering::Acquire)
            && lock(&self.failed).contains(commit)
        {
            CommitState::Failed
        } else {
            CommitState::Durable
        }
    }

    /// The commit is durable, and with it all before it.
    pub(crate) fn settle(&self, commit: u64) {
        self.durable.store(commit, Ordering::Release);
        self.settled.store(commit, Ordering::Release);
    }

    /// The commit has failed, and is settled so.
    pub(crate) fn settle_failed(&self, commit: u64) {
        lock(&self.failed).insert(commit);
        self.last_failed.store(commit, Ordering::Release);
        self.settled.store(commit, Ordering::Release);
    }

    /// A number that changes when changes that are not durable begin to be undone, and when that has
    /// ended; odd meanwhile.
    pub fn undoings(&self) -> u64 {
        self.undoings.load(Ordering::Acquire)
    }

    /// Changes that are not durable are about to be undone; [`Log::fail_commits`](crate::Log::fail_commits)
    /// ends that.
    pub fn begin_undo(&self) {
        self.undoings.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_undo(&self) {
        self.undoings.fetch_add(1, Ordering::AcqRel);
    }
}
