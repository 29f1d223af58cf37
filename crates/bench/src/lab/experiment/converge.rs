//! The experiment of the article of 2024: are caches and databases converging? It counts the items
//! that fit into memory. It measures reads from memory and from disk, reads from disk mixed
//! with writes, and overwrites.

use std::path::Path;

use super::flash::{Filled, PAGE_CACHE};
use super::{Case, Experiment, overwrites};
use crate::generator::{Load, Summary};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::workload::{Lengths, Shape, Verb};
use crate::{Error, Result};

/// Bytes of a key, as long as the longest keys of the article.
const KEY: usize = 12;
/// Bytes of a small value, as in the article.
const SMALL: usize = 1000;
/// Bytes of a large value.
const LARGE: usize = 8192;
/// The numbers of requests in flight per connection to measure with.
const DEPTHS: [usize; 2] = [1, 16];

/// The parts of the experiment. Each part needs servers with other limits or other items, so each
/// part has its own turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvergePart {
    /// The number of items that fit into memory.
    Fit,
    /// Reads of items in memory.
    Ram,
    /// Reads and writes of small values on disk.
    DiskSmall,
    /// Reads of large values on disk.
    DiskLarge,
}

#[derive(Debug)]
pub(crate) struct Converge(pub(crate) ConvergePart);

impl Experiment for Converge {
    fn id(&self) -> &'static str {
        "converge"
    }

    fn title(&self) -> &'static str {
        "Caches and databases"
    }

    fn question(&self) -> &'static str {
        "Does a cache that uses disks, or a database that caches, serve reads as well as the other?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        let sizes = &plan.converge;
        vec![
            format!("keys of {KEY} bytes; values of {SMALL} bytes, large ones of {LARGE}"),
            format!(
                "fit: more items are stored than a limit of {} MiB can hold; all are read back, and \
                 the hits are the items held",
                sizes.fit_memory
            ),
            format!("read-ram: {} items that fit", sizes.ram_keys),
            format!(
                "disk: {} MiB of values, a memory limit of {} MiB, and {PAGE_CACHE} MiB of page \
                 cache where the lab may set a memory control group; each point says how many bytes \
                 a get read from the device",
                sizes.disk_bytes >> 20,
                sizes.disk_memory
            ),
            "overwrite: afterwards some thousand items get other values, which are read back"
                .to_owned(),
            format!(
                "{} connections, closed loop: the question is the highest rate; x is the number of \
                 requests in flight per connection",
                sizes.connections
            ),
            plan.threads(),
        ]
    }

    fn rounds(&self, plan: &Plan) -> usize {
        plan.long_rounds
    }

    fn takes(&self, system: &System) -> bool {
        let on_disk = matches!(
            system.id,
            "larder-flash"
                | "memcached-extstore"
                | "cassandra-periodic"
                | "cassandra-grouped"
                | "postgres"
                | "mariadb-innodb"
        );
        match self.0 {
            // Databases do not evict.
            ConvergePart::Fit => {
                matches!(system.id, "larder" | "memcached" | "redis" | "valkey" | "arcus")
            }
            ConvergePart::Ram => system.takes_any_load(),
            ConvergePart::DiskSmall | ConvergePart::DiskLarge => on_disk,
        }
    }

    fn cases(&self, plan: &Plan, system: &System, round: usize) -> Vec<Case> {
        // Cassandra may answer the requests of a connection in another order than it received them,
        // so the generator sends it no pipelines.
        let depths = if system.family == "Cassandra" { &DEPTHS[..1] } else { &DEPTHS };
        let both = |case| depths.iter().map(move |&depth| (case, Some(depth as f64)));
        match self.0 {
            ConvergePart::Fit if round > 1 => Vec::new(),
            ConvergePart::Fit => vec![("fit", Some(plan.converge.fit_memory as f64))],
            ConvergePart::Ram => both("read-ram").collect(),
            ConvergePart::DiskLarge => both("read-disk-8k").collect(),
            ConvergePart::DiskSmall => {
                let writes = [("mixed-read", Some(1.0)), ("overwrite", Some(1.0))];
                both("read-disk-1k").chain(writes).collect()
            }
        }
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        let sizes = &plan.converge;
        let (memory, bytes) = match self.0 {
            ConvergePart::Fit => (sizes.fit_memory, 0),
            ConvergePart::Ram => (((sizes.ram_keys * 2000) >> 20) + 64, sizes.ram_keys * 1300),
            ConvergePart::DiskSmall | ConvergePart::DiskLarge => {
                (sizes.disk_memory, sizes.disk_bytes * 3)
            }
        };
        let sandbox = sandbox(plan, directory, memory, sizes.connections + 8)?;
        Ok(Sandbox {
            disk: ((bytes * 2) >> 20) + 1024,
            page_cache: self.is_on_disk().then_some(PAGE_CACHE),
            value_max: self.value(),
            ..sandbox
        })
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        let sizes = turn.plan.converge.clone();
        let keys = match self.0 {
            ConvergePart::Fit => (sizes.fit_memory << 20) / (KEY + SMALL) as u64 * 3 / 2,
            ConvergePart::Ram => sizes.ram_keys,
            ConvergePart::DiskSmall | ConvergePart::DiskLarge => {
                sizes.disk_bytes / self.value() as u64
            }
        };
        let shape = Shape {
            keys,
            prefix: "k".into(),
            key_lengths: Lengths { min: KEY, max: KEY },
            value_lengths: Lengths { min: self.value(), max: self.value() },
            ..Shape::default()
        };
        let base = Load {
            connections: sizes.connections,
            threads: turn.plan.load_threads,
            verify: true,
            ..turn.load()
        };
        let filled = Filled::fill(turn, &base, &shape, self.is_on_disk())?;
        for (case, x) in self.cases(turn.plan, turn.system, turn.round) {
            let load = Load { pipeline: x.unwrap_or(1.0) as usize, ..base.clone() };
            let of = |mix: &str| Ok::<_, Error>(Shape { mix: mix.parse()?, ..shape.clone() });
            turn.point(case, x, |point_id| match case {
                "fit" => fit(point_id, &Load { pipeline: DEPTHS[1], ..base.clone() }, &shape),
                "mixed-read" => run(point_id, &load, of("1:9")?, &filled),
                "overwrite" => {
                    let point = run(point_id, &load, of("1:0")?, &filled)?;
                    overwrites::checked(point, &load, &shape)
                }
                _ => run(point_id, &load, of("0:1")?, &filled),
            })?;
        }
        Ok(())
    }
}

