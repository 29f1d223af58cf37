//! What the mover is at, and what it has given up for a while.

use crate::item::ItemHandle;
use crate::lane::session::LaneSession;
use crate::reads::LaneReads;
use larder_log::{Address, SegmentNumber};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What the mover is at.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) partitions: Range<usize>,
    /// Positions of the lane that has the items, or what is left of them, and of the one that gets them.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Nobody gets at them.
    pub(super) closed: bool,
    pub(super) phase: Phase,
    /// How often the lane that is written to had undone something when that began, if it has. What was
    /// written is in several commits: if one of them fails, it is to be done again.
    pub(super) undoings: Option<u64>,
    /// They stay where they were.
    pub(super) given_up: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// What was taken out of these uses of the other lane's segments is to be gone; looked at so often.
    Ready(Vec<(SegmentNumber, u32)>, u32),
    /// Every session is to pass a quiescent point: the epochs of the lanes that must have passed.
    Close(Vec<u64>),
    /// What was written before is to be durable or undone, up to this commit of the first lane.
    Settle(u64),
    /// The other lane is emptied of what an earlier attempt has left.
    Clear(Walk),
    Copy(Walk),
    /// The copies are to be durable, with this commit of the other lane; since when, in microseconds of its
    /// clock.
    Await(u64, u64),
    /// The other lane is to own them.
    HandOver,
    /// The first lane is emptied.
    Empty(Walk),
    /// That is to be durable, with this commit of the first lane.
    AwaitEmpty(u64),
    /// The motion has ended.
    End,
}

/// The mover's own state.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    pub(super) job: Option<Job>,
    /// Partitions that could not be moved, by the first of them.
    pub(super) tired: HashMap<usize, Tired>,
    /// One for each lane while there is a job; asleep between steps.
    pub(super) sessions: Vec<LaneSession>,
    pub(super) ended: bool,
}

/// How often something could not be done, and for how many attempts it is left alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tired {
    pub(super) failures: u32,
    pub(super) wait: u32,
}

/// A walk over the items of some stripes of a lane, until none is left that it has not seen. The
/// cleaner may move items meanwhile, so the walk looks again when it reaches the end.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The items still to visit.
    pub(super) handles: Vec<ItemHandle>,
    pub(super) seen: HashSet<(Address, u32)>,
    /// The reads that the current chunk waits for.
    pub(super) reads: Option<LaneReads>,
}
