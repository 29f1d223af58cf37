//! Without a store: memory that holds next to nothing is used again before memory that was never touched. A server
//! whose items fit into a fraction of its memory, and are overwritten, then takes that fraction and not all of it.

use super::{BOTH_TIERS, Cleaner, Fate, Step, benefit};
use crate::lane::Lane;
use larder_log::Among;
use std::sync::atomic::Ordering;

/// A segment is recycled if this percentage of it is alive at most. Uniform overwrites then take about three times
/// the memory of what is alive, and cleaning copies one byte for sixteen that are written.
const RECYCLE_BELOW: usize = 6;

impl Cleaner {
    /// Recycles a segment if writers have no frame ready. The answer is whether one is on its way to them.
    pub(super) fn recycle(&mut self, lane: &Lane) -> bool {
        if lane.durable.is_some() || lane.log.has_ready_frame() || self.must_free(lane) {
            return false;
        }
        if lane.log.quarantined() > 0 {
            return true;
        }
        // For the next turn: this one takes what threads have told before.
        lane.log.want_counts();
        let usage = lane.log.usage();
        let dead = usage.dead(Among::All);
        let now = lane.now.load(Ordering::Relaxed);
        let best = usage.best(BOTH_TIERS, Among::All, RECYCLE_BELOW, |it| benefit(it, now));
        drop(usage);
        let step = match (dead, best) {
            (Some((stream, number)), _) => self.free_dead(lane, stream, number, lane.undoings()),
            (None, Some(best)) => self.clean(lane, best.stream, best.segment, Fate::Keep),
            (None, None) => Step::Nothing,
        };
        step == Step::Freed && lane.log.quarantined() > 0
    }
}
