//! The experiment of the article of 2015: how often per second can clients increment one counter
//! and read its new value? The article used one Ruby thread per client. The case `blocking` uses
//! one thread of the generator per client.

use std::path::Path;

use larder_client::{Client, Options};

use super::{Case, Experiment, active_record};
use crate::generator::{Load, Summary};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::wire::Caller;
use crate::workload::{FIRST_COUNTER, Mix, Shape, Verb};
use crate::{Error, Result};

/// Memory limit of each server in MiB. The data is one counter.
const MEMORY: u64 = 256;
/// Requests in flight per connection in the pipelined case.
const PIPELINE: usize = 16;

#[derive(Debug)]
pub(crate) struct Counter;

impl Experiment for Counter {
    fn id(&self) -> &'static str {
        "counter"
    }

    fn title(&self) -> &'static str {
        "Rate-limit counters"
    }

    fn question(&self) -> &'static str {
        "How many times per second can clients increment one counter and read its new value?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        vec![
            "one key; every request increments it by 1 and returns the new value".to_owned(),
            "closed loop, as in the article".to_owned(),
            format!(
                "event: one generator thread for all connections; blocking: a thread per \
                 connection; pipeline: {PIPELINE} requests in flight per connection"
            ),
            format!(
                "{:.1} s per point after {:.1} s of warm-up, {} server threads where a server has \
                 such a setting, no pinning",
                plan.time.as_secs_f64(),
                plan.warm_up.as_secs_f64(),
                plan.server_threads
            ),
            "every answer is checked: no number twice, none missing, the final value is right"
                .to_owned(),
        ]
    }

    fn takes(&self, system: &System) -> bool {
        system.family != "Cassandra" && !system.uses_flash()
    }

    fn cases(&self, plan: &Plan, system: &System, _: usize) -> Vec<Case> {
        let each = |case: &'static str, list: &[usize]| -> Vec<Case> {
            list.iter().map(|&clients| (case, Some(clients as f64))).collect()
        };
        let clients = &plan.counter.clients;
        if system.is_loaded_by_ruby() {
            return each("blocking", clients);
        }
        let pipelined = each("pipeline", &plan.counter.pipelined);
        [each("event", clients), each("blocking", clients), pipelined].concat()
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        sandbox(plan, directory, MEMORY, 32)
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        for (case, x) in self.cases(turn.plan, turn.system, turn.round) {
            let clients = x.unwrap_or(1.0) as usize;
            if turn.system.is_loaded_by_ruby() {
                turn.point_of(case, x, |turn, point_id| {
                    active_record::measure(turn, clients, point_id)
                })?;
                continue;
            }
            let load = turn.load();
            let load = match case {
                "blocking" => {
                    Load { connections: clients, threads: clients, blocking: true, ..load }
                }
                "pipeline" => Load { connections: clients, pipeline: PIPELINE, ..load },
                _ => Load { connections: clients, ..load },
            };
            turn.point(case, x, |point_id| measure(&load, point_id))?;
        }
        Ok(())
    }
}

/// Sets the counter to 0 and runs the load. Checks all numbers that the increments returned, and
/// the counter's value after the load.
fn measure(load: &Load, point_id: PointId) -> Result<Point> {
    let shape = Shape { mix: Mix::only(Verb::Incr), keys: 1, ..Shape::default() };
    let mut counter = CounterConnection::open(load)?;
    counter.reset()?;
    let load = Load { collect_numbers: true, ..load.clone() };
    let summary = load.run(shape)?.without_errors()?;
    let value = counter.read()?;
    Ok(judged(point_id, &summary, value))
}

/// Returns the point of a load, with the counts that [`counted`] adds. `value` is the counter's
/// value after the load.
fn judged(point_id: PointId, summary: &Summary, value: u64) -> Point {
    let mut numbers = summary.numbers.clone();
    numbers.sort_unstable();
    let doubled = numbers.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    let acknowledged = numbers.len() as u64;
    numbers.dedup();
    let returned = numbers.iter().filter(|&number| (1..=acknowledged).contains(number)).count();
    let missing = acknowledged - returned as u64;
    let point = Point::new(point_id, Figures::of(summary));
    counted(point, Increments { acknowledged, counted: value, doubled, missing })
}

/// The counts that show whether a counter lost or doubled increments. The counter was 0 before the
/// first increment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Increments {
    /// Increments that were acknowledged.
    pub(super) acknowledged: u64,
    /// Increments in the counter's value after the last of them.
    pub(super) counted: u64,
    /// Numbers that were returned again.
    pub(super) doubled: u64,
    /// Numbers from 1 to `acknowledged` that were not returned.
    pub(super) missing: u64,
}

/// Adds the counts to a point. The point is void unless the increments returned exactly the numbers
/// from 1 to the counter's value.
pub(super) fn counted(point: Point, counts: Increments) -> Point {
    let Increments { acknowledged, counted, doubled, missing } = counts;
    let void = (counted != acknowledged || doubled > 0 || missing > 0).then(|| {
        format!(
            "{acknowledged} increments were acknowledged, {counted} were counted, {doubled} \
             numbers were returned twice, {missing} of the numbers from 1 to {acknowledged} were \
             not returned"
        )
    });
    let point = point
        .with("acknowledged", acknowledged as f64)
        .with("counted", counted as f64)
        .with("missing_updates", acknowledged.saturating_sub(counted) as f64)
        .with("duplicates", doubled as f64);
    Point { void, ..point }
}

/// A separate connection that sets the counter before the load and reads it after the load.
enum CounterConnection {
    Memcached(Client),
    Other(Caller),
}

impl CounterConnection {
    fn open(load: &Load) -> Result<CounterConnection> {
        Ok(match &load.wire {
            None => {
                CounterConnection::Memcached(Client::connect_to(&load.server, Options::default())?)
            }
            Some(wire) => CounterConnection::Other(Caller::connect(&load.server, wire.clone())?),
        })
    }

    fn reset(&mut self) -> Result<()> {
        match self {
            CounterConnection::Memcached(client) => Ok(client.set(FIRST_COUNTER, b"0", 0, 0)?),
            CounterConnection::Other(caller) => caller.reset_counter(FIRST_COUNTER),
        }
    }

    /// Returns the counter's value. Reads it by another increment, because not every system keeps
    /// counters where a get finds them.
    fn read(&mut self) -> Result<u64> {
        let next = match self {
            CounterConnection::Memcached(client) => client
                .incr(FIRST_COUNTER, 1)?
                .ok_or_else(|| Error::Void("the counter is gone after the run".to_owned()))?,
            CounterConnection::Other(caller) => caller.incr(FIRST_COUNTER)?,
        };
        Ok(next.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(numbers: &[u64], value: u64) -> Point {
        let point_id = PointId { system: "s".into(), case: "event".into(), x: None, round: 1 };
        let mut summary = Summary::default();
        summary.numbers = numbers.to_vec();
        judged(point_id, &summary, value)
    }

    #[test]
    fn lost_and_doubled_increments_make_a_point_void() {
        assert_eq!(point(&[2, 1, 3], 3).void, None);
        let lost = point(&[1, 2, 2, 3], 3);
        assert!(lost.void.is_some());
        assert_eq!((lost.extra["missing_updates"], lost.extra["duplicates"]), (1.0, 1.0));
        assert!(point(&[1, 2], 3).void.is_some());
        let skipped = point(&[1, 2, 4], 3).void.unwrap_or_default();
        assert!(skipped.contains("1 of the numbers from 1 to 3 were not returned"), "{skipped}");
        assert!(point(&[0, 1, 2], 3).void.is_some(), "the first increment returns 1");
    }
}
