//! The behaviour that clients rely on, verb by verb.

use larder_engine::*;
use std::sync::Arc;
use std::task::Waker;

fn engine(memory_mib: u64) -> Arc<Engine> {
    Engine::open(Options { memory: memory_mib << 20, ..Options::default() }).unwrap()
}

fn session(engine: &Arc<Engine>) -> Session {
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1000);
    session
}

fn ready<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Ready(t) => t,
        _ => panic!("not ready"),
    }
}

fn set(session: &Session, key: &str, value: &str) -> u64 {
    let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
    match ready(session.store(&session.key(key.as_bytes()), store)) {
        Stored::Stored { cas, .. } => cas,
        other => panic!("{other:?}"),
    }
}

fn get(session: &Session, key: &str) -> Option<String> {
    let item = ready(session.get(&session.key(key.as_bytes())))?;
    Some(String::from_utf8(item.value().to_vec()).unwrap())
}

#[test]
fn a_get_returns_the_value_of_the_last_set() {
    let engine = engine(16);
    let session = session(&engine);
    assert_eq!(get(&session, "a"), None);
    let first = set(&session, "a", "1");
    let second = set(&session, "a", "two");
    assert!(second > first);
    assert_eq!(get(&session, "a").as_deref(), Some("two"));
    assert_eq!(engine.stats().items, 1);
}

#[test]
fn cas_add_replace_append_and_delete_answer_as_memcached() {
    let engine = engine(16);
    let s = session(&engine);
    let key = s.key(b"k");
    let with = |mode, value: &'static [u8], compare| {
        let store = Store { mode, compare, ..Store::set(value, 7, Expiry::NEVER) };
        ready(s.store(&key, store))
    };
    assert_eq!(with(StoreMode::Replace, b"x", None), Stored::NotStored);
    assert_eq!(with(StoreMode::Append, b"x", None), Stored::NotStored);
    assert_eq!(with(StoreMode::Set, b"x", Some(1)), Stored::NotFound);
    let Stored::Stored { cas, .. } = with(StoreMode::Add, b"b", None) else { panic!() };
    assert_eq!(with(StoreMode::Add, b"x", None), Stored::NotStored);
    assert_eq!(with(StoreMode::Set, b"x", Some(cas + 1)), Stored::Exists);
    assert!(matches!(with(StoreMode::Append, b"c", Some(cas)), Stored::Stored { size: 2, .. }));
    assert!(matches!(with(StoreMode::Prepend, b"a", None), Stored::Stored { size: 3, .. }));
    let item = ready(s.get(&key)).unwrap();
    assert_eq!((item.value(), item.flags()), (&b"abc"[..], 7));
    let wrong = Delete { compare: Some(cas), ..Delete::default() };
    assert_eq!(ready(s.delete(&key, &wrong)), Deleted::Exists);
    assert_eq!(ready(s.delete(&key, &Delete::default())), Deleted::Deleted);
    assert_eq!(ready(s.delete(&key, &Delete::default())), Deleted::NotFound);
    assert!(ready(s.get(&key)).is_none());
}

#[test]
fn counters_wrap_stop_and_keep_their_width() {
    let engine = engine(16);
    let s = session(&engine);
    let key = s.key(b"n");
    let count = |decrement, delta| {
        let arith =
            Arith { decrement, delta, compare: None, cas: None, expiry: None, create: None };
        ready(s.arith(&key, &arith))
    };
    assert_eq!(count(false, 1), Counted::NotFound);
    set(&s, "n", "10");
    assert!(matches!(count(true, 1), Counted::Value { value: 9, .. }));
    assert_eq!(get(&s, "n").as_deref(), Some("9 "));
    assert!(matches!(count(true, 100), Counted::Value { value: 0, .. }));
    set(&s, "n", "18446744073709551615");
    assert!(matches!(count(false, 1), Counted::Value { value: 0, .. }));
    assert_eq!(get(&s, "n").unwrap(), format!("0{}", " ".repeat(19)));
    set(&s, "n", "abc");
    assert_eq!(count(false, 1), Counted::NonNumeric);
}

#[test]
fn an_item_expires_with_the_first_nanosecond_of_its_second() {
    let engine = engine(16);
    let mut session = session(&engine);
    assert_eq!((session.nanos(), session.now()), (1000 * NANOS, 1000));
    let key = session.key(b"a");
    ready(session.store(&key, Store::set(b"1", 0, Expiry::at(1001))));
    session.tick_at(1001 * NANOS - 1);
    assert_eq!((session.nanos(), session.now()), (1001 * NANOS - 1, 1000));
    assert_eq!(get(&session, "a").as_deref(), Some("1"));
    session.tick_at(1001 * NANOS);
    assert_eq!(get(&session, "a"), None);
    session.tick_at(u64::MAX);
    assert_eq!(session.now(), u32::MAX);
}

