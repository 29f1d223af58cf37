//! The mover's state: the motion under way, and the partitions that it skips for a while after
//! failures.

use crate::item::ItemHandle;
use crate::lane::session::LaneSession;
use crate::reads::LaneReads;
use larder_log::{RecordId, SegmentNumber};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The motion that the mover is working on.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) partitions: Range<usize>,
    /// Index of the source in `Engine::lanes`: the lane that has the items. If the mover gives the
    /// motion up after it has copied items, it swaps `from` and `to`, and deletes the copies from
    /// `from`.
    pub(super) from: usize,
    /// Index of the target in `Engine::lanes`: the lane that gets the items.
    pub(super) to: usize,
    /// True while the partitions are closed: no session can use them.
    pub(super) closed: bool,
    pub(super) phase: Phase,
    /// The undo count of the lane that the mover writes to, at the time when the current writes
    /// began; `None` before that. The writes span several commits. If one of these commits fails,
    /// the count changes and the writes must be repeated.
    pub(super) undo_count: Option<u64>,
    /// True if the mover has given the motion up, so the partitions stay in the lane that had them.
    pub(super) given_up: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Waits until everything that the target evicted from these segments (number and generation)
    /// is durably gone. The second field counts how often the mover has checked this.
    Ready(Vec<(SegmentNumber, u32)>, u32),
    /// Waits until every session has passed a quiescent point. The field has the epoch that each
    /// lane must have passed.
    Close(Vec<u64>),
    /// In sync mode, waits until this commit of the source and all earlier ones are durable or
    /// undone. They contain all writes that were made before the partitions were closed.
    Settle(u64),
    /// Deletes the leftovers of an earlier attempt from the target.
    Clear(Walk),
    /// Copies the items from the source to the target.
    Copy(Walk),
    /// Waits until the copies are durable. The fields are the target's commit that covers them, and
    /// the time at which the wait began, in microseconds of the target's clock.
    Await(u64, u64),
    /// Makes the target the owner in the table.
    HandOver,
    /// Deletes the items from the source.
    Empty(Walk),
    /// Waits until the deletions are durable, with this commit of the source.
    AwaitEmpty(u64),
    /// Records the end of the motion in the table.
    End,
}

/// The state of the mover.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    pub(super) job: Option<Job>,
    /// The ranges of partitions that the mover could not move. The key is the first partition of a
    /// range.
    pub(super) backoff: HashMap<usize, Backoff>,
    /// One session for each lane while there is a job. The sessions sleep between steps.
    pub(super) sessions: Vec<LaneSession>,
    pub(super) ended: bool,
}

/// A range of partitions that the mover skips after failures. `failures` counts the motions that it
/// gave up. The mover may choose the range again in its `wait`th choice from now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    pub(super) wait: u32,
}

/// A walk over the items of some stripes of a lane. The cleaner may move items during the walk. So
/// after the last listed item, the walk lists the items again. It ends at a listing without an item
/// that is new to it.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The items still to visit.
    pub(super) handles: Vec<ItemHandle>,
    pub(super) seen: HashSet<RecordId>,
    /// The reads that items of the last step wait for.
    pub(super) reads: Option<LaneReads>,
}
