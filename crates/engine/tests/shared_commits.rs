//! When a thread that answers wait for has the commit begun, so that many share one and nobody waits
//! without reason.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::SimDevice;
use larder_engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

/// By how much the clock moves whenever somebody looks at it: all that a commit takes here.
const TICK_US: u64 = 10;

fn open() -> (Arc<Engine>, Session) {
    let time = AtomicU64::new(0);
    let clock = move || Duration::from_micros(time.fetch_add(TICK_US, Ordering::Relaxed));
    let store = StoreOptions {
        clock: MonotonicClock(Arc::new(clock)),
        ..store(Arc::new(SimDevice::new(64 << 20, 1)), Durability::Sync)
    };
    let options = Options { memory: 32 << 20, store: Some(store), ..Options::default() };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    (engine, session)
}

/// Stores under `count` keys for as many clients that wait.
fn set_all(session: &mut Session, count: u32) {
    for number in 0..count {
        let key = number.to_le_bytes();
        let stored = session.store(&session.key(&key), Store::set(b"value", 0, Expiry::NEVER));
        let Outcome::AfterCommit(Stored::Stored { .. }, point) = stored else {
            panic!("{stored:?}")
        };
        session.wake_on_commit(point);
    }
}

/// For how long it lingers each time; nothing happens meanwhile.
fn lingers(session: &mut Session) -> Vec<Duration> {
    (0..1000).map_while(|_| session.lingers()).collect()
}

/// It looks once more, and waits for nobody.
const ONCE: [Duration; 1] = [Duration::ZERO];

#[test]
fn a_thread_that_has_nothing_to_commit_sleeps_at_once() {
    let (_engine, mut session) = open();
    assert_eq!(lingers(&mut session), []);
}

#[test]
fn a_lone_client_waits_for_nobody() {
    let (engine, mut session) = open();
    for _ in 0..3 {
        set_all(&mut session, 1);
        assert_eq!(lingers(&mut session), ONCE);
        session.sleep();
        assert!(engine.commit());
        session.tick(1);
    }
}

#[test]
fn the_first_of_many_waits_for_the_others_but_not_for_long() {
    let (engine, mut session) = open();
    set_all(&mut session, 40);
    assert_eq!(lingers(&mut session), ONCE);
    session.sleep();
    assert!(engine.commit());
    session.tick(1);

    set_all(&mut session, 1);
    let waits = lingers(&mut session);
    assert!((2..1000).contains(&waits.len()) && waits[0].is_zero(), "{waits:?}");
    assert!(waits[1..].is_sorted_by(|a, b| a > b && !b.is_zero()), "{waits:?}");
    session.tick(1);
    // The while is over, and the tick has asked.
    assert_eq!(lingers(&mut session), []);
    assert!(engine.commit());

    set_all(&mut session, 40);
    session.sleep();
    assert!(engine.commit());
    session.tick(1);
    set_all(&mut session, 20);
    assert_eq!(lingers(&mut session), ONCE);
}

fn polls(session: &mut Session) -> u32 {
    (0..1000).take_while(|_| session.polls()).count() as u32
}

#[test]
fn a_commit_for_a_few_and_the_request_after_it_are_polled_for_but_not_for_long() {
    let (engine, mut session) = open();
    session.sleep();
    assert_eq!(polls(&mut session), 0, "nothing is expected");
    session.tick(1);
    set_all(&mut session, 1);
    session.sleep();
    assert!(engine.commit());
    session.tick(1);
    set_all(&mut session, 1);
    session.sleep();
    assert!(session.polls(), "the commit");
    assert!(engine.commit());
    session.tick(1);
    session.sleep();
    let looked = polls(&mut session);
    assert!((1..=10).contains(&looked), "the next request: {looked}");
    session.tick(1);
    session.sleep();
    assert_eq!(polls(&mut session), 0, "the client has not come back");

    set_all(&mut session, 1);
    session.sleep();
    let looked = polls(&mut session);
    assert!((1..=100).contains(&looked), "a commit that takes long: {looked}");
    assert!(engine.commit());
    session.tick(1);
    set_all(&mut session, 40);
    session.sleep();
    assert_eq!(polls(&mut session), 0, "many clients keep the threads busy anyway");
}
