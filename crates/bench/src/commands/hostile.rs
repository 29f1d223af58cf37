//! `larder bench hostile`: measures polite clients, first alone, then beside crowds of clients that
//! are slow, rude or greedy. One crowd runs at a time, and at last all run together. Each server's
//! memory is full when the measurement begins, as a cache's usually is. The crowds stand for
//! clients on other machines. They run at the lowest priority, so that they take no processor time
//! from the polite clients. If the server has its own processor (`--server-cpu`, `--load-cpu`), a
//! latency begins when the client's socket sends the request and ends when the reply reaches that
//! socket. So the latency does not include the time for which the client waits for the processor
//! that it shares with the crowds.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use clap::Args;
use larder_client::Address;
use larder_server::process::take_short_turns;
use serde::Serialize;

use super::load::store_all;
use super::output::{JsonFile, Table};
use crate::generator::{Load, Pacing};
use crate::hostile::{Crowd, CrowdKind, CrowdOutcome};
use crate::launch::{Allowance, Program};
use crate::machine::{pin_thread, take_lowest_priority};
use crate::process::Probe;
use crate::workload::{Lengths, Mix, Shape, Verb};
use crate::{Error, Result, complain};

/// The servers to measure, and for how long.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each server is measured without a crowd, beside each crowd, and beside all of them at once. Crowds:
  deaf          asks for values of 1 MB and does not read them
  trickle       asks for values of 1 MB and reads a few KB per second
  announce      announces values of 1 MB and sends none of them
  half-sets     sends half of a 1 MB set
  half-lines    sends sets of 16 KB without the last byte
  large-values  stores and reads values of 10 to 400 KB as fast as it can
  fill          fills the cache with pipelined sets
  flush         sends batches of 1700 flush_all commands
  stats         requests statistics continuously
  dumps         requests dumps of all keys and does not read them
  all           all of these at once")]
pub struct HostileArguments {
    /// Another server to measure: [NAME=]PATH and its options, as one quoted argument; repeatable
    #[arg(long, value_name = "PROGRAM")]
    peer: Vec<String>,
    /// Larder executable to measure, instead of this one
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Additional option for Larder, such as --store=PATH:1GB; repeatable
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    with: Vec<String>,
    /// Memory limit of each server in MiB
    #[arg(long, default_value_t = 128)]
    memory: u64,
    /// Number of threads of each server
    #[arg(long, default_value_t = 2)]
    server_threads: usize,
    /// Processor to run the server on
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Processor to run the well-behaved clients and the crowds on
    #[arg(long, value_name = "CPU")]
    load_cpu: Option<usize>,
    /// Requests per second of the well-behaved clients, in all
    #[arg(long, default_value_t = 15_000.0, value_name = "PER_SECOND")]
    rate: f64,
    /// Number of connections of the well-behaved clients
    #[arg(short, long, default_value_t = 20)]
    connections: usize,
    /// Seconds to measure beside each crowd
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    time: f64,
    /// Number of rounds; each measures every server; the table shows medians
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Crowd to measure beside, instead of all crowds; repeatable
    #[arg(long, value_name = "CROWD", value_parser = crowd_names())]
    crowd: Vec<String>,
    #[command(flatten)]
    json: JsonFile,
}

/// The name of all crowds together, for `--crowd`.
const ALL_CROWDS: &str = "all";

fn crowd_names() -> Vec<&'static str> {
    CrowdKind::ALL.map(CrowdKind::name).into_iter().chain([ALL_CROWDS]).collect()
}

/// The figures of the polite clients beside one crowd, beside all crowds together, or without a
/// crowd.
#[derive(Debug, Serialize)]
struct HostileRow {
    server: String,
    crowd: String,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Error answers to the polite clients; 1 if their run was void.
    errors: u64,
    /// The reason why the polite clients' run was void.
    void: Option<String>,
    /// The sum of [`CrowdOutcome::answers`] over these crowds.
    crowd_answers: u64,
    /// The sum of [`CrowdOutcome::cut`] over these crowds.
    crowd_cut: u64,
    /// The sum of [`CrowdOutcome::refused`] over these crowds.
    crowd_refused: u64,
    /// The first [`CrowdOutcome::why`] that a crowd has.
    crowd_why: Option<String>,
    resident_mib: u64,
}

