//! A session: one thread's access to the engine. It contains a session of every lane and forwards
//! each call to the lane that owns the key.

use crate::engine::Engine;
use crate::engine::drains::DrainError;
use crate::engine::grow_requests::GrowError;
use crate::lane::session::LaneSession;
use crate::limit::Nanos;
use crate::reads::LaneReads;
use crate::stats::bump;
use crate::{
    Arith, CommitPoint, CommitState, Counted, Delete, Deleted, Get, Got, Item, Key, LargeValue,
    NANOS, Outcome, Refusal, Store, Stored, Take, Taken, UnixSeconds,
};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// One thread's access to the engine: `Send`, but not `Sync`.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lanes: Box<[LaneSession]>,
    pub(crate) waker: Waker,
    /// True if a delayed flush is due but could not be carried out yet.
    flush_waits: bool,
}

/// Reads that calls wait for. The caller must [release](Session::release) them.
#[derive(Debug)]
#[must_use = "reads that are not released are kept forever"]
pub struct Reads(SmallVec<[(usize, LaneReads); 1]>);

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, waker: Waker) -> Self {
        let lanes = engine.lanes.iter().map(|lane| lane.session(waker.clone())).collect();
        Session { engine, lanes, waker, flush_waits: false }
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// As [`Session::tick_at`], for callers that count time in seconds.
    #[inline]
    pub fn tick(&mut self, now: UnixSeconds) {
        self.tick_at(u64::from(now) * NANOS);
    }

    /// Starts a turn of the thread's loop and sets the time, in nanoseconds since the Unix epoch.
    /// The caller must not use items that calls returned in earlier turns.
    #[inline]
    pub fn tick_at(&mut self, nanos: u64) {
        let before = self.now();
        self.lanes.iter_mut().for_each(|lane| lane.tick_at(nanos));
        let now = self.now();
        if now != before || self.flush_waits {
            self.flush_waits = !self.flush_if_due(now);
        }
    }

    /// Tells the engine that the thread is about to block in the kernel and holds no items. The
    /// next `tick` ends the sleep.
    #[inline]
    pub fn sleep(&mut self) {
        self.lanes.iter_mut().for_each(LaneSession::sleep);
    }

    /// Returns the second of the last tick.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.lanes[0].now()
    }

    /// Tells the engine that the caller no longer uses the items that calls have returned. For
    /// counters and limiters, calls return snapshots. The session can then reuse the memory of
    /// snapshots in the same turn. [`Session::tick`] does the same.
    #[inline]
    pub fn forget_items(&mut self) {
        self.lanes.iter_mut().for_each(LaneSession::forget_items);
    }

    /// Returns the time of the last tick, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn nanos(&self) -> Nanos {
        self.lanes[0].nanos()
    }

    /// Hashes a key of 1 to 250 bytes.
    #[inline]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        self.lanes[0].key(bytes)
    }

    /// Returns the lane that owns the key; `None` while the key moves between lanes.
    #[inline]
    fn lane(&self, key: &Key<'_>) -> Option<&LaneSession> {
        match &*self.lanes {
            [only] if self.engine.partitions.never_move() => Some(only),
            lanes => lanes.get(self.engine.partitions.lane_of(key)),
        }
    }

    /// Returns the outcome of a call whose key is moving between lanes. The caller repeats the call
    /// when the session's waker is woken. The call is refused if the move is stuck, because a
    /// device fails or the mover has ended.
    #[inline(always)]
    pub(crate) fn on_its_way<T>(&self) -> Outcome<T> {
        self.wait_for_arrival().for_any()
    }

    #[cold]
    fn wait_for_arrival(&self) -> Outcome<Infallible> {
        if self.engine.partitions.wait(&self.waker) {
            return Outcome::NeedsSpace;
        }
        Outcome::Refused(Refusal::StoreFailed)
    }

    /// First stage of a batch: brings the key's buckets into the processor's cache.
    #[inline]
    pub fn prefetch_buckets(&self, key: &Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.prefetch_buckets(key);
        }
    }

    /// Second stage of a batch: brings the key's record into the processor's cache, and notes the
    /// record's slot in `key` as a hint.
    #[inline]
    pub fn prefetch_record(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.prefetch_record(key);
        }
    }

    /// As [`Session::prefetch_record`], for a key that is used in this turn. Records that are not
    /// in memory are read for the whole batch at once.
    #[inline]
    pub fn fetch_record(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.fetch_record(key);
        }
    }

    /// As [`Session::fetch_record`], for a key that a set overwrites. Does not read the old record
    /// from a device if the set can replace it unread.
    #[inline]
    pub fn fetch_overwritten(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.fetch_overwritten(key);
        }
    }

    /// Prefetches the writers' lock of the key's stripe. The caller does so shortly before it
    /// writes the key: after an early prefetch, other processors may take the cache line back.
    #[inline]
    pub fn prefetch_lock(&self, key: &Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.prefetch_lock(key);
        }
    }

    /// Returns the key's item and counts a read of it.
    #[inline(always)]
    pub fn get(&self, key: &Key<'_>) -> Outcome<Option<Item<'_>>> {
        match self.lane(key) {
            Some(lane) => lane.get(key),
            None => self.on_its_way(),
        }
    }

    /// Reads an item, with the side effects that `get` asks for.
    #[inline]
    pub fn get_with(&self, key: &Key<'_>, get: &Get) -> Outcome<Option<Got<'_>>> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.get_with(key, get))
    }

    /// Stores a value.
    #[inline(always)]
    pub fn store(&self, key: &Key<'_>, store: Store<'_>) -> Outcome<Stored> {
        match self.lane(key) {
            Some(lane) => lane.store(key, store),
            None => self.on_its_way(),
        }
    }

    /// Deletes an item, or applies one of meta delete's alternatives.
    #[inline]
    pub fn delete(&self, key: &Key<'_>, delete: &Delete) -> Outcome<Deleted> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.delete(key, delete))
    }

    /// Increments or decrements a decimal number.
    #[inline]
    pub fn arith(&self, key: &Key<'_>, arith: &Arith) -> Outcome<Counted> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.arith(key, arith))
    }

    /// Takes units of a rate limit, all or none.
    #[inline]
    pub fn take(&self, key: &Key<'_>, take: &Take) -> Outcome<Taken> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.take(key, take))
    }

    /// Counts a value that was refused as too large before it arrived.
    pub fn count_too_large(&self) {
        bump(&self.lanes[0].counters.store_too_large, 1);
    }

    /// Removes all items, at once or at the time `at`. A later call replaces an earlier one that is
    /// not due yet. Returns the commits that make the flush durable: at most one per lane. The
    /// caller must not report success before all of them are durable. If one of them fails, its
    /// lane's items are gone nevertheless, but a crash may bring them back until a later commit of
    /// the lane succeeds.
    pub fn flush_all(&self, at: Option<UnixSeconds>) -> Outcome<SmallVec<[CommitPoint; 1]>> {
        let Some(_still) = self.engine.pause_mover(&self.waker) else { return Outcome::NeedsSpace };
        bump(&self.lanes[0].counters.cmd_flush, 1);
        let lanes = || self.lanes.iter().filter(|lane| self.engine.is_used(&lane.lane));
        if lanes().any(LaneSession::refuses_flush) {
            return Outcome::Refused(Refusal::StoreFailed);
        }
        let mut points = SmallVec::new();
        for lane in lanes() {
            match lane.flush_all(at) {
                Ok(point) => points.extend(point),
                Err(_) => return Outcome::Refused(Refusal::StoreFailed),
            }
        }
        Outcome::Ready(points)
    }

    /// Flushes if a delayed flush is due. Returns false if the caller should try again soon.
    fn flush_if_due(&self, now: UnixSeconds) -> bool {
        if !self.lanes.iter().any(|lane| lane.lane.flush_is_due(now)) {
            return true;
        }
        let Some(_still) = self.engine.pause_mover(&self.waker) else { return false };
        let late = self.lanes.iter().filter(|lane| !lane.flush_if_due(now));
        late.count() == 0
    }

    /// Starts to drain the device of this name, or ends its drain if `draining` is false; see
    /// [`Engine::drain`] and [`Engine::keep`]. The call must be repeated until the devices have
    /// recorded the change.
    pub fn drain(&self, name: &str, draining: bool) -> Outcome<Result<(), DrainError>> {
        self.engine.request_drain(name, draining, &self.waker)
    }

    /// Grows a device of the store to `bytes`; see [`Engine::grow`]. The call must be repeated
    /// until the growth has ended.
    pub fn grow(&self, name: Option<&str>, bytes: u64) -> Outcome<Result<(), GrowError>> {
        self.engine.request_grow(name, bytes, &self.waker)
    }

    /// Returns memory for a value of `len` bytes, which the caller fills as the bytes arrive;
    /// `None` if the value is larger than the largest item. The value will probably be stored under
    /// `key`. The caller charges the memory in steps, with [`Session::grow_large`].
    pub fn large_value(&self, key: Option<&Key<'_>>, len: usize) -> Outcome<Option<LargeValue>> {
        let lane = key.and_then(|key| self.lane(key)).unwrap_or(&self.lanes[0]);
        lane.large_value(len)
    }

    /// Charges the memory for the first `filled` bytes of a large value. The caller may fill these
    /// bytes once this function returns `Ready`. All bytes must be charged before the value is
    /// stored.
    pub fn grow_large(&self, large: &mut LargeValue, filled: usize) -> Outcome<()> {
        self.lane_of_large(large).grow_large(large, filled)
    }

    /// Like [`Session::grow_large`], but does nothing if there is no room now: the call does not
    /// wait, and the engine does not count it as refused. Returns true if the bytes may be filled.
    pub fn try_grow_large(&self, large: &mut LargeValue, filled: usize) -> bool {
        self.lane_of_large(large).try_grow_large(large, filled)
    }

    fn lane_of_large(&self, large: &LargeValue) -> &LaneSession {
        let lane = self.lanes.iter().find(|lane| large.is_charged_to(&lane.lane.budget));
        lane.unwrap_or(&self.lanes[0])
    }

    /// Returns the waker that the engine wakes when an unfinished call may be repeated.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns how far the commit of `point` has come.
    #[inline]
    pub fn commit_state(&self, point: CommitPoint) -> CommitState {
        match self.lanes.get(point.lane as usize) {
            Some(lane) => lane.commit_state(point.position),
            None => CommitState::Durable,
        }
    }

    /// Registers the session's waker. It is woken once, at the next change of state of any commit
    /// of the point's lane. Also notes that an answer to a client waits for the commit of `point`.
    /// The session requests this commit when the thread sleeps, or soon after this call if the
    /// thread stays busy.
    #[inline]
    pub fn wake_on_commit(&self, point: CommitPoint) {
        if let Some(lane) = self.lanes.get(point.lane as usize) {
            lane.wake_on_commit(point.position);
        }
    }

    /// Returns the state of a commit. While it is pending, the session's waker is
    /// [woken](Session::wake_on_commit) once the state may have changed.
    pub fn commit_state_or_wake(&self, point: CommitPoint) -> CommitState {
        let state = self.commit_state(point);
        if state != CommitState::Pending {
            return state;
        }
        self.wake_on_commit(point);
        // The commit may have ended before the waker was registered, so its state is read again.
        self.commit_state(point)
    }

    /// Returns how long a thread without work should wait before it [sleeps](Session::sleep);
    /// `None` if it should sleep at once. When a session sleeps, it requests the commit for which
    /// its answers [wait](Session::wake_on_commit). If the thread waits first, this commit covers
    /// more answers. There are three reasons to wait:
    /// - This is the first call in this turn. The duration is then zero, so that the thread looks
    ///   for work once more.
    /// - The last commit released many clients, and most of them have not sent their next request.
    ///   The thread waits for them, at most as long as a busy thread would delay the commit.
    /// - Most of the thread's recent answers waited for no commit, so a client is likely to send a
    ///   request soon. The thread waits a moment for it.
    ///
    /// This call requests the commit of each lane for which no reason holds, even if the thread
    /// waits because of another lane.
    #[inline]
    pub fn lingers(&mut self) -> Option<Duration> {
        self.lanes.iter_mut().fold(None, |longest, lane| lane.lingers().max(longest))
    }

    /// Returns true if a thread that has called [`Session::sleep`] should look for work again
    /// instead of blocking, because an event is due at any moment. There are three such events: a
    /// read ends while many reads are in flight; a commit ends for which answers wait; or a client
    /// whose answer a commit has just released sends its next request. Blocking would delay clients
    /// for two reasons: waking a thread takes as long as a fast sync, and an idle processor
    /// notices the end of a sync later than a busy one.
    #[inline]
    pub fn polls(&mut self) -> bool {
        self.lanes.iter_mut().fold(false, |any, lane| lane.polls() | any)
    }

    /// Makes the session itself read records that are not in memory, instead of the engine's
    /// threads. `event` is an eventfd that wakes the session's thread; each completed read makes it
    /// readable.
    ///
    /// # Errors
    /// If there is no store, or if a lane's device does not support such reads. The engine's
    /// threads keep reading for a lane with such a device.
    pub fn read_through(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.lanes.iter_mut().map(|lane| lane.read_through(event)).fold(Ok(()), io::Result::and)
    }

    /// Returns the reads that this session's calls have requested since the last call of this
    /// function, if any. A call that returned [`NeedsRead`](Outcome::NeedsRead) can succeed once
    /// the session no longer [awaits](Session::awaits) any of these reads. The session keeps the
    /// records that it has read until the caller [releases](Session::release) the reads. A record
    /// whose read the caller does not take stays at least until the next turn.
    #[inline]
    pub fn take_reads(&self) -> Option<Reads> {
        let mut taken = SmallVec::new();
        for (at, lane) in self.lanes.iter().enumerate() {
            taken.extend(lane.take_reads().map(|reads| (at, reads)));
        }
        (!taken.is_empty()).then_some(Reads(taken))
    }

    /// As [`Session::take_reads`], after the caller has repeated a call that waited for the reads
    /// `before`. Releases `before` only then, so that large values that the repeated call still
    /// needs stay requested.
    #[inline]
    pub fn retake_reads(&self, before: Option<Reads>) -> Option<Reads> {
        let next = self.take_reads();
        if let Some(before) = before {
            self.release_before(before, next.as_ref());
        }
        next
    }

    /// Returns true if the records of some of these reads have not arrived.
    pub fn awaits(&self, reads: &mut Reads) -> bool {
        reads.0.iter_mut().any(|(at, reads)| self.lanes[*at].awaits(reads))
    }

    /// Releases reads whose records the caller no longer needs.
    pub fn release(&self, reads: Reads) {
        self.release_before(reads, None);
    }

    fn release_before(&self, reads: Reads, next: Option<&Reads>) {
        for (at, reads) in reads.0 {
            let next = next.and_then(|next| next.0.iter().find(|(lane, _)| *lane == at));
            self.lanes[at].release(reads, next.map(|(_, reads)| reads));
        }
    }
}

impl Engine {
    /// Opens a session for the calling thread. The engine wakes `waker` (from any thread) when an
    /// unfinished call may be repeated, or when the state of an [awaited](Session::wake_on_commit)
    /// commit changes.
    pub fn session(self: &Arc<Self>, waker: Waker) -> Session {
        Session::new(Arc::clone(self), waker)
    }
}
