//! Durability: the committer's thread, what waits for it, and what is undone when it fails.
//!
//! In sync mode every change is noted with what its slot held before, until it is durable. If a
//! commit fails, the changes that are not durable are undone, newest first, before anybody who
//! waits for them is answered. In async mode what was acknowledged stays: it is still in memory, and
//! written again until the device takes it. What is not durable yet is written [early](early) there.

mod early;

pub(crate) use early::spawn as spawn_early;

use crate::CommitState;
use crate::index::slot::Slot;
use crate::key::Key;
use crate::lane::{Lane, lock};
use larder_disk::Device;
use larder_log::DeadMap;
use larder_log::commit::{Closed, Committer as LogCommitter};
use larder_log::record::{Kind, MAX_SEQ};
use larder_log::store::{SEQ_LEASE, seq_lease};
use larder_log::{Address, Appending, Participant, Rule};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::Duration;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once, and nothing is promised: the store only holds what does not fit into memory.
    None,
    /// At once; a crash of the machine takes back at most what was acknowledged within the sync interval, one
    /// of the process some milliseconds.
    Async,
    /// When it is durable.
    Sync,
}

/// Time that only moves forward, from any beginning.
#[derive(Clone)]
pub struct MonotonicClock(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MonotonicClock")
    }
}

/// The store that an engine keeps its items in.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Where the bytes go. Each device is a lane of its own, with a share of the keys.
    pub devices: Vec<StoreDevice>,
    /// Lanes whose devices are missing and that are to be given up, with all that was in them.
    pub forget: Vec<usize>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// In async mode: the most time whose acknowledged writes a crash may take back.
    pub sync_interval: Duration,
    /// Open a damaged store in refuse mode too, without the records that are lost.
    pub accept_damage: bool,
    /// Measures `sync_interval`.
    pub clock: MonotonicClock,
    /// Unix seconds, for a store that is created.
    pub created: u64,
}

/// A device of a store.
#[derive(Clone, Debug)]
pub struct StoreDevice {
    /// What people call it.
    pub name: String,
    /// Where the bytes go.
    pub device: Arc<dyn Device>,
    /// Where the lane goes on behind them: slower and larger. What has cooled is moved there. A store
    /// may get one at a later start, and needs it from then on.
    pub lower: Option<LowerDevice>,
    /// Random numbers for a store that is created there: its identity, and the secret of its checksums.
    pub seeds: [u64; 3],
}

/// The lower device of a lane.
#[derive(Clone, Debug)]
pub struct LowerDevice {
    /// What people call it.
    pub name: String,
    /// Where the bytes go.
    pub device: Arc<dyn Device>,
}

impl StoreDevice {
    /// The bytes of all its devices.
    pub fn capacity(&self) -> u64 {
        self.device.size() + self.lower.as_ref().map_or(0, |lower| lower.device.size())
    }
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything that was written is durable, or about to be.
    Good,
    /// Commits fail: writes are refused, reads go on, and it is tried again.
    Failing {
        /// What the device said.
        reason: String,
    },
}

/// A change that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// The new record.
    pub(crate) address: Address,
    /// What the slot held before, the bytes of the record that it led to, and whether that was an
    /// item.
    pub(crate) before: Slot,
    pub(crate) before_size: u32,
    pub(crate) before_is_item: bool,
    /// The new record is a tombstone, which leaves the index when it is durable.
    pub(crate) is_tombstone: bool,
}

/// The changes of one session that are not durable yet.
pub(crate) type Changes = Mutex<Vec<Change>>;

/// A busy thread puts the commit that its answers wait for off for so many times what the last one
/// took: a commit is mostly work for processors too, which the requests that share it pay together.
const GATHER: u64 = 8;
/// The longest that it is put off for, in microseconds.
const GATHER_MOST_US: u64 = 2000;
/// A commit that was asked for is polled for, for so many times what the last one took.
const POLL: u64 = 2;
/// The longest that it is polled for, in microseconds.
const POLL_MOST_US: u64 = 1000;
/// Commits whose time is remembered for the percentiles.
const REMEMBERED: usize = 1024;
/// How long the committer waits before it tries a failing device again.
const RETRY: Duration = Duration::from_millis(100);

