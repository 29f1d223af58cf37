//! Rate limits and counters: what they cost, what other verbs see of them, and what restarts and
//! evictions leave of them.

#[path = "common/cache.rs"]
mod cache;
#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use cache::Cache;
use common::store;
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::limit::{Algorithm, Decision, Limit, Limiter};
use larder_engine::*;
use machine::{Machine, NOW};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

const MINUTE: u64 = 60 * NANOS;

/// Returns the answer of a call, whether or not it waits for a commit.
fn answer<T: std::fmt::Debug>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => answer,
        other => panic!("{other:?}"),
    }
}

/// Takes one unit. Returns true if it was allowed.
fn take(session: &Session, key: &str, limit: Limit) -> bool {
    match answer(session.take(&session.key(key.as_bytes()), &Take::of(limit, 1))) {
        Taken::Decided { decision, .. } => decision.allowed,
        other => panic!("{other:?}"),
    }
}

fn count(session: &Session, key: &str) -> Option<u64> {
    match answer(session.arith(&session.key(key.as_bytes()), &Arith::add(1))) {
        Counted::Value { value, .. } => Some(value),
        _ => None,
    }
}

fn set(session: &Session, key: &str, value: &[u8]) {
    let store = Store::set(value, 0, Expiry::NEVER);
    assert!(matches!(
        answer(session.store(&session.key(key.as_bytes()), store)),
        Stored::Stored { .. }
    ));
}

fn get(session: &Session, key: &str) -> Option<String> {
    let found = answer(session.get(&session.key(key.as_bytes())));
    found.map(|item| String::from_utf8(item.value().to_vec()).unwrap())
}

fn open(device: &Arc<SimDevice>, durability: Durability) -> Machine {
    let store = store(Arc::<SimDevice>::clone(device), durability);
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    Machine::open(Arc::clone(device), options)
}

/// Reads the records of these keys from the device. They stay readable until the session's next
/// tick.
fn load(machine: &mut Machine, keys: &[&str]) {
    let session = &mut machine.session;
    loop {
        let absent =
            |key: &&str| matches!(session.get(&session.key(key.as_bytes())), Outcome::NeedsRead);
        if keys.iter().filter(|key| absent(key)).count() == 0 {
            return;
        }
        session.sleep();
        machine.engine.serve_reads();
        session.tick(NOW);
    }
}

#[test]
fn a_counter_costs_one_record_per_commit() {
    let machine = open(&Arc::new(SimDevice::new(16 << 20, 1)), Durability::Sync);
    set(&machine.session, "n", b"100");
    for commit in 1..=3u64 {
        for _ in 0..100 {
            count(&machine.session, "n").expect("it is there");
            assert!(take(&machine.session, "l", Limit::fixed(1000, MINUTE)));
        }
        assert!(machine.engine.commit());
        let totals = machine.engine.stats().totals;
        assert_eq!((totals.counted_anew, totals.counted_in_place), (2 * commit, 198 * commit));
    }
    assert_eq!(get(&machine.session, "n").as_deref(), Some("400"));
    assert_eq!(get(&machine.session, "l").as_deref(), Some("300"));
}

#[test]
fn an_item_that_was_read_before_a_change_in_place_does_not_change() {
    let cache = Cache::with(Options::default(), NOW);
    set(&cache.session, "n", b"100");
    count(&cache.session, "n");
    let key = cache.session.key(b"n");
    let item = answer(cache.session.get(&key)).expect("it is there");
    let cas = item.cas();
    assert_eq!(count(&cache.session, "n"), Some(102));
    assert_eq!((item.value(), item.cas()), (&b"101"[..], cas));
    let now = answer(cache.session.get(&key)).expect("it is there");
    assert!(now.value() == b"102" && now.cas() > cas);
}

