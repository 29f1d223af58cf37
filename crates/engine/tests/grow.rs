//! A store that grows while it is used. New places take items at once, and old contents stay. If a
//! device fails or loses power during its growth, it has either its old size or its new size
//! afterwards.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::{Device, Failure, Fault, Operation, SimDevice};
use larder_engine::{
    Durability, Engine, Expiry, GrowError, Health, LABEL_AREA, LogGrowError, LowerDevice,
    ManualCleaner, Options, Outcome, Refusal, ScanCursor, Session, Store, StoreDevice,
    StoreOptions, Stored, WhenFull,
};
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::{BLOCK, Superblock};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NOW: u32 = 1000;
/// Number of turns after which a waiting call counts as stuck.
const PATIENCE: usize = 3000;
/// Bytes of a value.
const VALUE: usize = 5000;

/// An engine without threads: each device is a lane, or two devices are the tiers of one lane.
struct World {
    devices: Vec<Arc<SimDevice>>,
    engine: Arc<Engine>,
    session: Session,
    cleaner: ManualCleaner,
}

fn options(devices: &[Arc<SimDevice>], tiers: bool, durability: Durability) -> Options {
    let given = |at: usize| -> Arc<dyn Device> { Arc::<SimDevice>::clone(&devices[at]) };
    let lanes = if tiers { 1 } else { devices.len() };
    let lane = |at: usize| StoreDevice {
        name: format!("device{at}"),
        device: given(at),
        lower: tiers.then(|| LowerDevice { name: "lower".to_owned(), device: given(1) }),
        seeds: [at as u64 * 3 + 1, at as u64 * 3 + 2, at as u64 * 3 + 3],
    };
    let store =
        StoreOptions { devices: (0..lanes).map(lane).collect(), ..store(given(0), durability) };
    Options {
        memory: (8 << 20) * lanes as u64,
        max_item_size: 1 << 20,
        when_full: WhenFull::Refuse,
        store: Some(store),
        ..Options::default()
    }
}

impl World {
    fn open(devices: &[Arc<SimDevice>], tiers: bool, durability: Durability) -> World {
        let engine = Engine::open_without_threads(options(devices, tiers, durability)).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(NOW);
        World { devices: devices.to_vec(), engine, session, cleaner: ManualCleaner::default() }
    }

    fn one(size: u64, durability: Durability) -> World {
        World::open(&[Arc::new(SimDevice::new(size, 1))], false, durability)
    }

    fn turn(&mut self) {
        self.engine.serve_reads();
        self.engine.clean(&mut self.cleaner);
        self.engine.commit();
        self.engine.move_partitions();
        self.session.tick(NOW);
    }

    fn call<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Result<T, Refusal> {
        for _ in 0..PATIENCE {
            match call(&self.session) {
                Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => return Ok(answer),
                Outcome::Refused(refusal) => return Err(refusal),
                Outcome::NeedsRead | Outcome::NeedsSpace => self.turn(),
            }
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }

    fn set(&mut self, key: u32) -> bool {
        let value = vec![key as u8; if key.is_multiple_of(100) { 20 * VALUE } else { VALUE }];
        let stored = self.call(|session| {
            let key = key.to_string();
            session.store(&session.key(key.as_bytes()), Store::set(&value, 0, Expiry::NEVER))
        });
        match stored {
            Ok(stored) => matches!(stored, Stored::Stored { .. }),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::StoreFull);
                false
            }
        }
    }

    /// Stores keys starting at `from` until the store is full. Returns the key that found no room.
    fn fill(&mut self, from: u32) -> u32 {
        (from..).find(|&key| !self.set(key)).expect("a store has an end")
    }

    fn check(&mut self, keys: Range<u32>) {
        for key in keys {
            let found = self.call(|session| {
                session.get(&session.key(key.to_string().as_bytes())).map(|item| {
                    item.is_some_and(|item| item.value().iter().all(|&byte| byte == key as u8))
                })
            });
            assert_eq!(found, Ok(true), "{key}");
        }
    }

    /// Opens the store as a new process does after a power loss.
    fn crashed(&self, tiers: bool, durability: Durability, seed: u64) -> World {
        let devices: Vec<_> =
            self.devices.iter().map(|device| Arc::new(device.crash(seed))).collect();
        World::open(&devices, tiers, durability)
    }

    /// Returns the bytes of all places that the store uses.
    fn places(&self) -> u64 {
        let stats = self.engine.stats();
        stats.fast_bytes + stats.lower_bytes
    }
}

