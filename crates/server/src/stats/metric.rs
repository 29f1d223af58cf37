//! The type of one row of the table of metrics, and functions that make the code of a row shorter.

use std::fmt;
use std::mem::discriminant;
use std::time::Duration;

use larder_disk::Histogram;

use super::distribution::{Distributed, Distribution};
use super::snapshot::{LaneView, Snapshot};
use crate::policies::Policy;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    /// A number that only grows until the server restarts or `stats reset` is executed.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A quantile of a histogram. The label `quantile` says which one, as in a Prometheus summary.
    Quantile,
    /// The number of events. In Prometheus' format, a histogram of their durations or sizes.
    Histogram,
    /// Text. In Prometheus' format, the text is a label of a sample with the value 1.
    Info,
    /// A row of memcached about a mechanism that Larder does not have. Its value never changes.
    Absent,
}

impl MetricKind {
    /// Returns the name of the kind in the documentation and in `/v1/metrics`.
    pub(super) fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Quantile => "quantile",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "text",
            MetricKind::Absent => "constant",
        }
    }

    /// Returns the name of the type in Prometheus' format.
    pub(super) fn prometheus(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Quantile => "summary",
            MetricKind::Histogram => "histogram",
            MetricKind::Gauge | MetricKind::Info | MetricKind::Absent => "gauge",
        }
    }
}

/// The unit of a row in `stats`. Prometheus' format has base units, such as seconds, so `/metrics`
/// shows the row's value divided by [`MetricUnit::per_base`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricUnit {
    /// A plain number.
    One,
    Bytes,
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl MetricUnit {
    /// Returns the short name of the unit; empty for plain numbers.
    pub(super) fn name(self) -> &'static str {
        match self {
            MetricUnit::One => "",
            MetricUnit::Bytes => "bytes",
            MetricUnit::Seconds => "s",
            MetricUnit::Milliseconds => "ms",
            MetricUnit::Microseconds => "µs",
            MetricUnit::Nanoseconds => "ns",
        }
    }

    /// Returns how many of this unit make one base unit.
    fn per_base(self) -> u32 {
        match self {
            MetricUnit::One | MetricUnit::Bytes | MetricUnit::Seconds => 1,
            MetricUnit::Milliseconds => 1000,
            MetricUnit::Microseconds => 1_000_000,
            MetricUnit::Nanoseconds => 1_000_000_000,
        }
    }
}

/// How the values of several servers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The values are added.
    Sum,
    /// The largest value counts.
    Largest,
    /// The values stay separate.
    Apart,
}

impl Joined {
    pub(super) fn name(self) -> &'static str {
        match self {
            Joined::Sum => "sum",
            Joined::Largest => "largest",
            Joined::Apart => "apart",
        }
    }
}

/// The value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    Whole(u64),
    Time(Duration),
    Text(String),
}

/// The form of the value in `stats`.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Whole(number) => number.fmt(f),
            Reading::Time(time) => write!(f, "{}.{:06}", time.as_secs(), time.subsec_micros()),
            Reading::Text(text) => text.fmt(f),
        }
    }
}

impl Reading {
    /// Returns the value of a sample in Prometheus' format: in base units, and 1 for text.
    pub(super) fn sample(&self, unit: MetricUnit) -> String {
        match self {
            Reading::Whole(number) if unit.per_base() == 1 => number.to_string(),
            Reading::Whole(number) => (*number as f64 / f64::from(unit.per_base())).to_string(),
            Reading::Time(time) => time.as_secs_f64().to_string(),
            Reading::Text(_) => "1".to_owned(),
        }
    }
}

impl From<u64> for Reading {
    fn from(number: u64) -> Reading {
        Reading::Whole(number)
    }
}

impl From<usize> for Reading {
    fn from(number: usize) -> Reading {
        Reading::Whole(number as u64)
    }
}

impl From<bool> for Reading {
    fn from(yes: bool) -> Reading {
        Reading::Whole(yes.into())
    }
}

impl From<Duration> for Reading {
    fn from(time: Duration) -> Reading {
        Reading::Time(time)
    }
}

impl From<String> for Reading {
    fn from(text: String) -> Reading {
        Reading::Text(text)
    }
}

impl From<&str> for Reading {
    fn from(text: &str) -> Reading {
        Reading::Text(text.to_owned())
    }
}

/// Wraps the value of a metric that always has one.
pub(super) fn some(value: impl Into<Reading>) -> Option<Reading> {
    Some(value.into())
}