impl HostileRow {
    /// Combines the rounds beside one crowd: medians of latencies, the maximum of memory, sums of
    /// the counts.
    fn median<'r>(rounds: impl Iterator<Item = &'r HostileRow>) -> HostileRow {
        let rounds: Vec<&HostileRow> = rounds.collect();
        let median = |of: fn(&HostileRow) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(|row| of(row)).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let sum = |of: fn(&HostileRow) -> u64| rounds.iter().map(|row| of(row)).sum();
        HostileRow {
            server: rounds[0].server.clone(),
            crowd: rounds[0].crowd.clone(),
            p50_us: median(|row| row.p50_us),
            p99_us: median(|row| row.p99_us),
            max_us: median(|row| row.max_us),
            errors: sum(|row| row.errors),
            void: rounds.iter().find_map(|row| row.void.clone()),
            crowd_answers: sum(|row| row.crowd_answers),
            crowd_cut: sum(|row| row.crowd_cut),
            crowd_refused: sum(|row| row.crowd_refused),
            crowd_why: rounds.iter().find_map(|row| row.crowd_why.clone()),
            resident_mib: rounds.iter().map(|row| row.resident_mib).max().unwrap_or(0),
        }
    }
}

impl HostileArguments {
    pub(super) fn run(self) -> Result<()> {
        let mut programs = vec![Program::larder(self.larder.as_deref(), "auto")?];
        programs[0].extra.extend(self.with.iter().cloned());
        for peer in &self.peer {
            programs.push(Program::peer(peer)?);
        }
        let mut companies: Vec<(String, Vec<CrowdKind>)> = vec![("nobody".into(), Vec::new())];
        companies.extend(CrowdKind::ALL.map(|kind| (kind.name().into(), vec![kind])));
        companies.push((ALL_CROWDS.into(), CrowdKind::ALL.to_vec()));
        let chosen = |name: &str| name == "nobody" || self.crowd.iter().any(|crowd| crowd == name);
        companies.retain(|(name, _)| self.crowd.is_empty() || chosen(name));
        let mut rounds: Vec<Vec<HostileRow>> = Vec::new();
        for _ in 0..self.rounds.max(1) {
            let mut rows = Vec::new();
            for (name, kinds) in &companies {
                for program in &programs {
                    let row = self.beside(program, name, kinds)?;
                    complain!(
                        "{:>16} beside {:<14} p99 {:>9.0} µs, {} errors",
                        row.server,
                        row.crowd,
                        row.p99_us,
                        row.errors
                    );
                    rows.push(row);
                }
            }
            rounds.push(rows);
        }
        let in_all = |place: usize| rounds.iter().map(move |rows| &rows[place]);
        let medians = (0..rounds[0].len()).map(|place| HostileRow::median(in_all(place)));
        self.json.report(table(&medians.collect::<Vec<_>>()), &rounds)
    }

    /// Fills the server's memory, then stores the polite clients' items.
    fn fill_memory(&self, load: &Load, shape: &Shape) -> Result<()> {
        const VALUE: usize = 1000;
        // The values alone are 1.25 times the memory limit, so the items do not all fit.
        let keys = self.memory.saturating_mul((1 << 20) + (1 << 18)) / VALUE as u64;
        let value_lengths = Lengths { min: VALUE, max: VALUE };
        // Refusals are ignored: some peers refuse sets while their eviction lags behind, but their
        // memory is full even then.
        store_all(load, &Shape { keys, value_lengths, ..shape.clone() }, Verb::Set)?;
        store_all(load, shape, Verb::Set).map(drop)
    }

    /// Starts crowds whose threads have the lowest priority. A separate thread lowers its own
    /// priority and starts the crowds. The calling thread keeps its priority, because the kernel
    /// might not let it raise the priority again.
    fn start_crowds(&self, kinds: &[CrowdKind], server: &Address) -> Result<Vec<Crowd>> {
        let start = || {
            take_lowest_priority()?;
            self.load_cpu.map_or(Ok(()), pin_thread)?;
            kinds.iter().map(|&kind| Crowd::start(kind, server)).collect()
        };
        thread::scope(|scope| scope.spawn(start).join())
            .unwrap_or_else(|_| Err(Error::server("the thread that starts the crowds panicked")))
    }

