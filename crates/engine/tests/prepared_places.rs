//! In sync mode, the engine writes the place of the next segment once in advance. Otherwise a file
//! system would record the first write of each block in its metadata, and a sync would wait for
//! that.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{Durability, Expiry, Health, Options, Outcome, Store};
use machine::{Machine, NOW};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;

impl Machine {
    fn start(device: Arc<SimDevice>, durability: Durability) -> Machine {
        let store = store(Arc::<SimDevice>::clone(&device), durability);
        let options = Options { memory: 32 << 20, store: Some(store), ..Options::default() };
        Machine::open(device, options)
    }

    /// Runs as many turns of the cleaner as it could need. Returns the bytes written to the device.
    fn clean(&mut self) -> u64 {
        let before = self.engine.stats().device_written_bytes;
        for _ in 0..10 {
            self.engine.clean(&mut self.cleaner);
        }
        self.engine.stats().device_written_bytes - before
    }

    fn set(&mut self, key: u32, len: usize) {
        let (name, value) = (key.to_le_bytes(), vec![b'v'; len]);
        let stored =
            self.session.store(&self.session.key(&name), Store::set(&value, 0, Expiry::NEVER));
        assert!(matches!(stored, Outcome::Ready(_) | Outcome::AfterCommit(..)), "{stored:?}");
    }

    fn len(&self, key: u32) -> Option<usize> {
        match self.session.get(&self.session.key(&key.to_le_bytes())) {
            Outcome::Ready(found) | Outcome::AfterCommit(found, _) => {
                found.map(|item| item.value().len())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn device() -> Arc<SimDevice> {
    Arc::new(SimDevice::new(SIZE, 1))
}

#[test]
fn one_place_is_ready_at_a_time_and_only_in_sync_mode() {
    for durability in [Durability::None, Durability::Async] {
        assert_eq!(Machine::start(device(), durability).clean(), 0);
    }
    let mut machine = Machine::start(device(), Durability::Sync);
    let segment = machine.clean();
    assert!(segment > 0);
    assert_eq!(machine.clean(), 0, "it is ready already");
    machine.set(0, 100);
    assert_eq!(machine.clean(), segment, "the next one");
    assert!(machine.engine.commit());
    assert_eq!(machine.len(0), Some(100));
}

#[test]
fn a_place_is_prepared_once_despite_later_writes() {
    let mut machine = Machine::start(device(), Durability::Sync);
    let mut prepared = 0;
    for key in 0..1000 {
        machine.set(key % 10, 100_000);
        assert!(machine.engine.commit());
        prepared += machine.clean();
        machine.session.tick(NOW);
        assert!(machine.engine.commit());
        machine.session.tick(NOW);
    }
    let stats = machine.engine.stats();
    assert!(stats.device_written_bytes > 2 * SIZE, "it went round: {stats:?}");
    assert!((SIZE / 4..=SIZE).contains(&prepared), "{prepared} bytes");
    assert!((0..10).all(|key| machine.len(key) == Some(100_000)));
}

#[test]
fn a_failed_preparation_of_a_place_is_ignored() {
    let mut machine = Machine::start(device(), Durability::Sync);
    machine.device.plan(Fault::once(
        Operation::Write,
        machine.device.counts().writes + 1,
        Failure::Io,
    ));
    assert_eq!(machine.clean(), 0);
    machine.set(0, 100);
    assert!(machine.engine.commit());
    assert_eq!((machine.engine.health(), machine.len(0)), (Health::Good, Some(100)));
}
