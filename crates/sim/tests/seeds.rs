//! A few hundred worlds on every test run; `cargo run --release -p sim -- --seeds 100000` by night.

use sim::{DurableWorld, Plan, Seen, ThreadedWorld, World};

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
    let mut seen = Seen::default();
    for seed in 0..STORES {
        match DurableWorld::run(Plan { seed, steps: 2000 }) {
            Ok(world) => seen += world,
            Err(failure) => {
                panic!("{failure}; replay: cargo run -p sim -- --seed {seed} --steps 2000")
            }
        }
    }
    // What has cooled did move to lower devices, and the power went in the middle of that.
    assert!(seen.moved > MOVED && seen.interrupted > INTERRUPTED, "{seen:?}");
    // And devices grew while they were used.
    assert!(seen.grown > GROWN, "{seen:?}");
}

/// Worlds with a store, a minute of them.
const STORES: u64 = 250;
/// In these worlds so many segments at least are moved to lower devices.
const MOVED: u64 = 1000;
/// And so often at least the power goes before they are durable there.
const INTERRUPTED: u64 = 50;
/// And so many devices at least grow while they are used.
const GROWN: u64 = 200;

/// A seed does not decide in which order threads run: one that fails may have to be tried more than once.
#[test]
fn stores_keep_what_they_acknowledged_to_many_threads() {
    for seed in 0..20 {
        if let Err(failure) = ThreadedWorld::run(Plan { seed, steps: 10_000 }) {
            panic!(
                "{failure}; replay: cargo run -p sim -- --worlds threads --seed {seed} --steps 10000"
            );
        }
    }
}

/// Seeds that found something once, and in how many steps: three with commits that failed while keys moved, one with dead
/// maps that were newer than every commit that was left, one with keys that were to move to a lane that kept ends, the last
/// with a superblock whose sync lost what a failed commit had left in the cache.
const FOUND: [(u64, u64); 7] = [
    (173, 2000),
    (40343, 600),
    (40526, 600),
    (40985, 600),
    (700_053_388, 500),
    (700_028_329, 500),
    (800_090_325, 500),
];

#[test]
fn what_was_found_once_is_not_found_again() {
    for (seed, steps) in FOUND {
        if let Err(failure) = DurableWorld::run(Plan { seed, steps }) {
            panic!("{failure}; replay: cargo run -p sim -- --seed {seed} --steps {steps}");
        }
    }
}
