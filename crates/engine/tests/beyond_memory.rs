//! Stores that are larger than memory: reading from them, and writing all over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use larder_disk::SimDevice;
use larder_engine::{
    Durability, Engine, Expiry, ManualCleaner, MonotonicClock, Options, Outcome, Progress, Session,
    Store, StoreOptions, Stored, WhenFull,
};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn options(durability: Durability) -> Options {
    let store = StoreOptions {
        device: Arc::new(SimDevice::new(64 << 20, 1)),
        durability,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        seeds: [1, 2, 3],
        created: 1,
    };
    Options { memory: 8 << 20, store: Some(store), ..Options::default() }
}

/// Stores more than memory holds; the first key, whose record is not in memory any more.
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

/// A wake-up may come for several reasons at once. A record that arrives after the session took its
/// turn, but before it asks again, must not be left lying.
#[test]
fn whoever_asks_again_for_what_has_arrived_is_woken_again() {
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
    // This turn began before the record arrived.
    assert_eq!(asked(&session), None);
    assert!(!engine.serve_reads(), "it is read once");
    assert!(wakes.0.load(SeqCst) > woken);
    session.tick(3);
    assert_eq!(asked(&session), Some(4000));
}

/// Unparks the thread that it was made on.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What is freed comes back by a commit. Where nobody else writes, whoever waits for space is the only
/// one who would ask for it.
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

/// Stores a value of every key, waiting for whatever must be waited for.
fn set_all(engine: &Arc<Engine>, keys: std::ops::Range<u32>, value: &str) {
    let mut cleaner = ManualCleaner::default();
    let mut session = engine.session(Waker::noop().clone());
    for n in keys {
        let (name, value) = (format!("key{n}"), format!("{value}{n}"));
        loop {
            session.tick(1);
            let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
            match session.store(&session.key(name.as_bytes()), store) {
                Outcome::Ready(_) | Outcome::AfterCommit(..) => break,
                Outcome::NeedsRead => assert!(engine.serve_reads()),
                Outcome::NeedsSpace => {
                    engine.clean(&mut cleaner);
                    engine.commit();
                }
                Outcome::Refused(refusal) => panic!("{n}: {refusal:?}"),
            }
        }
    }
    engine.commit();
}

#[test]
fn more_keys_than_memory_can_decide_about_at_once_are_recovered_in_several_passes() {
    const KEYS: u32 = 300_000;
    let options = Options { when_full: WhenFull::Refuse, ..options(Durability::Async) };
    let engine = Engine::open_without_threads(options.clone()).unwrap();
    set_all(&engine, 0..KEYS, "old");
    set_all(&engine, 0..KEYS / 3, "new");
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
fn what_cannot_be_read_when_its_segment_is_cleaned_is_forgotten() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let mut options = options(Durability::Async);
    options.store.as_mut().unwrap().device = Arc::<SimDevice>::clone(&device);
    let engine = Engine::open_without_threads(options).unwrap();
    let old = "old".repeat(300);
    set_all(&engine, 0..20_000, &old);
    // One bit in each 50 KB, so in most of the segments, and most of what lies there is not in memory.
    for at in (1 << 20..40 << 20).step_by(50_000) {
        device.flip_bit(at, 3);
    }
    let new = "new".repeat(300);
    set_all(&engine, 20_000..120_000, &new);
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
    assert_eq!(found, engine.stats().items);
}
