//! Older slots let a set replace an item without reading its old record, which may be only on the
//! device.
//!
//! The set cannot know whether the record behind a slot with the key's tag is the key's own. For a
//! set of a new key, it is sometimes another key's: once in 4000 such sets if a stripe has 4000
//! items, and more often if it has more. So the new version gets its own slot, and the old slot
//! stays, marked as *older*. The lane remembers 44 bits of the hash of the key that was set, beyond
//! the key's position. The cleaner, a later write, a scan, a sample or the mover compares them with
//! the old record's key, which *resolves* the slot. If the bits agree, the record died when the set
//! was made. If they differ, the record is another key's, and its slot becomes a normal one. A
//! record is wrongly lost only if two keys have the same position and agree in 44 further bits.
//!
//! Until a slot is resolved
//! - a look-up of any key may find the record through the older slot. The exception is the key that
//!   was set over it, even when the newer version of that key is gone;
//! - a set of another key with the same position reads the records before it writes. So all older
//!   slots of one position were made by sets of the same key;
//! - the record counts as alive, so its segment is not freed without a walk over it;
//! - the log has noted a death in the record's segment. But the segment gets no dead map, so the
//!   ends that hide the record are not freed.
//!
//! The cleaner resolves older slots when it walks their segment, before it makes a dead map of the
//! segment, when there are many, and when nothing else can be freed. It uses the segment's summary
//! if there is one. Otherwise it reads the records.

mod slots;

pub(crate) use slots::{OlderSlotWork, OlderSlots};

use slots::{BYTES, entry};

use crate::UnixSeconds;
use crate::cleaner::Cleaner;
use crate::cleaner::walk::at;
use crate::index::slot::Slot;
use crate::index::{Guard, SlotPlace};
use crate::key::Key;
use crate::lane::{DurableLane, Lane};
use larder_log::{Address, Record, Rule, SegmentNumber, Tier};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// Older slots take at most 1/`MEMORY_SHARE` of the lane's memory.
const MEMORY_SHARE: u64 = 16;
/// Older slots also take at most 1/`DATA_SHARE` of the bytes that the items occupy on the device.
const DATA_SHARE: u64 = 64;
/// While the index's tables fill at least this percentage of their limit, sets read the old record
/// and no older slots are added.
const INDEX_PERCENT: u64 = 94;
/// The largest number of records of a segment that the cleaner reads one by one if the summary does
/// not resolve their slots. For more records, the cleaner reads the whole segment.
const FEW: usize = 8;
/// If nothing else can be freed, the cleaner resolves the older slots that lead to one segment. If
/// it can resolve none of them, it tries another segment, up to this many segments per turn.
const SEGMENTS_PER_TURN: usize = 4;
/// The number of records after which the cleaner passes a quiescent point, so that memory can be
/// reclaimed.
const BATCH: usize = 64;
/// Interval between attempts to read the unreadable records of older slots, in seconds.
const RETRY: UnixSeconds = 60;
/// The limit of older slots is recomputed every second, or after this many turns of the cleaner if
/// that is sooner.
const TURNS: u32 = 256;

