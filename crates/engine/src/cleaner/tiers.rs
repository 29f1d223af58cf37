//! With a lower device: moves cold records to it, so that new writes find places on the fast
//! device.
//!
//! A segment's live records go to the survivors, whose new segments are on the lower device. Each
//! cleaned segment gives back a place on the fast device, and its records that stay on the fast
//! device take at most a quarter of a place. So the moves end once enough places are free. They
//! also end when the lower device has only reserved places left. Jumbos are not moved. When the
//! store is full, they are evicted by age, like all other segments.

use crate::cleaner::state::{
    Cleaner, Fate, MAX_READY_PLACES, PLACES_SHARE, READY_FRAMES, Step, benefit, cleanable_percent,
};
use crate::lane::Lane;
use crate::stats::bump;
use larder_log::{Among, Candidate, Claim, SegmentNumber, Stream, Tier};
use std::sync::atomic::Ordering;

/// When a segment moves to the lower device, records that were read lately stay on the fast device,
/// up to 1/`STAYING_SHARE` of the segment's bytes.
const STAYING_SHARE: usize = 4;

/// Returns true if new writes find too few places on the fast device, even counting the `coming`
/// places that are about to become free.
pub(super) fn is_fast_short(lane: &Lane, coming: usize) -> bool {
    let ready = (lane.log.places(Tier::Fast) / PLACES_SHARE).clamp(READY_FRAMES, MAX_READY_PLACES);
    lane.log.has_lower() && lane.log.free_places(Tier::Fast) + coming < ready
}

impl Cleaner {
    /// Moves cold records off the fast device, one segment per call, if the fast device is short of
    /// places and the lower device is not. Returns true if a segment was emptied.
    pub(super) fn cool(&mut self, lane: &Lane) -> bool {
        if !is_fast_short(lane, lane.log.coming_places(Tier::Fast))
            || lane.log.free_places(Tier::Lower) <= lane.log.spared(Claim::Write)
        {
            return false;
        }
        let (now, undo_count) = (lane.now.load(Ordering::Relaxed), lane.undo_count());
        let percent = cleanable_percent(lane, true);
        let usage = lane.log.usage();
        if let Some((stream, number)) = usage.dead_on_fast() {
            drop(usage);
            return self.free_dead(lane, stream, number, undo_count) == Step::Freed;
        }
        let best = usage.best(&[Tier::Fast], Among::All, percent, |it| benefit(it, now));
        let chosen = best.or_else(|| usage.first_on_fast());
        drop(usage);
        let Some(Candidate { stream, segment, .. }) = chosen else { return false };
        self.may_stay = lane.log.segment(segment).filled() as usize / STAYING_SHARE;
        let cooled = self.clean(lane, stream, segment, Fate::Cool) == Step::Freed;
        bump(&self.counters.cooled_segments, cooled.into());
        cooled
    }
}

/// Returns the segment to evict from next. Items on the lower device have waited in the queue of
/// the fast device before, so there is no probation: the oldest segment goes first, whichever
/// device it is on.
pub(super) fn older(
    lane: &Lane,
    hot: Option<(Stream, SegmentNumber)>,
    survivors: Option<(Stream, SegmentNumber)>,
) -> Option<(Stream, SegmentNumber)> {
    let born = |&(_, number): &(Stream, SegmentNumber)| lane.log.segment(number).born();
    survivors.into_iter().chain(hot).min_by_key(born)
}