#[test]
fn a_full_store_that_grows_takes_sets_at_once() {
    for durability in [Durability::Async, Durability::Sync] {
        let mut world = World::one(12 * MIB, durability);
        let full = world.fill(0);
        assert!(!world.set(full), "it stays full");
        let before = world.places();
        world.engine.grow(None, 24 * MIB).unwrap();
        // This set must succeed before any turn of the cleaner and any commit.
        let key = full.to_string();
        let set = world.session.store(
            &world.session.key(key.as_bytes()),
            Store::set(&vec![full as u8; VALUE], 0, Expiry::NEVER),
        );
        assert!(matches!(set, Outcome::Ready(_) | Outcome::AfterCommit(..)), "{set:?}");
        assert_eq!(world.engine.lanes()[0].capacity, 24 * MIB);
        assert!(world.places() > before + 10 * MIB, "{} of {before}", world.places());
        let end = world.fill(full + 1);
        assert!(end > full * 3 / 2, "{full} items had room, and now {end}");
        world.check(0..end);
        // Grows the store again, in steps of 1 MiB.
        let mut last = end;
        for size in 25..28 {
            world.engine.grow(Some("0"), size * MIB).unwrap();
            let next = world.fill(last);
            assert!(next > last, "{size} MiB");
            last = next;
        }
        assert!(world.engine.commit());
        let (places, seed) = (world.places(), u64::from(last));
        let mut world = world.crashed(false, durability, seed);
        world.check(0..last);
        assert_eq!(world.places(), places);
        drop(world.session);
        world.engine.close().unwrap();
        let mut world = World::open(&world.devices, false, durability);
        assert!(world.engine.recovered().unwrap().from_image);
        world.check(0..last);
        assert_eq!(world.places(), places);
        assert!(!world.set(last), "it is as full as before");
        world.engine.grow(None, 40 * MIB).unwrap();
        assert!(world.fill(last) > last);
    }
}

#[test]
fn a_power_loss_in_the_middle_leaves_the_old_size_or_the_new_one() {
    let mut world = World::one(12 * MIB, Durability::Sync);
    let full = world.fill(0);
    assert!(world.engine.commit());
    let (old, device) = (world.places(), Arc::clone(&world.devices[0]));
    let mut sizes = HashSet::new();
    // The changes 1 to 6 are the device's growth, its sync, and the write and sync of each copy of
    // the superblock. The power fails at that change. With 7 it does not fail.
    for change in 1..=7 {
        let image = Arc::new(device.image());
        let mut world = World::open(&[image], false, Durability::Sync);
        let device = &world.devices[0];
        if change < 7 {
            device.stop_at(device.counts().changes() + change);
        }
        let grown = world.engine.grow(None, 24 * MIB);
        assert_eq!(grown.is_ok(), change == 7, "{change}: {grown:?}");
        if change == 7 {
            world.fill(full);
        }
        for seed in 0..16 {
            let mut after = world.crashed(false, Durability::Sync, seed);
            after.check(0..full);
            sizes.insert(after.places() > old);
            if seed % 8 == 0 && change < 7 {
                let end = after.fill(full);
                assert_eq!(end > full + full / 2, after.places() > old);
                after.check(0..end);
            }
        }
    }
    assert_eq!(sizes.len(), 2, "both were seen");
}

