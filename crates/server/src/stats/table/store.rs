//! The rows of the store. Without a store, the rows of extstore and of lanes are absent, and the
//! other rows whose value is a text show `none`.

use larder_engine::Durability;

use super::super::metric::MetricKind::{Counter, Gauge, Info};
use super::super::metric::MetricUnit::{Microseconds, Milliseconds};
use super::super::metric::{Metric, counter, gauge, of_lane, some, text};
use super::super::snapshot::Snapshot;
use crate::settings::durability_name;

/// The rows of memcached's flash tier (extstore), in memcached's order. As in memcached, they are
/// absent without a store. extstore's pages are Larder's segments, and its objects are items. Rows
/// for figures that Larder does not count are absent.
pub(super) static MEMCACHED: &[Metric] = &[
    counter("extstore_compact_rescues", "Same as `larder_moved_items`.", |s| {
        s.with_store(s.totals().moved_items.into())
    }),
    gauge("extstore_pages_free", "Free places for segments in the store.", |s| {
        s.with_store(segments(s, capacity(s) - used(s)).into())
    }),
    gauge("extstore_pages_used", "Places with segments in the store.", |s| {
        s.with_store(segments(s, used(s)).into())
    }),
    counter("extstore_objects_evicted", "Same as `evictions`.", |s| {
        s.with_store(s.totals().evictions.into())
    }),
    counter("extstore_objects_read", "Same as `larder_flash_reads`.", |s| {
        s.with_store(s.totals().flash_reads.into())
    }),
    counter(
        "extstore_objects_written",
        "Same as `total_items`: every item is in the store.",
        |s| s.with_store(s.totals().total_items.into()),
    ),
    gauge("extstore_objects_used", "Same as `curr_items`: every item is in the store.", |s| {
        s.with_store(s.engine.items.into())
    }),
    counter("extstore_bytes_written", "Same as `larder_device_written_bytes`.", |s| {
        s.with_store(s.engine.device_written_bytes.into())
    })
    .bytes(),
    gauge("extstore_bytes_used", "Same as `bytes`: every item is in the store.", |s| {
        s.with_store(s.engine.item_bytes.into())
    })
    .bytes(),
    gauge("extstore_bytes_fragmented", "Bytes of segments in the store that are not items.", |s| {
        s.with_store(used(s).saturating_sub(s.engine.item_bytes).into())
    })
    .bytes(),
    gauge("extstore_limit_maxbytes", "Room for segments on all devices of the store.", |s| {
        s.with_store(capacity(s).into())
    })
    .bytes(),
];

fn capacity(s: &Snapshot<'_>) -> u64 {
    s.engine.fast_bytes + s.engine.lower_bytes
}

fn used(s: &Snapshot<'_>) -> u64 {
    (s.engine.fast_used + s.engine.lower_used).min(capacity(s))
}

fn segments(s: &Snapshot<'_>, bytes: u64) -> u64 {
    bytes / s.engine.segment_size.max(1)
}