/// What sessions and committer share about durability.
pub(crate) struct Durable {
    pub(crate) mode: Durability,
    interval: Duration,
    clock: MonotonicClock,
    /// Writes are refused.
    failing: AtomicBool,
    reason: Mutex<String>,
    changes: Mutex<Vec<Arc<Changes>>>,
    waiting: Mutex<Vec<Waker>>,
    /// Somebody asked for a commit.
    wanted: AtomicBool,
    thread: Mutex<Option<Thread>>,
    early: early::Rest,
    /// No byte that is not durable is older than this, in microseconds of the clock.
    synced_until: AtomicU64,
    commits: AtomicU64,
    /// What the last commit took, in microseconds.
    last_us: AtomicU64,
    times: Mutex<VecDeque<u64>>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Durable {
    pub(crate) fn new(options: &StoreOptions) -> Self {
        let durable = Durable {
            mode: options.durability,
            interval: options.sync_interval,
            clock: options.clock.clone(),
            failing: AtomicBool::new(false),
            reason: Mutex::default(),
            changes: Mutex::default(),
            waiting: Mutex::default(),
            wanted: AtomicBool::new(false),
            thread: Mutex::default(),
            early: early::Rest::default(),
            synced_until: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            times: Mutex::default(),
        };
        durable.synced_until.store(durable.now_us(), Ordering::Relaxed);
        durable
    }

    pub(crate) fn now_us(&self) -> u64 {
        (self.clock.0)().as_micros() as u64
    }

    /// For how long a busy thread puts off the commit that its answers wait for, in microseconds.
    pub(crate) fn gather_us(&self) -> u64 {
        (self.last_us.load(Ordering::Relaxed) * GATHER).min(GATHER_MOST_US)
    }

    /// For how long a commit is polled for that was asked for, in microseconds; 0 if it is not likely to
    /// come in time.
    pub(crate) fn poll_us(&self) -> u64 {
        let wanted = self.last_us.load(Ordering::Relaxed) * POLL;
        if wanted <= POLL_MOST_US { wanted } else { 0 }
    }

    /// Whether answers must not depend on what is not durable.
    #[inline]
    pub(crate) fn is_sync(&self) -> bool {
        self.mode == Durability::Sync
    }

    /// Whether writes are refused because commits fail.
    #[inline]
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// In async mode: whether the oldest byte that is not durable has reached the interval, so that
    /// nothing more may be acknowledged before it is.
    pub(crate) fn is_overdue(&self) -> bool {
        self.mode == Durability::Async
            && self.now_us().saturating_sub(self.synced_until.load(Ordering::Relaxed))
                >= self.interval.as_micros() as u64
    }

    /// Age of the oldest byte that may not be durable.
    pub(crate) fn unsynced_age(&self) -> Duration {
        let now = self.now_us();
        Duration::from_micros(now.saturating_sub(self.synced_until.load(Ordering::Relaxed)))
    }

    /// A list for a new session's changes.
    pub(crate) fn new_changes(&self) -> Arc<Changes> {
        let changes = Arc::new(Changes::default());
        lock(&self.changes).push(Arc::clone(&changes));
        changes
    }

    fn take_changes(&self, into: &mut Vec<Change>) {
        let mut all = lock(&self.changes);
        for list in &*all {
            into.append(&mut lock(list));
        }
        all.retain(|list| Arc::strong_count(list) > 1);
    }

    /// Somebody waits for the next commit.
    pub(crate) fn want_commit(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel)
            && let Some(thread) = &*lock(&self.thread)
        {
            thread.unpark();
        }
    }