type OfServer = fn(&Snapshot<'_>) -> Option<Reading>;
type OfLane = fn(&LaneView<'_>) -> Option<Reading>;
type OfHistogram = fn(&Histogram) -> Option<Reading>;
type OfPolicy = fn(&Policy) -> Option<Reading>;

/// The function that reads a metric's value. If it returns `None`, the row is left out.
#[derive(Clone, Copy)]
pub(super) enum Read {
    /// One value for the server.
    Server(OfServer),
    /// A value for each lane of a store. `N` in the name of the row is the number of the lane.
    Lane(OfLane),
    /// A value for each policy of rate limits. `NAME` in the name of the row is the policy's name.
    Policy(OfPolicy),
    /// A value for each class of commands, while latencies are measured. `CLASS` in the name of the
    /// row is the class.
    Class(OfHistogram),
    /// A value for each histogram of the given [`Distribution`]. `N` in the name of the row is the
    /// number of the lane, followed by `:lower` if the histogram is of the lane's lower device.
    Distribution(Distribution, OfHistogram),
}

/// Returns a label's value in the escaped form of Prometheus' format.
pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// One row of the table of metrics.
pub(crate) struct Metric {
    /// The group of `stats` that shows the row.
    pub(super) group: &'static str,
    /// The name of the row in `stats`.
    pub(super) row: &'static str,
    /// The name of the row's samples on `/metrics`. Empty if `/metrics` lacks this row, or shows it
    /// only under names of the memcached exporter.
    pub(super) name: &'static str,
    /// The fixed labels of the samples, without braces. For [`MetricKind::Info`], the name of the
    /// label that holds the text.
    pub(super) labels: &'static str,
    pub(super) kind: MetricKind,
    pub(super) unit: MetricUnit,
    pub(super) joined: Joined,
    /// The help text, of one line.
    pub(super) help: &'static str,
    pub(super) read: Read,
}

const fn metric(
    row: &'static str,
    kind: MetricKind,
    joined: Joined,
    help: &'static str,
    read: Read,
) -> Metric {
    let unit = MetricUnit::One;
    // Texts of several servers cannot be joined.
    let joined = if matches!(kind, MetricKind::Info) { Joined::Apart } else { joined };
    Metric { group: "", row, name: "", labels: "", kind, unit, joined, help, read }
}

pub(super) const fn counter(row: &'static str, help: &'static str, read: OfServer) -> Metric {
    metric(row, MetricKind::Counter, Joined::Sum, help, Read::Server(read))
}

pub(super) const fn gauge(row: &'static str, help: &'static str, read: OfServer) -> Metric {
    metric(row, MetricKind::Gauge, Joined::Sum, help, Read::Server(read))
}

pub(super) const fn text(row: &'static str, help: &'static str, read: OfServer) -> Metric {
    metric(row, MetricKind::Info, Joined::Apart, help, Read::Server(read))
}

/// A row of a mechanism that Larder does not have, with the value 0.
pub(super) const fn zero(row: &'static str) -> Metric {
    absent(row, |_| some(0_u64))
}

/// A row of a mechanism that Larder does not have.
pub(super) const fn absent(row: &'static str, read: OfServer) -> Metric {
    metric(row, MetricKind::Absent, Joined::Sum, "", Read::Server(read))
}

pub(super) const fn of_lane(
    row: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: OfLane,
) -> Metric {
    metric(row, kind, Joined::Sum, help, Read::Lane(read))
}

pub(super) const fn of_policy(
    row: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: OfPolicy,
) -> Metric {
    metric(row, kind, Joined::Sum, help, Read::Policy(read)).group("limits")
}

pub(super) const fn of_class(
    row: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: OfHistogram,
) -> Metric {
    metric(row, kind, Joined::Apart, help, Read::Class(read)).group("latency")
}

pub(super) const fn of_distribution(
    row: &'static str,
    kind: MetricKind,
    help: &'static str,
    of: Distribution,
    read: OfHistogram,
) -> Metric {
    metric(row, kind, Joined::Apart, help, Read::Distribution(of, read)).group("durability")
}

impl Metric {
    /// Sets the name of the samples on `/metrics`.
    pub(super) const fn named(mut self, name: &'static str) -> Metric {
        self.name = name;
        self
    }

    /// Sets the fixed labels of the samples. For [`MetricKind::Info`], sets the name of the label
    /// that holds the text.
    pub(super) const fn labels(mut self, labels: &'static str) -> Metric {
        self.labels = labels;
        self
    }

    pub(super) const fn unit(mut self, unit: MetricUnit) -> Metric {
        self.unit = unit;
        self
    }

    /// Sets [`MetricUnit::Bytes`].
    pub(super) const fn bytes(self) -> Metric {
        self.unit(MetricUnit::Bytes)
    }

    /// Sets [`Joined::Largest`]: the largest of several values counts.
    pub(super) const fn largest(mut self) -> Metric {
        self.joined = Joined::Largest;
        self
    }

    /// Sets [`Joined::Apart`]: several values stay apart.
    pub(super) const fn apart(mut self) -> Metric {
        self.joined = Joined::Apart;
        self
    }

    /// Sets the group of `stats`.
    pub(super) const fn group(mut self, group: &'static str) -> Metric {
        self.group = group;
        self
    }

    /// Sets [`MetricKind::Quantile`], its fixed label, and [`Joined::Largest`].
    pub(super) const fn quantile(mut self, labels: &'static str) -> Metric {
        self.kind = MetricKind::Quantile;
        self.labels = labels;
        self.largest()
    }
}

/// Receives a metric with the name of its row, its labels and its value.
pub(super) type VisitValue<'v> = dyn FnMut(&Metric, &str, &[(&str, &str)], Reading) + 'v;

/// Calls `visit` with every value of `metrics`. If several metrics of lanes follow each other, it
/// visits all their values for one lane before those for the next lane. So the rows of a lane stand
/// together. The same holds for metrics of policies, of classes and of devices.
pub(super) fn each<'m>(
    metrics: impl IntoIterator<Item = &'m Metric>,
    snapshot: &Snapshot<'_>,
    visit: &mut VisitValue<'_>,
) {
    let metrics: Vec<&Metric> = metrics.into_iter().collect();
    let is_same = |a: &&Metric, b: &&Metric| match (a.read, b.read) {
        (Read::Distribution(a, _), Read::Distribution(b, _)) => a == b,
        (a, b) => discriminant(&a) == discriminant(&b),
    };
    for metrics in metrics.chunk_by(is_same) {
        match metrics[0].read {
            Read::Server(_) => metrics.iter().for_each(|metric| metric.of_server(snapshot, visit)),
            Read::Lane(_) => {
                for lane in snapshot.lanes() {
                    metrics.iter().for_each(|metric| metric.of_lane(&lane, visit));
                }
            }
            Read::Class(_) => {
                for (class, latency) in snapshot.latencies.iter().flat_map(|all| all.classes()) {
                    metrics.iter().for_each(|metric| metric.of_class(class, latency, visit));
                }
            }
            Read::Distribution(of, _) => {
                for distributed in of.all(snapshot) {
                    metrics.iter().for_each(|metric| metric.of_distributed(&distributed, visit));
                }
            }
            Read::Policy(_) => {
                for policy in snapshot.policies.iter() {
                    metrics.iter().for_each(|metric| metric.of_policy(policy, visit));
                }
            }
        }
    }
}

/// Receives the labels of a histogram, the unit of its values, and the histogram.
pub(super) type VisitHistogram<'v> = dyn FnMut(&[(&str, &str)], MetricUnit, &Histogram) + 'v;

/// Calls `visit` with every histogram of a metric.
pub(super) fn each_histogram(
    metric: &Metric,
    snapshot: &Snapshot<'_>,
    visit: &mut VisitHistogram<'_>,
) {
    match metric.read {
        Read::Class(_) => {
            for (class, latency) in snapshot.latencies.iter().flat_map(|all| all.classes()) {
                visit(&[("command", class)], MetricUnit::Nanoseconds, latency);
            }
        }
        Read::Distribution(of, _) => {
            for distributed in of.all(snapshot) {
                visit(&distributed.labels(), of.unit(), &distributed.histogram);
            }
        }
        Read::Server(_) | Read::Lane(_) | Read::Policy(_) => {}
    }
}

impl Metric {
    fn of_server(&self, snapshot: &Snapshot<'_>, visit: &mut VisitValue<'_>) {
        if let Read::Server(read) = self.read
            && let Some(value) = read(snapshot)
        {
            visit(self, self.row, &[], value);
        }
    }

    fn of_lane(&self, lane: &LaneView<'_>, visit: &mut VisitValue<'_>) {
        if let Read::Lane(read) = self.read
            && let Some(value) = read(lane)
        {
            let number = lane.state.number.to_string();
            let labels = [("lane", number.as_str()), ("device", &lane.state.name)];
            visit(self, &self.row.replace('N', &number), &labels, value);
        }
    }

    fn of_class(&self, class: &str, latency: &Histogram, visit: &mut VisitValue<'_>) {
        if let Read::Class(read) = self.read
            && let Some(value) = read(latency)
        {
            visit(self, &self.row.replace("CLASS", class), &[("command", class)], value);
        }
    }

    fn of_distributed(&self, distributed: &Distributed, visit: &mut VisitValue<'_>) {
        if let Read::Distribution(_, read) = self.read
            && let Some(value) = read(&distributed.histogram)
        {
            let row = self.row.replace('N', &distributed.place());
            visit(self, &row, &distributed.labels(), value);
        }
    }

    fn of_policy(&self, policy: &Policy, visit: &mut VisitValue<'_>) {
        if let Read::Policy(read) = self.read
            && let Some(value) = read(policy)
        {
            let labels = [("policy", policy.name.as_str())];
            visit(self, &self.row.replace("NAME", &policy.name), &labels, value);
        }
    }
}
