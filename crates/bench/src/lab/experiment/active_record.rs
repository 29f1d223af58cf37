//! The experiment `counter` through ActiveRecord: a Ruby process is the client, as in the article
//! of 2015.

use std::process::Command;
use std::time::Duration;

use larder_client::Address;
use serde::Deserialize;

use super::counter::{self, Increments};
use crate::lab::plan::Plan;
use crate::lab::record::{Figures, Point, PointId};
use crate::lab::run::Turn;
use crate::{Error, Result, supervise};

const SCRIPT: &str = include_str!("active_record.rb");

/// The longest time that the Ruby script may take in addition to its warm-up and measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result line that the Ruby script prints.
#[derive(Debug, Deserialize)]
struct ScriptResult {
    rate: f64,
    acknowledged: u64,
    duplicates: u64,
    /// Numbers from 1 to `acknowledged` that were not returned.
    missing: u64,
    counted: u64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p95_us: f64,
    p99_us: f64,
    p999_us: f64,
    p99999_us: f64,
    max_us: f64,
}

/// Runs the Ruby script with this number of threads, and returns the point that it measured.
pub(super) fn measure(turn: &Turn<'_>, threads: usize, point_id: PointId) -> Result<Point> {
    let before = turn.server.probe().sample()?;
    let output = run(&turn.server.address, turn.plan, threads)?;
    let after = turn.server.probe().sample()?;
    let measured: ScriptResult = serde_json::from_slice(&output)
        .map_err(|error| Error::server(format!("the Ruby client printed no result: {error}")))?;
    let cpu = after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1000.0;
    let figures = Figures {
        rate: measured.rate,
        mean_us: measured.mean_us,
        p50_us: measured.p50_us,
        p90_us: measured.p90_us,
        p95_us: measured.p95_us,
        p99_us: measured.p99_us,
        p999_us: measured.p999_us,
        p99999_us: measured.p99999_us,
        max_us: measured.max_us,
        cpu_us: cpu / measured.acknowledged.max(1) as f64,
        rss: after.rss,
        // Ruby runs one thread at a time, so the client can use only one processor and limits the
        // rate.
        generator_bound: true,
        ..Figures::default()
    };
    let ScriptResult { acknowledged, counted, duplicates: doubled, missing, .. } = measured;
    let counts = Increments { acknowledged, counted, doubled, missing };
    Ok(counter::counted(Point::new(point_id, figures), counts))
}

fn run(server: &Address, plan: &Plan, threads: usize) -> Result<Vec<u8>> {
    let Address::Tcp(endpoint) = server else {
        return Err(Error::usage("the Ruby client needs a TCP port"));
    };
    let port = endpoint.rsplit_once(':').map_or("", |(_, port)| port);
    let mut ruby = Command::new("ruby");
    ruby.arg("-").args([port, &threads.to_string()]);
    ruby.args([plan.warm_up, plan.time].map(|time| time.as_secs_f64().to_string()));
    let output = supervise::output(ruby, SCRIPT.as_bytes(), plan.warm_up + plan.time + PATIENCE)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().next().unwrap_or_default();
            Err(Error::server(format!("the Ruby client failed: {line}")))
        }
    }
}
