//! Runs memtier_benchmark, the load generator of the article of 2021. If it is installed, the lab
//! also measures with it the loads that its own generator has sent, to compare the two.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_client::Address;
use serde::Deserialize;

use crate::generator::is_bound;
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::Turn;
use crate::lab::target::{System, tool};
use crate::process::Sample;
use crate::supervise::Processes;
use crate::{Error, Result, machine};

/// Interval between two samples of memtier_benchmark's processor time while it runs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest time that memtier_benchmark may take after the end of its test.
const GRACE: Duration = Duration::from_secs(60);

/// The path of memtier_benchmark.
#[derive(Debug)]
pub(super) struct Memtier(PathBuf);

/// The part of the program's JSON output that the lab reads.
#[derive(Debug, Deserialize)]
struct Output {
    #[serde(rename = "ALL STATS")]
    all: All,
}

#[derive(Debug, Deserialize)]
struct All {
    #[serde(rename = "Totals")]
    totals: MemtierTotals,
}

/// The figures of all requests. Latencies are milliseconds.
#[derive(Debug, Deserialize)]
struct MemtierTotals {
    #[serde(rename = "Count")]
    count: u64,
    #[serde(rename = "Ops/sec")]
    rate: f64,
    #[serde(rename = "Hits/sec")]
    hits: f64,
    #[serde(rename = "Misses/sec")]
    misses: f64,
    /// Failed connections. Older versions of the program do not count them.
    #[serde(rename = "Connection Errors", default)]
    errors: u64,
    #[serde(rename = "Average Latency", default)]
    mean: f64,
    #[serde(rename = "Max Latency")]
    max: f64,
    /// Percentiles by names such as `p99.90`, and some entries that are no percentiles.
    #[serde(rename = "Percentile Latencies")]
    percentiles: BTreeMap<String, serde_json::Value>,
}

impl Memtier {
    /// The cases with their ratios of sets to gets.
    pub(super) const CASES: [(&str, &str); 5] = [
        ("memtier-insert", "1:0"),
        ("memtier-retrieve", "0:1"),
        ("memtier-mixed-1-9", "1:9"),
        ("memtier-mixed-3-7", "3:7"),
        ("memtier-mixed-5-5", "5:5"),
    ];

    pub(super) fn find() -> Option<Memtier> {
        tool("memtier_benchmark").map(Memtier)
    }

    /// Returns true if the program speaks the protocol of the system.
    pub(super) fn knows(system: &System) -> bool {
        matches!(system.family, "Larder" | "memcached" | "ARCUS" | "pogocache" | "Redis" | "Valkey")
    }

    /// Measures one point. All keys must be stored already.
    ///
    /// # Errors
    /// Returns an error if the program fails, or prints no figures.
    pub(super) fn run(
        &self,
        turn: &Turn<'_>,
        point_id: PointId,
        ratio: &str,
        time: Duration,
        value: usize,
    ) -> Result<Point> {
        let json = turn.server.scratch("memtier.json");
        // If the program writes no file, the figures of an earlier run must not be read.
        let _ = fs::remove_file(&json);
        let mut command = Command::new(&self.0);
        command.args(arguments(turn, ratio, time, value)?);
        command.arg(format!("--json-out-file={}", json.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let before = turn.server.probe().sample()?;
        let (busy, length) = self.watch(command, time)?;
        let after = turn.server.probe().sample()?;
        let totals = read(&json)?;
        let figures = figures(&totals, before, after, length);
        let generator_bound = is_bound(busy, turn.plan.load_threads, machine::processors());
        let figures = Figures { generator_busy: busy, generator_bound, ..figures };
        let void = faults(&totals, figures.hit_ratio);
        Ok(Point { void, ..Point::new(point_id, figures) })
    }

    /// Runs the program to its end. Returns the average number of processors that it kept busy, and
    /// the duration in seconds.
    fn watch(&self, command: Command, time: Duration) -> Result<(f64, f64)> {
        let name = self.0.display();
        let started = Instant::now();
        let mut processes = Processes::start(command, None)
            .map_err(|e| Error::io(format!("cannot start {name}"), e))?;
        let mut cpu = 0;
        let look = |processes: &Processes| {
            cpu = processes.probe().sample().map_or(cpu, |sample| sample.cpu_ns);
        };
        let status = processes.wait(time.saturating_add(GRACE), POLL_INTERVAL, look)?;
        let length = started.elapsed().as_secs_f64().max(0.001);
        match status {
            Some(status) if status.success() => Ok((cpu as f64 / 1e9 / length, length)),
            Some(status) => Err(Error::Void(format!("{name} failed: {status}"))),
            None => Err(Error::Void(format!("{name} does not end"))),
        }
    }
}

/// Returns the arguments except the one that names the output file.
fn arguments(turn: &Turn<'_>, ratio: &str, time: Duration, value: usize) -> Result<Vec<String>> {
    let Address::Tcp(address) = &turn.server.address else {
        return Err(Error::usage("memtier_benchmark needs a server on a TCP port"));
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "11211"));
    let (sizes, threads) = (&turn.plan.persistence, turn.plan.load_threads);
    let protocol = if turn.wire().is_some() { "redis" } else { "memcache_text" };
    // For inserts, each client goes through its own range of the keys. Other requests draw random
    // keys.
    let pattern = if ratio == "1:0" { "P:P" } else { "R:R" };
    let end = match time {
        Duration::MAX => "--requests=allkeys".to_owned(),
        _ => format!("--test-time={}", time.as_secs_f64().ceil().max(1.0)),
    };
    Ok(vec![
        format!("--server={host}"),
        format!("--port={port}"),
        format!("--protocol={protocol}"),
        format!("--threads={threads}"),
        format!("--clients={}", (sizes.connections / threads.max(1)).max(1)),
        format!("--ratio={ratio}"),
        format!("--data-size={value}"),
        "--key-prefix=memtier-".to_owned(),
        "--key-minimum=1".to_owned(),
        format!("--key-maximum={}", sizes.keys),
        format!("--key-pattern={pattern}"),
        end,
        // Without the first of these two options, all clients would request the same keys. Without
        // the second, all runs would.
        "--distinct-client-seed".to_owned(),
        "--randomize".to_owned(),
        "--hide-histogram".to_owned(),
        "--print-percentiles=50,90,95,99,99.9".to_owned(),
    ])
}

fn read(path: &Path) -> Result<MemtierTotals> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|e| Error::io(format!("cannot read {name}"), e))?;
    parse(&text)
}

