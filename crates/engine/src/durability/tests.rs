//! What the committer's thread owes to those who ask before it is known.

use super::*;
use crate::{Engine, Options};
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
