//! A session: one thread's way into the engine, with its counters, its clock and its part in the
//! quiescent period.

use crate::engine::Engine;
use crate::index::slot::{MAX_FREQUENCY, Slot};
use crate::item::{Item, ItemHandle};
use crate::key::Key;
use crate::large::LargeValue;
use crate::stats::{Counters, bump};
use crate::write::NotWritten;
use crate::{CommitPoint, CommitState, Outcome, Refusal, UnixSeconds, WhenFull};
use larder_log::sync::atomic::{AtomicU64, Ordering};
use larder_log::{Participant, Record, State};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;

/// One thread's way into the engine: `Send`, but not `Sync`.
pub struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) counters: Arc<Counters>,
    participant: Participant,
    waker: Waker,
    now: UnixSeconds,
    /// Calls hand out what `tick` ends, so a session stays with one thread at a time.
    _not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, counters: Arc<Counters>, waker: Waker) -> Self {
        let mut participant = engine.epochs.join();
        participant.tick();
        let now = engine.now.load(Ordering::Relaxed);
        Session { engine, counters, participant, waker, now, _not_sync: PhantomData }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Once per turn of the thread's loop: no item of an earlier turn is used any more, and this is
    /// the time.
    #[inline]
    pub fn tick(&mut self, now: UnixSeconds) {
        self.participant.tick();
        if now != self.now {
            self.new_second(now);
        }
    }

    #[cold]
    fn new_second(&mut self, now: UnixSeconds) {
        self.now = now;
        if self.engine.advance_clock(now) {
            self.engine.kick_cleaner();
        }
        self.engine.flush_if_due(now);
    }

    /// The thread is about to block in the kernel: it holds no items. The next `tick` ends this.
    #[inline]
    pub fn sleep(&mut self) {
        self.participant.sleep();
    }

    /// The time of the last tick.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.now
    }

    /// Hashes a key of 1 to 250 bytes.
    #[inline]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        debug_assert!((1..=larder_log::record::MAX_KEY).contains(&bytes.len()));
        Key::new(bytes, self.engine.options.hash_seed)
    }

    /// First stage of a batch: brings the key's buckets into the processor's cache.
    #[inline]
    pub fn prefetch_buckets(&self, key: &Key<'_>) {
        // SAFETY: a session is awake between `tick` and `sleep`, when its calls are made.
        unsafe { self.engine.index.prefetch(key) };
    }

    /// Second stage of a batch: brings the key's record into the processor's cache, and notes in the
    /// key where it was found.
    #[inline]
    pub fn prefetch_record(&self, key: &mut Key<'_>) {
        // SAFETY: as above; only an address is used.
        if let Some(address) = unsafe { self.engine.index.guess(key) } {
            self.engine.log.prefetch(address);
        }
    }

    /// The key's record as readers see it: expired or not.
    #[inline]
    pub(crate) fn find(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot, Record<'_>)> {
        // SAFETY: a session is awake while its calls are made; the record's lifetime is that of the
        // borrow of `self`, which `tick` ends.
        unsafe { self.engine.index.find(key, |slot| self.matching(key, slot)) }
    }

    /// The slot's record if it is this key's.
    ///
    /// # Safety
    /// The slot was read since the last tick.
    #[inline]
    pub(crate) unsafe fn matching(&self, key: &Key<'_>, slot: Slot) -> Option<Record<'_>> {
        // SAFETY: by the caller's promise.
        let record = unsafe { self.engine.log.record(slot.address()) }?;
        same_bytes(record.key(), key.bytes()).then_some(record)
    }

    #[inline]
    pub(crate) fn item<'a>(&'a self, slot: Slot, record: Record<'a>) -> Item<'a> {
        Item::new(record, slot, &self.engine.log)
    }

    /// Counts a read in the slot. A lost race loses one count.
    #[inline]
    pub(crate) fn bump_frequency(place: &AtomicU64, slot: Slot) {
        if slot.frequency() < MAX_FREQUENCY {
            let bumped = slot.with_frequency(slot.frequency() + 1);
            let _ = place.compare_exchange(slot.0, bumped.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Finds the version that `handle` names, or `None` when its memory is being reclaimed.
    pub fn reopen(&self, handle: ItemHandle) -> Option<Item<'_>> {
        let segment = self.engine.log.segment(handle.address.segment());
        let reusable = |state| matches!(state, State::Free | State::Quarantine);
        if reusable(segment.state()) || segment.generation() != handle.generation {
            return None;
        }
        // SAFETY: the segment was not in quarantine after this session's last tick, so its frame
        // is reused only after the next one; the generation says that it is still the same use.
        let record = unsafe { self.engine.log.record(handle.address) }?;
        Some(self.item(Slot::new(0, 0, handle.address), record))
    }

    /// Memory for a value of `len` bytes that is filled as it arrives; `None` when it is larger than
    /// the largest item.
    pub fn large_value(&self, len: usize) -> Outcome<Option<LargeValue>> {
        if len as u64 > self.engine.options.max_item_size {
            return Outcome::Ready(None);
        }
        match self.engine.map_large(len) {
            Some(large) => Outcome::Ready(Some(large)),
            None => self.no_space(),
        }
    }

    /// Whether what was answered with `point` is durable.
    #[inline]
    pub fn commit_state(&self, point: CommitPoint) -> CommitState {
        // Without a store nothing is promised, and no answer waits.
        let _ = point;
        CommitState::Durable
    }

    /// Has the session's waker woken once, when the next commit has ended.
    #[inline]
    pub fn wake_on_commit(&self) {}

    /// What a call answers that wrote nothing.
    pub(crate) fn not_written<T>(&self, why: NotWritten) -> Outcome<T> {
        match why {
            NotWritten::NoSpace => self.no_space(),
            // No room can be made for these by waiting.
            NotWritten::TooLarge | NotWritten::OutOfMemory => {
                bump(&self.counters.store_no_memory, 1);
                Outcome::Refused(Refusal::OutOfMemory)
            }
        }
    }

    /// What a call answers that found no space: wait for the cleaner, or that there is none.
    fn no_space<T>(&self) -> Outcome<T> {
        if self.engine.full.load(Ordering::Relaxed) {
            if self.engine.options.when_full == WhenFull::Evict {
                self.engine.kick_cleaner();
            }
            bump(&self.counters.store_no_memory, 1);
            self.engine.budget.unwant();
            return Outcome::Refused(Refusal::OutOfMemory);
        }
        self.engine.wait_for_space(&self.waker);
        Outcome::NeedsSpace
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

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.end_counters(&self.counters);
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
