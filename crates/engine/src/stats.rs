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
    /// Changes of counters and limiters that changed their record in place.
    counted_in_place,
    /// Changes of existing counters, and of limiters, that wrote a new record.
    counted_anew,
    /// Requests for units of a rate limit that were allowed.
    taken,
    /// Requests for units of a rate limit that were refused.
    refused,
    /// Limiters that were evicted before they were as new.
    evicted_limiters,
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

fn sum(one: u64, other: u64) -> u64 {
    one + other
}

fn shared(_: u64, other: u64) -> u64 {
    other
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident: $join:path,)*) => {
        /// A snapshot of the engine.
        #[derive(Clone, Debug, Default)]
        pub struct Stats {
            /// Counters since the start or the last reset.
            pub totals: Totals,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Adds another lane's statistics.
            fn add(&mut self, other: &Stats) {
                self.totals.add(&other.totals);
                $(self.$name = $join(self.$name, other.$name);)*
            }
        }
    };
}

// Each figure, and how the figures of two lanes are joined.
stats! {
    /// Items in the index, including expired ones that were not swept yet.
    items: sum,
    /// Bytes of live records: headers, keys, values.
    item_bytes: sum,
    /// Of these, the bytes that are only on the device and must be read from there.
    flash_item_bytes: sum,
    /// `--memory`: the limit of all memory below together, in bytes.
    memory_limit: sum,
    /// Bytes charged against the limit.
    memory_used: sum,
    /// Bytes of RAM of the index.
    index_bytes: sum,
    /// Slots of the index, used and free.
    index_slots: sum,
    /// Slots of items that sets may have superseded and that were not settled yet. Those that
    /// belong to other keys are missing in `items`.
    older_slots: sum,
    /// Bytes of RAM of frames, including jumbo ones.
    frame_bytes: sum,
    /// Copies in memory of items that are otherwise only in the store.
    copies: sum,
    /// Of the bytes of frames, those that hold such copies.
    copy_bytes: sum,
    /// Bytes of RAM of connection buffers. All lanes share them.
    buffer_bytes: shared,
    /// Size of a segment, in bytes.
    segment_size: u64::max,
    /// Bytes of the store's places for segments, except for those on lower devices.
    fast_bytes: sum,
    /// Of these, bytes in places that are not free.
    fast_used: sum,
    /// Bytes of the places for segments on lower devices.
    lower_bytes: sum,
    /// Of these, bytes in places that are not free.
    lower_used: sum,
    /// Segments that hold items, including jumbo ones.
    segments: sum,
    /// Jumbo segments.
    jumbos: sum,
    /// Bytes written to the devices since the start. Divided by [`Totals::written_bytes`] this is
    /// the write amplification.
    device_written_bytes: sum,
    /// Of these, bytes of dead maps.
    map_written_bytes: sum,
    /// Bytes of records in segments of the store that were freed.
    freed_bytes: sum,
    /// Bytes read from devices as whole segments: to clean them, to bring them back into memory,
    /// and for dumps.
    segment_read_bytes: sum,
    /// Places of segments in the store that are partly unreadable. They are not used again.
    bad_places: sum,
    /// Bytes that a crash would lose.
    unsynced_bytes: sum,
    /// Age that the oldest of them may have, in milliseconds.
    unsynced_ms: u64::max,
    /// Group commits since the start.
    commits: sum,
    /// Median duration of the last commits, in microseconds.
    commit_us_p50: u64::max,
    /// 99th percentile of the durations of the last commits, in microseconds.
    commit_us_p99: u64::max,
    /// Items found at the start.
    recovered_items: sum,
    /// Duration of the recovery, in milliseconds.
    recovery_ms: u64::max,
}

impl Stats {
    /// Returns the sum of several lanes' statistics.
    pub fn sum(lanes: &[Stats]) -> Stats {
        let mut sum = Stats::default();
        lanes.iter().for_each(|lane| sum.add(lane));
        sum
    }
}
