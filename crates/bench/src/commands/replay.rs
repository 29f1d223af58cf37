//! `larder bench replay`: replays a trace against a server.

use clap::Args;
use larder_client::Address;
use serde::Serialize;

use super::output::{JsonFile, Table, megabytes};
use crate::process::Probe;
use crate::replay::{Replay, ReplayOutcome};
use crate::trace::{self, Synthetic};
use crate::workload::Lengths;
use crate::{Error, Result, say};

/// The trace and the server.
#[derive(Clone, Debug, Args)]
pub struct ReplayArguments {
    /// Trace file (lines of key,size[,ttl] if the name ends in .csv or .txt, otherwise
    /// oracleGeneral of libCacheSim), or a built-in trace: zipf:THETA, scan:THETA (half of the
    /// requests belong to scans) or ttl:THETA (three quarters of the keys have a time to live)
    trace: String,
    /// Server to load: HOST:PORT or unix:PATH
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: String,
    /// Process whose memory is measured; a local server is found by its port
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    pub(super) options: Options,
    #[command(flatten)]
    json: JsonFile,
}

/// How traces are generated and replayed.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    /// Number of different keys of a built-in trace, without those of scans
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Number of requests of a built-in trace
    #[arg(long, default_value_t = 5_000_000)]
    requests: u64,
    /// Bytes of a value of a built-in trace: a number or a range
    #[arg(long, default_value = "50-450")]
    sizes: Lengths,
    /// Seed of a built-in trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest number of different keys to request at once
    #[arg(long, default_value_t = 50)]
    batch: usize,
    /// Requests per second [default: 200000 for traces that begin with `ttl:`, no limit for others]
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Divisor for the sizes in the trace
    #[arg(long, default_value_t = 1)]
    shrink: usize,
    /// Number of requests at the beginning whose misses are not counted
    #[arg(long, default_value_t = 0)]
    skip: u64,
}

/// The largest size of a value in bytes. Larger sizes are reduced to this. It is well below 1 MiB,
/// the default limit of many servers: that limit is for the whole item, with its key and header.
const SIZE_MAX: usize = 512 * 1024;
/// Requests per second for `ttl:` traces. It is equal for every server, so that items live for the
/// same number of requests.
const TTL_RATE: f64 = 200_000.0;

impl Options {
    /// Replays a trace from its beginning.
    pub(super) fn replay(&self, name: &str, server: &Address) -> Result<ReplayOutcome> {
        if self.batch == 0 || self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return Err(Error::usage("the batch and the rate must be above 0"));
        }
        let (keys, requests, sizes, seed) = (self.keys, self.requests, self.sizes, self.seed);
        let mut trace = trace::open(name, &Synthetic { keys, requests, sizes, seed })?;
        let replay = Replay {
            batch: self.batch,
            rate: self.rate.or(name.starts_with("ttl:").then_some(TTL_RATE)),
            shrink: self.shrink,
            size_max: SIZE_MAX,
            skip: self.skip,
        };
        replay.run(&mut *trace, server, None)
    }
}

#[derive(Debug, Serialize)]
struct ReplayReport {
    trace: String,
    miss_ratio: f64,
    outcome: ReplayOutcome,
    server_rss: Option<u64>,
}

impl ReplayArguments {
    pub(super) fn run(self) -> Result<()> {
        let address: Address = self.server.parse()?;
        let probe = self.pid.map(Probe::process).or_else(|| Probe::of_listener(&address));
        let outcome = self.options.replay(&self.trace, &address)?;
        let rss = probe.map(|probe| probe.sample()).transpose()?.map(|sample| sample.rss);
        say!(
            "{}: miss ratio {:.4} ({} misses of {} requests; {} in all, {} sets refused, {:.0}/s)",
            self.trace,
            outcome.miss_ratio(),
            outcome.misses,
            outcome.counted,
            outcome.requests,
            outcome.refused,
            outcome.requests as f64 / outcome.seconds.max(1e-9),
        );
        if let Some(rss) = rss {
            say!("server RSS {}", megabytes(rss));
        }
        let miss_ratio = outcome.miss_ratio();
        let row = vec![
            self.trace.clone(),
            format!("{miss_ratio:.4}"),
            outcome.misses.to_string(),
            outcome.counted.to_string(),
            rss.map_or("–".to_owned(), megabytes),
        ];
        let header = ["trace", "miss ratio", "misses", "requests", "server RSS"];
        let report = ReplayReport { trace: self.trace, miss_ratio, outcome, server_rss: rss };
        self.json.write(Table::new(1, &header, vec![row]), &report)
    }
}
