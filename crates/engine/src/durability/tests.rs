//! Tests of commit requests, of tombstones when commits settle or fail, and of numbers and versions
//! that no start may use again.

use super::gather::{Gather, Returning};
use super::*;
use crate::lock::lock;
use crate::{Delete, Engine, Expiry, MachineTime, Options, Outcome, Session, Store, Stored};
use larder_disk::{Failure, Fault, MonotonicClock, Operation, SimDevice};
use larder_log::format::Tail;
use larder_log::format::geometry::{TAIL_BYTES, TAIL_PLACES};
use larder_log::{CommitState, MapState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// Number of attempts of a test to drop a frame that must stay.
const LOOKS: u32 = 20_000;

fn engine() -> Arc<Engine> {
    engine_on(Arc::new(SimDevice::new(8 << 20, 1)))
}

fn engine_on(device: Arc<SimDevice>) -> Arc<Engine> {
    engine_with(device, Durability::Sync)
}

fn engine_with(device: Arc<SimDevice>, durability: Durability) -> Arc<Engine> {
    let device = StoreDevice { name: "store".to_owned(), device, lower: None, seeds: [1, 2, 3] };
    let store = StoreOptions {
        devices: vec![device],
        forget: Vec::new(),
        durability,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        opened: MachineTime::default(),
    };
    let options = Options { memory: 16 << 20, store: Some(store), ..Options::default() };
    Engine::open_without_threads(options).unwrap()
}

fn fail_next_sync(device: &SimDevice) {
    device.plan(Fault::once(Operation::Sync, device.counts().syncs + 1, Failure::Io));
}

#[test]
fn a_commit_request_before_the_committer_is_known_is_served() {
    let engine = engine();
    let lane = &engine.lanes[0];
    let durable = lane.log.durability().unwrap();
    let unknown = lock(&durable.thread);
    thread::scope(|scope| {
        scope.spawn(|| spawn(lane, durable).unwrap());
        // Gives the committer time to find nothing to do and sleep. If the committer is slower, the
        // test proves less.
        thread::sleep(Duration::from_millis(50));
        // Does what `want_commit` does when there is no thread to wake.
        assert!(!durable.wanted.swap(true, Ordering::AcqRel) && unknown.is_none());
        drop(unknown);
    });
    let heard = (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        !durable.wanted.load(Ordering::Acquire)
    });
    assert!(heard, "the committer sleeps for ever");
}

fn set(session: &mut Session, value: &[u8]) -> Outcome<Stored> {
    session.tick(1);
    session.store(&session.key(b"key"), Store::set(value, 0, Expiry::NEVER))
}

fn get(engine: &Engine, session: &mut Session) -> Option<Vec<u8>> {
    loop {
        session.tick(1);
        match session.get(&session.key(b"key")) {
            Outcome::Ready(found) => return found.map(|item| item.value().to_vec()),
            Outcome::NeedsRead => drop(engine.serve_reads()),
            other => panic!("{other:?}"),
        }
    }
}

/// No record may have a version beyond the lease. After a crash, newer records would otherwise get
/// lower versions, and the start after that would show the older record.
#[test]
fn a_writer_waits_at_the_end_of_the_lease() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_with(Arc::clone(&device), Durability::Async);
    let lane = &engine.lanes[0];
    let mut session = engine.session(Waker::noop().clone());
    lane.index.raise_seq(lane.log.store().unwrap().superblock().seq_limit - 2);
    let is_set = |_: &u32| matches!(set(&mut session, b"older"), Outcome::Ready(_));
    let written = (0..10).take_while(is_set).count();
    assert_eq!(lane.durable().unwrap().write_early(), Some(true));
    // The process ends before the next commit. The next process stores a newer value.
    let second = Arc::new(device.image());
    let after = engine_with(Arc::clone(&second), Durability::Async);
    let mut writer = after.session(Waker::noop().clone());
    assert!(matches!(set(&mut writer, b"newer"), Outcome::Ready(_)) && after.commit());
    let last = engine_with(Arc::new(second.image()), Durability::Async);
    let mut reader = last.session(Waker::noop().clone());
    assert_eq!(get(&last, &mut reader).as_deref(), Some(&b"newer"[..]));
    // In the first process, writers wait for the commit, which leases more versions.
    assert_eq!(written, 2);
    let deleted = session.delete(&session.key(b"key"), &Delete::default());
    assert!(matches!(deleted, Outcome::NeedsSpace), "{deleted:?}");
    assert!(engine.commit());
    assert!(matches!(set(&mut session, b"newest"), Outcome::Ready(_)));
}