#[test]
fn expired_items_are_gone_and_touch_keeps_the_cas_id() {
    let engine = engine(16);
    let mut s = session(&engine);
    let store = Store::set(b"v", 3, Expiry::at(1010));
    let Stored::Stored { cas, .. } = ready(s.store(&s.key(b"k"), store)) else { panic!() };
    s.tick(1009);
    let get = Get { touch: Some(Expiry::at(1020)), ..Get::default() };
    {
        let got = ready(s.get_with(&s.key(b"k"), &get)).unwrap();
        assert_eq!((got.item.cas(), got.item.flags(), got.item.value()), (cas, 3, &b"v"[..]));
        assert_eq!(got.old_expiry, Expiry::at(1010));
        assert_eq!(got.item.expiry(), Expiry::at(1020));
    }
    s.tick(1019);
    assert!(ready(s.get(&s.key(b"k"))).is_some());
    s.tick(1020);
    assert!(ready(s.get(&s.key(b"k"))).is_none());
}

#[test]
fn a_flush_removes_all_earlier_items_and_a_delayed_one_all_before_its_time() {
    let engine = engine(16);
    let mut s = session(&engine);
    set(&s, "a", "1");
    let before = set(&s, "b", "1");
    ready(s.flush_all(None));
    assert_eq!((get(&s, "a"), get(&s, "b")), (None, None));
    assert!(set(&s, "b", "2") > before);
    ready(s.flush_all(Some(1005)));
    set(&s, "c", "3");
    s.tick(1004);
    assert_eq!(get(&s, "c").as_deref(), Some("3"));
    s.tick(1005);
    assert_eq!((get(&s, "b"), get(&s, "c")), (None, None));
    set(&s, "d", "4");
    s.tick(1006);
    assert_eq!(get(&s, "d").as_deref(), Some("4"));
}

#[test]
fn one_reader_wins_the_right_to_recache() {
    let engine = engine(16);
    let s = session(&engine);
    let vivify = Vivify { expiry: Expiry::at(1030), cas: None };
    let meta = Get { recache: Some(Recache::default()), ..Get::default() };
    let get = Get { vivify: Some(vivify), ..meta };
    let first = ready(s.get_with(&s.key(b"k"), &get)).unwrap();
    assert!(first.created && first.won && !first.won_before);
    let second = ready(s.get_with(&s.key(b"k"), &get)).unwrap();
    assert!(!second.created && !second.won && second.won_before);
    set(&s, "k", "filled");
    let third = ready(s.get_with(&s.key(b"k"), &get)).unwrap();
    assert!(!third.won && !third.won_before);
    let stale = Delete { invalidate: true, ..Delete::default() };
    assert_eq!(ready(s.delete(&s.key(b"k"), &stale)), Deleted::Deleted);
    // Without `recache`, a caller cannot learn that it has won, so it does not win.
    let touch = Get { touch: Some(Expiry::at(1040)), ..Get::default() };
    let untold = ready(s.get_with(&s.key(b"k"), &touch)).unwrap();
    assert!(untold.item.is_stale() && !untold.won && !untold.won_before);
    let fourth = ready(s.get_with(&s.key(b"k"), &meta)).unwrap();
    assert!(fourth.item.is_stale() && fourth.won && !fourth.won_before);
    let fifth = ready(s.get_with(&s.key(b"k"), &meta)).unwrap();
    assert!(fifth.item.is_stale() && !fifth.won && fifth.won_before);
}

#[test]
fn a_full_cache_evicts_and_stays_in_its_budget() {
    let engine = engine(16);
    let mut s = session(&engine);
    let value = "v".repeat(500);
    for n in 0..200_000 {
        set_when_ready(&mut s, &format!("key:{n}"), value.as_bytes());
    }
    let stats = engine.stats();
    assert!(stats.totals.evictions > 100_000, "{stats:?}");
    assert!(stats.memory_used <= stats.memory_limit + (1 << 20), "{stats:?}");
    assert!(stats.items > 20_000, "{stats:?}");
    let newest = (199_000..200_000).filter(|n| get(&s, &format!("key:{n}")).is_some()).count();
    assert_eq!(newest, 1000);
}

fn set_when_ready(s: &mut Session, key: &str, value: &[u8]) {
    loop {
        let stored = s.store(&s.key(key.as_bytes()), Store::set(value, 0, Expiry::NEVER));
        match stored {
            Outcome::Ready(stored) => {
                assert!(matches!(stored, Stored::Stored { .. }), "{stored:?}");
                s.tick(1000);
                return;
            }
            _ => {
                s.sleep();
                std::thread::yield_now();
                s.tick(1000);
            }
        }
    }
}

#[test]
fn a_full_store_that_refuses_keeps_everything_and_frees_by_deletes() {
    let options = Options { memory: 16 << 20, when_full: WhenFull::Refuse, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let mut s = session(&engine);
    let value = vec![b'v'; 1000];
    let mut kept = 0;
    'fill: loop {
        let key = format!("key:{kept}");
        loop {
            match s.store(&s.key(key.as_bytes()), Store::set(&value, 0, Expiry::NEVER)) {
                Outcome::Ready(Stored::Stored { .. }) => break,
                Outcome::Refused(Refusal::OutOfMemory) => break 'fill,
                Outcome::Ready(other) => panic!("{other:?}"),
                _ => {
                    s.sleep();
                    std::thread::yield_now();
                    s.tick(1000);
                }
            }
        }
        kept += 1;
        s.tick(1000);
    }
    assert!(kept > 11_000, "{kept}");
    for n in 0..kept {
        assert!(get(&s, &format!("key:{n}")).is_some(), "{n} of {kept}");
    }
    for n in 0..kept / 4 {
        ready(s.delete(&s.key(format!("key:{n}").as_bytes()), &Delete::default()));
    }
    for n in 0..kept / 8 {
        set_when_ready(&mut s, &format!("new:{n}"), &value);
    }
}