#[test]
fn limits_and_counters_outlive_a_crash_and_a_clean_stop() {
    let device = Arc::new(SimDevice::new(16 << 20, 1));
    let limits = [
        Limit::fixed(3, MINUTE),
        Limit::sliding(3, MINUTE).unwrap(),
        Limit::gcra(3, MINUTE, 3).unwrap(),
    ];
    let mut machine = open(&device, Durability::Sync);
    load(&mut machine, &["l0", "l1", "l2"]);
    for (number, &limit) in limits.iter().enumerate() {
        assert!(take(&machine.session, &format!("l{number}"), limit));
        assert!(take(&machine.session, &format!("l{number}"), limit));
    }
    set(&machine.session, "n", b"41");
    assert_eq!(count(&machine.session, "n"), Some(42));
    assert!(machine.engine.commit());
    machine.engine.clean(&mut machine.cleaner);
    let device = Arc::new(machine.device.crash(1));
    drop(machine);
    let mut machine = open(&device, Durability::Sync);
    load(&mut machine, &["n", "l0", "l1", "l2"]);
    assert_eq!(get(&machine.session, "n").as_deref(), Some("42"));
    for (number, &limit) in limits.iter().enumerate() {
        assert!(take(&machine.session, &format!("l{number}"), limit));
    }
    machine.engine.close().unwrap();
    drop(machine);
    let mut machine = open(&device, Durability::Sync);
    load(&mut machine, &["l0", "l1", "l2"]);
    for (number, &limit) in limits.iter().enumerate() {
        assert!(!take(&machine.session, &format!("l{number}"), limit), "limit {number}");
    }
}

#[test]
fn a_limiter_is_a_number_to_other_verbs() {
    let cache = Cache::with(Options::default(), NOW);
    let (session, limit) = (&cache.session, Limit::fixed(3, MINUTE));
    assert!(take(session, "l", limit) && take(session, "l", limit));
    let key = session.key(b"l");
    let item = answer(session.get(&key)).expect("it is there");
    assert_eq!((item.value(), item.expiry()), (&b"2"[..], Expiry::at(NOW + 60)));
    assert_eq!(count(session, "l"), Some(3));
    assert!(!take(session, "l", limit));
    let back = Arith { decrement: true, ..Arith::add(2) };
    assert!(matches!(answer(session.arith(&key, &back)), Counted::Value { value: 1, .. }));
    assert!(take(session, "l", limit));
    // The limiter's cas id must be that of its last change.
    let cas = answer(session.get(&key)).expect("it is there").cas();
    let stale = Store { compare: Some(cas - 1), ..Store::set(b"9", 0, Expiry::NEVER) };
    assert_eq!(answer(session.store(&key, stale)), Stored::Exists);
    let touch = Get { touch: Some(Expiry::at(NOW + 5)), ..Get::default() };
    let touched = answer(session.get_with(&key, &touch)).expect("it is there");
    assert_eq!(
        (touched.old_expiry, touched.item.expiry()),
        (Expiry::at(NOW + 60), Expiry::at(NOW + 5))
    );
    let append = Store { mode: StoreMode::Append, ..Store::set(b"0", 0, Expiry::NEVER) };
    assert!(matches!(answer(session.store(&key, append)), Stored::Stored { .. }));
    let item = answer(session.get(&key)).expect("it is there");
    assert_eq!((item.value(), item.expiry()), (&b"20"[..], Expiry::at(NOW + 5)));
    // The number becomes a limiter again: it is the number of used units, and the window ends when
    // the item expires.
    assert!(!take(session, "l", limit));
    assert!(take(session, "l", Limit::fixed(21, MINUTE)));
    set(session, "l", b"word");
    let taken = answer(session.take(&key, &Take::of(limit, 1)));
    assert_eq!(taken, Taken::NonNumeric);
    assert_eq!(answer(session.delete(&key, &Delete::default())), Deleted::Deleted);
    assert!(take(session, "l", limit));
}

