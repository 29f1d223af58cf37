//! A range of the device becomes unreadable for ever. Only its contents may be lost.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{
    Delete, Durability, Engine, Expiry, OpenError, Options, Outcome, Refusal, Session, Store,
    StoreDevice, StoreError, WhenFull,
};
use larder_log::format::geometry::{SUPERBLOCKS, TAIL_BYTES, TAIL_PLACES};
use larder_log::format::{BLOCK, Geometry, Header, Meta, STREAMS, Superblock, Tail};
use machine::{Machine, NOW};
use std::ops::Range;
use std::sync::Arc;

const SIZE: u64 = 32 << 20;
/// Bytes of the bad range. It has the size of eight segments of 64 KiB but begins within a segment,
/// so two segments are only partly covered.
const BAD: Range<u64> = (6 << 20) + 12_288..(6 << 20) + 12_288 + (512 << 10);
const VALUE: usize = 900;
/// Number of turns after which a waiting call counts as stuck.
const PATIENCE: usize = 500;

fn options(device: &Arc<SimDevice>, durability: Durability, when_full: WhenFull) -> Options {
    let store = store(Arc::<SimDevice>::clone(device), durability);
    Options {
        memory: 8 << 20,
        max_item_size: 1 << 20,
        when_full,
        store: Some(store),
        ..Options::default()
    }
}

fn value(key: u32, round: u32, len: usize) -> Vec<u8> {
    let mut value = format!("<{key}:{round}>").into_bytes();
    value.resize(len, b'v');
    value
}

impl Machine {
    fn start(device: SimDevice, durability: Durability, when_full: WhenFull) -> Machine {
        let device = Arc::new(device);
        let options = options(&device, durability, when_full);
        Machine::open(device, options)
    }

    fn turn(&mut self) {
        self.engine.serve_reads();
        self.engine.clean(&mut self.cleaner);
        assert!(self.engine.commit(), "{:?}", self.engine.health());
        self.session.tick(NOW);
    }

