//! How many requests of a trace does a cache answer? Servers count their memory limits differently,
//! so the lab searches for the limit at which a server's resident memory equals Larder's.

use std::path::Path;

use super::{Case, Experiment};
use crate::Result;
use crate::commands::hitratio::Search;
use crate::lab::plan::{Plan, Recorded};
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::{Turn, sandbox};
use crate::lab::target::{Sandbox, System};
use crate::replay::{Replay, ReplayOutcome};
use crate::trace::{self, Synthetic};
use crate::workload::Lengths;

/// The synthetic traces. In all of them, popularity follows Zipf's law. `scan` adds scans, and
/// `ttl` adds times to live.
const TRACES: [&str; 4] = ["zipf:0.99", "zipf:0.8", "scan:0.99", "ttl:0.99"];
/// Bytes of the values of synthetic traces.
const SIZES: Lengths = Lengths { min: 50, max: 450 };
/// Requests per second of the synthetic trace with times to live. The rate is fixed, so that items
/// live for the same number of requests in every system.
const TTL_RATE: f64 = 60_000.0;
/// The smallest part of [`TTL_RATE`] that a system must reach for its figures to count.
const TTL_RATE_MIN: f64 = 0.9;
/// The largest value of a recorded trace, in bytes. Longer ones are cut.
const RECORDED_MAX: usize = 64 << 10;
/// The largest sum of the values of all keys of a recorded trace, as a multiple of Larder's memory
/// limit. If the sum is larger, the lab divides all sizes by a common number.
const RECORDED_SHARE: u64 = 8;
/// The largest number of keys per batch of gets; all keys of a batch differ.
const BATCH: usize = 50;
const CONNECTIONS: usize = 8;
/// The largest number of limits to try for one system and trace.
const ATTEMPTS: usize = 4;
/// A system's resident memory counts as equal to Larder's if the two differ by at most this
/// fraction of Larder's.
const TOLERANCE: f64 = 0.03;
/// The system whose resident memory the other systems must match.
const REFERENCE: &str = "larder";

#[derive(Debug)]
pub(crate) struct Hitratio;

/// The replay of a trace at one limit.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// The limit in MiB.
    limit: u64,
    rss: u64,
    outcome: ReplayOutcome,
}

impl Experiment for Hitratio {
    fn id(&self) -> &'static str {
        "hitratio"
    }

    fn title(&self) -> &'static str {
        "Hit ratio"
    }

    fn question(&self) -> &'static str {
        "How many requests of a trace does a cache answer at equal resident memory?"
    }

    fn conditions(&self, plan: &Plan) -> Vec<String> {
        let sizes = &plan.hitratio;
        let recorded = sizes.recorded.iter().map(|trace| {
            format!(
                "{}: a recorded trace of {} requests, sizes divided by {}, values of at most \
                 {RECORDED_MAX} bytes; the first half of the requests does not count",
                trace.name,
                trace.totals.requests,
                divisor(trace, sizes.memory)
            )
        });
        let mut conditions = vec![
            format!(
                "synthetic traces of {} requests to {} keys, values of {SIZES} bytes; the first half \
                 of the requests fills the cache and does not count",
                sizes.requests, sizes.keys
            ),
            "scan: half of the requests are for keys that come only once; ttl: three quarters of the \
             keys live for 2, 5 or 60 s"
                .to_owned(),
            format!("ttl at {TTL_RATE:.0} requests/s, the others as fast as the system answers"),
            "one connection gets each key, and sets it if it was missed; memory only".to_owned(),
            format!(
                "Larder has a limit of {} MiB; the limit of each other system is changed, in at most \
                 {ATTEMPTS} replays, until its resident memory is Larder's within {:.0} %; both stand \
                 beside the figures",
                sizes.memory,
                TOLERANCE * 100.0
            ),
            "Redis and Valkey with allkeys-lru".to_owned(),
        ];
        conditions.extend(recorded);
        conditions
    }

    fn rounds(&self, _: &Plan) -> usize {
        1
    }

    fn takes(&self, system: &System) -> bool {
        const TAKEN: [&str; 6] = [REFERENCE, "memcached", "arcus", "pogocache", "redis", "valkey"];
        TAKEN.contains(&system.id)
    }

    fn cases(&self, plan: &Plan, _: &System, _: usize) -> Vec<Case> {
        let recorded = plan.hitratio.recorded.iter().map(|trace| trace.name);
        let traces = TRACES.into_iter().chain(recorded);
        traces.map(|trace| (trace, Some(plan.hitratio.memory as f64))).collect()
    }

    fn sandbox(&self, plan: &Plan, _: &System, directory: &Path) -> Result<Sandbox> {
        sandbox(plan, directory, plan.hitratio.memory, CONNECTIONS)
    }

    fn run(&self, turn: &mut Turn<'_>) -> Result<()> {
        // The limits of a system hardly differ between traces, so each search begins at the limit
        // found for the previous trace.
        let mut limit = turn.plan.hitratio.memory;
        for (trace, x) in self.cases(turn.plan, turn.system, turn.round) {
            turn.point_of(trace, x, |turn, point_id| {
                let wanted = turn.measured(REFERENCE, trace).map(|point| point.figures.rss);
                let best = equal_memory(limit, wanted, |limit| attempt(turn, trace, limit))?;
                limit = best.limit;
                Ok(point(point_id, &best, wanted))
            })?;
        }
        Ok(())
    }
}

