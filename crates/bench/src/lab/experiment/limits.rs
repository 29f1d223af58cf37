//! How many rate-limit decisions per second does a system make, and does a limit admit exactly its
//! budget?

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Case, Experiment};
use crate::Result;
use crate::generator::{Load, Summary};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::workload::{Lengths, Limit, Mix, Shape, Verb};

/// Memory limit of each server in MiB.
const MEMORY: u64 = 256;
const CONNECTIONS: usize = 32;
/// The smallest number of requests of a point.
const REQUESTS: f64 = 1000.0;
/// Keys of the case `many`.
const KEYS: u64 = 20_000;
/// Requests in flight per connection while limits are created.
const PIPELINE: usize = 16;
/// The token bucket: its units per second, and the units that may be taken at once.
const RATE: u64 = 1000;
const BURST: u64 = 100;

#[derive(Debug)]
pub(crate) struct Limits;

impl Experiment for Limits {
    fn id(&self) -> &'static str {
        "limits"
    }

    fn title(&self) -> &'static str {
        "Rate limits"
    }

    fn question(&self) -> &'static str {
        "How many rate-limit decisions per second, and is exactly the budget admitted?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        vec![
            plan.threads(),
            format!(
                "{CONNECTIONS} connections, closed loop; a point has as many requests as the system \
                 answers in about {:.1} s, as a short run before it showed",
                plan.time.as_secs_f64()
            ),
            "fixed: one key, a fixed window of an hour; the budget is a quarter of the requests"
                .to_owned(),
            format!(
                "many: {KEYS} keys drawn uniformly, budgets that are never reached; one request has \
                 created each limit before the measurement"
            ),
            format!(
                "token-bucket: one key, {RATE} units/s, {BURST} at once; admitted must not exceed \
                 burst + rate × time, given as the budget"
            ),
            "Larder: one ma with B and N; Redis, Valkey: EVALSHA of one Lua script; PostgreSQL: \
             one upsert that refuses without taking"
                .to_owned(),
            "memcached, ARCUS, pogocache, MariaDB, MongoDB: one increment, and the client compares \
             the number with the budget, so refused requests count on. Where an increment creates no \
             counter, it is stored before the measurement: the libraries' add happens once per window"
                .to_owned(),
        ]
    }

    fn rounds(&self, _: &Plan) -> usize {
        1
    }

    fn takes(&self, system: &System) -> bool {
        system.family != "Cassandra" && system.takes_any_load()
    }

    fn cases(&self, _: &Plan, system: &System, _: usize) -> Vec<Case> {
        let mut cases = vec![("fixed", None), ("many", None)];
        if matches!(system.family, "Larder" | "Redis" | "Valkey") {
            cases.push(("token-bucket", None));
        }
        cases
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        sandbox(plan, directory, MEMORY, CONNECTIONS + 8)
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        let threads = turn.plan.load_threads;
        let load = Load { connections: CONNECTIONS, threads, ..turn.load() };
        let decides = match turn.wire() {
            Some(wire) => wire.speaks(Verb::Limit),
            None => turn.system.family == "Larder",
        };
        let verb = if decides { Verb::Limit } else { Verb::Incr };
        for (case, x) in self.cases(turn.plan, turn.system, turn.round) {
            if !turn.is_missing(case, x) {
                continue;
            }
            let keys = if case == "many" { KEYS } else { 1 };
            // The short run that determines the number of requests must not use up units of a limit
            // for one key. So its keys have another prefix than those of the cases with one key.
            let trial = shape(&format!("trial-{case}-"), verb, keys, Limit::default());
            create(turn, &load, &trial, decides)?;
            let count = requests(&load, &trial, turn.plan)?;
            let limit = match case {
                "fixed" => Limit { budget: count / 4, ..Limit::default() },
                "many" => Limit::default(),
                _ => Limit { budget: RATE, window: 1, burst: Some(BURST) },
            };
            let shape = match case {
                // The measurement uses the limits of the short run. They exist already, and have
                // enough units for both runs.
                "many" => trial,
                _ => shape(&format!("{case}-"), verb, keys, limit),
            };
            if case != "many" && !decides {
                load.run_once_through(&shape, Verb::SetCounter)?.without_errors()?;
            }
            turn.point(case, x, |point_id| {
                let load = Load {
                    duration: None,
                    requests: Some(count),
                    warm_up: Duration::ZERO,
                    collect_numbers: !decides,
                    ..load.clone()
                };
                let started = Instant::now();
                let summary = load.run(shape)?.without_errors()?;
                let bound = limit.bound(started.elapsed().as_secs_f64());
                Ok(judged(point_id, &summary, decides, bound))
            })?;
        }
        Ok(())
    }
}

