//! `stats` without a group. The rows are in memcached's order.

use std::sync::atomic::Ordering::Relaxed;

use larder_engine::{Health, LaneState, Stats};

use super::rows::{Row, put};
use super::totals::NetTotals;
use crate::process;
use crate::server::Running;
use crate::settings::{MEMCACHED_VERSION, durability_name};

pub(super) fn rows(running: &Running, row: &mut Row<'_>) {
    let lanes = running.engine.lane_stats();
    let engine = Stats::sum(&lanes);
    let net = running.net_totals();
    process_rows(running, row);
    connection_rows(running, &net, row);
    command_rows(&engine.totals, &net, row);
    transport_rows(running, &engine, &net, row);
    mechanism_rows(&engine, row);
    item_rows(&engine, row);
    larder_rows(running, &engine, &lanes, &net, row);
}

fn process_rows(running: &Running, row: &mut Row<'_>) {
    let usage = process::usage();
    put(row, "pid", std::process::id());
    put(row, "uptime", running.clock.uptime().as_secs());
    put(row, "time", running.clock.wall());
    put(row, "version", MEMCACHED_VERSION);
    put(row, "libevent", "none");
    put(row, "pointer_size", usize::BITS);
    for (name, time) in [("rusage_user", usage.user), ("rusage_system", usage.system)] {
        row(name, format_args!("{}.{:06}", time.as_secs(), time.subsec_micros()));
    }
}

fn connection_rows(running: &Running, net: &NetTotals, row: &mut Row<'_>) {
    put(row, "max_connections", running.settings().max_connections);
    put(row, "curr_connections", net.loops.current_connections);
    put(row, "total_connections", net.loops.total_connections);
    put(row, "rejected_connections", net.loops.rejected_connections);
    put(row, "connection_structures", net.loops.current_connections);
    put(row, "response_obj_oom", 0);
    put(row, "response_obj_count", 0);
    put(row, "response_obj_bytes", 0);
    put(row, "read_buf_count", 0);
    put(row, "read_buf_bytes", net.loops.buffer_bytes);
    put(row, "read_buf_bytes_free", 0);
    put(row, "read_buf_oom", net.loops.refused_buffers);
    put(row, "reserved_fds", 0);
}

fn command_rows(totals: &larder_engine::Totals, net: &NetTotals, row: &mut Row<'_>) {
    put(row, "cmd_get", totals.cmd_get);
    put(row, "cmd_set", totals.cmd_set);
    put(row, "cmd_flush", totals.cmd_flush);
    put(row, "cmd_touch", totals.cmd_touch);
    put(row, "cmd_meta", net.commands.meta_commands);
    put(row, "get_hits", totals.get_hits);
    put(row, "get_misses", totals.get_misses);
    put(row, "get_expired", totals.get_expired);
    put(row, "get_flushed", 0);
    put(row, "delete_misses", totals.delete_misses);
    put(row, "delete_hits", totals.delete_hits);
    put(row, "incr_misses", totals.incr_misses);
    put(row, "incr_hits", totals.incr_hits);
    put(row, "decr_misses", totals.decr_misses);
    put(row, "decr_hits", totals.decr_hits);
    put(row, "cas_misses", totals.cas_misses);
    put(row, "cas_hits", totals.cas_hits);
    put(row, "cas_badval", totals.cas_badval);
    put(row, "touch_hits", totals.touch_hits);
    put(row, "touch_misses", totals.touch_misses);
    put(row, "store_too_large", totals.store_too_large);
    put(row, "store_no_memory", totals.store_no_memory);
    put(row, "auth_cmds", 0);
    put(row, "auth_errors", 0);
}

