//! `cargo run -p sim -- --seed N` replays one world; without a seed it runs many.

use clap::Parser;
use sim::{DurableWorld, Plan, World};
use std::process::ExitCode;

/// Runs seeded worlds: the engine against a plain map.
#[derive(Parser)]
struct Arguments {
    /// Worlds without a store.
    #[arg(long)]
    ram: bool,
    /// Replay this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Otherwise: how many seeds, from 0.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Operations per world.
    #[arg(long, default_value_t = 4000)]
    steps: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => 0..arguments.seeds,
    };
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let plan = Plan { seed, steps: arguments.steps };
        let run = if arguments.ram { World::run(plan) } else { DurableWorld::run(plan) };
        if let Err(failure) = run {
            eprintln!("{failure}\nreplay: cargo run -p sim -- --seed {seed}");
            return ExitCode::FAILURE;
        }
    }
    println!("{count} worlds of {} steps agree with the model", arguments.steps);
    ExitCode::SUCCESS
}
