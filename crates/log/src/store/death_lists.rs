//! Two lists of segments. The first has the segments with dead records that no durable dead map
//! marks. The second has the segments into which tombstones of other segments were copied.
//! [`reclaim::deaths`](crate::reclaim::deaths) has the rules for both lists.

use crate::address::SegmentNumber;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;

/// Stands in for the commit of a segment's earliest death if no record of the segment has died.
pub(crate) const NEVER: u64 = u64::MAX;
/// The value of [`Deaths::closed`] while the segment is not closed.
pub(crate) const OPEN: u64 = u64::MAX;

/// What is known about the dead records of one segment.
#[derive(Debug)]
pub(crate) struct Deaths {
    /// The earliest commit in which a record may have died since the latest dead map of the segment
    /// was begun.
    pub(crate) noted: AtomicU64,
    /// While a dead map of the segment is being made, the earliest commit of the deaths that this
    /// map will mark; otherwise `NEVER`.
    pub(crate) mapping: AtomicU64,
    /// The commit by which [`Unmarked`], the list of segments with unmarked deaths, sorts this
    /// segment; `NEVER` if it is not in the list. Changes only together with the list.
    pub(crate) listed: AtomicU64,
    /// Position of the segment in the order of opening since this start; 0 if the segment was
    /// opened before this start.
    pub(crate) opened: AtomicU64,
    /// How many segments had been opened since this start when the last record was appended to this
    /// segment and it was closed; `OPEN` while it is open.
    pub(crate) closed: AtomicU64,
}

impl Default for Deaths {
    fn default() -> Self {
        Deaths {
            noted: AtomicU64::new(NEVER),
            mapping: AtomicU64::new(NEVER),
            listed: AtomicU64::new(NEVER),
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }
}

impl Deaths {
    /// Returns the commit of the earliest death that the segment's durable dead map does not mark;
    /// `NEVER` if there is no such death.
    pub(crate) fn earliest(&self) -> u64 {
        self.noted.load(Ordering::Acquire).min(self.mapping.load(Ordering::Acquire))
    }

    pub(crate) fn clear(&self) {
        self.noted.store(NEVER, Ordering::Release);
        self.mapping.store(NEVER, Ordering::Release);
    }
}

/// Segments with dead records that no durable dead map marks, by the commit of the earliest death.
/// The lock on this list must be held to change the deaths that a segment has noted.
#[derive(Debug, Default)]
pub(crate) struct Unmarked(pub(crate) BTreeSet<(u64, SegmentNumber)>);

impl Unmarked {
    /// Moves a segment to its place in the list after its deaths have changed.
    pub(crate) fn update(&mut self, number: SegmentNumber, deaths: &Deaths) {
        let (before, now) = (deaths.listed.load(Ordering::Relaxed), deaths.earliest());
        if before == now {
            return;
        }
        if before != NEVER {
            self.0.remove(&(before, number));
        }
        if now != NEVER {
            self.0.insert((now, number));
        }
        deaths.listed.store(now, Ordering::Relaxed);
    }

    /// Returns the segments whose earliest death is in a commit up to `until`, the earliest first.
    pub(crate) fn until(&self, until: u64) -> impl Iterator<Item = SegmentNumber> {
        self.0.range(..=(until, SegmentNumber::MAX)).map(|&(_, number)| number)
    }
}

/// Segments with copied tombstones, in the order in which the segments were closed. Open segments
/// come last. A copied tombstone counts as alive until it is no longer needed.
#[derive(Debug, Default)]
pub(crate) struct Holders(pub(crate) BTreeSet<(u64, SegmentNumber)>);

impl Holders {
    pub(crate) fn add(&mut self, number: SegmentNumber, deaths: &Deaths) {
        self.0.insert((deaths.closed.load(Ordering::Acquire), number));
    }

    pub(crate) fn remove(&mut self, number: SegmentNumber, deaths: &Deaths) {
        let closed = deaths.closed.load(Ordering::Acquire);
        self.0.remove(&(closed, number));
        self.0.remove(&(OPEN, number));
    }

    /// Moves a segment that was just closed to its place in the order.
    pub(crate) fn close(&mut self, number: SegmentNumber, deaths: &Deaths) {
        if self.0.remove(&(OPEN, number)) {
            self.add(number, deaths);
        }
    }

    /// Returns the closed segments, in the order of closing.
    pub(crate) fn closed(&self) -> impl DoubleEndedIterator<Item = SegmentNumber> {
        self.0.range(..(OPEN, 0)).map(|&(_, number)| number)
    }
}

/// Segments, with their generations, whose deaths need no dead map once the fence of a `flush_all`
/// is durable. That is so when the first `changes` changes of the superblock are durable.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    pub(crate) changes: u64,
    pub(crate) segments: Vec<(SegmentNumber, u32)>,
}

/// What a store knows about dead records.
#[derive(Debug, Default)]
pub(crate) struct DeathLists {
    pub(crate) unmarked: Mutex<Unmarked>,
    /// The segments of `unmarked` whose dead records all lie below a fence that is not durable yet.
    pub(crate) fenced: Mutex<Fenced>,
    /// Segments that hold copied tombstones.
    pub(crate) holders: Mutex<Holders>,
    /// Number of segments that were opened since this start.
    pub(crate) opened_segments: AtomicU64,
}

impl DeathLists {
    /// The most memory that a segment adds to the lists, in bytes: half-full nodes in two B-trees.
    pub(crate) const BYTES: usize = 2 * 2 * size_of::<(u64, SegmentNumber)>();
}