/// Commits without records leave no trace. So the number of a torn commit may be far above that of
/// the last durable commit. A start that finds the torn commit must not use its number again.
#[test]
fn a_start_does_not_use_the_number_of_a_torn_commit_again() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_with(Arc::clone(&device), Durability::Async);
    let mut session = engine.session(Waker::noop().clone());
    assert!(matches!(set(&mut session, b"durable"), Outcome::Ready(_)));
    assert!((0..10).all(|_| engine.commit()));
    let lane = &engine.lanes[0];
    assert!(matches!(set(&mut session, &[7; 8100]), Outcome::Ready(_)));
    let torn = lane.open_commit();
    assert_eq!(lane.durable().unwrap().write_early(), Some(true));
    let superblock = lane.log.store().unwrap().superblock();
    let has_tail = |device: &SimDevice| {
        (0..TAIL_PLACES).any(|which| {
            let mut place = [0; TAIL_BYTES];
            device.peek(superblock.geometry.tail_place(0, which), &mut place);
            let tail = Tail::decode(&place, &superblock.identity());
            tail.is_some_and(|(tail, _)| tail.commit == torn)
        })
    };
    let crashes = (0..100).map(|seed| device.crash(seed)).filter(has_tail);
    let next: Vec<u64> = crashes
        .map(|crashed| engine_with(Arc::new(crashed), Durability::Async).lanes[0].open_commit())
        .collect();
    assert!(!next.is_empty() && next.iter().all(|&next| next > torn), "{torn}: {next:?}");
}

/// A start that loads the index image does not look for strays. If a lane keeps an unreadable
/// record that may be a stray, the next start must read the log.
#[test]
fn a_lane_with_an_unreadable_stray_leaves_no_index_image() {
    for stray in [false, true] {
        let device = Arc::new(SimDevice::new(8 << 20, 1));
        let engine = engine_on(Arc::clone(&device));
        let mut session = engine.session(Waker::noop().clone());
        assert!(matches!(set(&mut session, b"value"), Outcome::AfterCommit(..)));
        drop(session);
        if stray {
            engine.lanes[0].note_unreadable_strays();
        }
        engine.close().unwrap();
        drop(engine);
        assert_eq!(engine_on(device).recovered().unwrap().from_image, !stray);
    }
}

/// A reader may find a record just before the commit of the record fails. The reader's answer must
/// fail with that commit, although the next commit succeeds.
#[test]
fn a_record_that_is_undone_after_its_look_up_has_failed() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    let key = session.key(b"key");
    let set = || session.store(&key, Store::set(b"value", 0, Expiry::NEVER));
    assert!(matches!(set(), Outcome::AfterCommit(..)));
    let lane = &engine.lanes[0];
    let (_, slot, record) = session.lanes[0].find_record(&key).unwrap();
    let segment = lane.log.segment(slot.address().segment());
    let end = (slot.address().offset() + record.size()) as u32;
    let commits = &lane.log.store().unwrap().commits;
    let commit = || commits.of(segment, end).unwrap();
    assert_eq!(commits.state(commit()), CommitState::Pending);
    fail_next_sync(&device);
    assert!(!engine.commit());
    assert_eq!(commits.state(commit()), CommitState::Failed);
    assert!((0..3).any(|_| engine.commit()));
    assert!(matches!(set(), Outcome::AfterCommit(..)));
    assert!(engine.commit());
    assert_eq!(commits.state(commit()), CommitState::Failed);
}

/// If a commit with a flush and a set fails, the flush moves to the next commit. An answer that
/// depends on the set must fail nevertheless.
#[test]
fn a_flush_does_not_replace_the_commit_of_a_record() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    assert!(matches!(session.flush_all(None), Outcome::Ready(_)));
    let key = session.key(b"key");
    let set = session.store(&key, Store::set(b"value", 0, Expiry::NEVER));
    assert!(matches!(set, Outcome::AfterCommit(..)));
    let reader = &session.lanes[0];
    assert!(reader.find(&key).is_some());
    fail_next_sync(&device);
    assert!(!engine.commit());
    let Outcome::AfterCommit((), point) = reader.answer(()) else { panic!("it waits for nothing") };
    let commits = &engine.lanes[0].log.store().unwrap().commits;
    assert_eq!(commits.state(point.position), CommitState::Failed);
}

