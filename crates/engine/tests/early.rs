//! Async mode: acknowledged records are written early, so that the end of the process does not lose
//! them. They become durable with the next commit.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::{Device, Failure, Fault, Operation, SimDevice};
use larder_engine::*;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// Bytes of a value that is stored as a jumbo.
const LARGE: usize = 300_000;
/// The largest number of checks for another thread's progress, one millisecond apart.
const PATIENCE: u32 = 30_000;

fn options(device: &Arc<SimDevice>) -> Options {
    let store = store(Arc::clone(device) as Arc<dyn Device>, Durability::Async);
    Options {
        memory: 16 << 20,
        when_full: WhenFull::Refuse,
        store: Some(store),
        ..Options::default()
    }
}

fn new_device() -> Arc<SimDevice> {
    Arc::new(SimDevice::new(16 << 20, 1))
}

fn open(device: &Arc<SimDevice>) -> Arc<Engine> {
    Engine::open_without_threads(options(device)).unwrap()
}

fn session(engine: &Arc<Engine>) -> Session {
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    session
}

fn set(session: &mut Session, key: &str, value: &[u8]) {
    session.tick(1);
    let stored = session.store(&session.key(key.as_bytes()), Store::set(value, 0, Expiry::NEVER));
    assert!(matches!(stored, Outcome::Ready(Stored::Stored { .. })), "{stored:?}");
}

fn get(engine: &Engine, session: &mut Session, key: &str) -> Option<Vec<u8>> {
    loop {
        session.tick(1);
        match session.get(&session.key(key.as_bytes())) {
            Outcome::Ready(found) => return found.map(|item| item.value().to_vec()),
            Outcome::NeedsRead => drop(engine.serve_reads()),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the values that another process finds under these keys.
fn found(device: SimDevice, keys: &[&str]) -> Vec<Option<Vec<u8>>> {
    let engine = open(&Arc::new(device));
    let recovered = engine.recovered().unwrap();
    assert_eq!((recovered.damaged_records, recovered.damaged_segments), (0, 0));
    let mut session = session(&engine);
    keys.iter().map(|key| get(&engine, &mut session, key)).collect()
}

fn value(byte: u8, len: usize) -> Option<Vec<u8>> {
    Some(vec![byte; len])
}

#[test]
fn early_writes_outlive_the_process_and_become_durable_with_the_commit() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    set(&mut writer, "small", b"1");
    set(&mut writer, "large", &vec![2; LARGE]);
    assert_eq!(found(device.image(), &["small", "large"]), [None, None]);
    let syncs = device.counts().syncs;
    assert!(engine.write_early(0));
    assert_eq!(device.counts().syncs, syncs);
    let written = [value(b'1', 1), value(2, LARGE)];
    assert_eq!(found(device.image(), &["small", "large"]), written);
    // Writes more items, over many segments. The second early write must write nothing.
    (0..100).for_each(|n| set(&mut writer, &format!("more{n}"), &[n; 30_000]));
    assert!(engine.write_early(0));
    let writes = device.counts().writes;
    assert!(engine.write_early(0));
    assert_eq!(device.counts().writes, writes);
    assert_eq!(found(device.image(), &["more0", "more99"]), [value(0, 30_000), value(99, 30_000)]);
    assert!(engine.commit());
    for seed in 0..20 {
        assert_eq!(found(device.crash(seed), &["small", "large"]), written);
        assert_eq!(found(device.crash(seed), &["more99"]), [value(99, 30_000)]);
    }
}

/// The statistics must count what a commit under way writes. Until its sync has ended, a crash may
/// lose these records.
#[test]
fn bytes_are_unsynced_until_the_sync_ends() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    set(&mut writer, "small", b"1");
    assert!(engine.commit());
    assert_eq!(engine.stats().unsynced_bytes, 0);
    set(&mut writer, "large", &vec![2; LARGE]);
    // These fill more than one segment.
    (0..20).for_each(|n| set(&mut writer, &format!("more{n}"), &[n; 30_000]));
    let appended = engine.stats().unsynced_bytes;
    assert!(appended >= LARGE as u64 + 20 * 30_000, "{appended}");
    device.hold(Operation::Sync);
    thread::scope(|scope| {
        let committer = scope.spawn(|| engine.commit());
        while !device.wait_until_held(Duration::from_millis(1)) {}
        let unsynced = engine.stats().unsynced_bytes;
        device.release();
        assert!(committer.join().unwrap());
        assert!(unsynced >= appended, "{unsynced} of {appended}");
    });
    assert_eq!(engine.stats().unsynced_bytes, 0);
}

/// A commit that fails leaves its records unsynced, and the next commit writes them again.
#[test]
fn bytes_are_unsynced_after_a_failed_sync() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    set(&mut writer, "large", &vec![2; LARGE]);
    (0..20).for_each(|n| set(&mut writer, &format!("more{n}"), &[n; 30_000]));
    let appended = engine.stats().unsynced_bytes;
    let at = device.counts().syncs + 1;
    device.plan(Fault::once(Operation::Sync, at, Failure::Io));
    assert!(!engine.commit());
    let unsynced = engine.stats().unsynced_bytes;
    assert!(unsynced >= appended, "{unsynced} of {appended}");
    assert!(engine.commit());
    assert_eq!(engine.stats().unsynced_bytes, 0);
}

