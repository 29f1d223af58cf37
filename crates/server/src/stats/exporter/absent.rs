//! Metrics that the exporter does not show for a Larder server, because `stats` lacks their rows or
//! says that their mechanism is off.

use super::family::{Family, counter, gauge};

pub(super) static UNCOUNTED: &[Family] = &[
    counter("memcached_extstore_compact_lost_total", &[("", "extstore_compact_lost")]),
    counter("memcached_extstore_compact_skipped_total", &[("", "extstore_compact_skipped")]),
    counter("memcached_extstore_pages_allocated_total", &[("", "extstore_page_allocs")]),
    counter("memcached_extstore_pages_evicted_total", &[("", "extstore_page_evictions")]),
    counter("memcached_extstore_pages_reclaimed_total", &[("", "extstore_page_reclaims")]),
    counter("memcached_extstore_bytes_evicted_total", &[("", "extstore_bytes_evicted")]),
    counter("memcached_extstore_bytes_read_total", &[("", "extstore_bytes_read")]),
    gauge("memcached_extstore_io_queue_depth", &[("", "extstore_io_queue")]),
];

pub(super) static TEMPORARY: &[Family] =
    &[gauge("memcached_slab_temporary_items", &[(r#"slab="1""#, "items:1:number_temp")])];

pub(super) static CRAWLER: &[Family] = &[
    gauge("memcached_lru_crawler_enabled", &[("", "lru_crawler")]),
    gauge("memcached_lru_crawler_sleep", &[("", "lru_crawler_sleep")]),
    gauge("memcached_lru_crawler_to_crawl", &[("", "lru_crawler_tocrawl")]),
    gauge("memcached_lru_crawler_maintainer_thread", &[("", "lru_maintainer_thread")]),
    gauge("memcached_lru_crawler_hot_percent", &[("", "hot_lru_pct")]),
    gauge("memcached_lru_crawler_warm_percent", &[("", "warm_lru_pct")]),
    gauge("memcached_lru_crawler_hot_max_factor", &[("", "hot_max_factor")]),
    gauge("memcached_lru_crawler_warm_max_factor", &[("", "warm_max_factor")]),
];

pub(super) static PROXY: &[Family] = &[
    counter("memcached_proxy_conn_requests_total", &[("", "proxy_conn_requests")]),
    counter("memcached_proxy_conn_errors_total", &[("", "proxy_conn_errors")]),
    counter("memcached_proxy_conn_oom_total", &[("", "proxy_conn_oom")]),
    gauge("memcached_proxy_req_active", &[("", "proxy_req_active")]),
    counter("memcached_proxy_config_reloads_total", &[("", "proxy_config_reloads")]),
    counter("memcached_proxy_config_reload_fails_total", &[("", "proxy_config_reload_fails")]),
    counter("memcached_proxy_config_cron_runs_total", &[("", "proxy_config_cron_runs")]),
    counter("memcached_proxy_config_cron_fails_total", &[("", "proxy_config_cron_fails")]),
    gauge("memcached_proxy_backend_total", &[("", "proxy_backend_total")]),
    counter("memcached_proxy_backend_marked_bad_total", &[("", "proxy_backend_marked_bad")]),
    gauge("memcached_proxy_backend_failed", &[("", "proxy_backend_failed")]),
    counter("memcached_proxy_request_failed_depth_total", &[("", "proxy_request_failed_depth")]),
    counter("memcached_round_robin_fallback_total", &[("", "round_robin_fallback")]),
    counter("memcached_unexpected_napi_ids_total", &[("", "unexpected_napi_ids")]),
];
