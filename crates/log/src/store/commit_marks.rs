//! Commit marks: which commit is open, and which are closed, settled, durable or failed.

use crate::commit::failed_commits::FailedCommits;
use crate::segment::Segment;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock, spin};

/// The state of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Everything in the commit is durable.
    Durable,
    /// The commit is being filled or written.
    Pending,
    /// The commit could not be made durable. Its changes were undone, or a later commit writes
    /// them.
    Failed,
}

/// The marks of a store's commits.
#[derive(Debug)]
pub struct CommitMarks {
    /// The open commit. New records belong to it. There is one exception: while the commit before
    /// the open one is being closed, new records may still belong to that earlier commit.
    open: AtomicU64,
    /// The last closed commit: its extent is fixed and stored in the segments.
    closed: AtomicU64,
    /// The last commit that is durable or has failed.
    settled: AtomicU64,
    /// The last durable commit. A failed commit is settled but not durable. If the failed commit is
    /// retried, a later commit makes its records durable.
    durable: AtomicU64,
    failed: Mutex<FailedCommits>,
    /// The last failed commit; 0 if none has failed.
    last_failed: AtomicU64,
    /// Incremented when the undo of failed commits' changes begins, and again when it ends. So it
    /// is odd during an undo.
    undo_count: AtomicU64,
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
            undo_count: AtomicU64::new(0),
        }
    }

    /// Continues with commit `next`, which recovery has determined.
    pub(crate) fn continue_with(&self, next: u64) {
        self.open.store(next, Ordering::Release);
        self.closed.store(next - 1, Ordering::Release);
        self.settle(next - 1);
    }

    /// Opens the next commit and returns the number of the one that is being closed.
    pub(crate) fn open_next(&self) -> u64 {
        self.open.fetch_add(1, Ordering::AcqRel)
    }

    /// Marks the commit as closed. Its extent must already be stored in the segments.
    pub(crate) fn set_closed(&self, commit: u64) {
        self.closed.store(commit, Ordering::Release);
    }

    /// Returns the open commit. This commit or an earlier one covers every record that another
    /// thread published before this call. The same holds for every record that the calling thread
    /// has reserved, as long as the record's [`Appending`](crate::Appending) lives.
    /// [`CommitMarks::of`] returns the exact commit of a record.
    #[inline]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the last commit that is durable or has failed.
    #[inline]
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// Returns the last durable commit. All changes of this commit and of all earlier commits are
    /// durable, except those that were undone.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the commit that will make a record durable, or `None` if the record is durable
    /// already. The record ends at offset `end` of `segment`. The result is exact: if this commit
    /// fails, the record's change fails too. If the record's change was undone, the result is a
    /// failed commit. The caller must have found the record published, or must have reserved its
    /// space and still hold the record's [`Appending`](crate::Appending).
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
            // A commit moves the marks `open`, `closed`, `durable` and `settled` in this order. A
            // record that a closed commit covers belongs to commit `settled` + 1, if no commit has
            // settled since `settled` was read. Any other record belongs to the open commit, if no
            // commit was being closed during these reads.
            if covered && self.settled() == settled {
                return Some(settled + 1);
            }
            if !covered && !closing && self.open() == open {
                if end <= segment.filled() {
                    return Some(open);
                }
                // An undo has cut the record off since the caller found it. The commit that failed
                // may not have settled yet, but an earlier failed commit serves as well.
                let failed = self.last_failed.load(Ordering::Acquire);
                if failed != 0 {
                    return Some(failed);
                }
            }
            spin(&mut turn);
        }
    }

    /// Returns the state of a commit.
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

    /// Settles a commit as durable, with all commits before it.
    pub(crate) fn settle(&self, commit: u64) {
        self.durable.store(commit, Ordering::Release);
        self.settled.store(commit, Ordering::Release);
    }

    /// Settles a commit as failed.
    pub(crate) fn settle_failed(&self, commit: u64) {
        lock(&self.failed).insert(commit);
        self.last_failed.store(commit, Ordering::Release);
        self.settled.store(commit, Ordering::Release);
    }

    /// Returns the undo count. The count is incremented when an undo of changes that are not
    /// durable begins, and again when it ends. So it is odd during an undo.
    pub fn undo_count(&self) -> u64 {
        self.undo_count.load(Ordering::Acquire)
    }

    /// Announces that changes that are not durable are about to be undone.
    /// [`DurableLog::fail_commits`](crate::DurableLog::fail_commits) ends the undo.
    pub fn begin_undo(&self) {
        self.undo_count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_undo(&self) {
        self.undo_count.fetch_add(1, Ordering::AcqRel);
    }
}
