//! Stores that span several devices. Each device has a share of the keys, and shares move when
//! devices are added or removed. No old version of an item may reappear. This also holds if the
//! operator forgets a device, adds an outdated one, or a device loses power during a move.

#[path = "common/store.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use common::store;
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{
    Delete, Deleted, Durability, Engine, Expiry, Health, LaneNumber, ManualCleaner, OpenError,
    Options, Outcome, Session, Store, StoreDevice, StoreError, StoreOptions, Stored, WhenFull,
};

const DEVICE: u64 = 16 << 20;

/// An engine without threads, on devices that a test may crash, remove and add.
struct Machine {
    devices: Vec<(String, Arc<SimDevice>)>,
    options: Options,
    engine: Arc<Engine>,
    session: Session,
    cleaner: ManualCleaner,
}

fn device(name: &str) -> (String, Arc<SimDevice>) {
    let seed = name.bytes().map(u64::from).sum();
    (name.to_owned(), Arc::new(SimDevice::new(DEVICE, seed)))
}

fn options(devices: &[(String, Arc<SimDevice>)], durability: Durability) -> Options {
    let device = |(name, device): &(String, Arc<SimDevice>)| {
        let seed: u64 = name.bytes().fold(7, |seed, byte| seed * 131 + u64::from(byte));
        let device = Arc::<SimDevice>::clone(device);
        StoreDevice { name: name.clone(), device, lower: None, seeds: [seed, seed + 1, seed + 2] }
    };
    let store = StoreOptions {
        devices: devices.iter().map(device).collect(),
        ..store(Arc::<SimDevice>::clone(&devices[0].1), durability)
    };
    Options { memory: 32 << 20, store: Some(store), ..Options::default() }
}

fn names(names: &[&str]) -> Vec<(String, Arc<SimDevice>)> {
    names.iter().map(|name| device(name)).collect()
}

fn value(key: u32, version: u32) -> Vec<u8> {
    format!("{key}.{version} ").repeat(1 + key as usize % 40).into_bytes()
}

impl Machine {
    fn start(devices: Vec<(String, Arc<SimDevice>)>, durability: Durability) -> Machine {
        let options = options(&devices, durability);
        Machine::with(devices, options).expect("a machine that starts")
    }

    fn with(
        devices: Vec<(String, Arc<SimDevice>)>,
        options: Options,
    ) -> Result<Machine, OpenError> {
        let engine = Engine::open_without_threads(options.clone())?;
        let mut session = engine.session(Waker::noop().clone());
        session.tick(1000);
        Ok(Machine { devices, options, engine, session, cleaner: ManualCleaner::default() })
    }

    fn turn(&mut self) {
        self.engine.serve_reads();
        self.engine.commit();
        self.engine.clean(&mut self.cleaner);
        self.engine.move_partitions();
        self.session.tick(1000);
    }

