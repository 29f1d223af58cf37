//! Metrics of the exporter about slab classes. Larder shows all items as class 1.

use super::family::{Family, counter, gauge};

pub(super) static ITEMS: &[Family] = &[
    gauge("memcached_slab_current_items", &[(r#"slab="1""#, "items:1:number")]),
    gauge("memcached_slab_items_age_seconds", &[(r#"slab="1""#, "items:1:age")]),
    counter(
        "memcached_slab_lru_hits_total",
        &[
            (r#"lru="hot",slab="1""#, "items:1:hits_to_hot"),
            (r#"lru="warm",slab="1""#, "items:1:hits_to_warm"),
            (r#"lru="cold",slab="1""#, "items:1:hits_to_cold"),
            (r#"lru="temporary",slab="1""#, "items:1:hits_to_temp"),
        ],
    )
    .help("Look-ups that found an item."),
    counter(
        "memcached_slab_items_crawler_reclaimed_total",
        &[(r#"slab="1""#, "items:1:crawler_reclaimed")],
    ),
    counter("memcached_slab_items_evicted_total", &[(r#"slab="1""#, "items:1:evicted")]),
    counter(
        "memcached_slab_items_evicted_nonzero_total",
        &[(r#"slab="1""#, "items:1:evicted_nonzero")],
    ),
    counter(
        "memcached_slab_items_evicted_time_seconds",
        &[(r#"slab="1""#, "items:1:evicted_time")],
    ),
    counter(
        "memcached_slab_items_evicted_unfetched_total",
        &[(r#"slab="1""#, "items:1:evicted_unfetched")],
    ),
    counter(
        "memcached_slab_items_expired_unfetched_total",
        &[(r#"slab="1""#, "items:1:expired_unfetched")],
    ),
    counter("memcached_slab_items_outofmemory_total", &[(r#"slab="1""#, "items:1:outofmemory")]),
    counter("memcached_slab_items_reclaimed_total", &[(r#"slab="1""#, "items:1:reclaimed")]),
    counter("memcached_slab_items_tailrepairs_total", &[(r#"slab="1""#, "items:1:tailrepairs")]),
    counter("memcached_slab_mem_requested_bytes", &[(r#"slab="1""#, "items:1:mem_requested")]),
    counter("memcached_slab_items_moves_to_cold", &[(r#"slab="1""#, "items:1:moves_to_cold")]),
    counter("memcached_slab_items_moves_to_warm", &[(r#"slab="1""#, "items:1:moves_to_warm")]),
    counter(
        "memcached_slab_items_moves_within_lru",
        &[(r#"slab="1""#, "items:1:moves_within_lru")],
    ),
    gauge("memcached_slab_hot_items", &[(r#"slab="1""#, "items:1:number_hot")]),
    gauge("memcached_slab_warm_items", &[(r#"slab="1""#, "items:1:number_warm")]),
    gauge("memcached_slab_cold_items", &[(r#"slab="1""#, "items:1:number_cold")]),
    gauge("memcached_slab_hot_age_seconds", &[(r#"slab="1""#, "items:1:age_hot")]),
    gauge("memcached_slab_warm_age_seconds", &[(r#"slab="1""#, "items:1:age_warm")]),
];

pub(super) static SLABS: &[Family] = &[
    counter(
        "memcached_slab_commands_total",
        &[
            (r#"command="get",slab="1",status="hit""#, "1:get_hits"),
            (r#"command="delete",slab="1",status="hit""#, "1:delete_hits"),
            (r#"command="incr",slab="1",status="hit""#, "1:incr_hits"),
            (r#"command="decr",slab="1",status="hit""#, "1:decr_hits"),
            (r#"command="cas",slab="1",status="hit""#, "1:cas_hits"),
            (r#"command="touch",slab="1",status="hit""#, "1:touch_hits"),
            (r#"command="cas",slab="1",status="badval""#, "1:cas_badval"),
            (r#"command="set",slab="1",status="hit""#, "1:cmd_set - 1:cas_hits - 1:cas_badval"),
        ],
    )
    .help("Commands that found an item."),
    gauge("memcached_slab_chunk_size_bytes", &[(r#"slab="1""#, "1:chunk_size")]),
    gauge("memcached_slab_chunks_per_page", &[(r#"slab="1""#, "1:chunks_per_page")]),
    gauge("memcached_slab_current_pages", &[(r#"slab="1""#, "1:total_pages")]),
    gauge("memcached_slab_current_chunks", &[(r#"slab="1""#, "1:total_chunks")]),
    gauge("memcached_slab_chunks_used", &[(r#"slab="1""#, "1:used_chunks")]),
    gauge("memcached_slab_chunks_free", &[(r#"slab="1""#, "1:free_chunks")]),
    gauge("memcached_slab_chunks_free_end", &[(r#"slab="1""#, "1:free_chunks_end")]),
];
