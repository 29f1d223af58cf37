//! The crash test of the real server, under load from real client processes. The server is killed,
//! loses power, or has a failing disk. Then it is started again. Every write that it acknowledged
//! must still be there, except the most recent ones in async mode.
//!
//!     cargo run -p larder-crash -- --rounds 100 --seed 7 --durability sync --power-loss
//!
//! The seed determines everything except how the kernel schedules processes. So a failing seed
//! fails again if it is run a few times. The parts that judge the server, `history.rs` and
//! `checker.rs`, have their own tests with planted faults.

mod activity;
mod checker;
mod client;
mod clock;
mod devices;
mod disk;
mod history;
mod journal;
mod machine;
mod model;
mod operation;
mod reply;
mod rounds;
mod scenarios;
mod server;
mod value;
mod workload;
mod world;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use crate::disk::Disk;
use crate::machine::Machine;
use crate::rounds::{Done, Limits, Stopped};
use crate::scenarios::{Scenario, Setup};
use crate::server::{Durability, ServerPlan};
use crate::world::{Failure, World};

#[derive(Debug, Parser)]
#[command(
    name = "larder-crash",
    about = "Kills the real server and checks the writes that it had acknowledged",
    long_about = "Kills the real server under load, or cuts its power, and checks the writes that it had acknowledged.\n\n\
                  Rounds are on one device (plain, power) and on several that are added and drained all the \
                  time: in refuse mode (devices), in evict mode and full (evict), with a small fast device \
                  and a big one in each lane (tiers), and with the power of all of them cut at once \
                  (power-devices, power-tiers). For these it is said how many rounds ended in the middle of \
                  draining, cleaning, moving down and evicting."
)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Number of rounds for each durability and machine. In most rounds the server ends suddenly
    /// under load.
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Test only this durability; by default both.
    #[arg(long, value_enum)]
    durability: Option<Durability>,
    /// Run rounds only on this machine; by default on all. May be repeated.
    #[arg(long, value_enum)]
    on: Vec<Machine>,
    /// Run only rounds with power loss. They are skipped where no FUSE file system can be mounted.
    #[arg(long, conflicts_with = "on")]
    power_loss: bool,
    /// Run only rounds with `kill -9`.
    #[arg(long, conflicts_with_all = ["on", "power_loss"])]
    kill_only: bool,
    /// Of the selected rounds, run only those with several devices.
    #[arg(long, conflicts_with = "on")]
    devices_only: bool,
    /// Run this scenario, and no rounds. May be repeated.
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Run no scenarios.
    #[arg(long)]
    rounds_only: bool,
    /// Begin no round after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// The server's binary; by default `larder` next to this program.
    #[arg(long)]
    server: Option<PathBuf>,
    /// An argument to pass to the server. May be repeated.
    #[arg(long, allow_hyphen_values = true)]
    server_argument: Vec<String>,
    /// Parent of the directory that the run creates for its stores, journals and logs.
    #[arg(long)]
    directory: Option<PathBuf>,
    #[arg(long, default_value_t = 256)]
    store_mib: u64,
    /// Memory of the server in every round, in MiB; by default each round chooses it at random.
    #[arg(long)]
    memory_mib: Option<u64>,
    /// Length of the longest value in rounds, in bytes.
    #[arg(long, default_value_t = rounds::LARGEST)]
    largest: u32,
    /// Print one line per round.
    #[arg(long, short)]
    verbose: bool,
}