    /// Repeats a call until it no longer waits.
    fn call<T>(&mut self, mut call: impl FnMut(&Session) -> Outcome<T>) -> Option<T> {
        for _ in 0..100_000 {
            match call(&self.session) {
                Outcome::Ready(answer) => return Some(answer),
                Outcome::AfterCommit(answer, point) => {
                    self.engine.commit();
                    let state = self.session.commit_state(point);
                    return (state == larder_engine::CommitState::Durable).then_some(answer);
                }
                Outcome::Refused(_) => return None,
                Outcome::NeedsRead | Outcome::NeedsSpace => self.turn(),
            }
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }

    fn set(&mut self, key: u32, version: u32) -> bool {
        let (name, value) = (format!("key{key}"), value(key, version));
        let stored = self.call(|s| {
            let store = Store::set(&value, key, Expiry::at(5000 + key));
            s.store(&s.key(name.as_bytes()), store)
        });
        matches!(stored, Some(Stored::Stored { .. }))
    }

    fn has(&mut self, name: &[u8]) -> bool {
        self.call(|s| s.get(&s.key(name)).map(|found| found.is_some())) == Some(true)
    }

    fn delete(&mut self, key: u32) -> bool {
        let name = format!("key{key}");
        let deleted = self.call(|s| s.delete(&s.key(name.as_bytes()), &Delete::default()));
        deleted == Some(Deleted::Deleted)
    }

    /// Returns value, flags, expiry and cas id.
    #[allow(clippy::type_complexity)]
    fn get(&mut self, key: u32) -> Option<Option<(Vec<u8>, u32, Expiry, u64)>> {
        let name = format!("key{key}");
        self.call(|s| {
            s.get(&s.key(name.as_bytes())).map(|found| {
                found.map(|item| (item.value().to_vec(), item.flags(), item.expiry(), item.cas()))
            })
        })
    }

    fn version(&mut self, key: u32) -> Option<u32> {
        let (found, ..) = self.get(key).expect("a get that is answered")?;
        (0..20).find(|&version| value(key, version) == found).or_else(|| panic!("{found:?}"))
    }

    /// Runs commits, the cleaner and the mover until the mover has nothing left to do.
    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            self.engine.serve_reads();
            self.engine.commit();
            self.engine.clean(&mut self.cleaner);
            self.session.tick(1000);
            if !self.engine.move_partitions() {
                return;
            }
        }
        panic!("the mover never ends: {:?}", self.engine.lanes());
    }

    /// Restarts with the devices as they are after the process has ended. With a `seed`, all
    /// devices have lost power, and the seed determines what they lost. `change` may alter the
    /// devices and options first.
    fn restart(
        self,
        seed: Option<u64>,
        change: impl FnOnce(&mut Vec<(String, Arc<SimDevice>)>, &mut Options),
    ) -> Result<Machine, OpenError> {
        let mut devices = self.devices;
        for (_, device) in &mut devices {
            *device = Arc::new(seed.map_or_else(|| device.image(), |seed| device.crash(seed)));
        }
        let durability = self.options.store.as_ref().map_or(Durability::Sync, |s| s.durability);
        let mut unused = self.options.clone();
        change(&mut devices, &mut unused);
        let forget = unused.store.map(|store| store.forget);
        let mut options = options(&devices, durability);
        options.when_full = unused.when_full;
        if let (Some(store), Some(forget)) = (&mut options.store, forget) {
            store.forget = forget;
        }
        Machine::with(devices, options)
    }

    fn partitions(&self) -> BTreeMap<String, usize> {
        self.engine.lanes().into_iter().map(|lane| (lane.name, lane.partitions)).collect()
    }
}

fn filled(machine: &mut Machine, keys: u32) {
    for key in 0..keys {
        assert!(machine.set(key, 0));
    }
}

fn all_there(machine: &mut Machine, keys: u32) {
    for key in 0..keys {
        assert_eq!(machine.version(key), Some(0), "key {key}");
    }
}

#[test]
fn every_device_has_its_share_and_a_power_loss_takes_nothing() {
    let mut machine = Machine::start(names(&["a", "b", "c"]), Durability::Sync);
    filled(&mut machine, 3000);
    let items: Vec<u64> = machine.engine.lanes().iter().map(|lane| lane.items).collect();
    assert!(items.iter().all(|&items| items > 800), "{items:?}");
    for seed in 0..4 {
        machine = machine.restart(Some(seed), |_, _| {}).expect("a start");
        all_there(&mut machine, 3000);
    }
    // The devices may be given in another order, also after a clean stop.
    machine.engine.close().expect("a clean stop");
    let mut machine = machine.restart(Some(9), |devices, _| devices.reverse()).expect("a start");
    assert!(machine.engine.recovered().is_some_and(|recovered| recovered.clean));
    all_there(&mut machine, 3000);
}

#[test]
fn a_device_that_is_added_gets_its_share_while_clients_are_served() {
    let mut machine = Machine::start(names(&["a"]), Durability::Sync);
    filled(&mut machine, 3000);
    assert!(machine.delete(7));
    let before: Vec<_> = (0..3000).map(|key| machine.get(key)).collect();
    let mut machine = machine
        .restart(Some(1), |devices, _| devices.extend(names(&["b", "c"])))
        .expect("a start with more devices");
    assert_eq!(machine.partitions()["a"], 4096);
    for key in 3000..4000 {
        assert!(machine.set(key, 0));
        machine.engine.move_partitions();
    }
    machine.settle();
    let partitions = machine.partitions();
    assert!(partitions.values().all(|&count| count.abs_diff(4096 / 3) < 130), "{partitions:?}");
    let items: u64 = machine.engine.lanes().iter().map(|lane| lane.items).sum();
    assert_eq!(items, 3999, "nothing is anywhere twice");
    // Flags, expiry and cas ids must have moved, too.
    let after: Vec<_> = (0..3000).map(|key| machine.get(key)).collect();
    assert!(before == after);
    // No cas id may be handed out twice.
    for key in (0..4000).filter(|&key| key != 7) {
        let (.., cas) = machine.get(key).flatten().expect("it is there");
        assert!(machine.set(key, 1));
        let (.., next) = machine.get(key).flatten().expect("it is there");
        assert!(next > cas, "key {key}: {next} after {cas}");
    }
    let mut machine = machine.restart(Some(2), |_, _| {}).expect("a start");
    assert_eq!(machine.partitions(), partitions);
    assert_eq!(machine.version(7), None);
    assert!((0..3000).filter(|&key| key != 7).all(|key| machine.version(key) == Some(1)));
}