/// The committer waits until all four answers are reported, or for ten minutes. So if the reports
/// did not wake it, this test would not end.
#[test]
fn reports_of_all_clients_end_the_committers_wait() {
    let engine = engine();
    let durable = engine.lanes[0].log.durability().unwrap();
    for _ in 0..1000 {
        thread::scope(|scope| {
            let committer = scope.spawn(|| {
                durable.wait_for_clients(Returning { clients: 4, within_us: 600_000_000 });
            });
            *lock(&durable.thread) = Some(committer.thread().clone());
            for _ in 0..2 {
                scope.spawn(|| (0..2).for_each(|_| durable.add_answers(1)));
            }
        });
        Gather::default().begin(&durable.answers);
    }
}

#[test]
fn the_committer_waits_for_clients_no_longer_than_expected() {
    let engine = engine();
    let durable = engine.lanes[0].log.durability().unwrap();
    durable.add_answers(1);
    durable.wait_for_clients(Returning { clients: 4, within_us: 0 });
}

#[test]
fn sleeping_requests_a_commit_once_and_only_for_uncommitted_writes() {
    let engine = engine();
    let write = |session: &Session| {
        let stored = session.store(&session.key(b"k"), Store::set(b"v", 0, Expiry::NEVER));
        let Outcome::AfterCommit(_, point) = stored else { panic!("{stored:?}") };
        session.wake_on_commit(point);
    };
    let asked = || engine.lanes[0].log.durability().unwrap().take_wanted();
    let session = || engine.session(Waker::noop().clone());
    let (mut one, mut other) = (session(), session());
    [&one, &other].into_iter().for_each(write);
    one.sleep();
    assert!(asked());
    one.tick(1);
    one.sleep();
    assert!(!asked(), "the session requested the commit twice");
    assert!(engine.commit());
    one.tick(1);
    write(&one);
    other.sleep();
    assert!(!asked(), "a session without uncommitted writes requested a commit");
    other.tick(1);
    write(&other);
    other.sleep();
    assert!(asked());
}

/// A durable tombstone must leave the index before the cleaner may drop the tombstone's frame.
/// Without the frame, the committer could not read the key, and the slot would lead into reused
/// memory.
#[test]
fn a_tombstone_is_buried_before_its_frame_may_go() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let lane = &engine.lanes[0];
    let session = engine.session(Waker::noop().clone());
    let first = session.key(b"first");
    let others = (0..).map(|n: u32| n.to_string());
    let other = { others }
        .find(|other| {
            let other = session.key(other.as_bytes());
            lane.index.stripe_of(&other) != lane.index.stripe_of(&first)
        })
        .expect("there are several stripes");
    let second = session.key(other.as_bytes());
    let keys = [&first, &second];
    for key in keys {
        let stored = session.store(key, Store::set(b"v", 0, Expiry::NEVER));
        assert!(matches!(stored, Outcome::AfterCommit(..)));
    }
    for key in keys {
        let deleted = session.delete(key, &Delete::default());
        assert!(matches!(deleted, Outcome::AfterCommit(..)));
    }
    // Once the sealed segment is durable, the cleaner may drop its frame.
    let number = (lane.log.numbers())
        .find(|&number| lane.log.segment(number).is_in_use())
        .expect("something was written");
    lane.log.seal_all();
    let slots = || {
        let mut slots = 0;
        (0..lane.index.stripe_count())
            .for_each(|stripe| lane.index.visit_stripe(stripe, |_| slots += 1));
        slots
    };
    assert_eq!(slots(), 2);
    thread::scope(|scope| {
        // The committer waits for this lock when it buries the first tombstone, after its sync.
        let guard = lane.index.lock(&first);
        let syncs = device.counts().syncs;
        let committer = scope.spawn(|| lane.commit());
        while device.counts().syncs == syncs {
            thread::yield_now();
        }
        let dropped = (0..LOOKS).any(|_| {
            thread::yield_now();
            lane.log.durable().unwrap().drop_frame(number)
        });
        assert!(!dropped, "the frame goes before the tombstones are buried");
        drop(guard);
        assert!(committer.join().unwrap());
    });
    assert_eq!(slots(), 0);
    assert!(lane.log.segment(number).has_ends() && lane.log.durable().unwrap().drop_frame(number));
}

