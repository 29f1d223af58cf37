//! A session: one thread's way into the engine. It has a session of every lane, and asks the one that
//! a key belongs to.

use crate::engine::Engine;
use crate::engine::drains::DrainError;
use crate::engine::growths::GrowError;
use crate::lane::session::LaneSession;
use crate::reads::LaneReads;
use crate::stats::bump;
use crate::{
    Arith, CommitPoint, CommitState, Counted, Delete, Deleted, Get, Got, Item, Key, LargeValue,
    Outcome, Refusal, Store, Stored, UnixSeconds,
};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// One thread's way into the engine: `Send`, but not `Sync`.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lanes: Box<[LaneSession]>,
    pub(crate) waker: Waker,
    /// A delayed flush is due that had to wait.
    flush_waits: bool,
}

/// What calls wait for. To be [given back](Session::release).
#[derive(Debug)]
#[must_use = "what is not given back is kept for ever"]
pub struct Reads(SmallVec<[(usize, LaneReads); 1]>);

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, waker: Waker) -> Self {
        let lanes = engine.lanes.iter().map(|lane| lane.session(waker.clone())).collect();
        Session { engine, lanes, waker, flush_waits: false }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Once per turn of the thread's loop: no item of an earlier turn is used any more, and this is
    /// the time.
    #[inline]
    pub fn tick(&mut self, now: UnixSeconds) {
        let before = self.now();
        self.lanes.iter_mut().for_each(|lane| lane.tick(now));
        if now != before || self.flush_waits {
            self.flush_waits = !self.flush_if_due(now);
        }
    }

    /// The thread is about to block in the kernel: it holds no items. The next `tick` ends this.
    #[inline]
    pub fn sleep(&mut self) {
        self.lanes.iter_mut().for_each(LaneSession::sleep);
    }

    /// The time of the last tick.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.lanes[0].now()
    }

    /// Hashes a key of 1 to 250 bytes.
    #[inline]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        self.lanes[0].key(bytes)
    }

    /// The lane that the key belongs to; `None` while it is on its way from one to another.
    #[inline]
    fn lane(&self, key: &Key<'_>) -> Option<&LaneSession> {
        match &*self.lanes {
            [only] if self.engine.partitions.are_settled() => Some(only),
            lanes => lanes.get(self.engine.partitions.lane_of(key)),
        }
    }

    /// What a call answers whose key is on its way from one lane to another: it is repeated when the
    /// key has arrived, unless that takes a device that fails.
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

    /// Second stage of a batch: brings the key's record into the processor's cache, and notes in the
    /// key where it was found.
    #[inline]
    pub fn prefetch_record(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.prefetch_record(key);
        }
    }

    /// As [`Session::prefetch_record`], for a key that is asked for in this call: what is not in memory is
    /// read for the whole batch at once.
    #[inline]
    pub fn fetch_record(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.fetch_record(key);
        }
    }

    /// As [`Session::fetch_record`], for a key that is set whatever it had before.
    #[inline]
    pub fn fetch_overwritten(&self, key: &mut Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.fetch_overwritten(key);
        }
    }

    /// Shortly before a write of the key: has other processors give up its stripe's lock. Too early, and they
    /// take it back.
    #[inline]
    pub fn prefetch_lock(&self, key: &Key<'_>) {
        if let Some(lane) = self.lane(key) {
            lane.prefetch_lock(key);
        }
    }

    /// The key's item. Counts as a use of it.
    #[inline(always)]
    pub fn get(&self, key: &Key<'_>) -> Outcome<Option<Item<'_>>> {
        match self.lane(key) {
            Some(lane) => lane.get(key),
            None => self.on_its_way(),
        }
    }

    /// A read with side effects.
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

    /// Deletes an item, or does one of the things that meta delete does instead.
    #[inline]
    pub fn delete(&self, key: &Key<'_>, delete: &Delete) -> Outcome<Deleted> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.delete(key, delete))
    }

    /// Increments or decrements a decimal number.
    #[inline]
    pub fn arith(&self, key: &Key<'_>, arith: &Arith) -> Outcome<Counted> {
        self.lane(key).map_or_else(|| self.on_its_way(), |lane| lane.arith(key, arith))
    }

    /// Counts a value that was refused as too large before it had arrived.
    pub fn count_too_large(&self) {
        bump(&self.lanes[0].counters.store_too_large, 1);
    }

    /// Forgets every item written before now, or at `at` every item written before then. A later
    /// call replaces an earlier one that is not due yet. That it was done must not be said before all of
    /// the answer's points are durable. If one of them fails, the items are gone all the same, and a
    /// crash may bring them back before a later commit of the lane succeeds.
    pub fn flush_all(&self, at: Option<UnixSeconds>) -> Outcome<SmallVec<[CommitPoint; 1]>> {
        let Some(_still) = self.engine.hold_still(&self.waker) else { return Outcome::NeedsSpace };
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

    /// Flushes if a delayed flush is due; false if it is to be tried again before long.
    fn flush_if_due(&self, now: UnixSeconds) -> bool {
        if !self.lanes.iter().any(|lane| lane.lane.flush_is_due(now)) {
            return true;
        }
        let Some(_still) = self.engine.hold_still(&self.waker) else { return false };
        let late = self.lanes.iter().filter(|lane| !lane.flush_if_due(now));
        late.count() == 0
    }

    /// Begins to empty the device of this name, or, unless `draining`, takes that back; see
    /// [`Engine::drain`] and [`Engine::keep`]. It waits for the devices until the engine has written
    /// that down.
    pub fn drain(&self, name: &str, draining: bool) -> Outcome<Result<(), DrainError>> {
        self.engine.request_drain(name, draining, &self.waker)
    }

    /// Grows a device of the store to `bytes`; see [`Engine::grow`]. It waits until that has ended.
    pub fn grow(&self, name: Option<&str>, bytes: u64) -> Outcome<Result<(), GrowError>> {
        self.engine.request_grow(name, bytes, &self.waker)
    }

    /// Memory for a value of `len` bytes that is filled as it arrives; `None` when it is larger than the
    /// largest item. `key` says where it will probably go. It costs memory as it
    /// [grows](Session::grow_large).
    pub fn large_value(&self, key: Option<&Key<'_>>, len: usize) -> Outcome<Option<LargeValue>> {
        let lane = key.and_then(|key| self.lane(key)).unwrap_or(&self.lanes[0]);
        lane.large_value(len)
    }

    /// Charges the memory for the first `filled` bytes of a large value. They may be filled when the
    /// answer is `Ready`; all of them must be charged before the value is stored.
    pub fn grow_large(&self, large: &mut LargeValue, filled: usize) -> Outcome<()> {
        let lane = self.lanes.iter().find(|lane| large.is_charged_to(&lane.lane.budget));
        lane.unwrap_or(&self.lanes[0]).grow_large(large, filled)
    }

    /// What is woken when a call that had to wait may be repeated.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether what was answered with `point` is durable.
    #[inline]
    pub fn commit_state(&self, point: CommitPoint) -> CommitState {
        match self.lanes.get(point.lane as usize) {
            Some(lane) => lane.commit_state(point.position),
            None => CommitState::Durable,
        }
    }

    /// Has the session's waker woken once, when the state of some commit of this lane has changed; and
    /// has what `point` waits for committed: when the thread sleeps, or before long if it does not.
    #[inline]
    pub fn wake_on_commit(&self, point: CommitPoint) {
        if let Some(lane) = self.lanes.get(point.lane as usize) {
            lane.wake_on_commit(point.position);
        }
    }

    /// Whether, and for how long, a thread without work should wait for some before it
    /// [sleeps](Session::sleep), which asks for the commit that was [wanted](Session::wake_on_commit): it
    /// should look once more (no time), and, for as long as a busy thread would put the commit off, wait
    /// while most of the many clients that the last commit has set free are still to come; while most clients
    /// wait for no commit, it should wait for one of them, for a moment. A lane that has nothing to wait
    /// for has its commit begun here, whatever the others wait for.
    #[inline]
    pub fn lingers(&mut self) -> Option<Duration> {
        self.lanes.iter_mut().fold(None, |longest, lane| lane.lingers().max(longest))
    }

    /// Whether a thread that was told to [sleep](Session::sleep) should look for work again instead of
    /// blocking, because something is expected at any moment: the next of many reads, the commit that answers
    /// wait for, or afterwards the next request of who got them. Waking a thread takes as long as a fast sync, and a
    /// processor that has fallen asleep hears later of a sync's end: clients wait for both.
    #[inline]
    pub fn polls(&mut self) -> bool {
        self.lanes.iter_mut().fold(false, |any, lane| lane.polls() | any)
    }

    /// Has the session read what is not in memory by itself, and not by the engine's threads.
    /// `event` is an eventfd that ends the thread's sleep; each read that ends makes it readable.
    ///
    /// # Errors
    /// There is no store, or no way to do so here for some lane; then the engine's threads go on reading
    /// for that one.
    pub fn read_through(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.lanes.iter_mut().map(|lane| lane.read_through(event)).fold(Ok(()), io::Result::and)
    }

    /// What calls had to wait for since the last time, if anything: one that answered
    /// [`NeedsRead`](Outcome::NeedsRead) may be repeated with success when it
    /// [awaits](Session::awaits) none of it any more. What was read is kept until it is
    /// [released](Session::release); what nobody takes, until the next turn at least.
    #[inline]
    pub fn take_reads(&self) -> Option<Reads> {
        let mut taken = SmallVec::new();
        for (at, lane) in self.lanes.iter().enumerate() {
            taken.extend(lane.take_reads().map(|reads| (at, reads)));
        }
        (!taken.is_empty()).then_some(Reads(taken))
    }

    /// Whether some of these records have not arrived.
    pub fn awaits(&self, reads: &mut Reads) -> bool {
        reads.0.iter_mut().any(|(at, reads)| self.lanes[*at].awaits(reads))
    }

    /// These records are not waited for any more.
    pub fn release(&self, reads: Reads) {
        reads.0.into_iter().for_each(|(at, reads)| self.lanes[at].release(reads));
    }
}

impl Engine {
    /// A session for the calling thread. `waker` is woken (from any thread) when a call that
    /// answered [`NeedsSpace`](crate::Outcome::NeedsSpace) may be repeated.
    pub fn session(self: &Arc<Self>, waker: Waker) -> Session {
        Session::new(Arc::clone(self), waker)
    }
}
