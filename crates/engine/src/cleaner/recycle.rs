//! Without a store, the cleaner recycles nearly empty segments before writers use untouched memory.
//! So a server whose clients overwrite few items does not take all of its memory.
//!
//! Jumbos stay until memory is short. Segments with values that are still being read stay, too,
//! because recycling would have to copy these values.

use crate::cleaner::state::{Cleaner, Fate, Step};
use crate::lane::Lane;

/// A segment is recycled if at most this percentage of it is live. With a lower percentage,
/// cleaning copies fewer bytes but overwrites take more memory. With 6, cleaning copies one byte
/// for every sixteen written, and uniform overwrites take about three times the memory of the live
/// items.
const RECYCLE_BELOW: usize = 6;
/// The number of frames that recycling keeps ready or in quarantine. A frame becomes available some
/// milliseconds after its segment was cleaned.
const RECYCLED_AHEAD: usize = 4;

impl Cleaner {
    /// Recycles segments until writers have enough frames. Returns true if writers need no
    /// untouched memory.
    pub(super) fn recycle(&mut self, lane: &Lane) -> bool {
        if lane.has_store() || self.must_free(lane) {
            return false;
        }
        self.reap(lane);
        let frames = || lane.log.ready_frames() + lane.log.quarantined();
        if frames() < RECYCLED_AHEAD {
            // Asks threads to report their dead bytes for the next turn. This turn uses the counts
            // that they have already reported.
            lane.log.want_counts();
        }
        for _ in frames()..RECYCLED_AHEAD {
            let emptiest = { lane.log.usage().emptiest(RECYCLE_BELOW) };
            let Some(it) = emptiest.filter(|it| !lane.log.is_pinned(it.segment)) else { break };
            let step = match it.live {
                0 => self.free_dead(lane, it.stream, it.segment, lane.undo_count()),
                _ => self.clean(lane, it.stream, it.segment, Fate::Keep),
            };
            if step != Step::Freed {
                break;
            }
        }
        frames() > 0
    }
}
