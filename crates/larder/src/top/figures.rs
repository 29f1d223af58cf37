//! The figures of a server over one interval.

use larder_server::condition::{Condition, Interval};
use serde::Serialize;

use super::sample::Sample;

/// What a server did between two samples, and its state at the second one. A figure is `None` if
/// the server does not report it. Rates are per second.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) version: String,
    pub(super) uptime_seconds: Option<u64>,
    /// Length of the interval.
    pub(super) seconds: f64,
    pub(super) reads_per_second: Option<f64>,
    pub(super) writes_per_second: Option<f64>,
    pub(super) deletes_per_second: Option<f64>,
    /// Increments and decrements.
    pub(super) counts_per_second: Option<f64>,
    pub(super) touches_per_second: Option<f64>,
    /// The share of reads that found their item; `None` without reads.
    pub(super) hit_ratio: Option<f64>,
    /// The times within which 50, 99 and 99.9 % of the commands were answered, in microseconds.
    pub(super) latency_p50_us: Option<f64>,
    pub(super) latency_p99_us: Option<f64>,
    pub(super) latency_p999_us: Option<f64>,
    pub(super) evictions_per_second: Option<f64>,
    pub(super) received_bytes_per_second: Option<f64>,
    pub(super) sent_bytes_per_second: Option<f64>,
    /// Average number of busy processors in user mode and in the kernel.
    pub(super) cpu_user: Option<f64>,
    pub(super) cpu_system: Option<f64>,
    pub(super) connections: Option<u64>,
    pub(super) items: Option<u64>,
    pub(super) memory_used_bytes: Option<u64>,
    pub(super) memory_limit_bytes: Option<u64>,
    pub(super) resident_bytes: Option<u64>,
    /// Bytes of the records that are only on a device and not in memory.
    pub(super) flash_bytes: Option<u64>,
    /// Bytes that are not durable yet, and the largest possible age of these bytes, in
    /// milliseconds.
    pub(super) unsynced_bytes: Option<u64>,
    pub(super) unsynced_ms: Option<u64>,
    pub(super) condition: Condition,
}

impl Figures {
    /// Compares two samples. If the server was restarted in between, rates cover the time since its
    /// start.
    pub(super) fn between(first: &Sample, last: &Sample) -> Figures {
        let span = Span::new(first, last);
        let rate = |rows: &[&str]| span.rate(rows);
        Figures {
            version: version(last),
            uptime_seconds: last.whole("uptime"),
            seconds: span.seconds,
            reads_per_second: rate(&["cmd_get"]),
            writes_per_second: rate(&["cmd_set"]),
            deletes_per_second: rate(&["delete_hits", "delete_misses"]),
            counts_per_second: rate(&["incr_hits", "incr_misses", "decr_hits", "decr_misses"]),
            touches_per_second: rate(&["cmd_touch"]),
            hit_ratio: span.share("get_hits", "get_misses"),
            latency_p50_us: span.latency_us(0.5),
            latency_p99_us: span.latency_us(0.99),
            latency_p999_us: span.latency_us(0.999),
            evictions_per_second: rate(&["evictions"]),
            received_bytes_per_second: rate(&["bytes_read"]),
            sent_bytes_per_second: rate(&["bytes_written"]),
            cpu_user: rate(&["rusage_user"]),
            cpu_system: rate(&["rusage_system"]),
            connections: last.whole("curr_connections"),
            items: last.whole("curr_items"),
            memory_used_bytes: last.whole("larder_memory_used").or_else(|| last.whole("bytes")),
            memory_limit_bytes: last.whole("limit_maxbytes"),
            resident_bytes: last.whole("larder_resident_bytes"),
            flash_bytes: last
                .whole("larder_bytes_flash")
                .or_else(|| last.whole("extstore_bytes_used")),
            unsynced_bytes: last.whole("larder_unsynced_bytes"),
            unsynced_ms: last.whole("larder_unsynced_ms"),
            condition: Condition::of(&span),
        }
    }
}

/// Two samples of one server.
struct Span<'a> {
    /// The earlier sample; `None` if the server was restarted since.
    first: Option<&'a Sample>,
    last: &'a Sample,
    seconds: f64,
}

