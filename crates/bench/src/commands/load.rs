//! `larder bench load`: loads any memcached-compatible server.

use std::time::Duration;

use clap::Args;
use larder_client::Address;

use super::output::{JsonFile, print_summary, summary_table};
use crate::generator::{Load, Pacing, Summary};
use crate::process::Probe;
use crate::workload::{Distribution, Lengths, Limit, Mix, Shape, Verb};
use crate::{Error, Result, complain, interrupt};

/// The load and the server.
#[derive(Clone, Debug, Args)]
pub struct LoadArguments {
    /// Server to load: HOST:PORT or unix:PATH
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: String,
    #[command(flatten)]
    pub(super) traffic: Traffic,
    /// Store every key once before the measurement
    #[arg(long)]
    fill: bool,
    /// Process whose processor time and memory are measured; a local server is found by its port
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    json: JsonFile,
    /// Do not print a line every second
    #[arg(long)]
    quiet: bool,
}

/// The options that all commands with a configurable load share.
#[derive(Clone, Debug, Args)]
pub(super) struct Traffic {
    /// Number of connections, over all threads
    #[arg(short, long, default_value_t = 50)]
    connections: usize,
    /// Number of generator threads
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Requests in flight per connection; without --rate, they are sent as one batch
    #[arg(short = 'd', long, default_value_t = 1)]
    pipeline: usize,
    /// Number of keys in one get, gets, gat or msq
    #[arg(short = 'k', long, default_value_t = 1)]
    multi_get: usize,
    /// Commands with weights (get=90,set=10), or the ratio of sets to gets (1:10). Commands: get
    /// gets gat set add delete touch incr decr mg ms md ma, limit (an ma that takes a unit from a
    /// rate limit) and msq (as many quiet ms as --multi-get says, then one mn)
    #[arg(long, default_value = "get")]
    mix: Mix,
    /// Requests per second over all connections, sent on a schedule (open loop); latency then
    /// counts from the scheduled time
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// With --rate: random (Poisson) arrivals instead of evenly spaced ones
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// Number of different keys
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Prefix of every key
    #[arg(long, default_value = "key-")]
    key_prefix: String,
    /// Bytes of a key, with the prefix: a number or a range, such as 15 or 10-20
    #[arg(long, default_value = "15")]
    key_size: Lengths,
    /// Bytes of a value: a number or a range, such as 50, 40-60 or 4k
    #[arg(long, default_value = "50")]
    value_size: Lengths,
    /// Popularity of the keys: uniform, gaussian[:SIGMA] (a fraction of the keys, 1/6 by default)
    /// or zipf[:THETA] (0.99 by default)
    #[arg(long, default_value = "uniform")]
    distribution: Distribution,
    /// Time to live of stored and touched items, in seconds; 0 is forever
    #[arg(long, default_value_t = 0)]
    ttl: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    time: f64,
    /// Number of requests to send, instead of --time; there is no warm-up then
    #[arg(long, conflicts_with = "time")]
    requests: Option<u64>,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// Check that every returned value belongs to its key
    #[arg(long)]
    verify: bool,
    /// Seed of the random requests; an equal seed sends equal requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processor to run the generator's threads on; without --rate they then poll before they sleep
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
}

impl Traffic {
    pub(super) fn shape(&self) -> Shape {
        Shape {
            mix: self.mix.clone(),
            keys: self.keys,
            prefix: self.key_prefix.clone(),
            key_lengths: self.key_size,
            value_lengths: self.value_size,
            distribution: self.distribution,
            keys_per_get: self.multi_get,
            ttl: self.ttl,
            in_order: false,
            limit: Limit::default(),
            salt: 0,
        }
    }

    pub(super) fn load(&self, server: Address) -> Result<Load> {
        let seconds = |seconds: f64| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Error::usage(format!("{seconds} is no duration")))
        };
        Ok(Load {
            connections: self.connections,
            threads: self.threads,
            pipeline: self.pipeline,
            pacing: match (self.rate, self.poisson) {
                (None, _) => Pacing::Closed,
                (Some(rate), false) => Pacing::Constant(rate),
                (Some(rate), true) => Pacing::Poisson(rate),
            },
            duration: if self.requests.is_some() { None } else { Some(seconds(self.time)?) },
            requests: self.requests,
            warm_up: match self.requests {
                Some(_) => Duration::ZERO,
                None => seconds(self.warm_up)?,
            },
            verify: self.verify,
            seed: self.seed,
            cpu: self.pin,
            ..Load::new(server)
        })
    }
}

impl LoadArguments {
    pub(super) fn run(self) -> Result<()> {
        interrupt::listen()?;
        let address: Address = self.server.parse()?;
        let shape = self.traffic.shape();
        let mut load = self.traffic.load(address.clone())?;
        load.progress = !self.quiet;
        load.probe = match self.pid {
            Some(pid) => Some(Probe::process(pid)),
            None => Probe::of_listener(&address),
        };
        if self.fill {
            fill(&load, &shape, !self.quiet)?;
        } else if shape.mix.needs_counters() {
            store_all(&load, &shape, Verb::SetCounter)?.without_errors()?;
        }
        let summary = load.run(shape)?;
        print_summary(&summary);
        self.json.write(summary_table(&summary), &summary)
    }
}

/// Stores every key of the shape once, in order. Also stores the counters, if the mix needs them.
pub(super) fn fill(load: &Load, shape: &Shape, announce: bool) -> Result<()> {
    if shape.mix.needs_counters() {
        store_all(load, shape, Verb::SetCounter)?.without_errors()?;
    }
    let summary = store_all(load, shape, Verb::Set)?.without_errors()?;
    if announce {
        let rate = summary.requests_per_second;
        complain!("filled {} keys at {rate:.0} sets/s", summary.total.requests);
    }
    Ok(())
}

/// Sends `verb` for every key of the shape, in order. Refusals are no error: the summary has their
/// number.
pub(super) fn store_all(load: &Load, shape: &Shape, verb: Verb) -> Result<Summary> {
    let load = Load { pipeline: FILL_DEPTH, verify: false, collect_numbers: false, ..load.clone() };
    load.run_once_through(shape, verb)
}

/// Number of requests in flight per connection while filling.
const FILL_DEPTH: usize = 64;