    /// Whether somebody has asked for a commit since the last time.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// `waker` is woken when the state of any commit has changed.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn wake(&self) {
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

    /// Commits so far, and the median and the 99th percentile of the last ones' times, in
    /// microseconds.
    pub(crate) fn commit_times(&self) -> (u64, u64, u64) {
        let mut times: Vec<u64> = lock(&self.times).iter().copied().collect();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or(0);
        (self.commits.load(Ordering::Relaxed), at(50), at(99))
    }
}

/// The committer's own state.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    log: LogCommitter,
    /// Changes that no settled commit covers.
    changes: Vec<Change>,
    /// The use of the store has ended: nothing more is written to it.
    ended: bool,
}

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

    /// Takes changes back, the newest of each key first.
    fn undo(&self, changes: Vec<Change>) {
        let mut newest_first: Vec<(u64, Change)> = Vec::with_capacity(changes.len());
        for change in changes {
            // SAFETY: a record that is not durable has its frame, and the committer, who alone makes
            // it durable or gives it up, is here.
            if let Some(record) = unsafe { self.log.record(change.address) } {
                newest_first.push((record.seq(), change));
            }
        }
        newest_first.sort_unstable_by_key(|&(seq, _)| std::cmp::Reverse(seq));
        for (_, change) in newest_first {
            // SAFETY: as above.
            let Some(record) = (unsafe { self.log.record(change.address) }) else { continue };
            let key = Key::new(record.key(), self.options.hash_seed);
            let guard = self.index.lock(&key);
            let found = guard.find(&key, |slot| (slot.address() == change.address).then_some(()));
            let Some((place, _, ())) = found else { continue };
            let was_item = record.kind() == Kind::Item;
            self.log.segment(change.address.segment()).kill(record.size());
            let before = change.before.address();
            let mut before_size = change.before_size;
            if change.before.is_older() {
                let taken_back = self.take_back_over(&guard, &key, place, was_item, before);
                match self.older.size_of_dead(before) {
                    _ if taken_back => continue,
                    Some(size) => before_size = size,
                    // It was another key's, and has moved since.
                    None => {
                        guard.remove(place, was_item);
                        continue;
                    }
                }
            } else if change.before.is_empty() {
                guard.remove(place, was_item);
                continue;
            }
            let segment = self.log.segment(before.segment());
            if !change.before_is_item && segment.durable() as usize > before.offset() {
                // A tombstone whose commit has settled: nobody would bury it any more.
                guard.remove(place, was_item);
                self.log.note_end(before.segment(), before_size as usize);
                self.log.note_changed(before.segment());
                continue;
            }
            let items = i32::from(change.before_is_item) - i32::from(was_item);
            guard.replace(place, change.before.with_older(false), items);
            segment.revive(before_size as usize);
            self.log.note_changed(before.segment());
        }
    }

    /// Forgets the changes that the commit in flight covers, which was synced and is not settled;
    /// tombstones leave the index.
    fn settle_changes(&self, changes: &mut Vec<Change>) {
        changes.retain(|change| {
            if !self.log.is_closed(change.address) {
                return true;
            }
            if change.is_tombstone {
                // SAFETY: the commit is not settled, so its frames stay.
                let record = unsafe { self.log.record(change.address) };
                let record = record.expect("what is not settled has a frame");
                self.bury(change.address, record.key(), record.size());
            }
            false
        });
    }

    /// Takes a tombstone out of the index: from now on it only hides older versions from recovery.
    pub(crate) fn bury(&self, address: Address, key: &[u8], size: usize) {
        let key = Key::new(key, self.options.hash_seed);
        let guard = self.index.lock(&key);
        let found = guard.find(&key, |slot| (slot.address() == address).then_some(()));
        if let Some((place, _, ())) = found {
            guard.remove(place, false);
            self.log.note_end(address.segment(), size);
            self.log.segment(address.segment()).kill(size);
        }
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

#[cfg(test)]
mod tests;