    fn done<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Result<T, Refusal> {
        for _ in 0..PATIENCE {
            match call(&self.session) {
                Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => return Ok(answer),
                Outcome::Refused(refusal) => return Err(refusal),
                Outcome::NeedsRead | Outcome::NeedsSpace => self.turn(),
            }
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }

    fn set(&mut self, key: u32, round: u32, len: usize) -> Result<(), Refusal> {
        let (name, value) = (format!("key{key}"), value(key, round, len));
        self.done(|session| {
            let store = Store::set(&value, 0, Expiry::NEVER);
            session.store(&session.key(name.as_bytes()), store).map(drop)
        })
    }

    fn set_all(&mut self, keys: Range<u32>, round: u32) {
        for key in keys {
            self.set(key, round, VALUE).unwrap_or_else(|refusal| panic!("{key}: {refusal:?}"));
            if key % 64 == 0 {
                self.turn();
            }
        }
    }

    /// Returns true if the key exists with its value of `round`.
    fn has(&mut self, key: u32, round: u32) -> Result<bool, Refusal> {
        let (name, value) = (format!("key{key}"), value(key, round, VALUE));
        self.done(|session| {
            session
                .get(&session.key(name.as_bytes()))
                .map(|found| found.inspect(|item| assert_eq!(item.value(), value)).is_some())
        })
    }

    /// Returns how many of the keys are found, missing, and answered with an error.
    fn count(&mut self, keys: Range<u32>, round: u32) -> (u32, u32, u32) {
        let (mut there, mut gone, mut errors) = (0, 0, 0);
        for key in keys {
            match self.has(key, round) {
                Ok(true) => there += 1,
                Ok(false) => gone += 1,
                Err(Refusal::StoreFailed) => errors += 1,
                Err(refusal) => panic!("{key}: {refusal:?}"),
            }
        }
        (there, gone, errors)
    }

    /// Does the same as [`Machine::count`], but also accepts the values of earlier rounds. A set of
    /// `round` may have been refused, and its key then keeps its earlier value.
    fn count_last(&mut self, keys: Range<u32>, round: u32) -> (u32, u32, u32) {
        let mut counts = (0, 0, 0);
        for key in keys {
            let name = format!("key{key}");
            let found = self.done(|session| {
                session.get(&session.key(name.as_bytes())).map(|found| {
                    found.map(|item| {
                        let rounds = (0..=round).map(|round| value(key, round, VALUE));
                        assert!({ rounds }.any(|value| value == item.value()), "{name}");
                    })
                })
            });
            match found {
                Ok(Some(())) => counts.0 += 1,
                Ok(None) => counts.1 += 1,
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::StoreFailed);
                    counts.2 += 1;
                }
            }
        }
        counts
    }

    fn delete(&mut self, key: u32) {
        let name = format!("key{key}");
        let delete = Delete::default();
        let deleted =
            self.done(|session| session.delete(&session.key(name.as_bytes()), &delete).map(drop));
        assert_eq!(deleted, Ok(()));
    }

    fn superblock(&self) -> Superblock {
        let copies = SUPERBLOCKS.map(|at| {
            let mut copy = [0; BLOCK];
            self.device.peek(at, &mut copy);
            Superblock::decode(&copy).unwrap()
        });
        copies.into_iter().max_by_key(|copy| copy.counter).unwrap()
    }

    fn geometry(&self) -> Geometry {
        self.superblock().geometry
    }

    /// Returns the headers that can be decoded, in the order of their places. Free places may still
    /// have a header too.
    fn headers(&self) -> impl Iterator<Item = Header> {
        let (geometry, identity) = (self.geometry(), self.superblock().identity());
        (1..=geometry.segment_count()).filter_map(move |number| {
            let mut block = [0; BLOCK];
            self.device.peek(geometry.segment(number), &mut block);
            Header::decode(&block, &identity, number).ok()
        })
    }

    /// Returns the tails that can be decoded, each with the number of its bytes.
    fn tails(&self) -> Vec<(Tail, usize)> {
        let (geometry, identity) = (self.geometry(), self.superblock().identity());
        let places = (0..STREAMS).flat_map(|stream| (0..TAIL_PLACES).map(move |at| (stream, at)));
        let tails = places.filter_map(|(stream, at)| {
            let mut place = [0; TAIL_BYTES];
            self.device.peek(geometry.tail_place(stream, at), &mut place);
            Tail::decode(&place, &identity).map(|(tail, data)| (tail, data.len()))
        });
        tails.collect()
    }

    /// Returns the free places that still hold their old contents.
    fn freed(&self) -> Vec<u32> {
        let (geometry, identity) = (self.geometry(), self.superblock().identity());
        let is_freed = |header: &Header| {
            let metas = [0, 1].map(|which| {
                let mut copy = vec![0; geometry.meta_bytes()];
                self.device.peek(geometry.meta(header.segment, which), &mut copy);
                let decoded = Meta::decode(&copy, header.segment, geometry.map_bytes(), &identity);
                decoded.ok().map(|(meta, _)| meta)
            });
            metas.into_iter().flatten().any(|meta| !meta.admits(header.generation))
        };
        self.headers().filter(is_freed).map(|header| header.segment).collect()
    }

    fn has_loaded_image(&self) -> bool {
        self.engine.recovered().is_some_and(|recovered| recovered.from_image)
    }

    /// Restarts the machine, so that memory is empty.
    fn restarted(self, durability: Durability, when_full: WhenFull) -> Machine {
        Machine::start(self.device.image(), durability, when_full)
    }
}

/// The largest number of records that the bad range touches.
const LOST: u32 = (512 << 10) / (VALUE as u32) + 9 * 2;

/// Overwrites the whole store several times with sets, and crashes in between. The writes reach the
/// bad range each time the store is overwritten, and all sets must succeed.
#[test]
fn a_store_that_evicts_loses_the_bad_range_and_continues() {
    for durability in [Durability::Async, Durability::Sync] {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, durability, WhenFull::Evict);
        machine.set_all(0..20_000, 0);
        machine.device.spoil(BAD);
        let (_, gone, errors) = machine.count(0..20_000, 0);
        assert!((100..LOST).contains(&gone) && errors == 0, "{gone} are gone, {errors}");
        for round in 1..5 {
            machine.set_all(round * 30_000..round * 30_000 + 60_000, round);
            let stats = machine.engine.stats();
            assert!(stats.items > 20_000, "{} items after {round} rounds", stats.items);
            if round % 2 == 0 {
                machine = machine.restarted(durability, WhenFull::Evict);
            }
            let keys = round * 30_000 + 58_500..round * 30_000 + 60_000;
            let (there, gone, errors) = machine.count(keys, round);
            assert!(gone < LOST && errors == 0, "{there} of 1500 are there, {errors}");
        }
        assert!(machine.engine.stats().bad_places > 0);
    }
}

