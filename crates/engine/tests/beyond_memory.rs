//! Reads and writes of stores that are larger than memory.

#[path = "common/store.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::store;
use larder_disk::{Random, SimDevice};
use larder_engine::{
    Arith, Create, Delete, Deleted, Durability, Engine, Expiry, Get, Key, ManualCleaner, Options,
    Outcome, Progress, ReadCount, Reads, Refusal, Session, Store, StoreMode, Stored, WhenFull,
};

/// The longest time that a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn options(durability: Durability) -> Options {
    let store = store(Arc::new(SimDevice::new(64 << 20, 1)), durability);
    Options { memory: 8 << 20, store: Some(store), ..Options::default() }
}

/// Stores more than memory holds. Returns the first key, whose record is no longer in memory.
fn fill(engine: &Arc<Engine>, session: &mut Session) -> String {
    let mut cleaner = ManualCleaner::default();
    let value = vec![b'v'; 4000];
    for n in 0..4000 {
        let name = format!("key{n}");
        loop {
            let outcome = {
                let key = session.key(name.as_bytes());
                let store = Store::set(&value, 0, Expiry::NEVER);
                session.store(&key, store).map(|stored| matches!(stored, Stored::Stored { .. }))
            };
            match outcome {
                Outcome::Ready(true) => break,
                Outcome::NeedsSpace => {
                    engine.clean(&mut cleaner);
                    engine.commit();
                    session.tick(2);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    "key0".to_owned()
}

/// A record arrives during a session's turn, and the session then asks for the record in the same
/// turn. The call must wait until the next turn. The session may have consumed the wake-up for the
/// read already, so the engine must wake it again.
#[test]
fn a_repeated_request_for_an_arrived_record_wakes_the_session_again() {
    let engine = Engine::open_without_threads(options(Durability::Async)).unwrap();
    let wakes = Arc::new(Wakes::default());
    let mut session = engine.session(Waker::from(Arc::clone(&wakes)));
    session.tick(1);
    let name = fill(&engine, &mut session);
    let asked = |session: &Session| match session.get(&session.key(name.as_bytes())) {
        Outcome::Ready(found) => found.map(|item| item.value().len()),
        Outcome::NeedsRead => None,
        _ => panic!("a get waits for reads alone"),
    };
    assert_eq!(asked(&session), None);
    assert!(engine.serve_reads());
    let woken = wakes.0.load(SeqCst);
    assert!(woken > 0);
    // This turn began before the record arrived, so the call must still wait.
    assert_eq!(asked(&session), None);
    assert!(!engine.serve_reads(), "it is read once");
    assert!(wakes.0.load(SeqCst) > woken);
    session.tick(3);
    assert_eq!(asked(&session), Some(4000));
}

/// Calls are repeated until the record that they need has been read, or until there is space. The
/// counters must count each such call once.
#[test]
fn a_call_that_has_to_be_repeated_is_counted_once() {
    let engine = Engine::open_without_threads(options(Durability::Async)).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    fill(&engine, &mut session);
    assert_eq!(engine.stats().totals.cmd_set, 4000);
    let mut cleaner = ManualCleaner::default();
    let mut repeated = 0;
    let mut call = |name: &str, what: &dyn Fn(&Session, &Key<'_>) -> Outcome<()>| {
        for turn in 0.. {
            assert!(turn < 200, "{name} waits for ever: {:?}", engine.stats());
            match what(&session, &session.key(name.as_bytes())) {
                Outcome::Ready(()) | Outcome::AfterCommit(..) => return,
                Outcome::NeedsRead | Outcome::NeedsSpace => repeated += 1,
                Outcome::Refused(refusal) => panic!("{name}: {refusal:?}"),
            }
            engine.clean(&mut cleaner);
            engine.commit();
            engine.serve_reads();
            session.tick(3);
        }
    };
    let touch =
        Get { touch: Some(Expiry::at(100)), counted_as: ReadCount::Touch, ..Get::default() };
    let arith =
        Arith { create: Some(Create { initial: 1, expiry: Expiry::NEVER }), ..Arith::add(1) };
    let compared = |mode| Store { mode, compare: Some(1), ..Store::set(b"x", 0, Expiry::NEVER) };
    for n in 0..40 {
        call(&format!("key{n}"), &|s, key| s.get(key).map(drop));
        call(&format!("key1{n:03}"), &|s, key| s.get_with(key, &Get::default()).map(drop));
        call(&format!("key2{n:03}"), &|s, key| s.get_with(key, &touch).map(drop));
        call(&format!("key3{n:03}"), &|s, key| s.store(key, compared(StoreMode::Set)).map(drop));
        call(&format!("key4{n:02}"), &|s, key| s.store(key, compared(StoreMode::Append)).map(drop));
        call(&format!("key5{n:02}"), &|s, key| s.delete(key, &Delete::default()).map(drop));
        call(&format!("key6{n:02}"), &|s, key| s.arith(key, &arith).map(drop));
        call(&format!("new{n}"), &|s, key| s.arith(key, &arith).map(drop));
    }
    let totals = engine.stats().totals;
    assert!(repeated > 200, "{repeated} calls repeated: the requested items must not be in memory");
    assert_eq!((totals.cmd_get, totals.get_hits, totals.get_misses), (80, 80, 0));
    assert_eq!((totals.cmd_touch, totals.touch_hits, totals.touch_misses), (40, 40, 0));
    assert_eq!(totals.cmd_set, 4000 + 80);
    assert_eq!(totals.cas_hits + totals.cas_badval, 40);
    assert_eq!((totals.delete_hits, totals.delete_misses), (40, 0));
    assert_eq!((totals.incr_hits, totals.incr_misses), (0, 0));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Freed space becomes available only with a commit. If there is only one writer, no other session
/// requests that commit. Nevertheless the writer must not wait for ever.
#[test]
#[allow(clippy::disallowed_methods, reason = "measures that a thread does not wait for ever")]
fn one_writer_alone_gets_through_several_times_the_store() {
    for durability in [Durability::None, Durability::Async, Durability::Sync] {
        let engine = Engine::open(options(durability)).unwrap();
        let mut session = engine.session(Waker::from(Arc::new(Unpark(thread::current()))));
        let value = vec![b'v'; 8000];
        let begun = Instant::now();
        for n in 0..20_000 {
            let name = format!("key{}", n % 3000);
            loop {
                session.tick(1);
                let store = Store::set(&value, 0, Expiry::NEVER);
                match session.store(&session.key(name.as_bytes()), store) {
                    Outcome::Ready(_) | Outcome::AfterCommit(..) => break,
                    Outcome::NeedsSpace | Outcome::NeedsRead => {}
                    Outcome::Refused(refusal) => panic!("{durability:?}: {n}: {refusal:?}"),
                }
                session.sleep();
                thread::park_timeout(PATIENCE);
                assert!(begun.elapsed() < PATIENCE, "{durability:?}: stuck at {n}");
            }
        }
    }
}

/// Stores one value under each key, and repeats a set that must wait for a read or for space.
/// Returns the number of sets refused because of unreadable records.
fn set_all(engine: &Arc<Engine>, keys: impl IntoIterator<Item = u32>, value: &str) -> u32 {
    let mut refused = 0;
    let mut cleaner = ManualCleaner::default();
    let mut session = engine.session(Waker::noop().clone());
    for n in keys {
        let (name, value) = (format!("key{n}"), format!("{value}{n}"));
        for turn in 0.. {
            assert!(turn < 100, "{name} waits for ever");
            session.tick(1);
            let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
            match session.store(&session.key(name.as_bytes()), store) {
                Outcome::Ready(_) | Outcome::AfterCommit(..) => break,
                Outcome::NeedsRead => {
                    engine.serve_reads();
                }
                Outcome::NeedsSpace => {
                    engine.clean(&mut cleaner);
                    engine.commit();
                }
                Outcome::Refused(Refusal::StoreFailed) => {
                    refused += 1;
                    break;
                }
                Outcome::Refused(refusal) => panic!("{n}: {refusal:?}"),
            }
        }
    }
    engine.commit();
    refused
}

#[test]
fn more_keys_than_memory_can_decide_about_at_once_are_recovered_in_several_passes() {
    const KEYS: u32 = 300_000;
    let options = Options { when_full: WhenFull::Refuse, ..options(Durability::Async) };
    let engine = Engine::open_without_threads(options.clone()).unwrap();
    assert_eq!(set_all(&engine, 0..KEYS, "old"), 0);
    assert_eq!(set_all(&engine, 0..KEYS / 3, "new"), 0);
    drop(engine);
    let mut read = 0;
    let engine =
        Engine::open_with_progress(options, &mut |Progress::Reading { segments, .. }| {
            read = segments;
        });
    let engine = engine.unwrap();
    let recovered = engine.recovered().unwrap();
    assert_eq!(recovered.items, u64::from(KEYS));
    assert!(read > u64::from(recovered.segments), "one pass was enough: this tests nothing");
    let mut session = engine.session(Waker::from(Arc::new(Unpark(thread::current()))));
    for n in (0..KEYS).step_by(101) {
        let wanted = format!("{}{n}", if n < KEYS / 3 { "new" } else { "old" });
        loop {
            session.tick(1);
            let name = format!("key{n}");
            match session.get(&session.key(name.as_bytes())) {
                Outcome::Ready(item) => {
                    let item = item.unwrap_or_else(|| panic!("{name} is lost"));
                    assert_eq!(item.value(), wanted.as_bytes());
                    break;
                }
                _ => thread::park_timeout(PATIENCE),
            }
        }
    }
}

#[test]
fn cleaning_forgets_unreadable_records() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let mut options = options(Durability::Async);
    options.store.as_mut().unwrap().devices[0].device = Arc::<SimDevice>::clone(&device);
    let engine = Engine::open_without_threads(options).unwrap();
    let old = "old".repeat(300);
    set_all(&engine, 0..20_000, &old);
    // Flips one bit in each 50 KB. Most segments are then damaged, and most of the damaged records
    // are not in memory.
    for at in (1 << 20..40 << 20).step_by(50_000) {
        device.flip_bit(at, 3);
    }
    let new = "new".repeat(300);
    assert_eq!(set_all(&engine, 20_000..120_000, &new), 0);
    assert!(engine.stats().totals.unreadable > 100, "{:?}", engine.stats().totals.unreadable);
    let mut session = engine.session(Waker::noop().clone());
    let mut found = 0;
    for n in 0..120_000 {
        let name = format!("key{n}");
        loop {
            session.tick(1);
            match session.get(&session.key(name.as_bytes())) {
                Outcome::Ready(None) => break,
                Outcome::Ready(Some(item)) => {
                    let wanted = format!("{}{n}", if n < 20_000 { &old } else { &new });
                    assert_eq!(item.value(), wanted.as_bytes(), "{name}");
                    found += 1;
                    break;
                }
                _ => assert!(engine.serve_reads()),
            }
        }
    }
    // A set that leaves an older slot counts as an overwrite. If the record behind the older slot
    // is another key's item, `items` does not include that item until the slot is resolved.
    let stats = engine.stats();
    assert!((stats.items..=stats.items + stats.older_slots).contains(&found), "{found} {stats:?}");
}

/// A restart may bring an unreadable record back until its segment is freed. Until then a delete of
/// a missing key must write a tombstone. Afterwards it must write nothing.
#[test]
fn deletes_of_missing_keys_write_nothing_once_unreadable_records_are_gone() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let mut options = options(Durability::Async);
    options.store.as_mut().unwrap().devices[0].device = Arc::<SimDevice>::clone(&device);
    let engine = Engine::open_without_threads(options).unwrap();
    let delete = |session: &mut Session| {
        session.tick(1);
        let before = engine.stats().totals.written_bytes;
        let deleted = session.delete(&session.key(b"nothing"), &Delete::default());
        assert!(matches!(deleted, Outcome::Ready(Deleted::NotFound)), "{deleted:?}");
        session.sleep();
        engine.stats().totals.written_bytes - before
    };
    let mut session = engine.session(Waker::noop().clone());
    assert_eq!(delete(&mut session), 0);
    set_all(&engine, 0..20_000, &"old".repeat(300));
    for at in (1 << 20..20 << 20).step_by(10_000) {
        device.flip_bit(at, 3);
    }
    let mut missed = 0;
    session.tick(1);
    for n in 0..20_000 {
        let name = format!("key{n}");
        while !match session.get(&session.key(name.as_bytes())) {
            Outcome::Ready(found) => {
                missed += usize::from(found.is_none());
                true
            }
            _ => false,
        } {
            engine.serve_reads();
            session.tick(1);
        }
    }
    assert!(missed > 1000, "{missed}");
    assert!(delete(&mut session) > 0);
    // Writes more than the store holds, so that the damaged segments are freed.
    assert_eq!(set_all(&engine, 20_000..120_000, &"new".repeat(300)), 0);
    let mut cleaner = ManualCleaner::default();
    while engine.clean(&mut cleaner) {
        assert!(engine.commit());
    }
    assert_eq!(delete(&mut session), 0);
}

#[test]
fn unreadable_records_do_not_stop_the_cleaner_in_refuse_mode() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let mut options = Options { when_full: WhenFull::Refuse, ..options(Durability::Async) };
    options.store.as_mut().unwrap().devices[0].device = Arc::<SimDevice>::clone(&device);
    let engine = Engine::open_without_threads(options.clone()).unwrap();
    let keys = || (0..40_000).map(|n| n * 7919 % 40_000);
    assert_eq!(set_all(&engine, 0..40_000, &"old".repeat(300)), 0);
    for at in (1 << 20..35 << 20).step_by(1_001_000) {
        device.flip_bit(at, 3);
    }
    let mut refused = 0;
    for round in 0..4 {
        refused = set_all(&engine, keys(), &format!("{round}").repeat(900));
    }
    assert!(refused < 100, "{refused}");
    drop(engine);
    // If damage is accepted, no set may be refused, even if no start has noticed the damage.
    options.store.as_mut().unwrap().accept_damage = true;
    let engine = Engine::open_without_threads(options).unwrap();
    assert_eq!(set_all(&engine, keys(), &"new".repeat(300)), 0);
}

/// Large values on a device. Memory holds one or two of them at a time.
struct LargeValues {
    engine: Arc<Engine>,
    cleaner: ManualCleaner,
    sessions: Vec<Session>,
}

impl LargeValues {
    /// Stores one value for each session and waits until all are durable.
    fn new(sessions: usize, len: usize) -> LargeValues {
        let options = Options { max_item_size: 4 << 20, ..options(Durability::Async) };
        let engine = Engine::open_without_threads(options).unwrap();
        let sessions = (0..sessions).map(|_| engine.session(Waker::noop().clone())).collect();
        let mut values = LargeValues { engine, cleaner: ManualCleaner::default(), sessions };
        let value = vec![b'v'; len];
        for at in 0..values.sessions.len() {
            while !values.done(at, |session, key| {
                let store = Store::set(&value, 0, Expiry::NEVER);
                session.store(key, store).map(|stored| matches!(stored, Stored::Stored { .. }))
            }) {
                values.turn();
            }
        }
        assert!(values.engine.commit());
        values
    }

    /// Makes a call for a session's value. Returns true if the call is done.
    fn done(&self, at: usize, call: impl Fn(&Session, &Key<'_>) -> Outcome<bool>) -> bool {
        let session = &self.sessions[at];
        match call(session, &session.key(format!("large{at}").as_bytes())) {
            Outcome::Ready(true) | Outcome::AfterCommit(true, _) => true,
            Outcome::NeedsRead | Outcome::NeedsSpace => false,
            other => panic!("{other:?}"),
        }
    }

    /// Runs one turn of the cleaner, a commit, the reads, and a tick of every session. The
    /// sessions' time stays the same.
    fn turn(&mut self) {
        self.engine.clean(&mut self.cleaner);
        self.engine.commit();
        self.engine.serve_reads();
        self.sessions.iter_mut().for_each(|session| session.tick(1));
    }

    fn touch(session: &Session, key: &Key<'_>) -> Outcome<bool> {
        let touch = Get { touch: Some(Expiry::at(100)), ..Get::default() };
        session.get_with(key, &touch).map(|found| found.is_some())
    }
}

/// A touch needs memory for the old version and for the new one. If both never fit, the device must
/// not be read again and again, and the item must stay.
#[test]
fn a_touch_of_a_value_too_large_for_a_second_version_is_refused() {
    let mut values = LargeValues::new(2, (4 << 20) - 200);
    for _ in 0..3 {
        let mut reads = None;
        for turn in 0.. {
            assert!(turn < 1000, "the touch waits for ever: {:?}", values.engine.stats());
            let session = &values.sessions[0];
            let outcome = LargeValues::touch(session, &session.key(b"large0"));
            reads = session.retake_reads(reads);
            match outcome {
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::OutOfMemory);
                    break;
                }
                Outcome::NeedsRead | Outcome::NeedsSpace => values.turn(),
                other => panic!("{other:?}"),
            }
        }
        reads.into_iter().for_each(|reads| values.sessions[0].release(reads));
        for at in 0..2 {
            while !values.done(at, |session, key| session.get(key).map(|found| found.is_some())) {
                values.turn();
            }
        }
    }
    assert_eq!(values.engine.stats().totals.evictions, 0);
}

/// Calls that together need more memory than there is must take turns, so that all of them succeed.
#[test]
fn touches_of_values_that_do_not_fit_into_memory_together_all_succeed() {
    const SESSIONS: usize = 6;
    let mut values = LargeValues::new(SESSIONS, 5 << 19);
    let mut reads: [Option<Reads>; SESSIONS] = std::array::from_fn(|_| None);
    for _ in 0..20 {
        let mut touched = [false; SESSIONS];
        for turn in 0.. {
            assert!(turn < 1000, "{touched:?}: {:?}", values.engine.stats());
            for at in 0..SESSIONS {
                touched[at] = touched[at] || values.done(at, LargeValues::touch);
                reads[at] = values.sessions[at].retake_reads(reads[at].take());
            }
            if touched == [true; SESSIONS] {
                break;
            }
            values.turn();
        }
    }
    assert_eq!(values.engine.stats().totals.evictions, 0);
}

#[test]
fn a_jumbo_expires_after_a_restart_too() {
    let options = options(Durability::Sync);
    let engine = Engine::open_without_threads(options.clone()).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(100);
    let store = Store::set(&[b'v'; 900_000], 0, Expiry::at(200));
    let stored = session.store(&session.key(b"large"), store);
    assert!(matches!(stored, Outcome::AfterCommit(Stored::Stored { .. }, _)), "{stored:?}");
    assert!(engine.commit());
    drop(session);
    drop(engine);
    let engine = Engine::open_without_threads(options).unwrap();
    assert_eq!(engine.stats().items, 1);
    let mut session = engine.session(Waker::noop().clone());
    session.tick(201);
    engine.clean(&mut ManualCleaner::default());
    assert_eq!(engine.stats().items, 0);
}

/// Keys are overwritten, and segments are cleaned and reused. Meanwhile a get must never return the
/// copy of an older version than the one in the index.
#[test]
fn frequently_read_records_come_from_memory_and_are_never_stale() {
    const KEYS: u64 = 2500;
    let mut options = options(Durability::Async);
    options.when_full = WhenFull::Refuse;
    if let Some(store) = &mut options.store {
        store.devices[0].device = Arc::new(SimDevice::new(18 << 20, 1));
    }
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    let mut cleaner = ManualCleaner::default();
    let mut versions = vec![0u64; KEYS as usize];
    let mut random = Random::new(1);
    let value = |n: u64, version: u64| {
        [n, version].repeat(250).iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut step = |session: &mut Session| {
        engine.clean(&mut cleaner);
        engine.commit();
        engine.serve_reads();
        session.tick(1);
    };
    for round in 0..60_000u64 {
        // A few keys are popular, and every key is overwritten now and then.
        let among = if round % 2 == 0 { KEYS / 10 } else { KEYS };
        let n = if round < KEYS { round } else { random.below(among) };
        let name = format!("key{n}");
        let writes = round < KEYS || round % 4 == 0;
        if writes {
            versions[n as usize] += 1;
        }
        let expected = value(n, versions[n as usize]);
        for turn in 0.. {
            assert!(turn < 200, "{name} waits for ever: {:?}", engine.stats());
            let key = session.key(name.as_bytes());
            let done = if writes {
                match session.store(&key, Store::set(&expected, 0, Expiry::NEVER)) {
                    Outcome::Ready(stored) => matches!(stored, Stored::Stored { .. }),
                    Outcome::NeedsSpace | Outcome::NeedsRead => false,
                    other => panic!("{name} in round {round}: {:?}", other.map(drop)),
                }
            } else {
                match session.get(&key) {
                    Outcome::Ready(found) => {
                        let found = found.map(|item| item.value().to_vec());
                        assert!(found.as_ref() == Some(&expected), "{name} in round {round}");
                        true
                    }
                    Outcome::NeedsRead => false,
                    _ => panic!("a get waits for reads alone"),
                }
            };
            if done {
                break;
            }
            step(&mut session);
        }
        if round % 16 == 0 {
            step(&mut session);
        }
    }
    let stats = engine.stats();
    assert!(stats.copies > 0, "{stats:?}");
    assert!(stats.totals.moved_items > 0, "segments were cleaned");
    let gets = stats.totals.get_hits;
    assert!(
        stats.totals.flash_reads * 2 < gets,
        "{} reads for {gets} gets",
        stats.totals.flash_reads
    );
}

/// While a device fills, clients may read every item on it a few times. If a single read kept an
/// item from being evicted, the cleaner would rewrite nearly all items. So only reads that follow
/// each other closely may keep an item.
#[test]
fn evenly_read_items_are_not_rewritten_repeatedly() {
    const KEYS: u64 = 16_000;
    const SETS: u64 = 8_000;
    let engine = Engine::open_without_threads(options(Durability::Async)).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    let mut cleaner = ManualCleaner::default();
    let mut step = |session: &mut Session| {
        engine.clean(&mut cleaner);
        engine.commit();
        engine.serve_reads();
        session.tick(1);
    };
    let mut for_gets = ManualCleaner::default();
    let mut random = Random::new(1);
    let mut set = |session: &mut Session, n: u64| {
        let name = format!("key{n}");
        for turn in 0.. {
            assert!(turn < 200, "{name} waits for ever: {:?}", engine.stats());
            let store = Store::set(&[b'v'; 4000], 0, Expiry::NEVER);
            if let Outcome::Ready(_) = session.store(&session.key(name.as_bytes()), store) {
                return;
            }
            step(session);
        }
    };
    (0..KEYS).for_each(|n| set(&mut session, n));
    let before = engine.stats().totals;
    for _ in 0..SETS {
        for _ in 0..20 {
            let name = format!("key{}", random.below(KEYS));
            while let Outcome::NeedsRead = session.get(&session.key(name.as_bytes())).map(drop) {
                engine.serve_reads();
                session.tick(1);
            }
        }
        set(&mut session, random.below(KEYS));
        // The gets request frames from the cleaner, and the cleaner requests commits. This engine
        // has no threads, so the test runs both.
        engine.clean(&mut for_gets);
        engine.commit();
        session.tick(1);
    }
    let after = engine.stats().totals;
    let evictions = after.evictions - before.evictions;
    let moved = after.moved_items - before.moved_items;
    assert!(evictions > 1000, "{evictions} evictions");
    assert!(moved < SETS, "{moved} items moved for {SETS} sets, {evictions} evictions");
}

/// Without eviction, an index at its memory limit must refuse new keys. It must not take the memory
/// that is kept for connections.
#[test]
fn a_full_index_refuses_new_items_in_refuse_mode() {
    const MEMORY: u64 = 8 << 20;
    let options = Options { when_full: WhenFull::Refuse, ..options(Durability::Async) };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    let mut cleaner = ManualCleaner::default();
    let mut set = |session: &mut Session, n: u64| {
        let name = format!("k{n}");
        for _ in 0..1000 {
            match session.store(&session.key(name.as_bytes()), Store::set(b"v", 0, Expiry::NEVER)) {
                Outcome::Ready(Stored::Stored { .. }) => return true,
                Outcome::NeedsSpace | Outcome::NeedsRead => {}
                Outcome::Refused(Refusal::OutOfMemory) => return false,
                _ => panic!("{name}: {:?}", engine.stats()),
            }
            engine.clean(&mut cleaner);
            engine.commit();
            engine.serve_reads();
            session.tick(1);
        }
        panic!("{name} waits for ever: {:?}", engine.stats());
    };
    let filled = || {
        let stats = engine.stats();
        (stats.index_slots * 8 * 100 / stats.index_limit, stats.items)
    };
    // The number of items when the statistics first show that the index takes at least 90 % of its
    // limit.
    let mut warned = None;
    let kept = (0..)
        .find(|&n| {
            if n % 1000 == 0 {
                let (percent, items) = filled();
                warned = warned.or((percent >= 90).then_some(items));
            }
            !set(&mut session, n)
        })
        .unwrap();
    let (percent, items) = filled();
    assert!((98..=100).contains(&percent), "{percent} % at the first refusal");
    let warned = warned.unwrap();
    assert!(warned * 100 / items <= 97, "warned at {warned} of {items} items");
    // One stripe may be fuller than the others, so some further keys may still be accepted.
    let refused = (kept..kept + 1000).filter(|&n| !set(&mut session, n)).count();
    let stats = engine.stats();
    assert!(stats.items > 400_000 && refused > 0, "{refused} refused: {stats:?}");
    assert!(stats.index_bytes <= MEMORY / 8 * 7, "{stats:?}");
    assert!(engine.buffers_held().1 + 2 * engine.arriving_limit() >= MEMORY / 8);
    assert!((0..1000).all(|n| set(&mut session, n)), "{:?}", engine.stats());
}

/// With eviction, an index at its memory limit must replace older items by newer ones.
#[test]
fn a_full_index_evicts_the_oldest_items() {
    const KEYS: u64 = 1_100_000;
    let engine = Engine::open_without_threads(options(Durability::Async)).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    let mut cleaner = ManualCleaner::default();
    for n in 0..KEYS {
        let name = format!("k{n}");
        for turn in 0.. {
            assert!(turn < 100, "{name} waits for ever: {:?}", engine.stats());
            match session.store(&session.key(name.as_bytes()), Store::set(b"v", 0, Expiry::NEVER)) {
                Outcome::Ready(Stored::Stored { .. }) => break,
                Outcome::NeedsSpace | Outcome::NeedsRead => {}
                _ => panic!("{name} was refused: {:?}", engine.stats()),
            }
            engine.clean(&mut cleaner);
            engine.commit();
            engine.serve_reads();
            session.tick(1);
        }
    }
    let stats = engine.stats();
    assert!(stats.totals.evictions > 0 && stats.items > KEYS / 2, "{stats:?}");
    assert!(stats.memory_used <= stats.memory_limit + stats.memory_limit / 10, "{stats:?}");
    session.tick(1);
    let last = format!("k{}", KEYS - 1);
    let found = session.get(&session.key(last.as_bytes())).map(|found| found.is_some());
    assert!(matches!(found, Outcome::Ready(true)), "the newest is there");
}