#[test]
fn a_device_that_is_drained_is_not_needed_any_more() {
    let mut machine = Machine::start(names(&["a", "b", "c"]), Durability::Async);
    filled(&mut machine, 3000);
    assert!(machine.engine.drain("x").is_err());
    machine.engine.drain("b").expect("a drain");
    for key in 0..500 {
        assert!(machine.set(key, 1));
        machine.engine.move_partitions();
    }
    machine.settle();
    let lanes = machine.engine.lanes();
    let drained = lanes.iter().find(|lane| lane.name == "b").expect("the lane");
    assert_eq!((drained.partitions, drained.items, drained.drained), (0, 0, true));
    assert!(machine.engine.commit());
    let mut machine = machine
        .restart(None, |devices, _| devices.retain(|(name, _)| name != "b"))
        .expect("a start without it");
    for key in 0..3000 {
        assert_eq!(machine.version(key), Some(u32::from(key < 500)), "key {key}");
    }
    // The last device cannot be drained, because its keys have no other device to move to.
    machine.engine.drain("a").expect("a drain");
    machine.settle();
    assert!(machine.engine.drain("c").is_err());
    all_there_from(&mut machine, 500, 3000);
}

fn is_draining(engine: &Engine, name: &str) -> bool {
    engine.lanes().iter().any(|lane| lane.name == name && (lane.draining || lane.drained))
}

/// A `store keep` must cancel a drain that the mover has not begun, for example because a device
/// hangs. If one session makes several requests, the last one must count.
#[test]
fn a_drain_that_is_cancelled_in_time_does_not_happen() {
    let mut machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
    assert!(matches!(machine.session.drain("b", false), Outcome::Ready(Ok(()))));
    machine.settle();
    assert!(!is_draining(&machine.engine, "b"));
    // Of these three requests of one session, the last must count.
    assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
    assert!(matches!(machine.session.drain("b", false), Outcome::Ready(Ok(()))));
    assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
    machine.engine.move_partitions();
    assert!(matches!(machine.session.drain("b", true), Outcome::Ready(Ok(()))));
    // The reverse: a drain must cancel a `store keep` that the mover has not begun.
    assert!(matches!(machine.session.drain("b", false), Outcome::NeedsSpace));
    assert!(matches!(machine.session.drain("b", true), Outcome::Ready(Ok(()))));
    machine.settle();
    assert!(is_draining(&machine.engine, "b"));
}

/// Once the mover records a drain, a `store keep` can no longer cancel the drain. The engine must
/// carry out the keep when the drain has been recorded. Here, a sync that hangs keeps the mover
/// recording until the keep has arrived.
#[test]
fn a_keep_follows_a_drain_that_has_begun() {
    let machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    let (engine, device) = (&machine.engine, &machine.devices[0].1);
    let other = engine.session(Waker::from(Arc::new(Sleeper)));
    assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
    assert!(matches!(other.drain("b", true), Outcome::NeedsSpace));
    device.hold(Operation::Sync);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| engine.move_partitions());
        assert!(device.wait_until_held(std::time::Duration::from_secs(20)));
        assert!(matches!(machine.session.drain("b", false), Outcome::NeedsSpace));
        // The other session still waits for the drain, and repeats its call. The repeated call must
        // not cancel the keep, which was requested after the drain.
        assert!(matches!(other.drain("b", true), Outcome::NeedsSpace));
        device.release();
        mover.join().expect("the mover");
    });
    assert!(!is_draining(engine, "b"));
    assert!(matches!(machine.session.drain("b", false), Outcome::Ready(Ok(()))));
}

/// If another session's `store keep` cancels a drain, the session that waits for the drain must be
/// woken after the keep. When that session repeats its call, the engine must carry out the drain.
#[test]
fn sessions_that_want_the_opposite_come_one_after_the_other() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    #[derive(Default)]
    struct Counter(AtomicUsize);
    impl std::task::Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    let (woken, others) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let first = machine.engine.session(Waker::from(Arc::clone(&woken)));
    let second = machine.engine.session(Waker::from(Arc::clone(&others)));
    for _ in 0..3 {
        assert!(matches!(first.drain("b", true), Outcome::NeedsSpace));
    }
    assert!(matches!(second.drain("b", false), Outcome::Ready(Ok(()))));
    assert_eq!((woken.0.load(Relaxed), others.0.load(Relaxed)), (1, 0));
    assert!(matches!(first.drain("b", true), Outcome::NeedsSpace));
    machine.engine.move_partitions();
    assert_eq!(woken.0.load(Relaxed), 2);
    assert!(matches!(first.drain("b", true), Outcome::Ready(Ok(()))));
    assert!(is_draining(&machine.engine, "b"));
}

