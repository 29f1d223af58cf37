//! `larder bench dip`: does the server ever pause? A steady load writes the store several times
//! over, so the cleaner and the committer work all the time. The worst second must not be much
//! worse than the median second. In other stores, it can be: checkpoints, compaction and
//! stop-the-world phases slow down single seconds.
//!
//! A responder, which does nothing but send replies, gets the same load, by default for the same
//! time. Its worst second shows how much of the variation comes from the machine.

mod cold;
mod page;
mod report;
mod steadiness;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::load::fill;
use super::output::JsonFile;
use crate::generator::{Load, Pacing, Summary};
use crate::launch::{Allowance, Program, RunningServer};
use crate::responder::Responder;
use crate::workload::{Lengths, Mix, Shape};
use crate::{Error, Result, complain};
use cold::{Cold, FreeingCost};
use report::{DipOutcome, DipReport, DipRun};
use steadiness::Steadiness;

/// The store, the load, and the duration.
#[derive(Clone, Debug, Args)]
pub struct DipArguments {
    /// Another server to measure: [NAME=]PATH and its options, as one quoted argument; repeatable.
    /// It has a store only if its options say so
    #[arg(long = "peer", value_name = "PATH")]
    peers: Vec<String>,
    /// Larder executable to measure, instead of this one
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Measure only the other servers
    #[arg(long)]
    without_larder: bool,
    /// Directory for Larder's store, on the device to measure
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Size of Larder's store
    #[arg(long, default_value = "1GB", value_name = "SIZE")]
    store_size: String,
    /// Durability of Larder's store: none, async or sync, as in `larder serve`
    #[arg(long, default_value = "async")]
    durability: String,
    /// Memory limit of each server in MiB
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Number of threads of each server
    #[arg(long, default_value_t = 1)]
    server_threads: usize,
    /// Kernel interface of Larder and the responder: auto, epoll or uring
    #[arg(long, default_value = "auto")]
    io: String,
    /// Ratio of sets to gets, or commands with weights, as in `larder bench load`
    #[arg(long, default_value = "5:5")]
    mix: Mix,
    /// Number of different keys
    #[arg(long, default_value_t = 400_000)]
    keys: u64,
    /// Bytes of a value: a number or a range
    #[arg(long, default_value = "1000")]
    value_size: Lengths,
    /// Time to live of the items that the load stores, in seconds; 0 is forever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    ttl: u32,
    #[command(flatten)]
    cold: Cold,
    /// Number of connections
    #[arg(short, long, default_value_t = 50)]
    connections: usize,
    /// Requests per second; the default is half of the measured maximum
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Number of times that every key is stored before the measurement. With enough of them, the
    /// store has been overwritten once and all memory touched before the first second
    #[arg(long, default_value_t = 1)]
    fills: usize,
    /// Seconds to measure the maximum rate; not used with --rate
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    max_time: u64,
    /// Seconds to measure
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    time: u64,
    /// Seconds to load the do-nothing responder for comparison; the default is --time
    #[arg(long, value_name = "SECONDS")]
    noise_time: Option<u64>,
    /// Number of rounds; each measures every server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Processor to run the server on, with its background threads
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Processor to run the load generator on
    #[arg(long, value_name = "CPU")]
    load_cpu: Option<usize>,
    #[command(flatten)]
    json: JsonFile,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Do not print a line every second
    #[arg(long)]
    quiet: bool,
}

impl DipArguments {
    pub(super) fn run(self) -> Result<()> {
        let mut programs = Vec::new();
        if !self.without_larder {
            let larder = Program::larder(self.larder.as_deref(), &self.io)?;
            programs.push(Program { name: "larder".into(), ..larder });
        }
        for peer in &self.peers {
            programs.push(Program::peer(peer)?);
        }
        if programs.is_empty() || self.rounds == 0 || self.time == 0 || self.max_time == 0 {
            return Err(Error::usage("there is nothing to measure"));
        }
        self.cold.check()?;
        let mut runs: Vec<DipRun> = Vec::new();
        for round in 1..=self.rounds {
            for program in &programs {
                complain!("round {round} of {}: {}", self.rounds, program.name);
                runs.push(self.measure(program, round)?);
            }
        }
        let outcomes =
            programs.iter().map(|program| DipOutcome::of(&program.name, &runs)).collect();
        let report = DipReport { setup: self.setup(), outcomes, runs };
        let table = report.print();
        if let Some(path) = &self.html {
            page::write(path, &report)?;
        }
        self.json.write(table, &report)
    }

