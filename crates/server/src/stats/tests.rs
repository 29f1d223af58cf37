use std::collections::BTreeMap;
use std::fmt::Write;

use larder_engine::Durability;
use larder_engine::limit::Limit;

use super::exporter::{self, RowTexts, Shown};
use super::metric::{MetricKind, MetricUnit, Read};
use super::table;
use crate::policies::{Policy, pattern};
use crate::server::Server;
use crate::settings::{ListenAddress, Settings, StorePath};

/// The rows of `stats` of memcached 1.6.45 with one item, in memcached's order.
const GENERAL: &str = "pid uptime time version libevent pointer_size rusage_user rusage_system \
    max_connections curr_connections total_connections rejected_connections \
    connection_structures response_obj_oom response_obj_count response_obj_bytes read_buf_count \
    read_buf_bytes read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush \
    cmd_touch cmd_meta get_hits get_misses get_expired get_flushed delete_misses delete_hits \
    incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits \
    touch_misses store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written \
    limit_maxbytes accepting_conns listen_disabled_num time_in_listen_disabled_us threads \
    conn_yields hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues \
    slab_reassign_chunk_rescues slab_reassign_inline_reclaim slab_reassign_busy_items \
    slab_reassign_busy_deletes slab_reassign_busy_nomem slab_reassign_last_busy_status \
    slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts \
    lru_maintainer_juggles malloc_fails log_worker_dropped log_worker_written \
    log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids round_robin_fallback \
    bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched \
    evicted_active evictions reclaimed crawler_reclaimed crawler_items_checked \
    lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims \
    lru_bumps_dropped";

const SETTINGS: &str = "maxbytes maxconns tcpport udpport inter verbosity oldest evictions \
    domain_socket umask shutdown_command growth_factor chunk_size num_threads \
    num_threads_per_udp stat_key_prefix detail_enabled reqs_per_event cas_enabled tcp_backlog \
    binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast \
    hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window \
    slab_chunk_max lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time \
    flush_enabled dump_enabled hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct \
    warm_lru_pct hot_max_factor warm_max_factor temp_lru temporary_ttl idle_timeout \
    watcher_logbuf_size worker_logbuf_size read_buf_mem_limit track_sizes \
    inline_ascii_response ext_item_size ext_item_age ext_low_ttl ext_recache_rate \
    ext_wbuf_size ext_compact_under ext_drop_under ext_max_sleep ext_max_frag \
    slab_automove_freeratio ext_drop_unread num_napi_ids memory_file client_flags_size";

const ITEMS: &str = "number number_hot number_warm number_cold age_hot age_warm age \
    mem_requested evicted evicted_nonzero evicted_time outofmemory tailrepairs reclaimed \
    expired_unfetched evicted_unfetched evicted_active crawler_reclaimed crawler_items_checked \
    lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot \
    hits_to_warm hits_to_cold hits_to_temp";

const SLABS: &str = "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks \
    free_chunks_end get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval \
    touch_hits";

fn server() -> Server {
    server_with(Settings::default())
}

fn server_with(settings: Settings) -> Server {
    let mut settings = Settings { admin: None, threads: 2, ..settings };
    settings.listen = vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }];
    Server::start(settings).unwrap()
}

fn store_one(server: &Server) {
    use std::io::{Read, Write as _};
    let mut client = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"set a 0 0 3\r\nabc\r\nget a\r\nmd b\r\n").unwrap();
    let expected = b"STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\nNF\r\n";
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, expected);
    // A worker counts bytes only after it has sent them.
    while server.running.net_totals_ever().loops.bytes_written < expected.len() as u64 {
        std::thread::yield_now();
    }
}

fn rows(server: &Server, group: &str) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let known = super::group(&server.running, group.as_bytes(), &mut |name, value| {
        let mut text = String::new();
        write!(text, "{value}").unwrap();
        rows.push((name.to_owned(), text));
    });
    assert!(known, "{group}");
    rows
}

fn split_names(rows: &[(String, String)]) -> (Vec<&str>, Vec<&str>) {
    rows.iter().map(|(name, _)| name.as_str()).partition(|name| !name.starts_with("larder_"))
}

#[test]
fn row_names_are_those_of_memcached() {
    let server = server();
    store_one(&server);
    for (group, prefix, expected) in
        [("", "", GENERAL), ("settings", "", SETTINGS), ("items", "items:1:", ITEMS)]
    {
        let rows = rows(&server, group);
        let expected: Vec<_> =
            expected.split_whitespace().map(|name| format!("{prefix}{name}")).collect();
        assert_eq!(split_names(&rows).0, expected, "{group}");
    }
    let slabs = rows(&server, "slabs");
    let mut expected: Vec<_> = SLABS.split_whitespace().map(|name| format!("1:{name}")).collect();
    expected.extend(["active_slabs".to_owned(), "total_malloced".to_owned()]);
    assert_eq!(split_names(&slabs).0, expected);
    assert_eq!(rows(&server, "sizes"), [("sizes_status".to_owned(), "disabled".to_owned())]);
    assert!(rows(&server, "extstore").is_empty());
    assert!(!super::group(&server.running, b"bogus", &mut |_, _| panic!("a row")));
}