impl Lane {
    /// Publishes `slot`, which leads to a new record of `size` bytes, in `place`, and marks `old`
    /// as older. The record of `old` was not read.
    pub(crate) fn fill_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: SlotPlace<'_>,
        slot: Slot,
        old: SlotPlace<'_>,
        size: usize,
    ) {
        let address = old.slot().address();
        // `insert` comes before `note_death`. So when the cleaner begins a dead map that includes
        // this death, it finds the older slot and lets the map wait.
        let size = self.log.likely_size(address.segment(), size) as u32;
        self.older.insert(&self.log, address.segment(), entry(address, key), size);
        self.log.note_death(address.segment());
        guard.fill_over(place, slot, old);
    }

    /// Resolves an older slot once the key of its record is known. Returns true if the record is
    /// current; its slot becomes a normal one. Otherwise the record died when the newer version was
    /// set, and its slot is removed.
    pub(crate) fn resolve_older(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        old: SlotPlace<'_>,
        size: usize,
    ) -> bool {
        let address = old.slot().address();
        let dead =
            self.older.is_set_over(address, key) != Some(false) || Rule::OlderIsProved.is_broken();
        if dead {
            if self.is_sync() {
                self.older.note_found_dead(address, size, self.open_commit());
            }
            guard.remove(old, false);
            self.kill(address.segment(), size);
            self.log.note_changed(address.segment());
        } else {
            guard.set_current(old);
        }
        self.older.forget(&self.log, address);
        !dead
    }

    /// Reverts [`Lane::fill_over`] when the newer version at `place` is undone. Returns false if
    /// the older slot is no longer in the index.
    pub(crate) fn take_back_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: SlotPlace<'_>,
        was_item: bool,
        before: Address,
    ) -> bool {
        let Some((old, slot, ())) = guard.find(key, at(before)) else { return false };
        if slot.is_older() {
            guard.take_back(place, old, was_item);
            self.older.forget(&self.log, before);
        } else {
            // The slot was resolved meanwhile, because its record turned out to be another key's.
            guard.remove(place, was_item);
        }
        true
    }

    /// Forgets a slot that is removed from the index, if it is an older one. Also works if its
    /// record is unreadable, because it does not read the record.
    pub(crate) fn forget_older(&self, slot: Slot) {
        if slot.is_older() {
            self.older.forget(&self.log, slot.address());
        }
    }

    /// Recomputes the limit of older slots.
    pub(crate) fn limit_older(&self) {
        let (items, older) = (self.index.items(), self.older.count() as u64);
        let data: u64 = [Tier::Fast, Tier::Lower].map(|tier| self.tier_bytes(tier).1).iter().sum();
        let of_items =
            (u128::from(data) * u128::from(items) / u128::from((items + older).max(1))) as u64;
        let bytes = (of_items / DATA_SHARE).min(self.budget.limit() / MEMORY_SHARE);
        // If the lane may lose nothing, an unreadable record of an older slot prevents the cleaner
        // from dropping tombstones. So no older slots are added while there are such records.
        let waits = self.may_lose_nothing() && self.older.skipped() > 0;
        let most = if waits || self.index.fills(INDEX_PERCENT) { 0 } else { bytes / BYTES };
        self.older.most.store(most as usize, Ordering::Relaxed);
    }

    /// Returns true if the index leads to the record of `size` bytes at `address` with this key.
    /// Resolves an older slot first.
    pub(crate) fn resolve_older_at(&self, address: Address, key: &Key<'_>, size: usize) -> bool {
        let guard = self.index.lock(key);
        match guard.find(key, at(address)) {
            Some((place, slot, ())) => {
                !slot.is_older() || self.resolve_older(&guard, key, place, size)
            }
            None => {
                // No slot that a look-up of the key can find leads to the record.
                self.older.forget(&self.log, address);
                false
            }
        }
    }
}

impl Cleaner {
    /// Resolves the older slots of one segment if there is a reason: the lane has many older slots,
    /// or a dead map of the segment waits until they are resolved. Returns true if there may be
    /// more to do.
    pub(crate) fn resolve_many(&mut self, lane: DurableLane<'_>) -> bool {
        self.limit_older(&lane);
        let (count, most) = (lane.older.count(), lane.older.most.load(Ordering::Relaxed));
        if self.settling.waiting.is_empty() && count > most / 2 {
            self.settling.waiting.extend(lane.older.longest());
        }
        let Some(number) = self.settling.waiting.pop_first() else { return false };
        self.resolve_segment(lane, number);
        if self.settling.waiting.is_empty() && std::mem::take(&mut self.settling.is_awaited) {
            // After a commit, the cleaner tries again to make the dead maps that waited for these
            // segments.
            lane.want_commit();
        }
        true
    }

    fn limit_older(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        let (found, turns) = self.settling.limited;
        let is_due = found != now || turns == TURNS;
        self.settling.limited = (now, if is_due { 1 } else { turns + 1 });
        if !is_due {
            return;
        }
        // The limit is computed before `retry` readmits the skipped segments, because it depends on
        // their number. They may still be unreadable, and then the cleaner skips them again.
        lane.limit_older();
        if found / RETRY != now / RETRY {
            self.settling.waiting.extend(lane.older.retry());
            lane.older.open_all();
        }
        if found != now {
            self.retry_ends(lane);
        }
    }

