//! One thread's way into a lane, with its counters, its clock and its part in the quiescent period.

mod absent;
mod group;
mod moving;

use crate::durability::{Change, Changes};
use crate::index::slot::{MAX_FREQUENCY, Slot};
use crate::item::{Item, ItemHandle};
use crate::key::Key;
use crate::lane::Lane;
use crate::large::LargeValue;
use crate::reads::Fetched;
use crate::stats::{Counters, bump};
use crate::verbs::version::{Existing, NotWritten};
use crate::{CommitPoint, CommitState, Outcome, Refusal, UnixSeconds, WhenFull};
use group::Group;
use larder_log::record::Kind;
use larder_log::sync::atomic::{AtomicU64, Ordering};
use larder_log::{Address, Appender, Appending, Claim, Participant, Record, Rule, State};
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

/// One thread's way into a lane: `Send`, but not `Sync`.
pub(crate) struct LaneSession {
    pub(crate) lane: Arc<Lane>,
    pub(crate) counters: Arc<Counters>,
    participant: Participant,
    pub(crate) appender: Appender,
    waker: Waker,
    now: UnixSeconds,
    /// What it changed and is not durable; only in sync mode.
    changes: Option<Arc<Changes>>,
    /// In async mode: writes must wait, see [`Durable::is_overdue`](crate::durability::Durable).
    overdue: bool,
    /// It has appended since its turn began.
    appended: Cell<bool>,
    /// The commit that the answer in the making depends on; 0 for none.
    depends: Cell<u64>,
    /// The address of a record that must be read before there is an answer; 0 for none.
    missing: Cell<u64>,
    /// A call found no space: the first turn of the cleaner that began later; 0 if none waits.
    starved: Cell<u64>,
    pub(crate) fetched: Fetched,
    group: Group,
    /// Calls hand out what `tick` ends, so a session stays with one thread at a time.
    _not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for LaneSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneSession").field("now", &self.now).finish_non_exhaustive()
    }
}

impl LaneSession {
    pub(crate) fn new(lane: Arc<Lane>, counters: Arc<Counters>, waker: Waker) -> Self {
        let mut participant = lane.epochs.join();
        participant.tick();
        let now = lane.now.load(Ordering::Relaxed);
        let durable = lane.durable.as_ref();
        let changes = durable.filter(|durable| durable.is_sync()).map(|d| d.new_changes());
        let appender = lane.log.appender();
        let fetched = Fetched::new(Arc::clone(&lane.readers), &lane.budget, waker.clone());
        LaneSession {
            lane,
            counters,
            participant,
            appender,
            waker,
            now,
            changes,
            overdue: false,
            appended: Cell::new(false),
            depends: Cell::new(0),
            missing: Cell::new(0),
            starved: Cell::new(0),
            fetched,
            group: Group::new(),
            _not_sync: PhantomData,
        }
    }

    /// Once per turn of the thread's loop: no item of an earlier turn is used any more, and this is
    /// the time.
    #[inline]
    pub(crate) fn tick(&mut self, now: UnixSeconds) {
        let mut told = false;
        self.participant.tick_after(|| told = self.lane.log.before_quiescent(&self.appender));
        if told {
            self.lane.told_dead();
        }
        self.tell_appended();
        self.turn_of_group();
        if now != self.now {
            self.new_second(now);
        }
        if let Some(durable) = &self.lane.durable {
            self.overdue = durable.is_overdue();
            self.fetched.turn(&self.lane.log);
        }
    }

    /// Has what was appended in this turn written early.
    #[inline]
    fn tell_appended(&self) {
        if self.appended.replace(false)
            && let Some(durable) = &self.lane.durable
        {
            durable.has_appended();
        }
    }

    #[cold]
    fn new_second(&mut self, now: UnixSeconds) {
        self.now = now;
        if self.lane.advance_clock(now) {
            self.lane.kick_cleaner();
        }
    }