fn shape(prefix: &str, verb: Verb, keys: u64, limit: Limit) -> Shape {
    let length = prefix.len() + 8;
    let key_lengths = Lengths { min: length, max: length };
    let mix = Mix::only(verb);
    Shape { mix, keys, prefix: prefix.to_owned(), key_lengths, limit, ..Shape::default() }
}

/// Creates all limits of the shape by one request to each, so that later loads of this shape create
/// none. If the client decides instead of the server, a limit is a counter, which must be stored
/// first.
fn create(turn: &Turn<'_>, load: &Load, shape: &Shape, decides: bool) -> Result<()> {
    let many = Load { pipeline: turn.depth(PIPELINE), ..load.clone() };
    if !decides {
        many.run_once_through(shape, Verb::SetCounter)?.without_errors()?;
    }
    many.run_once_through(shape, shape.mix.first())?.without_errors()?;
    Ok(())
}

/// Returns the number of requests of a point: the rate of a short run, times the planned time of a
/// point, but at least [`REQUESTS`].
fn requests(load: &Load, trial: &Shape, plan: &Plan) -> Result<u64> {
    let short = Load { duration: Some(plan.warm_up), warm_up: Duration::ZERO, ..load.clone() };
    let rate = short.run(trial.clone())?.without_errors()?.requests_per_second;
    Ok((rate * plan.time.as_secs_f64()).max(REQUESTS) as u64)
}

/// Returns the point. If the number of admitted requests is not what the limit requires, the point
/// is void. `bound` is the largest number of requests that the limit of one key may admit in the
/// run.
fn judged(point_id: PointId, summary: &Summary, decides: bool, bound: u64) -> Point {
    let total = &summary.total;
    let admitted = match decides {
        true => total.hits,
        false => summary.numbers.iter().filter(|&&number| number <= bound).count() as u64,
    };
    let due = bound.min(total.requests);
    let is_right = match point_id.case.as_str() {
        // `due` includes all units that the bucket gains until the end of the run. Requests that
        // come before the bucket has gained a unit are refused, so fewer than `due` may be
        // admitted. But the burst is available from the start, so at least `BURST` requests must be
        // admitted.
        "token-bucket" => (BURST.min(total.requests)..=due).contains(&admitted),
        _ => admitted == due,
    };
    let why = (!is_right).then(|| format!("{admitted} requests were admitted, {due} were due"));
    let limited = point_id.case != "many";
    let point = Point::new(point_id, Figures::of(summary)).with("admitted", admitted as f64);
    let point = point.with("over_admission", admitted.saturating_sub(due) as f64);
    Point { void: why, ..if limited { point.with("budget", bound as f64) } else { point } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(case: &str, admitted: u64, bound: u64) -> Point {
        let point_id = PointId { system: "s".into(), case: case.into(), x: None, round: 1 };
        let mut summary = Summary::default();
        summary.total.requests = 1000;
        summary.total.hits = admitted;
        judged(point_id, &summary, true, bound)
    }

    #[test]
    fn only_the_budget_is_right() {
        assert_eq!(point("fixed", 25, 25).void, None);
        assert!(point("fixed", 24, 25).void.is_some());
        assert!((point("fixed", 27, 25).extra["over_admission"] - 2.0).abs() < 1e-9);
        assert_eq!(point("many", 1000, 5000).void, None);
        assert_eq!(point("token-bucket", BURST + 20, BURST + 25).void, None);
        assert!(point("token-bucket", BURST + 26, BURST + 25).void.is_some());
        assert!(point("token-bucket", BURST - 1, BURST + 25).void.is_some(), "all were refused");
    }
}
