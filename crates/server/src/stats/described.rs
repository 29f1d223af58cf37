//! The table of metrics without values, for programs that show `stats` rows of any server.

use serde::Serialize;

use super::metric::Metric;
use super::table;

/// A metric, without its value.
#[derive(Debug, Serialize)]
pub(crate) struct DescribedMetric {
    /// The group of `stats` that shows the metric. Empty for `stats` without a group.
    group: &'static str,
    /// The name of the row in `stats`. In it, `N` stands for the number of a lane, and for this
    /// number with `:lower` if the row is about the lane's lower device. `NAME` stands for the name
    /// of a policy, and `CLASS` for a class of commands.
    row: &'static str,
    /// The metric's own name on `/metrics`. Empty if `/metrics` lacks the metric, or shows it only
    /// under names of the memcached exporter.
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
