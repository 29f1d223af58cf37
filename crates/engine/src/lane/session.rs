//! One thread's access to a lane, with its counters, its clock and its part in epoch-based
//! reclamation.

mod absent;
mod group;
mod moving;
mod snapshots;

use crate::durability::{Change, Changes};
use crate::index::slot::{MAX_FREQUENCY, Slot};
use crate::item::{Item, ItemHandle};
use crate::key::Key;
use crate::lane::Lane;
use crate::large::LargeValue;
use crate::limit::expiry::{is_unused, shown_expiry};
use crate::limit::{Limiter, Nanos};
use crate::lock::lock;
use crate::reads::Fetched;
use crate::stats::{Counters, bump};
use crate::verbs::version::{Existing, NotWritten};
use crate::{CommitPoint, CommitState, NANOS, Outcome, Refusal, UnixSeconds, WhenFull, second_of};
use group::Group;
use larder_log::record::Kind;
use larder_log::sync::atomic::{AtomicU64, Ordering};
use larder_log::{
    Address, Appender, Appending, Claim, Fields, Log, Participant, Record, Rule, State,
};
use snapshots::Snapshots;
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;

/// One thread's access to a lane: `Send`, but not `Sync`.
pub(crate) struct LaneSession {
    pub(crate) lane: Arc<Lane>,
    pub(crate) counters: Arc<Counters>,
    participant: Participant,
    pub(crate) appender: Appender,
    waker: Waker,
    /// The time of the last tick, in nanoseconds since the Unix epoch.
    nanos: u64,
    /// The Unix second of the last tick.
    now: UnixSeconds,
    /// The session's changes that are not durable yet; only in sync mode.
    changes: Option<Arc<Changes>>,
    /// True if an acknowledged write is still not durable after the sync interval. Then every
    /// answer to a write waits for the write's commit, even in async mode or if the client accepts
    /// that a crash reverts the write. See
    /// [`Durable::is_overdue`](crate::durability::Durable::is_overdue).
    overdue: bool,
    /// True if the session has appended in this turn.
    appended: Cell<bool>,
    /// The commit that the current call's answer depends on; 0 for none.
    depends: Cell<u64>,
    /// The address of a record that must be read before the current call can finish; 0 for none.
    missing: Cell<u64>,
    /// 0, or the number of the first cleaner turn that began after a call found no space. If this
    /// or a later turn finds nothing to reclaim, the call is refused.
    starved: Cell<u64>,
    pub(crate) fetched: Fetched,
    snapshots: Snapshots,
    group: Group,
    /// Keeps the session from being `Sync`: calls change the session's state through `&self`.
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
        let changes = lane.new_changes();
        let appender = lane.log.appender();
        let fetched = Fetched::new(Arc::clone(&lane.readers), &lane.budget, waker.clone());
        LaneSession {
            lane,
            counters,
            participant,
            appender,
            waker,
            nanos: u64::from(now) * NANOS,
            now,
            changes,
            overdue: false,
            appended: Cell::new(false),
            depends: Cell::new(0),
            missing: Cell::new(0),
            starved: Cell::new(0),
            fetched,
            snapshots: Snapshots::default(),
            group: Group::new(),
            _not_sync: PhantomData,
        }
    }

    /// As [`LaneSession::tick_at`], for callers that count time in seconds.
    #[inline]
    pub(crate) fn tick(&mut self, now: UnixSeconds) {
        self.tick_at(u64::from(now) * NANOS);
    }

    /// Starts a turn of the thread's loop and sets the time, in nanoseconds since the Unix epoch.
    /// The caller must not use items that calls returned in earlier turns.
    #[inline]
    pub(crate) fn tick_at(&mut self, nanos: u64) {
        let mut told = false;
        self.participant.tick_after(|| told = self.lane.log.before_quiescent(&self.appender));
        if told {
            self.lane.told_dead();
        }
        self.snapshots.clear();
        self.tell_appended();
        self.turn_of_group();
        self.nanos = nanos;
        let now = second_of(nanos);
        if now != self.now {
            self.new_second(now);
        }
        if let Some(durable) = self.lane.durable() {
            self.overdue = durable.state.is_overdue();
            self.fetched.turn(durable.log);
        }
    }

    /// Requests an early write, in async mode, if the session has appended since the last call.
    #[inline]
    fn tell_appended(&self) {
        if self.appended.replace(false)
            && let Some(durability) = self.lane.log.durability()
        {
            durability.has_appended();
        }
    }

    #[cold]
    fn new_second(&mut self, now: UnixSeconds) {
        self.now = now;
        if self.lane.advance_clock(now) {
            self.lane.kick_cleaner();
        }
    }

    /// Tells the lane that the thread is about to block in the kernel and holds no items. The next
    /// `tick` ends the sleep.
    #[inline]
    pub(crate) fn sleep(&mut self) {
        self.end_turn();
        self.tell_appended();
        if let Some(log) = self.lane.log.durable() {
            self.fetched.start(log);
        }
        if self.lane.log.report_dead(&self.appender) {
            self.lane.told_dead();
        }
        self.participant.sleep();
    }

    /// See [`Session::polls`](crate::Session::polls).
    #[inline]
    pub(crate) fn polls(&mut self) -> bool {
        self.fetched.polls() || self.polls_for_commit()
    }

    /// Returns the second of the last tick.
    #[inline]
    pub(crate) fn now(&self) -> UnixSeconds {
        self.now
    }

    /// Returns the time of the last tick, in nanoseconds since the Unix epoch.
    #[inline]
    pub(crate) fn nanos(&self) -> Nanos {
        self.nanos
    }

    /// Hashes a key of 1 to 250 bytes.
    #[inline]
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        debug_assert!((1..=larder_log::record::MAX_KEY).contains(&bytes.len()));
        Key::new(bytes, self.lane.options.hash_seed)
    }

    /// The first stage of a batch: prefetches the key's buckets into the processor's cache.
    #[inline]
    pub(crate) fn prefetch_buckets(&self, key: &Key<'_>) {
        // SAFETY: a session is awake between `tick` and `sleep`, when its calls are made.
        unsafe { self.lane.index.prefetch(key) };
    }

    /// The second stage of a batch: prefetches the key's record into the processor's cache, and
    /// notes the record's slot in `key` as a hint.
    #[inline]
    pub(crate) fn prefetch_record(&self, key: &mut Key<'_>) -> Option<Address> {
        // SAFETY: a session is awake while its calls are made. Only the address is used.
        let address = unsafe { self.lane.index.guess(key) }?;
        // SAFETY: a session is awake while its calls are made.
        unsafe { self.lane.log.prefetch(address) };
        Some(address)
    }

    /// As [`LaneSession::fetch_record`], for a key that is to be set. Does not read the old record
    /// from a device while sets may replace records [unread](crate::older).
    #[inline]
    pub(crate) fn fetch_overwritten(&self, key: &mut Key<'_>) {
        if self.lane.older.admits() {
            self.prefetch_record(key);
        } else {
            self.fetch_record(key);
        }
    }

    /// Prefetches the cache line of the writers' lock of the key's stripe. The caller is about to
    /// write the key.
    #[inline]
    pub(crate) fn prefetch_lock(&self, key: &Key<'_>) {
        self.lane.index.prefetch_lock(key);
    }

    /// As [`LaneSession::prefetch_record`], and starts to read the record if it is not in memory.
    #[inline]
    pub(crate) fn fetch_record(&self, key: &mut Key<'_>) {
        let Some(address) = self.prefetch_record(key) else { return };
        if self.lane.has_store() && !self.lane.log.is_resident(address) {
            self.fetch_ahead(address);
        }
    }

    /// Finds the key's item, expired or not. Returns the place of its slot, the slot, the record,
    /// and the record as readers [see](LaneSession::visible) it. The caller must not hold a
    /// stripe's lock.
    #[inline(always)]
    pub(crate) fn find(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>, Record<'_>)> {
        let (place, slot, record) = self.find_record(key)?;
        if self.lane.has_store() {
            self.depends_on(slot.address(), &record);
        }
        let seen = if record.kind() == Kind::Item { record } else { self.visible(record)? };
        Some((place, slot, record, seen))
    }

    /// Returns the place of the key's slot, the slot, and its record, which may be of any kind.
    #[inline(always)]
    pub(crate) fn find_record(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        match self.find_at_hand(key) {
            Some(found) => Some(found),
            None => self.search(key),
        }
    }

    /// Returns a record as readers see it: a counter as a snapshot, a limiter as a number, any
    /// other item unchanged. Returns `None` for a tombstone and for a limiter without used units.
    /// The caller must not hold a stripe's lock.
    #[cold]
    pub(crate) fn visible<'a>(&'a self, record: Record<'a>) -> Option<Record<'a>> {
        if record.kind() == Kind::Tombstone {
            return None;
        }
        // The record may be superseded by now, but its memory stays until the next tick.
        let key = self.key(record.key());
        let _guard = record.kind().changes_in_place().then(|| self.lane.index.lock(&key));
        (!is_unused(&record, self.nanos())).then(|| self.visible_locked(record))
    }

    /// See [`Session::forget_items`](crate::Session::forget_items).
    #[inline]
    pub(crate) fn forget_items(&mut self) {
        self.snapshots.clear();
    }

    /// Returns the record itself, or a copy if it may change in place. The result does not change
    /// before the next tick. The caller must not hold a stripe's lock.
    pub(crate) fn snapshot<'a>(&'a self, record: Record<'a>) -> Record<'a> {
        if !record.kind().changes_in_place() {
            return record;
        }
        let key = self.key(record.key());
        let _guard = self.lane.index.lock(&key);
        self.snapshots.take(&record)
    }

    /// Returns an item's record as readers see it. The result does not change before the next tick.
    /// The caller must hold the lock of the record's stripe, unless `record` is a
    /// [snapshot](LaneSession::snapshot).
    #[inline]
    pub(crate) fn visible_locked<'a>(&'a self, record: Record<'a>) -> Record<'a> {
        match record.kind() {
            Kind::Counter => self.snapshots.take(&record),
            Kind::Limiter => self.as_number(record),
            _ => record,
        }
    }

    /// Returns a limiter's record as an item. The item's value is the number of used units, and the
    /// item expires when no units are used any more.
    #[cold]
    fn as_number<'a>(&'a self, record: Record<'a>) -> Record<'a> {
        let Some(limiter) = Limiter::decode(record.value()) else { return record };
        let expiry = shown_expiry(&limiter, self.nanos()).raw();
        let fields =
            Fields { kind: Kind::Item, cas: Some(record.cas()), expiry, ..record.fields() };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(limiter.used(self.nanos()));
        self.snapshots.make(&fields, record.key(), digits.as_bytes())
    }

    /// Returns the record that the key's hint leads to, if it belongs to the key and is in memory.
    #[inline(always)]
    fn find_at_hand(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        // SAFETY: a session is awake while its calls are made.
        let (place, slot) = unsafe { self.lane.index.hinted(key) }?;
        // SAFETY: the slot was read since the last tick.
        let record = unsafe { self.matching_at_hand(key, slot) }?;
        Some((place, slot, record))
    }

    /// As [`LaneSession::find_record`], without the hint.
    #[cold]
    fn search(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        // SAFETY: a session is awake while its calls are made; the record borrows `self`, and
        // `tick` ends that borrow.
        unsafe { self.lane.index.find(key, |slot| self.matching(key, slot)) }
    }

    /// Returns the slot's record if it belongs to this key.
    ///
    /// # Safety
    /// The slot was read since the last tick.
    #[inline]
    pub(crate) unsafe fn matching(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        if slot.is_older() && !self.may_answer(key, slot) {
            return None;
        }
        // SAFETY: the caller promises that the slot was read since the last tick.
        let record = match unsafe { self.lane.log.record(slot.address()) } {
            Some(record) => record,
            None => self.absent_record(key, slot)?,
        };
        same_bytes(record.key(), key.bytes()).then_some(record)
    }

    /// As [`LaneSession::matching`], but returns `None` if the record is not in memory or the slot
    /// is an older slot.
    ///
    /// # Safety
    /// As for [`LaneSession::matching`].
    #[inline(always)]
    pub(crate) unsafe fn matching_at_hand(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        if slot.is_older() {
            return None;
        }
        // SAFETY: the caller promises that the slot was read since the last tick.
        let record = unsafe { self.lane.log.record(slot.address()) }?;
        same_bytes(record.key(), key.bytes()).then_some(record)
    }

    /// Returns true if the slot leads to the current item of the record's key. Resolves an
    /// [older slot](crate::older) to find out.
    #[inline]
    pub(crate) fn is_current(&self, slot: Slot, record: &Record<'_>) -> bool {
        !slot.is_older() || {
            let key = self.key(record.key());
            self.lane.resolve_older_at(slot.address(), &key, record.size())
        }
    }

    /// Returns true if an older slot may lead to this key's item: the set that marked the slot was
    /// of a different key.
    #[cold]
    fn may_answer(&self, key: &Key<'_>, slot: Slot) -> bool {
        self.lane.older.is_set_over(slot.address(), key) == Some(false)
            || Rule::OlderNeverAnswers.is_broken()
    }

    #[inline]
    pub(crate) fn item<'a>(&'a self, slot: Slot, record: Record<'a>) -> Item<'a> {
        Item::new(record, slot, &self.lane)
    }

    /// As [`LaneSession::item`], for a record whose stripe the caller has locked.
    #[inline]
    pub(crate) fn item_locked<'a>(&'a self, slot: Slot, record: Record<'a>) -> Item<'a> {
        self.item(slot, self.visible_locked(record))
    }

    /// Counts a read of an item in its slot. If two threads race, one count is lost.
    ///
    /// The cleaner keeps items with a high frequency. It cannot keep every item that was read a few
    /// times, because most items on a device get a few reads before the device is full. So the
    /// first read of an item always counts. Later reads of an item whose segment has no frame count
    /// only if its record has a copy or was read often enough to get one.
    #[inline]
    pub(crate) fn count_read(&self, place: &AtomicU64, slot: Slot, record: &Record<'_>) {
        let absent = self.lane.has_store() && !self.lane.log.is_resident(slot.address());
        let once = absent && !self.count_read_of_absent(slot, record);
        let first = 1 + u8::from(record.inherits_reads());
        if slot.frequency() < if once { first } else { MAX_FREQUENCY } {
            let bumped = slot.with_frequency(slot.frequency() + 1);
            let _ = place.compare_exchange(slot.0, bumped.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the version that `handle` names; `None` if this version can never be read again.
    pub(crate) fn reopen(&self, handle: ItemHandle) -> Outcome<Option<Item<'_>>> {
        let segment = self.lane.log.segment(handle.id.address.segment());
        let reusable = |state| matches!(state, State::Free | State::Quarantine);
        if reusable(segment.state()) || segment.generation() != handle.id.generation {
            return Outcome::Ready(None);
        }
        // SAFETY: the segment was not in quarantine after this session's last tick, so its frame is
        // reused only after the next tick. The segment's generation is still that of the handle.
        let record = match unsafe { self.lane.log.record(handle.id.address) } {
            Some(record) => Some(record),
            None => self.absent(handle.id),
        };
        if let Some(record) = record {
            let record = self.snapshot(record);
            return Outcome::Ready(Some(self.item(Slot::new(0, 0, handle.id.address), record)));
        }
        let unreadable = self.fetched.is_unreadable(handle.id);
        if unreadable || !self.lane.has_store() {
            return Outcome::Ready(None);
        }
        self.fetch(handle.id)
    }

    /// Returns the key of the version that `handle` names; `None` if this version can never be read
    /// again. Reads the value of a jumbo only if the jumbo's head is unreadable.
    pub(crate) fn reopen_key(&self, handle: ItemHandle) -> Outcome<Option<Key<'_>>> {
        let number = handle.id.address.segment();
        let segment = self.lane.log.segment(number);
        let head = self.lane.log.record_id(Log::jumbo_head(number));
        if !segment.is_jumbo()
            || !segment.frame().is_null()
            || matches!(segment.state(), State::Free | State::Quarantine)
            || head.generation != handle.id.generation
            || self.fetched.is_unreadable(head)
        {
            return self.reopen(handle).map(|item| item.map(|item| self.key(item.key())));
        }
        match self.fetched.get_head(head, segment.jumbo_value()) {
            Some(record) => Outcome::Ready(Some(self.key(record.key()))),
            None => self.fetch(head),
        }
    }

    /// Keeps a large value in memory, if possible, until the call that needs it is repeated. That
    /// call waits for something other than the value, such as space.
    pub(crate) fn keep_large(&self, handle: ItemHandle) {
        if self.lane.log.segment(handle.id.address.segment()).is_jumbo() {
            self.fetched.need_large(handle.id);
        }
    }

    /// Returns memory for a value of `len` bytes, which the caller fills as the bytes arrive;
    /// `None` if the value is larger than the largest item.
    pub(crate) fn large_value(&self, len: usize) -> Outcome<Option<LargeValue>> {
        if len as u64 > self.lane.options.max_item_size {
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

    /// See [`Session::try_grow_large`](crate::Session::try_grow_large).
    pub(crate) fn try_grow_large(&self, large: &mut LargeValue, filled: usize) -> bool {
        let charged = large.try_charge(filled);
        if charged {
            self.found_space();
        }
        charged
    }

    /// Makes the answer wait, in sync mode, until this record is durable, because the answer
    /// depends on the record.
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

    /// Makes the answer wait until a record of `size` bytes that was just written is durable, in
    /// any mode of durability.
    pub(crate) fn depends_on_record(&self, address: Address, size: usize) {
        if self.lane.has_store() {
            self.depends_on_commit(address, (address.offset() + size) as u32);
        }
    }

    /// Lets the answer, in sync mode, wait for no commit except a flush's: the client accepts that
    /// a crash or a failed commit reverts the change. If the call has `written`, a commit follows
    /// within the sync interval. While a commit is overdue, this function does nothing, so the
    /// answer waits.
    pub(crate) fn depends_on_nothing(&self, written: bool) {
        if !self.is_sync() || self.overdue {
            return;
        }
        self.depends.set(0);
        if written && let Some(durability) = self.lane.log.durability() {
            durability.owe();
        }
    }

    /// Makes an answer after a flush wait, in sync mode, until the flush's fence is durable.
    #[inline]
    fn depends_on_fence(&self) {
        if self.lane.fence.load(Ordering::Relaxed) == 0 || Rule::AnswerWhenDurable.is_broken() {
            return;
        }
        // The answer depends on a record that was written after the flush. If that record is
        // durable, a crash cannot bring an older version of its key back. The fence must not
        // replace the record's commit: if that commit fails, the fence moves to a later commit,
        // which may succeed.
        if self.depends.get() != 0 {
            return;
        }
        let Some(store) = self.lane.log.store() else { return };
        // If the commit of the fence fails, `fence` is set to the open commit before the failed
        // commit counts as settled. If this thread loaded `fence` first, it could load the number
        // of the failed commit and then find this commit settled. Then the answer would not wait.
        let settled = store.commits.settled();
        let fence = self.lane.fence.load(Ordering::Acquire);
        if fence > settled {
            self.depends.set(self.depends.get().max(fence));
        }
    }

    /// Announces an append before it reserves space. Commits wait for this thread until the
    /// returned guard is dropped.
    #[inline]
    pub(crate) fn appending(&self) -> Result<Appending<'_>, NotWritten> {
        self.lane.append(&self.participant).ok_or(NotWritten::StoreFailed)
    }

    /// Notes that a record of this kind and `size` was written at `address` and is about to be
    /// published. `existing` is the version that it replaces.
    #[inline]
    pub(crate) fn changed(
        &self,
        kind: Kind,
        address: Address,
        size: usize,
        existing: Option<&Existing<'_>>,
    ) {
        if !self.lane.has_store() {
            return;
        }
        self.appended.set(true);
        if let Some(changes) = &self.changes {
            let before = existing.map_or(Slot::EMPTY, |old| old.place.slot());
            let before_size = existing.map_or(0, |old| old.record.size() as u32);
            let before_is_item = existing.is_some_and(|old| old.record.kind().is_item());
            let mut changes = lock(changes);
            let is_tombstone = kind == Kind::Tombstone;
            changes.push(Change { address, before, before_size, before_is_item, is_tombstone });
        }
        self.waits_for(address, size);
    }

    /// Notes that the record of `size` bytes at `address` was changed in place. If the commit of
    /// the record fails, the undo of the record's append reverts this change, too.
    pub(crate) fn changed_in_place(&self, address: Address, size: usize) {
        if self.lane.has_store() {
            self.appended.set(true);
            self.waits_for(address, size);
        }
    }

    /// As [`LaneSession::changed`], for an item that replaces a record without reading it. `before`
    /// is the slot of the replaced record.
    pub(crate) fn changed_unread(&self, address: Address, size: usize, before: Slot) {
        self.appended.set(true);
        if let Some(changes) = &self.changes {
            let before = before.with_older(true);
            let mut changes = lock(changes);
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

    /// Makes the answer wait for the commit of the record that was written, in sync mode or while a
    /// commit is overdue.
    #[inline]
    fn waits_for(&self, address: Address, size: usize) {
        if self.changes.is_some() || self.overdue {
            self.depends_on_commit(address, (address.offset() + size) as u32);
        }
    }

    /// Marks the record of `bytes` at `address` dead: its key has another version, or is gone.
    #[inline]
    pub(crate) fn kill(&self, address: Address, bytes: usize) {
        self.lane.log.kill_for(&self.appender, address.segment(), bytes);
        self.lane.log.note_death(address.segment());
        self.lane.killed(address.segment());
    }

    /// Returns true in sync mode, in which answers wait until the changes that they depend on are
    /// durable.
    pub(crate) fn is_sync(&self) -> bool {
        self.changes.is_some()
    }

    /// Returns the outcome of a finished call, with the commit that the answer waits for, if any.
    #[inline]
    pub(crate) fn answer<T>(&self, answer: T) -> Outcome<T> {
        if !self.lane.has_store() {
            return Outcome::Ready(answer);
        }
        self.missing.set(0);
        if self.changes.is_some() {
            self.depends_on_fence();
        }
        match self.depends.take() {
            0 => Outcome::Ready(answer),
            position => {
                self.note_waiting();
                let lane = self.lane.options.position.into();
                Outcome::AfterCommit(answer, CommitPoint { lane, position })
            }
        }
    }

    /// Returns the state of a commit of the lane.
    #[inline]
    pub(crate) fn commit_state(&self, commit: u64) -> CommitState {
        self.lane.commit_state(commit)
    }

    /// Returns the outcome of a call that wrote nothing.
    #[inline(always)]
    pub(crate) fn not_written<T>(&self, key: &Key<'_>, why: NotWritten) -> Outcome<T> {
        self.refuse_write(key, why).for_any()
    }

    #[cold]
    fn refuse_write(&self, key: &Key<'_>, why: NotWritten) -> Outcome<Infallible> {
        match why {
            NotWritten::NeedsRead => return self.needs_read(key),
            NotWritten::NoSpace(claim) => return self.no_space(claim),
            NotWritten::NoVersion => return self.no_version(),
            // Waiting cannot make room for such a write.
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

    /// Returns the outcome of a call that found no space: wait for the cleaner, or a refusal.
    fn no_space<T>(&self, claim: Claim) -> Outcome<T> {
        self.depends.set(0);
        self.missing.set(0);
        if self.is_hopeless(self.lane.is_full(claim)) {
            bump(&self.counters.store_no_memory, 1);
            let log = &self.lane.log;
            let full = log.available_places(claim) < log.wanted_places().max(1);
            log.unwant_places();
            if !full {
                self.lane.budget.unwant();
            }
            return Outcome::Refused(if full { Refusal::StoreFull } else { Refusal::OutOfMemory });
        }
        self.lane.wait_for_space(&self.waker, claim);
        Outcome::NeedsSpace
    }

    /// Returns the outcome of a call that found no version left in the lease: wait for the commit
    /// that extends the lease.
    fn no_version<T>(&self) -> Outcome<T> {
        self.depends.set(0);
        self.missing.set(0);
        // This order matters: the commit that the request begins finds the waker.
        if let Some(durability) = self.lane.log.durability() {
            durability.wait(&self.waker);
            durability.want_commit();
        }
        Outcome::NeedsSpace
    }

    /// Returns true if a call that found no space must be refused. `full` is true if the last turn
    /// of the cleaner found nothing to reclaim. In evict mode, such a turn must also have begun
    /// after the call first found no space. After an earlier turn, records may have died or memory
    /// may have been released.
    pub(super) fn is_hopeless(&self, full: bool) -> bool {
        if self.lane.options.when_full == WhenFull::Refuse {
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

    /// Notes that a call found space. A later call that finds no space then waits for a new turn of
    /// the cleaner before it is refused.
    #[inline]
    pub(crate) fn found_space(&self) {
        if self.starved.get() != 0 {
            self.starved.set(0);
        }
    }
}

/// Returns true if two keys are equal. Keys are short, so comparing whole words inline beats a call
/// of `memcmp`.
#[inline]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    const WORD: usize = size_of::<u64>();
    if a.len() != b.len() {
        return false;
    }
    let (Some(end_a), Some(end_b)) = (a.last_chunk::<WORD>(), b.last_chunk::<WORD>()) else {
        return a == b;
    };
    // The last word overlaps the previous one.
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
    fn keys_are_equal_only_if_all_bytes_are() {
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
