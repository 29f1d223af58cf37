//! When a thread requests the commit that its answers wait for. Many answers should share a commit,
//! and none should wait without reason.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::SimDevice;
use larder_engine::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Microseconds that the clock advances with each reading. Nothing else makes a commit take time in
/// these tests.
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

/// Stores `count` keys, each for a waiting client.
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

/// Calls [`Session::lingers`] until the thread should sleep, and returns the durations to wait. No
/// commit or tick happens meanwhile.
fn lingers(session: &mut Session) -> Vec<Duration> {
    (0..1000).map_while(|_| session.lingers()).collect()
}

/// The result of `lingers` if the thread looks for work once more and does not wait.
const ONCE: [Duration; 1] = [Duration::ZERO];

#[test]
fn a_thread_that_has_nothing_to_commit_sleeps_at_once() {
    let (_engine, mut session) = open();
    assert_eq!(lingers(&mut session), []);
}

#[test]
fn a_lone_client_does_not_wait_for_others() {
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
fn a_thread_waits_briefly_for_most_of_the_clients_that_a_commit_released() {
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
    // The delay is over, and the tick has requested the commit.
    assert_eq!(lingers(&mut session), []);
    assert!(engine.commit());

    set_all(&mut session, 40);
    session.sleep();
    assert!(engine.commit());
    session.tick(1);
    set_all(&mut session, 20);
    assert_eq!(lingers(&mut session), ONCE);
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Stores a new key that belongs to lane number `lane`, for a waiting client. The key begins with
/// `number`.
fn set_in(session: &Session, engine: &Engine, lane: usize, number: u32) -> CommitPoint {
    let mut keys = (0_u32..).map(|more| [number.to_le_bytes(), more.to_le_bytes()].concat());
    let key = keys.find(|key| engine.lane_of(key) == Some(lane)).unwrap();
    let stored = session.store(&session.key(&key), Store::set(b"value", 0, Expiry::NEVER));
    let Outcome::AfterCommit(Stored::Stored { .. }, point) = stored else { panic!("{stored:?}") };
    session.wake_on_commit(point);
    point
}

fn wait_for(session: &Session, point: CommitPoint) {
    for _ in 0..60 {
        if session.commit_state(point) != CommitState::Pending {
            return;
        }
        thread::park_timeout(Duration::from_secs(1));
    }
    panic!("no thread has begun this commit");
}

#[test]
fn a_lingering_lane_does_not_delay_other_lanes() {
    // The clock advances until the first commit has ended, so that this commit has a duration. Then
    // the clock stops, so that the first lane lingers without end.
    let (time, step) = (AtomicU64::new(0), Arc::new(AtomicU64::new(300)));
    let steps = Arc::clone(&step);
    let clock = move || {
        Duration::from_micros(time.fetch_add(steps.load(Ordering::Relaxed), Ordering::Relaxed))
    };
    let device = |at: u64| StoreDevice {
        name: format!("device{at}"),
        device: Arc::new(SimDevice::new(64 << 20, at + 1)),
        lower: None,
        seeds: [at * 3 + 1, at * 3 + 2, at * 3 + 3],
    };
    let store = StoreOptions {
        devices: (0..2).map(device).collect(),
        clock: MonotonicClock(Arc::new(clock)),
        ..store(Arc::new(SimDevice::new(1 << 20, 1)), Durability::Sync)
    };
    let options = Options { memory: 64 << 20, store: Some(store), ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let mut session = engine.session(Waker::from(Arc::new(Unpark(thread::current()))));
    session.tick(1);
    let many: Vec<_> = (0..40).map(|number| set_in(&session, &engine, 0, number)).collect();
    session.sleep();
    wait_for(&session, many[39]);
    session.tick(1);
    step.store(0, Ordering::Relaxed);

    let first_of_many = set_in(&session, &engine, 0, 40);
    let alone = set_in(&session, &engine, 1, 41);
    assert_eq!(session.lingers(), Some(Duration::ZERO));
    assert!(session.lingers().is_some_and(|time| !time.is_zero()), "for the first lane");
    wait_for(&session, alone);
    assert_eq!(session.commit_state(first_of_many), CommitState::Pending);
}

fn polls(session: &mut Session) -> u32 {
    (0..1000).take_while(|_| session.polls()).count() as u32
}

#[test]
fn a_commit_and_the_request_after_it_are_polled_for_but_not_for_long() {
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
    let looked = polls(&mut session);
    assert!((1..=100).contains(&looked), "one that many wait for: {looked}");
}

#[test]
fn a_thread_whose_other_clients_are_busy_waits_for_one_of_them_for_a_moment() {
    let (engine, mut session) = open();
    set_all(&mut session, 1);
    session.sleep();
    assert!(engine.commit());
    session.tick(1);
    let look_up = |session: &Session, times: u32| {
        for _ in 0..times {
            assert!(matches!(session.get(&session.key(b"unknown")), Outcome::Ready(None)));
        }
    };
    look_up(&session, 15);
    set_all(&mut session, 1);
    assert_eq!(lingers(&mut session), ONCE, "few are busy");
    assert!(engine.commit());

    session.tick(1);
    look_up(&session, 50);
    set_all(&mut session, 10);
    let waits = lingers(&mut session);
    let [Duration::ZERO, moment] = waits[..] else { panic!("{waits:?}") };
    assert!(!moment.is_zero() && moment < Duration::from_micros(200), "{moment:?}");
    assert!(engine.commit());

    session.tick(1);
    look_up(&session, 50);
    set_all(&mut session, 50);
    assert_eq!(lingers(&mut session), ONCE, "as many wait as were busy");
}

#[test]
fn answers_of_two_successive_commits_each_have_their_commit_requested() {
    let (engine, mut session) = open();
    set_all(&mut session, 1);
    session.sleep();
    // Changes from now on belong to the next commit, which was not requested yet.
    assert!(engine.commit());
    set_all(&mut session, 1);
    assert_eq!(lingers(&mut session), ONCE, "it is asked for");
    assert_eq!(lingers(&mut session), [], "once");
}
