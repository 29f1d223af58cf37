//! A few hundred worlds on every test run; `cargo run --release -p sim -- --seeds 100000` by night.

use sim::{Plan, World};

#[test]
fn worlds_agree_with_the_model() {
    for seed in 0..200 {
        if let Err(failure) = World::run(Plan { seed, steps: 3000 }) {
            panic!("{failure}; replay: cargo run -p sim -- --seed {seed} --steps 3000");
        }
    }
}