fn transport_rows(
    running: &Running,
    engine: &larder_engine::Stats,
    net: &NetTotals,
    row: &mut Row<'_>,
) {
    if running.settings().idle_timeout.is_some() {
        put(row, "idle_kicks", net.loops.idle_closed);
    }
    put(row, "bytes_read", net.loops.bytes_read);
    put(row, "bytes_written", net.loops.bytes_written);
    put(row, "limit_maxbytes", engine.memory_limit);
    put(row, "accepting_conns", u8::from(!running.draining.load(Relaxed)));
    put(row, "listen_disabled_num", 0);
    put(row, "time_in_listen_disabled_us", 0);
    put(row, "threads", running.settings().threads);
    put(row, "conn_yields", net.loops.yields);
    put(row, "hash_power_level", engine.index_slots.max(1).ilog2());
    put(row, "hash_bytes", engine.index_bytes);
    put(row, "hash_is_expanding", 0);
}

/// Shows the rows of memcached's mechanisms. Of Larder's, the cleaner is most similar to
/// memcached's slab mover.
fn mechanism_rows(engine: &larder_engine::Stats, row: &mut Row<'_>) {
    put(row, "slab_reassign_rescues", engine.totals.moved_items);
    for name in [
        "slab_reassign_chunk_rescues",
        "slab_reassign_inline_reclaim",
        "slab_reassign_busy_items",
        "slab_reassign_busy_deletes",
        "slab_reassign_busy_nomem",
    ] {
        put(row, name, 0);
    }
    put(row, "slab_reassign_last_busy_status", "none");
    for name in [
        "slab_reassign_running",
        "slabs_moved",
        "lru_crawler_running",
        "lru_crawler_starts",
        "lru_maintainer_juggles",
        "malloc_fails",
        "log_worker_dropped",
        "log_worker_written",
        "log_watcher_skipped",
        "log_watcher_sent",
        "log_watchers",
        "unexpected_napi_ids",
        "round_robin_fallback",
    ] {
        put(row, name, 0);
    }
}

fn item_rows(engine: &larder_engine::Stats, row: &mut Row<'_>) {
    let totals = &engine.totals;
    put(row, "bytes", engine.item_bytes);
    put(row, "curr_items", engine.items);
    put(row, "total_items", totals.total_items);
    put(row, "slab_global_page_pool", 0);
    put(row, "expired_unfetched", totals.expired_unfetched);
    put(row, "evicted_unfetched", totals.evicted_unfetched);
    put(row, "evicted_active", 0);
    put(row, "evictions", totals.evictions);
    put(row, "reclaimed", totals.expired);
    for name in [
        "crawler_reclaimed",
        "crawler_items_checked",
        "lrutail_reflocked",
        "moves_to_cold",
        "moves_to_warm",
        "moves_within_lru",
        "direct_reclaims",
        "lru_bumps_dropped",
    ] {
        put(row, name, 0);
    }
}

/// Shows the rows of the store. Without a store they have the values 0 and `none`.
fn store_rows(running: &Running, engine: &Stats, lanes: &[Stats], row: &mut Row<'_>) {
    let settings = running.settings();
    match settings.has_store() {
        true => put(row, "larder_store", settings.show_store()),
        false => put(row, "larder_store", "none"),
    }
    put(row, "larder_durability", durability_name(settings.durability()));
    put(row, "larder_flash_io", running.flash_io.get().copied().unwrap_or("none"));
    put(row, "larder_flash_reads", engine.totals.flash_reads);
    put(row, "larder_unread_sets", engine.totals.unread_sets);
    put(row, "larder_unreadable", engine.totals.unreadable);
    put(row, "larder_bad_places", engine.bad_places);
    put(row, "larder_unsynced_bytes", engine.unsynced_bytes);
    put(row, "larder_unsynced_ms", engine.unsynced_ms);
    put(row, "larder_written_bytes", engine.totals.written_bytes);
    put(row, "larder_device_written_bytes", engine.device_written_bytes);
    put(row, "larder_map_written_bytes", engine.map_written_bytes);
    put(row, "larder_freed_bytes", engine.freed_bytes);
    put(row, "larder_segment_read_bytes", engine.segment_read_bytes);
    put(row, "larder_commits", engine.commits);
    put(row, "larder_commit_us_p50", engine.commit_us_p50);
    put(row, "larder_commit_us_p99", engine.commit_us_p99);
    put(row, "larder_recovered_items", engine.recovered_items);
    put(row, "larder_recovery_ms", engine.recovery_ms);
    if settings.has_store() {
        let states = running.engine.lanes();
        states.iter().zip(lanes).for_each(|(lane, stats)| lane_rows(lane, stats, row));
    }
}