#[test]
fn a_device_that_fails_changes_nothing_and_can_be_asked_again() {
    for (operation, nth) in [Operation::Write, Operation::Sync]
        .into_iter()
        .flat_map(|kind| (1..4).map(move |nth| (kind, nth)))
    {
        let mut world = World::one(12 * MIB, Durability::Sync);
        let full = world.fill(0);
        assert!(world.engine.commit());
        let places = world.places();
        let counts = world.devices[0].counts();
        let done = if operation == Operation::Sync { counts.syncs } else { counts.writes };
        world.devices[0].plan(Fault::once(operation, done + nth, Failure::Full));
        let grown = world.engine.grow(None, 24 * MIB);
        assert!(
            matches!(grown, Err(GrowError::Refused(LogGrowError::Device(_)))),
            "{operation:?} {nth}: {grown:?}"
        );
        assert_eq!(world.places(), places);
        assert!(!world.set(full));
        // A set that overwrites an item must still succeed.
        assert!(world.set(1));
        assert!(world.engine.commit());
        assert_eq!(world.engine.health(), Health::Good);
        world.check(0..full);
        world.engine.grow(None, 24 * MIB).unwrap();
        let end = world.fill(full);
        assert!(end > full * 3 / 2);
        assert!(world.engine.commit());
        let mut world = world.crashed(false, Durability::Sync, nth);
        world.check(0..end);
    }
}

/// After a growth whose sync failed, the operating system may know the new length although the disk
/// does not have it. So the old length must be restored, and the next attempt must grow the device
/// once more.
#[test]
fn a_growth_that_a_failed_sync_lost_is_made_again() {
    for seed in 0..12 {
        let device = Arc::new(SimDevice::new(12 * MIB, seed));
        let mut world = World::open(&[device], false, Durability::Sync);
        let full = world.fill(0);
        assert!(world.engine.commit());
        let syncs = world.devices[0].counts().syncs;
        world.devices[0].plan(Fault::once(Operation::Sync, syncs + 1, Failure::Io));
        world.engine.grow(None, 24 * MIB).unwrap_err();
        assert_eq!(world.devices[0].size(), 12 * MIB, "the length is unchanged");
        world.engine.grow(None, 24 * MIB).unwrap();
        let end = world.fill(full);
        assert!(world.engine.commit());
        let mut world = world.crashed(false, Durability::Sync, seed);
        world.check(0..end);
    }
}

#[test]
fn both_copies_of_the_superblock_know_the_new_size() {
    let world = World::one(12 * MIB, Durability::Sync);
    world.engine.grow(None, 24 * MIB).unwrap();
    let sizes = SUPERBLOCKS.map(|at| {
        let mut block = [0; BLOCK];
        world.devices[0].peek(at, &mut block);
        Superblock::decode(&block).unwrap().geometry.total_bytes()
    });
    assert!(sizes[0] > 20 * MIB && sizes[0] == sizes[1], "{sizes:?}");
}

/// A device that reports when a growth begins, and waits for the test before it grows.
#[derive(Debug)]
struct SlowToGrow {
    device: Arc<SimDevice>,
    began: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Device for SlowToGrow {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.began.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        self.device.grow(size)
    }
}

#[test]
fn a_stop_neither_waits_for_a_growth_nor_lets_it_change_anything_afterwards() {
    let device = Arc::new(SimDevice::new(12 * MIB, 1));
    let (began, has_began) = channel();
    let (go_on, may_go_on) = channel();
    let slow = SlowToGrow { device: Arc::clone(&device), began, go_on: Mutex::new(may_go_on) };
    let mut options = options(&[Arc::clone(&device)], false, Durability::Sync);
    options.store.as_mut().unwrap().devices[0].device = Arc::new(slow);
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(NOW);
    let cleaner = ManualCleaner::default();
    let mut world = World { devices: vec![device], engine, session, cleaner };
    let full = world.fill(0) / 2;
    let engine = Arc::clone(&world.engine);
    let grower = thread::spawn(move || engine.grow(None, 24 * MIB));
    has_began.recv().unwrap();
    world.engine.close().unwrap();
    go_on.send(()).unwrap();
    let said = grower.join().unwrap().unwrap_err().to_string();
    assert!(said.contains("is closed"), "{said}");
    let said = world.engine.grow(None, 32 * MIB).unwrap_err().to_string();
    assert!(said.contains("is closed"), "{said}");
    let mut world = world.crashed(false, Durability::Sync, 1);
    assert!(world.engine.recovered().unwrap().from_image);
    world.check(0..full);
}