/// A session's time is the start of its turn. A limiter may be used by a session with a later time
/// and then by one with an earlier time. It must not regain units twice for the time in between.
#[test]
fn sessions_with_different_times_admit_no_more() {
    let limits = [
        Limit::fixed(10, NANOS / 10),
        Limit::sliding(10, NANOS / 10).unwrap(),
        Limit::gcra(100, NANOS, 10).unwrap(),
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        let mut cache = Cache::with(Options::default(), NOW);
        let mut late = cache.engine.session(Waker::noop().clone());
        let start = cache.session.nanos();
        let mut admitted = 0;
        for turn in 0..1000 {
            let now = start + turn * NANOS / 1000;
            cache.session.tick_at(now);
            late.tick_at(now.saturating_sub(NANOS / 400).max(start));
            admitted += u64::from(take(&cache.session, "l", limit));
            admitted += u64::from(take(&late, "l", limit));
        }
        // At most ten fixed windows of 10 units begin within this second. The token bucket admits a
        // burst of 10 and the 100 units that it regains.
        let most = [100, 110, 110][number];
        assert!((90..=most).contains(&admitted), "{admitted} units of {limit:?}");
    }
}

#[test]
fn a_window_ends_to_the_nanosecond() {
    let mut cache = Cache::with(Options::default(), NOW);
    let limit = Limit::fixed(1, NANOS / 4);
    let start = cache.session.nanos();
    assert!(take(&cache.session, "l", limit));
    cache.session.tick_at(start + NANOS / 4 - 1);
    assert!(!take(&cache.session, "l", limit));
    assert_eq!(get(&cache.session, "l").as_deref(), Some("1"));
    cache.session.tick_at(start + NANOS / 4);
    assert_eq!(get(&cache.session, "l"), None);
    assert!(take(&cache.session, "l", limit));
}

/// A limiter that refuses is not written, so its record stays old. Nevertheless it must not be
/// evicted, because its client would get the whole budget again.
#[test]
fn a_flood_of_items_evicts_no_limiter() {
    const LIMITERS: usize = 10_000;
    let options = Options { memory: 16 << 20, ..Options::default() };
    let mut cache = Cache::with(options, NOW);
    let limit = Limit::fixed(1, 0);
    for number in 0..LIMITERS {
        assert!(take(&cache.session, &format!("l{number}"), limit));
    }
    for number in 0..100_000 {
        set_or_clean(&mut cache, &format!("item{number}"), NOW);
    }
    assert!(cache.engine.stats().totals.evictions > 50_000);
    for number in 0..LIMITERS {
        assert!(!take(&cache.session, &format!("l{number}"), limit), "limiter {number} is gone");
    }
    assert_eq!(cache.engine.stats().totals.evicted_limiters, 0);
}

#[test]
fn a_cache_full_of_limiters_still_takes_items() {
    let mut cache = Cache::with(Options { memory: 16 << 20, ..Options::default() }, NOW);
    for number in 0..400_000u32 {
        let key = format!("limiter-of-some-client-{number}");
        loop {
            let take = Take::of(Limit::fixed(1, 0), 1);
            let taken = cache.session.take(&cache.session.key(key.as_bytes()), &take);
            match taken {
                Outcome::Ready(Taken::Decided { decision, .. }) => {
                    assert!(decision.allowed);
                    break;
                }
                Outcome::NeedsSpace => clean(&mut cache, NOW),
                other => panic!("{other:?}"),
            }
        }
    }
    for number in 0..10_000 {
        set_or_clean(&mut cache, &format!("item{number}"), NOW);
    }
    assert!(cache.engine.stats().totals.evicted_limiters > 0);
}

fn clean(cache: &mut Cache, now: u32) {
    cache.session.sleep();
    cache.engine.clean(&mut cache.cleaner);
    cache.session.tick(now);
}

/// Sets a key. Runs a turn of the cleaner after each attempt.
fn set_or_clean(cache: &mut Cache, key: &str, now: u32) {
    loop {
        let store = Store::set(&[b'v'; 500], 0, Expiry::NEVER);
        let stored = cache.session.store(&cache.session.key(key.as_bytes()), store);
        let done = matches!(stored, Outcome::Ready(_));
        clean(cache, now);
        if done {
            return;
        }
    }
}