    /// The thread is about to block in the kernel: it holds no items. The next `tick` ends this.
    #[inline]
    pub(crate) fn sleep(&mut self) {
        self.end_turn();
        self.tell_appended();
        if self.lane.durable.is_some() {
            self.fetched.start(&self.lane.log);
        }
        if self.lane.log.tell_dead(&self.appender) {
            self.lane.told_dead();
        }
        self.participant.sleep();
    }

    /// See [`Session::polls`](crate::Session::polls).
    #[inline]
    pub(crate) fn polls(&mut self) -> bool {
        self.fetched.polls() || self.polls_for_commit()
    }

    /// The time of the last tick.
    #[inline]
    pub(crate) fn now(&self) -> UnixSeconds {
        self.now
    }

    /// Hashes a key of 1 to 250 bytes.
    #[inline]
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        debug_assert!((1..=larder_log::record::MAX_KEY).contains(&bytes.len()));
        Key::new(bytes, self.lane.options.hash_seed)
    }

    /// First stage of a batch: brings the key's buckets into the processor's cache.
    #[inline]
    pub(crate) fn prefetch_buckets(&self, key: &Key<'_>) {
        // SAFETY: a session is awake between `tick` and `sleep`, when its calls are made.
        unsafe { self.lane.index.prefetch(key) };
    }

    /// Second stage of a batch: brings the key's record into the processor's cache, and notes in the
    /// key where it was found.
    #[inline]
    pub(crate) fn prefetch_record(&self, key: &mut Key<'_>) -> Option<Address> {
        // SAFETY: as above; only an address is used.
        let address = unsafe { self.lane.index.guess(key) }?;
        // SAFETY: as above.
        unsafe { self.lane.log.prefetch(address) };
        Some(address)
    }

    /// As [`LaneSession::fetch_record`], of a key that is set whatever it had before: that is read only if it must
    /// be.
    #[inline]
    pub(crate) fn fetch_overwritten(&self, key: &mut Key<'_>) {
        if self.lane.older.admits() {
            self.prefetch_record(key);
        } else {
            self.fetch_record(key);
        }
    }

    /// Shortly before a write of the key: has other processors give up its stripe's lock.
    #[inline]
    pub(crate) fn prefetch_lock(&self, key: &Key<'_>) {
        self.lane.index.prefetch_lock(key);
    }

    /// As [`LaneSession::prefetch_record`]; what is not in memory begins to be read from the store.
    #[inline]
    pub(crate) fn fetch_record(&self, key: &mut Key<'_>) {
        let Some(address) = self.prefetch_record(key) else { return };
        if self.lane.durable.is_some() && !self.lane.log.is_resident(address) {
            self.fetch_ahead(address);
        }
    }

    /// The key's record as readers see it: expired or not.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        let found = match self.find_at_hand(key) {
            Some(found) => found,
            None => self.search(key)?,
        };
        if self.lane.durable.is_some() {
            self.depends_on(found.1.address(), &found.2);
            if found.2.kind() != Kind::Item {
                return None;
            }
        }
        Some(found)
    }

    /// What the key's hint leads to, if that is the key's record and in memory.
    #[inline(always)]
    fn find_at_hand(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        // SAFETY: as in `search`.
        let (place, slot) = unsafe { self.lane.index.hinted(key) }?;
        // SAFETY: the slot was just read.
        let record = unsafe { self.matching_at_hand(key, slot) }?;
        Some((place, slot, record))
    }

    /// As [`LaneSession::find`], without a hint.
    #[cold]
    fn search(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        // SAFETY: a session is awake while its calls are made; the record's lifetime is that of the
        // borrow of `self`, which `tick` ends.
        unsafe { self.lane.index.find(key, |slot| self.matching(key, slot)) }
    }

    /// The slot's record if it is this key's.
    ///
    /// # Safety
    /// The slot was read since the last tick.
    #[inline]
    pub(crate) unsafe fn matching(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        if slot.is_older() && !self.may_answer(key, slot) {
            return None;
        }
        // SAFETY: by the caller's promise.
        let record = match unsafe { self.lane.log.record(slot.address()) } {
            Some(record) => record,
            None => self.absent_record(key, slot)?,
        };
        same_bytes(record.key(), key.bytes()).then_some(record)
    }

    /// As [`LaneSession::matching`], if the record is in memory and nothing else has to be looked at.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn matching_at_hand(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        if slot.is_older() {
            return None;
        }
        // SAFETY: by the caller's promise.
        let record = unsafe { self.lane.log.record(slot.address()) }?;
        same_bytes(record.key(), key.bytes()).then_some(record)
    }

    /// Whether what a slot leads to is its key's item, and not one that was set over without a look.
    #[inline]
    pub(crate) fn is_current(&self, slot: Slot, record: &Record<'_>) -> bool {
        !slot.is_older() || {
            let key = self.key(record.key());
            self.lane.settle_older_at(slot.address(), &key, record.size())
        }
    }

    /// Whether an older slot may be the one of this key: another key was set over it.
    #[cold]
    fn may_answer(&self, key: &Key<'_>, slot: Slot) -> bool {
        self.lane.older.is_set_over(slot.address(), key) == Some(false)
            || Rule::OlderNeverAnswers.is_broken()
    }

    #[inline]
    pub(crate) fn item<'a>(&'a self, slot: Slot, record: Record<'a>) -> Item<'a> {
        Item::new(record, slot, &self.lane)
    }

    /// Counts a read of an item. A lost race loses one count. Reads of the device count once, unless they
    /// follow each other: by the frequency the cleaner knows what must not be evicted, and in the time that
    /// it takes a device to fill everything may have been read a few times.
    #[inline]
    pub(crate) fn count_read(&self, place: &AtomicU64, slot: Slot, record: &Record<'_>) {
        let absent = self.lane.durable.is_some() && !self.lane.log.is_resident(slot.address());
        let once = absent && !self.count_read_of_absent(slot, record);
        let first = 1 + u8::from(record.inherits_reads());
        if slot.frequency() < if once { first } else { MAX_FREQUENCY } {
            let bumped = slot.with_frequency(slot.frequency() + 1);
            let _ = place.compare_exchange(slot.0, bumped.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Finds the version that `handle` names; `None` when it has gone for good.
    pub(crate) fn reopen(&self, handle: ItemHandle) -> Outcome<Option<Item<'_>>> {
        let segment = self.lane.log.segment(handle.address.segment());
        let reusable = |state| matches!(state, State::Free | State::Quarantine);
        if reusable(segment.state()) || segment.generation() != handle.generation {
            return Outcome::Ready(None);
        }
        // SAFETY: the segment was not in quarantine after this session's last tick, so its frame
        // is reused only after the next one; the generation says that it is still the same use.
        let record = match unsafe { self.lane.log.record(handle.address) } {
            Some(record) => Some(record),
            None => self.absent(handle.address, handle.generation),
        };
        if let Some(record) = record {
            return Outcome::Ready(Some(self.item(Slot::new(0, 0, handle.address), record)));
        }
        let unreadable = self.fetched.is_unreadable(handle.address, handle.generation);
        if unreadable || self.lane.durable.is_none() {
            return Outcome::Ready(None);
        }
        self.fetch(handle.address, handle.generation)
    }

    /// Memory for a value of `len` bytes that is filled as it arrives; `None` when it is larger than
    /// the largest item.
    pub(crate) fn large_value(&self, len: usize) -> Outcome<Option<LargeValue>> {
        if len as u64 > self.lane.options.engine.max_item_size {
            return Outcome::Ready(None);
        }
        match LargeValue::map(len, &self.lane.budget) {
            Some(large) => Outcome::Ready(Some(large)),
            None => self.no_space(Claim::Write),
        }
    }

    /// Charges the memory for the first `filled` bytes of a large value.
    pub(crate) fn grow_large(&self, large: &mut LargeValue, filled: usize) -> Outcome<()> {
        if !large.charge(filled) {
            return self.no_space(Claim::Write);
        }
        self.found_space();
        Outcome::Ready(())
    }

    /// In sync mode: an answer that follows from this record must not be given before it is durable.
    #[inline]
    pub(crate) fn depends_on(&self, address: Address, record: &Record<'_>) {
        if self.changes.is_some() && !Rule::AnswerWhenDurable.is_broken() {
            let segment = self.lane.log.segment(address.segment());
            let end = (address.offset() + record.size()) as u32;
            if !segment.is_durable(end) {
                self.depends_on_commit(address, end);
            }
        }
    }

    #[cold]
    fn depends_on_commit(&self, address: Address, end: u32) {
        if let Some(store) = self.lane.log.store()
            && let Some(commit) = store.commits.of(self.lane.log.segment(address.segment()), end)
        {
            self.depends.set(self.depends.get().max(commit));
        }
    }

    /// In sync mode: what is said after a flush must not be said before its fence is durable.
    #[inline]
    fn depends_on_fence(&self) {
        if self.lane.fence.load(Ordering::Relaxed) == 0 || Rule::AnswerWhenDurable.is_broken() {
            return;
        }
        let Some(store) = self.lane.log.store() else { return };
        // In this order: a fence that is postponed is so before its commit is settled as failed.
        let settled = store.commits.settled();
        let fence = self.lane.fence.load(Ordering::Acquire);
        if fence > settled {
            self.depends.set(self.depends.get().max(fence));
        }
    }

    /// Before space is reserved: from here to the end of the answer's life a commit waits for this
    /// thread.
    #[inline]
    pub(crate) fn appending(&self) -> Result<Appending<'_>, NotWritten> {
        self.lane.append(&self.participant).ok_or(NotWritten::StoreFailed)
    }

    /// A record of this kind and `size` was written at `address` and is about to be published.
    #[inline]
    pub(crate) fn changed(
        &self,
        kind: Kind,
        address: Address,
        size: usize,
        existing: Option<&Existing<'_>>,
    ) {
        if self.lane.durable.is_none() {
            return;
        }
        self.appended.set(true);
        if let Some(changes) = &self.changes {
            let before = existing.map_or(Slot::EMPTY, |old| old.place.slot());
            let before_size = existing.map_or(0, |old| old.record.size() as u32);
            let before_is_item = existing.is_some_and(|old| old.record.kind() == Kind::Item);
            let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
            let is_tombstone = kind == Kind::Tombstone;
            changes.push(Change { address, before, before_size, before_is_item, is_tombstone });
        }
        self.waits_for(address, size);
    }

    /// As [`LaneSession::changed`], of an item whose slot before leads to a record that nobody has looked at.
    pub(crate) fn changed_unread(&self, address: Address, size: usize, before: Slot) {
        self.appended.set(true);
        if let Some(changes) = &self.changes {
            let before = before.with_older(true);
            let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
            changes.push(Change {
                address,
                before,
                before_size: 0,
                before_is_item: true,
                is_tombstone: false,
            });
        }
        self.waits_for(address, size);
    }

    /// The answer waits for the commit of what was written, in sync mode or when commits are late.
    #[inline]
    fn waits_for(&self, address: Address, size: usize) {
        if self.changes.is_some() || self.overdue {
            self.depends_on_commit(address, (address.offset() + size) as u32);
        }
    }

    /// The record of `bytes` at `address` is dead: its key has another version, or is gone.
    #[inline]
    pub(crate) fn kill(&self, address: Address, bytes: usize) {
        self.lane.log.kill_for(&self.appender, address.segment(), bytes);
        self.lane.log.note_death(address.segment());
        self.lane.killed(address.segment());
    }

    /// Whether answers wait until they are durable.
    pub(crate) fn is_sync(&self) -> bool {
        self.changes.is_some()
    }

    /// The answer of a call, with what it waits for.
    #[inline]
    pub(crate) fn answer<T>(&self, answer: T) -> Outcome<T> {
        if self.lane.durable.is_none() {
            return Outcome::Ready(answer);
        }
        self.missing.set(0);
        if self.changes.is_some() {
            self.depends_on_fence();
        }
        match self.depends.take() {
            0 => Outcome::Ready(answer),
            position => Outcome::AfterCommit(
                answer,
                CommitPoint { lane: self.lane.options.position.into(), position },
            ),
        }
    }

    /// How far a commit of the lane has come.
    #[inline]
    pub(crate) fn commit_state(&self, commit: u64) -> CommitState {
        self.lane.commit_state(commit)
    }

    /// What a call answers that wrote nothing.
    #[inline(always)]
    pub(crate) fn not_written<T>(&self, key: &Key<'_>, why: NotWritten) -> Outcome<T> {
        self.refuse_write(key, why).for_any()
    }

    #[cold]
    fn refuse_write(&self, key: &Key<'_>, why: NotWritten) -> Outcome<Infallible> {
        match why {
            NotWritten::NeedsRead => return self.needs_read(key),
            NotWritten::NoSpace(claim) => return self.no_space(claim),
            // No room can be made for these by waiting.
            NotWritten::TooLarge | NotWritten::OutOfMemory => {
                bump(&self.counters.store_no_memory, 1);
            }
            NotWritten::StoreFailed => {}
        }
        self.depends.set(0);
        self.missing.set(0);
        Outcome::Refused(match why {
            NotWritten::StoreFailed => Refusal::StoreFailed,
            _ => Refusal::OutOfMemory,
        })
    }

    /// What a call answers that found no space: wait for the cleaner, or that there is none.
    fn no_space<T>(&self, claim: Claim) -> Outcome<T> {
        self.depends.set(0);
        self.missing.set(0);
        if self.is_hopeless(self.lane.is_full(claim)) {
            bump(&self.counters.store_no_memory, 1);
            let log = &self.lane.log;
            let full = log.available_numbers(claim) < log.wanted_numbers().max(1);
            log.unwant_numbers();
            if !full {
                self.lane.budget.unwant();
            }
            return Outcome::Refused(if full { Refusal::StoreFull } else { Refusal::OutOfMemory });
        }
        self.lane.wait_for_space(&self.waker, claim);
        Outcome::NeedsSpace
    }

    /// Whether a call that found no space is to be refused, where `full` is what the cleaner found last. In
    /// evict mode that must be younger than the call: what has died since, or was given back, may be all that it
    /// needs.
    pub(super) fn is_hopeless(&self, full: bool) -> bool {
        if self.lane.options.engine.when_full == WhenFull::Refuse {
            return full;
        }
        let starved = self.starved.get();
        let hopeless =
            full && starved != 0 && self.lane.found_nothing.load(Ordering::Acquire) >= starved;
        if hopeless {
            self.starved.set(0);
            self.lane.kick_cleaner();
        } else if starved == 0 || !full {
            self.starved.set(self.lane.turns.load(Ordering::Acquire) + 1);
        }
        hopeless
    }

    /// A call found space: who finds none later waits anew.
    #[inline]
    pub(crate) fn found_space(&self) {
        if self.starved.get() != 0 {
            self.starved.set(0);
        }
    }
}

/// Whether two keys are equal. Keys are short: whole words in place beat a call of `memcmp`.
#[inline]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    const WORD: usize = size_of::<u64>();
    if a.len() != b.len() {
        return false;
    }
    let (Some(end_a), Some(end_b)) = (a.last_chunk::<WORD>(), b.last_chunk::<WORD>()) else {
        return a == b;
    };
    // The last word overlaps the ones before it.
    end_a == end_b && a.chunks_exact(WORD).zip(b.chunks_exact(WORD)).all(|(a, b)| a == b)
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        self.lane.end_counters(&self.counters);
        self.lane.log.retire(&self.appender);
    }
}

#[cfg(test)]
mod tests {
    use super::same_bytes;

    #[test]
    fn keys_are_equal_exactly_if_all_bytes_are() {
        for len in 0..=40 {
            let key: Vec<u8> = (0..len).collect();
            assert!(same_bytes(&key, &key.clone()));
            assert!(!same_bytes(&key, &[&key[..], b"x"].concat()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 1;
                assert!(!same_bytes(&key, &other), "length {len}, byte {at}");
            }
        }
    }
}
