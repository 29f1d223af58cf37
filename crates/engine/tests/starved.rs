//! In evict mode, the engine refuses no call that can succeed later. It must not refuse because the
//! cleaner last found nothing to evict although there is something now. It also must not refuse
//! because the operating system does not run a thread.

use larder_disk::Random;
use larder_engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

const MEMORY: u64 = 16 << 20;

fn options() -> Options {
    Options { memory: MEMORY, max_item_size: 7 << 20, ..Options::default() }
}

/// The cleaner found nothing to evict, because values that were still arriving took all the memory.
/// Since then, most of these values are gone, and items that can be evicted use their memory. The
/// cleaner has not run again. A call that finds no space now must wait. It must not be refused.
#[test]
fn an_outdated_cleaner_finding_refuses_nothing() {
    let engine = Engine::open_without_threads(options()).unwrap();
    let mut cleaner = ManualCleaner::default();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    let mut taken = Vec::new();
    let value = |session: &Session| match session.large_value(None, 6 << 20) {
        Outcome::Ready(Some(large)) => large,
        other => panic!("{other:?}"),
    };
    let mut refused = false;
    for _ in 0..3 {
        let mut large = value(&session);
        for _ in 0..200 {
            match session.grow_large(&mut large, 6 << 20) {
                Outcome::Ready(()) => break,
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::OutOfMemory);
                    refused = true;
                    break;
                }
                _ => {}
            }
            session.tick(1);
            engine.clean(&mut cleaner);
        }
        taken.push(large);
    }
    assert!(refused, "there was no end of memory");
    // Two of the values are gone, and the items that replace them can be evicted.
    taken.truncate(1);
    for n in 0..5000 {
        let key = n.to_string();
        let key = session.key(key.as_bytes());
        match session.store(&key, Store::set(&[b'v'; 1000], 0, Expiry::NEVER)) {
            Outcome::Ready(_) => {}
            // Memory is full: more room needs evictions.
            Outcome::NeedsSpace => break,
            other => panic!("{other:?}"),
        }
    }
    let mut large = value(&session);
    let first = session.grow_large(&mut large, 6 << 20);
    assert!(matches!(first, Outcome::NeedsSpace), "{first:?}");
    let mut turns = 0;
    while !matches!(session.grow_large(&mut large, 6 << 20), Outcome::Ready(())) {
        session.tick(1);
        engine.clean(&mut cleaner);
        turns += 1;
        assert!(turns < 200, "{:?}", engine.stats());
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Threads fill the cache with values of all sizes. Some pause between two turns or within one; the
/// epoch of a paused thread keeps memory from being reused. No call may be refused, and all threads
/// must make progress.
#[test]
fn fills_beside_threads_that_do_not_run_are_never_refused() {
    let engine = Engine::open(options()).unwrap();
    let (stop, refused, stored) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for writer in 0..4u64 {
            let (engine, stop, refused, stored) = (&engine, &stop, &refused, &stored);
            scope.spawn(move || {
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                let mut session = engine.session(waker);
                let mut random = Random::new(writer);
                let value = vec![b'v'; 300 << 10];
                while !stop.load(Relaxed) {
                    session.tick(1);
                    let key = random.below(1 << 40).to_string();
                    let len = match random.below(20) {
                        0 => random.below(300 << 10),
                        1..4 => random.below(40 << 10),
                        _ => random.below(2000),
                    };
                    let key = session.key(key.as_bytes());
                    let store = Store::set(&value[..len as usize], 0, Expiry::NEVER);
                    match session.store(&key, store) {
                        Outcome::Ready(_) | Outcome::AfterCommit(..) => {
                            stored.fetch_add(1, Relaxed);
                        }
                        Outcome::Refused(refusal) => {
                            refused.fetch_add(1, Relaxed);
                            stop.store(true, Relaxed);
                            panic!("{refusal:?}: {:?}", engine.stats());
                        }
                        Outcome::NeedsSpace | Outcome::NeedsRead => {
                            session.sleep();
                            thread::park_timeout(Duration::from_millis(100));
                        }
                    }
                    // Simulates a thread that the system preempts within a turn.
                    if writer == 0 && random.one_in(2000) {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
                session.sleep();
            });
        }
        while stored.load(Relaxed) < 150_000 && !stop.load(Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(refused.load(Relaxed), 0);
    assert!(engine.stats().totals.evictions > 0);
}
