//! `larder bench compare`: the standard table. Every contender is a server with one thread on one
//! processor; the load comes from another processor. Each round starts every contender anew, in the
//! order A B C A B C, so other programs on the machine and warm caches affect all contenders alike.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_client::Address;
use serde::Serialize;

use super::load::fill;
use super::output::{JsonFile, Spread, Table, WAITING_MAX};
use crate::generator::{Load, Summary};
use crate::launch::{Allowance, Program, RunningServer};
use crate::machine::Machine;
use crate::process::Probe;
use crate::responder::Responder;
use crate::workload::{Lengths, Mix, Shape, Verb};
use crate::{Error, Result, complain, say};

/// The contenders, the rounds and the processors.
#[derive(Clone, Debug, Args)]
pub struct CompareArguments {
    /// Another server to measure: [NAME=]PATH and its options, as one quoted argument; repeatable.
    /// Ratios are relative to the first such server
    #[arg(long = "peer", value_name = "PATH")]
    peers: Vec<String>,
    /// Larder executable to measure, instead of this one
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Leave out larder or responder; repeatable
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,
    /// Kernel interfaces with which Larder and the responder are measured
    #[arg(long, value_delimiter = ',', default_value = "epoll,uring")]
    io: Vec<String>,
    /// Number of rounds; each runs every load on every server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds to measure each load on each server in each round
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    time: f64,
    /// Measure only loads whose names contain this text, such as set or pipelines
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Number of connections
    #[arg(short, long, default_value_t = 50)]
    connections: usize,
    /// Number of different keys
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a key: a number or a range
    #[arg(long, default_value = "15")]
    key_size: Lengths,
    /// Bytes of a value: a number or a range
    #[arg(long, default_value = "50")]
    value_size: Lengths,
    /// Memory limit of each server in MiB
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Processor to run the servers on
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// Processor to run the load generator on
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
    #[command(flatten)]
    json: JsonFile,
}

/// One line of the table.
struct TableLine {
    name: &'static str,
    verb: Verb,
    pipeline: usize,
    keys_per_get: usize,
}

const LINES: [TableLine; 7] = [
    TableLine { name: "get", verb: Verb::Get, pipeline: 1, keys_per_get: 1 },
    TableLine { name: "get, pipelines of 16", verb: Verb::Get, pipeline: 16, keys_per_get: 1 },
    TableLine { name: "get of 50 keys (per key)", verb: Verb::Get, pipeline: 1, keys_per_get: 50 },
    TableLine { name: "set", verb: Verb::Set, pipeline: 1, keys_per_get: 1 },
    TableLine { name: "set, pipelines of 16", verb: Verb::Set, pipeline: 16, keys_per_get: 1 },
    TableLine { name: "incr", verb: Verb::Incr, pipeline: 1, keys_per_get: 1 },
    TableLine { name: "mg, pipelines of 16", verb: Verb::MetaGet, pipeline: 16, keys_per_get: 1 },
];

enum Contender {
    Server(Program),
    Responder { name: String, io: String },
}

/// A started contender.
enum Started {
    Server(RunningServer),
    Responder(Responder),
}

/// One run of one contender.
#[derive(Debug, Serialize)]
struct ComparedRun {
    line: &'static str,
    contender: String,
    version: String,
    round: usize,
    summary: Summary,
}

/// The results of one contender on one line of the table, over all rounds.
#[derive(Debug, Serialize)]
struct Cell {
    line: &'static str,
    contender: String,
    cpu_us_per_key: Spread,
    keys_per_second: Spread,
    p50_us: Spread,
    p99_us: Spread,
    /// Processor time per key, divided by that of the first peer in the same round; `None` without
    /// a peer.
    ratio: Option<Spread>,
    generator_bound: bool,
    /// True if in at least one run more than [`WAITING_MAX`] of the server's threads, on average,
    /// were ready but had no processor. Then other work disturbed the run.
    disturbed: bool,
}

#[derive(Debug, Serialize)]
struct CompareReport {
    table: Vec<Cell>,
    runs: Vec<ComparedRun>,
}