fn parse(text: &str) -> Result<MemtierTotals> {
    let output: Output = serde_json::from_str(text)
        .map_err(|e| Error::server(format!("memtier_benchmark wrote no figures: {e}")))?;
    Ok(output.all.totals)
}

fn figures(totals: &MemtierTotals, before: Sample, after: Sample, length: f64) -> Figures {
    let micros = |name: &str| {
        let value = totals.percentiles.get(name).and_then(serde_json::Value::as_f64);
        value.unwrap_or(0.0) * 1000.0
    };
    let cpu = after.cpu_ns.saturating_sub(before.cpu_ns) as f64;
    let reads = totals.hits + totals.misses;
    Figures {
        rate: totals.rate,
        mean_us: totals.mean * 1000.0,
        p50_us: micros("p50.00"),
        p90_us: micros("p90.00"),
        p95_us: micros("p95.00"),
        p99_us: micros("p99.00"),
        p999_us: micros("p99.90"),
        max_us: totals.max * 1000.0,
        cpu_us: cpu / 1000.0 / totals.count.max(1) as f64,
        server_busy: cpu / 1e9 / length,
        rss: after.rss,
        written_per_second: after.written.saturating_sub(before.written) as f64 / length,
        read_per_second: after.read.saturating_sub(before.read) as f64 / length,
        hit_ratio: (reads > 0.0).then(|| totals.hits / reads),
        ..Figures::default()
    }
}

/// Returns the reason why the figures are void, or `None` if they are valid.
fn faults(totals: &MemtierTotals, hit_ratio: Option<f64>) -> Option<String> {
    if totals.count == 0 || totals.errors > 0 {
        let MemtierTotals { count, errors, .. } = totals;
        return Some(format!("{count} requests were answered, {errors} connections failed"));
    }
    let lost = hit_ratio.filter(|&ratio| ratio < 1.0);
    lost.map(|ratio| format!("the server lost items: hit ratio {ratio:.4}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"{"configuration": {}, "ALL STATS": {"Sets": {}, "Totals": {
        "Count": 1000, "Ops/sec": 500.5, "Hits/sec": 300.0, "Misses/sec": 100.0,
        "Connection Errors": 0, "Average Latency": 0.775, "Min Latency": 0.024,
        "Max Latency": 32.255, "Percentile Latencies": {"p50.00": 0.423, "p90.00": 1.383,
        "p95.00": 2.223, "p99.00": 7.775, "p99.90": 25.983,
        "Histogram log format": {"Compressed Histogram": "HIST"}}}}}"#;

    #[test]
    fn the_figures_are_those_of_all_requests() {
        let totals = parse(OUTPUT).unwrap();
        let after = Sample { cpu_ns: 3_000_000, written: 8, ..Sample::default() };
        let figures = figures(&totals, Sample::default(), after, 2.0);
        assert!((figures.rate - 500.5).abs() < 1e-9);
        assert!((figures.p50_us - 423.0).abs() < 1e-9 && (figures.max_us - 32_255.0).abs() < 1e-6);
        assert!((figures.p999_us - 25_983.0).abs() < 1e-6);
        assert!((figures.cpu_us - 3.0).abs() < 1e-9 && figures.hit_ratio == Some(0.75));
        assert!((figures.written_per_second - 4.0).abs() < 1e-9);
        assert!(faults(&totals, figures.hit_ratio).unwrap().contains("lost items"));
        assert_eq!(faults(&totals, Some(1.0)), None);
        assert!(
            faults(&MemtierTotals { errors: 1, ..totals }, None).unwrap().contains("1 connections")
        );
    }

    #[test]
    fn output_without_figures_is_an_error() {
        for text in ["", "{}", "{\"ALL STATS\": {}}"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("memtier_benchmark wrote no figures"), "{error}");
        }
    }
}
