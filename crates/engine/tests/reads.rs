//! Reads from a store that is larger than memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;

use larder_disk::SimDevice;
use larder_engine::{
    Durability, Engine, Expiry, ManualCleaner, MonotonicClock, Options, Outcome, Session, Store,
    StoreOptions, Stored,
};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn engine() -> Arc<Engine> {
    let store = StoreOptions {
        device: Arc::new(SimDevice::new(64 << 20, 1)),
        durability: Durability::Async,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        seeds: [1, 2, 3],
        created: 1,
    };
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    Engine::open_without_threads(options).unwrap()
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
    let engine = engine();
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
