//! `cargo run -p sim -- --seed N` replays one world. Without a seed, the program runs many worlds.

#[cfg(feature = "breakable")]
mod rules;
mod runs;

use clap::{Parser, ValueEnum};
use runs::Runs;
use sim::{DurableWorld, Failure, Plan, ThreadedWorld, World, WorldCounts};
use std::process::ExitCode;

/// Runs seeded worlds: the engine against a plain map, in memory and on a device that fails.
#[derive(Parser)]
struct Arguments {
    /// Which worlds.
    #[arg(long, value_enum, default_value_t = Worlds::Store)]
    worlds: Worlds,
    /// Replay this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Otherwise: how many seeds, from `--from`.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Operations per world; with threads, per life of a world.
    #[arg(long, default_value_t = 4000)]
    steps: u64,
    /// Threads, each with its own world.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: u64,
    /// Start no more worlds after this many have disagreed.
    #[arg(long, default_value_t = 10)]
    stop_after: u64,
    /// Break a rule that keeps data and run worlds until one disagrees: the rule's number, `all` to
    /// break one after the other, `none` to check that the same worlds agree with no rule broken,
    /// `list` to list the rules.
    #[cfg(feature = "breakable")]
    #[arg(long = "break", value_name = "RULE")]
    broken: Option<String>,
    /// How long to search for a disagreement, in seconds.
    #[cfg(feature = "breakable")]
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Worlds {
    /// An engine in memory.
    Ram,
    /// An engine with a store: crashes, power losses and failing devices.
    Store,
    /// The same with all of its threads; the seed does not decide in which order they run.
    Threads,
}

impl Worlds {
    fn name(self) -> &'static str {
        match self {
            Worlds::Ram => "ram",
            Worlds::Store => "store",
            Worlds::Threads => "threads",
        }
    }

    fn run(self, plan: Plan) -> Result<WorldCounts, Failure> {
        match self {
            Worlds::Ram => World::run(plan).map(|()| WorldCounts::default()),
            Worlds::Store => DurableWorld::run(plan),
            Worlds::Threads => ThreadedWorld::run(plan).map(|()| WorldCounts::default()),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "breakable")]
    if let Some(what) = &arguments.broken {
        return rules::run(what, arguments.worlds, arguments.from, arguments.seconds);
    }
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.from..arguments.from + arguments.seeds,
    };
    let Arguments { worlds, steps, jobs, stop_after, .. } = arguments;
    Runs { worlds, seeds, steps, jobs, stop_after }.run()
}
