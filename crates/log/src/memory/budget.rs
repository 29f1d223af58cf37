//! The memory budget, to which all large memory is charged. Each lane has its share of memory. The
//! buffers of connections serve all lanes, so every lane's budget bears its proportional part.
//!
//! Connections' requests for memory are never refused. Instead, all connections together have a
//! limit, and the callers reduce what connections use to this limit. The limit is half of the
//! memory that evicting items or dropping frames can free, but at least an eighth of the budgets.
//!
//! Some memory cannot be freed: the tables of an index, and all memory if nothing is evicted and
//! there is no store. Such memory never takes the last eighth of a budget, which is left to
//! connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of RAM charged against a limit. Relaxed ordering is enough for the counters: each
/// change is one atomic operation, so no charge is lost, and they publish no other memory.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    /// Bytes charged, without connection buffers.
    used: AtomicU64,
    /// The part of `used` that cannot be freed.
    lasting: AtomicU64,
    /// `None` if memory can be freed. Otherwise nothing is evicted and there is no store, and this
    /// is the number of bytes that only frames may take: see [`Budget::keeping_all`].
    keeps_all: Option<u64>,
    wanted: AtomicU64,
    buffers: Arc<Buffers>,
    /// For simulations: which request for memory is refused, counted from 1 by `requests`. 0 if
    /// none is.
    refused: AtomicU64,
    requests: AtomicU64,
}

/// The memory that connections use, and sums over all budgets that share it.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Bytes of input and output that connections keep between two turns of their event loop.
    held: AtomicU64,
    /// Received bytes of values that have not arrived completely.
    arriving: AtomicU64,
    /// Bytes of memory that [pins](crate::Pin) own: copies of values, and mappings of jumbos.
    pinned: AtomicU64,
    limits: AtomicU64,
    /// The sum, over all budgets, of the bytes that cannot be freed.
    lasting: AtomicU64,
}

