//! The statistics of `stats`, the metrics and the status page. All of them are read from counters
//! that the workers write without synchronizing with readers, so no lock of the data path is held.
//! Names and order of the rows are memcached's, because exporters and clients parse them. Rows of
//! mechanisms that Larder does not have show 0. Larder's own rows begin with `larder_`.

mod general;
mod groups;
mod limits;
mod rows;
mod settings;
#[cfg(test)]
mod tests;
mod totals;

use crate::server::Running;
use rows::Row;
pub(crate) use totals::NetTotals;

/// Calls `row` for every row of a group; the empty name is the general group. Returns false without
/// any row if the group does not exist.
pub(crate) fn group(running: &Running, group: &[u8], row: &mut Row<'_>) -> bool {
    match group {
        b"" => general::rows(running, row),
        b"settings" => settings::rows(running, row),
        b"items" => groups::items(running, row),
        b"slabs" => groups::slabs(running, row),
        b"sizes" => row("sizes_status", format_args!("disabled")),
        b"limits" => limits::rows(running, row),
        b"conns" => groups::connections(running, row),
        // memcached without a flash tier shows no rows either.
        b"extstore" => {}
        _ => return false,
    }
    true
}