/// The sync of a commit takes long. Records appended meanwhile must still be written early. After a
/// power loss, some of these records may be on the device. Recovery must not take them as proof
/// that the commit has completed.
#[test]
fn a_slow_sync_does_not_delay_early_writes() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    let keys: Vec<String> = (0..60).map(|n| format!("key{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.iter().for_each(|key| set(&mut writer, key, b"durable"));
    assert!(engine.commit());
    keys.iter().for_each(|key| set(&mut writer, key, &[b'a'; 2000]));
    device.hold(Operation::Sync);
    thread::scope(|scope| {
        let committer = scope.spawn(|| engine.commit());
        while !device.wait_until_held(Duration::from_millis(1)) {}
        for round in 0..5 {
            keys.iter().for_each(|key| set(&mut writer, key, &[b'0' + round; 1500]));
            assert!(engine.write_early(0));
            let wanted = value(b'0' + round, 1500);
            assert!(found(device.image(), &keys).iter().all(|found| *found == wanted));
        }
        for seed in 0..100 {
            let found = found(device.crash(seed), &keys);
            assert!(found.iter().all(|found| found.is_some()), "{seed}: a durable key is gone");
        }
        device.release();
        assert!(committer.join().unwrap());
    });
    let committed = |found: &Option<Vec<u8>>| found.as_ref().is_some_and(|it| it[0] != b'd');
    for seed in 0..100 {
        assert!(found(device.crash(seed), &keys).iter().all(committed), "{seed}");
    }
}

/// A value is durable, and its delete was only written early. The next process finds the item
/// deleted. After a crash of that process, the item must still be deleted.
#[test]
fn an_early_written_delete_survives_a_crash_of_the_next_process() {
    let device = new_device();
    let engine = open(&device);
    let mut session = session(&engine);
    set(&mut session, "k", b"old");
    assert!(engine.commit());
    let deleted = session.delete(&session.key(b"k"), &Delete::default());
    assert!(matches!(deleted, Outcome::Ready(_)));
    assert!(engine.write_early(0));
    assert_eq!(found(device.image(), &["k"]), [None]);
    let second = Arc::new(device.image());
    let after = open(&second);
    // Clients of the second process rely on the delete, so it must be durable from that process's
    // start on.
    drop(after);
    assert!((0..50).all(|seed| found(second.crash(seed), &["k"]) == [None]));
}

#[test]
fn an_early_write_that_fails_is_left_to_the_commit() {
    for failure in [Failure::Io, Failure::Full] {
        for nth in 1..4 {
            let device = new_device();
            let engine = open(&device);
            let mut writer = session(&engine);
            set(&mut writer, "first", &[1; 9000]);
            assert!(engine.write_early(0));
            set(&mut writer, "small", &[1; 9000]);
            set(&mut writer, "large", &vec![2; LARGE]);
            let at = device.counts().writes + nth;
            device.plan(Fault::once(Operation::Write, at, failure));
            assert!(!engine.write_early(0));
            // No further early write may be tried until the commit.
            let writes = device.counts().writes;
            assert!(!engine.write_early(0));
            assert_eq!(device.counts().writes, writes);
            assert!(engine.commit());
            assert_eq!(engine.health(), Health::Good);
            let written = [value(1, 9000), value(1, 9000), value(2, LARGE)];
            for seed in 0..10 {
                assert_eq!(found(device.crash(seed), &["first", "small", "large"]), written);
            }
            set(&mut writer, "later", b"3");
            assert!(engine.write_early(0));
            assert_eq!(found(device.image(), &["later"]), [value(b'3', 1)]);
        }
    }
}

/// One part of the commit that will fail is written early before the commit closes. While its sync
/// is under way, a part of the next commit is written early. After the failure, both parts must be
/// written again.
#[test]
fn a_failed_commit_repeats_its_early_writes() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    (0..50).for_each(|n| set(&mut writer, &format!("a{n}"), &[1; 3000]));
    assert!(engine.write_early(0));
    (0..50).for_each(|n| set(&mut writer, &format!("b{n}"), &[2; 3000]));
    device.hold(Operation::Sync);
    let at = device.counts().syncs + 1;
    device.plan(Fault::once(Operation::Sync, at, Failure::Io));
    thread::scope(|scope| {
        let committer = scope.spawn(|| engine.commit());
        while !device.wait_until_held(Duration::from_millis(1)) {}
        (0..50).for_each(|n| set(&mut writer, &format!("c{n}"), &[3; 3000]));
        set(&mut writer, "large", &vec![4; LARGE]);
        assert!(engine.write_early(0));
        device.release();
        assert!(!committer.join().unwrap());
    });
    assert!(!engine.write_early(0), "a device that fails is left alone");
    assert!(engine.commit() && engine.write_early(0));
    let keys = ["a0", "a49", "b0", "b49", "c0", "c49", "large"];
    let written = [1, 1, 2, 2, 3, 3].map(|byte| value(byte, 3000));
    for seed in 0..50 {
        let found = found(device.crash(seed), &keys);
        assert_eq!(found[..6], written);
        assert_eq!(found[6], value(4, LARGE));
    }
}

