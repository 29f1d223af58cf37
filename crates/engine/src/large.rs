//! Large values: filled in their own mapping while they arrive, then adopted by the log without a
//! copy.

use larder_log::append::{JUMBO_FOOTROOM, JUMBO_HEADROOM};
use larder_log::memory::mapping::pages;
use larder_log::record::{HEADER, MAX_KEY};
use larder_log::{Budget, Mapping};
use std::sync::Arc;

/// Room before the value, in bytes: for the longest header and key, and for what precedes a record
/// in a store.
const HEADROOM: usize = (HEADER + 16 + MAX_KEY + JUMBO_HEADROOM).next_multiple_of(64);
/// Room behind the value, in bytes: for the record's padding, and for what follows a record in a
/// store.
const FOOTROOM: usize = 8 + JUMBO_FOOTROOM;

/// Bytes charged ahead of those that arrive, so that a value costs about what has arrived of it.
const STEP: usize = 256 << 10;

/// Memory of a large value while its bytes arrive. The budget is charged for the pages written to
/// and for one step ahead.
#[derive(Debug)]
pub struct LargeValue {
    mapping: Option<Mapping>,
    len: usize,
    charged: u64,
    /// The last charge failed, and the budget has a reservation for it.
    waits: bool,
    budget: Arc<Budget>,
}

impl LargeValue {
    /// Reserves address space for a value of `len` bytes; `None` if the operating system has none.
    pub(crate) fn map(len: usize, budget: &Arc<Budget>) -> Option<Self> {
        let granted = budget.grants().then(|| Mapping::new(len + HEADROOM + FOOTROOM).ok());
        let mapping = Some(granted.flatten()?);
        Some(LargeValue { mapping, len, charged: 0, waits: false, budget: Arc::clone(budget) })
    }

    /// Charges all of the memory. On failure the reservation for it stays, because the caller
    /// returns with another value.
    pub(crate) fn charged(mut self) -> Option<Self> {
        if !self.charge(self.len) {
            self.waits = false;
            return None;
        }
        Some(self)
    }

    /// Charges the memory for the first `filled` bytes. Returns false if the budget does not have
    /// it now.
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

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value's bytes. Those not filled yet are zero.
    pub fn bytes(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else { return &[] };
        // SAFETY: the mapping is owned, longer than headroom and value, and zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(mapping.base().add(HEADROOM), self.len) }
    }

    /// Returns the value's bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(mapping) = &self.mapping else { return &mut [] };
        // SAFETY: the mapping is owned, longer than headroom and value, and zeroed by the kernel.
        unsafe { std::slice::from_raw_parts_mut(mapping.base().add(HEADROOM), self.len) }
    }

    /// Returns true if the value is charged to this budget.
    pub(crate) fn is_charged_to(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// Moves the charge to this budget. The lane that adopts the value may not be the one that it
    /// was begun for.
    pub(crate) fn charge_to(&mut self, budget: &Arc<Budget>) {
        if !Arc::ptr_eq(&self.budget, budget) {
            budget.charge(self.charged);
            self.budget.release(self.charged);
            self.budget = Arc::clone(budget);
        }
    }

    /// Returns the mapping, and the offset at which a record must begin whose value begins `head`
    /// bytes in.
    pub(crate) fn take_record(&mut self, head: usize) -> Option<(Mapping, usize)> {
        // The record begins at a multiple of 8 for any position of the value. The log requires no
        // more.
        debug_assert!(head + JUMBO_HEADROOM <= HEADROOM);
        let mapping = self.mapping.take()?;
        // The segment will release the whole mapping.
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
            // Other waiting calls renew their reservations when they are woken.
            self.budget.unwant();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_value_withdraws_its_reservation() {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut large = LargeValue::map(2 << 20, &budget).expect("addresses");
        assert!(large.charge(100 << 10) && budget.wanted() == 0);
        assert!(!large.charge(2 << 20) && budget.wanted() > 0);
        drop(large);
        assert_eq!((budget.wanted(), budget.used()), (0, 0));
    }
}
