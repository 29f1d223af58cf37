//! A lane's counters: what its sessions have counted, and a snapshot of what the lane holds.

use crate::lane::state::StoreCounts;
use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use crate::stats::{Counters, Stats, Totals};
use larder_log::{SegmentTotals, Tier};
use std::sync::Arc;

impl Lane {
    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        lock(&self.counters).sessions.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn end_counters(&self, counters: &Arc<Counters>) {
        let mut ledger = lock(&self.counters);
        counters.add_to(&mut ledger.ended);
        ledger.sessions.retain(|other| !Arc::ptr_eq(other, counters));
    }

    /// Returns all counts since the start. Unlike [`Lane::stats`], this does not visit the
    /// segments.
    pub(crate) fn totals(&self) -> Totals {
        lock(&self.counters).sum()
    }

    /// Returns a snapshot of what the lane holds and has counted.
    pub(crate) fn stats(&self) -> Stats {
        let (totals, store) = {
            let ledger = lock(&self.counters);
            // The lock is held while the store's counts are read. Otherwise a concurrent reset
            // could note higher counts than those read here.
            let store = self.store_counts().since(&ledger.store_reset);
            (ledger.sum().since(&ledger.reset), store)
        };
        let mut stats = Stats {
            totals,
            items: self.index.items(),
            memory_limit: self.budget.limit(),
            memory_used: self.budget.used(),
            index_bytes: self.index.bytes(),
            index_slots: self.index.slots(),
            index_limit: self.index.limit().unwrap_or(0),
            older_slots: self.older.count() as u64,
            frame_bytes: self.log.frame_bytes(),
            copies: self.log.copies().count() as u64,
            copy_bytes: self.log.copies().frames().iter().sum::<usize>() as u64
                * self.log.segment_size() as u64,
            buffer_bytes: self.budget.buffers(),
            segment_size: self.log.segment_size() as u64,
            device_written_bytes: store.device_written_bytes,
            map_written_bytes: store.map_written_bytes,
            freed_bytes: store.freed_bytes,
            segment_read_bytes: store.segment_read_bytes,
            commits: store.commits,
            ..Stats::default()
        };
        (stats.fast_bytes, stats.fast_used) = self.tier_bytes(Tier::Fast);
        (stats.lower_bytes, stats.lower_used) = self.tier_bytes(Tier::Lower);
        let quarantine = self.log.quarantine_counts();
        stats.quarantined_segments = quarantine.all as u64;
        stats.uncommitted_segments = quarantine.uncommitted as u64;
        stats.unmarked_segments = quarantine.unmarked as u64;
        if let Some(durable) = self.durable() {
            stats.bad_places = durable.log.store.bad_places() as u64;
            (stats.commit_us_p50, stats.commit_us_p99) = durable.state.commit_times();
            stats.unsynced_bytes = durable.log.unsynced_bytes();
            if stats.unsynced_bytes > 0 {
                stats.unsynced_ms = durable.state.unsynced_age().as_millis() as u64;
            }
        }
        if let Some(recovered) = &self.recovered {
            stats.recovered_items = recovered.items;
            stats.recovery_ms = recovered.took.as_millis() as u64;
        }
        let totals = self.segment_totals();
        stats.segments = totals.segments;
        stats.item_bytes = totals.live;
        stats.flash_item_bytes = totals.absent_live;
        stats.jumbos = totals.jumbos;
        stats.frame_bytes += totals.jumbo_bytes;
        stats
    }

    /// Returns the counters of the store since the start.
    fn store_counts(&self) -> StoreCounts {
        let counts = |durable: DurableLane<'_>| StoreCounts {
            device_written_bytes: durable.log.store.written(),
            map_written_bytes: durable.log.store.map_bytes_written(),
            freed_bytes: durable.log.store.freed_bytes(),
            segment_read_bytes: durable.log.store.segment_bytes_read(),
            commits: durable.state.commit_count(),
        };
        self.durable().map_or_else(StoreCounts::default, counts)
    }

    /// Returns the sums over all segments that hold records. Dead bytes that threads have not
    /// reported yet count as live.
    fn segment_totals(&self) -> SegmentTotals {
        // Asks the threads to report their dead bytes, so that the next call has the counts.
        self.log.want_counts();
        let mut totals = self.log.usage().totals();
        for number in self.log.unsealed() {
            totals.segments += 1;
            totals.live += u64::from(self.log.live(number));
        }
        totals
    }

    /// Returns the bytes of a tier's places, and how many of these bytes are in use.
    pub(crate) fn tier_bytes(&self, tier: Tier) -> (u64, u64) {
        let (places, free) = (self.log.places(tier), self.log.free_places(tier));
        let bytes = |places: usize| places as u64 * self.log.segment_size() as u64;
        (bytes(places), bytes(places.saturating_sub(free)))
    }

    /// Returns how many look-ups of all sessions have found an item since the start.
    pub(crate) fn get_hits(&self) -> u64 {
        lock(&self.counters).sum().get_hits
    }

    /// Sets the counters to zero (`stats reset`); gauges stay.
    pub(crate) fn reset_stats(&self) {
        let mut ledger = lock(&self.counters);
        ledger.reset = ledger.sum();
        ledger.store_reset = self.store_counts();
    }
}