/// A failure that no session has fetched must not answer a later request.
#[test]
fn an_old_failure_does_not_answer_a_new_drain() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;
    let devices = names(&["a", "b"]);
    let seconds = Arc::new(AtomicU64::new(0));
    let mut options = options(&devices, Durability::Sync);
    if let Some(store) = &mut options.store {
        let seconds = Arc::clone(&seconds);
        let clock = move || Duration::from_secs(seconds.load(Relaxed));
        store.clock = larder_engine::MonotonicClock(Arc::new(clock));
    }
    let mut machine = Machine::with(devices, options).expect("a machine that starts");
    let fail = |machine: &Machine| {
        let device = &machine.devices[0].1;
        device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
        machine.engine.move_partitions();
        device.mend();
    };
    fail(&machine);
    assert!(matches!(machine.session.drain("b", true), Outcome::Ready(Err(_))));
    // The failure was fetched, so the next call is a new request. Its failure is not fetched, and
    // is dropped after a second.
    fail(&machine);
    seconds.store(2, Relaxed);
    assert!(matches!(machine.session.drain("b", true), Outcome::NeedsSpace));
    machine.settle();
    assert!(is_draining(&machine.engine, "b"));
    // A failure must not answer the request of another session.
    let machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    fail(&machine);
    let other = machine.engine.session(Waker::from(Arc::new(Sleeper)));
    assert!(matches!(other.drain("b", true), Outcome::NeedsSpace));
    machine.engine.move_partitions();
    assert!(is_draining(&machine.engine, "b"));
}

/// A waker that only one session has. Drains tell sessions apart by their wakers.
struct Sleeper;

impl std::task::Wake for Sleeper {
    fn wake(self: Arc<Self>) {}
}

/// Returns a machine with `keys` items, and the keys of these items. Its devices "a" and "b" have
/// `parts[0]` and `parts[1]` times [`DEVICE`] bytes. The items together are larger than the memory.
fn beyond_memory(parts: [u64; 2], when_full: WhenFull, keys: u32) -> (Machine, Vec<Vec<u8>>) {
    let devices = (1..).zip(parts).map(|(seed, part)| SimDevice::new(part * DEVICE, seed));
    let devices: Vec<_> =
        ["a".to_owned(), "b".to_owned()].into_iter().zip(devices.map(Arc::new)).collect();
    let options = Options { memory: 16 << 20, when_full, ..options(&devices, Durability::Async) };
    let mut machine = Machine::with(devices, options).expect("a machine that starts");
    let names: Vec<_> = (0..keys).map(|key| format!("key{key}").into_bytes()).collect();
    let value = [b'v'; 6000];
    for name in &names {
        machine.call(|s| s.store(&s.key(name), Store::set(&value, 0, Expiry::NEVER)).map(drop));
        machine.turn();
    }
    (machine, names)
}

/// An unreadable item counts as evicted, but a crash may bring it back until its segment is
/// cleaned. Until then the device accepts no partitions. A drain to this device must end
/// nevertheless.
#[test]
fn a_device_is_drained_to_one_with_unreadable_records() {
    let (mut machine, names) = beyond_memory([3, 3], WhenFull::Evict, 4000);
    for at in (1 << 20..3 * DEVICE).step_by(50_000) {
        machine.devices[1].1.flip_bit(at, 3);
    }
    let lost: Vec<_> = names.iter().filter(|name| !machine.has(name)).collect();
    assert!((1..1000).contains(&lost.len()), "{} cannot be read", lost.len());
    machine.engine.drain("a").expect("a drain");
    machine.settle();
    let lanes = machine.engine.lanes();
    assert!(lanes[0].drained, "{lanes:?}");
    assert!(!lost.into_iter().any(|name| machine.has(name)));
}

