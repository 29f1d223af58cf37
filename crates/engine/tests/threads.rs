//! Many threads on one engine. Readers never see torn bytes or bytes of other items while frames
//! are evicted and tables grow. No increment is lost.

use larder_disk::Random;
use larder_engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;

const THREADS: u64 = 4;

fn engine(memory_mib: u64) -> Arc<Engine> {
    Engine::open(Options { memory: memory_mib << 20, ..Options::default() }).unwrap()
}

fn session(engine: &Arc<Engine>) -> Session {
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1000);
    session
}

/// Repeats a call until it is answered. In these tests, calls wait only for space, and a flush_all
/// also waits for an earlier one.
fn finish<T>(session: &mut Session, mut call: impl FnMut(&Session) -> Outcome<T>) -> T {
    loop {
        if let Outcome::Ready(answer) = call(session) {
            session.tick(1000);
            return answer;
        }
        session.sleep();
        thread::yield_now();
        session.tick(1000);
    }
}

/// Returns a value that repeats the number of its key.
fn value_of(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn readers_see_whole_values_of_their_key_while_everything_is_evicted() {
    let engine = engine(8);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                let mut session = session(engine);
                let mut random = Random::new(seed);
                for step in 0..60_000u64 {
                    let number = random.below(30_000);
                    let key = number.to_string();
                    if step % 2 == 0 {
                        let len = 8 + random.below(1500) as usize;
                        let value = value_of(number, len);
                        let stored = finish(&mut session, |s| {
                            s.store(&s.key(key.as_bytes()), Store::set(&value, 0, Expiry::NEVER))
                        });
                        assert!(matches!(stored, Stored::Stored { .. }), "{stored:?}");
                    } else if let Outcome::Ready(Some(item)) =
                        session.get(&session.key(key.as_bytes()))
                    {
                        let value = item.value();
                        assert_eq!(value, value_of(number, value.len()), "key {key}");
                    }
                }
            });
        }
    });
    assert!(engine.stats().totals.evictions > 0);
}

#[test]
fn no_item_is_missed_while_tables_grow_and_slots_move() {
    let engine = engine(256);
    let done = AtomicBool::new(false);
    let count = 150_000u64;
    thread::scope(|scope| {
        let (engine, done) = (&engine, &done);
        let mut first = session(engine);
        for number in 0..1000u64 {
            finish(&mut first, |s| {
                let value = value_of(number, 16);
                s.store(&s.key(&number.to_le_bytes()), Store::set(&value, 0, Expiry::NEVER))
            });
        }
        drop(first);
        for seed in 0..2 {
            scope.spawn(move || {
                let mut session = session(engine);
                let mut random = Random::new(seed);
                while !done.load(Ordering::Relaxed) {
                    let number = random.below(1000);
                    let Outcome::Ready(found) = session.get(&session.key(&number.to_le_bytes()))
                    else {
                        panic!("a get waits")
                    };
                    assert!(found.is_some(), "{number} was missed");
                    session.tick(1000);
                }
            });
        }
        let mut session = session(engine);
        for number in 1000..count {
            finish(&mut session, |s| {
                let value = value_of(number, 16);
                s.store(&s.key(&number.to_le_bytes()), Store::set(&value, 0, Expiry::NEVER))
            });
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(engine.stats().items, count);
}

#[test]
fn every_increment_counts_once_and_is_seen_once() {
    let engine = engine(16);
    let each = 20_000u64;
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let counters: Vec<_> = (0..THREADS)
            .map(|_| {
                let engine = &engine;
                scope.spawn(move || {
                    let mut session = session(engine);
                    let create = Some(Create { initial: 1, expiry: Expiry::NEVER });
                    let arith = Arith { create, ..Arith::add(1) };
                    let one = |session: &mut Session| match finish(session, |s| {
                        s.arith(&s.key(b"counter"), &arith)
                    }) {
                        Counted::Value { value, .. } => value,
                        other => panic!("{other:?}"),
                    };
                    (0..each).map(|_| one(&mut session)).collect::<Vec<u64>>()
                })
            })
            .collect();
        counters.into_iter().flat_map(|counter| counter.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (1..=THREADS * each).collect::<Vec<u64>>());
}

#[test]
fn a_flush_hides_everything_written_before_it_from_everybody() {
    let engine = engine(16);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                let mut session = session(engine);
                let key = format!("own:{seed}");
                for round in 0..300u64 {
                    finish(&mut session, |s| {
                        let value = value_of(round, 16);
                        s.store(&s.key(key.as_bytes()), Store::set(&value, 0, Expiry::NEVER))
                    });
                    if round % 3 == seed % 3 {
                        finish(&mut session, |s| s.flush_all(None));
                        let found = finish(&mut session, |s| {
                            s.get(&s.key(key.as_bytes())).map(|item| item.is_some())
                        });
                        assert!(!found, "{key} survived its own flush");
                    }
                }
            });
        }
    });
}

