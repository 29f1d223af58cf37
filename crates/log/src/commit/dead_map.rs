//! Dead maps: durable marks of a segment's superseded records.

use crate::address::SegmentNumber;
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::unmark;
use crate::memory::Budget;
use std::sync::Arc;

/// A dead map that was begun: see [`Log::begin_map`](crate::Log::begin_map).
#[derive(Clone, Copy, Debug)]
pub struct BegunMap {
    /// The segment.
    pub segment: SegmentNumber,
    /// The segment's generation that the map is made for.
    pub generation: u32,
    /// Commit number: every record that died up to this commit will be in the map.
    pub cover: u64,
    /// Records from this offset on are not in the map, because they may be incomplete.
    pub until: u32,
}

/// State of a segment whose map was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapState {
    /// The segment's records are durable, so the index leads to every live one.
    Ready,
    /// Some of the segment's records are not durable, so the map waits for a commit.
    Undurable,
    /// The segment is free, so there is nothing to mark.
    Gone,
}

/// A dead map of a segment. Its memory is charged to the budget.
#[derive(Debug)]
pub struct DeadMap {
    pub(super) begun: BegunMap,
    /// All deaths in the map are durable once this commit is. `u64::MAX` until the map is finished.
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

    /// Clears the mark of the record at `offset`. Called for every record that the index leads to,
    /// because such a record is alive.
    pub fn mark_alive(&mut self, offset: usize, is_jumbo: bool) {
        unmark(&mut self.bits, if is_jumbo { RECORD_AT } else { offset });
    }

    /// Completes the map after the index was queried for all keys of the segment. All deaths in the
    /// map are durable once commit `after` is.
    pub fn finish(&mut self, after: u64) {
        self.after = after;
    }
}
