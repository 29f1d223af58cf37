//! The experiment of the article of 2019: what happens to latency when values lie on flash?
//! Hundreds of connections send single gets at an offered rate. In the case `cloud`, a separate
//! connection records every latency.

use std::path::Path;
use std::thread;

use super::flash::{Filled, PAGE_CACHE};
use super::{Case, Experiment};
use crate::generator::{Load, Pacing, Summary};
use crate::lab::plan::Plan;
use crate::lab::record::{Point, PointId, Samples};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::workload::{Lengths, Shape};
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct Cliff;

impl Experiment for Cliff {
    fn id(&self) -> &'static str {
        "cliff"
    }

    fn title(&self) -> &'static str {
        "Riding the cliff"
    }

    fn question(&self) -> &'static str {
        "How do latencies grow with the request rate when values lie on flash instead of RAM?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        let sizes = &plan.cliff;
        vec![
            format!(
                "{} keys, values of {} bytes, uniform; single gets on {} connections, open loop with \
                 Poisson arrivals: latency counts from the moment a request was due",
                sizes.keys, sizes.value, sizes.connections
            ),
            format!(
                "systems on flash have a memory limit of {} MiB, and {PAGE_CACHE} MiB of page cache \
                 where the lab may set a memory control group: after the fill its limit falls to \
                 what the server holds then, the page cache, and some MiB for growth",
                sizes.memory
            ),
            "each point on flash says how many bytes a get read from the device; a point that read \
             next to nothing is marked as served from memory"
                .to_owned(),
            format!(
                "point cloud: {} gets/s of load, and a separate connection that sends {} gets/s and \
                 records every one",
                sizes.cloud, sizes.sampler
            ),
            plan.threads(),
            "two devices are two directories on one disk: a stand-in".to_owned(),
        ]
    }

    fn rounds(&self, plan: &Plan) -> usize {
        plan.long_rounds
    }

    fn takes(&self, system: &System) -> bool {
        system.uses_flash() || matches!(system.id, "larder" | "memcached")
    }

    fn cases(&self, plan: &Plan, _: &System, round: usize) -> Vec<Case> {
        let rates = plan.cliff.rates.iter();
        let mut cases: Vec<Case> = rates.map(|&rate| ("ladder", Some(f64::from(rate)))).collect();
        if round == 1 {
            cases.push(("cloud", Some(f64::from(plan.cliff.cloud))));
        }
        cases
    }

    fn sandbox(&self, plan: &Plan, system: &System, directory: &Path) -> Result<Sandbox> {
        let sizes = &plan.cliff;
        let bytes = sizes.keys * (sizes.value as u64 + 200);
        let in_memory = matches!(system.id, "larder" | "memcached");
        let memory = if in_memory { bytes / (1 << 20) * 3 / 2 } else { sizes.memory };
        let sandbox = sandbox(plan, directory, memory, sizes.connections + 8)?;
        Ok(Sandbox {
            disk: ((bytes * 2) >> 20) + 1024,
            page_cache: (!in_memory).then_some(PAGE_CACHE),
            value_max: sizes.value,
            ..sandbox
        })
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        let sizes = turn.plan.cliff.clone();
        let shape = Shape {
            keys: sizes.keys,
            value_lengths: Lengths { min: sizes.value, max: sizes.value },
            ..Shape::default()
        };
        let base = Load { verify: true, threads: turn.plan.load_threads, ..turn.load() };
        let filled = Filled::fill(turn, &base, &shape, turn.system.uses_flash())?;
        let open = |rate: u32| Load {
            connections: sizes.connections,
            pacing: Pacing::Poisson(f64::from(rate)),
            ..base.clone()
        };
        for &rate in &sizes.rates {
            turn.point("ladder", Some(f64::from(rate)), |point_id| {
                // Each rate draws different keys. The keys of an earlier rate would already be in
                // the page cache.
                let load = Load { seed: u64::from(rate) << 8 | base.seed, ..open(rate) };
                let summary = load.run(shape.clone())?;
                let histogram = summary.histogram();
                let point = filled.note(point(point_id, &summary, rate), &summary);
                Ok(Point { histogram, ..point })
            })?;
        }
        if turn.round == 1 {
            turn.point("cloud", Some(f64::from(sizes.cloud)), |point_id| {
                let load = Load { duration: Some(sizes.cloud_time), ..open(sizes.cloud) };
                let sampler = Load {
                    connections: 1,
                    threads: 1,
                    pipeline: 1,
                    pacing: Pacing::Constant(f64::from(sizes.sampler)),
                    keep_samples: true,
                    // With the load's seed, the sampler would request keys that the load has just
                    // read.
                    seed: !load.seed,
                    probe: None,
                    ..load.clone()
                };
                let (summary, sampled) = side_by_side(&load, &sampler, &shape)?;
                let samples = Some(Samples::of(&sampled.samples));
                let load_rate = summary.requests_per_second;
                let beside = point(point_id.clone(), &summary, sizes.cloud);
                let point = point(point_id, &sampled, sizes.cloud).with("load_rate", load_rate);
                let point = Point { void: point.void.clone().or(beside.void), ..point };
                Ok(Point { samples, ..filled.note(point, &summary) })
            })?;
        }
        Ok(())
    }
}

fn point(point_id: PointId, summary: &Summary, offered: u32) -> Point {
    let mut point = Point::of_load(point_id, summary).with("unanswered", summary.unanswered as f64);
    point.figures.offered = Some(f64::from(offered));
    if let Some(error) = &summary.first_error {
        point.void = Some(format!("{} error answers, the first: {error}", summary.errors));
    }
    point
}

/// Runs the load and the sampler at the same time.
fn side_by_side(load: &Load, sampler: &Load, shape: &Shape) -> Result<(Summary, Summary)> {
    thread::scope(|scope| {
        let beside = scope.spawn(|| sampler.run(shape.clone()));
        let summary = load.run(shape.clone());
        let sampled = beside.join().unwrap_or_else(|_| Err(Error::server("the sampler panicked")));
        Ok((summary?, sampled?))
    })
}