/// Replays a trace against a fresh server.
fn attempt(turn: &Turn<'_>, trace: &str, limit: u64) -> Result<Attempt> {
    let sizes = &turn.plan.hitratio;
    let server = turn.another(limit, CONNECTIONS)?;
    let synthetic = Synthetic { keys: sizes.keys, requests: sizes.requests, sizes: SIZES, seed: 1 };
    let mut replay = Replay {
        batch: BATCH,
        rate: has_ttl(trace).then_some(TTL_RATE),
        shrink: 1,
        size_max: SIZES.max,
        skip: sizes.requests / 2,
    };
    let mut name = trace;
    if let Some(recorded) = sizes.recorded.iter().find(|recorded| recorded.name == trace) {
        name = &recorded.path;
        replay.shrink = divisor(recorded, sizes.memory);
        replay.size_max = RECORDED_MAX;
        replay.skip = recorded.totals.requests / 2;
    }
    let mut requests = trace::open(name, &synthetic)?;
    let outcome = replay.run(&mut *requests, &server.address, server.wire())?;
    Ok(Attempt { limit, rss: server.probe().sample()?.rss, outcome })
}

/// Tries limits until the resident memory equals `wanted`, but at most [`ATTEMPTS`]. Returns the
/// attempt whose resident memory is nearest to `wanted`. If `wanted` is `None`, only tries `first`.
fn equal_memory(
    first: u64,
    wanted: Option<u64>,
    mut attempt: impl FnMut(u64) -> Result<Attempt>,
) -> Result<Attempt> {
    let mut best = attempt(first)?;
    let Some(wanted) = wanted else { return Ok(best) };
    let (mut search, mut last) = (Search::from(first), best);
    for _ in 1..ATTEMPTS {
        if is_equal(best.rss, wanted) || !search.go_on(last.rss, wanted) {
            break;
        }
        last = attempt(search.limit)?;
        if last.rss.abs_diff(wanted) < best.rss.abs_diff(wanted) {
            best = last;
        }
    }
    Ok(best)
}

/// Returns the divisor of a recorded trace's sizes. `memory` is Larder's limit in MiB.
fn divisor(trace: &Recorded, memory: u64) -> usize {
    trace.totals.bytes.div_ceil(RECORDED_SHARE * (memory << 20)).max(1) as usize
}

fn has_ttl(trace: &str) -> bool {
    trace.starts_with("ttl:")
}

fn is_equal(rss: u64, wanted: u64) -> bool {
    (rss as f64 / wanted.max(1) as f64 - 1.0).abs() <= TOLERANCE
}

/// Returns the point of a replay. `wanted` is Larder's resident memory. It is `None` if this is
/// Larder's point or Larder took no part.
fn point(point_id: PointId, best: &Attempt, wanted: Option<u64>) -> Point {
    let Attempt { limit, rss, outcome } = *best;
    let figures = Figures {
        rate: outcome.requests as f64 / outcome.seconds.max(0.001),
        rss,
        hit_ratio: Some(1.0 - outcome.miss_ratio()),
        ..Figures::default()
    };
    let is_equal =
        point_id.system == REFERENCE || wanted.is_some_and(|wanted| is_equal(rss, wanted));
    let is_slow = has_ttl(&point_id.case) && figures.rate < TTL_RATE * TTL_RATE_MIN;
    let void = is_slow.then(|| {
        let rate = figures.rate;
        format!("only {rate:.0} requests/s of {TTL_RATE:.0}: items lived for fewer requests")
    });
    let point = Point { void, ..Point::new(point_id, figures) };
    point
        .with("limit_mib", limit as f64)
        .with("rss_mib", rss as f64 / f64::from(1 << 20))
        .with("equal_memory", f64::from(u8::from(is_equal)))
        .with("refused", outcome.refused as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(first: u64, wanted: Option<u64>) -> (Attempt, usize) {
        let mut count = 0;
        let attempt = |limit: u64| {
            count += 1;
            let outcome =
                ReplayOutcome { requests: 9, counted: 4, misses: 1, ..ReplayOutcome::default() };
            Ok(Attempt { limit, rss: (limit + 20) << 20, outcome })
        };
        (equal_memory(first, wanted.map(|mib| mib << 20), attempt).unwrap(), count)
    }

    #[test]
    fn the_limit_is_changed_until_resident_memory_is_equal() {
        let (best, count) = search(64, Some(100));
        assert_eq!((best.limit, count), (80, 2));
        assert_eq!(search(64, None).0.limit, 64);
        assert_eq!(search(64, Some(85)).1, 1, "near enough");
    }

    #[test]
    fn a_point_says_whether_memory_is_equal() {
        let point_id =
            |system: &str| PointId { system: system.into(), case: "t".into(), x: None, round: 1 };
        let best = search(64, None).0;
        let equal = |system: &str, wanted: Option<u64>| {
            point(point_id(system), &best, wanted.map(|mib| mib << 20)).extra["equal_memory"] > 0.5
        };
        assert!(equal("memcached", Some(84)) && equal(REFERENCE, None));
        assert!(!equal("memcached", Some(90)) && !equal("memcached", None));
        let slow = PointId { case: "ttl:0.99".into(), ..point_id("memcached") };
        assert!(point(slow, &best, None).void.unwrap().contains("lived for fewer"));
        let point = point(point_id("memcached"), &best, None);
        assert_eq!(point.void, None);
        assert!((point.figures.hit_ratio.unwrap() - 0.75).abs() < 1e-9);
        assert!((point.extra["limit_mib"] - 64.0).abs() < 1e-9);
    }
}
