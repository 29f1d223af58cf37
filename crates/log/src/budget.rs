//! The memory budget: what everything large is charged to. Each lane has its share of memory; the
//! buffers of connections, which serve all lanes, take from every share alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of RAM charged against a limit. The counts are relaxed: the budget is exact in sum, and no
/// other memory is published through it.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    /// Without connection buffers.
    used: AtomicU64,
    wanted: AtomicU64,
    buffers: Arc<Buffers>,
    /// For simulations: the number of the request that is refused, and requests so far.
    refused: AtomicU64,
    requests: AtomicU64,
}

/// Memory that connections use, and the limits of all budgets that share it.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Input and output that connections keep between turns.
    held: AtomicU64,
    /// Values that have arrived in part.
    arriving: AtomicU64,
    /// Values that are sent although their items are gone.
    pinned: AtomicU64,
    limits: AtomicU64,
}

/// Connections may hold this share of the limits in buffers: one byte in so many.
const BUFFER_SHARE: u64 = 4;

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Budget::sharing(limit, &Arc::default())
    }

    /// A budget of `limit` bytes beside others, with connection buffers in common.
    pub fn sharing(limit: u64, buffers: &Arc<Buffers>) -> Self {
        buffers.limits.fetch_add(limit, Relaxed);
        Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            buffers: Arc::clone(buffers),
            refused: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// For simulations: refuses the `nth` request for memory from now on, of those that may be
    /// refused, whatever there is; 0 for none.
    pub fn refuse(&self, nth: u64) {
        self.requests.store(0, Relaxed);
        self.refused.store(nth, Relaxed);
    }

    /// Requests since [`Budget::refuse`] was called with one to be refused.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Whoever may be refused memory asks this first.
    #[inline]
    pub fn grants(&self) -> bool {
        let refused = self.refused.load(Relaxed);
        refused == 0 || self.requests.fetch_add(1, Relaxed) + 1 != refused
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit; what is over it must be reclaimed by whoever holds it.
    pub fn set_limit(&self, bytes: u64) {
        let before = self.limit.swap(bytes, Relaxed);
        self.buffers.limits.fetch_add(bytes.wrapping_sub(before), Relaxed);
    }

    /// Bytes charged, and this budget's part of what connection buffers take.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed) + self.buffers_here()
    }

    /// Bytes that connections use, of all budgets that share them.
    pub fn buffers(&self) -> u64 {
        let Buffers { held, arriving, pinned, .. } = &*self.buffers;
        [held, arriving, pinned].iter().map(|bytes| bytes.load(Relaxed)).sum()
    }

    fn buffers_here(&self) -> u64 {
        let (buffers, limits) = (self.buffers(), self.buffers.limits.load(Relaxed));
        let part = u128::from(buffers) * u128::from(self.limit()) / u128::from(limits.max(1));
        part as u64
    }

    /// Charges `bytes` if they fit beside what is wanted by somebody who waits.
    pub fn try_charge(&self, bytes: u64) -> bool {
        let room = self.limit().saturating_sub(self.wanted.load(Relaxed));
        self.grants() && self.charge_within(bytes, room)
    }

    /// Charges `bytes` for the one who waited for them.
    pub fn try_charge_wanted(&self, bytes: u64) -> bool {
        let charged = self.grants() && self.charge_within(bytes, self.limit());
        if charged {
            self.wanted.store(0, Relaxed);
        }
        charged
    }

    fn charge_within(&self, bytes: u64, most: u64) -> bool {
        let most = most.saturating_sub(self.buffers_here());
        self.used
            .fetch_update(Relaxed, Relaxed, |used| (used + bytes <= most).then_some(used + bytes))
            .is_ok()
    }

    /// Somebody waits for this many bytes: frames must go until they fit.
    pub fn want(&self, bytes: u64) {
        self.wanted.fetch_max(bytes, Relaxed);
    }

    /// The bytes that somebody waits for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Nobody waits any more.
    pub fn unwant(&self) {
        self.wanted.store(0, Relaxed);
    }

    /// Charges `bytes` that are needed now; the budget may be over its limit until frames have been
    /// given back.
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// Gives `bytes` back.
    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Charges `bytes` that a connection keeps between turns. The caller frees some when that is
    /// [more than its share](Budget::buffers_limit).
    pub fn charge_buffers(&self, bytes: u64) {
        self.buffers.held.fetch_add(bytes, Relaxed);
    }

    /// Gives connection buffers back.
    pub fn release_buffers(&self, bytes: u64) {
        let before = self.buffers.held.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Bytes that connections keep between turns.
    pub fn buffers_held(&self) -> u64 {
        self.buffers.held.load(Relaxed)
    }

    /// Bytes that connections may keep between turns.
    pub fn buffers_limit(&self) -> u64 {
        self.all_limits() / BUFFER_SHARE
    }

    /// Charges a part of a value that has arrived. The caller bounds their sum.
    pub fn charge_arriving(&self, bytes: u64) {
        self.buffers.arriving.fetch_add(bytes, Relaxed);
    }

    /// Gives back what [`Budget::charge_arriving`] charged.
    pub fn release_arriving(&self, bytes: u64) {
        let before = self.buffers.arriving.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Charges a value that is sent although its item is gone. The caller bounds their sum.
    pub fn charge_pinned(&self, bytes: u64) {
        self.buffers.pinned.fetch_add(bytes, Relaxed);
    }

    /// Gives back what [`Budget::charge_pinned`] charged.
    pub fn release_pinned(&self, bytes: u64) {
        let before = self.buffers.pinned.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// What [`Budget::charge_pinned`] charged, in bytes.
    pub fn pinned(&self) -> u64 {
        self.buffers.pinned.load(Relaxed)
    }

    /// The limits of all budgets that share what connections use.
    pub fn all_limits(&self) -> u64 {
        self.buffers.limits.load(Relaxed)
    }

    /// How far the budget is over its limit, counting what somebody waits for.
    pub fn excess(&self) -> u64 {
        (self.used() + self.wanted()).saturating_sub(self.limit())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.buffers.limits.fetch_sub(self.limit(), Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn connection_buffers_take_from_every_share_alike() {
        let buffers = Arc::default();
        let (large, small) = (Budget::sharing(3000, &buffers), Budget::sharing(1000, &buffers));
        large.charge_buffers(500);
        small.charge_arriving(300);
        assert_eq!((large.used(), small.used(), small.buffers()), (600, 200, 800));
        assert_eq!((small.buffers_held(), small.buffers_limit()), (500, 1000));
        assert!(!small.try_charge(801));
        assert!(small.try_charge(800));
        small.release_buffers(500);
        large.release_arriving(300);
        assert_eq!((large.used(), small.used()), (0, 800));
    }

    #[test]
    fn a_limit_that_changes_changes_the_parts() {
        let buffers = Arc::default();
        let (one, other) = (Budget::sharing(1000, &buffers), Budget::sharing(1000, &buffers));
        one.charge_buffers(400);
        other.set_limit(3000);
        assert_eq!((one.used(), other.used()), (100, 300));
        one.set_limit(500);
        assert!(one.excess() == 0 && one.try_charge(440) && !one.try_charge(10));
    }
}
