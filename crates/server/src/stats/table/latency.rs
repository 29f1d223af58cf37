//! `stats latency`: how long commands took, by their class. `stats buckets` has the histograms,
//! from which other programs compute the latencies of an interval.

use larder_disk::Histogram;

use super::super::metric::MetricKind::{self, Counter, Gauge, Info};
use super::super::metric::MetricUnit::{Microseconds, Nanoseconds};
use super::super::metric::{Metric, Reading, of_class, some};

fn quantile(class: &Histogram, share: f64) -> Option<Reading> {
    class.quantile(share).map(Into::into)
}

pub(super) static METRICS: &[Metric] = &[
    of_class("latency:CLASS:count", MetricKind::Histogram, "Commands of this class.", |class| {
        some(class.count())
    })
    .named("larder_command_duration_seconds"),
    of_class("latency:CLASS:sum_us", Counter, "The sum of their latencies.", |class| {
        some(class.sum / 1000)
    })
    .unit(Microseconds),
    of_class("latency:CLASS:p50_ns", Gauge, "Half of them took at most this time.", |class| {
        quantile(class, 0.5)
    })
    .unit(Nanoseconds),
    of_class("latency:CLASS:p99_ns", Gauge, "99 % of them took at most this time.", |class| {
        quantile(class, 0.99)
    })
    .unit(Nanoseconds),
    of_class("latency:CLASS:p999_ns", Gauge, "99.9 % of them took at most this time.", |class| {
        quantile(class, 0.999)
    })
    .unit(Nanoseconds),
    of_class(
        "buckets:CLASS",
        Info,
        "The histogram of their latencies, as pairs `BOUND:COUNT`: the commands that took at most \
         this time, in ns, and longer than the bound before it. The last bound is `inf`.",
        |class| some(class.buckets_text()),
    )
    .group("buckets"),
];
