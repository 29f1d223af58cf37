//! The cleaner's state between two turns, and the kinds of its steps.

use crate::UnixSeconds;
use crate::cleaner::map_walk::MapWalk;
use crate::durability::{Changes, Durable};
use crate::lane::Lane;
use crate::older::Settling;
use crate::options::WhenFull;
use crate::stats::Counters;
use larder_log::Candidate;
use larder_log::Claim;
use larder_log::{Participant, SegmentNumber, Stream};
use std::sync::Arc;
use std::time::Duration;

/// Probation may hold one in so many bytes before its oldest segment is looked at.
pub(super) const PROBATION_SHARE: u64 = 10;
/// Frames that writers should find ready.
pub(crate) const READY_FRAMES: usize = 2;
/// Of the store's places, one in so many should be ready for writers, within limits.
pub(super) const PLACES_SHARE: usize = 64;
/// The most places that are kept ready.
pub(super) const MAX_READY_PLACES: usize = 16;

/// A segment is cleaned instead of another being evicted when this percentage of it is alive at most.
const CLEAN_BELOW: usize = 60;
/// With a store, a segment whose frame is wanted is cleaned instead if this percentage of it is alive at most:
/// what is overwritten often never gets to lie on the device only.
const CLEAN_INSTEAD_OF_DROPPING: usize = 40;
/// In refuse mode nothing is evicted, so segments are cleaned of which this percentage is alive at most.
pub(super) const CLEAN_BELOW_WHEN_REFUSING: usize = 95;
/// As [`CLEAN_BELOW_WHEN_REFUSING`], when deletes and updates have used much of their reserve.
/// All segments together hold less dead then than the reserve of either has room for.
const CLEAN_BELOW_FOR_RESERVE: usize = 99;

/// What one step of cleaning achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A segment went into quarantine.
    Freed,
    /// Something can be freed when the last appenders of a segment are done.
    Later,
    /// A segment could not be read: others are tried before it is again.
    Unreadable,
    /// Nothing can be freed.
    Nothing,
}

/// What is done with the live records of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All move on in the same stream.
    Keep,
    /// S3-FIFO decides.
    Evict,
    /// All move on, to the lower device but for a few that were read lately.
    Cool,
    /// Only expired ones go; the segment stays.
    Sweep,
}

/// What is done with a segment of which stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) stream: Stream,
    pub(super) fate: Fate,
    /// Its records can be copied: not a jumbo's that is not in memory.
    pub(super) whole: bool,
}

/// The cleaner's own state.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pub(super) counters: Arc<Counters>,
    pub(crate) participant: Participant,
    /// What it moved and is not durable; only in sync mode.
    pub(super) changes: Option<Arc<Changes>>,
    /// The walk for dead maps that is under way.
    pub(crate) map_walk: Option<MapWalk>,
    /// What keeps segments with ends from being freed.
    pub(crate) ends: Ends,
    /// What is done about older slots.
    pub(crate) settling: Settling,
    /// In this second, up to which segment those that have expired whole were looked at; `None`: there are no more.
    pub(super) expired: Option<(UnixSeconds, SegmentNumber)>,
    /// Bytes of the segment that is being moved to the lower device that may stay on the fast one.
    pub(super) may_stay: usize,
    /// The last expired segment that could not be read in this turn.
    pub(super) unreadable_at: (UnixSeconds, SegmentNumber),
    /// The second of the last sweep.
    pub(super) swept: UnixSeconds,
    /// Something must be freed: the epoch by which threads have told what they made dead before.
    pub(super) told_by: Option<u64>,
    /// For how long nobody has waited while memory or places were wanted.
    pub(super) wanted_for: Duration,
    /// How many values were dropped in this second that had just been read.
    pub(super) redropped: (UnixSeconds, u32),
    /// Hits that had been counted when a frame was dropped last.
    pub(super) hits: u64,
    /// The place in the queue of probation up to which every segment was found to be read.
    pub(super) looked_to: i64,
}

/// The state about ends between two turns.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The durable commit at the last look. Waiting segments can change only with a commit.
    pub(super) looked_at: u64,
    /// Bytes of tombstones that moved since the last maps were made.
    pub(super) moved: u64,
    /// Maps are being made for all records that died up to this commit; 0 if none are being made.
    pub(super) maps_until: u64,
    /// The cleaner found nothing else to free.
    pub(super) is_stuck: bool,
}

impl Ends {
    /// Notes that the cleaner found nothing to free although space is needed.
    pub(super) fn note_stuck(&mut self) {
        self.is_stuck = true;
    }
}

impl Cleaner {
    pub(super) fn new(lane: &Lane) -> Self {
        Cleaner {
            counters: lane.new_counters(),
            participant: lane.epochs.join(),
            changes: lane.durable.as_ref().filter(|d| d.is_sync()).map(Durable::new_changes),
            map_walk: None,
            ends: Ends::default(),
            settling: Settling::default(),
            expired: None,
            unreadable_at: (0, 0),
            may_stay: 0,
            swept: 0,
            told_by: None,
            wanted_for: Duration::ZERO,
            redropped: (0, 0),
            hits: 0,
            looked_to: i64::MIN,
        }
    }
}

/// What cleaning a segment gains for its cost, `(1-u)·age/(1+u)` with the live share u.
pub(super) fn benefit(segment: &Candidate, now: UnixSeconds) -> f64 {
    // Measured against what was written, not against the segment's size: every cleaning must
    // make dead bytes disappear, or it would go round for ever.
    let share = f64::from(segment.live) / f64::from(segment.filled.max(1));
    let age = f64::from(now.saturating_sub(segment.born)) + 1.0;
    (1.0 - share) * age / (1.0 + share)
}

/// The greatest percentage alive of a segment that is worth cleaning, for its place or only for its frame.
pub(super) fn cleanable_percent(lane: &Lane, places: bool) -> usize {
    match lane.options.engine.when_full {
        // Its frame could simply go.
        _ if lane.durable.is_some() && !places => CLEAN_INSTEAD_OF_DROPPING,
        WhenFull::Evict => CLEAN_BELOW,
        WhenFull::Refuse if is_reserve_short(lane) => CLEAN_BELOW_FOR_RESERVE,
        WhenFull::Refuse => CLEAN_BELOW_WHEN_REFUSING,
    }
}

/// Whether of the reserve that values may not take too few places are left, counting those on their way.
pub(super) fn is_reserve_short(lane: &Lane) -> bool {
    let available = lane.log.available_numbers(Claim::Grow);
    // The store may grow between the two.
    let reserve = lane.log.spared(Claim::Write).saturating_sub(lane.log.spared(Claim::Grow));
    available.saturating_add(lane.log.quarantined()) < reserve.min(READY_FRAMES)
}
