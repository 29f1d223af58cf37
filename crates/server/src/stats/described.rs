//! The table of metrics without values, for programs that show `stats` rows of any server.

use serde::Serialize;

use super::metric::Metric;
use super::table;

/// A metric, without its value.
#[derive(Debug, Serialize)]
pub(crate) struct DescribedMetric {
    /// The group of `stats`; empty for `stats` without a group.
    group: &'static str,
    /// The name of the row. `N` stands for the number of a lane, with `:lower` for its lower
    /// device. `NAME` stands for the name of a policy, and `CLASS` for a class of commands.
    row: &'static str,
    /// The name on `/metrics`; empty if the row has none there, or only a name of the memcached
    /// exporter.
    name: &'static str,
    kind: &'static str,
    unit: &'static str,
    /// How the values of several servers become one: `sum`, `largest`, or `apart` if they stay
    /// separate.
    joined: &'static str,
    help: &'static str,
}

impl From<&'static Metric> for DescribedMetric {
    fn from(metric: &'static Metric) -> DescribedMetric {
        DescribedMetric {
            group: metric.group,
            row: metric.row,
            name: metric.name,
            kind: metric.kind.name(),
            unit: metric.unit.name(),
            joined: metric.joined.name(),
            help: metric.help,
        }
    }
}

/// Returns all metrics, in the order of `stats`.
pub(crate) fn described() -> Vec<DescribedMetric> {
    table::all().map(DescribedMetric::from).collect()
}