impl CompareArguments {
    pub(super) fn run(self) -> Result<()> {
        let contenders = self.contenders()?;
        let mut runs = Vec::new();
        for round in 1..=self.rounds {
            for contender in &contenders {
                complain!("round {round} of {}: {}", self.rounds, contender.name());
                self.measure(contender, round, &mut runs)?;
            }
        }
        let reference = contenders.iter().find(|contender| contender.is_peer());
        let reference = reference.map(Contender::name);
        let table = table(&contenders, &runs, reference);
        self.print_conditions();
        self.json.report(shown(&table, reference), &CompareReport { table, runs })
    }

    fn contenders(&self) -> Result<Vec<Contender>> {
        let with = |name: &str| !self.without.iter().any(|without| without == name);
        let mut contenders = Vec::new();
        for io in self.io.iter().filter(|_| with("larder")) {
            contenders.push(Contender::Server(Program::larder(self.larder.as_deref(), io)?));
        }
        for io in self.io.iter().filter(|_| with("responder")) {
            let name = format!("responder {io}");
            contenders.push(Contender::Responder { name, io: io.clone() });
        }
        for peer in &self.peers {
            contenders.push(Contender::Server(Program::peer(peer)?));
        }
        match contenders.is_empty() || self.rounds == 0 {
            true => Err(Error::usage("there is nothing to compare")),
            false => Ok(contenders),
        }
    }

    fn measure(&self, who: &Contender, round: usize, runs: &mut Vec<ComparedRun>) -> Result<()> {
        let started = self.start(who)?;
        let time = Duration::try_from_secs_f64(self.time)
            .map_err(|_| Error::usage("the time is no duration"))?;
        let base = Shape {
            keys: self.keys,
            key_lengths: self.key_size,
            value_lengths: self.value_size,
            ..Shape::default()
        };
        let load = Load {
            connections: self.connections,
            duration: Some(time),
            warm_up: time / 4,
            verify: false,
            seed: round as u64,
            cpu: Some(self.load_cpu),
            probe: Some(started.probe()),
            ..Load::new(started.address())
        };
        if matches!(started, Started::Server(_)) {
            fill(&load, &Shape { mix: Mix::only(Verb::Incr), ..base.clone() }, false)?;
        }
        for line in LINES.iter().filter(|line| self.wants(line)) {
            let shape = Shape {
                mix: Mix::only(line.verb),
                keys_per_get: line.keys_per_get,
                ..base.clone()
            };
            let summary = Load { pipeline: line.pipeline, ..load.clone() }.run(shape)?;
            if summary.first_error.as_deref() == Some("ERROR") {
                complain!("  {} does not know {}: left out", who.name(), line.verb.name());
                continue;
            }
            let mut summary = summary.without_errors()?;
            // The figures of single seconds are dropped: a run lasts a few seconds, and only
            // figures of whole runs are compared.
            summary.per_second.clear();
            if matches!(started, Started::Server(_)) && summary.hit_ratio.is_some_and(|r| r < 1.0) {
                let name = who.name();
                return Err(Error::Void(format!("{name} lost keys: give it more --memory")));
            }
            runs.push(ComparedRun {
                line: line.name,
                contender: who.name().to_owned(),
                version: started.version(),
                round,
                summary,
            });
        }
        Ok(())
    }

    fn wants(&self, line: &TableLine) -> bool {
        self.only.as_ref().is_none_or(|only| line.name.contains(only.as_str()))
    }

    fn start(&self, contender: &Contender) -> Result<Started> {
        let cpu = Some(self.server_cpu);
        Ok(match contender {
            Contender::Server(program) => {
                let allowance = Allowance { memory: self.memory, threads: 1, cpu };
                Started::Server(program.start(allowance)?)
            }
            Contender::Responder { io, .. } => {
                Started::Responder(Responder::start(io, cpu, self.value_size.max)?)
            }
        })
    }