/// A change in place uses up a version but no space, so space does not limit the number of changes
/// between two commits. They must stop before they use more versions than are leased. Otherwise a
/// restart would use those versions again.
#[test]
fn changes_in_place_stop_before_the_lease_of_versions_ends() {
    let machine = open(&Arc::new(SimDevice::new(16 << 20, 1)), Durability::Async);
    set(&machine.session, "n", b"100");
    count(&machine.session, "n");
    let changed = |engine: &Engine| engine.stats().totals.counted_anew;
    let mut counted = 0u64;
    while changed(&machine.engine) == 1 {
        for _ in 0..1 << 16 {
            count(&machine.session, "n");
        }
        counted += 1 << 16;
        assert!(counted < 1 << 24, "the lease is over");
    }
    // The commit leases more versions. So counts must change the record in place again, and
    // `counted_anew` must stay the same.
    assert!(machine.engine.commit());
    count(&machine.session, "n");
    let before = changed(&machine.engine);
    for _ in 0..1000 {
        count(&machine.session, "n");
    }
    assert_eq!(changed(&machine.engine), before);
}

/// Two sessions whose times are in different seconds must agree on the end of a window.
#[test]
fn a_late_session_shortens_no_window() {
    let limit = Limit::fixed(2, MINUTE);
    let mut cache = Cache::with(Options::default(), NOW);
    let mut late = cache.engine.session(Waker::noop().clone());
    let second = u64::from(NOW + 5) * NANOS;
    cache.session.tick_at(second + 500_000);
    late.tick_at(second - 500_000);
    assert!(take(&cache.session, "l", limit) && take(&late, "l", limit));
    cache.session.tick_at(second + MINUTE + 499_999);
    assert!(!take(&cache.session, "l", limit));
    cache.session.tick_at(second + MINUTE + 500_000);
    assert!(take(&cache.session, "l", limit));
}

/// A take with `Durability::Async` in a sync store does not wait for a commit. Even if no call
/// waits for one, the engine must make the commit.
#[test]
fn units_that_no_call_waits_for_become_durable() {
    let device = Arc::new(SimDevice::new(16 << 20, 1));
    let store = StoreOptions {
        sync_interval: Duration::from_millis(40),
        ..store(Arc::<SimDevice>::clone(&device), Durability::Sync)
    };
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(NOW);
    let commits = engine.stats().commits;
    let take = Take { durability: Some(Durability::Async), ..Take::of(Limit::fixed(9, MINUTE), 1) };
    let taken = session.take(&session.key(b"l"), &take);
    assert!(matches!(taken, Outcome::Ready(Taken::Decided { .. })), "{taken:?}");
    session.sleep();
    let waited = (0..30_000).find(|_| {
        std::thread::sleep(Duration::from_millis(1));
        engine.stats().commits > commits
    });
    assert!(waited.is_some(), "no commit");
    let mut machine = open(&Arc::new(device.crash(1)), Durability::Sync);
    load(&mut machine, &["l"]);
    assert_eq!(get(&machine.session, "l").as_deref(), Some("1"));
}

#[test]
fn units_that_need_not_be_durable_wait_for_late_commits() {
    for durability in [Durability::Sync, Durability::Async] {
        let (time, device) = (Arc::new(AtomicU64::new(1)), Arc::new(SimDevice::new(16 << 20, 1)));
        let clock = Arc::clone(&time);
        let seconds = move || Duration::from_secs(clock.load(Ordering::Relaxed));
        let store = StoreOptions {
            clock: MonotonicClock(Arc::new(seconds)),
            ..store(Arc::<SimDevice>::clone(&device), durability)
        };
        let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
        let mut machine = Machine::open(device, options);
        let take =
            Take { durability: Some(Durability::Async), ..Take::of(Limit::fixed(9, MINUTE), 1) };
        let taken = |machine: &Machine| {
            let taken = machine.session.take(&machine.session.key(b"l"), &take);
            matches!(taken, Outcome::AfterCommit(..))
        };
        assert!(!taken(&machine));
        time.store(100, Ordering::Relaxed);
        machine.session.tick(NOW);
        assert!(taken(&machine), "{durability:?}");
        assert!(machine.engine.commit());
        machine.session.tick(NOW);
        assert!(!taken(&machine), "{durability:?}");
    }
}

