//! The committer: the thread that makes durable what a lane has written, and what it does when the
//! device fails.

use crate::CommitState;
use crate::durability::Durability;
use crate::durability::Durable;
use crate::durability::Health;
use crate::durability::state::Committer;
use crate::durability::state::REMEMBERED;
use crate::lane::Lane;
use crate::lock::lock;
use larder_log::DeadMap;
use larder_log::commit::Closed;
use larder_log::record::MAX_SEQ;
use larder_log::store::{SEQ_LEASE, seq_lease};
use larder_log::{Appending, Participant, Rule};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self};
use std::time::Duration;

/// How long the committer waits before it tries a failing device again.
const RETRY: Duration = Duration::from_millis(100);

/// What comes after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// More, in the same segments.
    GoOn,
    /// Nothing: every segment is sealed.
    End,
}

/// How far the time that a store remembers may be behind, in seconds.
const TIME_STEP: u32 = 10;

/// Starts the committer's thread. It holds no handle of the engine while it waits.
pub(crate) fn spawn(lane: &Arc<Lane>) -> io::Result<()> {
    let Some(durable) = &lane.durable else { return Ok(()) };
    let weak = Arc::downgrade(lane);
    let builder = thread::Builder::new().name("committer".into());
    let handle = builder.spawn(move || run(&weak))?;
    *lock(&durable.thread) = Some(handle.thread().clone());
    // Who has asked meanwhile, as a full lane's cleaner does, could not wake it, and who asks later leaves it
    // to the first.
    handle.thread().unpark();
    Ok(())
}

