//! Tests one anomaly at every place where it can happen. For example, a world runs with its first
//! write failing, then with its second, and so on, until the world has no further write. The engine
//! must agree with the model each time, both right after the anomaly and after the power loss that
//! follows.

use larder_disk::Operation;
use sim::{Anomaly, DurableWorld, Plan};

/// Seeds of worlds that cover sync and async mode, stores that evict and stores that refuse writes
/// when full, with and without large values.
const SEEDS: [u64; 4] = [0, 1, 2, 4];
/// Worlds with several devices. The anomaly happens on one of them.
const SEVERAL: [u64; 4] = [3, 7, 8, 9];
/// Worlds in which segments move to a lower device. The anomaly happens on that device.
const TIERED: [u64; 3] = [25, 48, 59];
/// A world with few segments: a recovery reads every segment, and the test lets each read fail.
const SMALL: [u64; 1] = [5];
const STEPS: u64 = 60;

/// Runs each world again and again. The anomaly happens at the first call or request that it can
/// concern, in the next run at the second, and so on, until the world has no further one.
fn at_every_place(seeds: &[u64], anomaly: impl Fn(u64) -> Anomaly) {
    for &seed in seeds {
        let mut places = 0;
        for nth in 1.. {
            let anomaly = anomaly(nth);
            match DurableWorld::run_with(Plan { seed, steps: STEPS }, anomaly) {
                Ok(true) => places += 1,
                Ok(false) => break,
                Err(failure) => panic!("{anomaly:?}: {failure}"),
            }
        }
        assert!(places > 0, "nothing could go wrong");
    }
}

#[test]
fn any_write_may_fail() {
    at_every_place(&SEEDS, |nth| Anomaly::Call(Operation::Write, nth));
    at_every_place(&SEVERAL, |nth| Anomaly::Call(Operation::Write, nth));
    at_every_place(&TIERED, |nth| Anomaly::Call(Operation::Write, nth));
}

#[test]
fn any_sync_may_fail() {
    at_every_place(&SEEDS, |nth| Anomaly::Call(Operation::Sync, nth));
    at_every_place(&SEVERAL, |nth| Anomaly::Call(Operation::Sync, nth));
    at_every_place(&TIERED, |nth| Anomaly::Call(Operation::Sync, nth));
}

#[test]
fn any_read_may_fail() {
    at_every_place(&SMALL, |nth| Anomaly::Call(Operation::Read, nth));
}

#[test]
fn any_memory_request_may_be_refused() {
    at_every_place(&SEEDS, Anomaly::Memory);
    at_every_place(&SEVERAL, Anomaly::Memory);
}

#[test]
fn the_power_may_fail_at_any_change() {
    at_every_place(&SEEDS, Anomaly::PowerLoss);
    at_every_place(&SEVERAL, Anomaly::PowerLoss);
    at_every_place(&TIERED, Anomaly::PowerLoss);
}
