//! Walks over the records of a segment. Moves, removes or keeps each live record under its stripe's
//! lock.

use crate::cleaner::state::{Cleaner, Fate, Task};
use crate::durability::Change;
use crate::index::SlotPlace;
use crate::index::slot::Slot;
use crate::key::Key;
use crate::lane::Lane;
use crate::limit::expiry::is_unused;
use crate::lock::lock;
use crate::stats::bump;
use crate::{NANOS, UnixSeconds};
use larder_log::record::{HEADER, Kind};
use larder_log::{Address, Appended, Claim, Layout, Record, SegmentNumber, Stream, Tier};
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

/// Number of reads that promote an item from probation to the survivors. With a store each move is
/// one more write to the device, so the threshold is higher.
const PROMOTE_AT: u8 = 1;
const PROMOTE_AT_WITH_STORE: u8 = 2;
/// Number of records whose buckets are prefetched together.
pub(crate) const BATCH: usize = 32;

/// The error for a segment that must not be freed, because it has live records that cannot be read.
/// Occurs only if [`Lane::may_lose_nothing`] is true; otherwise such records are evicted.
#[derive(Debug)]
struct MustStay;

impl std::error::Error for MustStay {}

impl fmt::Display for MustStay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it holds unreadable records that must not be lost")
    }
}

/// Returns true if a walk failed with [`MustStay`].
pub(super) fn must_stay(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<MustStay>())
}

/// What a walk found or did for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decided {
    /// The record was dead already.
    Dead,
    /// The record was alive. It was moved, or removed, or stays in its segment.
    Done,
    /// The record should have moved, but there was no space.
    NoSpace,
}

impl Cleaner {
    /// Moves, removes or keeps every live record of a segment, as `task` says. Returns the bytes of
    /// the live records, or `None` if a record could not be moved. Adds to `ends` the offsets of
    /// records that were removed and that no newer version hides.
    ///
    /// # Errors
    /// If the segment cannot be read, or [`MustStay`].
    pub(super) fn walk(
        &mut self,
        lane: &Lane,
        task: Task,
        number: SegmentNumber,
        ends: &mut Vec<u32>,
    ) -> io::Result<Option<u64>> {
        let loaded = lane.log.load_if_absent(number)?;
        let whole = loaded.is_none() || !lane.log.segment(number).is_jumbo();
        let task = Task { whole, ..task };
        self.participant.tick();
        let mut earliest = 0;
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments.
        let records = unsafe { lane.log.records(number, image) };
        let mut items = records.filter(|(_, record)| record.kind().is_item());
        let mut batch = Vec::with_capacity(BATCH);
        let (mut complete, mut alive_bytes) = (true, 0);
        // SAFETY: the cleaner is awake in the epochs.
        while complete && unsafe { next_batch(lane, &mut items, &mut batch) } {
            for (address, record, key) in &batch {
                // Most records of a segment are dead, and a look-up without the lock shows that. An
                // undo may later make a slot lead to a dead record again, before or after the walk
                // has passed the record. `quarantine` detects both cases.
                // SAFETY: the cleaner is awake in the epochs.
                if unsafe { lane.index.find(key, at(*address)) }.is_some() {
                    match self.decide(lane, task, *address, *record, key, ends) {
                        Decided::Dead => {}
                        Decided::Done => alive_bytes += record.size() as u64,
                        Decided::NoSpace => complete = false,
                    }
                }
                let expiry = record.expiry();
                if expiry > self.swept && (earliest == 0 || expiry < earliest) {
                    earliest = expiry;
                }
            }
        }
        drop((batch, items));
        if task.fate == Fate::Sweep {
            lane.log.segment(number).set_min_expiry(earliest);
            lane.log.note_changed(number);
        }
        self.participant.sleep();
        if complete && loaded.as_ref().is_some_and(|loaded| loaded.damaged) {
            self.give_up(lane, number, ends)?;
        }
        if let Some(loaded) = loaded {
            lane.log.reuse(loaded);
        }
        Ok(complete.then_some(alive_bytes))
    }

