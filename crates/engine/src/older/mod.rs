//! Older slots: a set of a key that only the device has reads nothing.
//!
//! The set cannot know whether the record that its tag leads to is the same key's: in one case of some thousand
//! it is another's. So the new version gets a slot of its own, and the old slot stays, marked as *older*. Beside
//! it a part of the hash of the key that was set is remembered: 44 bits beyond the key's position. Whoever sees
//! the old record's key compares later. If the bits agree, the record died when the set was made; if not, it is
//! another key's, and its slot becomes one like others. A record is lost by this if two keys have the same
//! position and agree in 44 further bits.
//!
//! Until then
//! - an older slot answers for other keys than the one that was set over it, and never for that one, even when
//!   its newer version has gone;
//! - all sets over older slots of one position are of one key: a write of another key looks at them first;
//! - the record counts as alive, so its segment is not freed without a walk over it;
//! - the segment has noted a death, and no dead map is made of it: what hides the record stays as long as it
//!   must.
//!
//! The cleaner settles older slots when it walks their segment, before a dead map of it is made, and when there
//! are many: by the summary of the segment if it has one, else by reading the records.

mod slots;

pub(crate) use slots::{OlderSlots, Settling};

use slots::{BYTES, entry};

use crate::UnixSeconds;
use crate::cleaner::Cleaner;
use crate::cleaner::walk::at;
use crate::index::slot::Slot;
use crate::index::{Guard, Place};
use crate::key::Key;
use crate::lane::Lane;
use larder_log::{Address, Record, Rule, SegmentNumber, Tier};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// The share of the lane's memory that older slots take at most, as a divisor,
const MEMORY_SHARE: u64 = 16;
/// and the share of what the items take on the device.
const DATA_SHARE: u64 = 64;
/// While tables take more than this percentage of what the index may take, sets read.
const INDEX_PERCENT: u64 = 94;
/// Without a summary the cleaner reads at most this number of records one by one, and for more the whole segment.
const FEW: usize = 8;
/// Segments that one turn looks at when nothing else can be freed.
const SEGMENTS_PER_TURN: usize = 4;
/// Records between which the cleaner lets others reclaim memory.
const BATCH: usize = 64;
/// Seconds after which the cleaner tries again to read what it could not.
const RETRY: UnixSeconds = 60;
/// Turns of the cleaner after which the limit of older slots is found anew, if not in the next second.
const TURNS: u32 = 256;

