//! Deleted items do not come back when the tombstone's segment is freed. This holds however many
//! commits and restarts lie between the delete and that moment.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::SimDevice;
use larder_engine::{Delete, Deleted, Durability, Expiry, Options, Outcome, Store, WhenFull};
use machine::{Machine, NOW};
use std::sync::Arc;

const VALUE: usize = 10_000;
const LARGE: usize = 4 << 20;

impl Machine {
    fn start(device: SimDevice) -> Machine {
        let device = Arc::new(device);
        let store = store(Arc::<SimDevice>::clone(&device), Durability::Async);
        let (memory, when_full) = (32 << 20, WhenFull::Refuse);
        let store = Some(store);
        let options =
            Options { memory, max_item_size: LARGE as u64, when_full, store, ..Options::default() };
        Machine::open(device, options)
    }

    /// Opens the image of the device with a new engine, as a restarted process would.
    fn restarted(self) -> Machine {
        Machine::start(self.device.image())
    }

    /// Stores a value. Returns false if the store has no room at the moment.
    fn set(&mut self, key: u32, len: usize) -> bool {
        let (name, value) = (format!("key{key}"), vec![b'v'; len]);
        let store = Store::set(&value, 0, Expiry::NEVER);
        match self.session.store(&self.session.key(name.as_bytes()), store) {
            Outcome::Ready(_) => true,
            Outcome::NeedsSpace | Outcome::Refused(_) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Deletes the key. Returns true if it existed.
    fn delete(&mut self, key: u32) -> bool {
        let name = format!("key{key}");
        loop {
            match self.session.delete(&self.session.key(name.as_bytes()), &Delete::default()) {
                Outcome::Ready(deleted) => return deleted == Deleted::Deleted,
                Outcome::NeedsRead => self.read(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_there(&mut self, key: u32) -> bool {
        let name = format!("key{key}");
        loop {
            match self.session.get(&self.session.key(name.as_bytes())) {
                Outcome::Ready(found) => return found.is_some(),
                Outcome::NeedsRead => {}
                other => panic!("{other:?}"),
            }
            self.read();
        }
    }

    fn read(&mut self) {
        self.engine.serve_reads();
        self.session.tick(NOW);
    }

    fn commit(&mut self) {
        assert!(self.engine.commit());
        self.session.tick(NOW);
    }

    /// Requests room for a large value, so that the cleaner frees dead segments. Runs 20 turns of
    /// the cleaner, each followed by `commits` commits.
    fn clean(&mut self, commits: u32) {
        assert!(!self.set(u32::MAX, LARGE - 1000), "there is too much room");
        for _ in 0..20 {
            self.engine.clean(&mut self.cleaner);
            self.session.tick(NOW);
            (0..commits).for_each(|_| self.commit());
        }
    }
}

/// If a commit writes no record, its number may be on the device only as the cover of a dead map.
/// If the next process used the number again, that map would seem to list the records superseded in
/// the new commit. In fact, no map would list them.
#[test]
fn numbers_of_commits_that_wrote_no_record_are_not_given_again() {
    let mut machine = Machine::start(SimDevice::new(24 << 20, 1));
    let mut keys = 0;
    while machine.set(keys, VALUE) {
        keys += 1;
        machine.commit();
    }
    assert!(keys > 1000, "{keys} have room");
    // After a restart, the tombstones get a segment with nothing else. The cleaner does not clean
    // the other segments, because too few of their records are dead.
    machine = machine.restarted();
    assert!((10..keys).step_by(60).all(|key| machine.delete(key)));
    machine.commit();
    machine = machine.restarted();
    let last = machine.engine.open_commit(0);
    (0..200).for_each(|_| machine.commit());
    // The segment of the tombstones is freed once the other segments have dead maps. These maps
    // cover the commits that wrote nothing.
    machine.clean(5);
    machine = machine.restarted();
    assert!(machine.engine.open_commit(0) > last + 200);
    // Nothing else is written, so this tombstone gets its own segment. That segment is freed like
    // the segment of the earlier tombstones.
    assert!(machine.delete(0));
    machine.commit();
    machine = machine.restarted();
    machine.clean(1);
    machine = machine.restarted();
    assert!(!machine.is_there(0), "the deleted item is back");
    assert!(machine.is_there(1));
}
