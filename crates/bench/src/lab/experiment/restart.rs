//! Which items survive `kill -9`, and how long does the server take to answer after a restart?

use std::path::Path;
use std::time::Instant;

use super::{Case, Experiment};
use crate::Result;
use crate::generator::{Load, Pacing};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, SecondRow};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Durability, Sandbox, System};
use crate::workload::{Lengths, Shape, Verb};

/// Bytes of a value.
const VALUE: usize = 100;
/// Requests per second of the measurement after the restart.
const RATE: f64 = 2000.0;

#[derive(Debug)]
pub(crate) struct Restart;

impl Experiment for Restart {
    fn id(&self) -> &'static str {
        "restart"
    }

    fn title(&self) -> &'static str {
        "Restart"
    }

    fn question(&self) -> &'static str {
        "What is left after kill -9, and how soon does the server answer again?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        vec![
            format!("x items of {VALUE} bytes are stored and acknowledged, then kill -9 at once"),
            "ready: from the start of the process to its first answer: to version (memcached's \
             protocol), PING (Redis, Valkey), a login (PostgreSQL), OPTIONS (Cassandra), isMaster \
             (MongoDB), or a new connection (MariaDB)"
                .to_owned(),
            "survived: keys found when all are read once, before other load".to_owned(),
            format!(
                "first gets: {RATE} gets/s, open loop, for {:.1} s after the count; the page cache \
                 is warm",
                plan.restart.after.as_secs_f64()
            ),
        ]
    }

    fn rounds(&self, _: &Plan) -> usize {
        1
    }

    fn takes(&self, system: &System) -> bool {
        system.takes_any_load()
    }

    fn cases(&self, plan: &Plan, _: &System, _: usize) -> Vec<Case> {
        plan.restart.keys.iter().map(|&keys| ("kill", Some(keys as f64))).collect()
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        let keys = plan.restart.keys.iter().max().copied().unwrap_or(0);
        let memory = ((keys * 600) >> 20) + 128;
        let sandbox = sandbox(plan, directory, memory, 80)?;
        Ok(Sandbox { disk: ((keys * 1000) >> 20) + 1024, value_max: VALUE, ..sandbox })
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        for keys in turn.plan.restart.keys.clone() {
            let x = Some(keys as f64);
            if !turn.is_missing("kill", x) {
                continue;
            }
            let shape = Shape {
                keys,
                value_lengths: Lengths { min: VALUE, max: VALUE },
                ..Shape::default()
            };
            let many =
                Load { connections: 64, pipeline: turn.depth(4), verify: true, ..turn.load() };
            let filled = many.run_once_through(&shape, Verb::Set)?.without_errors()?;
            let is_sync = turn.system.durability == Durability::Sync;
            turn.server.kill();
            let started = Instant::now();
            turn.server.start_again()?;
            let ready = started.elapsed();
            let load = Load { probe: Some(turn.server.probe()), ..many };
            let after = turn.plan.restart.after;
            turn.point("kill", x, |point_id| {
                let counted = load.run_once_through(&shape, Verb::Get)?.without_errors()?;
                let gentle = Load {
                    connections: 50,
                    pipeline: 1,
                    pacing: Pacing::Poisson(RATE),
                    duration: Some(after),
                    ..load.clone()
                };
                let summary = gentle.run(shape)?.without_errors()?;
                let seconds = summary.per_second.iter().map(SecondRow::of).collect();
                let point = Point::new(point_id, Figures::of(&summary))
                    .with("acknowledged", filled.total.hits as f64)
                    .with("survived", counted.total.hits as f64)
                    .with("ready_ms", ready.as_secs_f64() * 1000.0)
                    .with("first_minute_p99_us", summary.latency.get("p99"));
                let lost = filled.total.hits.saturating_sub(counted.total.hits);
                let void = (is_sync && lost > 0)
                    .then(|| format!("{lost} acknowledged items were lost although it is sync"));
                Ok(Point { seconds, void, ..point })
            })?;
        }
        Ok(())
    }
}
