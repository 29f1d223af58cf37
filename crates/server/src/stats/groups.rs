//! The groups of `stats`. In the groups that memcached has too, names and order of the rows are
//! memcached's, because exporters and clients parse them. There, Larder's own rows begin with
//! `larder_`.

use super::exporter::RowTexts;
use super::metric::each;
use super::rows::Row;
use super::snapshot::Snapshot;
use super::{connections, settings, slow, table};
use crate::server::Running;

/// The groups whose rows are metrics.
const METRIC_GROUPS: [&str; 7] =
    ["", "items", "slabs", "limits", "latency", "buckets", "durability"];

/// Calls `row` for every row of a group; the empty name is the general group. Returns false without
/// any row if the group does not exist.
pub(crate) fn group(running: &Running, group: &[u8], row: &mut Row<'_>) -> bool {
    match group {
        b"settings" => settings::rows(running, row),
        b"sizes" => row("sizes_status", format_args!("disabled")),
        b"conns" => connections::rows(running, row),
        b"slow" => slow::rows(running, row),
        // memcached without a flash tier shows no rows either.
        b"extstore" => {}
        _ => match METRIC_GROUPS.into_iter().find(|name| name.as_bytes() == group) {
            Some(group) => metric_groups(running, &[group], row),
            None => return false,
        },
    }
    true
}

/// Calls `row` for every row of these groups, which are some of [`METRIC_GROUPS`]. All rows come
/// from one snapshot.
pub(crate) fn metric_groups(running: &Running, groups: &[&str], row: &mut Row<'_>) {
    let snapshot = Snapshot::since_reset(running);
    groups.iter().for_each(|group| metric_rows(&snapshot, group, row));
}

fn metric_rows(snapshot: &Snapshot<'_>, group: &str, row: &mut Row<'_>) {
    let metrics = table::all().filter(|metric| metric.group == group);
    each(metrics, snapshot, &mut |_, name, _, value| row(name, format_args!("{value}")));
}

/// Returns the rows of `stats settings` or of a metric group, with the values of `snapshot`. The
/// map leads from the name of a row to its value as text.
pub(super) fn rows_of(snapshot: &Snapshot<'_>, group: &str) -> RowTexts {
    let mut rows = RowTexts::new();
    let mut put = |name: &str, value: std::fmt::Arguments<'_>| {
        rows.insert(name.to_owned(), value.to_string());
    };
    match group {
        "settings" => settings::rows(snapshot.running, &mut put),
        group => metric_rows(snapshot, group, &mut put),
    }
    rows
}
