//! The experiment of the article of 2021: what does it cost to keep the data? It measures inserts,
//! reads and mixes of both, with persistence off, asynchronous and synchronous. Keys, values and
//! mixes are those of memtier_benchmark in the article.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use super::memtier::Memtier;
use super::{Case, Experiment, overwrites};
use crate::generator::{Load, Summary};
use crate::lab::plan::Plan;
use crate::lab::record::{Point, SecondRow, Span};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::workload::{Lengths, Mix, Shape, Verb};
use crate::{Error, Result, complain};

/// Bytes of a value, as in the article.
const VALUE: usize = 50;
/// Requests in flight per connection in [`fill_rest`].
const FILL_DEPTH: usize = 16;

/// The mixes of sets and gets, as `sets:gets`.
const MIXES: [(&str, &str); 4] =
    [("retrieve", "0:1"), ("mixed-1-9", "1:9"), ("mixed-3-7", "3:7"), ("mixed-5-5", "5:5")];
/// The mix after which the experiment checks that the server keeps the new values of overwritten
/// items.
const LAST_MIX: &str = MIXES[MIXES.len() - 1].0;

#[derive(Debug)]
pub(crate) struct Persistence;

impl Experiment for Persistence {
    fn id(&self) -> &'static str {
        "persistence"
    }

    fn title(&self) -> &'static str {
        "Persistence"
    }

    fn question(&self) -> &'static str {
        "How much throughput and latency does it cost to keep the data on a device?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        let Plan { persistence: sizes, time, load_threads, .. } = plan;
        vec![
            format!(
                "{} connections of {load_threads} generator threads, closed loop without pipelines, \
                 as memtier_benchmark in the article",
                sizes.connections
            ),
            format!(
                "up to {} keys memtier-1…, values of {VALUE} bytes; inserted in parallel ranges, \
                 then drawn uniformly",
                sizes.keys
            ),
            format!(
                "{:.1} s per point; every value is checked against its key; after {LAST_MIX} some \
                 thousand items get other values, which are read back",
                time.as_secs_f64()
            ),
            format!(
                "memory limit {} MiB where a server has one, {} server threads",
                sizes.memory, plan.server_threads
            ),
            match Memtier::find() {
                Some(_) => format!(
                    "memtier-…: the same by memtier_benchmark, in the first round, {load_threads} \
                     threads, whole seconds without warm-up, --distinct-client-seed --randomize; it \
                     speaks to systems of memcached's protocol, Redis and Valkey, and checks no value"
                ),
                None => "memtier_benchmark was not found, so it drives no points".to_owned(),
            },
        ]
    }

    fn takes(&self, system: &System) -> bool {
        system.takes_any_load() && system.id != "cassandra-grouped"
    }

    fn cases(&self, plan: &Plan, system: &System, round: usize) -> Vec<Case> {
        let mut cases = vec![("insert", None)];
        cases.extend(MIXES.map(|(case, _)| (case, None)));
        if round == 1 && !plan.persistence.timeline.is_zero() {
            cases.push(("timeline", None));
        }
        if round == 1 && Memtier::knows(system) && Memtier::find().is_some() {
            cases.extend(Memtier::CASES.map(|(case, _)| (case, None)));
        }
        cases
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        let sizes = &plan.persistence;
        let sandbox = sandbox(plan, directory, sizes.memory, sizes.connections + 8)?;
        // An item is a key of at most 16 bytes, its value and overhead. 1000 bytes per item leave
        // room for several overwrites.
        Ok(Sandbox { disk: ((sizes.keys * 1000) >> 20) + 1024, value_max: VALUE, ..sandbox })
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        let sizes = turn.plan.persistence.clone();
        let shape = Shape {
            keys: sizes.keys,
            prefix: "memtier-".into(),
            key_lengths: Lengths::NATURAL,
            value_lengths: Lengths { min: VALUE, max: VALUE },
            ..Shape::default()
        };
        let load = Load {
            connections: sizes.connections,
            threads: turn.plan.load_threads,
            verify: true,
            ..turn.load()
        };
        let mut inserted = 0;
        turn.point_of("insert", None, |turn, point_id| {
            let run = || insert(&load, &shape, sizes.insert);
            let (summary, checkpoints) = turn.server.watch_checkpoints(run);
            let summary = summary?;
            inserted = summary.total.hits;
            let point = Point::of_load(point_id, &summary).with("inserted", inserted as f64);
            Ok(through_time(point, &summary, &checkpoints))
        })?;
        if inserted < sizes.keys {
            fill_rest(&Load { pipeline: turn.depth(FILL_DEPTH), ..load.clone() }, &shape)?;
        }
        for (case, mix) in MIXES {
            let shape = Shape { mix: mix.parse()?, ..shape.clone() };
            turn.point(case, None, |point_id| {
                let point = Point::of_load(point_id, &load.run(shape.clone())?.without_errors()?);
                if case == LAST_MIX { overwrites::checked(point, &load, &shape) } else { Ok(point) }
            })?;
        }
        if turn.round == 1 && !sizes.timeline.is_zero() {
            let shape = Shape { mix: "1:9".parse()?, ..shape };
            let load = Load { duration: Some(sizes.timeline), ..load };
            turn.point_of("timeline", None, |turn, point_id| {
                let (summary, checkpoints) = turn.server.watch_checkpoints(|| load.run(shape));
                let summary = summary?.without_errors()?;
                let point = Point::of_load(point_id, &summary);
                Ok(through_time(point, &summary, &checkpoints))
            })?;
        }
        // memtier_benchmark stores values that do not match their keys, and the loads above check
        // that they do. So its cases come last.
        if let (1, true, Some(memtier)) = (turn.round, Memtier::knows(turn.system), Memtier::find())
        {
            for (case, ratio) in Memtier::CASES {
                turn.point_of(case, None, |turn, point_id| {
                    let inserts = case == Memtier::CASES[0].0;
                    let time = if inserts { sizes.insert } else { turn.plan.time };
                    memtier.run(turn, point_id, ratio, time, VALUE)
                })?;
            }
        }
        Ok(())
    }
}

/// Adds the figures of each second and the checkpoints to a point.
fn through_time(point: Point, summary: &Summary, checkpoints: &[Range<Instant>]) -> Point {
    let seconds = summary.per_second.iter().map(SecondRow::of).collect();
    Point { seconds, checkpoints: Span::within(summary, checkpoints), ..point }
}

/// Inserts the keys once. Each generator thread inserts a range of the keys in order. Ends when all
/// keys are stored or after `most`.
fn insert(load: &Load, shape: &Shape, most: Duration) -> Result<Summary> {
    if most == Duration::MAX {
        return load.run_once_through(shape, Verb::Set)?.without_errors();
    }
    let shape = Shape { mix: Mix::only(Verb::Set), in_order: true, ..shape.clone() };
    let load = Load { duration: Some(most), warm_up: Duration::ZERO, ..load.clone() };
    load.run(shape)?.without_errors()
}

/// Stores all keys, in pipelines and without measuring. Needed if the measured insert ended early,
/// or did not run because the journal has its point. Overwrites keys that exist.
fn fill_rest(load: &Load, shape: &Shape) -> Result<()> {
    let summary = load.run_once_through(shape, Verb::Set)?.without_errors()?;
    if summary.total.hits == 0 {
        return Err(Error::server("no key could be stored"));
    }
    complain!(
        "  stored the keys that the timed insert left out, at {:.0}/s",
        summary.requests_per_second
    );
    Ok(())
}
