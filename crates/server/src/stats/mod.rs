//! What `stats`, the metrics and the status page show. Everything is read from counters that the
//! workers write without looking at the reader, so no lock of the data path is held. Names and
//! order of the rows are memcached's, because exporters and clients read them; rows of mechanisms
//! that do not exist here stay, with 0. Larder's own rows begin with `larder_`.

mod general;
mod groups;
mod rows;
mod settings;
#[cfg(test)]
mod tests;
mod totals;

use crate::server::Running;
use rows::Row;
pub(crate) use totals::NetTotals;

/// Calls `row` for every row of a group; the empty name is the general group. False, without
/// any row, for a group that does not exist.
pub(crate) fn group(running: &Running, group: &[u8], row: &mut Row<'_>) -> bool {
    match group {
        b"" => general::rows(running, row),
        b"settings" => settings::rows(running, row),
        b"items" => groups::items(running, row),
        b"slabs" => groups::slabs(running, row),
        b"sizes" => row("sizes_status", format_args!("disabled")),
        b"conns" => groups::connections(running, row),
        // There is no flash tier; memcached without one answers an empty list.
        b"extstore" => {}
        _ => return false,
    }
    true
}
