//! Large values: filled in a mapping of their own while they arrive, then adopted by the log without
//! a copy.

use larder_log::log::{JUMBO_FOOTROOM, JUMBO_HEADROOM};
use larder_log::memory::pages;
use larder_log::record::{HEADER, MAX_KEY};
use larder_log::{Budget, Mapping};
use std::sync::Arc;

/// Room in front of the value for the longest header and key, and for what precedes a record in a
/// store.
const HEADROOM: usize = (HEADER + 16 + MAX_KEY + JUMBO_HEADROOM).next_multiple_of(64);
/// Room behind the value for the record's padding, and for what follows a record in a store.
const FOOTROOM: usize = 8 + JUMBO_FOOTROOM;

/// Memory of a large value while its bytes arrive, charged to the budget.
#[derive(Debug)]
pub struct LargeValue {
    mapping: Option<Mapping>,
    len: usize,
    budget: Arc<Budget>,
}

impl LargeValue {
    /// Bytes that a value of `len` bytes charges.
    pub(crate) fn footprint(len: usize) -> u64 {
        pages(len + HEADROOM + FOOTROOM) as u64
    }

    /// Maps memory whose footprint is charged already; `None` (and the charge given back) if the
    /// operating system has none.
    pub(crate) fn map(len: usize, budget: &Arc<Budget>) -> Option<Self> {
        let granted = budget.grants().then(|| Mapping::new(len + HEADROOM + FOOTROOM).ok());
        let Some(mapping) = granted.flatten() else {
            budget.release(Self::footprint(len));
            return None;
        };
        Some(LargeValue { mapping: Some(mapping), len, budget: Arc::clone(budget) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value's bytes, as far as they were filled.
    pub fn bytes(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else { return &[] };
        // SAFETY: the mapping is owned, longer than headroom and value, and zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(mapping.base().add(HEADROOM), self.len) }
    }

    /// The value's bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(mapping) = &self.mapping else { return &mut [] };
        // SAFETY: the mapping is owned, longer than headroom and value, and zeroed by the kernel.
        unsafe { std::slice::from_raw_parts_mut(mapping.base().add(HEADROOM), self.len) }
    }

    /// It is charged to this budget from now on: the lane that adopts it may not be the one that it was
    /// begun for.
    pub(crate) fn charge_to(&mut self, budget: &Arc<Budget>) {
        if let Some(mapping) = &self.mapping
            && !Arc::ptr_eq(&self.budget, budget)
        {
            budget.charge(mapping.len() as u64);
            self.budget.release(mapping.len() as u64);
            self.budget = Arc::clone(budget);
        }
    }

    /// Hands the mapping out, and where a record whose value begins `head` bytes in must begin.
    pub(crate) fn take_record(&mut self, head: usize) -> Option<(Mapping, usize)> {
        // The record begins at a multiple of 8 wherever its value does: the log asks for no more.
        debug_assert!(head + JUMBO_HEADROOM <= HEADROOM);
        Some((self.mapping.take()?, HEADROOM - head))
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.budget.release(mapping.len() as u64);
        }
    }
}
