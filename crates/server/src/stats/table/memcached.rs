//! The rows of `stats` that memcached has too, in memcached's order. Rows of mechanisms that Larder
//! does not have show 0 or `none`. The row `slab_reassign_rescues` of memcached's slab mover counts
//! the items that the cleaner moved, because the cleaner is the most similar mechanism of Larder.

use super::super::metric::MetricUnit::Seconds;
use super::super::metric::{Metric, absent, counter, gauge, some, text, zero};
use crate::settings::MEMCACHED_VERSION;

pub(super) static METRICS: &[Metric] = &[
    gauge("pid", "The process id.", |_| some(u64::from(std::process::id()))).apart(),
    gauge("uptime", "Time since the start.", |s| some(s.uptime.as_secs())).unit(Seconds).apart(),
    gauge("time", "The server's time since the Unix epoch.", |s| some(s.running.clock.wall()))
        .unit(Seconds)
        .apart(),
    text("version", "The version of memcached whose commands and replies these are.", |_| {
        some(MEMCACHED_VERSION)
    }),
    absent("libevent", |_| some("none")),
    gauge("pointer_size", "Bits of a pointer.", |_| some(u64::from(usize::BITS))).apart(),
    counter("rusage_user", "Processor time of the process in user mode.", |s| some(s.usage.user))
        .unit(Seconds),
    counter("rusage_system", "Processor time of the process in the kernel.", |s| {
        some(s.usage.system)
    })
    .unit(Seconds),
    gauge("max_connections", "Connections that are allowed at a time.", |s| {
        some(s.settings.max_connections)
    }),
    gauge("curr_connections", "Open connections.", |s| some(s.loops().current_connections)),
    counter("total_connections", "Connections accepted.", |s| some(s.loops().total_connections)),
    counter("rejected_connections", "Connections rejected because there were too many.", |s| {
        some(s.loops().rejected_connections)
    }),
    gauge("connection_structures", "Same as `curr_connections`.", |s| {
        some(s.loops().current_connections)
    }),
    zero("response_obj_oom"),
    zero("response_obj_count"),
    zero("response_obj_bytes"),
    zero("read_buf_count"),
    gauge(
        "read_buf_bytes",
        "Bytes in buffers of connections: unconsumed input and unsent output.",
        |s| some(s.loops().buffer_bytes),
    )
    .bytes()
    .named("larder_pending_bytes"),
    zero("read_buf_bytes_free"),
    counter(
        "read_buf_oom",
        "Connections closed because all connections together kept too much memory.",
        |s| some(s.loops().refused_buffers),
    )
    .named("larder_connections_no_memory_total"),
    zero("reserved_fds"),
    counter("cmd_get", "Keys looked up, except for touches.", |s| some(s.totals().cmd_get)),
    counter("cmd_set", "Stores of every kind, successful or not.", |s| some(s.totals().cmd_set)),
    counter("cmd_flush", "Flushes.", |s| some(s.totals().cmd_flush)),
    counter("cmd_touch", "Touches and gats.", |s| some(s.totals().cmd_touch)),
    counter("cmd_meta", "Meta commands of every kind.", |s| some(s.net.commands.meta_commands))
        .named("larder_meta_commands_total"),
    counter("get_hits", "Look-ups that found an item.", |s| some(s.totals().get_hits)),
    counter("get_misses", "Look-ups that found no item.", |s| some(s.totals().get_misses)),
    counter("get_expired", "Look-ups and touches that found an expired item; also misses.", |s| {
        some(s.totals().get_expired)
    })
    .named("larder_get_expired_total"),
    zero("get_flushed"),
    counter(
        "delete_misses",
        "Deletes that found no item, or another cas id than the given one.",
        |s| some(s.totals().delete_misses),
    ),
    counter("delete_hits", "Deletes that found an item.", |s| some(s.totals().delete_hits)),
    counter("incr_misses", "Increments that found no item.", |s| some(s.totals().incr_misses)),
    counter("incr_hits", "Increments that found an item.", |s| some(s.totals().incr_hits)),
    counter("decr_misses", "Decrements that found no item.", |s| some(s.totals().decr_misses)),
    counter("decr_hits", "Decrements that found an item.", |s| some(s.totals().decr_hits)),
    counter("cas_misses", "Compare-and-set writes that found no item.", |s| {
        some(s.totals().cas_misses)
    }),
    counter("cas_hits", "Compare-and-set writes that matched.", |s| some(s.totals().cas_hits)),
    counter("cas_badval", "Compare-and-set writes that found another cas id.", |s| {
        some(s.totals().cas_badval)
    }),
    counter("touch_hits", "Touches that found an item.", |s| some(s.totals().touch_hits)),
    counter("touch_misses", "Touches that found no item.", |s| some(s.totals().touch_misses)),
    counter("store_too_large", "Writes refused because the item was too large.", |s| {
        some(s.totals().store_too_large)
    }),
    counter("store_no_memory", "Writes refused because there was no room.", |s| {
        some(s.totals().store_no_memory)
    }),
    zero("auth_cmds"),
    zero("auth_errors"),
    counter("idle_kicks", "Connections closed as idle; only with `--idle-timeout`.", |s| {
        s.settings.idle_timeout.map(|_| s.loops().idle_closed.into())
    }),
    counter("bytes_read", "Bytes received from clients.", |s| some(s.loops().bytes_read)).bytes(),
    counter("bytes_written", "Bytes sent to clients.", |s| some(s.loops().bytes_written)).bytes(),
    gauge("limit_maxbytes", "The memory limit.", |s| some(s.engine.memory_limit)).bytes(),
    gauge("accepting_conns", "1 if the server accepts new connections.", |s| some(s.accepts())),
    zero("listen_disabled_num"),
    zero("time_in_listen_disabled_us"),
    gauge("threads", "Worker threads.", |s| some(s.settings.threads)).named("larder_threads"),
    counter("conn_yields", "Turns that a connection gave to others.", |s| some(s.loops().yields)),
    gauge("hash_power_level", "Binary logarithm of the number of slots of the index.", |s| {
        some(u64::from(s.engine.index_slots.max(1).ilog2()))
    })
    .apart(),
    gauge("hash_bytes", "Same as `larder_index_bytes`.", |s| some(s.engine.index_bytes)).bytes(),
    zero("hash_is_expanding"),
    counter("slab_reassign_rescues", "Same as `larder_moved_items`.", |s| {
        some(s.totals().moved_items)
    }),
    zero("slab_reassign_chunk_rescues"),
    zero("slab_reassign_inline_reclaim"),
    zero("slab_reassign_busy_items"),
    zero("slab_reassign_busy_deletes"),
    zero("slab_reassign_busy_nomem"),
    absent("slab_reassign_last_busy_status", |_| some("none")),
    zero("slab_reassign_running"),
    zero("slabs_moved"),
    zero("lru_crawler_running"),
    zero("lru_crawler_starts"),
    zero("lru_maintainer_juggles"),
    zero("malloc_fails"),
    zero("log_worker_dropped"),
    zero("log_worker_written"),
    zero("log_watcher_skipped"),
    zero("log_watcher_sent"),
    zero("log_watchers"),
    zero("unexpected_napi_ids"),
    zero("round_robin_fallback"),
    gauge("bytes", "Bytes of live items: headers, keys, values.", |s| some(s.engine.item_bytes))
        .bytes(),
    gauge(
        "curr_items",
        "Items, including expired ones that were not removed yet. With a store, it may be too low, \
         by at most `larder_older_slots`.",
        |s| some(s.engine.items),
    ),
    counter("total_items", "Versions of items written.", |s| some(s.totals().total_items)),
    zero("slab_global_page_pool"),
    counter(
        "expired_unfetched",
        "Expired items that were removed, and not read since the cleaner last kept them.",
        |s| some(s.totals().expired_unfetched),
    )
    .named("larder_items_expired_unfetched_total"),
    counter("evicted_unfetched", "Evicted items that were never read.", |s| {
        some(s.totals().evicted_unfetched)
    })
    .named("larder_items_evicted_unfetched_total"),
    zero("evicted_active"),
    counter("evictions", "Live items evicted to make room for others.", |s| {
        some(s.totals().evictions)
    }),
    counter("reclaimed", "Items removed because they had expired.", |s| some(s.totals().expired)),
    zero("crawler_reclaimed"),
    zero("crawler_items_checked"),
    zero("lrutail_reflocked"),
    zero("moves_to_cold"),
    zero("moves_to_warm"),
    zero("moves_within_lru"),
    zero("direct_reclaims"),
    zero("lru_bumps_dropped"),
];
