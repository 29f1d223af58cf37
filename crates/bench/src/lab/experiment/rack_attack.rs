//! What does a rate limit that several processes share cost, and does it admit exactly the allowed
//! requests? A Sinatra application behind Rack::Attack runs in two processes, with one rate limit
//! for both. The article of 2015 chose a store for such an application.
//!
//! Two controls need no server. `no-throttle` is the application without Rack::Attack.
//! `memory-store` counts in each process separately, so it admits more than the limit. The first
//! turn of a round measures the controls.

mod application;
mod http;
mod requests;

use std::path::Path;
use std::time::Duration;

use self::application::Application;
use self::requests::{Requests, Verdicts};
use super::{Case, Experiment};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, PointId, SystemRow};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::{Result, machine};

/// Memory limit of each server in MiB. The data is a few counters.
const MEMORY: u64 = 256;
/// The limit of the case `admission`, in requests per day.
const LIMIT: u64 = 1000;
/// Number of requests that the case `admission` sends.
const REQUESTS: u64 = 4 * LIMIT;
/// The longest time of the case `admission`.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of clients. Each process of the application has as many threads.
const CLIENTS: usize = 4;

const NO_THROTTLE: &str = "no-throttle";
const MEMORY_STORE: &str = "memory-store";

/// A store of the application, with the names of the cases that measure it.
#[derive(Clone, Copy, Debug)]
struct Store {
    /// The name by which the application selects the store.
    name: &'static str,
    throughput: &'static str,
    admission: Option<&'static str>,
}

impl Store {
    const fn new(name: &'static str) -> Store {
        Store { name, throughput: "throughput", admission: Some("admission") }
    }

    fn cases(self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.throughput).chain(self.admission)
    }
}

const NONE: Store = Store { admission: None, ..Store::new("none") };
/// ActiveSupport's MemoryStore.
const IN_PROCESS: Store = Store::new("memory");
const DALLI: Store = Store::new("dalli");
/// Larder's own gem.
const GEM: Store =
    Store { name: "larder", throughput: "throughput-gem", admission: Some("admission-gem") };
const REDIS: Store = Store::new("redis");
const TABLE: Store = Store::new("table");

/// Returns the stores through which the experiment measures a system.
fn stores(system: &System) -> &'static [Store] {
    match system.id {
        "larder" | "larder-async" | "larder-sync" => &[DALLI, GEM],
        "memcached" => &[DALLI],
        "redis" | "redis-everysec" | "redis-always" => &[REDIS],
        "mariadb-memory" | "mariadb-innodb" => &[TABLE],
        _ => &[],
    }
}

#[derive(Debug)]
pub(crate) struct RackAttack;

impl Experiment for RackAttack {
    fn id(&self) -> &'static str {
        "rack-attack"
    }

    fn title(&self) -> &'static str {
        "Rack::Attack in two processes"
    }

    fn question(&self) -> &'static str {
        "What does a limit for several processes of an application cost, and does it hold?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        vec![
            format!(
                "Sinatra behind Rack::Attack in two processes of Puma with {CLIENTS} threads \
                 each; one client address"
            ),
            format!(
                "{CLIENTS} kept HTTP/1.1 connections to each process, closed loop: every client \
                 sends to both processes in turn; latencies are those of whole requests"
            ),
            format!(
                "throughput: the limit is never reached; {:.1} s per point after {:.1} s of \
                 warm-up",
                plan.time.as_secs_f64(),
                plan.warm_up.as_secs_f64()
            ),
            format!("admission: {REQUESTS} requests, of which the limit admits {LIMIT} per day"),
            "stores: Dalli; Rack::Attack's proxy for Redis; a table by mysql2, counted in one \
             statement; the series -gem is Larder's own gem. Each has a connection per thread"
                .to_owned(),
            "controls: no-throttle is the application without Rack::Attack; memory-store is \
             ActiveSupport's MemoryStore, which each process has for itself"
                .to_owned(),
        ]
    }

    fn rounds(&self, plan: &Plan) -> usize {
        plan.long_rounds
    }

    fn takes(&self, system: &System) -> bool {
        !stores(system).is_empty()
    }

    fn cases(&self, _: &Plan, system: &System, _: usize) -> Vec<Case> {
        let stores = stores(system).iter();
        stores.flat_map(|store| store.cases()).map(|case| (case, None)).collect()
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        sandbox(plan, directory, MEMORY, 4 * CLIENTS)
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        turn.control(NO_THROTTLE, |turn| measure(turn, NONE))?;
        turn.control(MEMORY_STORE, |turn| measure(turn, IN_PROCESS))?;
        // The store `table` counts in a table, which must exist.
        if let Some(wire) = turn.wire() {
            wire.prepare(&turn.server.address)?;
        }
        for &store in stores(turn.system) {
            measure(turn, store)?;
        }
        Ok(())
    }
}

