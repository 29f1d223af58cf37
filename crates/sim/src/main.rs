//! `cargo run -p sim -- --seed N` replays one world; without a seed it runs many.

use clap::{Parser, ValueEnum};
use sim::{DurableWorld, Plan, World};
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
    /// Operations per world.
    #[arg(long, default_value_t = 4000)]
    steps: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Worlds {
    /// An engine in memory.
    Ram,
    /// An engine with a store: crashes, power losses and failing devices.
    Store,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.from..arguments.from + arguments.seeds,
    };
    let count = seeds.end - seeds.start;
    let mut failures = 0;
    for seed in seeds {
        let plan = Plan { seed, steps: arguments.steps };
        let run = match arguments.worlds {
            Worlds::Ram => World::run(plan),
            Worlds::Store => DurableWorld::run(plan),
        };
        if let Err(failure) = run {
            let worlds = arguments.worlds.to_possible_value();
            let worlds = worlds.as_ref().map_or("store", |value| value.get_name());
            let steps = arguments.steps;
            eprintln!("{failure}");
            eprintln!(
                "replay: cargo run -p sim -- --worlds {worlds} --steps {steps} --seed {seed}"
            );
            failures += 1;
        }
    }
    if failures > 0 {
        eprintln!("{failures} of {count} worlds disagree");
        return ExitCode::FAILURE;
    }
    println!("{count} worlds of {} steps agree with the model", arguments.steps);
    ExitCode::SUCCESS
}