/// The bad range contains places of large values, first ones and later ones. Other large values
/// must stay, and new ones must be stored.
#[test]
fn only_large_values_in_the_bad_range_are_lost() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Async, WhenFull::Evict);
    for key in 0..100 {
        machine.set(key, 0, 200_000).unwrap();
        machine.turn();
    }
    machine.device.spoil(BAD);
    for round in 1..4 {
        for key in 0..300 {
            machine.set(key, round, 200_000).unwrap();
            machine.turn();
        }
        machine = machine.restarted(Durability::Async, WhenFull::Evict);
        let items = machine.engine.stats().items;
        assert!(items > 100, "{items} are left");
    }
}

/// Nothing may be lost silently. Reads of items in the range must return an error, and everything
/// else must go on. A start must be refused unless the damage is accepted.
#[test]
fn a_store_that_refuses_reports_the_bad_range_and_continues() {
    let device = SimDevice::new(SIZE, 1);
    let mut machine = Machine::start(device, Durability::Async, WhenFull::Refuse);
    // After these rounds, the store uses the range `BAD`: the segments of the first rounds were
    // freed, and their places were reused.
    (0..5).for_each(|round| machine.set_all(0..22_000, round));
    machine.device.spoil(BAD);
    let (there, gone, errors) = machine.count(0..22_000, 4);
    assert!((100..LOST).contains(&errors) && gone == 0, "{there}, {gone}, {errors}");
    // Overwrites everything three times. A round may have fewer than `LOST` refused sets.
    for round in 5..8 {
        let mut refused = 0;
        for key in (0..22_000).map(|n| n * 7919 % 22_000) {
            match machine.set(key, round, VALUE) {
                Ok(()) => {}
                Err(Refusal::StoreFailed) => refused += 1,
                Err(refusal) => panic!("round {round}, {key}: {refusal:?}"),
            }
            if key % 64 == 0 {
                machine.turn();
            }
        }
        assert!(refused < LOST, "{refused}");
    }
    // Only a few reads may still return errors, because most of the unreadable records were
    // overwritten. Some errors are left: the store notices that a free place is bad only when it
    // reads new records there.
    let (there, gone, errors) = machine.count_last(0..22_000, 7);
    assert!(errors < 100 && gone == 0, "{there}, {gone}, {errors}");
    assert!(machine.engine.commit());
    let device = Arc::new(machine.device.image());
    let options = options(&device, Durability::Async, WhenFull::Refuse);
    let refused = Engine::open_without_threads(options.clone());
    assert!(
        matches!(refused, Err(OpenError::Store(StoreError::Damaged { .. }))),
        "{:?}",
        refused.err()
    );
    let mut accepting = options;
    accepting.store.as_mut().unwrap().accept_damage = true;
    let mut machine = Machine::open(device, accepting);
    // An unreadable record does not hide an older version elsewhere, so a start may find that
    // version instead.
    let (found, lost, errors_now) = machine.count_last(0..22_000, 7);
    assert!(found >= there && found + lost == there + errors && errors_now == 0, "{found}, {lost}");
    machine.set_all(0..22_000, 8);
    let name = "key7".to_owned();
    machine
        .done(|session| session.delete(&session.key(name.as_bytes()), &Delete::default()))
        .unwrap();
}

/// The index grows while some records cannot be read. Reads of these records must still be errors,
/// not misses.
#[test]
fn unreadable_items_are_errors_and_no_misses_after_the_index_grows() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Async, WhenFull::Refuse);
    machine.set_all(0..16_000, 0);
    machine.device.spoil(BAD);
    let (_, gone, errors) = machine.count(0..16_000, 0);
    assert!((100..LOST).contains(&errors) && gone == 0, "{gone}, {errors}");
    for key in 16_000..100_000 {
        let name = format!("key{key}");
        let set = |session: &Session| {
            let store = Store::set(b"small", 0, Expiry::NEVER);
            session.store(&session.key(name.as_bytes()), store).map(drop)
        };
        machine.done(set).unwrap();
        if key % 64 == 0 {
            machine.turn();
        }
    }
    let (_, gone, errors_now) = machine.count(0..16_000, 0);
    assert_eq!((gone, errors_now), (0, errors));
}