    /// Handles unreadable records that the index still leads to after a walk. If
    /// [`Lane::may_lose_nothing`] is true, the segment stays, and readers of these items get an
    /// error. Otherwise the items are gone, as if they were evicted, and count as unreadable.
    fn give_up(
        &mut self,
        lane: &Lane,
        number: SegmentNumber,
        ends: &mut Vec<u32>,
    ) -> io::Result<()> {
        if lane.may_lose_nothing() {
            if lane.offsets_in(number).is_empty() {
                return Ok(());
            }
            return Err(io::Error::other(MustStay));
        }
        ends.extend(self.take_unreadable(lane, number, |slot| slot.address().segment() == number));
        Ok(())
    }

    /// Removes the slots that `takes` selects; they lead to unreadable records of the segment
    /// `number`. Returns the offsets of these records.
    pub(crate) fn take_unreadable(
        &self,
        lane: &Lane,
        number: SegmentNumber,
        takes: impl Fn(Slot) -> bool,
    ) -> Vec<u32> {
        let mut offsets = Vec::new();
        for stripe in 0..lane.index.stripe_count() {
            lane.index.take_slots(stripe, &takes, |slot| {
                lane.forget_older(slot);
                lane.log.note_death(number);
                offsets.push(slot.address().offset() as u32);
                bump(&self.counters.unreadable, 1);
            });
        }
        offsets
    }

    /// Moves, removes or keeps one record, unless the record is dead by now.
    fn decide(
        &mut self,
        lane: &Lane,
        Task { stream, fate, whole }: Task,
        address: Address,
        record: Record<'_>,
        key: &Key<'_>,
        ends: &mut Vec<u32>,
    ) -> Decided {
        let guard = lane.index.lock(key);
        let Some((place, slot, ())) = guard.find(key, at(address)) else { return Decided::Dead };
        if slot.is_older() && !lane.resolve_older(&guard, key, place, record.size()) {
            return Decided::Dead;
        }
        let slot = slot.with_older(false);
        let mut remove = |place: SlotPlace<'_>| {
            guard.remove(place, true);
            lane.kill(address.segment(), record.size());
            if lane.has_store() {
                ends.push(address.offset() as u32);
                let tombstone = Layout { header: HEADER, key: key.bytes().len(), value: 0 };
                lane.log.count_end(address.segment(), tombstone.size());
            }
        };
        let now = lane.now.load(Ordering::Relaxed);
        if expired(record, now) || is_unused(&record, u64::from(now) * NANOS) {
            remove(place);
            bump(&self.counters.expired, 1);
            if slot.frequency() == 0 {
                bump(&self.counters.expired_unfetched, 1);
            }
            return Decided::Done;
        }
        let (to, frequency) = match fate {
            Fate::Sweep => return Decided::Done,
            // Records on the lower device stay on that device, which has the survivors' new
            // segments.
            Fate::Keep if lane.log.tier(address.segment()) == Tier::Lower => {
                (Stream::Survivors, slot.frequency())
            }
            Fate::Keep => (stream, slot.frequency()),
            Fate::Cool if stream == Stream::Hot && keeps(lane, slot, stream) => {
                match self.may_stay.checked_sub(record.size()) {
                    Some(left) => {
                        self.may_stay = left;
                        (stream, slot.frequency() - 1)
                    }
                    None => (Stream::Survivors, slot.frequency()),
                }
            }
            Fate::Cool => (Stream::Survivors, slot.frequency()),
            // A jumbo that is not in memory cannot be copied, so it is evicted.
            Fate::Evict => {
                let limiter = self.limiters.keeps(&record, lane.budget.limit());
                if !whole || !limiter && !keeps(lane, slot, stream) {
                    self.evict(lane, stream, slot, &record, key);
                    remove(place);
                    return Decided::Done;
                }
                (Stream::Survivors, frequency_after(slot, stream))
            }
        };
        let Some(appending) = lane.append(&self.participant) else { return Decided::NoSpace };
        match copy(lane, record, to) {
            Some(copied) => {
                if let Some(changes) = &self.changes {
                    let change = Change {
                        address: copied,
                        before: slot,
                        before_size: record.size() as u32,
                        before_is_item: true,
                        is_tombstone: false,
                    };
                    lock(changes).push(change);
                }
                guard.replace(place, Slot::new(key.tag(), frequency, copied), 0);
                lane.kill(address.segment(), record.size());
                bump(&self.counters.moved_items, 1);
                bump(&self.counters.moved_bytes, record.size() as u64);
                Decided::Done
            }
            None if fate == Fate::Evict => {
                drop(appending);
                self.evict(lane, stream, slot, &record, key);
                remove(place);
                Decided::Done
            }
            None => Decided::NoSpace,
        }
    }

    fn evict(
        &mut self,
        lane: &Lane,
        stream: Stream,
        slot: Slot,
        record: &Record<'_>,
        key: &Key<'_>,
    ) {
        self.limiters.evicted(record);
        bump(&self.counters.evictions, 1);
        if record.kind() == Kind::Limiter {
            bump(&self.counters.evicted_limiters, 1);
        }
        if slot.frequency() == 0 && stream == Stream::Hot {
            bump(&self.counters.evicted_unfetched, 1);
        }
        if stream == Stream::Hot {
            lane.evicts.store(true, Ordering::Relaxed);
            lane.ghost.remember(key);
        }
    }
}