/// The sync of a growth fails after part of a commit was written early, so the device may have lost
/// that part. While the commit's own sync is under way, `write_early` must not report that the
/// process can end without a loss.
#[test]
fn early_writes_promise_nothing_after_another_sync_has_failed() {
    let device = new_device();
    let engine = open(&device);
    let mut writer = session(&engine);
    (0..50).for_each(|n| set(&mut writer, &format!("a{n}"), &[1; 3000]));
    assert!(engine.write_early(0));
    let at = device.counts().syncs + 1;
    device.plan(Fault::once(Operation::Sync, at, Failure::Io));
    assert!(engine.grow(None, 32 << 20).is_err());
    device.hold(Operation::Sync);
    thread::scope(|scope| {
        let committer = scope.spawn(|| engine.commit());
        while !device.wait_until_held(Duration::from_millis(1)) {}
        set(&mut writer, "b", &[2; 3000]);
        let promised = engine.write_early(0);
        device.release();
        assert!(!committer.join().unwrap());
        assert!(!promised, "a part of the commit may be lost");
    });
    assert!(engine.commit() && engine.write_early(0));
    let keys = ["a0", "a49", "b"];
    let written = [1, 1, 2].map(|byte| value(byte, 3000));
    for seed in 0..10 {
        assert_eq!(found(device.crash(seed), &keys), written);
    }
}

/// An engine with threads must soon write each record early, without a call of `write_early`, and
/// even while a sync hangs.
#[test]
fn a_thread_writes_early() {
    let device = new_device();
    let engine = Engine::open(options(&device)).unwrap();
    let mut writer = session(&engine);
    device.hold(Operation::Sync);
    for n in 0..20 {
        let key = format!("key{n}");
        set(&mut writer, &key, b"v");
        writer.sleep();
        let is_written = (0..PATIENCE).any(|_| {
            thread::sleep(Duration::from_millis(1));
            found(device.image(), &[&key]) == [value(b'v', 1)]
        });
        assert!(is_written, "{key} is not written");
    }
    device.release();
}
