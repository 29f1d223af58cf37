//! Dead maps: durable marks of a segment's superseded records. Once a segment has its map, other
//! segments with tombstones or evicted items can be freed, because no crash can bring back the
//! older versions in that segment.
//!
//! Maps are made without reading a segment. One walk over the index serves many segments: a record
//! is alive if a slot leads to it, and all other records are marked. The walk goes in slices, a few
//! stripes a turn.
//!
//! Recovery leaves a marked record out of the index. While the record exists, it still hides older
//! versions, as a tombstone does. So it does not matter whether an item was superseded or removed,
//! or in which order maps become durable.

use crate::cleaner::Cleaner;
use crate::cleaner::map_walk::MapWalk;
use crate::lane::{DurableLane, Lane};
use larder_log::{SegmentNumber, Stream};
use std::collections::BTreeSet;

impl Lane {
    /// Puts a segment into quarantine, after the caller has removed its records from the index.
    /// `ends` are the offsets of the removed records that no newer version hides. The caller reads
    /// `undo_count` from the store before it searches the index for the segment's records. If
    /// changes were undone since then, the index may lead to the segment again. In that case the
    /// segment stays in use, and this function returns false.
    pub(crate) fn quarantine(
        &self,
        stream: Stream,
        number: SegmentNumber,
        mut ends: Vec<u32>,
        undo_count: u64,
    ) -> bool {
        if let Some(store) = self.log.store() {
            ends.extend(store.kept_ends(number));
        }
        if let Err(ends) = self.log.quarantine(number, ends, undo_count) {
            self.keep_ends(number, ends);
            self.log.postpone_cleaning(stream, number);
            return false;
        }
        self.want_commit();
        true
    }

    /// Returns the offsets of the segment's records that the index leads to.
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

    /// Returns the store's undo count, `CommitMarks::undo_count`; 0 without a store.
    pub(crate) fn undo_count(&self) -> u64 {
        self.log.store().map_or(0, |store| store.commits.undo_count())
    }

    /// Notes the records at the offsets `ends` as kept ends. These records were removed from the
    /// index, but their segment was not emptied.
    pub(crate) fn keep_ends(&self, number: SegmentNumber, ends: Vec<u32>) {
        if let Some(store) = self.log.store() {
            store.keep_ends(number, ends);
        }
    }
}

/// The dead maps of one walk may take at most 1/`MEMORY_SHARE` of the lane's memory.
const MEMORY_SHARE: usize = 64;

impl Cleaner {
    /// Makes the dead maps that are needed to free segments, a slice at a time. Returns true if the
    /// walk should continue at once.
    pub(crate) fn make_dead_maps(&mut self, lane: DurableLane<'_>) -> bool {
        let Some(mut walk) = self.map_walk.take().or_else(|| self.begin_map_walk(lane)) else {
            return false;
        };
        if walk.undo_count != lane.log.store.commits.undo_count() || walk.undo_count % 2 == 1 {
            walk.abandon(lane);
            return false;
        }
        if walk.stripe.is_none() && !walk.is_ready(lane) {
            lane.want_commit();
            self.map_walk = Some(walk);
            return false;
        }
        walk.stripe = walk.step(lane, walk.stripe.unwrap_or(0));
        if walk.stripe.is_some() {
            self.map_walk = Some(walk);
            return true;
        }
        // The maps also mark records that died during the walk. So all deaths in the maps are
        // durable only once the commit that is open now is durable.
        let after = lane.log.store.commits.open();
        lane.stage_dead_maps(walk.maps.into_values().map(|mut map| {
            map.finish(after);
            map
        }));
        false
    }

    /// Abandons an unfinished walk when the cleaner ends. The deaths that its maps would have
    /// marked are noted again, for later maps.
    pub(crate) fn abandon_maps(&mut self, lane: &Lane) {
        if let (Some(walk), Some(lane)) = (self.map_walk.take(), lane.durable()) {
            walk.abandon(lane);
        }
    }

    fn begin_map_walk(&mut self, lane: DurableLane<'_>) -> Option<MapWalk> {
        let map_bytes = lane.log.store.map_bytes();
        let most = (lane.options.memory as usize / MEMORY_SHARE / map_bytes).max(1);
        let numbers = self.move_ends(lane, most);
        if numbers.is_empty() {
            return None;
        }
        let walk = MapWalk::new(lane, &numbers, &mut self.settling);
        (!walk.maps.is_empty()).then_some(walk)
    }
}