#[test]
fn impossible_growths_are_refused_with_the_reason() {
    let mut world = World::one(12 * MIB, Durability::Sync);
    let grow = |world: &World, name, bytes| match world.engine.grow(name, bytes) {
        Err(error) => error.to_string(),
        Ok(()) => "grown".to_owned(),
    };
    let said = grow(&world, None, 8 * MIB);
    assert!(said.contains("12582912 bytes, and a store does not shrink"), "{said}");
    let said = grow(&world, None, 12 * MIB + 4096);
    assert!(said.contains("too little for another segment: ask for"), "{said}");
    let least: u64 = said.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert_eq!(grow(&world, None, least), "grown");
    assert_eq!(grow(&world, None, least), "grown", "growing to the current size changes nothing");
    let said = grow(&world, None, 1 << 50);
    assert!(
        said.contains("bytes while it runs, for its tables may take at most a quarter"),
        "{said}"
    );
    let most: u64 = said.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(most > 100 * MIB, "{most}");
    let said = grow(&world, None, u64::MAX);
    assert!(said.contains("while it runs"), "{said}");
    let said = grow(&world, Some("elsewhere"), 20 * MIB);
    assert!(said.contains("the store has no device of this name, only device0"), "{said}");
    let full = world.fill(0);
    assert_eq!(grow(&world, Some("device0"), most), "grown");
    assert_eq!(world.engine.lanes()[0].capacity, most - most % 4096);
    assert!((full..full + 500).all(|key| world.set(key)));
    let said = grow(&world, None, most + 64 * MIB);
    assert!(said.contains(&format!("can grow to {most} bytes")), "{said}");

    let alone = Options { memory: 16 << 20, max_item_size: 1 << 20, ..Options::default() };
    let alone = Engine::open_without_threads(alone).unwrap();
    assert_eq!(alone.grow(None, 20 * MIB).unwrap_err().to_string(), "there is no store");
}

#[test]
fn the_lower_device_of_a_lane_grows() {
    let devices = [4 * MIB, 8 * MIB].map(|size| Arc::new(SimDevice::new(size, size)));
    let mut world = World::open(&devices, true, Durability::Sync);
    let full = world.fill(0);
    let before = world.engine.stats();
    let said = world.engine.grow(None, 20 * MIB).unwrap_err().to_string();
    assert!(said.contains("several devices, name one: device0, lower"), "{said}");
    let said = world.engine.grow(Some("device0"), 20 * MIB).unwrap_err().to_string();
    assert!(said.contains("grow the lower one, lower"), "{said}");
    let said = world.engine.grow(Some("lower"), 6 * MIB).unwrap_err().to_string();
    assert!(said.contains(&format!("it has {} bytes", 8 * MIB)), "{said}");
    let said = world.engine.grow(Some("lower"), 1 << 50).unwrap_err().to_string();
    let most: u64 = said.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(most > 20 * MIB + LABEL_AREA, "{said}");
    world.engine.grow(Some("lower"), 20 * MIB).unwrap();
    let after = world.engine.stats();
    assert_eq!(after.fast_bytes, before.fast_bytes);
    assert!(after.lower_bytes > before.lower_bytes + 10 * MIB);
    let end = world.fill(full);
    assert!(end > full * 3 / 2);
    for _ in 0..20 {
        world.turn();
    }
    world.check(0..end);
    let mut world = world.crashed(true, Durability::Sync, 3);
    assert_eq!(world.engine.stats().lower_bytes, after.lower_bytes);
    world.check(0..end);
    // The number of a lane stands for the only device of the lane that can grow: its lower device.
    world.engine.grow(Some("0"), 24 * MIB).unwrap();
    assert_eq!(world.devices[1].size(), 24 * MIB);
}