impl Lane {
    /// Publishes the slot of a record of `size` bytes over `old`, whose key nobody has looked at.
    pub(crate) fn fill_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: Place<'_>,
        slot: Slot,
        old: Place<'_>,
        size: usize,
    ) {
        let address = old.slot().address();
        // In this order: whoever takes the note of the death for a map sees that there is an older slot.
        let size = self.log.likely_size(address.segment(), size) as u32;
        self.older.insert(&self.log, address.segment(), entry(address, key), size);
        self.log.note_death(address.segment());
        guard.fill_over(place, slot, old);
    }

    /// The key of the record is known that an older slot leads to. The answer is whether it is current: then its
    /// slot is one like others. Else it died when the newer version was set.
    pub(crate) fn settle_older(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        old: Place<'_>,
        size: usize,
    ) -> bool {
        let address = old.slot().address();
        let dead =
            self.older.is_set_over(address, key) != Some(false) || Rule::OlderIsProved.is_broken();
        if dead {
            if self.durable.as_ref().is_some_and(|durable| durable.is_sync()) {
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

    /// Takes what [`Lane::fill_over`] did back: the newer version at `place` is undone. False if the older slot
    /// has been settled.
    pub(crate) fn take_back_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: Place<'_>,
        was_item: bool,
        before: Address,
    ) -> bool {
        let Some((old, slot, ())) = guard.find(key, at(before)) else { return false };
        if slot.is_older() {
            guard.take_back(place, old, was_item);
            self.older.forget(&self.log, before);
        } else {
            // Somebody has looked meanwhile: it is another key's.
            guard.remove(place, was_item);
        }
        true
    }

    /// An older slot is taken out of the index without a look at its record.
    pub(crate) fn forget_older(&self, slot: Slot) {
        if slot.is_older() {
            self.older.forget(&self.log, slot.address());
        }
    }

    /// Says how many older slots there may be.
    pub(crate) fn limit_older(&self) {
        let (items, older) = (self.index.items(), self.older.count() as u64);
        let data: u64 = [Tier::Fast, Tier::Lower].map(|tier| self.tier_bytes(tier).1).iter().sum();
        let of_items =
            (u128::from(data) * u128::from(items) / u128::from((items + older).max(1))) as u64;
        let bytes = (of_items / DATA_SHARE).min(self.budget.limit() / MEMORY_SHARE);
        // Where nothing may be lost, each record that cannot be read keeps all tombstones from being dropped.
        let waits = self.may_lose_nothing() && self.older.passed_over() > 0;
        let most = if waits || self.index.fills(INDEX_PERCENT) { 0 } else { bytes / BYTES };
        self.older.most.store(most as usize, Ordering::Relaxed);
    }

    /// Whether the index leads to the record of `size` bytes at `address`, with this key. An older slot is settled
    /// before.
    pub(crate) fn settle_older_at(&self, address: Address, key: &Key<'_>, size: usize) -> bool {
        let guard = self.index.lock(key);
        match guard.find(key, at(address)) {
            Some((place, slot, ())) => {
                !slot.is_older() || self.settle_older(&guard, key, place, size)
            }
            None => {
                // Nothing leads there any more, or nobody finds what does.
                self.older.forget(&self.log, address);
                false
            }
        }
    }
}

impl Cleaner {
    /// Settles older slots, if there are many, or if they keep something waiting. The answer is whether there is
    /// more to do.
    pub(crate) fn settle_many(&mut self, lane: &Lane) -> bool {
        let Some(durable) = &lane.durable else { return false };
        self.limit_older(lane);
        let (count, most) = (lane.older.count(), lane.older.most.load(Ordering::Relaxed));
        if self.settling.waiting.is_empty() && count > most / 2 {
            self.settling.waiting.extend(lane.older.longest());
        }
        let Some(number) = self.settling.waiting.pop_first() else { return false };
        self.settle_segment(lane, number);
        if self.settling.waiting.is_empty() && std::mem::take(&mut self.settling.is_awaited) {
            // Whoever waits for dead maps looks again after a commit.
            durable.want_commit();
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
        // Before those that were passed over are tried again: they may be passed over once more.
        lane.limit_older();
        if found / RETRY != now / RETRY {
            self.settling.waiting.extend(lane.older.retry());
            lane.older.open_all();
        }
        if found != now {
            self.look_again_at_ends(lane);
        }
    }

    /// Nothing can be freed any more: settles some older slots, for what they lead to may be dead. False if none
    /// of those that were looked at could be settled.
    pub(super) fn settle_any(&mut self, lane: &Lane) -> bool {
        (0..SEGMENTS_PER_TURN).any(|_| {
            lane.older.longest().is_some_and(|number| self.settle_segment(lane, number) > 0)
        })
    }

    /// Settles the older slots that lead into a segment. The answer is how many. If some are left because what
    /// they lead to cannot be read and may not be lost, the segment is passed over.
    fn settle_segment(&mut self, lane: &Lane, number: SegmentNumber) -> usize {
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
            self.settle_those(lane, &mut left, records);
        }
        if left.len() > FEW {
            self.settle_by_all(lane, number, &mut left);
        } else {
            self.settle_one_by_one(lane, &mut left);
        }
        if left.is_empty() {
            return count;
        }
        if lane.may_lose_nothing() {
            lane.older.pass_over(number);
            return count - left.len();
        }
        self.give_up_older(lane, number, &left.into_iter().collect());
        count
    }

    /// Settles those of the older slots in `left` that lead to one of these records, both in order of addresses.
    fn settle_those<'k>(
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
                lane.settle_older_at(address, key, *size);
                batch += 1;
                if batch % BATCH == 0 {
                    self.participant.tick();
                }
            }
            record.is_none()
        });
        self.participant.sleep();
    }

    /// As [`Cleaner::settle_those`], by reading all of the segment.
    fn settle_by_all(&mut self, lane: &Lane, number: SegmentNumber, left: &mut Vec<Address>) {
        let Ok(loaded) = lane.log.load_if_absent(number) else { return };
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments and their frames.
        let records = unsafe { lane.log.records(number, image) }.map(|(address, record)| {
            (address, Key::new(record.key(), lane.options.hash_seed), record.size())
        });
        self.settle_those(lane, left, records);
        loaded.into_iter().for_each(|loaded| lane.log.reuse(loaded));
    }

    fn settle_one_by_one(&mut self, lane: &Lane, left: &mut Vec<Address>) {
        left.retain(|&address| {
            let Ok(read) = lane.log.read_record(address) else { return true };
            // SAFETY: the bytes were checked to begin with one whole record.
            let record = unsafe { Record::at(read.as_ptr(), || 0) };
            let key = Key::new(record.key(), lane.options.hash_seed);
            self.participant.tick();
            lane.settle_older_at(address, &key, record.size());
            self.participant.sleep();
            false
        });
    }

    /// What older slots lead to cannot be read: it is as good as evicted.
    fn give_up_older(&self, lane: &Lane, number: SegmentNumber, lost: &HashSet<Address>) {
        // It may be readable after a restart: until then it counts as what hides older versions.
        lane.keep_ends(number, lost.iter().map(|address| address.offset() as u32).collect());
        self.take_unreadable(lane, number, |slot| lost.contains(&slot.address()));
        lost.iter().for_each(|&address| lane.older.forget(&lane.log, address));
    }
}
