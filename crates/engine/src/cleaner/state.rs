//! The cleaner's state between two turns, and the kinds of its steps.

use crate::UnixSeconds;
use crate::cleaner::limiters::LimiterShare;
use crate::cleaner::map_walk::MapWalk;
use crate::durability::Changes;
use crate::lane::Lane;
use crate::older::OlderSlotWork;
use crate::options::WhenFull;
use crate::stats::Counters;
use larder_log::{Candidate, Claim, Participant, SegmentNumber, Stream};
use std::sync::Arc;
use std::time::Duration;

/// While probation holds more than 1/`PROBATION_SHARE` of the live bytes, items are evicted from
/// probation, otherwise from the survivors.
pub(super) const PROBATION_SHARE: u64 = 10;
/// The number of frames that writers should find ready.
pub(crate) const READY_FRAMES: usize = 2;
/// 1/`PLACES_SHARE` of the store's places should be ready for writers: at least [`READY_FRAMES`],
/// at most [`MAX_READY_PLACES`].
pub(super) const PLACES_SHARE: usize = 64;
/// The largest number of places that are kept ready, unless a waiting call needs more.
pub(super) const MAX_READY_PLACES: usize = 16;

/// The largest percentage of live bytes at which the cleaner cleans a segment instead of evicting
/// another segment.
const CLEAN_BELOW: usize = 60;
/// With a store, the largest percentage of live bytes at which the cleaner cleans a segment instead
/// of dropping its frame. If a segment's values are often overwritten, its share of live bytes
/// falls below this percentage soon. So the cleaner moves the rest of these values, and they stay
/// in memory.
const CLEAN_INSTEAD_OF_DROPPING: usize = 40;
/// The largest percentage of live bytes at which a segment is cleaned in refuse mode, where nothing
/// is evicted.
pub(super) const CLEAN_BELOW_WHEN_REFUSING: usize = 95;
/// Replaces [`CLEAN_BELOW_WHEN_REFUSING`] while the reserve of places for updates and deletes is
/// short. Dead bytes that are not cleaned then take at most 1% of the space of all segments. A
/// reserve is larger than that, so these bytes cannot use it up.
const CLEAN_BELOW_FOR_RESERVE: usize = 99;

/// The result of one step of cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A segment went into quarantine, or a frame was dropped. Also returned for a segment that
    /// cannot be cleaned and for a promoted jumbo, so that the turn continues with other segments.
    Freed,
    /// Nothing was freed now, but something can be freed later: for example, once a commit has
    /// ended, or once the threads that still append to a segment have finished.
    Later,
    /// A segment could not be read. Other segments are tried before it is tried again.
    Unreadable,
    /// Nothing can be freed.
    Nothing,
}

/// How the live records of a segment are treated. With every fate, expired records are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All records move on in the same stream. Those on the lower device move on to the survivors.
    Keep,
    /// S3-FIFO decides which records move on and which are evicted.
    Evict,
    /// All records move on to the lower device, except for a few that were read lately.
    Cool,
    /// Only expired records are removed. The segment stays.
    Sweep,
}

/// The treatment of a segment, and its stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) stream: Stream,
    pub(super) fate: Fate,
    /// True if the records can be copied. False for a jumbo that is not in memory.
    pub(super) whole: bool,
}