impl Arguments {
    /// Returns the machines on which the rounds run.
    fn machines(&self) -> Vec<Machine> {
        let chosen = |machine: &Machine| match self.on.is_empty() {
            false => self.on.contains(machine),
            true => {
                (machine.loses_power() || !self.power_loss)
                    && (!machine.loses_power() || !self.kill_only)
                    && (machine.layout(0).is_some() || !self.devices_only)
            }
        };
        Machine::all().iter().copied().filter(chosen).collect()
    }
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run as a client process. The test starts these processes itself.
    #[command(hide = true)]
    Client {
        /// The [`client::ClientPlan`] of the process, as JSON.
        plan: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Client { plan }) => client::run(plan).map(|()| true),
        None => Run::new(arguments).and_then(Run::run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the path of the server to test.
fn binary(given: Option<&Path>) -> io::Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("larder"),
    };
    if path.is_file() {
        return path.canonicalize();
    }
    let text = format!("{} is not there: build it, or name it with --server", path.display());
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// A whole run: its arguments and totals.
struct Run {
    arguments: Arguments,
    binary: PathBuf,
    directory: PathBuf,
    /// The reason why this computer cannot mount the disk that loses power; `None` if it can.
    no_disk: Option<io::Error>,
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Run {
    fn new(arguments: Arguments) -> io::Result<Run> {
        let binary = binary(arguments.server.as_deref())?;
        let parent = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("larder-crash-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let no_disk = Disk::mount(&directory.join("probe"), 0).err();
        Ok(Run { arguments, binary, directory, no_disk, passed: 0, failed: 0, skipped: 0 })
    }

    fn plan(&self, durability: Durability) -> ServerPlan {
        ServerPlan {
            binary: self.binary.clone(),
            store: PathBuf::new(),
            store_mib: self.arguments.store_mib,
            devices: Vec::new(),
            evicts: false,
            memory_mib: 64,
            durability,
            sync_interval: Duration::from_millis(300),
            arguments: self.arguments.server_argument.clone(),
            log: PathBuf::new(),
        }
    }

    /// Runs all rounds and scenarios. Returns true if none failed.
    fn run(mut self) -> io::Result<bool> {
        let promises = match self.arguments.durability {
            Some(one) => vec![one],
            None => vec![Durability::Sync, Durability::Async],
        };
        if self.arguments.scenario.is_empty() {
            self.rounds(&promises)?;
        }
        if !self.arguments.rounds_only {
            self.scenarios(&promises);
        }
        let Run { passed, failed, skipped, .. } = self;
        if failed == 0 {
            std::fs::remove_dir_all(&self.directory)?;
        } else {
            println!("stores, journals and logs are in {}", self.directory.display());
        }
        println!("crash: {passed} passed, {failed} failed, {skipped} skipped");
        Ok(failed == 0)
    }

    fn rounds(&mut self, promises: &[Durability]) -> io::Result<()> {
        let machines = self.arguments.machines();
        let begun = Instant::now();
        let series = (promises.len() * machines.len()) as u32;
        let mut number = 0;
        for &durability in promises {
            for &machine in &machines {
                number += 1;
                let name = format!("{durability:?}, {machine}").to_lowercase();
                if machine.loses_power() && self.skips(&name) {
                    continue;
                }
                // The rounds with one durability and one machine are a series. Each series gets an
                // equal share of `--seconds`.
                let share = self.arguments.seconds.map(Duration::from_secs);
                let until = share.map(|all| begun + all * number / series);
                let directory = self.directory.join(format!("rounds-{number}"));
                let seed = self.arguments.seed;
                let plan = self.plan(durability);
                let mut world = World::new(&directory, plan, machine, seed)?;
                let Arguments { rounds, verbose, memory_mib, largest, .. } = self.arguments;
                let limits = Limits { rounds, until, memory_mib, largest, verbose };
                let began = Instant::now();
                match rounds::run(&mut world, seed, &limits) {
                    Ok(done) => self.passed(&name, &done, began.elapsed()),
                    Err(stopped) => self.stopped(&name, &stopped, &world),
                }
            }
        }
        Ok(())
    }

    /// Returns true if the test's disk cannot be mounted here. In that case, prints that the test
    /// `name` is skipped, and why.
    fn skips(&mut self, name: &str) -> bool {
        if let Some(error) = &self.no_disk {
            println!("{name}: SKIPPED: no FUSE file system can be mounted here: {error}");
            self.skipped += 1;
        }
        self.no_disk.is_some()
    }

    fn passed(&mut self, name: &str, done: &Done, time: Duration) {
        self.passed += 1;
        let Done { rounds, totals, slowest_start, cuts, devices, interrupted } = done;
        println!(
            "{name}: ok: {rounds} rounds in {:.1} s; {} requests answered ({} with an error), {} in \
             flight, {} read by others; {} keys checked; {} changes taken back, {} of them acknowledged \
             within the bound; slowest start {} ms",
            time.as_secs_f64(),
            totals.answered,
            totals.failed,
            totals.in_flight,
            totals.read,
            totals.checked,
            totals.taken,
            totals.taken_told,
            slowest_start.as_millis(),
        );
        if devices.0 > 0 {
            println!(
                "    {} devices added, {} drained, {} growths; rounds that ended in the middle of draining: {}, of \
                 cleaning: {}, of moving down: {}, of evicting: {}; {} items evicted",
                devices.0,
                devices.1,
                devices.2,
                interrupted.draining,
                interrupted.cleaning,
                interrupted.cooling,
                interrupted.evicting,
                interrupted.evicted,
            );
        }
        if cuts.0 > 0 {
            println!("    {} power failures with {} KiB not synced", cuts.0, cuts.1 >> 10);
        }
    }

    fn stopped(&mut self, name: &str, stopped: &Stopped, world: &World) {
        self.failed += 1;
        let Stopped { round, doing, failure } = stopped;
        let seed = self.arguments.seed;
        println!("{name}: FAILED in round {round} of seed {seed} ({doing}): {failure}");
        if let Err(error) = world.keep() {
            println!("cannot keep the store: {error}");
        }
        if let Failure::Violations(_) = failure {
            println!("the server printed:\n{}", world.log());
        }
    }

    fn scenarios(&mut self, promises: &[Durability]) {
        let chosen = match self.arguments.scenario.is_empty() {
            true => Scenario::all(),
            false => self.arguments.scenario.clone(),
        };
        for scenario in chosen {
            for &durability in promises.iter().filter(|one| scenario.is_for(**one)) {
                let name = format!("{scenario:?}, {durability:?}").to_lowercase();
                if scenario.needs_disk() && self.skips(&name) {
                    continue;
                }
                let setup = Setup {
                    plan: self.plan(durability),
                    directory: self.directory.join(name.replace(", ", "-")),
                    has_disk: self.no_disk.is_none(),
                    seed: self.arguments.seed,
                };
                let began = Instant::now();
                match scenario.run(&setup) {
                    Ok(()) => {
                        self.passed += 1;
                        println!("{name}: ok in {:.1} s", began.elapsed().as_secs_f64());
                    }
                    Err(failure) => {
                        self.failed += 1;
                        println!("{name}: FAILED with seed {}: {failure}", setup.seed);
                    }
                }
            }
        }
    }
}
