//! A lane's memory: how much it needs, how large its segments are, and what its index may take.

use crate::error::StoreError;
use crate::index::Index;
use crate::index::slot::Slot;
use crate::lane::Lane;
use crate::lane::options::LaneStore;
use crate::large::LargeValue;
use larder_log::{Budget, MAX_SEGMENT_SIZE};

/// The least memory that a lane works with, in bytes.
pub const MIN_MEMORY: u64 = 8 << 20;
/// The smallest largest item, in bytes.
pub const MIN_ITEM_SIZE: u64 = 1024;
/// The greatest largest item, in bytes.
pub const MAX_ITEM_SIZE: u64 = 1 << 30;
/// `set_memory_limit` may raise the limit to this many times what the engine was opened with.
pub(crate) const GROWTH: u64 = 4;
/// Frames that an engine with a store needs at least: those it appends to, the cleaner's reserve, and
/// some that can be read.
const MIN_FRAMES: usize = 8;
/// Frames that an index leaves room for.
const FRAMES_BESIDE_INDEX: usize = MIN_FRAMES + MIN_FRAMES / 2;
/// Frames that memory is divided into, about: the more, the finer the eviction, and the less of it is kept free
/// or half full. With a store segments are written as they are, and larger ones take fewer writes.
pub(super) const FRAMES: u64 = 256;
const FRAMES_WITH_STORE: u64 = 128;

impl Lane {
    /// Gives the lane another share of the memory, in bytes. What is over it is evicted in the
    /// background.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.budget.set_limit(bytes);
        self.log.forget_spare();
        self.limit_index();
        self.set_full(None);
        self.kick_cleaner();
    }

    /// Limits what the index may take by the memory that there is.
    pub(crate) fn limit_index(&self) {
        if self.durable.is_some() {
            self.index.set_limit(index_limit(self.budget.limit(), self.log.segment_size()));
        }
    }

    /// Checks that the index has room for `items` items.
    ///
    /// # Errors
    /// It needs more.
    pub(crate) fn check_index(&self, items: usize) -> Result<(), StoreError> {
        let minimum = memory_for_index(items, self.log.segment_size());
        // A lane that owns no keys always gets the least memory.
        let owns = |store: &LaneStore| store.lanes.owned(usize::from(store.lanes.here)) > 0;
        let may_have_more = self.store().is_some_and(owns);
        match minimum > self.options.memory && may_have_more {
            true => Err(StoreError::IndexTooLarge { minimum }),
            false => Ok(()),
        }
    }

    /// Whether tables of `items` items, with room to grow, stay within the limit of the index.
    pub(crate) fn has_room_for_index(&self, items: usize) -> bool {
        Index::has_room(items, index_limit(self.options.memory, self.log.segment_size()))
    }

    /// The least memory that it works with, in bytes.
    pub(crate) fn min_memory(&self) -> u64 {
        min_memory(self.durable.is_some(), self.log.segment_size())
    }

    /// The largest value of an item with this key length, in bytes: with it, client flags and an
    /// expiry the item has the largest size.
    pub(crate) fn max_value_len(&self, key_len: usize) -> usize {
        let head = larder_log::record::HEADER + 8 + key_len;
        (self.options.engine.max_item_size as usize).saturating_sub(head)
    }

    /// Values longer than this are filled in place: see
    /// [`Session::large_value`](crate::Session::large_value).
    pub(crate) fn large_value_threshold(&self) -> usize {
        self.log.largest_record() - larder_log::record::MAX_KEY - 64
    }

    /// The memory for a large value, all of it charged, if the budget has it.
    pub(crate) fn map_large(&self, len: usize) -> Option<LargeValue> {
        LargeValue::map(len, &self.budget)?.charged()
    }

    /// Requests for memory so far, where one is to be refused.
    pub(crate) fn memory_requests(&self) -> u64 {
        self.budget.requests()
    }
}

/// With a store the index may take all of the memory but for the frames that an engine cannot do
/// without, and for what is kept for connections; beyond that items are evicted or refused, however much
/// room there is on the device.
fn index_limit(memory: u64, segment_size: usize) -> u64 {
    Budget::most_lasting(memory).saturating_sub((FRAMES_BESIDE_INDEX * segment_size) as u64)
}

/// The least memory that an index of `items` items works with, in bytes. A server whose index has reached its
/// limit has that much, so it can always start again.
fn memory_for_index(items: usize, segment_size: usize) -> u64 {
    const STEP: u64 = 1 << 20;
    let tables = (items * size_of::<Slot>()) as u64;
    let mut memory = tables.next_multiple_of(STEP);
    while index_limit(memory, segment_size) < tables {
        memory += STEP;
    }
    memory
}

/// The least memory, in bytes, that a lane with segments of this size works with.
pub(crate) fn min_memory(with_store: bool, segment_size: usize) -> u64 {
    let frames = if with_store { (segment_size * MIN_FRAMES) as u64 * 2 } else { 0 };
    frames.max(MIN_MEMORY)
}

/// Bytes of a segment of a new store, for a lane with this memory.
pub(crate) fn segment_size_with_store(memory: u64) -> usize {
    segment_size(memory, FRAMES_WITH_STORE)
}

pub(super) fn segment_size(memory: u64, frames: u64) -> usize {
    let target = (memory / frames).max(1);
    (1usize << target.ilog2()).clamp(64 << 10, MAX_SEGMENT_SIZE / 4)
}