#[test]
fn hot_overwrites_do_not_push_other_items_out() {
    let engine = engine(16);
    let mut s = session(&engine);
    for n in 0..5000 {
        set_when_ready(&mut s, &format!("cold:{n}"), &[b'c'; 1000]);
    }
    for n in 0..200_000 {
        set_when_ready(&mut s, &format!("hot:{}", n % 10), &[b'h'; 1000]);
    }
    let kept = (0..5000).filter(|n| get(&s, &format!("cold:{n}")).is_some()).count();
    assert_eq!(kept, 5000, "{:?}", engine.stats().totals);
}

#[test]
fn jumbos_are_stored_read_and_evicted() {
    let options = Options { memory: 64 << 20, max_item_size: 16 << 20, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let mut s = session(&engine);
    for n in 0..40u8 {
        let key = format!("jumbo:{n}");
        let mut large = loop {
            match s.large_value(None, 5 << 20) {
                Outcome::Ready(large) => break large.unwrap(),
                _ => {
                    s.sleep();
                    std::thread::yield_now();
                    s.tick(1000);
                }
            }
        };
        while !matches!(s.grow_large(&mut large, 5 << 20), Outcome::Ready(())) {
            s.sleep();
            std::thread::yield_now();
            s.tick(1000);
        }
        large.bytes_mut().fill(n);
        let value = Value::Large(&mut large);
        let store = Store { value, flags: 9, ..Store::set(&[], 0, Expiry::at(5000)) };
        let stored = ready(s.store(&s.key(key.as_bytes()), store));
        assert!(matches!(stored, Stored::Stored { size, .. } if size == 5 << 20));
        let mut kept = {
            let item = ready(s.get(&s.key(key.as_bytes()))).unwrap();
            assert_eq!((item.value().len(), item.flags()), (5 << 20, 9));
            assert!(item.value().iter().all(|&b| b == n));
            item.keep_value(5)
        };
        s.tick(1000);
        assert_eq!(kept.read(1, |part| assert_eq!(part, [n])), Some((5 << 20) - 6));
    }
    let stats = engine.stats();
    assert!(stats.memory_used <= stats.memory_limit, "{stats:?}");
    assert!(stats.jumbos >= 6 && stats.totals.evictions > 0, "{stats:?}");
}

#[test]
fn a_scan_visits_every_item_once() {
    let engine = engine(16);
    let s = session(&engine);
    for n in 0..10_000 {
        set(&s, &format!("key:{n}"), "v");
    }
    let mut seen = std::collections::HashSet::new();
    let mut cursor = ScanCursor::default();
    while ready(s.scan(&mut cursor, &mut |item| assert!(seen.insert(item.key().to_vec())))) {}
    assert_eq!(seen.len(), 10_000);
}

#[test]
fn expired_items_are_swept_while_the_rest_of_their_segment_lives() {
    let options = Options { memory: 16 << 20, ..Options::default() };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut cleaner = ManualCleaner::default();
    let mut s = session(&engine);
    for n in 0..4000 {
        let expiry = if n % 2 == 0 { Expiry::at(1005) } else { Expiry::NEVER };
        let key = format!("key:{n}");
        let stored = ready(s.store(&s.key(key.as_bytes()), Store::set(&[b'v'; 1000], 0, expiry)));
        assert!(matches!(stored, Stored::Stored { .. }));
    }
    s.tick(1004);
    engine.clean(&mut cleaner);
    assert_eq!(engine.stats().totals.expired, 0);
    s.tick(1005);
    engine.clean(&mut cleaner);
    let stats = engine.stats();
    // The cleaner removes no expired items from the open segment, so a few may be left.
    assert!(stats.totals.expired > 1900, "{stats:?}");
    assert_eq!(stats.items, 4000 - stats.totals.expired);
    assert_eq!(stats.totals.evictions, 0);
}

#[test]
fn an_item_of_the_largest_size_can_be_touched() {
    let engine = engine(16);
    let session = session(&engine);
    let largest = engine.max_value_len(4);
    let set = |len: usize| {
        let value = vec![7; len];
        ready(session.store(&session.key(b"item"), Store::set(&value, 0, Expiry::NEVER)))
    };
    assert!(matches!(set(largest), Stored::Stored { .. }));
    let touch = Get { touch: Some(Expiry::at(2000)), ..Get::default() };
    let found = ready(session.get_with(&session.key(b"item"), &touch));
    assert_eq!(found.map(|found| found.item.value().len()), Some(largest));
    assert!(matches!(set(largest + 1), Stored::TooLarge), "one byte more is too large");
}
