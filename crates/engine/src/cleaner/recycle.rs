//! Without a store: memory that holds next to nothing is used again before memory that was never touched. A server
//! whose items fit into a fraction of its memory, and are overwritten, then takes that fraction and not all of it.
//!
//! Jumbos stay until memory is short, and so do segments with values that somebody still reads: these would have to be
//! copied.

use super::{Cleaner, Fate, Step};
use crate::lane::Lane;

/// A segment is recycled if this percentage of it is alive at most. Uniform overwrites then take about three times
/// the memory of the live items, and cleaning copies one byte for every sixteen that are written.
const RECYCLE_BELOW: usize = 6;
/// Frames that are ready or on their way: a frame comes back some milliseconds after its segment was cleaned.
const RECYCLED_AHEAD: usize = 4;

impl Cleaner {
    /// Recycles segments until writers have enough frames. The answer is whether they need no untouched memory.
    pub(super) fn recycle(&mut self, lane: &Lane) -> bool {
        if lane.durable.is_some() || self.must_free(lane) {
            return false;
        }
        let frames = || lane.log.ready_frames() + lane.log.quarantined();
        if frames() < RECYCLED_AHEAD {
            // For the next turn: this one goes by what threads have told before.
            lane.log.want_counts();
        }
        for _ in frames()..RECYCLED_AHEAD {
            let emptiest = { lane.log.usage().emptiest(RECYCLE_BELOW) };
            let Some(it) = emptiest.filter(|it| !lane.log.is_pinned(it.segment)) else { break };
            let step = match it.live {
                0 => self.free_dead(lane, it.stream, it.segment, lane.undoings()),
                _ => self.clean(lane, it.stream, it.segment, Fate::Keep),
            };
            if step != Step::Freed {
                break;
            }
        }
        frames() > 0
    }
}
