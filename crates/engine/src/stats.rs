//! Counters and statistics. Every session and every cleaner has its own counters, which only its
//! thread writes. Readers sum them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one session or cleaner. Only its thread writes to them.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        /// The sum of the counters of all sessions and cleaners.
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
    /// Keys looked up, except for look-ups counted as touches and look-ups that are not counted.
    cmd_get,
    /// Stores (set, add, append, …), successful or not, except for values that are too large and
    /// for refused calls.
    cmd_set,
    /// Touches and gats.
    cmd_touch,
    /// Flushes.
    cmd_flush,
    /// Look-ups of `cmd_get` that found or created an item.
    get_hits,
    /// Look-ups of `cmd_get` that found no item and created none.
    get_misses,
    /// Look-ups and touches that found an expired item. They also count in `get_misses` or
    /// `touch_misses`. If the call then created the item, they count as hits instead, as in
    /// memcached.
    get_expired,
    /// Touches that found an item.
    touch_hits,
    /// Touches that found no item.
    touch_misses,
    /// Items that could not be read from their device. Calls treat such an item as evicted. A scan
    /// omits it, and every scan counts it again.
    unreadable,
    /// Records read from a device for a call.
    flash_reads,
    /// Records read from a device for a [sample](crate::Session::sample).
    sample_reads,
    /// Sets that replaced a record that was only on a device, without reading it.
    unread_sets,
    /// Deletes that found an item.
    delete_hits,
    /// Deletes that found no item, or an item with another cas id than the given one.
    delete_misses,
    /// Increments that changed a number.
    incr_hits,
    /// Increments that found no item and created none.
    incr_misses,
    /// Changes of counters and limiters made in place.
    counted_in_place,
    /// Changes of counters and limiters that wrote a new record. New limiters count here, but new
    /// counters count in `total_items`.
    counted_anew,
    /// Allowed requests for units of a rate limit.
    taken,
    /// Refused requests for units of a rate limit.
    refused,
    /// Evicted limiters of which some units were still in use, so that their keys got these units
    /// back early.
    evicted_limiters,
    /// Decrements that changed a number.
    decr_hits,
    /// Decrements that found no item and created none.
    decr_misses,
    /// Compare-and-set writes that stored their value, also as a stale one over a newer item.
    cas_hits,
    /// Compare-and-set writes that found no item.
    cas_misses,
    /// Compare-and-set writes that found another cas id.
    cas_badval,
    /// Records that sets, adds, appends and other store commands wrote, and items that other
    /// commands created because the key had none. New limiters do not count.
    total_items,
    /// Live items evicted to make room for others.
    evictions,
    /// Items evicted from probation that were never read.
    evicted_unfetched,
    /// Expired items and unused limiters that the cleaner removed.
    expired,
    /// The part of `expired` whose read frequency was 0: never read, or read only before the
    /// cleaner lowered the frequency.
    expired_unfetched,
    /// Writes refused because memory or the store had no room for them.
    store_no_memory,
    /// Stores refused because the given value was too large.
    store_too_large,
    /// Items moved by the cleaner to keep them.
    moved_items,
    /// Bytes of the records of `moved_items`.
    moved_bytes,
    /// Segments that the cleaner emptied by moving or removing their live records.
    cleaned_segments,
    /// Those of `cleaned_segments` from which S3-FIFO evicted items, or whose items had all
    /// expired.
    evicted_segments,
    /// Bytes of records in `cleaned_segments`, dead ones included.
    cleaned_bytes,
    /// The part of `cleaned_bytes` that was alive: the cleaner moved or removed these records. The
    /// cleaner may walk a segment twice, because its first walk ran out of space. The records that
    /// the first walk moved count as dead.
    cleaned_live_bytes,
    /// Segments that the cleaner emptied without reading their records, because none was alive.
    dead_segments,
    /// Segments that the cleaner emptied to free a place on the fast device. It moved their items
    /// to the lower device, except for some recently read ones, which it moved within the fast
    /// device.
    cooled_segments,
    /// Bytes of all records that calls wrote, tombstones included.
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

// Each figure of the statistics, with the function that combines the figures of two lanes.
stats! {
    /// Items in the index, including expired ones that were not removed yet.
    items: sum,
    /// Bytes of live records: headers, keys, values.
    item_bytes: sum,
    /// The part of `item_bytes` in segments without a frame. Reading such a record takes a read of
    /// its device, unless the record is one of `copies`.
    flash_item_bytes: sum,
    /// The memory limit (`--memory`), in bytes.
    memory_limit: sum,
    /// Bytes charged against the limit.
    memory_used: sum,
    /// Bytes of RAM of the index.
    index_bytes: sum,
    /// Slots of the index, used and free.
    index_slots: sum,
    /// The largest number of bytes that the slots of the index may take; 0 without a store.
    index_limit: sum,
    /// Older slots: slots whose record a set has superseded without reading it. The set knows only
    /// that the slot has its key's tag, so the record may be the current item of another key.
    /// `items` counts no older slot until Larder has read the record and compared its key.
    older_slots: sum,
    /// Bytes of RAM of frames, including jumbo ones.
    frame_bytes: sum,
    /// Copies in memory of records whose segments have no frame.
    copies: sum,
    /// The part of `frame_bytes` in frames that hold copies instead of a segment.
    copy_bytes: sum,
    /// Bytes of RAM of connection buffers. All lanes share them.
    buffer_bytes: shared,
    /// Size of a segment, in bytes.
    segment_size: u64::max,
    /// Capacity of the fast devices for segments, in bytes.
    fast_bytes: sum,
    /// The part of `fast_bytes` that is in use.
    fast_used: sum,
    /// Capacity of the lower devices for segments, in bytes.
    lower_bytes: sum,
    /// The part of `lower_bytes` that is in use.
    lower_used: sum,
    /// Segments that hold records, live or dead, including jumbo ones.
    segments: sum,
    /// Jumbo segments.
    jumbos: sum,
    /// Bytes written to the devices since the start or the last reset. Divided by
    /// [`Totals::written_bytes`] this is the write amplification.
    device_written_bytes: sum,
    /// The part of `device_written_bytes` that is dead maps.
    map_written_bytes: sum,
    /// Bytes of the records in segments of the store that Larder freed since the start or the last
    /// reset.
    freed_bytes: sum,
    /// Emptied segments whose places are not free yet.
    quarantined_segments: sum,
    /// The part of `quarantined_segments` whose emptying is not durable.
    uncommitted_segments: sum,
    /// The part of `quarantined_segments` whose emptying is durable. Each of these segments waits
    /// for dead maps of other segments or for its own free mark.
    unmarked_segments: sum,
    /// Bytes read from devices as whole segments: to clean them, to bring them back into memory,
    /// and for dumps.
    segment_read_bytes: sum,
    /// Retired places: places of the store that could not be read and are not used again.
    bad_places: sum,
    /// Bytes of appended records that are not durable: a crash of the machine would lose them.
    unsynced_bytes: sum,
    /// The largest possible age of `unsynced_bytes`, in milliseconds.
    unsynced_ms: u64::max,
    /// Group commits since the start or the last reset.
    commits: sum,
    /// Median duration of the last commits, in microseconds.
    commit_us_p50: u64::max,
    /// 99th percentile of the durations of the last commits, in microseconds.
    commit_us_p99: u64::max,
    /// Items that recovery found at the start.
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
