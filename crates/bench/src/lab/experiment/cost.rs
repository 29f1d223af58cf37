//! What a request and an item cost: processor time, memory, and bytes on the device.

use std::path::Path;

use super::{Case, Experiment};
use crate::Result;
use crate::generator::Load;
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::workload::{Lengths, Mix, Shape, Verb};

/// Bytes of a key and of a value.
const KEY: usize = 15;
const VALUE: usize = 50;
/// Number of items.
const KEYS: u64 = 50_000;
/// Memory limit of each server in MiB: large enough for all items, so servers evict none.
const MEMORY: u64 = 256;
const CONNECTIONS: usize = 32;
/// Requests in flight per connection in the pipelined cases.
const PIPELINE: usize = 16;

/// The cases after the fill: the name, the verb and the requests in flight.
const LOADS: [(&str, Verb, usize); 4] = [
    ("get", Verb::Get, 1),
    ("set", Verb::Set, 1),
    ("get-pipelined", Verb::Get, PIPELINE),
    ("set-pipelined", Verb::Set, PIPELINE),
];

#[derive(Debug)]
pub(crate) struct Cost;

impl Experiment for Cost {
    fn id(&self) -> &'static str {
        "cost"
    }

    fn title(&self) -> &'static str {
        "Cost"
    }

    fn question(&self) -> &'static str {
        "How much processor time does a request cost, and how much memory and device an item?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        vec![
            format!("{KEYS} items, keys of {KEY} bytes, values of {VALUE} bytes"),
            "items: all keys stored once; memory per item is the growth of resident memory, so memory \
             from the start does not count; PostgreSQL has none, because the kernel does not tell its \
             shared memory apart; flash per item is the growth of the blocks of its files"
                .to_owned(),
            format!(
                "get, set: {CONNECTIONS} connections, closed loop; pipelined: {PIPELINE} requests \
                 in flight per connection; Cassandra takes no pipelines"
            ),
            "written per byte: bytes the server wrote to files, by bytes of keys and values set; a \
             server that writes later than the point ends looks cheaper than it is"
                .to_owned(),
            format!("{:.1} s per point", time(plan).as_secs_f64()),
            plan.threads(),
        ]
    }

    fn rounds(&self, _: &Plan) -> usize {
        1
    }

    fn takes(&self, system: &System) -> bool {
        system.takes_any_load()
    }

    fn cases(&self, _: &Plan, system: &System, _: usize) -> Vec<Case> {
        let ordered = system.family != "Cassandra";
        let loads = LOADS.iter().filter(|load| ordered || load.2 == 1);
        std::iter::once(("items", None)).chain(loads.map(|load| (load.0, None))).collect()
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        let sandbox = sandbox(plan, directory, MEMORY, CONNECTIONS + 8)?;
        Ok(Sandbox { value_max: VALUE, ..sandbox })
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        let shape = Shape {
            keys: KEYS,
            key_lengths: Lengths { min: KEY, max: KEY },
            value_lengths: Lengths { min: VALUE, max: VALUE },
            ..Shape::default()
        };
        let load = Load {
            connections: CONNECTIONS,
            threads: turn.plan.load_threads,
            duration: Some(time(turn.plan)),
            verify: true,
            ..turn.load()
        };
        let before = (turn.server.probe().sample()?.rss, turn.server.disk_used());
        let many = Load { pipeline: turn.depth(PIPELINE), ..load.clone() };
        let filled = many.run_once_through(&shape, Verb::Set)?.without_errors()?;
        turn.point_of("items", None, |turn, point_id| {
            let per_item = |now: u64, then: u64| now.saturating_sub(then) as f64 / KEYS as f64;
            let point = Point::new(point_id, Figures::of(&filled)).with("items", KEYS as f64);
            let ram = per_item(turn.server.probe().sample()?.rss, before.0);
            // A page of PostgreSQL's shared buffers counts as resident only while a process that
            // has touched it runs. So PostgreSQL's resident memory says little.
            let ram = Some(ram).filter(|&ram| ram > 0.0 && turn.system.family != "PostgreSQL");
            let flash = Some(per_item(turn.server.disk_used(), before.1)).filter(|&b| b > 0.0);
            let both = [("ram_bytes_per_item", ram), ("flash_bytes_per_item", flash)];
            let known = both.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
            Ok(known.fold(point, |point, (name, bytes)| point.with(name, bytes)))
        })?;
        for (case, _) in self.cases(turn.plan, turn.system, turn.round) {
            let Some(&(_, verb, pipeline)) = LOADS.iter().find(|load| load.0 == case) else {
                continue;
            };
            let load = Load { pipeline, ..load.clone() };
            let shape = Shape { mix: Mix::only(verb), ..shape.clone() };
            turn.point(case, None, |point_id| {
                let point = Point::of_load(point_id, &load.run(shape)?.without_errors()?);
                let written = written_per_byte(&point.figures);
                Ok(if verb == Verb::Set { point.with("written_per_byte", written) } else { point })
            })?;
        }
        Ok(())
    }
}

/// Returns half of the plan's time per point: processor time per request needs few samples.
fn time(plan: &Plan) -> std::time::Duration {
    plan.time / 2
}

/// Returns the bytes that the server wrote per byte of keys and values that it was sent.
fn written_per_byte(figures: &Figures) -> f64 {
    let set = figures.rate * (KEY + VALUE) as f64;
    if set > 0.0 { figures.written_per_second / set } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_divided_by_keys_and_values() {
        let figures = Figures { rate: 10.0, written_per_second: 1300.0, ..Figures::default() };
        assert!((written_per_byte(&figures) - 2.0).abs() < 1e-9);
        assert!(written_per_byte(&Figures::default()).abs() < 1e-9);
    }
}