/// Starts the application with a store and measures its points.
fn measure(turn: &mut Turn<'_>, store: Store) -> Result<()> {
    if !store.cases().any(|case| turn.is_missing(case, None)) {
        return Ok(());
    }
    let application = Application::start(store.name, &turn.server.address, LIMIT, CLIENTS)?;
    if let Some(name) = control_name(turn.id()) {
        turn.note_system(control_row(turn.id(), name, &application))?;
    }
    turn.point_of(store.throughput, None, |turn, point_id| {
        throughput(turn, &application, point_id)
    })?;
    match store.admission {
        None => Ok(()),
        Some(case) => {
            turn.point_of(case, None, |turn, point_id| admission(turn, &application, point_id))
        }
    }
}

/// Returns the name that reports show for a control. Returns `None` for a system with a server.
fn control_name(id: &str) -> Option<&'static str> {
    match id {
        NO_THROTTLE => Some("No throttle"),
        MEMORY_STORE => Some("MemoryStore in each process"),
        _ => None,
    }
}

fn control_row(id: &str, name: &str, application: &Application) -> SystemRow {
    SystemRow {
        id: id.to_owned(),
        name: name.to_owned(),
        family: "Rack::Attack".to_owned(),
        durability: "none".to_owned(),
        version: application.versions.clone(),
        stand_in: None,
        settings: vec![format!("two processes of Puma with {CLIENTS} threads each, no server")],
    }
}

fn throughput(turn: &Turn<'_>, application: &Application, point_id: PointId) -> Result<Point> {
    let requests = Requests {
        clients: CLIENTS,
        path: "/throughput",
        warm_up: turn.plan.warm_up,
        time: turn.plan.time,
        most: u64::MAX,
    };
    let (verdicts, point) = send(turn, application, requests, point_id)?;
    let baseline = turn.measured(NO_THROTTLE, NONE.throughput).map(|point| point.figures.mean_us);
    let point = match baseline {
        Some(baseline) if turn.id() != NO_THROTTLE => {
            let added = point.figures.mean_us - baseline;
            point.with("added_us", added)
        }
        _ => point,
    };
    let void = (verdicts.refused > 0).then(|| {
        format!("{} requests were refused although no limit was reached", verdicts.refused)
    });
    Ok(Point { void, ..point })
}

fn admission(turn: &Turn<'_>, application: &Application, point_id: PointId) -> Result<Point> {
    let requests = Requests {
        clients: CLIENTS,
        path: "/admission",
        warm_up: Duration::ZERO,
        time: PATIENCE,
        most: REQUESTS,
    };
    let (verdicts, point) = send(turn, application, requests, point_id)?;
    let Verdicts { admitted, refused, .. } = verdicts;
    Ok(judged(point, admitted, refused, turn.id() == MEMORY_STORE))
}

/// Returns the point with its counts. A store that admits more or less than the limit makes the
/// point void. The control `memory-store` is exempt: its processes count separately, so it always
/// admits more.
fn judged(point: Point, admitted: u64, refused: u64, is_control: bool) -> Point {
    let void = (admitted != LIMIT && !is_control).then(|| {
        format!("{admitted} of {} requests were admitted, not {LIMIT}", admitted + refused)
    });
    let point = point
        .with("admitted", admitted as f64)
        .with("refused", refused as f64)
        .with("budget", LIMIT as f64)
        .with("over_admission", admitted as f64 - LIMIT as f64);
    Point { void, ..point }
}

/// Sends requests. Measures the processor time and memory of the application and of the server
/// meanwhile.
fn send(
    turn: &Turn<'_>,
    application: &Application,
    requests: Requests<'_>,
    point_id: PointId,
) -> Result<(Verdicts, Point)> {
    // The application does not use the turn's server while a control is measured.
    let server = control_name(turn.id()).is_none().then(|| turn.server.probe());
    let sample = || server.as_ref().map(|server| server.sample()).transpose();
    let (server_before, before) = (sample()?, application.sample()?);
    let verdicts = Verdicts::send(application, requests)?;
    let (server_after, after) = (sample()?, application.sample()?);
    let per_request = |from: u64, to: u64| {
        to.saturating_sub(from) as f64 / 1000.0 / verdicts.requests().max(1) as f64
    };
    let figures = Figures {
        cpu_us: server_before
            .zip(server_after)
            .map_or(0.0, |(before, after)| per_request(before.cpu_ns, after.cpu_ns)),
        rss: server_after.map_or(0, |sample| sample.rss),
        ..verdicts.figures(machine::processors())
    };
    let point = Point::new(point_id, figures)
        .with("application_cpu_us", per_request(before.cpu_ns, after.cpu_ns))
        .with("application_rss", after.rss as f64);
    Ok((verdicts, point))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(admitted: u64, is_control: bool) -> Point {
        let point_id = PointId { system: "s".into(), case: "admission".into(), x: None, round: 1 };
        judged(Point::new(point_id, Figures::default()), admitted, REQUESTS - admitted, is_control)
    }

    #[test]
    fn only_the_control_may_miss_the_limit() {
        assert_eq!(point(LIMIT, false).void, None);
        assert!(point(LIMIT - 1, false).void.is_some());
        let over = point(LIMIT + 1, false);
        assert!(over.void.is_some_and(|why| why.starts_with("1001 of 4000 requests")));
        assert_eq!(over.extra["over_admission"], 1.0);
        assert_eq!(point(2 * LIMIT, true).void, None);
    }
}
