//! A walk over the index that finds the live records of the segments that need dead maps.

use crate::lane::DurableLane;
use crate::older::OlderSlotWork;
use larder_log::{DeadMap, MapState, Rule, SegmentNumber};
use std::collections::BTreeMap;

/// The number of visited slots after which a turn ends its slice of the walk.
const SLOTS_PER_TURN: usize = 1 << 16;

/// A walk over the index that makes the dead maps of some segments.
#[derive(Debug)]
pub(crate) struct MapWalk {
    pub(super) maps: BTreeMap<SegmentNumber, DeadMap>,
    /// One bit per segment number, set for the segments in `maps`. Most slots lead to other
    /// segments, and testing a bit is quicker than a search in `maps`.
    pub(super) wanted: Box<[u64]>,
    pub(super) undo_count: u64,
    /// The stripe that the walk visits next. `None` if the walk has not begun, because some deaths
    /// that the maps will mark are not durable yet.
    pub(super) stripe: Option<usize>,
}

impl MapWalk {
    pub(super) fn new(
        lane: DurableLane<'_>,
        numbers: &[SegmentNumber],
        settling: &mut OlderSlotWork,
    ) -> Self {
        // The undo count is read before the maps are begun, so that any later undo is detected.
        let undo_count = lane.undo_count();
        lane.older.open_all();
        let mut wanted = vec![0; lane.log.numbers().end as usize / 64 + 1].into_boxed_slice();
        let mut maps = BTreeMap::new();
        for &number in numbers {
            let begun = lane.log.begin_map(number);
            // Older slots may lead to dead records, which the walk would count as alive. So the
            // segment gets its map only after its older slots are resolved. If a set adds an older
            // slot after `begin_map`, the death of its record is noted for a later map.
            if lane.older.lead_into(number) && !Rule::MapsWaitForOlder.is_broken() {
                lane.log.abandon_map(begun.segment, begun.generation);
                settling.want(&lane.older, number);
                continue;
            }
            wanted[number as usize / 64] |= 1u64 << (number % 64);
            maps.insert(number, lane.log.new_map(begun, undo_count));
        }
        MapWalk { maps, wanted, undo_count, stripe: None }
    }

    /// Returns true if the walk can begin, because all deaths that the maps will mark are durable.
    /// Removes the maps of segments that were freed meanwhile.
    pub(super) fn is_ready(&mut self, lane: DurableLane<'_>) -> bool {
        let mut ready = true;
        self.maps.retain(|_, map| {
            let state = lane.log.map_state(map.begun());
            ready &= state != MapState::Undurable;
            state != MapState::Gone
        });
        ready
    }

    /// Visits some stripes from `stripe` on. Returns the next stripe; `None` at the end.
    pub(super) fn step(&mut self, lane: DurableLane<'_>, mut stripe: usize) -> Option<usize> {
        let (mut seen, wanted) = (0, &self.wanted);
        while stripe < lane.index.stripe_count() && seen < SLOTS_PER_TURN {
            lane.index.visit_stripe(stripe, |slot| {
                seen += 1;
                let (number, offset) = (slot.address().segment(), slot.address().offset());
                // A segment number may lie beyond `wanted`, because the store may have grown since
                // the walk began.
                let bits = wanted.get(number as usize / 64).copied().unwrap_or(0);
                if bits >> (number % 64) & 1 != 0
                    && let Some(map) = self.maps.get_mut(&number)
                {
                    map.mark_alive(offset, lane.log.segment(number).is_jumbo());
                }
            });
            stripe += 1;
        }
        (stripe < lane.index.stripe_count()).then_some(stripe)
    }

    pub(super) fn abandon(self, lane: DurableLane<'_>) {
        for map in self.maps.values() {
            lane.log.abandon_map(map.begun().segment, map.begun().generation);
        }
    }
}