impl<'a> Span<'a> {
    fn new(first: &'a Sample, last: &'a Sample) -> Span<'a> {
        let seconds = first.seconds_to(last);
        if first.is_same_run(last) {
            return Span { first: Some(first), last, seconds };
        }
        let seconds = last.number("uptime").unwrap_or(seconds).max(1.0);
        Span { first: None, last, seconds }
    }

    /// Returns the time within which a share of the commands was answered; `None` without commands.
    fn latency_us(&self, share: f64) -> Option<f64> {
        let last = self.last.latency()?;
        let quantile = match self.first {
            Some(first) => last.growth(first.latency()?).quantile(share),
            None => last.quantile(share),
        };
        Some(quantile? as f64 / 1000.0)
    }
}

impl Interval for Span<'_> {
    fn text(&self, row: &str) -> Option<&str> {
        self.last.text(row)
    }

    fn earlier(&self, row: &str) -> Option<&str> {
        self.first?.text(row)
    }

    fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// Returns the server's version. For Larder, the name `Larder` precedes it.
fn version(sample: &Sample) -> String {
    match (sample.text("larder_version"), sample.text("version")) {
        (Some(larder), _) => format!("Larder {larder}"),
        (None, Some(version)) => version.to_owned(),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sample(at: Instant, rows: &[(&str, &str)]) -> Sample {
        let owned = rows.iter().map(|&(row, value)| (row.to_owned(), value.to_owned()));
        Sample::new(at, owned.collect())
    }

    fn near(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-9)
    }

    #[test]
    fn rates_are_growth_by_time() {
        let start = Instant::now();
        let first = sample(
            start,
            &[
                ("pid", "7"),
                ("uptime", "10"),
                ("cmd_get", "100"),
                ("get_hits", "60"),
                ("get_misses", "40"),
            ],
        );
        let last = sample(
            start + Duration::from_secs(2),
            &[
                ("pid", "7"),
                ("uptime", "12"),
                ("cmd_get", "300"),
                ("get_hits", "210"),
                ("get_misses", "90"),
                ("delete_hits", "8"),
                ("rusage_user", "0.5"),
                ("version", "1.6.18"),
            ],
        );
        let figures = Figures::between(&first, &last);
        assert!(near(figures.reads_per_second, 100.0));
        assert!(near(figures.hit_ratio, 0.75));
        assert!(near(figures.deletes_per_second, 4.0));
        assert!(near(figures.cpu_user, 0.25));
        assert_eq!(figures.writes_per_second, None, "the server has no such row");
        assert_eq!(figures.version, "1.6.18");
    }

    #[test]
    fn percentiles_are_those_of_the_interval() {
        let at = Instant::now();
        let sample = |pid: &str, text: &str| {
            let rows = [("buckets:get".to_owned(), text.to_owned())];
            sample(at, &[("pid", pid)]).with_buckets(&rows)
        };
        let slow = sample("7", "1000000:1000");
        let then = sample("7", "1000000:1000 1000:90 2000:10");
        let figures = Figures::between(&slow, &then);
        // The bucket of 1 µs begins at 0.7 µs.
        assert!(figures.latency_p50_us.is_some_and(|us| (0.7..=1.0).contains(&us)), "{figures:?}");
        assert!(figures.latency_p99_us.is_some_and(|us| (1.5..=2.0).contains(&us)), "{figures:?}");
        assert_eq!(Figures::between(&then, &then).latency_p50_us, None, "no commands");
        let restarted = Figures::between(&then, &sample("8", "1000000:5"));
        assert!(restarted.latency_p50_us.is_some_and(|us| us > 700.0), "{restarted:?}");
        let untold = super::tests::sample(at, &[("pid", "7")]);
        assert_eq!(Figures::between(&untold, &then).latency_p50_us, None);
        assert_eq!(Figures::between(&then, &untold).latency_p50_us, None);
    }

    #[test]
    fn after_a_restart_rates_count_from_the_start() {
        let start = Instant::now();
        let first = sample(start, &[("pid", "7"), ("uptime", "90"), ("cmd_get", "1000")]);
        let last = sample(
            start + Duration::from_secs(8),
            &[("pid", "8"), ("uptime", "4"), ("cmd_get", "20")],
        );
        let figures = Figures::between(&first, &last);
        assert!(near(figures.reads_per_second, 5.0));
        assert_eq!(figures.hit_ratio, None);
    }
}
