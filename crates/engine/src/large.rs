//! Large values. Each has its own memory mapping, which is filled while the bytes arrive. The log
//! then adopts the mapping without a copy.

use larder_log::append::{JUMBO_FOOTROOM, JUMBO_HEADROOM};
use larder_log::memory::mapping::pages;
use larder_log::record::{HEADER, MAX_KEY};
use larder_log::{Budget, Mapping};
use std::sync::Arc;

/// Room before the value, in bytes: for the segment header of a store, and for the longest record
/// header and key.
const HEADROOM: usize = (HEADER + 16 + MAX_KEY + JUMBO_HEADROOM).next_multiple_of(64);
/// Room behind the value, in bytes: for the record's padding, and for the commit trailer of a
/// store.
const FOOTROOM: usize = 8 + JUMBO_FOOTROOM;

/// The smallest amount, in bytes, by which the charge of a value to the budget grows. The charge
/// grows in such steps while the value arrives; only the last step may be smaller.
const STEP: usize = 256 << 10;

/// Memory of a large value while its bytes arrive. The budget is charged for the pages that are
/// filled, and for less than 256 KiB more (`STEP`).
#[derive(Debug)]
pub struct LargeValue {
    mapping: Option<Mapping>,
    len: usize,
    charged: u64,
    /// True if the last call of [`LargeValue::charge`] failed and no later charge succeeded. The
    /// budget then has a reservation.
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

    /// Charges all of the value's memory. If that fails, this value is dropped, but its reservation
    /// in the budget stays. The caller will try again with a new `LargeValue`, which uses the
    /// reservation.
    pub(crate) fn charged(mut self) -> Option<Self> {
        if !self.charge(self.len) {
            self.waits = false;
            return None;
        }
        Some(self)
    }

    /// Charges the memory for the first `filled` bytes. Returns false if the budget has no room
    /// now. The budget then has a reservation for the charge.
    pub(crate) fn charge(&mut self, filled: usize) -> bool {
        let charged = self.try_charge(filled);
        if !charged {
            self.waits = true;
            self.budget.want(self.uncharged(filled));
        }
        charged
    }

    /// Charges the memory for the first `filled` bytes if the budget has room now. Returns false if
    /// it has none.
    pub(crate) fn try_charge(&mut self, filled: usize) -> bool {
        let more = self.uncharged(filled);
        let Some(mapping) = self.mapping.as_ref().filter(|_| more > 0) else { return true };
        if !self.budget.try_charge_wanted(more) {
            return false;
        }
        self.waits = false;
        let (from, to) = (self.charged as usize, (self.charged + more) as usize);
        // While the kernel supplies memory, it delays other threads that map or unmap memory. So it
        // supplies little at a time.
        for at in (from..to).step_by(STEP) {
            mapping.populate(at, STEP.min(to - at));
        }
        self.charged += more;
        true
    }

    /// Returns the number of bytes to charge before the first `filled` bytes may be filled; 0 if
    /// they are charged already.
    fn uncharged(&self, filled: usize) -> u64 {
        let Some(mapping) = &self.mapping else { return 0 };
        let footprint = mapping.len() as u64;
        let needed = if filled < self.len { pages(HEADROOM + filled) as u64 } else { footprint };
        match needed.saturating_sub(self.charged) {
            0 => 0,
            more => more.max(STEP as u64).min(footprint - self.charged),
        }
    }

    /// Returns the number of bytes of memory that the value takes now.
    pub fn held(&self) -> usize {
        self.charged as usize
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value's bytes. Bytes that were not filled yet are zero.
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

    /// Moves the value's charge to `budget`. A lane calls this when it adopts a value that was
    /// begun for another lane.
    pub(crate) fn charge_to(&mut self, budget: &Arc<Budget>) {
        if !Arc::ptr_eq(&self.budget, budget) {
            budget.charge(self.charged);
            self.budget.release(self.charged);
            self.budget = Arc::clone(budget);
        }
    }

    /// Takes out the mapping. Returns it with the offset at which the record must begin. `head` is
    /// the number of bytes of the record before its value.
    pub(crate) fn take_record(&mut self, head: usize) -> Option<(Mapping, usize)> {
        // The value has a fixed offset, so the offset of the record depends on `head` and may be
        // unaligned. The log needs no alignment.
        debug_assert!(head + JUMBO_HEADROOM <= HEADROOM);
        let mapping = self.mapping.take()?;
        // Charges the rest of the mapping too, because the segment that adopts the mapping later
        // releases a charge of its full length.
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
            // `unwant` also clears the reservations of other calls. Nothing is lost: these calls
            // are repeated when the cleaner wakes their sessions, and then reserve again.
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