    /// Resolves some older slots. Called when nothing else can be freed: the records of these slots
    /// may be dead. Returns false if it could resolve none of them.
    pub(super) fn resolve_any(&mut self, lane: &Lane) -> bool {
        let Some(lane) = lane.durable() else { return false };
        (0..SEGMENTS_PER_TURN).any(|_| {
            lane.older.longest().is_some_and(|number| self.resolve_segment(lane, number) > 0)
        })
    }

    /// Resolves the older slots that lead into a segment, and returns how many it resolved. If some
    /// of their records are unreadable but must not be lost, later turns skip the segment.
    fn resolve_segment(&mut self, lane: DurableLane<'_>, number: SegmentNumber) -> usize {
        let mut left = lane.older.in_segment(number);
        let count = left.len();
        if count == 0 {
            return 0;
        }
        if let Ok(Some(summary)) = lane.log.summary_of(number) {
            let records = summary.entries.iter().map(|entry| {
                let address = Address::new(number, entry.offset as usize);
                (address, Key::of_hash(entry.hash), entry.size as usize)
            });
            self.resolve_those(&lane, &mut left, records);
        }
        if left.len() > FEW {
            self.resolve_by_all(&lane, number, &mut left);
        } else {
            self.resolve_one_by_one(lane, &mut left);
        }
        if left.is_empty() {
            return count;
        }
        if lane.may_lose_nothing() {
            lane.older.skip(number);
            return count - left.len();
        }
        self.give_up_older(&lane, number, &left.into_iter().collect());
        count
    }

    /// Resolves the older slots in `left` that lead to one of `records`, and removes them from
    /// `left`. `left` and `records` are sorted by address.
    fn resolve_those<'k>(
        &mut self,
        lane: &Lane,
        left: &mut Vec<Address>,
        records: impl Iterator<Item = (Address, Key<'k>, usize)>,
    ) {
        let mut records = records.peekable();
        let mut batch = 0;
        self.participant.tick();
        left.retain(|&address| {
            while records.next_if(|(at, ..)| at.offset() < address.offset()).is_some() {}
            let record = records.next_if(|(at, ..)| *at == address);
            if let Some((_, key, size)) = &record {
                lane.resolve_older_at(address, key, *size);
                batch += 1;
                if batch % BATCH == 0 {
                    self.participant.tick();
                }
            }
            record.is_none()
        });
        self.participant.sleep();
    }

    /// Like [`Cleaner::resolve_those`], for all records of the segment, which it reads whole.
    fn resolve_by_all(&mut self, lane: &Lane, number: SegmentNumber, left: &mut Vec<Address>) {
        let Ok(loaded) = lane.log.load_if_absent(number) else { return };
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments and their
        // frames.
        let records = unsafe { lane.log.records(number, image) }.map(|(address, record)| {
            (address, Key::new(record.key(), lane.options.hash_seed), record.size())
        });
        self.resolve_those(lane, left, records);
        loaded.into_iter().for_each(|loaded| lane.log.reuse(loaded));
    }

    fn resolve_one_by_one(&mut self, lane: DurableLane<'_>, left: &mut Vec<Address>) {
        left.retain(|&address| {
            let Ok(read) = lane.log.read_record(address) else { return true };
            // SAFETY: the bytes were checked to begin with one whole record.
            let record = unsafe { Record::at(read.as_ptr(), || 0) };
            let key = Key::new(record.key(), lane.options.hash_seed);
            self.participant.tick();
            lane.resolve_older_at(address, &key, record.size());
            self.participant.sleep();
            false
        });
    }

    /// Gives up older slots whose records are unreadable. These items count as evicted.
    fn give_up_older(&self, lane: &Lane, number: SegmentNumber, lost: &HashSet<Address>) {
        // The records may be readable after a restart. So they are kept ends until their segment is
        // cleaned.
        lane.keep_ends(number, lost.iter().map(|address| address.offset() as u32).collect());
        self.take_unreadable(lane, number, |slot| lost.contains(&slot.address()));
        lost.iter().for_each(|&address| lane.older.forget(&lane.log, address));
    }
}