/// Lanes without a store divide the keys and the memory, and each has a cleaner that evicts.
#[test]
fn lanes_in_memory_are_one_cache() {
    const LANES: usize = 4;
    const MEMORY: u64 = 32 << 20;
    let engine =
        Engine::open(Options { memory: MEMORY, lanes: LANES, ..Options::default() }).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                let mut session = session(engine);
                for number in 0..20_000 {
                    let key = format!("{thread}:{number}");
                    let value = value_of(number, 1000);
                    finish(&mut session, |session| {
                        let set = Store::set(&value, 0, Expiry::NEVER);
                        session.store(&session.key(key.as_bytes()), set).map(drop)
                    });
                    let found = finish(&mut session, |session| {
                        let item = session.get(&session.key(key.as_bytes()));
                        item.map(|item| item.map(|item| item.value().to_vec()))
                    });
                    assert!(found.is_none_or(|found| found == value));
                }
            });
        }
    });
    let stats = engine.lane_stats();
    assert_eq!(stats.len(), LANES);
    let least = MEMORY / 1000 / LANES as u64 / 2;
    for lane in &stats {
        assert!(lane.items > least && lane.totals.evictions > least, "{lane:?}");
    }
    assert!(engine.memory_used() <= MEMORY + (LANES << 18) as u64);
    assert_eq!(stats.iter().map(|lane| lane.memory_limit).sum::<u64>(), MEMORY);

    let mut session = session(&engine);
    loop {
        let before = engine.stats();
        let (mut cursor, mut shown) = (ScanCursor::default(), 0);
        while finish(&mut session, |session| session.scan(&mut cursor, &mut |_| shown += 1)) {}
        // If the cleaner evicted items during the scan, scans again. The cleaner soon has nothing
        // left to do.
        if engine.stats().totals.evictions == before.totals.evictions {
            assert_eq!(shown, before.items);
            break;
        }
    }
    assert!(matches!(session.flush_all(None), Outcome::Ready(_)));
    assert_eq!(engine.stats().items, 0);
}

/// Two threads change the memory limit again and again. Afterwards the lanes together have exactly
/// the limit that the engine reports.
#[test]
fn lanes_divide_the_last_memory_limit() {
    const MIB: u64 = 1 << 20;
    let options = Options { memory: 512 * MIB, lanes: 8, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    for round in 0..200 {
        thread::scope(|scope| {
            for thread in 0..2 {
                let engine = &engine;
                scope.spawn(move || {
                    for step in 0..4 {
                        engine.set_memory_limit((512 + thread * 256 + step * 64) * MIB).unwrap();
                    }
                });
            }
        });
        let shares: u64 = engine.lane_stats().iter().map(|lane| lane.memory_limit).sum();
        assert_eq!(shares / MIB, engine.memory_limit() / MIB, "round {round}");
    }
}