    fn measure(&self, program: &Program, round: usize) -> Result<DipRun> {
        let directory = Scratch::new(&self.dir)?;
        let server = self.start(program, &directory)?;
        let shape = Shape {
            mix: self.mix.clone(),
            keys: self.keys,
            value_lengths: self.value_size,
            ttl: self.ttl,
            ..Shape::default()
        };
        let load = Load {
            connections: self.connections,
            seed: round as u64,
            cpu: self.load_cpu,
            probe: Some(server.probe()),
            progress: !self.quiet,
            ..Load::new(server.address.clone())
        };
        self.cold.fill(&load)?;
        for _ in 0..self.fills {
            fill(&Load { progress: false, ..load.clone() }, &shape, true)?;
        }
        let maximum = self.maximum(&load, &shape)?;
        let rate = self.rate.or(maximum.map(|maximum| maximum / 2.0)).unwrap_or_default();
        let steady = Load {
            pacing: Pacing::Constant(rate),
            duration: Some(Duration::from_secs(self.time)),
            ..load
        };
        complain!("open loop, {rate:.0}/s for {} s", self.time);
        let before = FreeingCost::of(&server);
        let loaded = self.cold.run_beside(&steady, shape.clone())?.without_errors()?;
        let after = FreeingCost::of(&server);
        let store_bytes = directory.bytes()?;
        let version = server.version.clone();
        drop(server);
        let noise = self.noise(&steady, shape)?;
        let written = loaded.server.map_or(0, |server| server.written);
        Ok(DipRun {
            server: program.name.clone(),
            version,
            round,
            maximum,
            rate,
            steadiness: Steadiness::of(&loaded.per_second),
            noise_steadiness: Steadiness::of(&noise.per_second),
            store_bytes,
            turnovers: if store_bytes > 0 { written as f64 / store_bytes as f64 } else { 0.0 },
            freeing: after.zip(before).map(|(after, before)| after.since(before)),
            load: loaded,
            noise,
        })
    }

    /// Starts a server. Larder gets a store in `directory`; a peer gets one only through its own
    /// options.
    fn start(&self, program: &Program, directory: &Scratch) -> Result<RunningServer> {
        let mut program = program.clone();
        if program.dialect == crate::launch::Dialect::Larder {
            let store = format!("{}:{}", directory.0.display(), self.store_size);
            let options = ["--store", &store, "--durability", &self.durability];
            program.extra.extend(options.map(str::to_owned));
        }
        let (memory, threads) = (self.memory, self.server_threads);
        program.start(Allowance { memory, threads, cpu: self.server_cpu })
    }

    /// Measures the highest rate that the server reaches in a closed loop. Returns `None` if a rate
    /// was given.
    fn maximum(&self, load: &Load, shape: &Shape) -> Result<Option<f64>> {
        if self.rate.is_some() {
            return Ok(None);
        }
        let load = Load {
            duration: Some(Duration::from_secs(self.max_time)),
            progress: false,
            ..load.clone()
        };
        let summary = load.run(shape.clone())?.without_errors()?;
        complain!("closed loop: {:.0} requests/s", summary.requests_per_second);
        Ok(Some(summary.requests_per_second))
    }

    fn noise(&self, load: &Load, shape: Shape) -> Result<Summary> {
        let responder = Responder::start(&self.io, self.server_cpu, self.value_size.max)?;
        let time = self.noise_time.unwrap_or(self.time);
        complain!("the responder at the same rate for {time} s");
        let load = Load {
            server: responder.address.clone(),
            probe: Some(responder.probe.clone()),
            duration: Some(Duration::from_secs(time)),
            ..load.clone()
        };
        load.run(shape)?.without_errors()
    }

    fn setup(&self) -> String {
        format!(
            "store of {}, durability {}, memory {} MiB, server threads {}; {} over {} keys, values of {} \
             bytes, stored {} times before, {} connections, open loop for {} s{}",
            self.store_size,
            self.durability,
            self.memory,
            self.server_threads,
            self.mix,
            self.keys,
            self.value_size,
            self.fills,
            self.connections,
            self.time,
            self.cold.describe()
        )
    }
}

/// A temporary directory for one store. Dropping it removes the directory.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Scratch> {
        let path = parent.join(format!("larder-dip-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|e| Error::io(format!("cannot create {}", path.display()), e))?;
        Ok(Scratch(path))
    }

    /// Returns the total size of the files in the directory.
    fn bytes(&self) -> Result<u64> {
        let doing = |e| Error::io(format!("cannot list {}", self.0.display()), e);
        let entries = fs::read_dir(&self.0).map_err(doing)?;
        let lengths = entries.map(|entry| Ok(entry?.metadata()?.len()));
        lengths.sum::<io::Result<u64>>().map_err(doing)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The server has stopped. If the removal fails, the files stay, and the operator sees them.
        let _ = fs::remove_dir_all(&self.0);
    }
}