/// While a drain moves partitions, source records become unreadable whose copies are already
/// durable on the target. The motion must end all the same, even in a store that refuses to lose
/// items.
#[test]
fn a_motion_ends_although_copied_records_become_unreadable_in_the_source() {
    let (mut machine, names) = beyond_memory([3, 3], WhenFull::Refuse, 4000);
    let in_a = |machine: &Machine, name: &&Vec<u8>| machine.engine.lane_of(name) == Some(0);
    let of_a: Vec<_> = names.iter().filter(|name| in_a(&machine, name)).collect();
    machine.engine.drain("a").expect("a drain");
    let moved = |machine: &Machine, name: &Vec<u8>| machine.engine.lane_of(name) == Some(1);
    let is_leaving = |machine: &Machine, name: &Vec<u8>| {
        moved(machine, name) && machine.engine.lost_with(name).len() == 2
    };
    let leaving = (0..100_000).find_map(|_| {
        machine.turn();
        of_a.iter().copied().find(|name| is_leaving(&machine, name))
    });
    let leaving = leaving.expect("a key whose copy is durable and whose old record is left");
    for at in (1 << 20..3 * DEVICE).step_by(4000) {
        machine.devices[0].1.flip_bit(at, 3);
    }
    let ended = (0..10_000).any(|_| {
        machine.turn();
        machine.engine.lost_with(leaving) == [1]
    });
    assert!(ended, "the motion is still under way");
    assert!(machine.has(leaving));
}

/// With devices of different sizes, keys of both devices share a stripe. Unreadable items of the
/// target are then in the same stripes as keys that move. They must not hold up the drain.
#[test]
fn a_device_is_drained_to_one_that_may_lose_nothing_and_has_unreadable_items() {
    let (mut machine, names) = beyond_memory([6, 3], WhenFull::Refuse, 6000);
    let in_b = |machine: &Machine, name: &&Vec<u8>| machine.engine.lane_of(name) == Some(1);
    let of_b: Vec<_> = names.iter().filter(|name| in_b(&machine, name)).collect();
    assert!((1000..3000).contains(&of_b.len()), "{}", of_b.len());
    for at in (1 << 20..6 * DEVICE).step_by(4000) {
        machine.devices[0].1.flip_bit(at, 3);
    }
    machine.engine.drain("b").expect("a drain");
    machine.settle();
    let lanes = machine.engine.lanes();
    assert!(lanes[1].drained, "{lanes:?}");
    assert!(of_b.iter().all(|name| machine.has(name)));
}

fn all_there_from(machine: &mut Machine, first: u32, keys: u32) {
    (first..keys).for_each(|key| assert_eq!(machine.version(key), Some(0), "key {key}"));
}

#[test]
fn a_drained_device_that_is_still_given_is_not_used_and_one_that_was_left_behind_is_refused() {
    let mut machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    filled(&mut machine, 500);
    let old = Arc::new(machine.devices[1].1.image());
    machine.engine.drain("b").expect("a drain");
    machine.settle();
    let mut machine = machine.restart(Some(1), |_, _| {}).expect("a start");
    assert_eq!(machine.engine.lanes().len(), 1);
    all_there(&mut machine, 500);
    assert!(machine.set(3, 1));
    // The next starts are still given the drained device "b". They must not use it.
    let mut machine =
        machine.restart(Some(3), |devices, _| devices.extend(names(&["c"]))).expect("a start");
    machine.settle();
    let mut machine = machine.restart(Some(4), |_, _| {}).expect("a start");
    assert_eq!((machine.engine.lanes().len(), machine.version(3)), (2, Some(1)));
    // The contents of the old copy of the device are out of date, so a start with it must be
    // refused.
    let refused = machine.restart(Some(2), |devices, _| devices[1].1 = old);
    assert!(matches!(
        refused.map(drop),
        Err(OpenError::Store(StoreError::LeftBehind { name })) if name == "b"
    ));
}

#[test]
fn a_store_with_a_missing_device_is_refused_until_that_is_forgotten() {
    let mut machine = Machine::start(names(&["a", "b", "c"]), Durability::Sync);
    filled(&mut machine, 3000);
    let had: Vec<bool> = {
        let lane = |key: u32| machine.engine.lane_of(format!("key{key}").as_bytes());
        (0..3000).map(|key| lane(key) == Some(1)).collect()
    };
    let devices = machine.devices.clone();
    let refused = machine.restart(Some(1), |devices, _| drop(devices.remove(1)));
    assert!(matches!(
        refused.map(drop),
        Err(OpenError::Store(StoreError::Missing { lanes, .. })) if lanes == [LaneNumber(1)]
    ));
    let mut machine = Machine::start(devices, Durability::Sync);
    assert!(machine.set(1, 0));
    let mut machine = machine
        .restart(Some(2), |devices, options| {
            devices.remove(1);
            options.store.as_mut().expect("a store").forget = vec![LaneNumber(1)];
        })
        .expect("a start without it");
    for (key, had) in had.iter().enumerate() {
        let expected = if *had { None } else { Some(0) };
        assert_eq!(machine.version(key as u32), expected, "key {key}");
    }
    filled(&mut machine, 3000);
    // Forgetting the same lane again must change nothing. Forgetting a lane that is present must be
    // refused.
    let mut machine = machine
        .restart(Some(3), |_, options| {
            options.store.as_mut().expect("a store").forget = vec![LaneNumber(1)]
        })
        .expect("a start");
    all_there(&mut machine, 3000);
    let refused = machine.restart(Some(4), |_, options| {
        options.store.as_mut().expect("a store").forget = vec![LaneNumber(2)]
    });
    assert!(matches!(
        refused.map(drop),
        Err(OpenError::Store(StoreError::NotMissing { lane: LaneNumber(2) }))
    ));
}