/// Returns options with a second device.
fn two_devices(devices: [&Arc<SimDevice>; 2], accept_damage: bool) -> Options {
    let mut options = options(devices[0], Durability::Async, WhenFull::Refuse);
    options.memory = 16 << 20;
    let store = options.store.as_mut().unwrap();
    store.accept_damage = accept_damage;
    store.devices.push(StoreDevice {
        name: "second".to_owned(),
        device: Arc::<SimDevice>::clone(devices[1]),
        lower: None,
        seeds: [4, 5, 6],
    });
    options
}

/// A device is drained because part of it is bad. All readable items must leave it, and nothing may
/// be lost silently. The device must be released once the damage is accepted.
#[test]
fn a_drain_moves_every_readable_item() {
    const KEYS: Range<u32> = 0..20_000;
    const TURNS: usize = 60_000;
    let devices = [1, 2].map(|seed| Arc::new(SimDevice::new(SIZE, seed)));
    let options = two_devices([&devices[0], &devices[1]], false);
    let mut machine = Machine::open(Arc::clone(&devices[0]), options);
    machine.set_all(KEYS, 0);
    machine.session.sleep();
    machine.engine.close().unwrap();
    let devices = devices.map(|device| Arc::new(device.image()));
    let options = two_devices([&devices[0], &devices[1]], false);
    let mut machine = Machine::open(Arc::clone(&devices[0]), options);
    devices[0].spoil(BAD.start..BAD.start + 4096);
    machine.engine.drain("store").unwrap();
    let turns = |machine: &mut Machine| {
        (0..TURNS)
            .find(|_| {
                machine.engine.move_partitions();
                machine.turn();
                machine.engine.lanes()[0].drained
            })
            .is_some()
    };
    assert!(!turns(&mut machine), "the device is released with unreadable records on it");
    // Each unreadable record keeps the partitions that share its stripe on the device.
    let left = machine.engine.lanes()[0].partitions;
    assert!((1..1024).contains(&left), "{left} partitions are left");
    let (there, gone, errors) = machine.count(KEYS, 0);
    assert!((1..10).contains(&errors) && gone == 0, "{there}, {gone}, {errors}");
    drop(machine);
    let devices = devices.map(|device| Arc::new(device.image()));
    let options = two_devices([&devices[0], &devices[1]], true);
    let mut machine = Machine::open(Arc::clone(&devices[0]), options);
    assert!(turns(&mut machine), "{:?}", machine.engine.lanes());
    assert_eq!(machine.count(KEYS, 0), (there, errors, 0));
}

/// Checks that a start with damage succeeds only if the damage is accepted, and that the next start
/// has nothing to report. Returns the machine of that next start.
fn accepted_once(device: &SimDevice) -> Machine {
    let options = |device: &Arc<SimDevice>| options(device, Durability::Async, WhenFull::Refuse);
    let image = Arc::new(device.image());
    let refused = Engine::open_without_threads(options(&image)).err();
    assert!(matches!(refused, Some(OpenError::Store(StoreError::Damaged { .. }))), "{refused:?}");
    let mut accepting = options(&image);
    accepting.store.as_mut().unwrap().accept_damage = true;
    drop(Machine::open(Arc::clone(&image), accepting));
    let image = Arc::new(image.image());
    Machine::open(Arc::clone(&image), options(&image))
}

/// Commits write the two copies of the superblock in turn. After a flush and two commits, either
/// copy records the flush. So an unreadable copy must not bring flushed items back.
#[test]
fn a_copy_of_the_superblock_that_cannot_be_read_brings_nothing_back() {
    for copy in SUPERBLOCKS {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
        // These records fill more segments than two commits can mark as free. So flushed records
        // remain on the device, and a start could bring them back.
        machine.set_all(0..20_000, 0);
        machine.turn();
        drop(machine.session.flush_all(None));
        for key in 20_000..20_002 {
            machine.set(key, 0, VALUE).unwrap();
            machine.turn();
        }
        machine.device.spoil(copy..copy + BLOCK as u64);
        let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
        assert_eq!(machine.engine.stats().items, 2);
        assert_eq!(machine.count(20_000..20_002, 0), (2, 0, 0));
    }
}

