//! The figures of the cleaner: how many segments it emptied, what they cost, and what emptied
//! segments wait for.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::{Random, SimDevice};
use larder_engine::{
    Durability, Engine, Expiry, ManualCleaner, Options, Outcome, Session, Stats, Store, WhenFull,
};
use std::sync::Arc;
use std::task::Waker;

/// The time in Unix seconds; it never changes.
const NOW: u32 = 1000;
const MEMORY: u64 = 32 << 20;
const DEVICE: u64 = 64 << 20;
const VALUE: usize = 1000;

/// An engine without threads, and its only session.
struct Machine {
    engine: Arc<Engine>,
    session: Session,
    cleaner: ManualCleaner,
}

fn machine(when_full: WhenFull) -> Machine {
    let store = Some(store(Arc::new(SimDevice::new(DEVICE, 1)), Durability::Async));
    let options = Options { memory: MEMORY, store, when_full, ..Options::default() };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(NOW);
    Machine { engine, session, cleaner: ManualCleaner::default() }
}

fn turn(machine: &mut Machine) {
    let Machine { engine, session, cleaner } = machine;
    session.tick(NOW);
    engine.clean(cleaner);
    engine.commit();
    engine.serve_reads();
    session.tick(NOW);
}

fn set(machine: &mut Machine, number: u64) {
    let (key, value) = (format!("key{number}"), [b'v'; VALUE]);
    for _ in 0..1000 {
        let session = &machine.session;
        let store = Store::set(&value, 0, Expiry::NEVER);
        match session.store(&session.key(key.as_bytes()), store) {
            Outcome::Ready(_) => return,
            Outcome::NeedsSpace | Outcome::NeedsRead => turn(machine),
            other => panic!("{other:?}"),
        }
    }
    panic!("{key} waits for ever: {:?}", machine.engine.stats());
}

/// Sets a random one of `keys` keys, `sets` times.
fn overwrite(machine: &mut Machine, keys: u64, sets: u64) -> Stats {
    let mut random = Random::new(7);
    for at in 0..sets {
        set(machine, random.below(keys));
        if at % 500 == 0 {
            turn(machine);
        }
    }
    machine.engine.stats()
}

/// Runs commits until no emptied segment waits any more.
fn settle(machine: &mut Machine) -> Stats {
    for _ in 0..1000 {
        let stats = machine.engine.stats();
        if stats.quarantined_segments == 0 {
            return stats;
        }
        turn(machine);
    }
    panic!("{:?}", machine.engine.stats());
}

#[test]
fn without_evictions_the_cleaner_moves_all_live_records_of_cleaned_segments() {
    let mut machine = machine(WhenFull::Refuse);
    // About 60 % of the store hold live records.
    overwrite(&mut machine, 40_000, 200_000);
    let stats = settle(&mut machine);
    let totals = &stats.totals;
    assert!(totals.cleaned_segments > 50, "{stats:?}");
    assert_eq!((totals.evicted_segments, totals.evictions, totals.cooled_segments), (0, 0, 0));
    let (live, moved) = (totals.cleaned_live_bytes, totals.moved_bytes);
    assert_eq!(live, moved, "{stats:?}");
    assert!(live * 10 < totals.cleaned_bytes * 9, "{stats:?}");
    let record = moved / totals.moved_items;
    assert!((VALUE as u64..VALUE as u64 + 100).contains(&record), "{record}");
    // All emptied segments are free by now. `dead_segments` counts those that had no live record.
    // These segments were full, so `emptied` adds the whole segment size for each of them.
    let emptied = totals.cleaned_bytes + totals.dead_segments * stats.segment_size;
    let freed = stats.freed_bytes;
    assert!(freed <= emptied && emptied < freed + freed / 10, "{emptied} {stats:?}");
    machine.engine.reset_stats();
    assert_eq!(machine.engine.stats().totals.cleaned_segments, 0);
}

#[test]
fn segments_that_items_were_evicted_from_are_told_apart() {
    let mut machine = machine(WhenFull::Evict);
    // Nothing is overwritten, so the cleaner can only evict.
    (0..120_000).for_each(|number| set(&mut machine, number));
    let stats = machine.engine.stats();
    let totals = &stats.totals;
    assert!(totals.evictions > 50_000, "{stats:?}");
    assert!(totals.evicted_segments > 10, "{stats:?}");
    assert_eq!(totals.evicted_segments, totals.cleaned_segments, "{stats:?}");
    // Nothing was read, so the cleaner must keep nothing.
    assert_eq!((totals.moved_items, totals.moved_bytes), (0, 0));
    assert!(totals.cleaned_live_bytes * 10 > totals.cleaned_bytes * 9, "{stats:?}");
}

#[test]
fn emptied_segments_wait_for_a_commit_then_for_their_mark_and_are_free() {
    let mut machine = machine(WhenFull::Evict);
    overwrite(&mut machine, 5000, 50_000);
    let waiting = |machine: &Machine| {
        let stats = machine.engine.stats();
        (stats.quarantined_segments, stats.uncommitted_segments, stats.unmarked_segments)
    };
    settle(&mut machine);
    let mut next = 0;
    while waiting(&machine).0 == 0 {
        set(&mut machine, next % 5000);
        next += 1;
        machine.engine.clean(&mut machine.cleaner);
        assert!(next < 100_000, "{:?}", machine.engine.stats());
    }
    let (all, uncommitted, unmarked) = waiting(&machine);
    assert_eq!((uncommitted, unmarked), (all, 0));
    machine.session.tick(NOW);
    machine.engine.commit();
    let (all, uncommitted, unmarked) = waiting(&machine);
    assert!(all > 0 && uncommitted < all && uncommitted + unmarked <= all);
    settle(&mut machine);
    assert_eq!(waiting(&machine), (0, 0, 0));
}