/// Opens the store. A start refuses a new device with a torn first block, because such a device may
/// hold anything. As an operator would, this function then puts an empty device in its place.
fn start_erasing_torn(mut devices: Vec<(String, Arc<SimDevice>)>, new: &[&str]) -> Machine {
    loop {
        match Machine::with(devices.clone(), options(&devices, Durability::Sync)) {
            Ok(machine) => return machine,
            Err(OpenError::Store(StoreError::Lane { name, error })) => {
                assert!(matches!(*error, StoreError::Superblock(_)), "{name}: {error}");
                assert!(new.contains(&name.as_str()), "{name}: {error}");
                let torn = devices.iter_mut().find(|(other, _)| *other == name);
                *torn.expect("one of them") = device(&name);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Power fails while a store is created or devices join it. The next start must finish the creation
/// or the join.
#[test]
fn a_start_with_new_devices_may_be_interrupted() {
    for existing in [0, 1, 2] {
        for which in 0..3 {
            for nth in 1.. {
                let all = ["a", "b", "c"];
                let mut devices = names(&all[..existing]);
                if existing > 0 {
                    let mut machine = Machine::start(devices, Durability::Sync);
                    filled(&mut machine, 30);
                    devices = machine.devices.clone();
                    for (_, device) in &mut devices {
                        *device = Arc::new(device.crash(nth));
                    }
                }
                devices.extend(names(&all[existing..]));
                devices[which].1.stop_at(nth);
                let opened = Engine::open_without_threads(options(&devices, Durability::Sync));
                let was_stopped = opened.is_err();
                drop(opened);
                for (_, device) in &mut devices {
                    *device = Arc::new(device.crash(nth));
                }
                let mut machine = start_erasing_torn(devices, &all[existing..]);
                assert_eq!(machine.engine.lanes().len(), 3);
                if existing > 0 {
                    all_there(&mut machine, 30);
                }
                filled(&mut machine, 60);
                machine.settle();
                let mut machine = machine.restart(Some(nth), |_, _| {}).expect("a start");
                all_there(&mut machine, 60);
                if !was_stopped {
                    assert!(nth > 1, "a start changes every device");
                    break;
                }
            }
        }
    }
}

/// Power fails at many points around the end of a drain. Afterwards either the store still needs
/// the device, or the device itself records that it was drained. A start with both devices must
/// succeed.
#[test]
fn a_store_starts_after_a_power_loss_at_the_end_of_a_drain() {
    let mut drained = 0;
    for nth in 1..40 {
        let mut machine = Machine::start(names(&["a", "b"]), Durability::Sync);
        filled(&mut machine, 40);
        machine.engine.drain("b").expect("a drain");
        while machine.partitions()["b"] > 0 {
            machine.turn();
        }
        let device = Arc::clone(&machine.devices[1].1);
        device.stop_at(device.counts().changes() + nth);
        for _ in 0..30 {
            machine.turn();
        }
        machine.devices.iter().for_each(|(_, device)| device.stop());
        drained += usize::from(machine.engine.lanes()[1].drained);
        let mut machine = machine.restart(Some(nth), |_, _| {}).expect("a start with both");
        all_there(&mut machine, 40);
    }
    assert!(drained > 0, "some were let go");
}

#[test]
fn a_forgotten_device_is_out_of_date_even_with_the_newest_table() {
    let mut machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    filled(&mut machine, 500);
    // Device "b" fails, so only device "a" records the attempts to drain "a". Then the table of
    // lanes on "a" is newer than the table on "b".
    let fault = Fault { operation: Operation::Sync, at: 1, times: u64::MAX, failure: Failure::Io };
    machine.devices[1].1.plan(fault);
    for _ in 0..3 {
        assert!(machine.engine.drain("a").is_err());
    }
    let first = machine.devices[0].clone();
    let machine = machine
        .restart(Some(1), |devices, options| {
            devices.remove(0);
            options.store.as_mut().expect("a store").forget = vec![LaneNumber(0)];
        })
        .expect("a start without it");
    let refused = machine.restart(Some(2), |devices, _| devices.push(first));
    assert!(matches!(
        refused.map(drop),
        Err(OpenError::Store(StoreError::LeftBehind { name })) if name == "a"
    ));
}

/// If a second device never completed its join, the store must start without it, and all keys must
/// belong to the first device.
#[test]
fn a_store_whose_second_device_never_joined_goes_on_without_it() {
    let mut devices = names(&["a", "b"]);
    devices[1].1 = Arc::new(SimDevice::new(64 << 10, 1));
    let refused = Engine::open_without_threads(options(&devices, Durability::Sync));
    assert!(refused.is_err());
    drop(refused);
    devices.truncate(1);
    let mut machine = Machine::start(devices, Durability::Sync);
    filled(&mut machine, 300);
    for seed in 0..3 {
        machine = machine.restart(Some(seed), |_, _| {}).expect("a start");
        assert_eq!(machine.partitions()["a"], 4096);
        all_there(&mut machine, 300);
    }
}

/// Power fails at many points of a motion. No item may be lost, and no old version may come back.
#[test]
fn a_crash_at_any_moment_of_a_motion_loses_nothing() {
    let start = || {
        let mut machine = Machine::start(names(&["a"]), Durability::Sync);
        filled(&mut machine, 60);
        machine.restart(Some(1), |devices, _| devices.extend(names(&["b"]))).expect("a start")
    };
    let (mut nth, mut ended) = (0, false);
    while !ended {
        nth += 1 + nth / 40;
        let mut machine = start();
        let at = machine.devices.iter().map(|(_, device)| device.counts().changes()).collect();
        let stopped: Vec<u64> = at;
        // One device stops at a chosen change. The test ends this loop then, and stops the other
        // device too, because a power failure affects both.
        let which = nth as usize % 2;
        machine.devices[which].1.stop_at(stopped[which] + nth);
        let mut versions = vec![0; 60];
        let mut unknown = None;
        for turn in 0..4000 {
            machine.turn();
            if machine.devices.iter().any(|(_, device)| device.is_stopped()) {
                break;
            }
            let key = turn % 60;
            if turn % 3 == 0 {
                unknown = Some(key);
                if machine.set(key, versions[key as usize] + 1) {
                    versions[key as usize] += 1;
                    unknown = None;
                }
                versions[key as usize] %= 15;
            }
            if !machine.engine.move_partitions() && turn > 10 {
                ended = true;
                break;
            }
        }
        machine.devices.iter().for_each(|(_, device)| device.stop());
        let mut machine = machine.restart(Some(nth), |_, _| {}).expect("a start");
        let half = nth % 2 == 0;
        for round in 0..2 {
            for key in 0..60 {
                let found = machine.version(key);
                let known = versions[key as usize];
                let good = found == Some(known) || unknown == Some(key) && found == Some(known + 1);
                assert!(good, "crash {nth}, round {round}, key {key}: {found:?}, not {known}");
            }
            if half {
                machine.settle();
            }
        }
    }
    assert!(nth > 100, "{nth}");
}

#[test]
fn a_lane_whose_device_fails_leaves_the_others_alone() {
    let mut machine = Machine::start(names(&["a", "b"]), Durability::Sync);
    filled(&mut machine, 200);
    let fails = |operation| Fault { operation, at: 1, times: u64::MAX, failure: Failure::Io };
    for operation in [Operation::Write, Operation::Sync] {
        machine.devices[1].1.plan(fails(operation));
    }
    let in_b = |machine: &Machine, key: u32| {
        machine.engine.lane_of(format!("key{key}").as_bytes()) == Some(1)
    };
    for key in 0..200 {
        assert_eq!(machine.set(key, 1), !in_b(&machine, key), "key {key}");
    }
    let Health::Failing { reason } = machine.engine.health() else { panic!("it fails") };
    assert!(reason.starts_with("b: "), "{reason}");
    for key in 0..200 {
        let expected = u32::from(!in_b(&machine, key));
        assert_eq!(machine.version(key), Some(expected), "key {key}");
    }
    machine.devices[1].1.mend();
    machine.turn();
    assert_eq!(machine.engine.health(), Health::Good);
    assert!((0..200).all(|key| machine.set(key, 2)));
}

/// The target device fails during a motion. The keys must stay where they are, and must move once
/// the device works again.
#[test]
fn a_motion_to_a_device_that_fails_is_given_up_and_done_later() {
    for operation in [Operation::Write, Operation::Sync] {
        for nth in 1..40 {
            let mut machine = Machine::start(names(&["a"]), Durability::Sync);
            filled(&mut machine, 100);
            let mut machine = machine
                .restart(Some(1), |devices, _| devices.extend(names(&["b"])))
                .expect("a start");
            let counts = machine.devices[1].1.counts();
            let done = if operation == Operation::Write { counts.writes } else { counts.syncs };
            let fault = Fault { operation, at: done + nth, times: 6, failure: Failure::Io };
            machine.devices[1].1.plan(fault);
            for turn in 0..300 {
                machine.turn();
                let key = turn % 100;
                assert_eq!(machine.version(key), Some(0), "{operation:?} {nth}: key {key}");
            }
            machine.settle();
            all_there(&mut machine, 100);
            let mut machine = machine.restart(Some(nth), |_, _| {}).expect("a start");
            all_there(&mut machine, 100);
        }
    }
}

#[test]
fn flushes_empty_all_lanes_while_keys_move() {
    let mut machine = Machine::start(names(&["a"]), Durability::Sync);
    filled(&mut machine, 500);
    let mut machine =
        machine.restart(Some(1), |devices, _| devices.extend(names(&["b"]))).expect("a start");
    for _ in 0..37 {
        machine.turn();
    }
    assert_eq!(machine.call(|s| s.flush_all(None).map(drop)), Some(()));
    assert!((0..500).all(|key| machine.version(key).is_none()));
    filled(&mut machine, 300);
    assert_eq!(machine.call(|s| s.flush_all(Some(1002)).map(drop)), Some(()));
    for _ in 0..20 {
        machine.turn();
    }
    all_there(&mut machine, 300);
    for _ in 0..1000 {
        machine.turn();
        machine.session.tick(1003);
    }
    assert!((0..300).all(|key| machine.version(key).is_none()));
    machine.settle();
    assert!((0..500).all(|key| machine.version(key).is_none()));
    let mut machine = machine.restart(Some(2), |_, _| {}).expect("a start");
    assert!((0..500).all(|key| machine.version(key).is_none()));
}

/// A delayed flush must also apply to devices that are added before it is due.
#[test]
fn a_delayed_flush_reaches_devices_that_were_added_meanwhile() {
    let mut machine = Machine::start(names(&["a"]), Durability::Sync);
    filled(&mut machine, 200);
    assert_eq!(machine.call(|s| s.flush_all(Some(1500)).map(drop)), Some(()));
    assert!(machine.engine.commit());
    let added = |devices: &mut Vec<_>, _: &mut _| devices.extend(names(&["b"]));
    let mut machine = machine.restart(Some(1), added).expect("a start");
    machine.settle();
    let mut machine = machine.restart(Some(2), |_, _| {}).expect("a start");
    filled(&mut machine, 300);
    machine.session.tick(1500);
    assert!((0..300).all(|key| machine.version(key).is_none()));
}

#[test]
fn items_that_exceed_memory_move_too() {
    let mut machine = Machine::start(names(&["a"]), Durability::Async);
    machine.options.when_full = WhenFull::Refuse;
    let big = vec![b'v'; 3000];
    let keys: Vec<String> = (0..3500).map(|n| format!("big{n}")).collect();
    let store = |machine: &mut Machine, key: &str, value: &[u8]| {
        let stored =
            machine.call(|s| s.store(&s.key(key.as_bytes()), Store::set(value, 0, Expiry::NEVER)));
        assert!(matches!(stored, Some(Stored::Stored { .. })));
    };
    for key in &keys {
        store(&mut machine, key, &big);
    }
    // A large value, which has a separate mapping, must move, too.
    let larger = vec![b'l'; 700 << 10];
    store(&mut machine, "large", &larger);
    machine.options.memory = 16 << 20;
    assert!(machine.engine.commit());
    let mut machine = machine
        .restart(None, |devices, options| {
            devices.extend(names(&["b"]));
            options.when_full = WhenFull::Refuse;
        })
        .expect("a start");
    machine.settle();
    let lanes = machine.engine.lanes();
    assert!(lanes.iter().all(|lane| lane.items > 1000), "{lanes:?}");
    for key in &keys {
        let found = machine.call(|s| {
            s.get(&s.key(key.as_bytes())).map(|item| item.map(|item| item.value().to_vec()))
        });
        assert_eq!(found.flatten().as_deref(), Some(&big[..]));
    }
    let found = machine
        .call(|s| s.get(&s.key(b"large")).map(|item| item.map(|item| item.value().to_vec())));
    assert!(found.flatten().as_deref() == Some(&larger[..]));
}