/// A large value and its successor belong to a commit that fails. The meta of the value's segment
/// then says that the place is free. A dead map would say that the segment is in use again, and its
/// record would hide older versions.
#[test]
fn a_large_value_of_a_failed_commit_gets_no_dead_map() {
    let device = Arc::new(SimDevice::new(16 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let mut session = engine.session(Waker::noop().clone());
    let large = vec![b'l'; 600_000];
    for value in [&large[..], b"small"] {
        assert!(matches!(set(&mut session, value), Outcome::AfterCommit(..)));
    }
    let log = engine.lanes[0].log.durable().unwrap();
    let jumbo = log.numbers().find(|&number| log.segment(number).is_jumbo()).unwrap();
    let died = log.begin_map(jumbo);
    assert_eq!(log.map_state(&died), MapState::Undurable);
    fail_next_sync(&device);
    assert!(!engine.commit());
    assert_eq!(log.map_state(&died), MapState::Gone);
    // A map that was begun before the failure is given up. Its deaths must not be noted again.
    log.abandon_map(jumbo, died.generation);
    assert_eq!(log.earliest_death(jumbo), u64::MAX);
}

/// The key is stored again while the commit of its delete is being synced. The commit of the second
/// set fails. The key stays deleted: its slot is removed, and its tombstone stays in the log only.
#[test]
fn a_tombstone_that_became_durable_is_not_put_back_by_an_undo() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let lane = &engine.lanes[0];
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    let set = || session.store(&session.key(b"k"), Store::set(b"v", 0, Expiry::NEVER));
    assert!(matches!(set(), Outcome::AfterCommit(..)));
    assert!(lane.commit());
    let deleted = session.delete(&session.key(b"k"), &Delete::default());
    assert!(matches!(deleted, Outcome::AfterCommit(..)));
    device.hold(Operation::Sync);
    thread::scope(|scope| {
        let committer = scope.spawn(|| lane.commit());
        while !device.wait_until_held(Duration::from_millis(1)) {}
        assert!(matches!(set(), Outcome::AfterCommit(..)));
        device.release();
        assert!(committer.join().unwrap());
    });
    let at = device.counts().syncs + 1;
    device.plan(Fault { operation: Operation::Sync, at, times: 1, failure: Failure::Io });
    assert!(!lane.commit());
    let mut slots = 0;
    (0..lane.index.stripe_count()).for_each(|at| lane.index.visit_stripe(at, |_| slots += 1));
    assert_eq!(slots, 0, "the index still leads to the durable tombstone");
    assert!(lane.log.numbers().any(|number| lane.log.segment(number).has_ends()));
}

#[test]
fn device_calls_are_timed_and_commits_are_measured() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let engine = engine_on(Arc::clone(&device));
    let session = engine.session(Waker::noop().clone());
    let histograms = || engine.store_histograms().remove(0);
    let write = |len: usize| {
        let stored = session.store(&session.key(b"k"), Store::set(&vec![7; len], 0, Expiry::NEVER));
        assert!(matches!(stored, Outcome::AfterCommit(..)), "{stored:?}");
        assert!(engine.commit());
    };
    write(10);
    let before = histograms();
    assert!(before.lower.is_none() && before.fast.read.count() > 0, "the superblock was read");
    let written = engine.stats().totals.written_bytes;
    write(5000);
    let after = histograms();
    let commit = after.commit_bytes.since(&before.commit_bytes);
    let record = engine.stats().totals.written_bytes - written;
    assert_eq!(commit.count(), 1);
    assert!(record > 5000 && (record..record + 100).contains(&commit.sum), "{}", commit.sum);
    assert_eq!(after.fast.sync.since(&before.fast.sync).count(), 1);
    assert!(after.fast.write.since(&before.fast.write).count() >= 1);
    // Neither an empty commit nor a failed commit makes records durable, so neither is counted.
    assert!(engine.commit());
    assert_eq!(histograms().commit_bytes, after.commit_bytes);
    device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
    let stored = session.store(&session.key(b"k"), Store::set(b"v", 0, Expiry::NEVER));
    assert!(matches!(stored, Outcome::AfterCommit(..)), "{stored:?}");
    assert!(!engine.commit());
    let failed = histograms();
    assert_eq!(failed.commit_bytes, after.commit_bytes);
    assert_eq!(failed.fast.sync.since(&after.fast.sync).count(), 1);
}
