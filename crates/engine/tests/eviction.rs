//! What a cache without a store evicts and keeps.

#[path = "common/cache.rs"]
mod cache;

use cache::Cache;
use larder_engine::*;

const NOW: u32 = 1000;
/// Bytes of memory; about 27 000 items with their keys fit.
const MEMORY: u64 = 16 << 20;
const VALUE: [u8; 560] = [b'v'; 560];

impl Cache {
    fn open() -> Cache {
        Cache::with(Options { memory: MEMORY, ..Options::default() }, NOW)
    }

    fn set(&mut self, key: &str) {
        self.set_value(key, &VALUE);
    }

    fn set_value(&mut self, key: &str, value: &[u8]) {
        loop {
            let store = Store::set(value, 0, Expiry::NEVER);
            let stored = self.session.store(&self.session.key(key.as_bytes()), store);
            if let Outcome::Ready(stored) = stored {
                assert!(matches!(stored, Stored::Stored { .. }), "{stored:?}");
                break;
            }
            self.session.sleep();
            self.engine.clean(&mut self.cleaner);
            self.session.tick(NOW);
        }
        self.session.tick(NOW);
        self.engine.clean(&mut self.cleaner);
    }

    fn get(&self, key: &str) -> bool {
        match self.session.get(&self.session.key(key.as_bytes())) {
            Outcome::Ready(item) => item.is_some(),
            _ => panic!("all of it is in memory"),
        }
    }

    /// Writes items, and reads every fourth of them once.
    fn set_and_read_a_quarter(&mut self, name: &str, items: usize) {
        for n in 0..items {
            self.set(&format!("{name}:{n}"));
            if n % 4 == 0 {
                assert!(self.get(&format!("{name}:{n}")));
            }
        }
    }
}

#[test]
fn one_read_is_enough_to_be_kept() {
    let mut cache = Cache::open();
    cache.set_and_read_a_quarter("item", 60_000);
    let kept = |cache: &Cache, rest| {
        let numbers = (0..20_000).filter(|n| n % 4 == rest);
        numbers.filter(|n| cache.get(&format!("item:{n}"))).count()
    };
    assert_eq!(kept(&cache, 1), 0, "items that were not read are still there");
    assert!(kept(&cache, 0) >= 4950, "{} of 5000", kept(&cache, 0));
}

#[test]
fn a_scan_evicts_its_own_items_and_not_those_that_are_read() {
    let mut cache = Cache::open();
    cache.set_and_read_a_quarter("item", 10_000);
    (0..100_000).for_each(|n| cache.set(&format!("scan:{n}")));
    // Even unread items are kept if other items of their segment were read. Until the cleaner has
    // examined every segment for reads, it may evict the oldest, so a few items may be missing.
    let kept = (0..10_000).filter(|n| cache.get(&format!("item:{n}"))).count();
    assert!(kept >= 9800, "{kept} of 10000");
    assert!(cache.get("scan:99999"));
}

#[test]
fn values_being_read_are_not_copied_while_memory_is_plentiful() {
    let mut cache = Cache::open();
    let value = |n: u8| vec![n; 20 << 10];
    let readers: Vec<_> = (0..150)
        .map(|n| {
            let key = format!("read:{n}");
            cache.set_value(&key, &value(n));
            let item = cache.session.get(&cache.session.key(key.as_bytes()));
            let Outcome::Ready(Some(item)) = item else { panic!("it is in memory") };
            item.keep_value(0)
        })
        .collect();
    (0..150).for_each(|n| cache.set(&format!("read:{n}")));
    for _ in 0..8 {
        (0..1000).for_each(|n| cache.set(&format!("item:{n}")));
    }
    assert!(cache.engine.stats().frame_bytes < MEMORY / 2);
    // The readers have pinned values whose items were then overwritten. If the log copied these
    // values out of their frames, the copies would exceed the share of memory for pinned values,
    // and readers would lose values.
    for (n, mut reader) in readers.into_iter().enumerate() {
        let whole = |bytes: &[u8]| assert!(bytes == value(n as u8));
        assert_eq!(reader.read(usize::MAX, whole), Some(0));
    }
}

#[test]
fn overwritten_items_take_a_fraction_of_memory() {
    let mut cache = Cache::open();
    // 1.2 MB of items, written 20 times over, and a few items that are written once.
    for round in 0..20 {
        (0..2000).for_each(|n| cache.set(&format!("item:{}", (n * 7 + round) % 2000)));
        (0..20).for_each(|n| cache.set(&format!("once:{round}:{n}")));
    }
    let stats = cache.engine.stats();
    assert!(stats.frame_bytes < MEMORY / 3, "{} bytes", stats.frame_bytes);
    assert_eq!(stats.totals.evictions, 0);
    assert!((0..2000).all(|n| cache.get(&format!("item:{n}"))));
    assert!((0..20).all(|round| (0..20).all(|n| cache.get(&format!("once:{round}:{n}")))));
}

#[test]
fn large_values_being_freed_count_with_all_their_memory() {
    let mut cache = Cache::open();
    let value = vec![1; 1_000_000];
    let store = |cache: &Cache, n: usize| {
        let store = Store::set(&value, 0, Expiry::NEVER);
        cache.session.store(&cache.session.key(format!("large:{n}").as_bytes()), store)
    };
    let stored = (0..100)
        .take_while(|&n| {
            let outcome = store(&cache, n);
            cache.session.tick(NOW);
            matches!(outcome, Outcome::Ready(_))
        })
        .count();
    assert!(stored >= 12, "{stored}");
    // At its tick after the cleaner's first turn, the session reports the bytes that it made dead.
    // Then it stays awake, so no freed memory can be used again. Meanwhile the cleaner must not
    // evict more than needed.
    cache.engine.clean(&mut cache.cleaner);
    cache.session.tick(NOW);
    for _ in 0..10 {
        cache.engine.clean(&mut cache.cleaner);
    }
    let evicted = cache.engine.stats().totals.evictions;
    assert!((1..=3).contains(&evicted), "{evicted} of {stored}");
    cache.session.sleep();
    cache.engine.clean(&mut cache.cleaner);
    cache.session.tick(NOW);
    assert!(matches!(store(&cache, stored), Outcome::Ready(_)));
}