/// After the first commit of a start, neither copy of the superblock says that the store was
/// stopped cleanly. So an unreadable copy must not make the next start use the old index image.
#[test]
fn a_copy_of_the_superblock_that_cannot_be_read_makes_no_stop_clean() {
    for copy in SUPERBLOCKS {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
        machine.set_all(0..100, 0);
        machine.session.sleep();
        machine.engine.close().unwrap();
        let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
        assert!(machine.has_loaded_image());
        machine.set(7, 1, VALUE).unwrap();
        machine.turn();
        machine.device.spoil(copy..copy + BLOCK as u64);
        let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
        assert_eq!(machine.has(7, 1), Ok(true));
    }
}

/// A failed commit must cut its segments even if the metas that record the cut cannot be read.
#[test]
fn a_failed_commit_is_cut_although_no_meta_can_be_read() {
    let device = SimDevice::new(SIZE, 1);
    let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
    machine.set_all(0..100, 0);
    machine.turn();
    let geometry = machine.geometry();
    machine.device.spoil(geometry.meta(1, 0)..geometry.segment(1));
    machine.set(100, 0, VALUE).unwrap();
    let next = machine.device.counts().syncs + 1;
    machine.device.plan(Fault::once(Operation::Sync, next, Failure::Io));
    assert!(!machine.engine.commit());
    assert!((0..10).any(|_| machine.engine.commit()), "{:?}", machine.engine.health());
    machine.set_all(100..200, 0);
    machine.turn();
}

#[test]
fn unreadable_places_are_remembered_through_a_clean_stop() {
    let device = SimDevice::new(SIZE, 1);
    let mut machine = Machine::start(device, Durability::Async, WhenFull::Evict);
    machine.set_all(0..20_000, 0);
    machine.turn();
    machine.device.spoil(BAD);
    machine = machine.restarted(Durability::Async, WhenFull::Evict);
    // Lets the cleaner read the store into memory, so that it finds the bad places.
    for _ in 0..500 {
        machine.turn();
    }
    let bad = machine.engine.stats().bad_places;
    assert!(bad > 0);
    for _ in 0..2 {
        machine.session.sleep();
        machine.engine.close().unwrap();
        machine = machine.restarted(Durability::Async, WhenFull::Evict);
        assert!(machine.has_loaded_image());
        assert_eq!(machine.engine.stats().bad_places, bad);
    }
}

/// Later starts must not use a retired place again.
#[test]
fn unreadable_places_are_remembered() {
    let device = SimDevice::new(SIZE, 1);
    let mut machine = Machine::start(device, Durability::Async, WhenFull::Evict);
    machine.device.spoil(BAD);
    for round in 0..4 {
        machine.set_all(round * 30_000..round * 30_000 + 60_000, round);
        machine.count(round * 30_000..round * 30_000 + 60_000, round);
    }
    let bad = machine.engine.stats().bad_places;
    assert!(bad >= 8, "{bad} places are bad");
    for round in 5..8 {
        machine = machine.restarted(Durability::Async, WhenFull::Evict);
        assert_eq!(machine.engine.stats().bad_places, bad);
        machine.set_all(round * 100_000..round * 100_000 + 60_000, round);
        machine.turn();
        let last = round * 100_000 + 59_000..round * 100_000 + 60_000;
        assert_eq!(machine.count(last, round), (1000, 0, 0));
    }
}

/// Returns a machine that has evicted items, and the segments that it has freed since.
fn with_freed_segments() -> (Machine, Vec<u32>) {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Sync, WhenFull::Evict);
    machine.set_all(0..60_000, 0);
    (0..3).for_each(|_| machine.turn());
    let freed = machine.freed();
    assert!(freed.len() > 1, "{freed:?}");
    (machine, freed)
}

