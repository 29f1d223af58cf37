//! The report of the keys, on a real server under a known load.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use larder_disk::Random;
use larder_engine::limit::Limit;
use serde_json::Value;

use super::{get, server, settings};
use crate::policies::Policy;
use crate::server::Server;
use crate::settings::{Settings, StorePath};

const MARKUP: &str = "<img/src=x/onerror=alert(1)>";

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

/// Sends requests and a last one, `mn`, and reads until the reply to `mn` has come.
fn run(client: &mut TcpStream, requests: &[u8]) {
    let mut reader = client.try_clone().unwrap();
    let last = std::thread::spawn(move || {
        let (mut seen, mut part) = (Vec::new(), [0; 64 << 10]);
        while !seen.ends_with(b"MN\r\n") {
            let length = reader.read(&mut part).unwrap();
            assert!(length > 0, "the server has closed the connection");
            seen.extend(&part[..length]);
            seen.drain(..seen.len().saturating_sub(16));
        }
    });
    client.write_all(requests).unwrap();
    client.write_all(b"mn\r\n").unwrap();
    last.join().unwrap();
}

fn report(server: &Server) -> Value {
    let (code, body) = get(server, "/v1/keys");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Asks for reports until `wanted` returns true for one, and returns that report.
fn report_when(server: &Server, wanted: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let report = report(server);
        if wanted(&report) {
            return report;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{report}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn samples(report: &Value) -> u64 {
    report["items"]["samples"].as_u64().unwrap()
}

fn find<'a>(list: &'a Value, field: &str, name: &str) -> Option<&'a Value> {
    list.as_array().unwrap().iter().find(|entry| entry[field] == name)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn the_hottest_keys_of_a_skewed_load_are_found_within_the_error() {
    let begun = Instant::now();
    let server = server();
    let mut client = connect(&server);
    let (mut random, mut counts) = (Random::new(3), HashMap::<u64, f64>::new());
    // Zipf's law with exponent 1 over 10 000 keys. One request in eight sets the key.
    let weights: Vec<f64> = (1..=10_000)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        })
        .collect();
    let mut total = 0.0;
    for _ in 0..60 {
        let mut requests = Vec::new();
        for _ in 0..5000 {
            let place = random.below(1 << 40) as f64 / (1_u64 << 40) as f64 * weights[9999];
            let rank = weights.partition_point(|sum| *sum < place) as u64;
            match random.one_in(8) {
                true => write!(requests, "set zipf:{rank} 0 0 100 noreply\r\n{:0>100}\r\n", rank),
                false => write!(requests, "get zipf:{rank}\r\n"),
            }
            .unwrap();
            *counts.entry(rank).or_default() += 1.0;
            total += 1.0;
        }
        run(&mut client, &requests);
    }
    let report = report(&server);
    let hot = report["hot"].as_array().unwrap();
    assert!(hot.len() >= 20, "{report}");
    // The reported rates are lower than those of the load, because they include the idle time
    // before the load. Ageing also changes them. Both change all rates by the same factor, so the
    // test compares their proportions.
    let rate =
        |entry: &Value| number(&entry["reads_per_second"]) + number(&entry["writes_per_second"]);
    let all = number(&report["prefixes"]["reads_per_second"])
        + number(&report["prefixes"]["writes_per_second"]);
    let seconds = number(&report["requests"]["seconds"]);
    assert!(seconds <= begun.elapsed().as_secs_f64());
    // All requests were sampled less than a minute ago, so the window of samples has them all
    // unless it is full.
    if number(&report["requests"]["samples"]) < 16_000.0 {
        assert!((all * seconds / total - 1.0).abs() < 0.1, "{all} for {seconds} s of {total}");
    }
    let first = find(&report["hot"], "key", "zipf:0").expect("the hottest key");
    let scale = rate(first) / counts[&0];
    let (mut outside, mut seen) = (0, 0);
    for rank in 0..10 {
        let entry = find(&report["hot"], "key", &format!("zipf:{rank}"));
        let entry = entry.unwrap_or_else(|| panic!("zipf:{rank} is not among {hot:?}"));
        let expected = counts[&rank] * scale;
        // `scale` comes from the rate of the hottest key, so the error of that rate counts too.
        let error = number(&entry["error"]) + expected * number(&first["error"]) / rate(first);
        let off = expected - rate(entry);
        outside += u32::from(off < -error || off > error + number(&entry["missing"]));
        seen += 1;
        let writes = number(&entry["writes_per_second"]) / rate(entry);
        assert!((0.0..0.4).contains(&writes), "{entry}");
        assert!(number(&entry["bytes_per_second"]) > 50.0 * rate(entry), "{entry}");
    }
    assert!(outside <= 2, "{outside} of {seen} are outside of their error: {hot:?}");
    let zipf = find(&report["prefixes"]["children"], "prefix", "zipf:").unwrap();
    assert!(number(&zipf["hit_ratio"]) > 0.5, "{zipf}");
    assert!((number(&zipf["reads_per_second"]) / all - 0.875).abs() < 0.05, "{zipf}");
}

