//! The table of metrics. `stats`, `/metrics`, `/v1/stats`, `/v1/metrics` and the tables of
//! `docs/metrics.md` are made from it, so a row that is added here appears in all of them. However,
//! `/metrics` shows only rows with a name, and `/v1/stats` only rows of some groups.

mod durability;
mod groups;
mod larder;
mod latency;
mod limits;
mod memcached;
mod store;

use super::metric::Metric;

/// Returns all metrics, in the order of `stats`.
pub(super) fn all() -> impl Iterator<Item = &'static Metric> + Clone {
    [
        memcached::METRICS,
        store::MEMCACHED,
        larder::SERVER,
        store::METRICS,
        larder::MEMORY,
        larder::LOOPS,
        groups::ITEMS,
        groups::SLABS,
        limits::METRICS,
        latency::METRICS,
        durability::COMMIT_WAITS,
        durability::COMMIT_BYTES,
        durability::SYNCS,
        durability::WRITES,
        durability::READS,
    ]
    .into_iter()
    .flatten()
}