#[test]
fn values_are_counted_and_reset() {
    let server = server();
    store_one(&server);
    let value = |server: &Server, name: &str| -> u64 {
        let rows = rows(server, "");
        rows.iter().find(|(row, _)| row == name).expect(name).1.parse().unwrap()
    };
    for name in ["cmd_get", "cmd_set", "get_hits", "curr_items", "total_items", "cmd_meta"] {
        assert_eq!(value(&server, name), 1, "{name}");
    }
    assert_eq!(value(&server, "total_connections"), 1);
    assert_eq!(value(&server, "threads"), 2);
    assert_eq!(value(&server, "limit_maxbytes"), 64 << 20);
    assert_eq!(value(&server, "pid"), u64::from(std::process::id()));
    assert!(value(&server, "bytes_read") > 20);
    server.running.reset();
    for name in ["total_connections", "bytes_read", "bytes_written", "cmd_meta"] {
        assert_eq!(value(&server, name), 0, "{name}");
    }
    assert_eq!(value(&server, "curr_items"), 1);
}

/// `stats reset` must also reset the counters of the store. Ratios of store counters to counters
/// that the reset has set to 0 would otherwise be wrong.
#[test]
fn counters_of_the_store_are_reset_with_the_others() {
    let path = std::env::temp_dir().join(format!("larder-reset-{}", std::process::id()));
    let store = StorePath { path: path.clone(), size: Some(16 << 20), tier: None };
    let durability = Some(Durability::Sync);
    let server = server_with(Settings { store: vec![store], durability, ..Settings::default() });
    store_one(&server);
    let names = ["larder_written_bytes", "larder_device_written_bytes", "larder_commits"];
    let values = || {
        let rows: BTreeMap<String, String> = rows(&server, "").into_iter().collect();
        names.map(|name| rows[name].parse::<u64>().unwrap())
    };
    let before = values();
    assert!(before.iter().all(|value| *value > 0), "{before:?}");
    server.running.context().unwrap().reset_stats();
    let after = values();
    // The counts of commits and of device writes may be more than 0, because the store may make a
    // commit between the reset and the reading.
    assert!(after[0] == 0 && after[1] < before[1] && after[2] < before[2], "{before:?} {after:?}");
    store_one(&server);
    let later = values();
    assert!(later[0] == before[0] && later[1] > after[1], "{before:?} {later:?}");
    drop(server);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn larder_rows_are_present() {
    let server = server();
    let rows = rows(&server, "");
    for name in [
        "larder_bytes_resident",
        "larder_bytes_flash",
        "larder_index_bytes",
        "larder_frame_bytes",
        "larder_io",
        "larder_counter_updates_in_place",
        "larder_counter_records",
        "larder_limits_allowed",
        "larder_limits_refused",
        "larder_limiters_evicted",
        "larder_descriptors_unlimited",
        "larder_envoy_calls_too_large",
    ] {
        assert!(split_names(&rows).1.contains(&name), "{name}");
    }
    assert!(rows.contains(&("larder_health".to_owned(), "ok".to_owned())));
    let settings = self::rows(&server, "settings");
    assert!(settings.contains(&("larder_when_full".to_owned(), "evict".to_owned())));
}

#[test]
fn policies_are_shown_with_their_counters() {
    assert!(rows(&server(), "limits").is_empty());
    let logins = Policy {
        prefix: Some("login/".to_owned()),
        descriptor: Some(pattern("edge route=login user")),
        shadow: true,
        ..Policy::new("logins", Limit::gcra(10, 60_000_000_000, 5).unwrap())
    };
    let policies = vec![Policy::new("all:of", Limit::fixed(7, 0)), logins];
    let server = server_with(Settings { policies, ..Settings::default() });
    let reader = server.running.context().unwrap().policies().reader();
    reader.count_plain(reader.named(b"logins").unwrap(), 5);
    let shown: Vec<_> =
        rows(&server, "limits").iter().map(|(name, value)| format!("{name} {value}")).collect();
    let expected = "limit:all:of:algorithm fixed, \
         limit:all:of:budget 7, limit:all:of:window 0s, limit:all:of:enforced yes, \
         limit:all:of:within 0, limit:all:of:near 0, limit:all:of:over 0, limit:all:of:shadow 0, \
         limit:logins:prefix login/, limit:logins:domain edge, \
         limit:logins:descriptor route=login, user, limit:logins:algorithm gcra, limit:logins:budget 10, \
         limit:logins:window 60s, limit:logins:burst 5, limit:logins:enforced no, \
         limit:logins:within 0, limit:logins:near 1, limit:logins:over 0, limit:logins:shadow 0";
    assert_eq!(shown.join(", "), expected);
    let mut client = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
    std::io::Write::write_all(&mut client, b"stats reset\r\n").unwrap();
    std::io::Read::read_exact(&mut client, &mut [0; 7]).unwrap();
    let near = rows(&server, "limits").into_iter().find(|(name, _)| name == "limit:logins:near");
    assert_eq!(near.unwrap().1, "0");
}

#[test]
fn latencies_are_shown_while_they_are_measured() {
    let server = server();
    store_one(&server);
    let value = |name: &str| -> Option<u64> {
        let shown = rows(&server, "latency").into_iter().find(|(row, _)| row == name)?;
        Some(shown.1.parse().unwrap())
    };
    for (class, count) in [("get", 1), ("set", 1), ("delete", 1), ("other", 0), ("limit", 0)] {
        assert_eq!(value(&format!("latency:{class}:count")), Some(count), "{class}");
        let quantile = value(&format!("latency:{class}:p999_ns"));
        assert_eq!(quantile.is_some(), count > 0, "{class}");
        assert!(quantile.unwrap_or(0) < 10_000_000_000, "{class}: {quantile:?}");
    }
    server.running.reset();
    assert_eq!(value("latency:get:count"), Some(0));
    assert_eq!(value("latency:get:p50_ns"), None);
    let settings = Settings { latency: false, ..Settings::clone(&server.running.settings()) };
    assert_eq!(server.reloader().reload(&settings).changed, ["disable-latency false -> true"]);
    assert_eq!(value("latency:get:count"), None);
}

#[test]
fn devices_and_commits_are_measured() {
    assert!(rows(&server(), "durability").is_empty(), "there is no store");
    let path = std::env::temp_dir().join(format!("larder-measured-{}", std::process::id()));
    let store = StorePath { path: path.clone(), size: Some(16 << 20), tier: None };
    let durability = Some(Durability::Sync);
    let server = server_with(Settings { store: vec![store], durability, ..Settings::default() });
    let values = || {
        let rows = rows(&server, "durability").into_iter();
        rows.map(|(name, text)| (name, text.parse().unwrap())).collect::<BTreeMap<String, u64>>()
    };
    let before = values();
    assert_eq!((before["commit_wait:count"], before.get("commit_wait:p50_ns")), (0, None));
    store_one(&server);
    let after = values();
    // The set waits for its commit. The retrieval waits too if the item is not durable yet. The
    // delete finds nothing, so it does not wait.
    assert!((1..=2).contains(&after["commit_wait:count"]), "{after:?}");
    let grown = |name: &str| after[name] - before[name];
    assert!(grown("commit:0:count") >= 1 && grown("commit:0:sum") > 3, "{before:?} {after:?}");
    assert!(grown("device:0:sync:count") >= 1 && grown("device:0:write:count") >= 1, "{after:?}");
    assert!(after["device:0:read:count"] >= 1, "{after:?}");
    assert!(after["commit_wait:sum_us"] > 0 && after["device:0:sync:p999_ns"] > 0, "{after:?}");
    server.running.reset();
    let reset = values();
    assert_eq!(reset["commit_wait:count"], 0);
    assert!(reset["device:0:sync:count"] >= after["device:0:sync:count"]);
    let settings = Settings { latency: false, ..Settings::clone(&server.running.settings()) };
    server.reloader().reload(&settings);
    assert_eq!(values().get("commit_wait:count"), None, "latencies are off");
    drop(server);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn given_settings_are_shown() {
    let settings = Settings { listen_backlog: 8675, disable_cas: true, ..Settings::default() };
    let server = server_with(settings);
    let rows = rows(&server, "settings");
    for (name, value) in [("tcp_backlog", "8675"), ("cas_enabled", "no")] {
        assert!(rows.contains(&(name.to_owned(), value.to_owned())), "{name}: {rows:?}");
    }
}

#[test]
fn connections_are_listed() {
    let server = server();
    let client = std::net::TcpStream::connect(server.addresses()[0]).unwrap();
    let me = format!("tcp:{}", client.local_addr().unwrap());
    // A reply proves that the worker has accepted the connection.
    let mut stream = &client;
    std::io::Write::write_all(&mut stream, b"mn\r\n").unwrap();
    let mut reply = [0; 4];
    std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
    let rows = rows(&server, "conns");
    let listener = format!("tcp:{}", server.addresses()[0]);
    assert_eq!(rows[0], ("listen0:addr".to_owned(), listener.clone()));
    let at = rows.iter().position(|(name, value)| name.ends_with(":addr") && *value == me);
    let (name, value) = &rows[at.expect("the client is listed") + 1];
    assert!(name.ends_with(":listen_addr") && *value == listener, "{rows:?}");
}

#[test]
fn the_table_has_each_row_once_and_follows_the_conventions() {
    let mut rows = std::collections::BTreeSet::new();
    let mut kinds = BTreeMap::new();
    for metric in table::all() {
        let (row, name) = (metric.row, metric.name);
        assert!(rows.insert((metric.group, row)), "{row} twice");
        let absent = metric.kind == MetricKind::Absent;
        assert_eq!(metric.help.is_empty(), absent, "{row}");
        assert!(absent || metric.help.ends_with('.'), "{row}: {}", metric.help);
        if name.is_empty() {
            continue;
        }
        assert!(name.starts_with("larder_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), metric.kind == MetricKind::Info, "{name}");
        let stem = name.trim_end_matches("_total");
        let unit = match metric.read {
            // The row of a histogram counts events and has no unit. The samples on `/metrics` have
            // the unit of the events' durations or sizes.
            Read::Class(_) if metric.kind == MetricKind::Histogram => MetricUnit::Nanoseconds,
            Read::Distribution(of, _) if metric.kind == MetricKind::Histogram => of.unit(),
            _ => metric.unit,
        };
        assert_eq!(stem.ends_with("_bytes"), unit == MetricUnit::Bytes, "{name}");
        let is_time = matches!(
            unit,
            MetricUnit::Milliseconds | MetricUnit::Microseconds | MetricUnit::Nanoseconds
        );
        assert_eq!(stem.ends_with("_seconds"), is_time, "{name}");
        assert_eq!(*kinds.entry(name).or_insert(metric.kind), metric.kind, "{name}");
    }
}

/// Every number in `stats` must be on `/metrics`, under its own name or a name of the memcached
/// exporter. This test lists the exceptions.
#[test]
fn prometheus_gets_every_figure() {
    // `max_connections` is on `/metrics` too, as the row `maxconns` of `stats settings`.
    let elsewhere = [
        "max_connections",
        "pid",
        "pointer_size",
        "connection_structures",
        "hash_power_level",
        "idle_kicks",
    ];
    let uses = |group: &str, row: &str| {
        let lists = exporter::LISTS.iter().filter(|list| list.group == group);
        let mut samples = lists.flat_map(|list| list.families).flat_map(|family| family.samples);
        samples.any(|(_, formula)| exporter::terms(formula).any(|(_, term)| term == row))
    };
    for metric in table::all().filter(|metric| metric.group.is_empty()) {
        let is_number = matches!(metric.kind, MetricKind::Counter | MetricKind::Gauge);
        let same = metric.help.starts_with("Same as");
        // These rows are sums of rows that have a name on `/metrics`, so they need no name.
        let sum = ["cmd_get", "cmd_touch"].contains(&metric.row);
        if is_number && metric.name.is_empty() && !same && !sum {
            let known = elsewhere.contains(&metric.row) || uses("", metric.row);
            assert!(known, "{} is not on /metrics", metric.row);
        }
    }
}

/// Checks every formula of a metric of the memcached exporter. If `is_shown` returns true for the
/// formula's list of metrics, `stats` must have all rows of the formula. Otherwise `stats` must
/// lack a row.
fn check_formulas(server: &Server, is_shown: impl Fn(Shown) -> bool) {
    for list in exporter::LISTS {
        let rows: RowTexts = rows(server, list.group).into_iter().collect();
        for family in list.families {
            for (labels, formula) in family.samples {
                let value = exporter::value(formula, &rows);
                match list.shown {
                    // `stats` has all rows of this formula. The exporter still leaves the metric
                    // out, because other rows show that its mechanism is off.
                    Shown::Never(_) if value.is_some() => {
                        let off = list.group == "settings" && rows["lru_crawler"] == "no"
                            || !rows.contains_key("proxy_backend_total");
                        assert!(off, "{}", family.name);
                    }
                    shown => {
                        let name = family.name;
                        assert_eq!(value.is_some(), is_shown(shown), "{name}{{{labels}}}");
                    }
                }
            }
        }
    }
}

#[test]
fn formulas_of_the_exporter_name_rows_of_stats() {
    let empty = server();
    check_formulas(&empty, |shown| shown == Shown::Always);
    store_one(&empty);
    check_formulas(&empty, |shown| matches!(shown, Shown::Always | Shown::WithItems));
    let path = std::env::temp_dir().join(format!("larder-formulas-{}", std::process::id()));
    let store = StorePath { path: path.clone(), size: Some(16 << 20), tier: None };
    let stored = server_with(Settings { store: vec![store], ..Settings::default() });
    store_one(&stored);
    check_formulas(&stored, |shown| !matches!(shown, Shown::Never(_)));
    drop(stored);
    std::fs::remove_file(path).unwrap();
}
