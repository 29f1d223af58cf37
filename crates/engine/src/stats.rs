//! Counters and statistics. Every session has its own counters, written only by its thread; readers
//! sum them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One session's counters. Only the session's thread writes to them.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        /// The sum of all sessions' counters since the start or the last reset.
        #[derive(Clone, Debug, Default)]
        pub struct Totals { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Adds these counters to `totals`.
            pub(crate) fn add_to(&self, totals: &mut Totals) {
                $(totals.$name += self.$name.load(Relaxed);)*
            }
        }

        impl Totals {
            /// Adds the counters of `other`.
            pub(crate) fn add(&mut self, other: &Totals) {
                $(self.$name += other.$name;)*
            }

            /// Returns what was counted since `earlier`.
            pub fn since(&self, earlier: &Totals) -> Totals {
                Totals { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Keys looked up, except for look-ups counted as touches.
    cmd_get,
    /// Writes of whole values that were not refused.
    cmd_set,
    /// Touches and gats.
    cmd_touch,
    /// Flushes.
    cmd_flush,
    /// Look-ups that found an item.
    get_hits,
    /// Look-ups that found none.
    get_misses,
    /// Look-ups that found an expired item (also in `get_misses`).
    get_expired,
    /// Touches that found an item.
    touch_hits,
    /// Touches that found none.
    touch_misses,
    /// Items of the store that could not be read. They counted as evicted, or were left out of a
    /// scan; each scan counts them anew.
    unreadable,
    /// Records read from the store for a call.
    flash_reads,
    /// Sets that did not read the old record, which was only in the store.
    unread_sets,
    /// Deletes that found an item.
    delete_hits,
    /// Deletes that found none.
    delete_misses,
    /// Increments that found an item.
    incr_hits,
    /// Increments that found none.
    incr_misses,
    /// Decrements that found an item.
    decr_hits,
    /// Decrements that found none.
    decr_misses,
    /// Compare-and-set writes that matched.
    cas_hits,
    /// Compare-and-set writes that found no item.
    cas_misses,
    /// Compare-and-set writes that found another cas id.
    cas_badval,
    /// Versions ever written by stores.
    total_items,
    /// Live items evicted to make room for others.
    evictions,
    /// Evicted items that were never read.
    evicted_unfetched,
    /// Items removed because they had expired.
    expired,
    /// Expired items that were never read.
    expired_unfetched,
    /// Writes refused because memory was full.
    store_no_memory,
    /// Writes refused because the item was too large.
    store_too_large,
    /// Items moved by the cleaner to keep them.
    moved_items,
    /// Segments whose items moved to the lower device, except for a few that were read lately.
    cooled_segments,
    /// Bytes of records that calls wrote, tombstones included.
    written_bytes,
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// A snapshot of the engine.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Counters since the start or the last reset.
    pub totals: Totals,
    /// Items in the index, including expired ones that were not swept yet.
    pub items: u64,
    /// Bytes of live records: headers, keys, values.
    pub item_bytes: u64,
    /// Of these, the bytes that are only on the device and must be read from there.
    pub flash_item_bytes: u64,
    /// `--memory`: the limit of all memory below together, in bytes.
    pub memory_limit: u64,
    /// Bytes charged against the limit.
    pub memory_used: u64,
    /// Bytes of RAM of the index.
    pub index_bytes: u64,
    /// Slots of the index, used and free.
    pub index_slots: u64,
    /// Slots of items that sets may have superseded and that were not settled yet. Those that
    /// belong to other keys are missing in `items`.
    pub older_slots: u64,
    /// Bytes of RAM of frames, including jumbo ones.
    pub frame_bytes: u64,
    /// Copies in memory of items that are otherwise only in the store.
    pub copies: u64,
    /// Of the bytes of frames, those that hold such copies.
    pub copy_bytes: u64,
    /// Bytes of RAM of connection buffers.
    pub buffer_bytes: u64,
    /// Size of a segment, in bytes.
    pub segment_size: u64,
    /// Bytes of the store's places for segments, except for those on lower devices.
    pub fast_bytes: u64,
    /// Of these, bytes in places that are not free.
    pub fast_used: u64,
    /// Bytes of the places for segments on lower devices.
    pub lower_bytes: u64,
    /// Of these, bytes in places that are not free.
    pub lower_used: u64,
    /// Segments that hold items, including jumbo ones.
    pub segments: u64,
    /// Jumbo segments.
    pub jumbos: u64,
    /// Bytes written to the devices since the start. Divided by [`Totals::written_bytes`] this is
    /// the write amplification.
    pub device_written_bytes: u64,
    /// Of these, bytes of dead maps.
    pub map_written_bytes: u64,
    /// Bytes of records in segments of the store that were freed.
    pub freed_bytes: u64,
    /// Bytes read from devices as whole segments: to clean them, to bring them back into memory,
    /// and for dumps.
    pub segment_read_bytes: u64,
    /// Places of segments in the store that are partly unreadable. They are not used again.
    pub bad_places: u64,
    /// Bytes that a crash would lose.
    pub unsynced_bytes: u64,
    /// Age that the oldest of them may have, in milliseconds.
    pub unsynced_ms: u64,
    /// Group commits since the start.
    pub commits: u64,
    /// Median duration of the last commits, in microseconds.
    pub commit_us_p50: u64,
    /// 99th percentile of the durations of the last commits, in microseconds.
    pub commit_us_p99: u64,
    /// Items found at the start.
    pub recovered_items: u64,
    /// Duration of the recovery, in milliseconds.
    pub recovery_ms: u64,
}

impl Stats {
    /// Returns the sum of several lanes' statistics.
    pub fn sum(lanes: &[Stats]) -> Stats {
        let mut sum = Stats::default();
        lanes.iter().for_each(|lane| sum.add(lane));
        sum
    }

    /// Adds another lane's statistics.
    fn add(&mut self, other: &Stats) {
        self.totals.add(&other.totals);
        self.items += other.items;
        self.item_bytes += other.item_bytes;
        self.flash_item_bytes += other.flash_item_bytes;
        self.memory_limit += other.memory_limit;
        self.memory_used += other.memory_used;
        self.index_bytes += other.index_bytes;
        self.index_slots += other.index_slots;
        self.older_slots += other.older_slots;
        self.frame_bytes += other.frame_bytes;
        self.copies += other.copies;
        self.copy_bytes += other.copy_bytes;
        // All lanes share the connection buffers.
        self.buffer_bytes = other.buffer_bytes;
        self.segment_size = self.segment_size.max(other.segment_size);
        self.fast_bytes += other.fast_bytes;
        self.fast_used += other.fast_used;
        self.lower_bytes += other.lower_bytes;
        self.lower_used += other.lower_used;
        self.segments += other.segments;
        self.jumbos += other.jumbos;
        self.device_written_bytes += other.device_written_bytes;
        self.map_written_bytes += other.map_written_bytes;
        self.freed_bytes += other.freed_bytes;
        self.segment_read_bytes += other.segment_read_bytes;
        self.unsynced_bytes += other.unsynced_bytes;
        self.bad_places += other.bad_places;
        self.unsynced_ms = self.unsynced_ms.max(other.unsynced_ms);
        self.commits += other.commits;
        self.commit_us_p50 = self.commit_us_p50.max(other.commit_us_p50);
        self.commit_us_p99 = self.commit_us_p99.max(other.commit_us_p99);
        self.recovered_items += other.recovered_items;
        self.recovery_ms = self.recovery_ms.max(other.recovery_ms);
    }
}
