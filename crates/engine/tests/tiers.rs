//! A lane on two devices: new writes go to the fast one, cooled items to the lower one, and nothing
//! is lost between them.

mod common;

use common::two_devices::{Given, History, Machine, Values, World, given, reopen};
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{Durability, Engine, OpenError, StoreError, WhenFull};
use larder_log::format::{LabelError, SuperblockError};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn devices(fast: u64, lower: u64) -> (Arc<SimDevice>, Arc<SimDevice>) {
    (Arc::new(SimDevice::new(fast, 1)), Arc::new(SimDevice::new(lower, 2)))
}

fn error(given: Given) -> StoreError {
    match Engine::open_without_threads(given.options()) {
        Err(OpenError::Store(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Returns the keys up to `end` whose values are anywhere on the device.
fn keys_on(device: &SimDevice, values: &Values, end: u32) -> BTreeSet<u32> {
    let mut all = vec![0; larder_disk::Device::size(device) as usize];
    device.peek(0, &mut all);
    let by_start: HashMap<String, u32> =
        (0..end).map(|n| (values.of(n)[..12].to_owned(), n)).collect();
    let begins = (0..all.len()).filter(|&at| all[at] == b'<');
    let found = begins.filter_map(|at| {
        let start = std::str::from_utf8(all.get(at..at + 12)?).ok()?;
        let n = *by_start.get(start)?;
        all[at..].starts_with(values.of(n).as_bytes()).then_some(n)
    });
    found.collect()
}

#[test]
fn new_items_lie_on_the_fast_device_and_cooled_items_on_the_lower_one() {
    for durability in [Durability::Async, Durability::Sync] {
        let (fast, lower) = devices(4 * MIB, 32 * MIB);
        let mut world = World::open(given(&fast, Some(&lower)).with(durability, WhenFull::Refuse));
        let stats = world.engine.stats();
        assert!(stats.fast_bytes < 4 * MIB && stats.fast_bytes > 3 * MIB, "{stats:?}");
        assert!(stats.lower_bytes < 32 * MIB && stats.lower_bytes > 28 * MIB, "{stats:?}");
        let values = Values { bytes: 4000 };
        // These items fit on the fast device. So the lower device receives no items, only the label
        // that says to which store it belongs.
        world.set_all(0..400, &values);
        world.settle();
        assert_eq!(world.engine.stats().lower_used, 0);
        // Leaves out the last keys: the last block of an open segment lies in a tail place.
        let few = 0..390;
        let on_fast = keys_on(&fast, &values, 4000);
        assert!(few.clone().all(|n| on_fast.contains(&n)));
        assert!(keys_on(&lower, &values, 4000).is_empty());
        // Writes about four times as many items as the fast device holds.
        world.set_all(400..4000, &values);
        world.settle();
        let stats = world.engine.stats();
        assert_eq!(stats.totals.evictions, 0);
        assert!(stats.fast_bytes - stats.fast_used >= 2 * stats.segment_size, "{stats:?}");
        assert!(stats.lower_used > 11 * MIB, "{stats:?}");
        let on_fast = keys_on(&fast, &values, 4000);
        let on_lower = keys_on(&lower, &values, 4000);
        assert!(few.clone().all(|n| on_lower.contains(&n)));
        assert!((3800..3990).all(|n| on_fast.contains(&n) && !on_lower.contains(&n)));
        world.check_all(0..4000, &values);
        // Restarts without and with an index image.
        for clean in [false, true] {
            if clean {
                world.close();
            }
            let given = given(&fast, Some(&lower)).with(durability, WhenFull::Refuse);
            world = reopen(world, given);
            assert_eq!(world.engine.recovered().unwrap().from_image, clean);
            let reads = (fast.counts().reads, lower.counts().reads);
            // The cleaner has no turn until the counts are compared, because it would read from the
            // devices too.
            few.clone().for_each(|n| assert_eq!(world.get(n), Some(values.of(n))));
            assert_eq!(fast.counts().reads, reads.0, "they lie on the lower device");
            assert!(lower.counts().reads > reads.1);
            world.check_all(0..4000, &values);
        }
    }
}

/// If a start treated the sectors of a lower device that does not answer as bad ones, their
/// contents would be lost for ever. So the start must fail, and a later start must find everything.
#[test]
fn a_start_waits_for_a_lower_device_that_does_not_answer() {
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let (fast, lower) = devices(4 * MIB, 32 * MIB);
        let with = |fast, lower| given(fast, Some(lower)).with(Durability::Sync, when_full);
        let mut world = World::open(with(&fast, &lower));
        let values = Values { bytes: 4000 };
        world.set_all(0..3000, &values);
        world.settle();
        drop(world);
        let (fast_now, lower_now) = (Arc::new(fast.image()), Arc::new(lower.image()));
        // The label of the lower device can still be read.
        lower_now.spoil(64 << 10..32 * MIB);
        assert!(matches!(error(with(&fast_now, &lower_now)), StoreError::Device(_)));
        let (fast, lower) = (Arc::new(fast_now.image()), Arc::new(lower.image()));
        let mut world = World::open(with(&fast, &lower));
        assert_eq!(world.engine.stats().bad_places, 0);
        world.check_all(0..3000, &values);
    }
}

#[test]
fn a_full_store_evicts_the_oldest_wherever_it_lies() {
    let (fast, lower) = devices(4 * MIB, 8 * MIB);
    let mut world =
        World::open(given(&fast, Some(&lower)).with(Durability::Async, WhenFull::Evict));
    let values = Values { bytes: 4000 };
    for round in 0..40 {
        world.set_all(round * 200..(round + 1) * 200, &values);
        world.now += 1;
        world.settle();
    }
    let present: Vec<u32> = (0..8000).filter(|&n| world.get(n).is_some()).collect();
    // The newest items must be present, as many as fit.
    assert!((2000..2900).contains(&present.len()), "{}", present.len());
    let first = 8000 - present.len() as u32;
    let astray = present.iter().filter(|&&n| n + 300 < first).count();
    assert_eq!(astray, 0, "{} of {first}..", present[0]);
}

/// Everything on the fast device is read repeatedly, and new writes always need more room. The fast
/// device must have room for them at all times.
#[test]
fn frequently_read_items_stay_on_the_fast_device_but_not_for_ever() {
    let (fast, lower) = devices(4 * MIB, 32 * MIB);
    let given = given(&fast, Some(&lower)).with(Durability::Async, WhenFull::Refuse);
    let mut world = World::open(given);
    let values = Values { bytes: 4000 };
    world.set_all(0..700, &values);
    for round in 0..20 {
        let written = 716 + round * 16;
        world.set_all(written - 16..written, &values);
        for _ in 0..6 {
            for _ in 0..3 {
                (0..written).for_each(|n| assert!(world.get(n).is_some()));
            }
            world.turn_and_commit();
        }
        let stats = world.engine.stats();
        assert!(stats.fast_bytes > stats.fast_used, "round {round}: {stats:?}");
    }
    // The newest items had room on the fast device, so none of them may be on the lower one.
    let on_lower = keys_on(&lower, &values, 1020);
    assert!((900..1020).all(|n| !on_lower.contains(&n)), "{on_lower:?}");
    world.settle();
    world.check_all(0..1020, &values);
}

#[test]
fn large_values_overwrites_and_deletes_work_on_two_devices() {
    let (fast, lower) = devices(4 * MIB, 24 * MIB);
    let given = given(&fast, Some(&lower)).with(Durability::Sync, WhenFull::Refuse);
    let mut world = World::open(given.clone());
    let (small, large) = (Values { bytes: 1000 }, Values { bytes: 300_000 });
    world.set_all(100_000..100_020, &large);
    for round in 0..10 {
        let values = Values { bytes: 900 + round };
        world.set_all(0..2000, &values);
    }
    world.set_all(100_010..100_030, &large);
    world.set_all(0..2000, &small);
    for n in (0..2000).step_by(3) {
        world.delete(n);
    }
    world.settle();
    for _ in 0..2 {
        for n in 0..2000 {
            let expected = (n % 3 != 0).then(|| small.of(n));
            assert_eq!(world.get(n), expected, "{n}");
        }
        world.check_all(100_000..100_030, &large);
        world = reopen(world, given.clone());
    }
}

#[test]
fn a_store_is_not_opened_without_its_own_lower_device() {
    let values = Values { bytes: 4000 };
    let (fast, lower) = devices(4 * MIB, 16 * MIB);
    let (other_fast, other_lower) = devices(4 * MIB, 16 * MIB);
    for (seed, fast, lower) in [(1, &fast, &lower), (2, &other_fast, &other_lower)] {
        let mut world = World::open(given(fast, Some(lower)).seeded(seed));
        world.set_all(0..1500, &values);
        world.settle();
        world.close();
    }
    let before = [&fast, &lower, &other_lower].map(|device| device.counts().writes);
    assert!(matches!(error(given(&fast, None)), StoreError::LowerMissing));
    let refused = |lower: &Arc<SimDevice>| match error(given(&fast, Some(lower))) {
        StoreError::Lower { name, error } if name == "lower" => error,
        other => panic!("{other}"),
    };
    assert_eq!(refused(&other_lower), LabelError::OfAnother);
    assert_eq!(refused(&Arc::new(SimDevice::new(16 * MIB, 1))), LabelError::Empty);
    assert_eq!(refused(&other_fast), LabelError::NotALabel);
    // A new store must not overwrite a foreign device, either.
    let filesystem = Arc::new(SimDevice::from_bytes(&vec![3; 16 << 20], 1));
    let new = Arc::new(SimDevice::new(4 * MIB, 1));
    for (foreign, wrong) in
        [(&filesystem, LabelError::NotALabel), (&other_lower, LabelError::OfAnother)]
    {
        let found = error(given(&new, Some(foreign)));
        assert!(matches!(found, StoreError::Lower { error, .. } if error == wrong), "{found}");
    }
    // A lower device must not be accepted as a fast one.
    assert!(matches!(error(given(&lower, None)), StoreError::Superblock(_)));
    let tiny = Arc::new(SimDevice::new(MIB / 8, 1));
    assert!(matches!(error(given(&new, Some(&tiny))), StoreError::Lane { .. }));
    let after = [&fast, &lower, &other_lower].map(|device| device.counts().writes);
    assert_eq!(before, after, "nothing was written");
    let mut world = World::open(given(&fast, Some(&lower)));
    world.check_all(0..1500, &values);
}

#[test]
fn a_label_with_one_damaged_copy_is_accepted() {
    let (fast, lower) = devices(4 * MIB, 16 * MIB);
    World::open(given(&fast, Some(&lower))).close();
    lower.flip_bit(20, 1);
    World::open(given(&fast, Some(&lower))).close();
    lower.flip_bit(4096 + 20, 1);
    let found = error(given(&fast, Some(&lower)));
    assert!(matches!(found, StoreError::Lower { error: LabelError::Damaged, .. }), "{found}");
}

#[test]
fn a_store_gets_a_lower_device_later_and_that_may_grow() {
    let values = Values { bytes: 4000 };
    for clean in [false, true] {
        let (fast, lower) = devices(4 * MIB, 8 * MIB);
        let mut world = World::open(given(&fast, None));
        world.set_all(0..650, &values);
        world.settle();
        let before = world.engine.stats();
        assert_eq!((before.lower_bytes, before.lower_used), (0, 0));
        if clean {
            world.close();
        }
        world = reopen(world, given(&fast, Some(&lower)));
        assert_eq!(world.engine.recovered().unwrap().from_image, clean);
        assert_eq!(world.engine.stats().fast_bytes, before.fast_bytes, "nothing moves");
        world.check_all(0..650, &values);
        world.set_all(650..2200, &values);
        world.settle();
        world.check_all(0..2200, &values);
        if clean {
            world.close();
        }
        // Once a lane has a lower device, the store uses no further bytes of a fast device that
        // grows. The lower device may grow.
        let (fast, lower) = (fast.grown(8 * MIB), lower.grown(16 * MIB));
        let (fast, lower) = (Arc::new(fast), Arc::new(lower));
        world = reopen(world, given(&fast, Some(&lower)));
        let stats = world.engine.stats();
        assert_eq!(stats.fast_bytes, before.fast_bytes);
        assert!(stats.lower_bytes > 14 * MIB);
        world.set_all(2200..3600, &values);
        world.settle();
        world.check_all(0..3600, &values);
        // Neither device may shrink.
        let head = |device: &SimDevice, bytes: usize| {
            let mut all = vec![0; bytes];
            device.peek(0, &mut all);
            Arc::new(SimDevice::from_bytes(&all, 1))
        };
        drop(world);
        let short_lower = head(&lower, 15 << 20);
        assert!(matches!(error(given(&fast, Some(&short_lower))), StoreError::Lane { .. }));
        let short_fast = head(&fast, 3 << 20);
        let found = error(given(&short_fast, Some(&lower)));
        assert!(matches!(found, StoreError::Shrunk { .. }), "{found}");
    }
}

/// A server without durability that dies leaves no valid items. Its store must still own its lower
/// device.
#[test]
fn a_store_that_is_discarded_keeps_its_lower_device() {
    let values = Values { bytes: 4000 };
    let (fast, lower) = devices(4 * MIB, 16 * MIB);
    let volatile = given(&fast, Some(&lower)).with(Durability::None, WhenFull::Refuse);
    let mut world = World::open(volatile.clone());
    for seed in 2..5 {
        world.set_all(0..1500, &values);
        world.settle();
        world = reopen(world, volatile.clone().seeded(seed));
        assert!(world.engine.recovered().unwrap().discarded);
        assert_eq!(world.get(3), None);
    }
    let durable = given(&fast, Some(&lower)).seeded(9);
    world = reopen(world, durable.clone());
    world.set_all(0..10, &values);
    world.settle();
    world = reopen(world, durable);
    assert!(!world.engine.recovered().unwrap().discarded);
    world.check_all(0..10, &values);
}

/// A start discards the items of a store that was used without durability. Items acknowledged after
/// that must stay. No start may use the older copy of the superblock, because it names the index
/// image of the discarded items. Tests a store with a lower device and one without.
#[test]
fn discarded_items_do_not_come_back() {
    for lower in [None, Some(Arc::new(SimDevice::new(16 * MIB, 2)))] {
        let fast = Arc::new(SimDevice::new(4 * MIB, 1));
        let with = |seed, durability| {
            given(&fast, lower.as_ref()).with(durability, WhenFull::Refuse).seeded(seed)
        };
        let (old, new) = (Values { bytes: 1000 }, Values { bytes: 2000 });
        let mut world = World::open(with(1, Durability::None));
        world.set_all(0..500, &old);
        world.close();
        drop(World::open(with(2, Durability::None)));
        let mut world = World::open(with(3, Durability::Sync));
        assert!(world.engine.recovered().unwrap().discarded);
        world.set_all(0..10, &new);
        world.settle();
        let mut world = reopen(world, with(4, Durability::Sync));
        let recovered = world.engine.recovered().unwrap();
        assert!(!recovered.discarded && recovered.items == 10, "{recovered:?}");
        world.check_all(0..10, &new);
    }
}

/// Two lanes have a lower device each. A start must detect swapped lower devices. A start that
/// discards all items must keep both lanes.
#[test]
fn each_lane_has_its_own_lower_device() {
    let values = Values { bytes: 4000 };
    let (fast, lower) = devices(4 * MIB, 16 * MIB);
    let (other_fast, other_lower) = devices(4 * MIB, 16 * MIB);
    let both = |seed, durability, lower, other_lower| {
        let with = |fast, lower, seed| {
            given(fast, Some(lower)).with(durability, WhenFull::Refuse).seeded(seed)
        };
        with(&fast, lower, seed).beside(with(&other_fast, other_lower, seed + 1))
    };
    for seed in [1, 11, 21] {
        let mut world = World::open(both(seed, Durability::None, &lower, &other_lower));
        assert_eq!(world.engine.lanes().len(), 2);
        assert_eq!(world.engine.recovered().unwrap().discarded, seed > 1);
        world.set_all(0..2000, &values);
        world.settle();
    }
    let mut world = World::open(both(31, Durability::Sync, &lower, &other_lower));
    assert!(world.engine.recovered().unwrap().discarded);
    world.set_all(0..2500, &values);
    world.settle();
    assert!(world.engine.stats().lower_used > 2 * MIB);
    drop(world);
    match error(both(41, Durability::Sync, &other_lower, &lower)) {
        StoreError::Lane { error, .. } => {
            let is_foreign =
                |error| matches!(error, StoreError::Lower { error: LabelError::OfAnother, .. });
            assert!(is_foreign(*error));
        }
        other => panic!("{other}"),
    }
    let mut world = World::open(both(51, Durability::Sync, &lower, &other_lower));
    world.check_all(0..2500, &values);
}

#[test]
fn items_on_the_fast_device_are_served_while_the_lower_one_fails() {
    let values = Values { bytes: 4000 };
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let (fast, lower) = devices(4 * MIB, 16 * MIB);
        let given = given(&fast, Some(&lower)).with(Durability::Sync, when_full);
        let mut world = World::open(given.clone());
        world.set_all(0..3000, &values);
        world.settle();
        // After the restart, nothing is in memory.
        world = reopen(world, given.clone());
        for operation in [Operation::Read, Operation::Write, Operation::Sync] {
            lower.plan(Fault::lasting(operation, 1, Failure::Io));
        }
        let newest = 2800..2990;
        let on_fast = keys_on(&fast, &values, 3000);
        assert!(newest.clone().all(|n| on_fast.contains(&n)));
        world.check_all(newest.clone(), &values);
        for n in 0..200 {
            assert!(world.try_get(n).is_none_or(|found| found.is_none()), "{n} cannot be read");
        }
        world.check_all(newest.clone(), &values);
        lower.mend();
        world = reopen(world, given);
        world.check_all(if when_full == WhenFull::Refuse { 0..3000 } else { newest }, &values);
    }
}

/// After a clean stop, a start adds a lower device. Power fails at every write or sync of this
/// start. Afterwards the device must either have joined or not, and nothing may be lost.
#[test]
fn a_lower_device_joins_or_does_not_whenever_the_power_goes() {
    let values = Values { bytes: 4000 };
    let (fast, empty) = devices(2 * MIB, 4 * MIB);
    let mut world = World::open(given(&fast, None));
    world.set_all(0..250, &values);
    world.settle();
    world.close();
    drop(world);
    let (mut joined, mut before) = (0, 0);
    for stop in 1..20 {
        for seed in 0..20 {
            let (fast, empty) = (Arc::new(fast.image()), Arc::new(empty.image()));
            let machine = Machine::new(&fast, &empty, stop);
            drop(World::try_open(machine.given(1)));
            let (fast, lower) = machine.crash(seed);
            // Until the device has joined, a start without it is possible.
            match World::try_open(given(&Arc::new(fast.image()), None)) {
                Ok(_) => before += 1,
                Err(OpenError::Store(StoreError::LowerMissing)) => joined += 1,
                Err(error) => panic!("stopped at {stop}, {seed}: {error}"),
            }
            let mut world = World::open(given(&fast, Some(&lower)));
            world.check_all(0..250, &values);
            world.set_all(250..500, &values);
            world.check_all(0..500, &values);
        }
    }
    assert!(joined > 0 && before > 0, "{joined}, {before}");
}

/// Power fails at every write or sync of the start at which a lane on two devices joins a store.
/// The next start must either find that the lane has joined, or find the lane empty and let it
/// join.
#[test]
fn a_lane_on_two_devices_joins_a_store_whenever_the_power_goes() {
    let values = Values { bytes: 1000 };
    let first = Arc::new(SimDevice::new(4 * MIB, 3));
    let mut world = World::open(given(&first, None));
    world.set_all(0..50, &values);
    world.settle();
    drop(world);
    for stop in 1..20 {
        for seed in 0..5 {
            let (fast, lower) = devices(2 * MIB, 4 * MIB);
            let machine = Machine::new(&fast, &lower, stop);
            let first = Arc::new(first.image());
            drop(World::try_open(given(&first, None).beside(machine.given(2))));
            let (fast, lower) = machine.crash(seed);
            let first = Arc::new(first.crash(seed));
            let joins = given(&fast, Some(&lower)).seeded(4);
            let mut world = World::try_open(given(&first, None).seeded(3).beside(joins))
                .unwrap_or_else(|error| panic!("stopped at {stop}: {error}"));
            assert_eq!(world.engine.lanes().len(), 2);
            world.check_all(0..50, &values);
        }
    }
}

/// A store holds more than its fast device. Power fails at one of the writes or syncs of either
/// device, and again during recovery. Every key must then have the last acknowledged state or one
/// of a later, unacknowledged write.
#[test]
fn every_acknowledged_write_survives_a_power_loss_on_both_devices() {
    let mut seed = 0;
    let mut stop = 1;
    let mut cooled = 0;
    loop {
        let (fast, lower) = devices(2 * MIB, 6 * MIB);
        let machine = Machine::new(&fast, &lower, stop);
        let mut history = History::default();
        let ended = history.run(machine.given(1), seed);
        cooled += u32::from(lower.counts().writes > 2);
        seed += 1;
        let (mut fast, mut lower) = machine.crash(seed);
        // Power also fails during the recovery. The next start must recover the store.
        let again = Machine::new(&fast, &lower, 1 + seed % 40);
        drop(World::try_open(again.given(2)));
        (fast, lower) = again.crash(seed + 1);
        match World::try_open(given(&fast, Some(&lower)).seeded(3)) {
            Ok(mut world) => history.check(&mut world, stop),
            // Power failed during the very first superblock write, so there never was a store.
            Err(OpenError::Store(StoreError::Superblock(SuperblockError::Damaged))) => {
                assert!(stop < 10 && history.is_nothing_acknowledged(), "stopped at {stop}");
            }
            Err(error) => panic!("stopped at {stop}: {error}"),
        }
        if ended {
            break;
        }
        // Tests every stop at the beginning, and increasingly few later ones.
        stop += 1 + stop / 60;
    }
    println!("{seed} power losses, {cooled} after something was moved, the last at {stop}");
    assert!(cooled > 20 && seed > 100);
}