/// If both metas of a segment are unreadable, it is unknown whether its records were superseded. So
/// the records must count as lost, and evicted items must not come back.
#[test]
fn a_segment_whose_metas_cannot_be_read_shows_nothing() {
    let (machine, freed) = with_freed_segments();
    let (items, geometry) = (machine.engine.stats().items, machine.geometry());
    for &number in &freed {
        let metas = geometry.meta(number, 0);
        machine.device.spoil(metas..metas + 2 * geometry.meta_bytes() as u64);
    }
    let mut machine = machine.restarted(Durability::Sync, WhenFull::Evict);
    // The store may have reused one of the places with unreadable metas just before the restart.
    // The items that it wrote there are then lost.
    let back = machine.engine.stats().items;
    assert!((items - 70..=items).contains(&back), "{items} items, then {back}");
    // The unreadable places must not be used any more, and all others must be.
    machine.set_all(80_000..120_000, 1);
    machine.turn();
    let mut machine = machine.restarted(Durability::Sync, WhenFull::Evict);
    assert_eq!(machine.engine.stats().bad_places, freed.len() as u64);
    assert_eq!(machine.count(119_000..120_000, 1), (1000, 0, 0));
}

/// A crash damages at most one copy of a meta. If both are damaged, a durable meta is lost, and the
/// segment may have been free. The start must report that, and evicted items must not come back.
#[test]
fn a_segment_whose_metas_are_both_damaged_shows_nothing() {
    let (machine, freed) = with_freed_segments();
    let (items, geometry) = (machine.engine.stats().items, machine.geometry());
    for (&number, copy) in freed.iter().flat_map(|number| [(number, 0), (number, 1)]) {
        machine.device.flip_bit(geometry.meta(number, copy) + 20, 3);
    }
    let machine = machine.restarted(Durability::Sync, WhenFull::Evict);
    // As above, the store may have reused one of the places.
    let back = machine.engine.stats().items;
    assert!((items - 70..=items).contains(&back), "{items} items, then {back}");
    let damaged = machine.engine.recovered().unwrap().damaged_records;
    assert!((1..=freed.len() as u64).contains(&damaged), "{damaged} of {freed:?}");
    // The start has written these metas again. No later start has anything to report.
    let machine = machine.restarted(Durability::Sync, WhenFull::Evict);
    assert_eq!(machine.engine.recovered().unwrap().damaged_records, 0);
    assert_eq!(machine.engine.stats().bad_places, 0);
}

/// If a place is free and both of its metas are damaged, the next segment there must not count as
/// dead at a later start.
#[test]
fn a_free_place_whose_metas_are_both_damaged_is_used_again() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Sync, WhenFull::Refuse);
    machine.set_all(0..100, 0);
    let geometry = machine.geometry();
    for number in 8..=geometry.segment_count() {
        machine.device.flip_bit(geometry.meta(number, 0) + 20, 3);
        machine.device.flip_bit(geometry.meta(number, 1) + 20, 3);
    }
    let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
    machine.set_all(0..20_000, 1);
    machine.turn();
    let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
    assert_eq!(machine.engine.recovered().unwrap().damaged_records, 0);
    assert_eq!(machine.count(0..20_000, 1), (20_000, 0, 0));
}

/// Segments with an unreadable meta must still hide older versions, also after further restarts and
/// while they are cleaned.
#[test]
fn a_segment_with_an_unreadable_meta_brings_no_older_version_back() {
    for copy in 0..2 {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, Durability::Sync, WhenFull::Evict);
        machine.set_all(0..2000, 0);
        machine.set_all(0..1500, 1);
        (1500..2000).for_each(|key| machine.delete(key));
        machine.turn();
        let geometry = machine.geometry();
        let last: Vec<u32> = machine.headers().map(|header| header.segment).collect();
        // The last 12 segments hold tombstones and newer versions. Earlier segments hold some of
        // the older versions that these must hide.
        for &number in &last[last.len() - 12..] {
            let meta = geometry.meta(number, copy);
            machine.device.spoil(meta..meta + BLOCK as u64);
        }
        for round in 2..5 {
            machine = machine.restarted(Durability::Sync, WhenFull::Evict);
            let (there, gone, errors) = machine.count(0..1500, 1);
            assert!(round > 2 || (100..1400).contains(&there), "{there}, {gone}, {errors}");
            assert_eq!(errors, 0);
            assert_eq!(machine.count(1500..2000, 0), (0, 500, 0));
            // These sets need space, so the cleaner cleans earlier segments, also those with an
            // unreadable meta.
            machine.set_all(10_000..10_000 + round * 15_000, round);
            machine.turn();
            machine.count(0..1500, 1);
        }
    }
}