#[test]
fn items_by_prefix_are_within_the_stated_error() {
    let server = server();
    let mut client = connect(&server);
    // Prefix, number of items, size of their values, and time to live.
    let groups: [(&str, u32, usize, u32); 3] =
        [("user:name:", 6000, 100, 0), ("user:page:", 3000, 1000, 600), ("top:", 1000, 3000, 0)];
    for (prefix, items, size, ttl) in groups {
        let mut requests = Vec::new();
        for number in 0..items {
            write!(requests, "set {prefix}{number} 0 {ttl} {size} noreply\r\n").unwrap();
            requests.extend(vec![b'v'; size]);
            requests.extend(b"\r\n");
        }
        run(&mut client, &requests);
    }
    let value = "v".repeat(200_000);
    run(&mut client, format!("set large 0 0 200000 noreply\r\n{value}\r\n").as_bytes());
    assert_eq!(
        samples(&report(&server)),
        0,
        "nothing is sampled before the first request for the report"
    );
    let report = report_when(&server, |report| samples(report) > 4000);
    let n = number(&report["items"]["samples"]);
    assert_eq!(report["items"]["total"], 10_001);
    let root = &report["prefixes"];
    assert!((number(&root["items"]) - 10_001.0).abs() < 1e-6);
    let user = find(&root["children"], "prefix", "user:").unwrap();
    let shown = [
        (find(&user["children"], "prefix", "user:name:").unwrap(), 6000.0, 100.0),
        (find(&user["children"], "prefix", "user:page:").unwrap(), 3000.0, 1000.0),
        (find(&root["children"], "prefix", "top:").unwrap(), 1000.0, 3000.0),
    ];
    for (prefix, items, size) in shown {
        let (estimate, error) = (number(&prefix["items"]), number(&prefix["items_error"]));
        let share = items / 10_001.0;
        let expected = 2.0 * (share * (1.0 - share) / n).sqrt() * 10_001.0;
        assert!((error / expected - 1.0).abs() < 0.2, "{prefix}: ± {expected}");
        // The stated error is two standard deviations. The test allows three times as much.
        assert!((estimate - items).abs() < 3.0 * error, "{prefix}");
        let (bytes, error) = (number(&prefix["bytes"]), number(&prefix["bytes_error"]));
        assert!(bytes + 3.0 * error > items * size, "{prefix}");
        assert!(bytes - 3.0 * error < items * (size + 80.0), "{prefix}");
    }
    let page = shown[1].0;
    assert_eq!((number(&page["expiring"]), number(&shown[0].0["expiring"])), (1.0, 0.0));
    assert!((500.0..=600.0).contains(&number(&page["ttl_seconds"])), "{page}");
    // No sample counts as a read.
    let totals = server.running.engine.totals();
    assert_eq!((totals.cmd_get, totals.get_hits), (0, 0));
    // The samples are random, so the only large one of 10 001 items is sampled sooner or later.
    let report = report_when(&server, |report| find(&report["large"], "key", "large").is_some());
    let large = &report["large"][0];
    assert!(large["key"] == "large" && number(&large["bytes"]) >= 200_000.0, "{large}");
}

#[test]
fn expired_items_are_in_no_prefix() {
    let server = server();
    let mut client = connect(&server);
    let mut requests = Vec::new();
    for number in 0..4000 {
        let (prefix, ttl) = if number % 4 == 0 { ("short:", 1) } else { ("long:", 0) };
        write!(requests, "set {prefix}{number} 0 {ttl} 1 noreply\r\nv\r\n").unwrap();
    }
    run(&mut client, &requests);
    let mut replies = BufReader::new(client.try_clone().unwrap());
    loop {
        client.write_all(b"mg short:3996 t\r\n").unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        if reply == "EN\r\n" {
            break;
        }
        assert!(reply.starts_with("HD t"), "{reply}");
    }
    let report = report_when(&server, |report| samples(report) > 4000);
    let root = &report["prefixes"];
    // `short:` may still be in the tree, because it has requests, but it must have no items.
    let short = find(&root["children"], "prefix", "short:");
    assert_eq!(short.map_or(0.0, |short| number(&short["items"])), 0.0, "{root}");
    let long = find(&root["children"], "prefix", "long:").unwrap();
    for (name, node) in [("all", root), ("long", long)] {
        let (items, error) = (number(&node["items"]), number(&node["items_error"]));
        // The stated error is two standard deviations. The test allows three times as much.
        assert!((items - 3000.0).abs() < 3.0 * error, "{name}: {items} ± {error}");
    }
    let total = report["items"]["total"].as_u64().unwrap();
    let expired = report["items"]["expired"].as_u64().unwrap();
    assert!(total == 3000 || expired > 0, "{report}");
}

