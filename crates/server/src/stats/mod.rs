//! The statistics of `stats`, the metrics and the status page. One table of metrics (`table/`) is
//! their only source. All figures are read from counters that the workers write without
//! synchronizing with readers. Only the numbers of free places and of copies are read under locks.
//! Requests take these locks when they open a segment or keep a copy.

mod connections;
mod described;
mod distribution;
#[cfg(test)]
mod document;
mod exporter;
mod groups;
mod metric;
mod prometheus;
mod rows;
mod settings;
mod slow;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod totals;

pub(crate) use described::described;
pub(crate) use groups::{group, metric_groups};
pub(crate) use totals::NetTotals;

/// Returns all metrics in Prometheus' text format.
pub(crate) fn prometheus(running: &crate::server::Running) -> String {
    prometheus::text(&snapshot::Snapshot::ever(running))
}