#[test]
fn a_lane_that_grows_gets_more_of_the_keys() {
    let devices = [1, 2].map(|seed| Arc::new(SimDevice::new(16 * MIB, seed)));
    let mut world = World::open(&devices, false, Durability::Sync);
    assert!((1..1000).all(|key| world.set(key)));
    let said = world.engine.grow(None, 40 * MIB).unwrap_err().to_string();
    assert!(said.contains("several devices, name one: device0, device1"), "{said}");
    world.engine.grow(Some("device1"), 48 * MIB).unwrap();
    for _ in 0..40_000 {
        world.turn();
        if world.engine.lanes()[1].partitions == 3072 {
            break;
        }
    }
    let lanes = world.engine.lanes();
    assert_eq!([lanes[0].partitions, lanes[1].partitions], [1024, 3072]);
    world.check(1..1000);
    let mut world = world.crashed(false, Durability::Sync, 5);
    world.check(1..1000);
}

/// A dump that began before the growth does not know the new places. The dump must still show items
/// that are moved there.
#[test]
fn a_dump_goes_on_while_the_store_grows() {
    let mut world = World::one(24 * MIB, Durability::Async);
    let full = world.fill(0);
    let (mut cursor, mut shown) = (ScanCursor::default(), HashSet::new());
    let mut steps = 0;
    let mut end = full;
    loop {
        steps += 1;
        if steps == 20 {
            world.engine.grow(None, 48 * MIB).unwrap();
            end = world.fill(full);
            assert!(end > full * 3 / 2);
            // Lets the cleaner drop frames, so that the dump reads the new places.
            for _ in 0..50 {
                world.turn();
            }
        }
        assert!(steps < 100_000);
        let outcome = world.session.scan(&mut cursor, &mut |item| {
            shown.insert(String::from_utf8_lossy(item.key()).parse::<u32>().unwrap());
        });
        match outcome {
            Outcome::Ready(true) | Outcome::AfterCommit(true, _) => {}
            Outcome::Ready(false) | Outcome::AfterCommit(false, _) => break,
            Outcome::NeedsRead | Outcome::NeedsSpace => world.turn(),
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    assert!(steps > 20);
    assert!((0..full).all(|key| shown.contains(&key)));
    world.check(0..end);
}

struct Told(Sender<()>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// As in a server, the requesting thread must not block. Its waker must be woken when the growth
/// has ended.
#[test]
fn a_session_that_asks_is_woken_with_the_answer() {
    let devices = [Arc::new(SimDevice::new(12 * MIB, 1))];
    let engine = Engine::open(options(&devices, false, Durability::Sync)).unwrap();
    let (tell, told) = channel();
    let mut session = engine.session(Waker::from(Arc::new(Told(tell))));
    session.tick(NOW);
    devices[0].hold(Operation::Write);
    assert!(matches!(session.grow(None, 24 * MIB), Outcome::NeedsSpace));
    assert!(devices[0].wait_until_held(Duration::from_secs(60)));
    assert!(matches!(session.grow(None, 24 * MIB), Outcome::NeedsSpace), "it has not ended");
    devices[0].release();
    let answer = |bytes| loop {
        match session.grow(None, bytes) {
            Outcome::Ready(answer) => break answer,
            Outcome::NeedsSpace => told.recv_timeout(Duration::from_secs(60)).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    answer(24 * MIB).unwrap();
    assert_eq!(engine.lanes()[0].capacity, 24 * MIB);
    let said = answer(20 * MIB).unwrap_err().to_string();
    assert!(said.contains("does not shrink"), "{said}");
    answer(24 * MIB).unwrap();
    answer(32 * MIB).unwrap();
    assert_eq!(engine.lanes()[0].capacity, 32 * MIB);
}

/// An engine with threads on one device, and two sessions with their wakers.
struct TwoSessions {
    device: Arc<SimDevice>,
    sessions: [Session; 2],
    wakers: [Arc<Told>; 2],
    told: [Receiver<()>; 2],
}

impl TwoSessions {
    fn open() -> TwoSessions {
        let device = Arc::new(SimDevice::new(12 * MIB, 1));
        let options = options(&[Arc::clone(&device)], false, Durability::Sync);
        let engine = Engine::open(options).unwrap();
        let [(first, first_told), (second, second_told)] = [channel(), channel()];
        let wakers = [first, second].map(|tell| Arc::new(Told(tell)));
        let sessions = wakers.each_ref().map(|waker| {
            let mut session = engine.session(Waker::from(Arc::clone(waker)));
            session.tick(NOW);
            session
        });
        TwoSessions { device, sessions, wakers, told: [first_told, second_told] }
    }

    /// Requests a growth, and waits until the device delays a write of the growth.
    fn begin(&self, session: usize, bytes: u64) {
        self.device.hold(Operation::Write);
        assert!(matches!(self.sessions[session].grow(None, bytes), Outcome::NeedsSpace));
        assert!(self.device.wait_until_held(Duration::from_secs(60)));
    }

    fn wait(&self, session: usize) {
        self.told[session].recv_timeout(Duration::from_secs(60)).unwrap();
    }

    fn answer(&self, session: usize, bytes: u64) -> Result<(), GrowError> {
        loop {
            match self.sessions[session].grow(None, bytes) {
                Outcome::Ready(answer) => break answer,
                Outcome::NeedsSpace => self.wait(session),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_session_that_asks_often_is_remembered_once() {
    let two = TwoSessions::open();
    two.begin(0, 24 * MIB);
    let before = Arc::strong_count(&two.wakers[0]);
    for _ in 0..100 {
        assert!(matches!(two.sessions[0].grow(None, 24 * MIB), Outcome::NeedsSpace));
    }
    assert_eq!(Arc::strong_count(&two.wakers[0]), before);
    two.device.release();
    two.answer(0, 24 * MIB).unwrap();
}

#[test]
fn a_growth_succeeds_although_another_request_grew_the_device_further() {
    // The smaller request comes first. Its session fetches the answer after the larger growth.
    let two = TwoSessions::open();
    two.begin(0, 24 * MIB);
    assert!(matches!(two.sessions[1].grow(None, 32 * MIB), Outcome::NeedsSpace));
    two.device.release();
    two.answer(1, 32 * MIB).unwrap();
    two.answer(0, 24 * MIB).unwrap();
    // The larger request comes first.
    two.begin(1, 48 * MIB);
    assert!(matches!(two.sessions[0].grow(None, 40 * MIB), Outcome::NeedsSpace));
    two.device.release();
    two.answer(1, 48 * MIB).unwrap();
    two.answer(0, 40 * MIB).unwrap();
    let said = two.answer(0, 40 * MIB).unwrap_err().to_string();
    assert!(said.contains("does not shrink"), "it is asked for anew: {said}");
}

#[test]
fn an_unfetched_failure_does_not_answer_another_session() {
    let two = TwoSessions::open();
    two.begin(0, 24 * MIB);
    let writes = two.device.counts().writes;
    two.device.plan(Fault::once(Operation::Write, writes + 1, Failure::Full));
    two.device.release();
    two.wait(0);
    two.answer(1, 24 * MIB).unwrap();
    // The first session's growth has failed, and the session must still get this error. Its next
    // call is a new request.
    two.answer(0, 24 * MIB).unwrap_err();
    two.answer(0, 24 * MIB).unwrap();
}