impl Converge {
    fn is_on_disk(&self) -> bool {
        matches!(self.0, ConvergePart::DiskSmall | ConvergePart::DiskLarge)
    }

    fn value(&self) -> usize {
        if self.0 == ConvergePart::DiskLarge { LARGE } else { SMALL }
    }
}

/// Reads every key once. The hits are the items that the server holds.
fn fit(point_id: PointId, load: &Load, shape: &Shape) -> Result<Point> {
    fitted(point_id, &load.run_once_through(shape, Verb::Get)?.without_errors()?)
}

/// Returns the point of a server, from a run that has read every key once.
///
/// # Errors
/// Returns [`Error::Void`] if the server has lost every item.
fn fitted(point_id: PointId, summary: &Summary) -> Result<Point> {
    if summary.total.hits == 0 {
        return Err(Error::Void("the server lost all items".into()));
    }
    let items = summary.total.hits as f64;
    let memory = point_id.x.unwrap_or_default() * f64::from(1 << 20);
    let resident = summary.server.map_or(0, |server| server.rss_after) as f64;
    let point = Point::new(point_id, Figures::of(summary));
    Ok(point
        .with("items", items)
        .with("bytes_per_item", memory / items)
        .with("items_per_gib_resident", items * f64::from(1 << 30) / resident.max(1.0)))
}

fn run(point_id: PointId, load: &Load, shape: Shape, filled: &Filled) -> Result<Point> {
    let summary = load.run(shape)?.without_errors()?;
    Ok(filled.note(Point::of_load(point_id, &summary), &summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_lost_everything_has_no_figure() {
        let point_id =
            || PointId { system: "arcus".into(), case: "fit".into(), x: Some(1.0), round: 1 };
        let mut summary = Summary::default();
        let error = fitted(point_id(), &summary).unwrap_err();
        assert!(matches!(&error, Error::Void(why) if why.contains("lost all items")), "{error}");
        summary.total.hits = 512;
        let point = fitted(point_id(), &summary).unwrap();
        assert_eq!((point.extra["items"], point.extra["bytes_per_item"]), (512.0, 2048.0));
    }
}
