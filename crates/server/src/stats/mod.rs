//! The statistics of `stats`, of `/metrics` and of the admin page. One table of metrics (`table/`)
//! is their source, except for `stats settings`, `stats conns` and `stats slow`. Reading almost any
//! metric takes no lock that requests take, because the workers write the counters without
//! synchronizing with readers. The exceptions are the numbers of free places and of copies. The
//! reader takes locks for them that a request takes when it opens a segment or keeps a copy of a
//! record.

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
