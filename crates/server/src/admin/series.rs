//! The series of values that the page draws over time, and how each is read from two samples of
//! `stats`.

use std::collections::HashMap;

use larder_disk::Histogram;

use crate::condition::{Interval, number};
use crate::server::Running;
use crate::stats;

/// How a value of a series is computed from two samples of `stats`.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The growth of the sum of these counters, per second.
    Rate(&'static [&'static str]),
    /// The present value of this row of `stats`.
    Gauge(&'static str),
    /// The growth of the first counter, divided by the growth of the sum of both counters; absent
    /// if neither grew.
    Share(&'static str, &'static str),
    /// The latency, in microseconds, within which this share of the commands was answered; absent
    /// if there were no commands.
    Latency(f64),
}

/// How several values of a series are merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merge {
    Mean,
    Largest,
    /// The mean, weighted by the number of reads.
    ByReads,
}

/// The position of `reads` in [`SERIES`], for [`Merge::ByReads`].
pub(super) const READS: usize = 0;

/// A series of values that the page draws over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Series {
    /// The name in the answers of the admin port.
    pub(super) name: &'static str,
    pub(super) merge: Merge,
    source: Source,
}

const fn rate(name: &'static str, rows: &'static [&'static str]) -> Series {
    Series { name, merge: Merge::Mean, source: Source::Rate(rows) }
}

const fn gauge(name: &'static str, row: &'static str) -> Series {
    Series { name, merge: Merge::Mean, source: Source::Gauge(row) }
}

const fn peak(name: &'static str, row: &'static str) -> Series {
    Series { name, merge: Merge::Largest, source: Source::Gauge(row) }
}

const fn latency(name: &'static str, share: f64) -> Series {
    Series { name, merge: Merge::Largest, source: Source::Latency(share) }
}

/// All series. Rates are per second, sizes are bytes, and processor time is the number of busy
/// processors.
pub(super) const SERIES: [Series; 27] = [
    rate("reads", &["cmd_get"]),
    rate("writes", &["cmd_set"]),
    rate("deletes", &["delete_hits", "delete_misses"]),
    rate("counts", &["incr_hits", "incr_misses", "decr_hits", "decr_misses"]),
    rate("touches", &["cmd_touch"]),
    Series {
        name: "hit_ratio",
        merge: Merge::ByReads,
        source: Source::Share("get_hits", "get_misses"),
    },
    latency("p50_us", 0.5),
    latency("p99_us", 0.99),
    latency("p999_us", 0.999),
    rate("evictions", &["evictions"]),
    rate("expired", &["reclaimed"]),
    rate("received", &["bytes_read"]),
    rate("sent", &["bytes_written"]),
    rate("cpu_user", &["rusage_user"]),
    rate("cpu_system", &["rusage_system"]),
    gauge("connections", "curr_connections"),
    gauge("items", "curr_items"),
    gauge("memory_used", "larder_memory_used"),
    gauge("resident", "larder_resident_bytes"),
    gauge("bytes_flash", "larder_bytes_flash"),
    peak("unsynced_bytes", "larder_unsynced_bytes"),
    peak("unsynced_ms", "larder_unsynced_ms"),
    peak("commit_us_p99", "larder_commit_us_p99"),
    rate("device_written", &["larder_device_written_bytes"]),
    rate("flash_reads", &["larder_flash_reads"]),
    rate("limits_allowed", &["larder_limits_allowed"]),
    rate("limits_refused", &["larder_limits_refused"]),
];

/// One value of each series, in the order of [`SERIES`]. A value that is absent is NaN.
pub(super) type Values = [f32; SERIES.len()];

/// The rows of `stats` at one moment.
#[derive(Debug)]
pub(super) struct Moment {
    /// Milliseconds since the Unix epoch: the wall clock at the server's start, plus the server's
    /// uptime.
    pub(super) time: u64,
    rows: HashMap<String, String>,
    /// The latencies of all commands since the start; `None` if commands are not timed.
    latency: Option<Histogram>,
}

impl Moment {
    pub(super) fn of(running: &Running) -> Moment {
        let mut rows = HashMap::new();
        stats::group(running, b"", &mut |name, value| {
            rows.insert(name.to_owned(), value.to_string());
        });
        let time = running.clock.wall_ms(running.clock.nanos());
        Moment { time, rows, latency: running.latencies_ever().map(|all| all.all()) }
    }

    pub(super) fn text(&self, row: &str) -> Option<&str> {
        self.rows.get(row).map(String::as_str)
    }

    /// Returns the rows whose names `wanted` accepts, in the order of their names.
    pub(super) fn texts(&self, wanted: impl Fn(&str) -> bool) -> Vec<(&str, &str)> {
        let rows = self.rows.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let mut rows: Vec<(&str, &str)> = rows.filter(|(name, _)| wanted(name)).collect();
        rows.sort_unstable();
        rows
    }
}

/// Two samples of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub(super) from: &'a Moment,
    pub(super) to: &'a Moment,
}

impl Interval for Span<'_> {
    fn text(&self, row: &str) -> Option<&str> {
        self.to.text(row)
    }

    fn earlier(&self, row: &str) -> Option<&str> {
        self.from.text(row)
    }

    fn seconds(&self) -> f64 {
        (self.to.time.saturating_sub(self.from.time) as f64 / 1000.0).max(0.001)
    }
}

impl Span<'_> {
    /// Returns the value of each series for this span.
    pub(super) fn values(&self) -> Values {
        SERIES.map(|series| self.value(series.source).map_or(f32::NAN, |value| value as f32))
    }

    fn value(&self, source: Source) -> Option<f64> {
        match source {
            Source::Gauge(row) => number(self.to.text(row)?),
            Source::Rate(rows) => self.rate(rows),
            Source::Latency(share) => {
                let (from, to) = (self.from.latency.as_ref()?, self.to.latency.as_ref()?);
                let ns = to.since(from).quantile(share)?;
                Some(ns as f64 / 1000.0)
            }
            Source::Share(part, rest) => self.share(part, rest),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::admin) fn rows(time: u64, rows: &[(&str, &str)]) -> Moment {
        let owned = rows.iter().map(|&(name, text)| (name.to_owned(), text.to_owned()));
        Moment { time, rows: owned.collect(), latency: None }
    }

    fn value(values: &Values, name: &str) -> f32 {
        values[SERIES.iter().position(|series| series.name == name).unwrap()]
    }

    #[test]
    fn series_are_read_from_two_samples() {
        let from = rows(1000, &[("cmd_get", "10"), ("get_hits", "8"), ("get_misses", "2")]);
        let to = rows(
            3000,
            &[
                ("cmd_get", "30"),
                ("get_hits", "23"),
                ("get_misses", "7"),
                ("curr_items", "5"),
                ("cmd_set", "0"),
            ],
        );
        let values = Span { from: &from, to: &to }.values();
        let near = |name: &str, wanted: f32| (value(&values, name) - wanted).abs() < 1e-6;
        assert!(near("reads", 10.0) && near("hit_ratio", 0.75) && near("items", 5.0));
        assert!(near("writes", 0.0));
        assert!(value(&values, "deletes").is_nan(), "the rows are missing");
        // `to` and `from` are exchanged, so the counters shrink as after a reset. Then there is no
        // rate.
        let values = Span { from: &to, to: &from }.values();
        assert!(value(&values, "reads").is_nan() && value(&values, "hit_ratio").is_nan());
    }
}
