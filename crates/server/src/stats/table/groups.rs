//! `stats items` and `stats slabs`. Larder has no slab classes. It shows all items as class 1, with
//! the log's 8-byte units as chunks, so that sums over classes are correct.

use super::super::metric::MetricKind::{Absent, Counter, Gauge};
use super::super::metric::{Metric, MetricKind, Reading, counter, gauge};
use super::super::snapshot::Snapshot;

/// The unit of the log, in bytes.
const UNIT: u64 = 8;

/// A row of `stats items`. As in memcached, the row is absent while there are no items.
macro_rules! item {
    ($row:literal, $kind:ident, $help:literal, $value:expr) => {
        group_row("items", concat!("items:1:", $row), $kind, $help, |s| {
            let value: fn(&Snapshot<'_>) -> u64 = $value;
            (s.engine.items > 0).then(|| Reading::Whole(value(s)))
        })
    };
    ($row:literal) => {
        item!($row, Absent, "", |_| 0)
    };
}

/// A row of class 1 in `stats slabs`. The row is absent while there are no segments.
macro_rules! slab {
    ($row:literal, $kind:ident, $help:literal, $value:expr) => {
        group_row("slabs", concat!("1:", $row), $kind, $help, |s| {
            let value: fn(&Snapshot<'_>) -> u64 = $value;
            (s.engine.segments > 0).then(|| Reading::Whole(value(s)))
        })
    };
    ($row:literal) => {
        slab!($row, Absent, "", |_| 0)
    };
}

const fn group_row(
    group: &'static str,
    row: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: fn(&Snapshot<'_>) -> Option<Reading>,
) -> Metric {
    let mut metric = counter(row, help, read).group(group);
    metric.kind = kind;
    metric
}

pub(super) static ITEMS: &[Metric] = &[
    item!("number", Gauge, "Same as `curr_items`.", |s| s.engine.items),
    item!("number_hot"),
    item!("number_warm"),
    item!("number_cold", Gauge, "Same as `curr_items`.", |s| s.engine.items),
    item!("age_hot"),
    item!("age_warm"),
    item!("age"),
    item!("mem_requested", Gauge, "Same as `bytes`.", |s| s.engine.item_bytes).bytes(),
    item!("evicted", Counter, "Same as `evictions`.", |s| s.totals().evictions),
    item!("evicted_nonzero"),
    item!("evicted_time"),
    item!("outofmemory", Counter, "Same as `store_no_memory`.", |s| s.totals().store_no_memory),
    item!("tailrepairs"),
    item!("reclaimed", Counter, "Same as `reclaimed` of `stats`.", |s| s.totals().expired),
    item!("expired_unfetched", Counter, "Same as `expired_unfetched` of `stats`.", |s| {
        s.totals().expired_unfetched
    }),
    item!("evicted_unfetched", Counter, "Same as `evicted_unfetched` of `stats`.", |s| {
        s.totals().evicted_unfetched
    }),
    item!("evicted_active"),
    item!("crawler_reclaimed"),
    item!("crawler_items_checked"),
    item!("lrutail_reflocked"),
    item!("moves_to_cold"),
    item!("moves_to_warm"),
    item!("moves_within_lru"),
    item!("direct_reclaims"),
    item!("hits_to_hot"),
    item!("hits_to_warm"),
    item!("hits_to_cold", Counter, "Same as `get_hits`.", |s| s.totals().get_hits),
    item!("hits_to_temp"),
];

fn chunks(s: &Snapshot<'_>) -> u64 {
    s.engine.frame_bytes / UNIT
}

fn used_chunks(s: &Snapshot<'_>) -> u64 {
    (s.engine.item_bytes / UNIT).min(chunks(s))
}

pub(super) static SLABS: &[Metric] = &[
    slab!("chunk_size", Gauge, "The log's unit.", |_| UNIT).bytes().apart(),
    slab!("chunks_per_page", Gauge, "Units of a segment.", |s| s.engine.segment_size / UNIT)
        .apart(),
    slab!("total_pages", Gauge, "Same as `larder_segments`.", |s| s.engine.segments),
    slab!("total_chunks", Gauge, "Units of all frames.", chunks),
    slab!("used_chunks", Gauge, "Units of live items.", used_chunks),
    slab!("free_chunks", Gauge, "Units of frames without live items.", |s| {
        chunks(s) - used_chunks(s)
    }),
    slab!("free_chunks_end"),
    slab!("get_hits", Counter, "Same as `get_hits` of `stats`.", |s| s.totals().get_hits),
    slab!("cmd_set", Counter, "Same as `cmd_set` of `stats`.", |s| s.totals().cmd_set),
    slab!("delete_hits", Counter, "Same as `delete_hits` of `stats`.", |s| s.totals().delete_hits),
    slab!("incr_hits", Counter, "Same as `incr_hits` of `stats`.", |s| s.totals().incr_hits),
    slab!("decr_hits", Counter, "Same as `decr_hits` of `stats`.", |s| s.totals().decr_hits),
    slab!("cas_hits", Counter, "Same as `cas_hits` of `stats`.", |s| s.totals().cas_hits),
    slab!("cas_badval", Counter, "Same as `cas_badval` of `stats`.", |s| s.totals().cas_badval),
    slab!("touch_hits", Counter, "Same as `touch_hits` of `stats`.", |s| s.totals().touch_hits),
    gauge("active_slabs", "1 if there are segments.", |s| Some((s.engine.segments > 0).into()))
        .group("slabs")
        .apart(),
    gauge("total_malloced", "Same as `larder_frame_bytes`.", |s| Some(s.engine.frame_bytes.into()))
        .group("slabs")
        .bytes(),
];
