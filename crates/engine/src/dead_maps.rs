//! Dead maps: which records of a segment are superseded, written down so that a segment with
//! tombstones or evicted items can be freed without older versions coming back after a crash.
//!
//! A map is made by asking the index about every item. What is marked is not shown after a crash, but
//! goes on hiding older versions as long as it lies there, as a tombstone does: so it does not matter
//! whether an item was superseded or removed, or in which order maps become durable.

use crate::cleaner::Cleaner;
use crate::key::Key;
use crate::lane::Lane;
use larder_log::cover::DeadMap;
use larder_log::format::jumbo::RECORD_AT;
use larder_log::format::meta::{MAP_UNIT, mark};
use larder_log::record::Kind;
use larder_log::{SegmentNumber, Stream};
use std::collections::BTreeSet;

impl Lane {
    /// A segment's records are out of the index; `ends` are the offsets of those that nothing newer
    /// hides. `undoings` is that of the store before anybody looked for records that are in it: if
    /// something was undone since, the index may lead there again. Then the segment is kept, and the
    /// answer is false.
    pub(crate) fn quarantine(
        &self,
        stream: Stream,
        number: SegmentNumber,
        mut ends: Vec<u32>,
        undoings: u64,
    ) -> bool {
        if let Some(store) = self.log.store() {
            ends.extend(store.kept_ends(number));
        }
        if let Err(ends) = self.log.quarantine(number, ends, undoings) {
            self.keep_ends(number, ends);
            self.log.postpone_cleaning(stream, number);
            return false;
        }
        if let Some(durable) = &self.durable {
            durable.want_commit();
        }
        true
    }

    /// Where in a segment the index leads.
    pub(crate) fn offsets_in(&self, number: SegmentNumber) -> BTreeSet<usize> {
        let mut offsets = BTreeSet::new();
        for stripe in 0..self.index.stripe_count() {
            self.index.visit_stripe(stripe, |slot| {
                if slot.address().segment() == number {
                    offsets.insert(slot.address().offset());
                }
            });
        }
        offsets
    }

    /// [`Store::undoings`](larder_log::Store::undoings); 0 without a store.
    pub(crate) fn undoings(&self) -> u64 {
        self.log.store().map_or(0, |store| store.undoings())
    }

    /// A segment was not emptied after all, but these of its records are removed.
    pub(crate) fn keep_ends(&self, number: SegmentNumber, ends: Vec<u32>) {
        if let Some(store) = self.log.store() {
            store.keep_ends(number, ends);
        }
    }
}

impl Cleaner {
    /// Makes the dead maps that are needed to free segments.
    pub(crate) fn make_dead_maps(&mut self, lane: &Lane) {
        let Some(store) = lane.log.store() else { return };
        let durable = store.durable_commit();
        let wanted = lane.log.wanted_maps();
        // One that was lost with a failed commit is made again.
        self.mapped.retain(|number, after| durable <= *after + 1 && wanted.contains(number));
        for number in wanted {
            if !self.mapped.contains_key(&number)
                && let Some(map) = self.dead_map(lane, number)
            {
                self.mapped.insert(number, map.after);
                lane.stage_dead_map(map);
            }
        }
    }

    fn dead_map(&mut self, lane: &Lane, number: SegmentNumber) -> Option<DeadMap> {
        let store = lane.log.store()?;
        // What the settled commits did is all published; what came later may be in the map too,
        // which is why it is not written before that is durable as well.
        let undoings = store.undoings();
        let cover = store.settled_commit();
        let segment = lane.log.segment(number);
        let generation = segment.generation();
        if segment.is_dead_jumbo() {
            let mut bits = vec![0; store.map_bytes()];
            mark(&mut bits, RECORD_AT);
            return Some(DeadMap {
                segment: number,
                generation,
                cover,
                after: cover,
                undoings,
                bits,
            });
        }
        let loaded = lane.log.load_if_absent(number).ok()?;
        self.participant.tick();
        let mut bits = vec![0; store.map_bytes()];
        let durable = segment.durable();
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        let damaged = loaded.as_ref().is_some_and(|loaded| loaded.damaged);
        let live = damaged.then(|| lane.offsets_in(number));
        // SAFETY: only the cleaner frees segments, and what is durable is complete.
        for (address, record) in unsafe { lane.log.records(number, image) } {
            let offset = address.offset() as u32;
            if offset >= durable {
                break;
            }
            if let Some(live) = &live
                && record.kind() == Kind::Filler
            {
                mark_unseen(&mut bits, offset as usize, record.size(), live);
            }
            if record.kind() != Kind::Item {
                continue;
            }
            let key = Key::new(record.key(), lane.options.hash_seed);
            let guard = lane.index.lock(&key);
            let current = guard.find(&key, |slot| (slot.address() == address).then_some(()));
            if current.is_none() {
                let at = if segment.is_jumbo() { RECORD_AT } else { offset as usize };
                mark(&mut bits, at);
            }
        }
        self.participant.sleep();
        let after = store.open_commit();
        Some(DeadMap { segment: number, generation, cover, after, undoings, bits })
    }
}

/// Marks what is damaged, from `from` on, where the index does not lead: nobody can tell what was there,
/// but a summary may.
fn mark_unseen(bits: &mut [u8], from: usize, bytes: usize, live: &BTreeSet<usize>) {
    for at in (from..from + bytes).step_by(MAP_UNIT) {
        let unit = at / MAP_UNIT * MAP_UNIT;
        if live.range(unit..unit + MAP_UNIT).next().is_none() {
            mark(bits, at);
        }
    }
}