#[test]
fn a_request_that_fails_is_not_counted() {
    let device = Arc::new(SimDevice::new(16 << 20, 1));
    let machine = open(&device, Durability::Sync);
    let limit = Limit::fixed(9, MINUTE);
    let at = device.counts().of(Operation::Sync);
    device.plan(Fault::lasting(Operation::Sync, at + 1, Failure::Io));
    assert!(take(&machine.session, "l", limit));
    assert!(!machine.engine.commit());
    let taken = machine.session.take(&machine.session.key(b"l"), &Take::of(limit, 1));
    assert!(matches!(taken, Outcome::Refused(Refusal::StoreFailed)), "{taken:?}");
    assert_eq!(machine.engine.stats().totals.taken, 1);
}

#[test]
fn counters_and_limiters_go_on_in_a_cache_that_is_full_and_refuses() {
    let options = Options { memory: 16 << 20, when_full: WhenFull::Refuse, ..Options::default() };
    let mut cache = Cache::with(options, NOW);
    set(&cache.session, "n", b"100");
    count(&cache.session, "n");
    assert!(take(&cache.session, "l", Limit::fixed(1 << 20, MINUTE)));
    let mut number = 0;
    loop {
        let (key, store) = (format!("item{number}"), Store::set(&[b'v'; 500], 0, Expiry::NEVER));
        match cache.session.store(&cache.session.key(key.as_bytes()), store) {
            Outcome::Refused(Refusal::OutOfMemory) => break,
            Outcome::Ready(_) => number += 1,
            _ => clean(&mut cache, NOW),
        }
    }
    for counted in 102..1000 {
        assert_eq!(count(&cache.session, "n"), Some(counted));
        assert!(take(&cache.session, "l", Limit::fixed(1 << 20, MINUTE)));
    }
}

/// A limiter whose whole budget is available again counts as expired, so items can take its memory.
#[test]
fn limiters_with_their_whole_budget_are_not_kept() {
    let mut cache = Cache::with(Options { memory: 16 << 20, ..Options::default() }, NOW);
    let limit = Limit::gcra(86_400, 86_400 * NANOS, 10).unwrap();
    for number in 0..10_000 {
        assert!(take(&cache.session, &format!("l{number}"), limit));
    }
    for number in 0..100_000 {
        let key = format!("item{number}");
        set_or_clean(&mut cache, &key, NOW + 5);
    }
    let totals = cache.engine.stats().totals;
    assert!(totals.expired >= 10_000, "{totals:?}");
    assert_eq!(totals.evicted_limiters, 0);
}

/// Opens the store on `device` when the machine's clocks show `opened`, and begins a session at the
/// store's time. Returns the store's time, too.
fn open_at(device: &Arc<SimDevice>, opened: MachineTime) -> (Machine, u64) {
    let store = store(Arc::<SimDevice>::clone(device), Durability::Sync);
    let store = StoreOptions { opened, ..store };
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    let mut machine = Machine::open(Arc::clone(device), options);
    let time = machine.engine.opened_at().expect("a store");
    machine.session.tick_at(time);
    (machine, time)
}

/// Asks for `cost` units at `now`, and reads the limiter from the device if it is not in memory.
fn decide_at(machine: &mut Machine, key: &str, limit: Limit, cost: u64, now: u64) -> Decision {
    machine.session.tick_at(now);
    loop {
        let key = machine.session.key(key.as_bytes());
        match machine.session.take(&key, &Take::of(limit, cost)) {
            Outcome::NeedsRead => {}
            outcome => match answer(outcome) {
                Taken::Decided { decision, .. } => return decision,
                other => panic!("{other:?}"),
            },
        }
        machine.session.sleep();
        machine.engine.serve_reads();
        machine.session.tick_at(now);
    }
}