#[test]
fn an_unreadable_meta_costs_its_own_segment_and_is_reported_once() {
    for copy in 0..2 {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
        machine.set_all(0..5000, 0);
        machine.turn();
        let meta = machine.geometry().meta(7, copy);
        machine.device.spoil(meta..meta + BLOCK as u64);
        let mut machine = accepted_once(&machine.device);
        let (there, gone, errors) = machine.count(0..5000, 0);
        assert!((1..80).contains(&gone) && errors == 0, "{there}, {gone}, {errors}");
        machine.set_all(0..20_000, 1);
        machine.turn();
        let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
        assert_eq!(machine.count(0..20_000, 1), (20_000, 0, 0));
    }
}

/// The last commit may have ended in an unreadable tail place. A start must not silently take the
/// end of an earlier commit for the end of the log.
#[test]
fn an_unreadable_tail_place_is_reported_once() {
    let device = SimDevice::new(SIZE, 1);
    let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
    machine.set_all(0..100, 0);
    machine.turn();
    machine.set(7, 1, VALUE).unwrap();
    machine.turn();
    let geometry = machine.geometry();
    for which in 0..TAIL_PLACES {
        let at = geometry.tail_place(0, which);
        machine.device.spoil(at..at + BLOCK as u64);
    }
    let mut machine = accepted_once(&machine.device);
    assert_eq!(machine.count(0..7, 0), (7, 0, 0));
    // New writes must not depend on the bad tail places.
    machine.set_all(0..5000, 1);
    machine.turn();
    let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
    assert_eq!(machine.count(0..4900, 1), (4900, 0, 0));
}

/// All trailers of an open segment may lie in tail places, outside the segment. If the segment's
/// header cannot be read, the start must report the damage.
#[test]
fn an_open_segment_with_an_unreadable_header_is_reported() {
    for commits in 1..4 {
        let device = SimDevice::new(SIZE, 1);
        let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
        machine.set_all(0..5000, 0);
        machine.turn();
        let full = machine.headers().count();
        // Commits small sets until they open another segment. Then makes `commits` further commits
        // with one set each.
        for commit in 0..200 {
            if machine.headers().count() > full {
                (0..commits).for_each(|_| {
                    machine.set(6000, commit, VALUE).unwrap();
                    machine.turn();
                });
                break;
            }
            machine.set_all(5000..5010, commit);
            machine.turn();
        }
        let newest = machine.headers().max_by_key(|header| header.opened).unwrap().segment;
        let at = machine.geometry().segment(newest);
        machine.device.spoil(at..at + BLOCK as u64);
        let mut machine = accepted_once(&machine.device);
        let (there, gone, errors) = machine.count_last(0..5000, 0);
        assert_eq!((there, gone, errors), (5000, 0, 0));
    }
}

/// A large value is lost if any of its pieces or its head is lost. The start must report the loss.
#[test]
fn a_large_value_with_an_unreadable_piece_is_reported() {
    const LARGE: usize = 200_000;
    for bytes in [4096, 60_000] {
        for piece in 0..4 {
            let device = SimDevice::new(SIZE, 1);
            let mut machine = Machine::start(device, Durability::Sync, WhenFull::Refuse);
            for key in 0..20 {
                machine.set(key, 0, LARGE).unwrap();
                machine.turn();
            }
            machine.set_all(100..2000, 0);
            machine.turn();
            let heads = machine.headers().filter(|header| header.jumbo.is_some());
            let head = { heads }.nth(7).unwrap().segment;
            let at = machine.geometry().segment(head + piece);
            machine.device.spoil(at..at + bytes);
            let mut machine = accepted_once(&machine.device);
            let large = |key: &u32| {
                let name = format!("key{key}");
                let found = machine.done(|session| {
                    session.get(&session.key(name.as_bytes())).map(|found| found.is_some())
                });
                found.unwrap()
            };
            assert_eq!((0..20).filter(large).count(), 19, "piece {piece}, {bytes} bytes");
            assert_eq!(machine.count(100..2000, 0), (1900, 0, 0));
        }
    }
}