fn lane_rows(lane: &LaneState, stats: &Stats, row: &mut Row<'_>) {
    let mut put_of = |what: &str, value: &dyn std::fmt::Display| {
        put(row, &format!("larder_lane_{}_{what}", lane.number), value);
    };
    put_of("device", &lane.name);
    match &lane.health {
        _ if lane.drained => put_of("state", &"drained"),
        Health::Failing { reason } => put_of("state", &format_args!("failing: {reason}")),
        Health::Good if lane.draining => put_of("state", &"draining"),
        Health::Good => put_of("state", &"ok"),
    }
    put_of("partitions", &lane.partitions);
    put_of("items", &stats.items);
    put_of("bytes", &stats.item_bytes);
    put_of("capacity", &lane.capacity);
    if let Some(lower) = &lane.lower {
        put_of("lower_device", lower);
        put_of("fast_used", &stats.fast_used);
        put_of("fast_capacity", &stats.fast_bytes);
        put_of("lower_used", &stats.lower_used);
        put_of("lower_capacity", &stats.lower_bytes);
    }
}

/// Shows the rows that memcached does not have.
fn larder_rows(
    running: &Running,
    engine: &Stats,
    lanes: &[Stats],
    net: &NetTotals,
    row: &mut Row<'_>,
) {
    put(row, "larder_version", env!("CARGO_PKG_VERSION"));
    put(row, "larder_health", running.readiness().err().unwrap_or("ok".into()));
    put(row, "larder_io", running.net.backend().kind.name());
    store_rows(running, engine, lanes, row);
    put(row, "larder_bytes_resident", engine.item_bytes - engine.flash_item_bytes);
    put(row, "larder_bytes_flash", engine.flash_item_bytes);
    put(row, "larder_memory_used", engine.memory_used);
    put(row, "larder_index_bytes", engine.index_bytes);
    put(row, "larder_index_slots", engine.index_slots);
    put(row, "larder_older_slots", engine.older_slots);
    put(row, "larder_frame_bytes", engine.frame_bytes);
    put(row, "larder_copies", engine.copies);
    put(row, "larder_copy_bytes", engine.copy_bytes);
    put(row, "larder_buffer_bytes", engine.buffer_bytes);
    put(row, "larder_resident_bytes", process::resident_bytes());
    put(row, "larder_segments", engine.segments);
    put(row, "larder_segment_size", engine.segment_size);
    put(row, "larder_jumbo_segments", engine.jumbos);
    put(row, "larder_moved_items", engine.totals.moved_items);
    put(row, "larder_counter_updates_in_place", engine.totals.counted_in_place);
    put(row, "larder_counter_records", engine.totals.counted_anew);
    put(row, "larder_limits_allowed", engine.totals.taken);
    put(row, "larder_limits_refused", engine.totals.refused);
    put(row, "larder_limiters_evicted", engine.totals.evicted_limiters);
    put(row, "larder_reads", net.loops.reads);
    put(row, "larder_writes", net.loops.writes);
    put(row, "larder_loop_turns", net.loops.turns);
    put(row, "larder_output_stalls", net.loops.output_stalls);
    put(row, "larder_values_cut", net.commands.values_cut);
    put(row, "larder_accept_errors", net.loops.accept_errors);
    put(row, "larder_idle_closed", net.loops.idle_closed);
}