/// Within a boot, neither crashes nor steps of the wall clock by hours may change a decision. The
/// expected decisions are those of a limiter on the clock of the boot, without crashes.
#[test]
fn the_wall_clock_changes_no_decision_within_a_boot() {
    const HOUR: i64 = 3600 * NANOS as i64;
    const START: u64 = 1_800_000_000 * NANOS;
    let limits = [
        Limit::fixed(3, MINUTE),
        Limit::sliding(3, MINUTE).expect("a window"),
        Limit::gcra(3, MINUTE, 2).expect("a window"),
    ];
    let mut expected: [Option<Limiter>; 3] = [None; 3];
    let (mut since_boot, mut refused) = (5 * NANOS, 0);
    let mut device = Arc::new(SimDevice::new(16 << 20, 1));
    for (start, wall) in [0, HOUR, -HOUR, -HOUR, HOUR, 30 * HOUR].into_iter().enumerate() {
        let begun = since_boot;
        let wall = (START + since_boot).checked_add_signed(wall).expect("a time");
        let (mut machine, time) = open_at(&device, MachineTime { wall, boot_id: 7, since_boot });
        assert_eq!(time, START + since_boot, "start {start}");
        for turn in 0..40 {
            since_boot += [NANOS / 3, 7 * NANOS, 0, 2 * NANOS, 19 * NANOS][(start + turn) % 5];
            let now = time + since_boot - begun;
            for (number, &limit) in limits.iter().enumerate() {
                let (wanted, stored) = Limiter::decide(expected[number].as_ref(), &limit, 1, now);
                expected[number] = stored.or(expected[number]);
                let found = decide_at(&mut machine, &format!("l{number}"), limit, 1, now);
                assert_eq!(found, wanted, "start {start}, turn {turn}, {limit:?}");
                refused += u32::from(!found.allowed);
            }
            assert!(machine.engine.commit());
        }
        device = Arc::new(machine.device.crash(start as u64));
    }
    assert!(refused > 100, "{refused}");
}

/// If the wall clock of the next boot is behind the store's time, no unit may become free, and no
/// limiter may wait longer than for one window. If it is ahead, no wait may become longer.
#[test]
fn a_new_boot_frees_no_units_early_and_prolongs_no_wait() {
    const HOUR: u64 = 3600 * NANOS;
    const START: u64 = 1_800_000_000 * NANOS;
    let limits = [
        Limit::fixed(3, 2 * HOUR),
        Limit::sliding(3, 2 * HOUR).expect("a window"),
        Limit::gcra(3, 2 * HOUR, 3).expect("a window"),
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        let device = Arc::new(SimDevice::new(16 << 20, 1));
        let first = MachineTime { wall: START, boot_id: 1, since_boot: 9 * NANOS };
        let (mut machine, time) = open_at(&device, first);
        for _ in 0..3 {
            assert!(decide_at(&mut machine, "l", limit, 1, time).allowed);
        }
        assert!(!decide_at(&mut machine, "l", limit, 1, time + NANOS).allowed);
        assert!(machine.engine.commit());
        let mut device = Arc::new(machine.device.crash(number as u64));
        let mut last = None;
        for (boot_id, wall) in [(2, START - HOUR), (3, START - 50 * HOUR), (4, START + HOUR)] {
            let opened = MachineTime { wall, boot_id, since_boot: NANOS };
            let (mut machine, time) = open_at(&device, opened);
            let decision = decide_at(&mut machine, "l", limit, 1, time);
            let gone = time.saturating_sub(START);
            let freed = limit.algorithm() == Algorithm::Gcra && gone >= 2 * HOUR / 3;
            assert_eq!(decision.allowed, freed, "boot {boot_id}, {limit:?}");
            let retry = decision.retry.expect("an end");
            assert!(retry <= 4 * HOUR, "boot {boot_id}, {limit:?}: {retry}");
            assert!(last.is_none_or(|last| retry <= last), "boot {boot_id}, {limit:?}: {retry}");
            last = Some(retry);
            assert!(machine.engine.commit());
            device = Arc::new(machine.device.crash(boot_id as u64));
        }
    }
}
