//! Cold data does not slow down hot data: freeing hot segments reads no cold ones and writes few
//! dead maps.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Random, SimDevice};
use larder_engine::{Delete, Deleted, Durability, Expiry, Options, Outcome, Stats, Store};
use machine::{Machine, NOW};
use std::sync::Arc;

const MEMORY: u64 = 32 << 20;
const COLD: u32 = 60_000;
const COLD_VALUE: usize = 1000;
const HOT: u32 = 2_000;
const HOT_VALUE: usize = 100;

struct Load {
    machine: Machine,
    now: u32,
    random: Random,
}

fn machine(device: SimDevice) -> Machine {
    let device = Arc::new(device);
    let store = Some(store(Arc::<SimDevice>::clone(&device), Durability::Async));
    Machine::open(device, Options { memory: MEMORY, store, ..Options::default() })
}

impl Load {
    /// Creates a store with many cold items.
    fn new() -> Load {
        let machine = machine(SimDevice::new(160 << 20, 1));
        let mut load = Load { machine, now: NOW, random: Random::new(1) };
        for cold in 0..COLD {
            load.set(&format!("cold{cold}"), COLD_VALUE, Expiry::NEVER);
        }
        load.turn();
        load
    }

    fn below(&mut self, n: u32) -> u32 {
        self.random.below(n.into()) as u32
    }

    fn stats(&self) -> Stats {
        self.machine.engine.stats()
    }

    /// Runs a commit and a turn of the cleaner.
    fn turn(&mut self) {
        let Machine { engine, session, cleaner, .. } = &mut self.machine;
        session.tick(self.now);
        assert!(engine.commit());
        engine.clean(cleaner);
        engine.serve_reads();
        session.tick(self.now);
    }

    fn set(&mut self, key: &str, len: usize, expiry: Expiry) {
        let value = vec![b'v'; len];
        loop {
            let session = &self.machine.session;
            match session.store(&session.key(key.as_bytes()), Store::set(&value, 0, expiry)) {
                Outcome::Ready(_) => return,
                Outcome::NeedsSpace | Outcome::NeedsRead => self.turn(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn delete(&mut self, key: &str) -> bool {
        loop {
            let session = &self.machine.session;
            match session.delete(&session.key(key.as_bytes()), &Delete::default()) {
                Outcome::Ready(deleted) => return deleted == Deleted::Deleted,
                Outcome::NeedsSpace | Outcome::NeedsRead => self.turn(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_there(&mut self, key: &str) -> bool {
        loop {
            let session = &self.machine.session;
            match session.get(&session.key(key.as_bytes())) {
                Outcome::Ready(found) => return found.is_some(),
                Outcome::NeedsRead => self.turn(),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes hot items, each of which expires after a few seconds.
    fn short_lives(&mut self, writes: u32) {
        for n in 0..writes {
            let key = format!("hot{}", self.below(HOT));
            self.set(&key, HOT_VALUE, Expiry::at(self.now + 3));
            self.pass(n);
        }
    }

    /// Advances time after request `n`. A second passes every 2000 requests, and a commit is made
    /// every 500.
    fn pass(&mut self, n: u32) {
        if n.is_multiple_of(2000) {
            self.now += 1;
        }
        if n.is_multiple_of(500) {
            self.turn();
        }
    }
}

/// Returns what `during` causes, in bytes: the size of the dead maps that are written, of the
/// segments that are freed, and of the whole segments that are read.
fn cost(load: &mut Load, during: impl FnOnce(&mut Load)) -> [u64; 3] {
    let before = load.stats();
    during(load);
    let after = load.stats();
    let cost = [
        after.map_written_bytes - before.map_written_bytes,
        after.freed_bytes - before.freed_bytes,
        after.segment_read_bytes - before.segment_read_bytes,
    ];
    println!("maps {}, freed {}, read {}", cost[0], cost[1], cost[2]);
    cost
}

#[test]
fn hot_items_that_expire_leave_cold_segments_alone() {
    let mut load = Load::new();
    let [maps, freed, read] = cost(&mut load, |load| load.short_lives(300_000));
    assert!(freed > 20 << 20, "{freed} bytes freed");
    assert_eq!(read, 0);
    assert!(maps * 1000 <= freed, "{maps} bytes of maps for {freed}");
}

#[test]
fn hot_items_that_are_deleted_leave_cold_segments_alone() {
    let mut load = Load::new();
    let [maps, freed, read] = cost(&mut load, |load| {
        for n in 0..330_000 {
            let key = format!("hot{}", load.below(HOT));
            if n % 2 == 0 {
                load.set(&key, HOT_VALUE, Expiry::NEVER);
            } else {
                load.delete(&key);
            }
            load.pass(n);
        }
    });
    assert!(freed > 20 << 20, "{freed} bytes freed");
    assert_eq!(read, 0);
    assert!(maps * 100 <= freed, "{maps} bytes of maps for {freed}");
}

#[test]
fn deletes_all_over_cold_items_write_few_maps() {
    let mut load = Load::new();
    let mut deleted = vec![false; COLD as usize];
    let [maps, freed, _] = cost(&mut load, |load| {
        for n in 0..400_000 {
            if n % 8 == 0 {
                let cold = load.below(COLD);
                load.delete(&format!("cold{cold}"));
                deleted[cold as usize] = true;
            }
            let key = format!("hot{}", load.below(HOT));
            load.set(&key, HOT_VALUE, Expiry::at(load.now + 3));
            load.pass(n);
        }
    });
    assert!(freed > 20 << 20, "{freed} bytes freed");
    assert!(maps * 20 <= freed, "{maps} bytes of maps for {freed}");
    assert!(load.machine.engine.commit());
    // Opens the store as another process would.
    load.machine = machine(load.machine.device.image());
    for cold in (0..COLD).step_by(7) {
        assert_eq!(load.is_there(&format!("cold{cold}")), !deleted[cold as usize], "cold{cold}");
    }
}
