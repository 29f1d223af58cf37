//! A lane's memory: the least it needs, the size of its segments, and the limit of its index.
//! Invariant: when the index is at its limit, memory still has room for the frames that a lane
//! needs. So a server that stops with a full index can start again with the same memory.

use crate::cleaner::READY_FRAMES;
use crate::error::StoreError;
use crate::index::Index;
use crate::index::slot::Slot;
use crate::lane::Lane;
use crate::lane::options::LaneStore;
use crate::large::LargeValue;
use larder_log::{Budget, CLEANER_RESERVE, MAX_SEGMENT_SIZE};

/// The smallest memory that a lane works with, in bytes.
pub const MIN_MEMORY: u64 = 8 << 20;
/// The smallest value of the option for the largest item, in bytes.
pub const MIN_ITEM_SIZE: u64 = 1024;
/// The largest value of the option for the largest item, in bytes.
pub const MAX_ITEM_SIZE: u64 = 1 << 30;
/// The largest memory limit of a running engine, as a multiple of the memory that it was opened
/// with.
pub(crate) const GROWTH: u64 = 4;
/// The smallest number of frames of a lane with a store: those that it appends to, the cleaner's
/// reserve, and some for reads.
const MIN_FRAMES: usize = 8;
/// The number of frames for which memory has room when the index is at its limit.
const FRAMES_BESIDE_INDEX: usize = MIN_FRAMES + MIN_FRAMES / 2;
/// Approximate number of frames into which the memory of a lane without a store is divided. The
/// more frames, the finer is eviction, and the less memory is free or in half-full frames.
pub(super) const FRAMES: u64 = 256;
/// As `FRAMES`, with a store. Frames are fewer and larger then: a segment is as large as a frame,
/// and larger segments need fewer writes.
const FRAMES_WITH_STORE: u64 = 128;

impl Lane {
    /// Sets the lane's share of the memory, in bytes. If the lane uses more than that, the cleaner
    /// frees memory in the background.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.budget.set_limit(bytes);
        self.log.forget_spare();
        self.limit_index();
        self.set_full(None);
        self.kick_cleaner();
    }

    /// Sets the limit of the index according to the lane's memory, if there is a store.
    pub(crate) fn limit_index(&self) {
        if self.has_store() {
            self.index.set_limit(index_limit(self.budget.limit(), self.log.segment_size()));
        }
    }

    /// Checks that the index has room for `items` items.
    ///
    /// # Errors
    /// The items need more memory than the lane has. Never returned for a lane without a store or
    /// without keys.
    pub(crate) fn check_index(&self, items: usize) -> Result<(), StoreError> {
        let segment_size = self.log.segment_size();
        // A lane that owns no keys always gets the smallest share of memory. A higher memory limit
        // would not help it.
        let owns = |store: &LaneStore| store.lanes.owned(store.lanes.here) > 0;
        let may_have_more = self.store().is_some_and(owns);
        match !index_fits(items, self.options.memory, segment_size) && may_have_more {
            true => {
                let minimum = memory_for_index(items, segment_size);
                Err(StoreError::IndexTooLarge { minimum })
            }
            false => Ok(()),
        }
    }

    /// Returns true if tables of `items` items, with room to grow, stay within the index's limit.
    pub(crate) fn has_room_for_index(&self, items: usize) -> bool {
        Index::has_room(items, index_limit(self.options.memory, self.log.segment_size()))
    }

    /// Returns the smallest memory that the lane works with, in bytes.
    pub(crate) fn min_memory(&self) -> u64 {
        min_memory(self.has_store(), self.log.segment_size())
    }

    /// Returns the length of the largest value for a key of `key_len` bytes, in bytes. An item with
    /// such a value, client flags and an expiry has exactly the largest item size.
    pub(crate) fn max_value_len(&self, key_len: usize) -> usize {
        let head = larder_log::record::HEADER + 8 + key_len;
        (self.options.max_item_size as usize).saturating_sub(head)
    }

    /// Returns the length, in bytes, above which a value gets separate memory, which is filled
    /// while its bytes arrive: see [`Session::large_value`](crate::Session::large_value).
    pub(crate) fn large_value_threshold(&self) -> usize {
        self.log.largest_record() - larder_log::record::MAX_KEY - 64
    }

    /// Maps and charges the memory for a large value. Returns `None` if there is no memory for it.
    pub(crate) fn map_large(&self, len: usize) -> Option<LargeValue> {
        LargeValue::map(len, &self.budget)?.charged()
    }

    /// Returns the number of memory requests so far that a simulation may refuse; 0 if the lane was
    /// opened to refuse none.
    pub(crate) fn memory_requests(&self) -> u64 {
        self.budget.requests()
    }
}

/// Returns the limit of the index with a store, in bytes. The limit is all memory except
/// [`FRAMES_BESIDE_INDEX`] frames and the memory kept for connections. An index at its limit cannot
/// grow: new items then evict others or are refused, however much room the device has.
fn index_limit(memory: u64, segment_size: usize) -> u64 {
    Budget::most_lasting(memory).saturating_sub((FRAMES_BESIDE_INDEX * segment_size) as u64)
}

/// Returns the least size of an index of `items` items, in bytes.
fn index_bytes(items: usize) -> u64 {
    (items * size_of::<Slot>()) as u64
}

/// Returns true if the index of a lane with `memory` bytes can hold `items` items. An index that
/// has reached its limit fits into the lane's memory, so the server can always start again.
fn index_fits(items: usize, memory: u64, segment_size: usize) -> bool {
    index_bytes(items) <= index_limit(memory, segment_size)
}

/// Returns the smallest memory of a lane whose index can hold `items` items, in bytes. It is a
/// multiple of 1 MiB, because it is a proposal for an operator.
fn memory_for_index(items: usize, segment_size: usize) -> u64 {
    const STEP: u64 = 1 << 20;
    let mut memory = index_bytes(items).next_multiple_of(STEP);
    while !index_fits(items, memory, segment_size) {
        memory += STEP;
    }
    memory
}

/// Returns the smallest memory that a lane with segments of this size works with, in bytes.
pub(crate) fn min_memory(with_store: bool, segment_size: usize) -> u64 {
    let frames = if with_store { (segment_size * MIN_FRAMES) as u64 * 2 } else { 0 };
    frames.max(MIN_MEMORY)
}

/// Returns the segment size of a new store for a lane with this memory, in bytes.
pub(crate) fn segment_size_with_store(memory: u64) -> usize {
    segment_size(memory, FRAMES_WITH_STORE)
}

/// Returns the number of bytes that only frames may use. The lane has `memory` bytes and no store,
/// and it evicts nothing.
pub(super) fn bytes_for_frames(memory: u64) -> u64 {
    ((CLEANER_RESERVE + READY_FRAMES) * segment_size(memory, FRAMES)) as u64
}

pub(super) fn segment_size(memory: u64, frames: u64) -> usize {
    let target = (memory / frames).max(1);
    (1usize << target.ilog2()).clamp(64 << 10, MAX_SEGMENT_SIZE / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_at_its_limit_fits_into_the_same_memory() {
        for memory in (MIN_MEMORY..64 << 20).step_by(123_456) {
            let segment_size = segment_size_with_store(memory);
            let items = index_limit(memory, segment_size) as usize / size_of::<Slot>();
            assert!(index_fits(items, memory, segment_size), "{memory}");
            assert!(!index_fits(items + 1, memory, segment_size), "{memory}");
            let proposed = memory_for_index(items + 1, segment_size);
            assert!(proposed > memory && index_fits(items + 1, proposed, segment_size), "{memory}");
        }
    }
}
