//! `stats settings`: memcached's rows in its order, then Larder's settings from the table.

use super::rows::{Row, put};
use crate::server::Running;
use crate::settings::{Flavor, Port, Protocol};
use larder_engine::WhenFull;

fn yes(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

pub(super) fn rows(running: &Running, row: &mut Row<'_>) {
    network_rows(running, row);
    mechanism_rows(running, row);
    // The rows above show these settings under memcached's names.
    let shown_above = ["memory", "max-item-size", "disable-evictions", "port", "threads"];
    for (key, value) in running.settings().rows() {
        if !shown_above.contains(&key) {
            let value = if value.is_empty() { "none" } else { &value };
            row(&format!("larder_{}", key.replace('-', "_")), format_args!("{value}"));
        }
    }
}

fn network_rows(running: &Running, row: &mut Row<'_>) {
    let settings = running.settings();
    let tcp = running.net.options().listeners.iter().find_map(|listener| listener.address());
    put(row, "maxbytes", running.engine.stats().memory_limit);
    put(row, "maxconns", settings.max_connections);
    put(row, "tcpport", tcp.map_or(0, |address| address.port()));
    put(row, "udpport", 0);
    match (settings.listen.as_slice(), settings.flavor) {
        ([], Flavor::Memcached) => put(row, "inter", "NULL"),
        ([], Flavor::Larder) if settings.port == Port::Off => put(row, "inter", "NULL"),
        _ => {
            let addresses: Vec<_> =
                settings.listen_addresses().iter().map(ToString::to_string).collect();
            let none = addresses.is_empty();
            put(row, "inter", if none { "NULL".to_owned() } else { addresses.join(",") });
        }
    }
    put(row, "verbosity", running.verbosity());
    put(row, "oldest", 0);
    put(row, "evictions", if settings.when_full == WhenFull::Evict { "on" } else { "off" });
    match &settings.socket {
        Some(path) => put(row, "domain_socket", path.display()),
        None => put(row, "domain_socket", "NULL"),
    }
    row("umask", format_args!("{:o}", settings.socket_mode));
    put(row, "shutdown_command", yes(settings.switches.shutdown));
    put(row, "growth_factor", "1.25");
    put(row, "chunk_size", 48);
    put(row, "num_threads", settings.threads);
    put(row, "num_threads_per_udp", settings.threads);
    put(row, "stat_key_prefix", settings.prefix_delimiter);
    put(row, "detail_enabled", yes(running.detail_enabled()));
    put(row, "reqs_per_event", 0);
    put(row, "cas_enabled", yes(!settings.disable_cas));
    put(row, "tcp_backlog", settings.listen_backlog);
    let protocol = match settings.protocol {
        Protocol::Auto => "auto-negotiate",
        Protocol::Ascii => "ascii",
        Protocol::Binary => "binary",
    };
    put(row, "binding_protocol", protocol);
    put(row, "auth_enabled_sasl", "no");
    put(row, "auth_enabled_ascii", "no");
    put(row, "item_size_max", settings.max_item_size);
    put(row, "maxconns_fast", "yes");
}

fn mechanism_rows(running: &Running, row: &mut Row<'_>) {
    let settings = running.settings();
    put(row, "hashpower_init", 0);
    put(row, "slab_reassign", "no");
    put(row, "slab_automove", 0);
    put(row, "slab_automove_ratio", "0.00");
    put(row, "slab_automove_window", 0);
    put(row, "slab_chunk_max", 0);
    put(row, "lru_crawler", "no");
    put(row, "lru_crawler_sleep", 0);
    put(row, "lru_crawler_tocrawl", 0);
    put(row, "tail_repair_time", 0);
    put(row, "flush_enabled", yes(settings.switches.flush));
    put(row, "dump_enabled", yes(settings.switches.dump));
    put(row, "hash_algorithm", "xxh3");
    put(row, "lru_maintainer_thread", "no");
    put(row, "lru_segmented", "no");
    put(row, "hot_lru_pct", 0);
    put(row, "warm_lru_pct", 0);
    put(row, "hot_max_factor", "0.00");
    put(row, "warm_max_factor", "0.00");
    put(row, "temp_lru", "no");
    put(row, "temporary_ttl", 0);
    put(row, "idle_timeout", settings.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    put(row, "watcher_logbuf_size", 0);
    put(row, "worker_logbuf_size", 0);
    put(row, "read_buf_mem_limit", 0);
    put(row, "track_sizes", "no");
    put(row, "inline_ascii_response", "no");
    put(row, "ext_item_size", 0);
    put(row, "ext_item_age", 0);
    put(row, "ext_low_ttl", 0);
    put(row, "ext_recache_rate", 0);
    put(row, "ext_wbuf_size", 0);
    put(row, "ext_compact_under", 0);
    put(row, "ext_drop_under", 0);
    put(row, "ext_max_sleep", 0);
    put(row, "ext_max_frag", "0.00");
    put(row, "slab_automove_freeratio", "0.000");
    put(row, "ext_drop_unread", "no");
    put(row, "num_napi_ids", 0);
    put(row, "memory_file", "(null)");
    put(row, "client_flags_size", 4);
}
