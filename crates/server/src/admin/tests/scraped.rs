//! `/metrics` as other programs read it: promtool, Prometheus and the memcached exporter. A test
//! whose program is not installed prints a note and passes.

mod packaged;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_engine::limit::Limit;

use super::{get, settings};
use crate::policies::Policy;
use crate::server::Server;
use crate::settings::{Settings, StorePath};

/// Metrics of the memcached exporter whose names break the conventions of Prometheus: counters
/// without `_total`.
const UNCONVENTIONAL: [&str; 7] = [
    "memcached_uptime_seconds",
    "memcached_extstore_bytes_used",
    "memcached_slab_items_evicted_time_seconds",
    "memcached_slab_items_moves_to_cold",
    "memcached_slab_items_moves_to_warm",
    "memcached_slab_items_moves_within_lru",
    "memcached_slab_mem_requested_bytes",
];

/// A server with a store, whose path contains a quotation mark, and with policies.
pub(super) struct Full {
    pub(super) server: Server,
    paths: Vec<PathBuf>,
}

impl Full {
    fn start(name: &str) -> Full {
        Full::with_tiers(name, &[None])
    }

    /// Starts a server with one device for each tier.
    pub(super) fn with_tiers(name: &str, tiers: &[Option<&str>]) -> Full {
        let path = |tier: &Option<&str>| {
            let tier = tier.unwrap_or_default();
            let file = format!("larder-{name}{tier}-me\"trics-{}", std::process::id());
            std::env::temp_dir().join(file)
        };
        let paths: Vec<PathBuf> = tiers.iter().map(path).collect();
        let store = paths.iter().zip(tiers).map(|(path, tier)| StorePath {
            path: path.clone(),
            size: Some(16 << 20),
            tier: tier.map(str::to_owned),
        });
        let store = store.collect();
        let policies = vec![
            Policy::new("a", Limit::fixed(10, 0)),
            Policy::new("b", Limit::gcra(10, 60_000_000_000, 5).unwrap()),
        ];
        let server = Server::start(Settings { store, policies, ..settings() });
        Full { server: server.unwrap(), paths }
    }

    pub(super) fn metrics(&self) -> String {
        let (code, text) = get(&self.server, "/metrics");
        assert_eq!(code, 200);
        text
    }