#[test]
fn items_that_are_only_on_a_device_are_sampled_too() {
    let folder = std::env::temp_dir().join(format!("larder-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("store");
    let store = vec![StorePath { path, size: Some(128 << 20), tier: None }];
    let server = Server::start(Settings { store, memory: 16 << 20, ..settings() }).unwrap();
    let mut client = connect(&server);
    let value = "v".repeat(4000);
    for begin in (0..8000).step_by(500) {
        let set = |number| format!("set dev:{number} 0 0 4000 noreply\r\n{value}\r\n");
        run(&mut client, (begin..begin + 500).map(set).collect::<String>().as_bytes());
    }
    let stats = server.running.engine.stats();
    assert!(stats.flash_item_bytes > stats.memory_limit, "{stats:?}");
    let report = report_when(&server, |report| samples(report) > 200);
    let dev = find(&report["prefixes"]["children"], "prefix", "dev:").unwrap();
    assert!((number(&dev["items"]) / number(&report["items"]["total"]) - 1.0).abs() < 0.01);
    assert!((number(&dev["bytes"]) / number(&dev["items"]) - 4040.0).abs() < 40.0, "{dev}");
    assert_eq!(report["items"]["unreadable"], 0);
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn keys_with_any_bytes_are_shown_for_all_protocols() {
    let server = server();
    let mut client = connect(&server);
    let markup = format!("{MARKUP}:\\x");
    let long = "k".repeat(250);
    let mut requests = Vec::new();
    for _ in 0..2000 {
        write!(requests, "get {markup}\r\nmg {long} v\r\nmg wAD/ b v\r\nget a b {markup}\r\n")
            .unwrap();
    }
    run(&mut client, &requests);
    let mut binary = connect(&server);
    let hostile = b"\xff\0 \n\xe2\x80\xae:binary";
    let mut set = vec![0x80, 1, 0, hostile.len() as u8, 8, 0, 0, 0];
    set.extend((8 + hostile.len() as u32 + 20_000).to_be_bytes());
    set.extend([0; 12 + 8]);
    set.extend(hostile);
    set.extend([b'v'; 20_000]);
    for _ in 0..600 {
        binary.write_all(&set).unwrap();
        let mut reply = [0; 24];
        binary.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
    }
    let (code, body) = get(&server, "/v1/keys");
    assert_eq!(code, 200);
    assert!(body.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{body}");
    let report: Value = serde_json::from_str(&body).unwrap();
    let hot = |key: &str| {
        find(&report["hot"], "key", key).unwrap_or_else(|| panic!("{key} is not in {report}"))
    };
    let [one, two] = [hot(&format!("{MARKUP}:\\\\x")), hot(&long)];
    assert!(number(&one["reads_per_second"]) > number(&two["reads_per_second"]), "{one} {two}");
    hot("\\xc0\\x00\\xff");
    hot("a");
    let name = "\\xff\\x00 \\x0a\\xe2\\x80\\xae:binary";
    let long_value = hot(name);
    let writes = number(&long_value["writes_per_second"]);
    let mean = number(&long_value["bytes_per_second"]) / writes;
    assert!(writes > 0.0 && (mean - 20_000.0).abs() < 100.0, "{long_value}");
    assert!(find(&report["prefixes"]["children"], "prefix", &format!("{MARKUP}:")).is_some());
}

#[test]
fn sampling_can_be_switched_off() {
    let server = server();
    let mut client = connect(&server);
    let gets = "get key\r\n".repeat(5000);
    run(&mut client, gets.as_bytes());
    assert!(find(&report(&server)["hot"], "key", "key").is_some());
    let settings = Settings { key_sampling: false, ..Settings::clone(&server.running.settings()) };
    let changed = server.reloader().reload(&settings).changed;
    assert_eq!(changed, ["disable-key-sampling false -> true"]);
    let off = report(&server);
    assert!(off["on"] == false && off["hot"].is_null() && off["time"].is_u64(), "{off}");
    run(&mut client, gets.as_bytes());
    let settings = Settings { key_sampling: true, ..settings };
    server.reloader().reload(&settings);
    assert_eq!(report(&server)["requests"]["samples"], 0);
    run(&mut client, gets.as_bytes());
    run(&mut client, gets.as_bytes());
    assert!(find(&report(&server)["hot"], "key", "key").is_some());
    let without = Settings { admin: None, ..Settings::clone(&settings) };
    assert!(!without.samples_keys());
}

#[test]
fn names_of_keys_are_not_shown_to_others() {
    let server = server();
    let address = server.admin_address().unwrap();
    for header in ["X-Forwarded-For: 10.1.2.3", "Forwarded: for=10.1.2.3", "Via: 1.1 proxy"] {
        for path in ["/v1/keys", "/v1/refused"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{header}");
            let reply = super::ask(address, &request);
            assert!(reply.starts_with("HTTP/1.1 401 "), "{path}: {reply}");
        }
    }
}

fn refused(server: &Server) -> Value {
    let (code, body) = get(server, "/v1/refused");
    assert_eq!(code, 200, "{body}");
    assert!(body.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Every refusal must be counted, by policy. Requests that pass, requests for 0 units (`D0`), and
/// plain increments must not be counted.
#[test]
fn the_most_refused_keys_are_shown_by_policy() {
    let limit = Limit::fixed(2, 0);
    let shadow = Policy { shadow: true, ..Policy::new("shadow", limit) };
    let mut plain = Policy::new("plain", limit);
    plain.prefix = Some("plain:".to_owned());
    let policies = vec![Policy::new("strict", limit), shadow, plain];
    let markup = MARKUP.replace('\\', "");
    let mut requests = String::new();
    for (key, flags, times) in [
        ("a", "Qstrict q", 30),
        // Both policies use the same limiter of `a`, and `strict` has used it up. So all 20
        // requests with `shadow` are over the limit.
        ("a", "Qshadow q", 20),
        (&*markup, "Qstrict q", 12),
        ("own", "B2 q", 7),
        ("idle", "Qstrict q", 2),
        ("look", "Qstrict D0 q", 9),
        ("plain:x", "q", 9),
    ] {
        requests += &format!("ma {key} {flags}\r\n").repeat(times);
    }
    let counts = [("refused", 28.0), ("shadow", 20.0), ("refused", 10.0), ("refused", 5.0)];
    // Returns by how much the counts of the keys differ from `counts`. Ageing changes all rates by
    // the same factor, unless it comes between the requests.
    let deviations = |seen: &Value| {
        let rate = |at: usize| number(&seen["keys"][at][format!("{}_per_second", counts[at].0)]);
        let scale = rate(0) / counts[0].1;
        (0..counts.len()).map(|at| (rate(at) / scale - counts[at].1).abs()).fold(0.0, f64::max)
    };
    let lost = |seen: &Value| number(&seen["lost_per_second"]);
    // A worker does not count a refusal while a reader of the counts, such as the heartbeat, holds
    // their lock. So the heartbeat may disturb the test, which then begins again.
    let mut tries = 0;
    let (server, seen) = loop {
        let policies = policies.clone();
        let server = Server::start(Settings { policies, ..settings() }).unwrap();
        let mut client = connect(&server);
        // The first ageing of the counts drops all refusals that were counted before it. The
        // request for the list, or a heartbeat before it, causes the first ageing. So it drops none
        // of the refusals below.
        let first = refused(&server);
        assert!(first["on"] == true && first["keys"] == Value::Array(Vec::new()), "{first}");
        run(&mut client, requests.as_bytes());
        let seen = refused(&server);
        tries += 1;
        if tries == 5 || lost(&seen) == 0.0 && deviations(&seen) < 1e-6 {
            break (server, seen);
        }
    };
    assert_eq!(lost(&seen), 0.0);
    let keys: Vec<_> = seen["keys"].as_array().unwrap().iter().collect();
    let names: Vec<_> = keys.iter().map(|key| (&key["policy"], key["key"].as_str())).collect();
    let (strict, shadow) = (Value::from("strict"), Value::from("shadow"));
    let expected = [
        (&strict, Some("a")),
        (&shadow, Some("a")),
        (&strict, Some(&*markup)),
        (&Value::Null, Some("own")),
    ];
    assert_eq!(names, expected, "{seen}");
    assert!(deviations(&seen) < 1e-6, "{seen}");
    for (key, (kind, _)) in keys.iter().zip(counts) {
        let other = if kind == "refused" { "shadow_per_second" } else { "refused_per_second" };
        assert_eq!((number(&key[other]), number(&key["missing"])), (0.0, 0.0), "{key}");
    }

    let reloaded = |key_sampling| {
        let policies = vec![Policy::new("strict", limit)];
        let settings = Settings::clone(&server.running.settings());
        server.reloader().reload(&Settings { key_sampling, policies, ..settings });
        refused(&server)
    };
    let left = reloaded(true);
    let policies: Vec<_> =
        left["keys"].as_array().unwrap().iter().map(|key| key["policy"].clone()).collect();
    assert_eq!(policies, [strict.clone(), strict, Value::Null], "shadow is gone: {left}");
    let off = reloaded(false);
    assert!(off["on"] == false && off["keys"].is_null(), "{off}");
}