    fn beside(&self, program: &Program, name: &str, kinds: &[CrowdKind]) -> Result<HostileRow> {
        let (memory, threads, cpu) = (self.memory, self.server_threads, self.server_cpu);
        let allowance = Allowance { memory, threads, cpu };
        let running = program.start(allowance)?;
        let shape = Shape {
            mix: "get=50,set=50".parse::<Mix>()?,
            keys: 100_000,
            value_lengths: Lengths { min: 100, max: 100 },
            ..Shape::default()
        };
        let time = Duration::try_from_secs_f64(self.time)
            .map_err(|_| Error::usage("the time is no duration"))?;
        let load = Load {
            connections: self.connections,
            pacing: Pacing::Constant(self.rate),
            duration: Some(time),
            cpu: self.load_cpu,
            // If the server and the generator share a processor, a busy server also delays the
            // sending of requests. Latencies must include this delay, but with `wire_times` they
            // would not.
            wire_times: self.server_cpu.is_some()
                && self.load_cpu.is_some()
                && self.server_cpu != self.load_cpu,
            ..Load::new(running.address.clone())
        };
        self.fill_memory(&load, &shape)?;
        let crowds = self.start_crowds(kinds, &running.address)?;
        let (summary, resident) = measure(&load, shape, &running.probe());
        let outcome =
            crowds.into_iter().map(Crowd::end).fold(CrowdOutcome::default(), |sum, crowd| {
                CrowdOutcome {
                    answers: sum.answers + crowd.answers,
                    cut: sum.cut + crowd.cut,
                    refused: sum.refused + crowd.refused,
                    why: sum.why.or(crowd.why),
                }
            });
        let (latency, errors, void) = match summary {
            Ok(summary) => (summary.latency, summary.errors, None),
            Err(error) => (Default::default(), 1, Some(error.to_string())),
        };
        Ok(HostileRow {
            server: program.name.clone(),
            crowd: name.to_owned(),
            p50_us: latency.get("p50"),
            p99_us: latency.get("p99"),
            max_us: latency.max_us,
            errors,
            void,
            crowd_answers: outcome.answers,
            crowd_cut: outcome.cut,
            crowd_refused: outcome.refused,
            crowd_why: outcome.why,
            resident_mib: resident >> 20,
        })
    }
}

/// Runs the load. Returns its summary, and the largest resident memory of the server meanwhile.
///
/// The generator may share its processor with the crowds or the server. Its thread asks the kernel
/// for short time slices, so that it waits less for the processor. Without [`Load::wire_times`],
/// latencies include the waits that remain.
fn measure(load: &Load, shape: Shape, probe: &Probe) -> (Result<crate::Summary>, u64) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Relaxed) {
                most = most.max(probe.sample().map_or(0, |sample| sample.rss));
                thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let generator = scope.spawn(|| {
            if let Err(error) = take_short_turns() {
                complain!("the generator takes no short turns, so latencies are longer: {error}");
            }
            load.run(shape)
        });
        let panicked = |_| Err(Error::server("the generator panicked"));
        let summary = generator.join().unwrap_or_else(panicked);
        done.store(true, Relaxed);
        (summary, watch.join().unwrap_or(0))
    })
}

fn table(rows: &[HostileRow]) -> Table {
    let alone = |row: &HostileRow| {
        let alone = rows.iter().find(|r| r.server == row.server && r.crowd == "nobody");
        alone.map_or(0.0, |alone| row.p99_us / alone.p99_us.max(1.0))
    };
    let void = |row: &HostileRow| {
        Some(format!("{} beside {}: {}", row.server, row.crowd, row.void.as_ref()?))
    };
    let notes = rows.iter().filter_map(void).collect();
    Table {
        notes,
        ..Table::of(
            2,
            rows,
            &[
                ("beside", &|row| row.crowd.clone()),
                ("server", &|row| row.server.clone()),
                ("p50 µs", &|row| format!("{:.0}", row.p50_us)),
                ("p99 µs", &|row| format!("{:.0}", row.p99_us)),
                ("× alone", &|row| format!("{:.1}", alone(row))),
                ("max µs", &|row| format!("{:.0}", row.max_us)),
                ("errors", &|row| row.errors.to_string()),
                ("crowd answers", &|row| row.crowd_answers.to_string()),
                ("its cut/refused", &|row| format!("{}/{}", row.crowd_cut, row.crowd_refused)),
                ("MiB", &|row| row.resident_mib.to_string()),
            ],
        )
    }
}
