//! Large values: filled in a mapping of their own while they arrive, then adopted by the log without
//! a copy.

use larder_log::append::{JUMBO_FOOTROOM, JUMBO_HEADROOM};
use larder_log::memory::mapping::pages;
use larder_log::record::{HEADER, MAX_KEY};
use larder_log::{Budget, Mapping};
use std::sync::Arc;

/// Room in front of the value for the longest header and key, and for what precedes a record in a
/// store.
const HEADROOM: usize = (HEADER + 16 + MAX_KEY + JUMBO_HEADROOM).next_multiple_of(64);
/// Room behind the value for the record's padding, and for what follows a record in a store.
const FOOTROOM: usize = 8 + JUMBO_FOOTROOM;

/// Bytes that are charged ahead of those that arrive: a value costs what has arrived of it.
const STEP: usize = 256 << 10;

/// Memory of a large value while its bytes arrive. The pages that were written to are charged to the
/// budget, and those of one step ahead.
#[derive(Debug)]
pub struct LargeValue {
    mapping: Option<Mapping>,
    len: usize,
    charged: u64,
    /// Memory was not there when it was asked for last.
    waits: bool,
    budget: Arc<Budget>,
}

impl LargeValue {
    /// Addresses for a value of `len` bytes; `None` if the operating system has none.
    pub(crate) fn map(len: usize, budget: &Arc<Budget>) -> Option<Self> {
        let granted = budget.grants().then(|| Mapping::new(len + HEADROOM + FOOTROOM).ok());
        let mapping = Some(granted.flatten()?);
        Some(LargeValue { mapping, len, charged: 0, waits: false, budget: Arc::clone(budget) })
    }

    /// The same with all of its memory charged. Without that the wish for it stays: the caller comes back
    /// with another value.
    pub(crate) fn charged(mut self) -> Option<Self> {
        if !self.charge(self.len) {
            self.waits = false;
            return None;
        }
        Some(self)
    }

    /// Charges the memory for the first `filled` bytes; false if the budget does not have it now.
    pub(crate) fn charge(&mut self, filled: usize) -> bool {
        let Some(mapping) = &self.mapping else { return true };
        let footprint = mapping.len() as u64;
        let needed = if filled < self.len { pages(HEADROOM + filled) as u64 } else { footprint };
        if needed <= self.charged {
            return true;
        }
        let more = (needed - self.charged).max(STEP as u64).min(footprint - self.charged);
        self.waits = !self.budget.try_charge_wanted(more);
        if self.waits {
            self.budget.want(more);
            return false;
        }
        self.charged += more;
        true
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

    /// Whether this is the budget that it is charged to.
    pub(crate) fn is_charged_to(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// It is charged to this budget from now on: the lane that adopts it may not be the one that it was
    /// begun for.
    pub(crate) fn charge_to(&mut self, budget: &Arc<Budget>) {
        if !Arc::ptr_eq(&self.budget, budget) {
            budget.charge(self.charged);
            self.budget.release(self.charged);
            self.budget = Arc::clone(budget);
        }
    }

    /// Hands the mapping out, and where a record whose value begins `head` bytes in must begin.
    pub(crate) fn take_record(&mut self, head: usize) -> Option<(Mapping, usize)> {
        // The record begins at a multiple of 8 wherever its value does: the log asks for no more.
        debug_assert!(head + JUMBO_HEADROOM <= HEADROOM);
        let mapping = self.mapping.take()?;
        // The segment gives all of it back.
        self.budget.charge(mapping.len() as u64 - std::mem::take(&mut self.charged));
        Some((mapping, HEADROOM - head))
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if self.mapping.take().is_some() {
            self.budget.release(self.charged);
        }
        if self.waits {
            // Others who wait say so again when they are woken.
            self.budget.unwant();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_given_up_wants_no_memory_any_more() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut large = LargeValue::map(2 << 20, &budget).expect("addresses");
        assert!(large.charge(100 << 10) && budget.wanted() == 0);
        assert!(!large.charge(2 << 20) && budget.wanted() > 0);
        drop(large);
        assert_eq!((budget.wanted(), budget.used()), (0, 0));
    }
}