/// The commit of a large value may be the last but one. A later commit proves that it was durable.
#[test]
fn an_unreadable_large_value_of_the_last_but_one_commit_is_reported() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Sync, WhenFull::Refuse);
    machine.set_all(1..60, 0);
    machine.turn();
    machine.set(100, 0, 200_000).unwrap();
    machine.turn();
    machine.set(101, 0, VALUE).unwrap();
    machine.turn();
    let head = machine.headers().find(|header| header.jumbo.is_some()).unwrap().segment;
    let at = machine.geometry().segment(head + 1);
    machine.device.spoil(at..at + BLOCK as u64);
    let mut machine = accepted_once(&machine.device);
    assert_eq!(machine.count(1..60, 0), (59, 0, 0));
}

/// A tail place may hold the beginning of a block that a later commit has filled in its own place.
/// If a start cannot read that block, it must not overwrite the block with the beginning.
#[test]
fn a_block_that_a_start_cannot_read_keeps_its_bytes() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Sync, WhenFull::Refuse);
    machine.set_all(1..10, 0);
    machine.turn();
    machine.set_all(10..40, 0);
    machine.turn();
    // This commit proves that the earlier ones were durable. It needs no tail place, so the tails
    // of the earlier ones stay.
    machine.set(40, 0, 200_000).unwrap();
    machine.turn();
    let geometry = machine.geometry();
    let tails = machine.tails();
    let newest = tails.iter().map(|(tail, _)| tail.commit).max().unwrap();
    let mut blocks = 0;
    for (tail, len) in tails.into_iter().filter(|(tail, _)| tail.commit < newest) {
        let at = geometry.segment(tail.segment) + u64::from(tail.offset);
        let mut before = [0; BLOCK];
        machine.device.peek(at, &mut before);
        if before[len..].iter().all(|byte| *byte == 0) {
            continue;
        }
        blocks += 1;
        let image = Arc::new(machine.device.image());
        image.spoil(at..at + BLOCK as u64);
        let mut options = options(&image, Durability::Sync, WhenFull::Refuse);
        options.store.as_mut().unwrap().accept_damage = true;
        drop(Machine::open(Arc::clone(&image), options));
        let mut after = [0; BLOCK];
        image.peek(at, &mut after);
        assert!(before == after, "block {at}");
    }
    assert!(blocks > 0);
}

/// A tail place may hold the header of an earlier use of a place. If the place's header cannot be
/// read, the start must not take the place for free.
#[test]
fn a_tail_of_an_earlier_use_does_not_hide_an_unreadable_header() {
    let mut machine = Machine::start(SimDevice::new(SIZE, 1), Durability::Sync, WhenFull::Refuse);
    let stale = |machine: &Machine| {
        let headers: Vec<_> = machine.headers().collect();
        let earlier = |tail: &Tail| {
            let now = headers.iter().find(|header| header.segment == tail.segment);
            tail.offset == 0 && now.is_some_and(|now| now.generation > tail.generation)
        };
        let tails = machine.tails();
        tails.iter().find(|(tail, _)| earlier(tail)).map(|(tail, _)| tail.segment)
    };
    for round in 0..200 {
        machine.set(0, round, VALUE).unwrap();
        machine.turn();
        drop(machine.session.flush_all(None));
        (0..4).for_each(|_| machine.turn());
        for key in 1..150 {
            machine.set(key, round, VALUE).unwrap();
        }
        machine.turn();
        // This commit proves that the last one was durable, and needs no tail place.
        machine.set(150, round, 200_000).unwrap();
        machine.turn();
        let Some(segment) = stale(&machine) else { continue };
        let at = machine.geometry().segment(segment);
        machine.device.spoil(at..at + BLOCK as u64);
        // The segment's summary lists all its items, so those in the unreadable block are errors.
        let mut machine = machine.restarted(Durability::Sync, WhenFull::Refuse);
        let (there, gone, errors) = machine.count(1..150, round);
        assert!(gone == 0 && errors < 10, "{there}, {gone}, {errors}");
        return;
    }
    panic!("no tail of an earlier use");
}
