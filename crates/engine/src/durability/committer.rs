//! The committer: the thread that makes a lane's writes durable and handles device failures.
//! Invariant: a sync-mode change is durable or undone before a session learns its commit's outcome.

use crate::CommitState;
use crate::durability::state::{Committer, REMEMBERED};
use crate::durability::{Durability, Durable, Health};
use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use larder_log::commit::Closed;
use larder_log::record::MAX_SEQ;
use larder_log::store::{SEQ_LEASE, seq_lease};
use larder_log::{Appending, DeadMap, Participant, Rule};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Time after which the committer tries a failing device again.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitKind {
    /// More commits follow in the same segments.
    Ordinary,
    /// The store is being closed: the commit seals every segment, and no records are appended after
    /// it.
    Last,
}

/// The time in the superblock may be behind the present time by up to this many seconds, plus the
/// time until the next commit.
const TIME_STEP: u32 = 10;

/// Starts the committer's thread. The thread holds no strong reference to the lane while it waits,
/// so it does not keep the lane alive.
pub(crate) fn spawn(lane: &Arc<Lane>, durability: &Durable) -> io::Result<()> {
    let weak = Arc::downgrade(lane);
    let builder = thread::Builder::new().name("committer".into());
    let handle = builder.spawn(move || run(&weak))?;
    *lock(&durability.thread) = Some(handle.thread().clone());
    // A request made before `thread` was set could not wake the thread, for example a
    // request of a full lane's cleaner. While that request is pending, later requests do not wake
    // the thread either. So the thread is woken here.
    handle.thread().unpark();
    Ok(())
}

