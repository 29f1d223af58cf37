//! flush_all: removes everything written before it, in time proportional to the numbers of stripes
//! and segments, not of items.
//!
//! The index is emptied at once. With a store, the next commit writes the fence: the version below
//! which everything is removed. Unless the durability is `none`, the flush is answered when that
//! commit is durable; no thread blocks meanwhile. Until then, in sync mode, every answer of the
//! lane waits for the same commit or a later one, because the answer may depend on the flush. A
//! flush whose commit fails is not undone. Instead the next commit writes the fence, and answers
//! wait for that commit.

use crate::lane::session::LaneSession;
use crate::lane::{DurableLane, Lane};
use crate::verbs::version::NotWritten;
use crate::{CommitPoint, UnixSeconds};
use larder_log::format::Superblock;
use larder_log::{Rule, Stream};
use std::io;
use std::sync::atomic::Ordering;

impl LaneSession {
    /// Returns true if the store refuses a flush.
    pub(crate) fn refuses_flush(&self) -> bool {
        self.appending().is_err()
    }

    /// See [`Session::flush_all`](crate::Session::flush_all). Returns the commit that the answer
    /// must wait for.
    ///
    /// # Errors
    /// The store refuses the flush.
    pub(crate) fn flush_all(
        &self,
        at: Option<UnixSeconds>,
    ) -> Result<Option<CommitPoint>, NotWritten> {
        let commit = match at {
            Some(at) if at > self.now() => self.lane.flush_later(at),
            _ => self.flush()?,
        };
        let position = commit.filter(|_| !Rule::FenceFirst.is_broken());
        let lane = self.lane.options.position.into();
        Ok(position.map(|position| CommitPoint { lane, position }))
    }

    /// Flushes if a delayed flush is due. Returns false if the store refuses the flush, which then
    /// stays due.
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) -> bool {
        if !self.lane.flush_is_due(now) {
            return true;
        }
        if self.flush().is_err() {
            return false;
        }
        self.lane.want_commit();
        true
    }

    fn flush(&self) -> Result<Option<u64>, NotWritten> {
        // In sync mode, a failing commit waits until this guard is dropped before it reads the
        // fence. So it cannot miss the fence of this flush.
        let _appending = self.appending()?;
        Ok(self.lane.flush())
    }
}

impl Lane {
    /// Returns true if a delayed flush is due.
    pub(crate) fn flush_is_due(&self, now: UnixSeconds) -> bool {
        let at = self.flush_at.load(Ordering::Relaxed);
        at != 0 && at <= now
    }

    /// Schedules a flush at `at` that survives restarts. Returns the commit that makes the schedule
    /// durable.
    fn flush_later(&self, at: UnixSeconds) -> Option<u64> {
        self.flush_at.store(at, Ordering::Relaxed);
        let durable = self.durable()?;
        durable.log.store.change_superblock(|superblock| superblock.pending_flush = at);
        durable.promised()
    }

    /// Schedules the flush at `at` durably in a lane that joins the store. The other lanes have the
    /// flush scheduled already. Called before the lane is used.
    pub(crate) fn join_flush(&self, at: UnixSeconds) -> io::Result<()> {
        if let Some(store) = self.log.store() {
            store.change_superblock_now(|superblock| superblock.pending_flush = at)?;
        }
        self.flush_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    /// Empties the lane. Returns the commit that makes the flush durable, if an answer must wait
    /// for one.
    fn flush(&self) -> Option<u64> {
        let (mut sealed, undo_count) = (Vec::new(), self.undo_count());
        let delayed = self.flush_at.swap(0, Ordering::Relaxed) != 0;
        let last = self.fence.load(Ordering::Acquire);
        if last != 0 && !delayed && self.index.is_bare() {
            // Nothing was written since the previous flush, so this flush waits for the commit of
            // that one.
            return self.durable().and_then(DurableLane::promised).map(|_| last);
        }
        let (durable, mut commit) = (self.durable(), None);
        // Writers append under a stripe's lock, so no append is under way while all stripes are
        // locked.
        self.index.clear(|fence| {
            if let Some(durable) = durable {
                durable.log.store.change_superblock(|superblock: &mut Superblock| {
                    superblock.fence = superblock.fence.max(fence);
                    superblock.pending_flush = 0;
                });
                commit = durable.promised();
            }
            // The commit of the fence must be stored before any thread can see the empty index.
            // Otherwise an answer that depends on the flush would not wait for this commit.
            self.fence.store(commit.unwrap_or(1), Ordering::Release);
            self.log.seal_all();
            sealed = self.log.drain_sealed();
            durable.into_iter().for_each(|durable| durable.log.fence_deaths());
            self.older.clear(&self.log);
        });
        // Before the index was cleared, it led to the sealed segments, so they could not go to
        // quarantine.
        for number in sealed {
            let stream = Stream::of(self.log.segment(number).stream());
            // If a commit was undone since the flush began, this call puts the segment back into
            // its queue instead, and the cleaner cleans it later.
            self.quarantine(stream, number, Vec::new(), undo_count);
        }
        self.set_full(None);
        self.kick_cleaner();
        commit
    }
}

impl DurableLane<'_> {
    /// Returns the commit that makes the present superblock durable, if the store promises
    /// durability to clients.
    fn promised(self) -> Option<u64> {
        self.state.promises().then(|| self.log.store.commits.open())
    }

    /// Lets the open commit make the fence durable, if `failed` or a later commit was to do so. All
    /// closed commits from `failed` on have failed.
    pub(crate) fn postpone_fence(self, failed: u64) {
        if self.fence.load(Ordering::Acquire) >= failed {
            self.fence.store(self.log.store.commits.open(), Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
