//! Metrics of the exporter about the server as a whole.

use super::family::{Family, counter, gauge};

pub(super) static SERVER: &[Family] = &[
    gauge("memcached_up", &[("", "1")]).help("1, because the server answers."),
    gauge("memcached_version", &[(r#"version="{version}""#, "1")])
        .help("The version of memcached whose commands and replies these are."),
    counter(
        "memcached_commands_total",
        &[
            (r#"command="get",status="hit""#, "get_hits"),
            (r#"command="get",status="miss""#, "get_misses"),
            (r#"command="delete",status="hit""#, "delete_hits"),
            (r#"command="delete",status="miss""#, "delete_misses"),
            (r#"command="incr",status="hit""#, "incr_hits"),
            (r#"command="incr",status="miss""#, "incr_misses"),
            (r#"command="decr",status="hit""#, "decr_hits"),
            (r#"command="decr",status="miss""#, "decr_misses"),
            (r#"command="cas",status="hit""#, "cas_hits"),
            (r#"command="cas",status="miss""#, "cas_misses"),
            (r#"command="touch",status="hit""#, "touch_hits"),
            (r#"command="touch",status="miss""#, "touch_misses"),
            (r#"command="cas",status="badval""#, "cas_badval"),
            (r#"command="flush",status="hit""#, "cmd_flush"),
            (r#"command="set",status="hit""#, "cmd_set - cas_misses - cas_hits - cas_badval"),
        ],
    )
    .help("Commands by result. Sets are all stores without those that compare."),
    counter("memcached_uptime_seconds", &[("", "uptime")]),
    gauge("memcached_time_seconds", &[("", "time")]),
    counter("memcached_process_user_cpu_seconds_total", &[("", "rusage_user")]),
    counter("memcached_process_system_cpu_seconds_total", &[("", "rusage_system")]),
    gauge("memcached_current_bytes", &[("", "bytes")]),
    gauge("memcached_limit_bytes", &[("", "limit_maxbytes")]),
    gauge("memcached_current_items", &[("", "curr_items")]),
    counter("memcached_items_total", &[("", "total_items")]),
    counter("memcached_read_bytes_total", &[("", "bytes_read")]),
    counter("memcached_written_bytes_total", &[("", "bytes_written")]),
    gauge("memcached_current_connections", &[("", "curr_connections")]),
    counter("memcached_connections_total", &[("", "total_connections")]),
    counter("memcached_connections_rejected_total", &[("", "rejected_connections")]),
    counter("memcached_connections_yielded_total", &[("", "conn_yields")]),
    counter("memcached_connections_listener_disabled_total", &[("", "listen_disabled_num")]),
    counter("memcached_items_evicted_total", &[("", "evictions")]),
    counter("memcached_items_reclaimed_total", &[("", "reclaimed")]),
    counter("memcached_item_too_large_total", &[("", "store_too_large")]),
    counter("memcached_item_no_memory_total", &[("", "store_no_memory")]),
    counter("memcached_lru_crawler_starts_total", &[("", "lru_crawler_starts")]),
    counter("memcached_direct_reclaims_total", &[("", "direct_reclaims")]),
    counter("memcached_lru_crawler_items_checked_total", &[("", "crawler_items_checked")]),
    counter("memcached_lru_crawler_reclaimed_total", &[("", "crawler_reclaimed")]),
    counter("memcached_lru_crawler_moves_to_cold_total", &[("", "moves_to_cold")]),
    counter("memcached_lru_crawler_moves_to_warm_total", &[("", "moves_to_warm")]),
    counter("memcached_lru_crawler_moves_within_lru_total", &[("", "moves_within_lru")]),
    gauge("memcached_accepting_connections", &[("", "accepting_conns")]),
];

/// Metrics that are read from `stats settings`.
pub(super) static SETTINGS: &[Family] = &[gauge("memcached_max_connections", &[("", "maxconns")])
    .help("Connections that are allowed at a time.")];

/// Metrics of `stats slabs` that the exporter treats as metrics of the general `stats`.
pub(super) static MALLOCED: &[Family] =
    &[gauge("memcached_malloced_bytes", &[("", "total_malloced")])];

/// The exporter shows these metrics for the process that its flag `--memcached.pid-file` names.
pub(super) static PROCESS: &[Family] = &[
    counter("memcached_process_cpu_seconds_total", &[("", "rusage_user + rusage_system")])
        .help("Processor time of the process, in user mode and in the kernel."),
    gauge("memcached_process_resident_memory_bytes", &[("", "larder_resident_bytes")]),
    gauge("memcached_process_start_time_seconds", &[("", "time - uptime")])
        .help("Time of the start since the Unix epoch."),
];