pub(super) static METRICS: &[Metric] = &[
    text("larder_store", "The devices of the store.", |s| match s.settings.has_store() {
        true => some(s.settings.show_store()),
        false => some("none"),
    }),
    text("larder_durability", "What an acknowledged write survives; see `--durability`.", |s| {
        some(durability_name(s.settings.durability()))
    })
    .named("larder_durability_info")
    .labels("durability"),
    gauge("larder_store_healthy", "1 if the store takes writes.", |s| {
        some(s.running.store_failure().is_none())
    })
    .named("larder_store_healthy"),
    text(
        "larder_flash_io",
        "The method of reads from the store: `uring`, or `threads` with `--io epoll` or if io_uring \
         is not available.",
        |s| some(s.running.flash_io.get().copied().unwrap_or("none")),
    )
    .named("larder_flash_io_info")
    .labels("method"),
    counter("larder_flash_reads", "Records read from the store for requests.", |s| {
        some(s.totals().flash_reads)
    })
    .named("larder_flash_reads_total"),
    counter(
        "larder_sample_reads",
        "Records read from the store to sample items for the view Keys.",
        |s| some(s.totals().sample_reads),
    )
    .named("larder_sample_reads_total"),
    counter(
        "larder_unread_sets",
        "Sets that replaced an item without reading it first, because the item was only in the \
         store.",
        |s| some(s.totals().unread_sets),
    )
    .named("larder_unread_sets_total"),
    counter(
        "larder_unreadable",
        "Items that could not be read from the store: those evicted for this reason, and those \
         that a dump left out, counted again for each dump.",
        |s| some(s.totals().unreadable),
    )
    .named("larder_unreadable_items_total"),
    gauge(
        "larder_bad_places",
        "Places of segments in the store that are known to be partly unreadable. They are not used \
         again.",
        |s| some(s.engine.bad_places),
    )
    .named("larder_bad_places"),
    gauge("larder_unsynced_bytes", "Bytes of the log that a crash would lose. With `sync`, no \
         acknowledged write is among them.", |s| {
        some(s.engine.unsynced_bytes)
    })
    .bytes()
    .named("larder_unsynced_bytes"),
    gauge("larder_unsynced_ms", "The largest possible age of these bytes.", |s| {
        some(s.engine.unsynced_ms)
    })
    .unit(Milliseconds)
    .largest()
    .named("larder_unsynced_age_seconds"),
    gauge(
        "larder_sync_interval_ms",
        "The age of acknowledged bytes at which a commit must be done; see `--sync-interval`. 0 with \
         `--durability none`.",
        |s| {
            let waits = s.settings.durability() != Durability::None;
            some(if waits { s.settings.sync_interval.as_millis() as u64 } else { 0 })
        },
    )
    .unit(Milliseconds)
    .largest()
    .named("larder_sync_interval_seconds"),
    counter("larder_written_bytes", "Bytes of records that requests wrote.", |s| {
        some(s.totals().written_bytes)
    })
    .bytes()
    .named("larder_record_bytes_total"),
    counter(
        "larder_device_written_bytes",
        "Bytes written to devices for any purpose. Divided by `larder_written_bytes`, this is the \
         write amplification.",
        |s| some(s.engine.device_written_bytes),
    )
    .bytes()
    .named("larder_device_written_bytes_total"),
    counter("larder_map_written_bytes", "Bytes of dead maps written, to free segments.", |s| {
        some(s.engine.map_written_bytes)
    })
    .bytes()
    .named("larder_map_written_bytes_total"),
    counter("larder_freed_bytes", "Bytes of records in freed segments.", |s| {
        some(s.engine.freed_bytes)
    })
    .bytes()
    .named("larder_freed_bytes_total"),
    counter(
        "larder_segment_read_bytes",
        "Bytes read in whole segments: for cleaning, for bringing them back into memory, for \
         dumps.",
        |s| some(s.engine.segment_read_bytes),
    )
    .bytes()
    .named("larder_segment_read_bytes_total"),
    counter(
        "larder_cooled_segments",
        "Segments whose items the cleaner moved to the lower device.",
        |s| some(s.totals().cooled_segments),
    )
    .named("larder_cooled_segments_total"),
    gauge("larder_free_segments", "Free places for segments in the store.", |s| {
        some(segments(s, capacity(s) - used(s)))
    })
    .named("larder_free_segments"),
    gauge(
        "larder_uncommitted_segments",
        "The part of `larder_quarantined_segments` whose emptying waits for a commit.",
        |s| some(s.engine.uncommitted_segments),
    )
    .named("larder_uncommitted_segments"),
    gauge(
        "larder_unmarked_segments",
        "The part of `larder_quarantined_segments` that waits for dead maps of other segments, or for \
         their free marks to become durable. If it stays high, the server makes dead maps too slowly.",
        |s| some(s.engine.unmarked_segments),
    )
    .named("larder_unmarked_segments"),
    counter("larder_commits", "Group commits.", |s| some(s.engine.commits))
        .named("larder_commits_total"),
    gauge("larder_commit_us_p50", "Median duration of the latest commits.", |s| {
        some(s.engine.commit_us_p50)
    })
    .unit(Microseconds)
    .named("larder_commit_seconds")
    .quantile(r#"quantile="0.5""#),
    gauge("larder_commit_us_p99", "99th percentile of the durations of the latest commits.", |s| {
        some(s.engine.commit_us_p99)
    })
    .unit(Microseconds)
    .named("larder_commit_seconds")
    .quantile(r#"quantile="0.99""#),
    gauge("larder_recovered_items", "Items that recovery found at the start.", |s| {
        some(s.engine.recovered_items)
    })
    .named("larder_recovered_items"),
    gauge("larder_recovery_ms", "Duration of the recovery.", |s| some(s.engine.recovery_ms))
        .unit(Milliseconds)
        .largest()
        .named("larder_recovery_seconds"),
    of_lane("larder_lane_N_device", Info, "The device of lane N.", |lane| {
        some(lane.state.name.as_str())
    }),
    of_lane(
        "larder_lane_N_state",
        Info,
        "`ok`, `draining`, `drained`, or `failing: ` and the reason.",
        |lane| some(lane.words()),
    ),
    of_lane("larder_lane_N_healthy", Gauge, "1 if the device takes writes.", |lane| {
        some(lane.is_healthy())
    })
    .named("larder_lane_healthy"),
    of_lane("larder_lane_N_draining", Gauge, "1 if the device is being emptied.", |lane| {
        some(lane.state.draining)
    })
    .named("larder_lane_draining"),
    of_lane("larder_lane_N_partitions", Gauge, "The lane's shares of the keys, of 4096.", |lane| {
        some(lane.state.partitions)
    })
    .named("larder_lane_partitions"),
    of_lane("larder_lane_N_items", Gauge, "The lane's items.", |lane| some(lane.stats.items))
        .named("larder_lane_items"),
    of_lane("larder_lane_N_bytes", Gauge, "Bytes of the lane's items.", |lane| {
        some(lane.stats.item_bytes)
    })
    .bytes()
    .named("larder_lane_bytes"),
    of_lane("larder_lane_N_capacity", Gauge, "Size of the lane's devices.", |lane| {
        some(lane.state.capacity)
    })
    .bytes()
    .named("larder_lane_capacity_bytes"),
    of_lane("larder_lane_N_room", Gauge, "Room for segments on the lane's devices.", |lane| {
        some(lane.stats.fast_bytes + lane.stats.lower_bytes)
    })
    .bytes()
    .named("larder_lane_room_bytes"),
    of_lane(
        "larder_lane_N_index_used",
        Gauge,
        "Bytes of RAM of the slots of the lane's index, used and free.",
        |lane| some(lane.stats.index_slots * size_of::<u64>() as u64),
    )
    .bytes()
    .named("larder_lane_index_used_bytes"),
    of_lane(
        "larder_lane_N_index_limit",
        Gauge,
        "Bytes that these slots may take: a share of `--memory`. At this limit, the lane evicts items or \
         refuses new ones, however much room its devices have.",
        |lane| some(lane.stats.index_limit),
    )
    .bytes()
    .named("larder_lane_index_limit_bytes"),
    of_lane("larder_lane_N_free_segments", Gauge, "Free places for segments on the lane's devices.", |lane| {
        let s = lane.stats;
        let free = (s.fast_bytes + s.lower_bytes).saturating_sub(s.fast_used + s.lower_used);
        some(free / s.segment_size.max(1))
    })
    .named("larder_lane_free_segments"),
    of_lane(
        "larder_lane_N_quarantined_segments",
        Gauge,
        "Emptied segments of the lane whose places are not free yet.",
        |lane| some(lane.stats.quarantined_segments),
    )
    .named("larder_lane_quarantined_segments"),
    of_lane(
        "larder_lane_N_cleaned_segments",
        Counter,
        "Segments of the lane that the cleaner emptied by moving or removing their items.",
        |lane| some(lane.stats.totals.cleaned_segments),
    )
    .named("larder_lane_cleaned_segments_total"),
    of_lane(
        "larder_lane_N_cleaned_bytes",
        Counter,
        "Bytes of records in the segments that the cleaner emptied, dead ones included.",
        |lane| some(lane.stats.totals.cleaned_bytes),
    )
    .bytes()
    .named("larder_lane_cleaned_bytes_total"),
    of_lane(
        "larder_lane_N_cleaned_live_bytes",
        Counter,
        "The live part of `larder_lane_N_cleaned_bytes`.",
        |lane| some(lane.stats.totals.cleaned_live_bytes),
    )
    .bytes()
    .named("larder_lane_cleaned_live_bytes_total"),
    of_lane(
        "larder_lane_N_dead_segments",
        Counter,
        "Segments of the lane that the cleaner emptied at no cost, because none of their records \
         was alive.",
        |lane| some(lane.stats.totals.dead_segments),
    )
    .named("larder_lane_dead_segments_total"),
    of_lane(
        "larder_lane_N_moved_bytes",
        Counter,
        "Bytes of records that the cleaner moved to keep their items.",
        |lane| some(lane.stats.totals.moved_bytes),
    )
    .bytes()
    .named("larder_lane_moved_bytes_total"),
    of_lane("larder_lane_N_flash_reads", Counter, "Reads of records from the lane's devices.", |lane| {
        some(lane.stats.totals.flash_reads)
    })
    .named("larder_lane_flash_reads_total"),
    of_lane(
        "larder_lane_N_written_bytes",
        Counter,
        "Bytes of records that requests wrote to the lane.",
        |lane| some(lane.stats.totals.written_bytes),
    )
    .bytes()
    .named("larder_lane_written_bytes_total"),
    of_lane(
        "larder_lane_N_device_written_bytes",
        Counter,
        "Bytes written to the lane's devices for any purpose. Divided by \
         `larder_lane_N_written_bytes`, this is the lane's write amplification.",
        |lane| some(lane.stats.device_written_bytes),
    )
    .bytes()
    .named("larder_lane_device_written_bytes_total"),
    of_lane("larder_lane_N_lower_device", Info, "With two tiers: the big device.", |lane| {
        lane.state.lower.as_deref().map(Into::into)
    }),
    of_lane(
        "larder_lane_N_fast_used",
        Gauge,
        "With two tiers: bytes of segments on the fast device.",
        |lane| lane.state.lower.is_some().then(|| lane.stats.fast_used.into()),
    )
    .bytes()
    .named("larder_lane_fast_used_bytes"),
    of_lane(
        "larder_lane_N_fast_capacity",
        Gauge,
        "With two tiers: room for segments on the fast device.",
        |lane| lane.state.lower.is_some().then(|| lane.stats.fast_bytes.into()),
    )
    .bytes()
    .named("larder_lane_fast_capacity_bytes"),
    of_lane(
        "larder_lane_N_lower_used",
        Gauge,
        "With two tiers: bytes of segments on the big device.",
        |lane| lane.state.lower.is_some().then(|| lane.stats.lower_used.into()),
    )
    .bytes()
    .named("larder_lane_lower_used_bytes"),
    of_lane(
        "larder_lane_N_lower_capacity",
        Gauge,
        "With two tiers: room for segments on the big device.",
        |lane| lane.state.lower.is_some().then(|| lane.stats.lower_bytes.into()),
    )
    .bytes()
    .named("larder_lane_lower_capacity_bytes"),
];
