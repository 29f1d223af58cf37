//! The memory budget: what everything large is charged to. Each lane has its share of memory; the
//! buffers of connections, which serve all lanes, take from every share alike.
//!
//! Connections are not refused memory, they have limits instead: together half of what evicting items or
//! dropping frames can free. Some memory cannot be freed: the tables of an index, and everything where nothing
//! is evicted and there is no store. It never takes the last eighth, so connections always have that much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of RAM charged against a limit. The counts are relaxed: the budget is exact in sum, and no
/// other memory is published through it.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    /// Without connection buffers.
    used: AtomicU64,
    /// Of that, what cannot be freed.
    lasting: AtomicU64,
    /// All that is charged lasts: nothing is evicted, and there is no store.
    keeps_all: bool,
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
    /// What cannot be freed, of all budgets.
    lasting: AtomicU64,
}

/// Connections may take one byte in so many of the limits, whatever lasts.
const LEAST_SHARE: u64 = 8;
/// Of what connections may take, one byte in so many may be buffers.
const BUFFER_PART: u64 = 2;
/// The same for values that arrive.
const ARRIVING_PART: u64 = 4;
/// The same for pinned values.
const PINNED_PART: u64 = 4;

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
            lasting: AtomicU64::new(0),
            keeps_all: false,
            wanted: AtomicU64::new(0),
            buffers: Arc::clone(buffers),
            refused: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// The same budget where nothing that is charged can be evicted.
    pub fn keeping_all(mut self) -> Self {
        self.keeps_all = true;
        self.replace_lasting(self.limit());
        self
    }

    /// Says how many of the charged bytes cannot be freed.
    pub fn set_lasting(&self, bytes: u64) {
        if !self.keeps_all {
            self.replace_lasting(bytes);
        }
    }

    fn replace_lasting(&self, bytes: u64) {
        let before = self.lasting.swap(bytes, Relaxed);
        self.buffers.lasting.fetch_add(bytes.wrapping_sub(before), Relaxed);
    }

    /// The most of a limit that memory which cannot be freed may take.
    pub fn most_lasting(limit: u64) -> u64 {
        limit - limit / LEAST_SHARE
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
        if self.keeps_all {
            self.replace_lasting(bytes);
        }
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
        self.part_here(buffers, limits)
    }

    /// This budget's part of so many bytes.
    fn part_here(&self, bytes: u64, limits: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.limit()) / u128::from(limits.max(1));
        part as u64
    }

    /// Bytes that are not there for items: those that connections use, or that are kept for them.
    fn beside_items(&self) -> u64 {
        // One large value alone may be pinned beyond what is kept.
        self.kept_from_items().max(self.buffers_here())
    }

    /// Bytes that items must give up. Where they cannot, they never had what connections may use.
    fn kept_from_items(&self) -> u64 {
        match self.keeps_all {
            true => self.limit() - Self::most_lasting(self.limit()),
            false => self.buffers_here(),
        }
    }

    /// Bytes that can be charged beside what somebody waits for.
    pub fn room(&self) -> u64 {
        let taken = self.used.load(Relaxed) + self.beside_items() + self.wanted();
        self.limit().saturating_sub(taken)
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
        let most = most.saturating_sub(self.beside_items());
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
        self.connections_limit() / BUFFER_PART
    }

    /// Bytes that connections may use, of all budgets that share them.
    fn connections_limit(&self) -> u64 {
        let limits = self.buffers.limits.load(Relaxed);
        let lasting = self.buffers.lasting.load(Relaxed);
        (limits.saturating_sub(lasting) / 2).max(limits / LEAST_SHARE)
    }

    /// Bytes that values may take while they arrive.
    pub fn arriving_limit(&self) -> u64 {
        self.connections_limit() / ARRIVING_PART
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

    /// Bytes that pinned values of this budget may take.
    pub fn pinned_limit(&self) -> u64 {
        let limits = self.buffers.limits.load(Relaxed);
        self.part_here(self.connections_limit() / PINNED_PART, limits)
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
    #[cfg(test)]
    pub fn pinned(&self) -> u64 {
        self.buffers.pinned.load(Relaxed)
    }

    /// How far the budget is over its limit, counting what somebody waits for.
    pub fn excess(&self) -> u64 {
        let taken = self.used.load(Relaxed) + self.kept_from_items() + self.wanted();
        taken.saturating_sub(self.limit())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.buffers.limits.fetch_sub(self.limit(), Relaxed);
        self.replace_lasting(0);
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
    fn what_cannot_be_freed_and_connections_leave_room_for_each_other() {
        let buffers = Arc::default();
        let (one, other) = (Budget::sharing(4000, &buffers), Budget::sharing(4000, &buffers));
        let limits = |budget: &Budget| {
            (budget.buffers_limit(), budget.arriving_limit(), budget.pinned_limit())
        };
        assert_eq!(limits(&one), (2000, 1000, 500));
        one.set_lasting(1000);
        other.set_lasting(3000);
        assert_eq!(limits(&one), (1000, 500, 250));
        one.set_lasting(Budget::most_lasting(4000));
        other.set_lasting(Budget::most_lasting(4000));
        assert_eq!(limits(&other), (500, 250, 125));
        drop(other);
        assert_eq!(limits(&one), (250, 125, 125));
    }

    #[test]
    fn connections_take_nothing_from_items_that_stay() {
        let budget = Budget::new(8000).keeping_all();
        budget.charge_buffers(700);
        assert_eq!(
            (budget.room(), budget.buffers_limit(), budget.arriving_limit()),
            (7000, 500, 250)
        );
        assert!(budget.try_charge(7000) && !budget.try_charge(1));
        budget.charge_arriving(200);
        budget.charge_pinned(200);
        assert_eq!((budget.excess(), budget.room(), budget.used()), (0, 0, 8100));
        budget.set_limit(16_000);
        assert_eq!((budget.room(), budget.buffers_limit()), (7000, 1000));
        budget.charge_pinned(8000);
        assert!(!budget.try_charge(1), "a large value is pinned");
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