    /// Sends requests of every kind.
    pub(super) fn use_it(&self) {
        let requests = [
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n"),
            ("get b\r\n", "END\r\n"),
            ("cas a 0 0 1 7\r\n1\r\n", "EXISTS\r\n"),
            ("cas b 0 0 1 7\r\n1\r\n", "NOT_FOUND\r\n"),
            ("incr a 1\r\n", "2\r\n"),
            ("decr b 1\r\n", "NOT_FOUND\r\n"),
            ("touch a 0\r\n", "TOUCHED\r\n"),
            ("gat 0 b\r\n", "END\r\n"),
            ("delete b\r\n", "NOT_FOUND\r\n"),
            ("ma l B10 N60 r\r\n", "HD r9\r\n"),
            ("bogus\r\n", "ERROR\r\n"),
            ("mn\r\n", "MN\r\n"),
        ];
        let mut client = TcpStream::connect(self.server.addresses()[0]).unwrap();
        for (request, reply) in requests {
            client.write_all(request.as_bytes()).unwrap();
            let mut got = vec![0; reply.len()];
            client.read_exact(&mut got).unwrap();
            assert_eq!(String::from_utf8_lossy(&got), reply, "{request}");
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns true if the program can be run. Prints a reason if not.
fn is_here(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    let quiet = command.arg(version).stdin(Stdio::null()).stdout(Stdio::null());
    let here = quiet.stderr(Stdio::null()).status().is_ok();
    if !here {
        println!("skipped: {program} is not installed");
    }
    here
}

/// Returns the type of each metric family.
fn types(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// Returns the value of each sample. The keys of the map are the samples' names with their labels.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn promtool_accepts_the_metrics() {
    let full = Full::start("promtool");
    full.use_it();
    let text = full.metrics();
    assert!(text.contains("me\\\"trics"), "a label's value is escaped: {text}");
    assert!(!text.contains("See docs/metrics.md"), "a name without a help: {text}");
    // `use_it` sends three storage commands. The exporter's counter of sets does not count the two
    // that are `cas`. The histogram below has all three.
    assert_eq!(samples(&text)["memcached_commands_total{command=\"set\",status=\"hit\"}"], "1");
    let sets = "larder_command_duration_seconds_bucket{command=\"set\",le=";
    let sets = text.lines().filter_map(|line| line.strip_prefix(sets)?.rsplit_once("} "));
    let sets: Vec<(&str, u64)> = sets.map(|(le, n)| (le, n.parse().unwrap())).collect();
    assert_eq!((sets.len(), sets[0].0, sets[25]), (26, "\"0.0000001\"", ("\"+Inf\"", 3)));
    assert!(sets.iter().any(|(le, n)| *le == "\"5\"" && *n == 3), "{sets:?}");
    assert!(sets.is_sorted_by_key(|(_, n)| *n), "{sets:?}");
    for name in ["sync_seconds", "write_seconds", "read_seconds"] {
        let device =
            text.lines().filter(|line| line.starts_with(&format!("larder_device_{name}_")));
        assert_eq!(device.filter(|line| line.contains("{lane=\"0\",device=\"")).count(), 28);
    }
    let waits = samples(&text)["larder_commit_wait_seconds_bucket{le=\"+Inf\"}"];
    assert_eq!(waits, samples(&text)["larder_commit_wait_seconds_count"]);
    let bytes =
        text.lines().filter(|line| line.starts_with("larder_commit_bytes_bucket{lane=\"0\""));
    let bounds: Vec<_> =
        bytes.filter_map(|line| line.rsplit_once("le=\"")?.1.split_once('"')).collect();
    assert_eq!((bounds[0].0, bounds[24].0, bounds[25].0), ("100", "10000000000", "+Inf"));
    if !is_here("promtool", "--version") {
        return;
    }
    let mut promtool = Command::new("promtool");
    let piped = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8(words).unwrap();
    let complaint = "counter metrics should have \"_total\" suffix";
    let expected: BTreeSet<String> =
        UNCONVENTIONAL.iter().map(|name| format!("{name} {complaint}")).collect();
    let complaints: BTreeSet<String> = words.lines().map(str::to_owned).collect();
    assert_eq!(complaints, expected, "{words}");
}

/// Another program that serves HTTP, such as Prometheus. Dropping this value ends the program.
struct Foreign {
    child: Child,
    address: SocketAddr,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.end();
    }
}

impl Foreign {
    fn end(&mut self) {
        // Both calls fail if the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts a program and waits until it accepts connections. `address` is a separate loopback
    /// address, so that no other test can get the port before the program binds it.
    fn start(command: &mut Command, address: SocketAddr) -> Foreign {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut foreign = Foreign { child: child.spawn().unwrap(), address };
        let mut words = BufReader::new(foreign.child.stderr.take().unwrap());
        let mut line = String::new();
        while TcpStream::connect(address).is_err() {
            line.clear();
            let ended = words.read_line(&mut line).unwrap() == 0;
            assert!(!ended, "{command:?} ended: {:?}", foreign.child.wait());
        }
        // A full pipe would stop the program, so its output is drained.
        std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
        foreign
    }

    /// Returns the body of the reply; `None` if the program is not ready yet.
    fn get(&self, path: &str) -> Option<String> {
        let mut client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        let is_ready = !reply.contains(" 503 ");
        assert!(!is_ready || reply.contains(" 200 OK\r\n"), "{reply}");
        is_ready.then(|| reply.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}

/// Returns a free port of a loopback address.
fn free(host: &str) -> SocketAddr {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn the_memcached_exporter_shows_the_same() {
    let full = Full::start("exporter");
    full.use_it();
    if !is_here("memcached_exporter", "--version") {
        return;
    }
    let address = free("127.77.1.1");
    let exporter = Foreign::start(
        Command::new("memcached_exporter")
            .arg(format!("--memcached.address={}", full.server.addresses()[0]))
            .arg(format!("--web.listen-address={address}")),
        address,
    );
    let theirs = exporter.get("/metrics").unwrap();
    let ours = full.metrics();
    let of_memcached = |(name, _): &(&str, &str)| {
        name.starts_with("memcached_") && !name.starts_with("memcached_exporter_")
    };
    let (their_types, our_types) = (types(&theirs), types(&ours));
    for (name, kind) in their_types.into_iter().filter(of_memcached) {
        assert_eq!(our_types.get(name), Some(&kind), "{name}");
    }
    // Metrics with these endings change from scrape to scrape, so their values are not compared.
    let moving = ["_seconds", "_bytes_total", "connections", "connections_total"];
    let (theirs, ours) = (samples(&theirs), samples(&ours));
    for (sample, value) in theirs.iter().map(|(a, b)| (*a, *b)).filter(of_memcached) {
        let our_value = ours.get(sample).unwrap_or_else(|| panic!("{sample} is missing"));
        let name = sample.split('{').next().unwrap();
        if !moving.iter().any(|end| name.ends_with(end)) && !name.contains("process") {
            let number = |text: &str| text.parse::<f64>().unwrap();
            assert_eq!(number(our_value), number(value), "{sample}");
        }
    }
    let only_ours: Vec<_> = ours.keys().filter(|name| name.starts_with("memcached_")).collect();
    for name in only_ours {
        let is_known = theirs.contains_key(name)
            // The exporter shows these only with the flag --memcached.pid-file.
            || name.starts_with("memcached_process_")
            // The exporter shows this metric from v0.15 on.
            || *name == "memcached_direct_reclaims_total";
        assert!(is_known, "{name} is no name of the exporter");
    }
}

/// Returns a query in percent-encoding, for a URL.
fn encoded(query: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    query.bytes().map(byte).collect()
}

/// A Prometheus that scrapes a server once per second and evaluates the packaged alerts.
struct Prometheus {
    foreign: Foreign,
    folder: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.foreign.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Prometheus {
    fn start(name: &str, full: &Full) -> Prometheus {
        let folder = format!("larder-prometheus-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("prometheus.yml");
        let target = full.server.admin_address().unwrap();
        let text = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: larder, static_configs: [{{targets: ['{target}']}}]}}]\n",
            packaged::file("alerts.yml").display()
        );
        std::fs::write(&config, text).unwrap();
        let address = free("127.77.2.1");
        let foreign = Foreign::start(
            Command::new("prometheus")
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}")),
            address,
        );
        Prometheus { foreign, folder }
    }

    /// Returns the reply to a request of Prometheus' API; `None` if Prometheus is not ready yet.
    fn ask(&self, path: &str) -> Option<serde_json::Value> {
        Some(serde_json::from_str(&self.foreign.get(path)?).unwrap())
    }

    /// Returns the first value of a query.
    fn answer(&self, query: &str) -> Option<f64> {
        let reply = self.ask(&format!("/api/v1/query?query={}", encoded(query)))?;
        let value = reply["data"]["result"][0]["value"][1].as_str()?;
        Some(value.parse().unwrap())
    }

    /// Waits until a query has a value, and returns the first one.
    fn wait_for(&self, query: &str) -> f64 {
        let begun = Instant::now();
        loop {
            // `up` is 0 after a scrape that failed.
            assert_ne!(self.answer("up"), Some(0.0), "{:?}", self.ask("/api/v1/targets"));
            if let Some(value) = self.answer(query) {
                return value;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no value: {query}");
            // Prometheus does not say when it has scraped, so ask again.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn prometheus_scrapes_a_server() {
    let full = Full::start("prometheus");
    full.use_it();
    if !is_here("prometheus", "--version") {
        return;
    }
    let prometheus = Prometheus::start("scrapes", &full);
    let hits = prometheus.wait_for("memcached_commands_total{command=\"get\",status=\"hit\"}");
    assert_eq!(hits, 1.0);
    let median = "histogram_quantile(0.5, \
        sum by (le) (larder_command_duration_seconds_bucket{command=\"set\"}))";
    let median = prometheus.wait_for(median);
    assert!(median > 0.0 && median < 1.0, "{median} s");
    let scraped = prometheus.wait_for("scrape_samples_scraped");
    assert_eq!(scraped, samples(&full.metrics()).len() as f64);
}

/// Requests of clients must not create new series, because each series takes memory of Prometheus.
#[test]
fn clients_cannot_create_series() {
    let full = Full::start("series");
    full.use_it();
    let before = full.metrics();
    let mut client = TcpStream::connect(full.server.addresses()[0]).unwrap();
    for key in 0..300 {
        let verb = ["set", "add", "prepend"][key % 3];
        write!(client, "{verb} p{key}:k{key} 0 0 1\r\n1\r\nverb{key} x\r\n").unwrap();
        write!(client, "ma l{key} B{} N{}\r\n", key + 1, key + 1).unwrap();
    }
    client.write_all(b"quit\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    let after = full.metrics();
    let names = |text: &'static str| samples(text).into_keys().collect::<Vec<_>>();
    assert_eq!(names(before.leak()), names(after.clone().leak()));
    let labels = [
        "command",
        "device",
        "durability",
        "interface",
        "lane",
        "le",
        "lru",
        "method",
        "policy",
        "quantile",
        "result",
        "slab",
        "status",
        "version",
    ];
    for (sample, _) in samples(&after) {
        let Some((_, pairs)) = sample.split_once('{') else { continue };
        for pair in pairs.trim_end_matches('}').split("\",") {
            let label = pair.split('=').next().unwrap();
            assert!(labels.contains(&label), "{sample}");
        }
    }
    let plain = Server::start(settings()).unwrap();
    assert!(samples(&get(&plain, "/metrics").1).len() < 400);
    let policies = samples(&after).keys().filter(|name| name.contains("policy=")).count();
    assert_eq!(policies, 2 * 4);
}
