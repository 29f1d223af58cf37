//! With a lower device: what has cooled moves there, so that new writes find places on the fast one.
//!
//! A segment's live records go to the survivors, whose new segments lie on the lower device. Every
//! segment that is moved gives back a place and takes less than half of one on the fast device, and none
//! is moved while the lower one is full: so it ends. Large values stay where they are; they leave as
//! all do when the store is full, by their age.

use super::{
    Cleaner, Fate, MAX_READY_PLACES, PLACES_SHARE, READY_FRAMES, Step, benefit, cleanable_percent,
};
use crate::lane::Lane;
use crate::stats::bump;
use larder_log::{Among, Candidate, Claim, SegmentNumber, Stream, Tier};
use std::sync::atomic::Ordering;

/// Of a segment that is moved, one in so many bytes may stay on the fast device because it was read lately.
const STAYING_SHARE: usize = 4;

/// Whether new writes find too few places on the fast device, whatever is on its way.
pub(super) fn is_fast_short(lane: &Lane, coming: usize) -> bool {
    let ready = (lane.log.places(Tier::Fast) / PLACES_SHARE).clamp(READY_FRAMES, MAX_READY_PLACES);
    lane.log.has_lower() && lane.log.free_places(Tier::Fast) + coming < ready
}

impl Cleaner {
    /// Moves what has cooled off the fast device, a segment at a time, if that is short of places and the
    /// lower one is not. The answer is whether something was moved.
    pub(super) fn cool(&mut self, lane: &Lane) -> bool {
        if !is_fast_short(lane, lane.log.coming_places(Tier::Fast))
            || lane.log.free_places(Tier::Lower) <= lane.log.spared(Claim::Write)
        {
            return false;
        }
        let (now, undoings) = (lane.now.load(Ordering::Relaxed), lane.undoings());
        let percent = cleanable_percent(lane, true);
        let usage = lane.log.usage();
        if let Some((stream, number)) = usage.dead_on_fast() {
            drop(usage);
            return self.free_dead(lane, stream, number, undoings) == Step::Freed;
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

/// The segment that is evicted from next: each item that was moved has gone through a queue already, so
/// there is no probation, and the oldest segment goes first wherever it lies.
pub(super) fn older(
    lane: &Lane,
    hot: Option<(Stream, SegmentNumber)>,
    survivors: Option<(Stream, SegmentNumber)>,
) -> Option<(Stream, SegmentNumber)> {
    let born = |&(_, number): &(Stream, SegmentNumber)| lane.log.segment(number).born();
    survivors.into_iter().chain(hot).min_by_key(born)
}
