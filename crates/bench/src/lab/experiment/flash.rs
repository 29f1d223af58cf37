//! Helpers for experiments whose values lie on a device. They fill the server, bound its page
//! cache, and check that gets read the device.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::generator::{Load, Summary};
use crate::lab::record::Point;
use crate::lab::run::Turn;
use crate::workload::{Lengths, Shape, Verb};

/// Page cache in MiB of servers whose values lie on a device. A larger page cache would serve reads
/// from memory instead of the device.
pub(super) const PAGE_CACHE: u64 = 32;
/// If the gets of a point read less than this part of a value from the device on average, the
/// values came from memory.
const FROM_MEMORY: f64 = 0.1;
/// The largest number of attempts to store items that extstore has dropped.
const PASSES: usize = 10;
/// For each value on the device, extstore keeps a small item in memory. An item whose value has
/// this length, in bytes, takes as much memory as such a small item.
const HEADER: Lengths = Lengths { min: 12, max: 12 };
/// Time for a server's background writes after a fill.
const SETTLE: Duration = Duration::from_millis(500);

/// The values that a server holds after a fill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// Bytes of a value.
    value: usize,
    /// True if values are read from a device because memory does not hold them.
    on_device: bool,
    /// The limit of the memory control group in bytes, if there is one.
    group: Option<u64>,
}

impl Filled {
    /// Stores every key, and gives the server time to write the items to its device. If values lie
    /// `on_device`, the page cache is bounded afterwards.
    pub(super) fn fill(
        turn: &Turn<'_>,
        load: &Load,
        shape: &Shape,
        on_device: bool,
    ) -> Result<Filled> {
        let many = Load { connections: 16, pipeline: turn.depth(4), threads: 1, ..load.clone() };
        match turn.system.family == "memcached" && turn.system.uses_flash() {
            true => fill_extstore(&many, shape)?,
            false => drop(many.run_once_through(shape, Verb::Set)?.without_errors()?),
        }
        thread::sleep(SETTLE);
        let group = if on_device { turn.server.tighten()? } else { None };
        Ok(Filled { value: shape.value_lengths.min, on_device, group })
    }

    /// Adds to a point the average number of bytes that a get read from the device, and the limit
    /// of the memory control group. If that average is less than [`FROM_MEMORY`] of a value's
    /// length, also adds the figure `from_memory`. Adds nothing if memory holds all values, or if
    /// the load had no gets.
    pub(super) fn note(&self, point: Point, summary: &Summary) -> Point {
        let gets = summary.verbs.get(Verb::Get.name()).map_or(0, |count| count.requests);
        let (Some(server), 1.., true) = (&summary.server, gets, self.on_device) else {
            return point;
        };
        let bytes = server.read as f64 / gets as f64;
        let point = point.with("device_bytes_per_get", bytes);
        let point = match self.group {
            Some(group) => point.with("group_bytes", group as f64),
            None => point,
        };
        match bytes < self.value as f64 * FROM_MEMORY {
            true => point.with("from_memory", 1.0),
            false => point,
        }
    }
}

/// Fills a memcached with extstore.
fn fill_extstore(load: &Load, shape: &Shape) -> Result<()> {
    // memcached keeps a small item in memory for each value on the device. If large items came
    // first, they would take all pages of memory. memcached moves pages to small items slowly, and
    // meanwhile evicts most items. So small items come first.
    let small = Shape { value_lengths: HEADER, ..shape.clone() };
    load.run_once_through(&small, Verb::Set)?.without_errors()?;
    // extstore drops items that arrive faster than its device writes. So the items are sent one at
    // a time, and missing ones are sent again.
    let single = Load { connections: 1, pipeline: 1, ..load.clone() };
    single.run_once_through(shape, Verb::Set)?.without_errors()?;
    for _ in 0..PASSES {
        thread::sleep(SETTLE);
        if single.run_once_through(shape, Verb::Add)?.without_errors()?.total.hits == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{ServerUse, VerbCount};
    use crate::lab::record::{Figures, PointId};

    fn noted(on_device: bool, gets: u64, read: u64) -> Point {
        let point_id = PointId { system: "s".into(), case: "c".into(), x: None, round: 1 };
        let mut summary = Summary::default();
        let count = VerbCount { requests: gets, ..VerbCount::default() };
        summary.verbs.insert(Verb::Get.name(), count);
        summary.server = Some(ServerUse { read, ..ServerUse::default() });
        let filled = Filled { value: 1000, on_device, group: Some(5) };
        filled.note(Point::new(point_id, Figures::default()), &summary)
    }

    #[test]
    fn points_that_did_not_read_the_device_are_marked() {
        let extra = noted(true, 100, 200_000).extra;
        assert!((extra["device_bytes_per_get"] - 2000.0).abs() < 1e-9);
        assert!((extra["group_bytes"] - 5.0).abs() < 1e-9);
        assert!(!extra.contains_key("from_memory"));
        assert!(noted(true, 100, 9999).extra.contains_key("from_memory"));
        assert!(!noted(true, 100, 10_000).extra.contains_key("from_memory"));
        assert!(noted(false, 100, 0).extra.is_empty());
        assert!(noted(true, 0, 0).extra.is_empty(), "writes only");
    }
}