    fn print_conditions(&self) {
        say!("{}", Machine::here().line());
        say!(
            "{} connections, closed loop, {} keys of {} bytes, values of {} bytes, one server thread on \
             processor {}, generator on {}, {} rounds of {} s: median (min–max). RAM only.\n",
            self.connections,
            self.keys,
            self.key_size,
            self.value_size,
            self.server_cpu,
            self.load_cpu,
            self.rounds,
            self.time
        );
    }
}

impl Contender {
    fn name(&self) -> &str {
        match self {
            Contender::Server(program) => &program.name,
            Contender::Responder { name, .. } => name,
        }
    }

    fn is_peer(&self) -> bool {
        use crate::launch::Dialect;
        matches!(self, Contender::Server(program) if program.dialect != Dialect::Larder)
    }
}

impl Started {
    fn address(&self) -> Address {
        match self {
            Started::Server(server) => server.address.clone(),
            Started::Responder(responder) => responder.address.clone(),
        }
    }

    fn probe(&self) -> Probe {
        match self {
            Started::Server(server) => server.probe(),
            Started::Responder(responder) => responder.probe.clone(),
        }
    }

    fn version(&self) -> String {
        match self {
            Started::Server(server) => server.version.clone(),
            Started::Responder(_) => env!("CARGO_PKG_VERSION").into(),
        }
    }
}

impl ComparedRun {
    fn cpu(&self) -> f64 {
        self.summary.server.map_or(0.0, |server| server.cpu_us_per_key)
    }
}

/// Returns the printed form of the table.
fn shown(table: &[Cell], reference: Option<&str>) -> Table {
    let ratio = format!("CPU relative to {}", reference.unwrap_or("–"));
    let mark = |is_marked: bool, mark: &'static str| if is_marked { mark } else { "" };
    let mut shown = Table::of(
        2,
        table,
        &[
            ("load", &|cell| cell.line.to_owned()),
            ("server", &|cell| cell.contender.clone()),
            ("CPU µs per key", &|cell| cell.cpu_us_per_key.show(3) + mark(cell.disturbed, "†")),
            (&ratio, &|cell| cell.ratio.map_or("–".into(), |ratio| ratio.show(2))),
            ("keys/s", &|cell| cell.keys_per_second.show(0) + mark(cell.generator_bound, "*")),
            ("p50 µs", &|cell| cell.p50_us.show(0)),
            ("p99 µs", &|cell| cell.p99_us.show(0)),
        ],
    );
    if table.iter().any(|cell| cell.generator_bound) {
        let note = "* the generator was more than 80 % busy: the rate may be its own, CPU is not.";
        shown.notes.push(note.to_owned());
    }
    shown
}

fn table(contenders: &[Contender], runs: &[ComparedRun], reference: Option<&str>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for line in &LINES {
        for contender in contenders {
            let of = |name: &str| -> Vec<&ComparedRun> {
                runs.iter().filter(|run| run.line == line.name && run.contender == name).collect()
            };
            let mine = of(contender.name());
            if mine.is_empty() {
                continue;
            }
            let spread = |value: &dyn Fn(&ComparedRun) -> f64| {
                Spread::of(&mine.iter().map(|run| value(run)).collect::<Vec<_>>())
            };
            let ratios = reference.map(|name| {
                let pairs = mine.iter().zip(of(name));
                pairs.map(|(run, peer)| run.cpu() / peer.cpu()).collect::<Vec<_>>()
            });
            cells.push(Cell {
                line: line.name,
                contender: contender.name().to_owned(),
                cpu_us_per_key: spread(&ComparedRun::cpu),
                keys_per_second: spread(&|run| run.summary.keys_per_second),
                p50_us: spread(&|run| run.summary.latency.get("p50")),
                p99_us: spread(&|run| run.summary.latency.get("p99")),
                ratio: ratios.map(|ratios| Spread::of(&ratios)),
                disturbed: mine.iter().any(|run| {
                    run.summary.server.is_some_and(|server| server.waiting > WAITING_MAX)
                }),
                generator_bound: mine.iter().any(|run| run.summary.generator_bound),
            });
        }
    }
    cells
}
