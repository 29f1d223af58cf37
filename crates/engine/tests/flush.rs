//! flush_all with a store: no thread waits for the device, and no reply says that items are gone
//! before the fence of their flush is durable. Crashes and device failures are handled.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::{Device, Failure, Fault, Operation, SimDevice};
use larder_engine::*;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

const NOW: u32 = 1000;

struct World {
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
    session: Session,
}

impl World {
    fn open(device: SimDevice, durability: Durability) -> World {
        let device = Arc::new(device);
        let store = store(Arc::clone(&device) as Arc<dyn Device>, durability);
        let options = Options { memory: 16 << 20, store: Some(store), ..Options::default() };
        let engine = Engine::open_without_threads(options).expect("it opens");
        let mut session = engine.session(Waker::noop().clone());
        session.tick(NOW);
        World { device, engine, session }
    }

    fn with_items(durability: Durability) -> World {
        let world = World::open(SimDevice::new(64 << 20, 1), durability);
        for key in 0..100 {
            world.set(key);
        }
        assert!(world.engine.commit());
        world
    }

    fn set(&self, key: u32) -> Option<CommitPoint> {
        let key = key.to_string();
        match self
            .session
            .store(&self.session.key(key.as_bytes()), Store::set(b"v", 0, Expiry::NEVER))
        {
            Outcome::Ready(_) => None,
            Outcome::AfterCommit(_, point) => Some(point),
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether a key exists, and the commit that the answer waits for.
    fn get(&self, key: u32) -> (bool, Option<CommitPoint>) {
        let key = key.to_string();
        match self.session.get(&self.session.key(key.as_bytes())) {
            Outcome::Ready(item) => (item.is_some(), None),
            Outcome::AfterCommit(item, point) => (item.is_some(), Some(point)),
            other => panic!("{other:?}"),
        }
    }

    fn flush(&self) -> CommitPoint {
        match self.session.flush_all(None) {
            Outcome::Ready(points) => points[0],
            other => panic!("{other:?}"),
        }
    }

    fn state(&self, point: CommitPoint) -> CommitState {
        self.session.commit_state(point)
    }

    fn restarted(&self, seed: u64, durability: Durability) -> World {
        World::open(self.device.crash(seed), durability)
    }
}

#[test]
fn many_flushes_share_one_sync_by_the_committer() {
    for durability in [Durability::Sync, Durability::Async] {
        let world = World::with_items(durability);
        let before = world.device.counts();
        let points: Vec<CommitPoint> = (0..1700).map(|_| world.flush()).collect();
        assert_eq!(world.device.counts().syncs, before.syncs, "a caller has synced");
        assert_eq!(world.device.counts().writes, before.writes, "a caller has written");
        assert!(points.iter().all(|&point| world.state(point) == CommitState::Pending));
        assert!(!world.get(1).0);
        assert!(world.engine.commit());
        assert_eq!(world.device.counts().syncs, before.syncs + 1);
        assert!(points.iter().all(|&point| world.state(point) == CommitState::Durable));
        for seed in 0..5 {
            let world = world.restarted(seed, durability);
            assert!((0..100).all(|key| !world.get(key).0), "a flushed item is back");
        }
    }
}

#[test]
fn a_hanging_device_stops_only_calls_that_wait_for_it() {
    let world = World::with_items(Durability::Sync);
    world.set(200);
    world.device.hold(Operation::Sync);
    let committer = {
        let engine = Arc::clone(&world.engine);
        thread::spawn(move || engine.commit())
    };
    assert!(world.device.wait_until_held(Duration::from_secs(30)));
    // While the device holds the first commit, clients must wait for a later one: for the reply to
    // a flush, and for replies to what follows it.
    let point = world.flush();
    let after = world.set(7).expect("it waits");
    let (there, waits) = world.get(8);
    assert!(!there && waits.is_some_and(|waits| waits.position >= point.position));
    assert!(world.get(7).0);
    assert_eq!(world.state(after), CommitState::Pending);
    world.device.release();
    assert!(committer.join().expect("no panic"));
    assert!(world.engine.commit());
    assert_eq!([world.state(point), world.state(after)], [CommitState::Durable; 2]);
    assert_eq!(world.get(8), (false, None));
    let world = world.restarted(3, Durability::Sync);
    assert_eq!((world.get(7).0, world.get(8).0, world.get(200).0), (true, false, false));
}

#[test]
fn a_dump_waits_for_the_flush_that_it_shows() {
    let world = World::with_items(Durability::Sync);
    let scan = || {
        let (mut cursor, mut waits) = (ScanCursor::default(), Vec::new());
        loop {
            let more = world.session.scan(&mut cursor, &mut |_| panic!("an item after the flush"));
            match more {
                Outcome::Ready(true) => {}
                Outcome::AfterCommit(true, point) => waits.push(point),
                Outcome::Ready(false) => return waits,
                other => panic!("{other:?}"),
            }
        }
    };
    let point = world.flush();
    let waits = scan();
    assert!(waits.iter().any(|&waits| waits.position >= point.position), "{waits:?}");
    assert!(world.engine.commit());
    assert!(scan().is_empty());
}

#[test]
fn a_failed_flush_is_not_undone_and_answers_wait_until_it_is_durable() {
    let world = World::with_items(Durability::Sync);
    let point = world.flush();
    world.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
    assert!(!world.engine.commit());
    assert_eq!(world.state(point), CommitState::Failed);
    // The items are gone, but a crash would bring them back, so answers must wait.
    let (there, waits) = world.get(1);
    assert!(!there);
    let waits = waits.expect("the fence is not durable");
    assert_eq!(world.state(waits), CommitState::Pending);
    // Further flushes must be refused while the device fails.
    assert!(matches!(world.session.flush_all(None), Outcome::Refused(Refusal::StoreFailed)));
    world.device.mend();
    assert!(world.engine.commit() || world.engine.commit());
    assert_eq!(world.state(waits), CommitState::Durable);
    assert_eq!(world.get(1), (false, None));
    let world = world.restarted(5, Durability::Sync);
    assert!((0..100).all(|key| !world.get(key).0));
}

#[test]
fn a_delayed_flush_survives_a_crash_and_happens_on_time() {
    let world = World::with_items(Durability::Sync);
    let before = world.device.counts();
    let Outcome::Ready(points) = world.session.flush_all(Some(NOW + 10)) else { panic!("refused") };
    assert_eq!(world.device.counts().syncs, before.syncs);
    assert!(world.engine.commit());
    assert_eq!(world.state(points[0]), CommitState::Durable);
    let mut world = world.restarted(1, Durability::Sync);
    assert!(world.get(1).0);
    let before = world.device.counts();
    world.session.tick(NOW + 10);
    assert_eq!(world.device.counts().syncs, before.syncs, "a turn has synced");
    assert!(!world.get(1).0);
    assert!(world.engine.commit());
    let world = world.restarted(2, Durability::Sync);
    assert!((0..100).all(|key| !world.get(key).0));
}

#[test]
fn a_drain_is_recorded_by_another_thread() {
    let devices = [Arc::new(SimDevice::new(64 << 20, 1)), Arc::new(SimDevice::new(64 << 20, 2))];
    let mut options = store(Arc::clone(&devices[0]) as Arc<dyn Device>, Durability::Sync);
    let second = StoreDevice {
        name: "second".to_owned(),
        device: Arc::clone(&devices[1]) as Arc<dyn Device>,
        lower: None,
        seeds: [4, 5, 6],
    };
    options.devices.push(second);
    let options = Options { memory: 64 << 20, store: Some(options), ..Options::default() };
    let engine = Engine::open_without_threads(options).expect("it opens");
    let session = engine.session(Waker::noop().clone());
    let syncs = || devices.iter().map(|device| device.counts().syncs).sum::<u64>();
    let before = syncs();
    let asked = |name: &str| session.drain(name, true);
    assert!(matches!(asked("third"), Outcome::Ready(Err(DrainError::Unknown { .. }))));
    assert!(matches!(asked("second"), Outcome::NeedsSpace));
    assert_eq!(syncs(), before, "a caller has synced");
    engine.move_partitions();
    assert!(matches!(asked("second"), Outcome::Ready(Ok(()))));
    assert!(matches!(asked("store"), Outcome::Ready(Err(DrainError::Last))));
    assert!(engine.lanes()[1].draining);
    // If the devices fail, the call of `drain` must return the error.
    devices.iter().for_each(|d| d.plan(Fault::lasting(Operation::Write, 1, Failure::Io)));
    let keep = || session.drain("second", false);
    assert!(matches!(keep(), Outcome::NeedsSpace));
    engine.move_partitions();
    assert!(matches!(keep(), Outcome::Ready(Err(DrainError::Device(_)))));
    devices.iter().for_each(|device| device.mend());
    assert!(matches!(keep(), Outcome::NeedsSpace));
}