/// The state of the cleaner.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pub(super) counters: Arc<Counters>,
    pub(crate) participant: Participant,
    /// The cleaner's moves that are not durable yet; only in sync mode.
    pub(super) changes: Option<Arc<Changes>>,
    /// The walk for dead maps that is under way.
    pub(crate) map_walk: Option<MapWalk>,
    /// The state of the work on ends, the records that hide older versions and so keep segments
    /// from being freed.
    pub(crate) ends: Ends,
    /// The state of the work on older slots.
    pub(crate) settling: OlderSlotWork,
    /// The progress of this second's search for segments whose records have all expired: expiry and
    /// number of the last segment found; `None` if no more are left.
    pub(super) expired: Option<(UnixSeconds, SegmentNumber)>,
    /// While a segment moves to the lower device: how many bytes of its records may still stay on
    /// the fast device.
    pub(super) may_stay: usize,
    /// Expiry and number of the last expired segment that could not be read in this turn. The
    /// search for the next expired segment continues after it.
    pub(super) unreadable_at: (UnixSeconds, SegmentNumber),
    /// The second in which the last sweep began.
    pub(super) swept: UnixSeconds,
    /// While something must be freed: the epoch after which all threads have reported how many
    /// bytes they had made dead in each segment.
    pub(super) reported_by: Option<u64>,
    /// How long a reservation of memory or places has existed although no call waits for it.
    pub(super) wanted_for: Duration,
    /// The lane's count of reads and uses of large values, as last seen, and the number of turns
    /// for which the cleaner has spared such values since that count changed. Only turns that found
    /// nothing else to drop are counted.
    pub(super) spared: (u64, u32),
    /// The lane's count of hits when a frame was last dropped. If the count has not changed since,
    /// no record was read, so none is copied before the next frame is dropped.
    pub(super) hits: u64,
    /// Counts of the rate limiters among the items that were considered for eviction.
    pub(super) limiters: LimiterShare,
    /// The position in the probation queue up to which all examined segments had reads by clients.
    /// The search for a segment without reads continues after it.
    pub(super) examined_until: i64,
}

/// The state of the work on ends between two turns.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The newest durable commit at the time when the segments in quarantine were last examined.
    /// Their state changes only with a commit, so they are examined again only after the next one.
    pub(super) looked_at: u64,
    /// Bytes of tombstones that moved since dead maps were last made.
    pub(super) moved: u64,
    /// Dead maps are being made for all records that died up to this commit; 0 if none are being
    /// made.
    pub(super) maps_until: u64,
    /// True if space is needed and the cleaner found no segment that it may free now.
    pub(super) is_stuck: bool,
}

impl Ends {
    /// Notes that the cleaner found nothing to free although space is needed.
    pub(super) fn note_stuck(&mut self) {
        self.is_stuck = true;
    }
}

impl Cleaner {
    pub(crate) fn new(lane: &Lane) -> Self {
        Cleaner {
            counters: lane.new_counters(),
            participant: lane.epochs.join(),
            changes: lane.new_changes(),
            map_walk: None,
            ends: Ends::default(),
            settling: OlderSlotWork::default(),
            expired: None,
            unreadable_at: (0, 0),
            may_stay: 0,
            swept: 0,
            reported_by: None,
            wanted_for: Duration::ZERO,
            spared: (0, 0),
            hits: 0,
            limiters: LimiterShare::default(),
            examined_until: i64::MIN,
        }
    }
}

/// Returns the ratio of benefit to cost of cleaning a segment: `(1-u)·age/(1+u)`, where u is the
/// share of live bytes.
pub(super) fn benefit(segment: &Candidate, now: UnixSeconds) -> f64 {
    // The live share is relative to the bytes written, not to the segment's size. Otherwise a
    // partly filled segment without dead bytes would be cleaned repeatedly.
    let share = f64::from(segment.live) / f64::from(segment.filled.max(1));
    let age = f64::from(now.saturating_sub(segment.born)) + 1.0;
    (1.0 - share) * age / (1.0 + share)
}

/// Returns the largest percentage of live bytes at which cleaning a segment pays. `places` is true
/// if a place is needed, and false if only a frame is.
pub(super) fn cleanable_percent(lane: &Lane, places: bool) -> usize {
    match lane.options.when_full {
        // If only a frame is needed, the alternative to cleaning is to drop the segment's frame.
        _ if lane.has_store() && !places => CLEAN_INSTEAD_OF_DROPPING,
        WhenFull::Evict => CLEAN_BELOW,
        WhenFull::Refuse if is_reserve_short(lane) => CLEAN_BELOW_FOR_RESERVE,
        WhenFull::Refuse => CLEAN_BELOW_WHEN_REFUSING,
    }
}

/// Returns true if the reserve that only updates and deletes may use has too few places left, even
/// counting places that are about to become free.
pub(super) fn is_reserve_short(lane: &Lane) -> bool {
    let available = lane.log.available_places(Claim::Grow);
    // The subtraction saturates, because the store may grow between the two calls.
    let reserve = lane.log.spared(Claim::Write).saturating_sub(lane.log.spared(Claim::Grow));
    available.saturating_add(lane.log.quarantined()) < reserve.min(READY_FRAMES)
}