fn run(weak: &Weak<Lane>) {
    loop {
        let Some(lane) = weak.upgrade() else { return };
        let Some(state) = lane.log.durability() else { return };
        let failing = state.is_failing();
        let asked = state.take_wanted();
        let due = asked || state.mode() == Durability::Async || state.owes();
        if asked && !failing && state.is_sync() {
            let returning = lock(&state.committer).gather.returning(state.last_us());
            if let Some(returning) = returning {
                state.wait_for_clients(returning);
                // The commit that begins now also serves the requests that came during the wait.
                state.take_wanted();
            }
        }
        let healthy = if due || failing { lane.commit() } else { true };
        let wait = match state.mode() {
            _ if !healthy => Some(RETRY),
            // Sync mode needs this wait only for changes that were acknowledged before they are
            // durable (see `Durable::owe`): it limits the time until a commit covers them.
            Durability::Async | Durability::Sync => Some(state.interval() / 4),
            Durability::None => None,
        };
        let again = healthy && state.wanted.load(Ordering::Acquire);
        drop(lane);
        match wait {
            _ if again => {}
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

impl DurableLane<'_> {
    /// Commits; the caller holds `committing`. The committer's state is unlocked during the sync,
    /// so early writes can go on.
    fn commit_by(self, kind: CommitKind) -> bool {
        let mut guard = lock(&self.state.committer);
        let committer = &mut *guard;
        if committer.ended {
            return true;
        }
        let began = self.state.now_us();
        committer.log.stage_all(&mut lock(&self.state.dead_maps));
        self.lease_versions();
        self.remember_time();
        self.state.settle_owed();
        let closed = match kind {
            CommitKind::Ordinary => self.log.close_commit(&mut committer.log),
            CommitKind::Last => self.log.close_and_leave(&mut committer.log),
        };
        committer.gather.begin(&self.state.answers);
        self.state.take_changes(&mut committer.changes);
        let idle = closed.is_empty() && !self.log.has_commit_work(&committer.log);
        if idle && !self.state.is_failing() {
            self.log.settle_idle(&closed);
            self.state.synced_until.store(began, Ordering::Relaxed);
            self.after_commit();
            return true;
        }
        let mut written = self.log.write_commit(&mut committer.log, &closed);
        if let Ok(commit) = &written {
            drop(guard);
            let synced = self.log.sync_commit(commit);
            guard = lock(&self.state.committer);
            written = written.and_then(|commit| synced.map(|()| commit));
        }
        let committer = &mut *guard;
        match written {
            Ok(written) => {
                // The commit is durable now. `settle_changes` reads some of its records from their
                // frames, so it must run before `settle_commit`. `settle_commit` marks the records
                // as durable. From then on their frames may be dropped at any moment, because the
                // committer is no participant of the epochs.
                self.settle_changes(&mut committer.changes);
                let now = self.state.now_us();
                committer.gather.end(&self.state.answers, now, now.saturating_sub(began));
                let bytes = self.log.settle_commit(&mut committer.log, &closed, written);
                self.older.settle(closed.number);
                self.state.synced_until.store(began, Ordering::Relaxed);
                self.mark_lease();
                let took = self.state.now_us().saturating_sub(began);
                self.state.last_us.store(took, Ordering::Relaxed);
                let mut times = lock(&self.state.times);
                times.push_back(took);
                if times.len() > REMEMBERED {
                    times.pop_front();
                }
                drop(times);
                self.state.commit_bytes.add(bytes, 1);
                self.state.commits.fetch_add(1, Ordering::Relaxed);
                if self.state.is_failing() && !self.heal() {
                    return false;
                }
                self.after_commit();
                true
            }
            Err(error) => {
                self.fail(committer, closed, &error);
                false
            }
        }
    }

    /// Wakes calls that wait for a commit, and the cleaner if segments in quarantine may be freed
    /// now.
    fn after_commit(self) {
        self.state.wake();
        if self.log.quarantined() > 0 {
            self.kick_cleaner();
        }
    }

    /// Leases more version numbers if they run short. No version above the durable limit may be
    /// used.
    fn lease_versions(self) {
        if self.index.wants_lease() {
            let newest = self.index.newest_seq(0..self.index.stripe_count());
            self.log.store.change_superblock(|superblock| {
                superblock.seq_limit = seq_lease(superblock.seq_limit.max(newest));
            });
        }
    }

    /// Lets the next commit record the time in the superblock, so that no later start begins with
    /// an earlier time.
    fn remember_time(self) {
        let now = self.now.load(Ordering::Relaxed);
        if now >= self.state.remembered.load(Ordering::Relaxed).saturating_add(TIME_STEP) {
            self.state.remembered.store(now, Ordering::Relaxed);
            let store = self.log.store;
            store.change_superblock(|superblock| superblock.clock = superblock.clock.max(now));
        }
    }

    /// Lets the index use the versions up to the limit in the superblock, and ask for the next
    /// lease half a lease below this limit. Call this only when the limit is durable.
    pub(crate) fn mark_lease(self) {
        let limit = self.log.store.superblock().seq_limit;
        let mark = if limit < MAX_SEQ { limit - SEQ_LEASE / 2 } else { u64::MAX };
        self.index.set_lease(mark, limit);
    }

    /// Accepts writes again after a commit has succeeded, if the device returns what was written to
    /// it. Returns true if writes are accepted.
    fn heal(self) -> bool {
        match self.log.verify_device() {
            Ok(()) => {
                self.state.failing.store(false, Ordering::Release);
                // During the failure the cleaner may have found the lane full. That finding is out
                // of date.
                self.set_full(None);
                self.kick_cleaner();
                self.state.wake();
                true
            }
            Err(error) => {
                *lock(&self.state.reason) = error.to_string();
                false
            }
        }
    }

    fn fail(self, committer: &mut Committer, closed: Closed, error: &io::Error) {
        *lock(&self.state.reason) = error.to_string();
        self.state.failing.store(true, Ordering::Release);
        // Gives the next commit at least the superblock to write, which `heal` can read back.
        self.log.store.change_superblock(|_| {});
        let failed = closed.number;
        if self.state.mode() != Durability::Sync {
            self.postpone_fence(failed);
            self.log.retry_commit(&mut committer.log, closed);
            self.state.wake();
            return;
        }
        // From here on no thread appends, so nothing builds on changes that are being undone.
        self.epochs.wait_for_appends();
        let rest = self.log.close_and_leave(&mut committer.log);
        self.state.take_changes(&mut committer.changes);
        self.log.store.commits.begin_undo();
        self.undo(std::mem::take(&mut committer.changes));
        self.postpone_fence(failed);
        self.log.fail_commits(&mut committer.log, &[closed, rest]);
        self.state.wake();
    }

    /// Closes the store cleanly: makes everything durable, and writes the index image if there is
    /// room, so that the next start need not read the log. The caller ensures that no session
    /// writes any more.
    ///
    /// # Errors
    /// If the device did not accept everything.
    pub(crate) fn close(self) -> io::Result<()> {
        let _no_cleaning = lock(&self.cleaning);
        let _no_other = lock(&self.state.committing);
        if lock(&self.state.committer).ended {
            return Ok(());
        }
        // The first commit makes the emptying of segments durable. Only then can the second commit
        // write their free marks.
        for _ in 0..2 {
            if !self.commit_by(CommitKind::Last) {
                let reason = self.state.health();
                return Err(io::Error::other(format!("the store is not up to date: {reason:?}")));
            }
        }
        let mut committer = lock(&self.state.committer);
        committer.ended = true;
        // The store must not grow any more: the image and the superblock must describe the same
        // places.
        self.log.close_to_growth();
        let settled = self.log.unsynced_bytes() == 0 && committer.changes.is_empty();
        let failed_syncs = self.log.store.failed_syncs();
        // A start that loads the image does not look for strays. So if this lane keeps an
        // unreadable record that may be a stray, the next start must read the log.
        let complete = settled && !self.has_unreadable_strays();
        let image = if complete { self.save_image()? } else { None };
        // The image must be durable before the superblock names it.
        self.log.store.sync(failed_syncs)?;
        let next_commit = self.log.store.commits.open();
        // No thread writes any more, so the unused rest of the lease is left to the next start.
        let newest = self.index.newest_seq(0..self.index.stripe_count());
        self.log.store.change_superblock_now(move |superblock| {
            superblock.seq_limit = newest;
            superblock.clean = true;
            superblock.volatile = false;
            superblock.clock = superblock.clock.max(self.now.load(Ordering::Relaxed));
            superblock.next_commit = next_commit;
            (superblock.image_segment, superblock.image_bytes) = image.unwrap_or((0, 0));
        })
    }

    /// Hands dead maps to the committer and requests a commit.
    pub(crate) fn stage_dead_maps(self, maps: impl Iterator<Item = DeadMap>) {
        lock(&self.state.dead_maps).extend(maps);
        self.state.want_commit();
    }
}

impl Lane {
    /// Makes everything durable that was written before this call. Returns false if the device
    /// fails. Apart from the committer's thread, only simulations, tests and the deletion of strays
    /// at a start call this function.
    pub(crate) fn commit(&self) -> bool {
        let Some(durable) = self.durable() else { return true };
        let _no_other = lock(&durable.state.committing);
        durable.commit_by(CommitKind::Ordinary)
    }

    /// Begins an append. Returns `None` while commits fail. When a commit fails, the committer
    /// first waits until all appends that have begun are ended, and then undoes changes.
    #[inline]
    pub(crate) fn append<'a>(&self, participant: &'a Participant) -> Option<Appending<'a>> {
        let Some(durability) = self.log.durability() else { return Some(participant.appending()) };
        let appending = participant.appending_seen();
        (!durability.is_failing()).then_some(appending)
    }

    /// Returns the open commit, to which changes belong now; 0 without a store.
    pub(crate) fn open_commit(&self) -> u64 {
        self.log.store().map_or(0, |store| store.commits.open())
    }

    /// Returns the store's health; good without a store.
    pub(crate) fn health(&self) -> Health {
        self.log.durability().map_or(Health::Good, Durable::health)
    }

    /// Returns the state of a commit.
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
}