fn run(weak: &Weak<Lane>) {
    loop {
        let Some(lane) = weak.upgrade() else { return };
        let Some(durable) = &lane.durable else { return };
        let failing = durable.is_failing();
        let asked = durable.take_wanted();
        let due = asked || durable.mode == Durability::Async;
        let healthy = if due || failing { lane.commit() } else { true };
        let wait = match durable.mode {
            _ if !healthy => Some(RETRY),
            Durability::Async => Some(durable.interval / 4),
            Durability::Sync | Durability::None => None,
        };
        let again = healthy && durable.wanted.load(Ordering::Acquire);
        drop(lane);
        match wait {
            _ if again => {}
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

impl Lane {
    /// Makes everything durable that was written before this call, as far as the device lets it;
    /// false if it does not. The committer's thread does this by itself: calling it is for
    /// simulations and for [`Lane::close`].
    pub(crate) fn commit(&self) -> bool {
        let Some(durable) = &self.durable else { return true };
        let _no_other = lock(&self.committing);
        self.commit_by(durable, Then::GoOn)
    }

    /// For whoever holds `committing`. What the committer knows is free for early writes during the sync.
    fn commit_by(&self, durable: &Durable, then: Then) -> bool {
        let mut guard = lock(&self.committer);
        let committer = &mut *guard;
        if committer.ended {
            return true;
        }
        let began = durable.now_us();
        committer.log.stage_all(&mut lock(&self.dead_maps));
        self.lease_versions();
        self.remember_time();
        let closed = match then {
            Then::GoOn => self.log.close_commit(&mut committer.log),
            Then::End => self.log.close_and_leave(&mut committer.log),
        };
        durable.take_changes(&mut committer.changes);
        let idle = closed.is_empty() && !self.log.has_commit_work(&committer.log);
        if idle && !durable.is_failing() {
            self.log.settle_idle(&closed);
            durable.synced_until.store(began, Ordering::Relaxed);
            self.after_commit(durable);
            return true;
        }
        let mut written = self.log.write_commit(&mut committer.log, &closed);
        if let Ok(commit) = &written {
            drop(guard);
            let synced = self.log.sync_commit(commit);
            guard = lock(&self.committer);
            written = written.and_then(|commit| synced.map(|()| commit));
        }
        let committer = &mut *guard;
        match written {
            Ok(written) => {
                // The sync has made it durable. Until its marks say so no frame of it can go, and the committer
                // is no participant of the epochs: it looks at records here and never later.
                self.settle_changes(&mut committer.changes);
                self.log.settle_commit(&mut committer.log, &closed, written);
                self.older.settle(closed.number);
                durable.synced_until.store(began, Ordering::Relaxed);
                self.mark_lease();
                let took = durable.now_us().saturating_sub(began);
                durable.last_us.store(took, Ordering::Relaxed);
                let mut times = lock(&durable.times);
                times.push_back(took);
                if times.len() > REMEMBERED {
                    times.pop_front();
                }
                drop(times);
                durable.commits.fetch_add(1, Ordering::Relaxed);
                if durable.is_failing() && !self.heal(durable) {
                    return false;
                }
                self.after_commit(durable);
                true
            }
            Err(error) => {
                self.fail(durable, committer, closed, &error);
                false
            }
        }
    }

    /// Whoever waited for a commit, or for what it freed, looks again.
    fn after_commit(&self, durable: &Durable) {
        durable.wake();
        if self.log.quarantined() > 0 {
            self.kick_cleaner();
        }
    }

    /// Begins an append, which commits wait for; `None` while they fail and what they covered is
    /// undone.
    #[inline]
    pub(crate) fn append<'a>(&self, participant: &'a Participant) -> Option<Appending<'a>> {
        let Some(durable) = &self.durable else { return Some(participant.appending()) };
        let appending = participant.appending_seen();
        (!durable.is_failing()).then_some(appending)
    }

    /// Asks for more version numbers in time: none above the durable limit is ever used.
    fn lease_versions(&self) {
        if self.index.wants_lease()
            && let Some(store) = self.log.store()
        {
            store.change_superblock(|superblock| {
                superblock.seq_limit = seq_lease(superblock.seq_limit);
            });
        }
    }

    /// Has the next commit remember what time it is, so that no later start is behind it.
    fn remember_time(&self) {
        let Some(store) = self.log.store() else { return };
        let now = self.now.load(Ordering::Relaxed);
        if now >= self.remembered.load(Ordering::Relaxed).saturating_add(TIME_STEP) {
            self.remembered.store(now, Ordering::Relaxed);
            store.change_superblock(|superblock| superblock.clock = superblock.clock.max(now));
        }
    }

    /// The limit in the superblock is durable.
    pub(crate) fn mark_lease(&self) {
        if let Some(store) = self.log.store() {
            let limit = store.superblock().seq_limit;
            let mark = if limit < MAX_SEQ { limit - SEQ_LEASE / 2 } else { u64::MAX };
            self.index.set_lease_mark(mark);
        }
    }

    /// One commit has succeeded after a failure: if the device gives back what it was given, writes
    /// are accepted again.
    fn heal(&self, durable: &Durable) -> bool {
        match self.log.verify_device() {
            Ok(()) => {
                durable.failing.store(false, Ordering::Release);
                // What the cleaner could not empty meanwhile says nothing any more.
                self.set_full(None);
                self.kick_cleaner();
                durable.wake();
                true
            }
            Err(error) => {
                *lock(&durable.reason) = error.to_string();
                false
            }
        }
    }

    fn fail(
        &self,
        durable: &Durable,
        committer: &mut Committer,
        closed: Closed,
        error: &io::Error,
    ) {
        *lock(&durable.reason) = error.to_string();
        durable.failing.store(true, Ordering::Release);
        if let Some(store) = self.log.store() {
            // The next commit has something to write that can be read back.
            store.change_superblock(|_| {});
        }
        let failed = closed.number;
        if durable.mode != Durability::Sync {
            self.postpone_fence(failed);
            self.log.retry_commit(&mut committer.log, closed);
            durable.wake();
            return;
        }
        // From here on nobody appends, so that nothing is built on what is being undone.
        self.epochs.wait_for_appends();
        let rest = self.log.close_and_leave(&mut committer.log);
        durable.take_changes(&mut committer.changes);
        if let Some(store) = self.log.store() {
            store.commits.begin_undo();
        }
        self.undo(std::mem::take(&mut committer.changes));
        self.postpone_fence(failed);
        self.log.fail_commits(&mut committer.log, &[closed, rest]);
        durable.wake();
    }

    /// The commit that changes are counted to now; 0 without a store.
    pub(crate) fn open_commit(&self) -> u64 {
        self.log.store().map_or(0, |store| store.commits.open())
    }

    /// Ends the use of the store properly: everything is durable, and the next start need not look
    /// for what was lost. No session may write any more.
    ///
    /// # Errors
    /// If the device did not take everything.
    pub(crate) fn close(&self) -> io::Result<()> {
        let (Some(store), Some(durable)) = (self.log.store(), &self.durable) else {
            return Ok(());
        };
        let _no_cleaning = lock(&self.cleaning);
        let _no_other = lock(&self.committing);
        if lock(&self.committer).ended {
            return Ok(());
        }
        // The second covers what the first made possible: marks of segments that are free now.
        for _ in 0..2 {
            if !self.commit_by(durable, Then::End) {
                let reason = durable.health();
                return Err(io::Error::other(format!("the store is not up to date: {reason:?}")));
            }
        }
        let mut committer = lock(&self.committer);
        committer.ended = true;
        // The image and the superblock describe one set of places.
        self.log.close_to_growth();
        let settled = self.log.unsynced_bytes() == 0 && committer.changes.is_empty();
        let failed_syncs = store.failed_syncs();
        let image = if settled { self.save_image()? } else { None };
        // What the superblock names must be there when it does.
        store.sync(failed_syncs)?;
        let next_commit = store.commits.open();
        // Nobody writes any more: what is leased beyond that is left to the next start.
        let newest = self.index.newest_seq(0..self.index.stripe_count());
        store.change_superblock_now(move |superblock| {
            superblock.seq_limit = newest;
            superblock.clean = true;
            superblock.volatile = false;
            superblock.clock = superblock.clock.max(self.now.load(Ordering::Relaxed));
            superblock.next_commit = next_commit;
            (superblock.image_segment, superblock.image_bytes) = image.unwrap_or((0, 0));
        })
    }

    /// How the store is; without one, good.
    pub(crate) fn health(&self) -> Health {
        self.durable.as_ref().map_or(Health::Good, Durable::health)
    }

    /// How far a commit has come.
    #[inline]
    pub(crate) fn commit_state(&self, commit: u64) -> CommitState {
        let Some(store) = self.log.store() else { return CommitState::Durable };
        if Rule::AcknowledgeWhenDurable.is_broken() && commit < store.commits.open() {
            return CommitState::Durable;
        }
        match store.commits.state(commit) {
            larder_log::CommitState::Durable => CommitState::Durable,
            larder_log::CommitState::Pending => CommitState::Pending,
            larder_log::CommitState::Failed => CommitState::Failed,
        }
    }

    /// Dead maps for the committer to write.
    pub(crate) fn stage_dead_maps(&self, maps: impl Iterator<Item = DeadMap>) {
        lock(&self.dead_maps).extend(maps);
        if let Some(durable) = &self.durable {
            durable.want_commit();
        }
    }
}
