//! `stats durability`: the durations of calls of devices, the sizes of commits, and the times that
//! replies wait for commits. Without a store, this group has no rows.

use larder_disk::Histogram;

use super::super::distribution::Distribution;
use super::super::metric::MetricKind::{self, Counter, Gauge};
use super::super::metric::MetricUnit::{Bytes, Microseconds, Nanoseconds};
use super::super::metric::{Metric, Reading, of_distribution, some};

fn quantile(histogram: &Histogram, share: f64) -> Option<Reading> {
    histogram.quantile(share).map(Into::into)
}

/// Makes the rows of a [`Distribution`] whose histograms hold durations. Each row's name begins
/// with `$row`. `$of` is the distribution, and `$name` its name on `/metrics`. `$counted` is the
/// help text of the row `:count`. `$times` names the durations in the help texts of the sum and the
/// quantiles.
macro_rules! times {
    ($row:literal, $of:ident, $name:literal, $counted:literal, $times:literal) => {
        &[
            of_distribution(
                concat!($row, ":count"),
                MetricKind::Histogram,
                $counted,
                Distribution::$of,
                |all| some(all.count()),
            )
            .named($name),
            of_distribution(
                concat!($row, ":sum_us"),
                Counter,
                concat!("The sum of ", $times, "."),
                Distribution::$of,
                |all| some(all.sum / 1000),
            )
            .unit(Microseconds),
            of_distribution(
                concat!($row, ":p50_ns"),
                Gauge,
                concat!("The median of ", $times, "."),
                Distribution::$of,
                |all| quantile(all, 0.5),
            )
            .unit(Nanoseconds),
            of_distribution(
                concat!($row, ":p99_ns"),
                Gauge,
                concat!("The 99th percentile of ", $times, "."),
                Distribution::$of,
                |all| quantile(all, 0.99),
            )
            .unit(Nanoseconds),
            of_distribution(
                concat!($row, ":p999_ns"),
                Gauge,
                concat!("The 99.9th percentile of ", $times, "."),
                Distribution::$of,
                |all| quantile(all, 0.999),
            )
            .unit(Nanoseconds),
        ]
    };
}

pub(super) static COMMIT_WAITS: &[Metric] = times!(
    "commit_wait",
    CommitWaits,
    "larder_commit_wait_seconds",
    "Replies that waited until their commit was durable or had failed, from the turn of the event \
     loop that executed the command.",
    "their waits"
);

pub(super) static COMMIT_BYTES: &[Metric] = &[
    of_distribution(
        "commit:N:count",
        MetricKind::Histogram,
        "Commits of lane N, by the bytes of records that they made durable. Commits that only freed \
         segments have 0.",
        Distribution::CommitBytes,
        |all| some(all.count()),
    )
    .named("larder_commit_bytes"),
    of_distribution(
        "commit:N:sum",
        Counter,
        "The sum of their bytes.",
        Distribution::CommitBytes,
        |all| some(all.sum),
    )
    .unit(Bytes),
    of_distribution(
        "commit:N:p50",
        Gauge,
        "The median of their bytes.",
        Distribution::CommitBytes,
        |all| quantile(all, 0.5),
    )
    .unit(Bytes),
    of_distribution(
        "commit:N:p99",
        Gauge,
        "The 99th percentile of their bytes.",
        Distribution::CommitBytes,
        |all| quantile(all, 0.99),
    )
    .unit(Bytes),
];

pub(super) static SYNCS: &[Metric] = times!(
    "device:N:sync",
    Syncs,
    "larder_device_sync_seconds",
    "Syncs of the device of lane N.",
    "their times"
);

pub(super) static WRITES: &[Metric] = times!(
    "device:N:write",
    Writes,
    "larder_device_write_seconds",
    "Writes to the device of lane N, of any length. Many end in memory of the operating system.",
    "their times"
);

pub(super) static READS: &[Metric] = times!(
    "device:N:read",
    Reads,
    "larder_device_read_seconds",
    "Reads of the device of lane N, of any length: of records, of whole segments, and of the recovery.",
    "their times"
);