/// The limit of all connections together is at least 1/`LEAST_SHARE` of the sum of the budgets'
/// limits.
const LEAST_SHARE: u64 = 8;
/// At most 1/`FRAMES_SHARE` of a budget's limit is kept for frames.
const FRAMES_SHARE: u64 = 32;
/// Connection buffers may take 1/`BUFFER_PART` of the limit of all connections together.
const BUFFER_PART: u64 = 2;
/// Arriving values may take 1/`ARRIVING_PART` of the limit of all connections together.
const ARRIVING_PART: u64 = 4;
/// Pinned values may take 1/`PINNED_PART` of the limit of all connections together.
const PINNED_PART: u64 = 4;

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Budget::sharing(limit, &Arc::default())
    }

    /// Creates a budget of `limit` bytes that shares connection buffers with other budgets.
    pub fn sharing(limit: u64, buffers: &Arc<Buffers>) -> Self {
        buffers.limits.fetch_add(limit, Relaxed);
        Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            lasting: AtomicU64::new(0),
            keeps_all: None,
            wanted: AtomicU64::new(0),
            buffers: Arc::clone(buffers),
            refused: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// Turns this into a budget in which neither eviction nor dropping frames can free memory.
    ///
    /// Only frames may take the last `for_frames` bytes, but at most 1/`FRAMES_SHARE` of the limit.
    /// So overwrites still succeed after all other bytes are taken. An overwrite needs memory for
    /// the new record at first, but makes the old record dead, so the cleaner gets as much back.
    pub fn keeping_all(mut self, for_frames: u64) -> Self {
        self.keeps_all = Some(for_frames);
        self.replace_lasting(self.limit());
        self
    }

    /// Sets how many of the charged bytes cannot be freed. Without effect in a budget that is
    /// [keeping all](Budget::keeping_all).
    pub fn set_lasting(&self, bytes: u64) {
        if self.keeps_all.is_none() {
            self.replace_lasting(bytes);
        }
    }

    fn replace_lasting(&self, bytes: u64) {
        let before = self.lasting.swap(bytes, Relaxed);
        self.buffers.lasting.fetch_add(bytes.wrapping_sub(before), Relaxed);
    }

    /// Returns the largest number of bytes, out of `limit`, for memory that cannot be freed.
    pub fn most_lasting(limit: u64) -> u64 {
        limit - limit / LEAST_SHARE
    }

    /// For simulations: refuses the `nth` request for memory after this call, even if there is
    /// room. 0 refuses no request. Counts only the requests that call [`Budget::grants`]: their
    /// callers can continue without the memory.
    pub fn refuse(&self, nth: u64) {
        self.requests.store(0, Relaxed);
        self.refused.store(nth, Relaxed);
    }

    /// Returns the number of requests that have called [`Budget::grants`] since the last call of
    /// [`Budget::refuse`]. After a call with 0, requests are not counted.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Returns false if a simulation refuses this request. Every request for memory that may fail
    /// must call this function first.
    #[inline]
    pub fn grants(&self) -> bool {
        let refused = self.refused.load(Relaxed);
        refused == 0 || self.requests.fetch_add(1, Relaxed) + 1 != refused
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. If more than the new limit is charged, the owners of the memory must
    /// reclaim the excess.
    pub fn set_limit(&self, bytes: u64) {
        let before = self.limit.swap(bytes, Relaxed);
        self.buffers.limits.fetch_add(bytes.wrapping_sub(before), Relaxed);
        if self.keeps_all.is_some() {
            self.replace_lasting(bytes);
        }
    }

    /// Returns the bytes charged, including this budget's part of what connections use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed) + self.buffers_here()
    }

    /// Returns the bytes that connections use, summed over all budgets that share them.
    pub fn buffers(&self) -> u64 {
        let Buffers { held, arriving, pinned, .. } = &*self.buffers;
        [held, arriving, pinned].iter().map(|bytes| bytes.load(Relaxed)).sum()
    }

    fn buffers_here(&self) -> u64 {
        let (buffers, limits) = (self.buffers(), self.buffers.limits.load(Relaxed));
        self.part_here(buffers, limits)
    }

    /// Returns this budget's proportional part of `bytes`.
    fn part_here(&self, bytes: u64, limits: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.limit()) / u128::from(limits.max(1));
        part as u64
    }

    /// Returns the bytes that items cannot use, because connections use them or because they are
    /// kept for connections.
    fn beside_items(&self) -> u64 {
        // Connections may use more than what is kept for them, because of a single large pinned
        // value.
        self.kept_from_items().max(self.buffers_here())
    }

    /// Returns the bytes that items must leave to connections. If memory can be freed, these are
    /// the bytes that connections use now, because items give back what connections need later.
    /// Otherwise items can give nothing back, so they always leave 1/`LEAST_SHARE` of the limit.
    fn kept_from_items(&self) -> u64 {
        match self.keeps_all {
            Some(_) => {
                // Read once, because the limit may change.
                let limit = self.limit();
                limit - Self::most_lasting(limit)
            }
            None => self.buffers_here(),
        }
    }

    /// Returns the bytes that can be charged, not counting the bytes that [a waiting thread
    /// wants](Budget::want).
    pub fn room(&self) -> u64 {
        self.room_beside(self.wanted())
    }

    /// Returns the bytes that can be charged for writers' frames.
    pub fn room_for_frames(&self) -> u64 {
        self.room_beside(self.kept_from_frames())
    }

    fn room_beside(&self, kept: u64) -> u64 {
        let taken = self.used.load(Relaxed) + self.beside_items() + kept;
        self.limit().saturating_sub(taken)
    }

    /// Returns the bytes that only frames may take.
    pub fn kept_for_frames(&self) -> u64 {
        self.keeps_all.map_or(0, |bytes| bytes.min(self.limit() / FRAMES_SHARE))
    }

    /// Returns the bytes that frames must leave to a thread that waits for memory. If no memory can
    /// be freed, frames leave it nothing. Instead, that thread leaves [some
    /// bytes](Budget::kept_for_frames) to frames.
    fn kept_from_frames(&self) -> u64 {
        if self.keeps_all.is_some() { 0 } else { self.wanted() }
    }

    /// Charges `bytes` of frames if they fit.
    pub fn try_charge_frames(&self, bytes: u64) -> bool {
        let room = self.limit().saturating_sub(self.kept_from_frames());
        self.grants() && self.charge_within(bytes, room)
    }

    /// Charges `bytes` if they fit beside the bytes that a waiting thread wants and those that only
    /// frames may take.
    pub fn try_charge(&self, bytes: u64) -> bool {
        let room = self.limit().saturating_sub(self.kept_for_frames() + self.wanted());
        self.grants() && self.charge_within(bytes, room)
    }

    /// Charges `bytes` if they fit now, even into those that a thread [waits](Budget::want) for. If
    /// they fit, also does what [`Budget::unwant`] does.
    pub fn try_charge_wanted(&self, bytes: u64) -> bool {
        let room = self.limit().saturating_sub(self.kept_for_frames());
        let charged = self.grants() && self.charge_within(bytes, room);
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

    /// Registers that a thread waits for this many bytes, for a large value or a table of the
    /// index. The cleaner must free memory until the bytes fit. If several threads wait, the
    /// largest number counts.
    pub fn want(&self, bytes: u64) {
        self.wanted.fetch_max(bytes, Relaxed);
    }

    /// Returns the bytes that a thread waits for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Clears the wanted bytes, because a thread no longer waits. Other threads that still wait
    /// register again when they next try to charge.
    pub fn unwant(&self) {
        self.wanted.store(0, Relaxed);
    }

    /// Charges `bytes`, even if they do not fit. The budget may then exceed its limit until frames
    /// are given back.
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// Releases `bytes`.
    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Charges `bytes` that a connection keeps between two turns of its event loop. If the total
    /// exceeds [the limit](Budget::buffers_limit), the caller must free some.
    pub fn charge_buffers(&self, bytes: u64) {
        self.buffers.held.fetch_add(bytes, Relaxed);
    }

    /// Releases connection buffers.
    pub fn release_buffers(&self, bytes: u64) {
        let before = self.buffers.held.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Returns the bytes that connections keep between turns.
    pub fn buffers_held(&self) -> u64 {
        self.buffers.held.load(Relaxed)
    }

    /// Returns the limit for bytes that connections keep between turns.
    pub fn buffers_limit(&self) -> u64 {
        self.connections_limit() / BUFFER_PART
    }

    /// Returns the limit for bytes that connections use, summed over all budgets that share them.
    fn connections_limit(&self) -> u64 {
        let limits = self.buffers.limits.load(Relaxed);
        let lasting = self.buffers.lasting.load(Relaxed);
        (limits.saturating_sub(lasting) / 2).max(limits / LEAST_SHARE)
    }

    /// Returns the limit for bytes of arriving values.
    pub fn arriving_limit(&self) -> u64 {
        self.connections_limit() / ARRIVING_PART
    }

    /// Charges a part of a value that has arrived. The caller must keep to [the
    /// limit](Budget::arriving_limit).
    pub fn charge_arriving(&self, bytes: u64) {
        self.buffers.arriving.fetch_add(bytes, Relaxed);
    }

    /// Releases what [`Budget::charge_arriving`] charged.
    pub fn release_arriving(&self, bytes: u64) {
        let before = self.buffers.arriving.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Returns the limit for bytes of pinned values of this budget.
    pub fn pinned_limit(&self) -> u64 {
        let limits = self.buffers.limits.load(Relaxed);
        self.part_here(self.connections_limit() / PINNED_PART, limits)
    }

    /// Charges memory that a [pin](crate::Pin) owns. The caller must keep to
    /// [the limit](Budget::pinned_limit). A value that alone exceeds the limit is allowed if pins
    /// own no other memory.
    pub fn charge_pinned(&self, bytes: u64) {
        self.buffers.pinned.fetch_add(bytes, Relaxed);
    }

    /// Releases what [`Budget::charge_pinned`] charged.
    pub fn release_pinned(&self, bytes: u64) {
        let before = self.buffers.pinned.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Returns the bytes that [`Budget::charge_pinned`] charged.
    #[cfg(test)]
    pub fn pinned(&self) -> u64 {
        self.buffers.pinned.load(Relaxed)
    }

    /// Returns the bytes by which the budget exceeds its limit. If a thread waits for memory, the
    /// bytes that it waits for count as charged. The bytes that this thread must leave to frames
    /// then count, too.
    pub fn excess(&self) -> u64 {
        let wanted = self.wanted();
        let beside = if wanted > 0 { self.kept_for_frames() } else { 0 };
        let taken = self.used.load(Relaxed) + self.kept_from_items() + wanted + beside;
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
    fn every_budget_bears_its_part_of_connection_buffers() {
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
    fn connections_and_memory_that_cannot_be_freed_leave_room_for_each_other() {
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
    fn connections_take_nothing_from_items_that_are_never_evicted() {
        let budget = Budget::new(8000).keeping_all(0);
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
    fn waiters_leave_room_for_frames_where_nothing_is_freed() {
        let budget = Budget::new(8000).keeping_all(200);
        assert!(!budget.try_charge_wanted(6801) && !budget.try_charge(6801));
        assert!(budget.try_charge_wanted(6800) && !budget.try_charge(1));
        budget.want(100);
        assert_eq!((budget.excess(), budget.room(), budget.room_for_frames()), (100, 100, 200));
        assert!(budget.try_charge_frames(200) && !budget.try_charge_frames(1));
        budget.unwant();
        assert_eq!(budget.excess(), 0);
        // At a low limit, frames keep 1/32 of the limit instead of the 200 bytes.
        budget.release(7000);
        budget.set_limit(320);
        assert_eq!(budget.kept_for_frames(), 10);
        assert!(budget.try_charge_wanted(270) && !budget.try_charge_wanted(1));
    }

    #[test]
    fn a_changed_limit_changes_the_parts_of_all_budgets() {
        let buffers = Arc::default();
        let (one, other) = (Budget::sharing(1000, &buffers), Budget::sharing(1000, &buffers));
        one.charge_buffers(400);
        other.set_limit(3000);
        assert_eq!((one.used(), other.used()), (100, 300));
        one.set_limit(500);
        assert!(one.excess() == 0 && one.try_charge(440) && !one.try_charge(10));
    }
}