/// Fills `batch` with the next items and their keys, and prefetches their buckets. Returns false if
/// no items are left.
///
/// # Safety
/// The calling thread must be awake in the epochs.
pub(crate) unsafe fn next_batch<'a>(
    lane: &Lane,
    items: &mut impl Iterator<Item = Appended<'a>>,
    batch: &mut Vec<(Address, Record<'a>, Key<'a>)>,
) -> bool {
    batch.clear();
    for (address, record) in items.take(BATCH) {
        let key = Key::new(record.key(), lane.options.hash_seed);
        // SAFETY: by the caller's promise the thread is awake in the epochs.
        unsafe { lane.index.prefetch(&key) };
        batch.push((address, record, key));
    }
    !batch.is_empty()
}

/// Returns a matcher that accepts only the slot that leads to this address.
pub(crate) fn at(address: Address) -> impl FnMut(Slot) -> Option<()> {
    move |slot| (slot.address() == address).then_some(())
}

pub(super) fn expired(record: Record<'_>, now: UnixSeconds) -> bool {
    record.expiry() != 0 && record.expiry() <= now
}

/// Returns true if S3-FIFO keeps an item at the end of its queue.
pub(super) fn keeps(lane: &Lane, slot: Slot, stream: Stream) -> bool {
    match stream {
        Stream::Hot if lane.has_store() => slot.frequency() >= PROMOTE_AT_WITH_STORE,
        Stream::Hot => slot.frequency() >= PROMOTE_AT,
        Stream::Survivors => slot.frequency() > 0,
    }
}

/// Returns the new frequency of a kept item. Promoted items start again at 0.
pub(super) fn frequency_after(slot: Slot, stream: Stream) -> u8 {
    match stream {
        Stream::Hot => 0,
        Stream::Survivors => slot.frequency().saturating_sub(1),
    }
}

/// Copies a record, including its seq, to the end of a stream. The caller holds the stripe's lock.
fn copy(lane: &Lane, record: Record<'_>, to: Stream) -> Option<Address> {
    let size = record.size();
    if size > lane.log.largest_record() {
        return None;
    }
    let now = lane.now.load(Ordering::Relaxed);
    let reserved = lane.log.reserve(to, size, now, Claim::Clean)?;
    larder_log::sync::writes(reserved.memory);
    // SAFETY: the reservation is `size` bytes that only this thread uses, and the record is that
    // long.
    unsafe { reserved.memory.copy_from_nonoverlapping(record.pointer(), size) };
    if let Some(store) = lane.log.store() {
        let value_hash = store.value_hash(record.value(), &[]);
        // SAFETY: the copy is complete, and no thread reads it before its slot is published.
        unsafe {
            let (address, layout) = (reserved.address, record.layout());
            lane.log.seal_record(address, reserved.memory, &layout, value_hash);
        }
    }
    lane.log.segment(reserved.address.segment()).note_expiry(record.expiry());
    Some(reserved.address)
}
