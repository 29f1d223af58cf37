//! Dead maps: durable marks of a segment's superseded records.

use crate::address::SegmentNumber;
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::unmark;
use crate::memory::Budget;
use std::sync::Arc;

/// A dead map that was begun: see [`DurableLog::begin_map`](crate::DurableLog::begin_map).
#[derive(Clone, Copy, Debug)]
pub struct BegunMap {
    /// The segment.
    pub segment: SegmentNumber,
    /// The segment's generation that the map is made for.
    pub generation: u32,
    /// A commit number: the map will have every record that died up to this commit. All these
    /// records lie before `until`.
    pub cover: u64,
    /// The segment's length when the map was begun. The map has no records from this offset on,
    /// because they may be incomplete.
    pub until: u32,
}

/// State of a segment whose map was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapState {
    /// The segment's records before [`BegunMap::until`] are durable. So their appends have ended,
    /// and the index leads to every live one.
    Ready,
    /// Some of these records are not durable, so the map waits for a commit.
    Undurable,
    /// The segment is free, so there is nothing to mark.
    Gone,
}

/// A dead map of a segment. Its memory is charged to the budget.
#[derive(Debug)]
pub struct DeadMap {
    pub(super) begun: BegunMap,
    /// All deaths in the map are durable once this commit is durable. `u64::MAX` until the map is
    /// finished.
    pub(super) after: u64,
    /// `CommitMarks::undo_count` from before the index was queried. If the count has changed since,
    /// deaths in the map may have been undone.
    pub(super) undo_count: u64,
    /// One bit per 16 bytes of the segment: see [`crate::format::meta::mark`].
    pub(super) bits: Vec<u8>,
    pub(super) budget: Arc<Budget>,
}

impl Drop for DeadMap {
    fn drop(&mut self) {
        self.budget.release(self.bits.len() as u64);
    }
}

impl DeadMap {
    /// Returns what was noted when the map was begun.
    pub fn begun(&self) -> &BegunMap {
        &self.begun
    }

    /// Returns the map's bits.
    pub(crate) fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Clears the mark of the record at `offset`. At first the map marks every record. The caller
    /// clears the marks of all records that the index leads to, because these are alive.
    pub fn mark_alive(&mut self, offset: usize, is_jumbo: bool) {
        unmark(&mut self.bits, if is_jumbo { RECORD_AT } else { offset });
    }

    /// Completes the map after the index was queried for all keys of the segment. All deaths in the
    /// map are durable once commit `after` is durable.
    pub fn finish(&mut self, after: u64) {
        self.after = after;
    }
}
