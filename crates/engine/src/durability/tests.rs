//! Who asks for a commit, and what the committer's thread owes to those who ask before it is known.

use super::*;
use crate::{Engine, Expiry, Options, Outcome, Session, Store};
use larder_disk::SimDevice;

fn engine() -> Arc<Engine> {
    let device = StoreDevice {
        name: "store".to_owned(),
        device: Arc::new(SimDevice::new(8 << 20, 1)),
        lower: None,
        seeds: [1, 2, 3],
    };
    let store = StoreOptions {
        devices: vec![device],
        forget: Vec::new(),
        durability: Durability::Sync,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        created: 1,
    };
    let options = Options { memory: 16 << 20, store: Some(store), ..Options::default() };
    Engine::open_without_threads(options).unwrap()
}

#[test]
fn who_asks_for_a_commit_before_the_committer_is_known_gets_it() {
    let engine = engine();
    let lane = &engine.lanes[0];
    let durable = lane.durable.as_ref().unwrap();
    let unknown = lock(&durable.thread);
    thread::scope(|scope| {
        scope.spawn(|| spawn(lane).unwrap());
        // Time for the committer to find nothing to do and to sleep; with less of it the test proves less.
        thread::sleep(Duration::from_millis(50));
        // As `want_commit`, which finds nobody to wake.
        assert!(!durable.wanted.swap(true, Ordering::AcqRel) && unknown.is_none());
        drop(unknown);
    });
    let heard = (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        !durable.wanted.load(Ordering::Acquire)
    });
    assert!(heard, "the committer sleeps for ever");
}

#[test]
fn a_commit_that_another_session_has_had_begun_is_not_asked_for() {
    let engine = engine();
    let write = |session: &Session| {
        let stored = session.store(&session.key(b"k"), Store::set(b"v", 0, Expiry::NEVER));
        let Outcome::AfterCommit(_, point) = stored else { panic!("{stored:?}") };
        session.wake_on_commit(point);
    };
    let asked = || engine.lanes[0].durable.as_ref().unwrap().take_wanted();
    let session = || engine.session(Waker::noop().clone());
    let (mut one, mut other) = (session(), session());
    [&one, &other].into_iter().for_each(write);
    one.sleep();
    assert!(asked());
    one.tick(1);
    one.sleep();
    assert!(!asked(), "twice by the same");
    assert!(engine.commit());
    one.tick(1);
    write(&one);
    other.sleep();
    assert!(!asked(), "by who needs nothing of what is not committed yet");
    other.tick(1);
    write(&other);
    other.sleep();
    assert!(asked());
}
