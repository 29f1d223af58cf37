//! A few hundred worlds on every test run; `cargo run --release -p sim -- --seeds 100000` by night.

use sim::{DurableWorld, Plan, World};

#[test]
fn worlds_agree_with_the_model() {
    for seed in 0..200 {
        if let Err(failure) = World::run(Plan { seed, steps: 3000 }) {
            panic!(
                "{failure}; replay: cargo run -p sim -- --worlds ram --seed {seed} --steps 3000"
            );
        }
    }
}

#[test]
fn stores_keep_what_they_acknowledged() {
    for seed in 0..STORES {
        if let Err(failure) = DurableWorld::run(Plan { seed, steps: 2000 }) {
            panic!("{failure}; replay: cargo run -p sim -- --seed {seed} --steps 2000");
        }
    }
}

/// Worlds with a store, half a minute of them.
const STORES: u64 = 250;

/// Seeds that found something once, and in how many steps: the last with commits that failed while keys moved.
const FOUND: [(u64, u64); 4] = [(173, 2000), (40343, 600), (40526, 600), (40985, 600)];

#[test]
fn what_was_found_once_is_not_found_again() {
    for (seed, steps) in FOUND {
        if let Err(failure) = DurableWorld::run(Plan { seed, steps }) {
            panic!("{failure}; replay: cargo run -p sim -- --seed {seed} --steps {steps}");
        }
    }
}
