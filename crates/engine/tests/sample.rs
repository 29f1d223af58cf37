//! Random samples of items: every item is equally likely, wherever it lies, and none counts as
//! read.

#[path = "common/store.rs"]
mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use common::store;
use larder_disk::SimDevice;
use larder_engine::{
    Delete, Durability, Engine, Expiry, ItemSampler, ManualCleaner, Options, Outcome, Session,
    Store, StoreDevice, StoreOptions,
};

const NOW: u32 = 1000;

struct Machine {
    engine: Arc<Engine>,
    session: Session,
    cleaner: ManualCleaner,
}

impl Machine {
    fn open(options: Options) -> Machine {
        let engine = Engine::open_without_threads(options).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(NOW);
        Machine { engine, session, cleaner: ManualCleaner::default() }
    }

    fn turn(&mut self) {
        self.engine.serve_reads();
        self.engine.clean(&mut self.cleaner);
        self.engine.commit();
        self.session.tick(NOW);
    }

    fn set(&mut self, key: &str, value: &[u8], expiry: Expiry) {
        for _ in 0..1000 {
            match self
                .session
                .store(&self.session.key(key.as_bytes()), Store::set(value, 0, expiry))
            {
                Outcome::Ready(_) | Outcome::AfterCommit(..) => return,
                _ => self.turn(),
            }
        }
        panic!("a set waits for ever");
    }

    /// Draws until `samples` items were shown. Returns how often each key was shown, and the number
    /// of unreadable items.
    fn sample(&mut self, samples: usize, reads: usize) -> (HashMap<Vec<u8>, u64>, u64) {
        let (mut seen, mut shown) = (HashMap::<Vec<u8>, u64>::new(), 0);
        let mut sampler = ItemSampler::new(42);
        for _ in 0..1_000_000 {
            let waiting = self.session.sample(&mut sampler, 512, reads, &mut |item| {
                assert!(!item.hit_before());
                *seen.entry(item.key().to_vec()).or_default() += 1;
                shown += 1;
            });
            assert!(waiting <= reads);
            if shown >= samples {
                return (seen, sampler.unreadable());
            }
            let wanted = self.session.take_reads();
            assert_eq!(wanted.is_some(), waiting > 0);
            self.engine.serve_reads();
            self.session.tick(NOW);
            wanted.into_iter().for_each(|reads| self.session.release(reads));
        }
        panic!("only {shown} items were shown");
    }
}

/// Returns how far the counts are from those of a uniform sample: the statistic chi², less its
/// mean, in standard deviations.
fn deviation(seen: &HashMap<Vec<u8>, u64>, keys: usize) -> f64 {
    let samples: u64 = seen.values().sum();
    let expected = samples as f64 / keys as f64;
    let absent = (keys - seen.len()) as f64 * expected;
    let of = |count: &u64| (*count as f64 - expected).powi(2) / expected;
    let chi = seen.values().map(of).sum::<f64>() + absent;
    (chi - (keys - 1) as f64) / (2.0 * (keys - 1) as f64).sqrt()
}

#[test]
fn every_item_is_equally_likely_although_tables_differ_in_length() {
    for lanes in [1, 3] {
        let memory = (32 << 20) * lanes as u64;
        let mut machine = Machine::open(Options { memory, lanes, ..Options::default() });
        let mut keys = 0;
        for number in 0.. {
            let key = format!("key{number}");
            // The first eighth of the stripes has most of the keys.
            let stripe = machine.session.key(key.as_bytes()).place() >> 24;
            if stripe < 8 || number % 16 == 0 {
                machine.set(&key, b"value", Expiry::NEVER);
                keys += 1;
            }
            if keys == 30_000 {
                break;
            }
        }
        machine.set("expired", b"value", Expiry::at(NOW));
        let (seen, unreadable) = machine.sample(20 * keys, 1);
        assert!(!seen.contains_key(&b"expired"[..]));
        let deviation = deviation(&seen, keys);
        assert!(deviation.abs() < 4.0, "{lanes} lanes: {deviation} standard deviations");
        assert_eq!((seen.len(), unreadable), (keys, 0));
        let totals = machine.engine.totals();
        assert_eq!((totals.cmd_get, totals.get_hits), (0, 0));
    }
}

#[test]
fn items_on_a_device_are_as_likely_as_those_in_memory() {
    for durability in [Durability::Async, Durability::Sync] {
        let device = Arc::new(SimDevice::new(128 << 20, 1));
        let device = StoreDevice {
            name: "device".to_owned(),
            device: Arc::<SimDevice>::clone(&device),
            lower: None,
            seeds: [1, 2, 3],
        };
        let simulated = Arc::clone(&device.device);
        let store = StoreOptions { devices: vec![device], ..store(simulated, durability) };
        let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
        let mut machine = Machine::open(options);
        let keys = 20_000;
        for key in 0..keys {
            let value = vec![b'v'; if key % 2000 == 7 { 600_000 } else { 500 }];
            machine.set(&format!("key{key}"), &value, Expiry::NEVER);
            if key % 64 == 0 {
                machine.turn();
            }
        }
        machine.turn();
        let before = machine.engine.stats();
        assert!(before.flash_item_bytes > before.memory_limit, "{before:?}");
        let (seen, unreadable) = machine.sample(10 * keys, 16);
        let deviation = deviation(&seen, keys);
        assert!(deviation.abs() < 4.0, "{durability:?}: {deviation} standard deviations");
        assert_eq!(unreadable, 0);
        let after = machine.engine.stats();
        assert_eq!((after.copies, after.totals.get_hits), (before.copies, 0));
    }
}

#[test]
fn an_empty_cache_has_nothing_to_show() {
    let mut machine = Machine::open(Options { memory: 32 << 20, ..Options::default() });
    let mut sampler = ItemSampler::new(1);
    let mut show = |machine: &mut Machine| {
        let mut shown = 0;
        assert_eq!(machine.session.sample(&mut sampler, 10_000, 1, &mut |_| shown += 1), 0);
        shown
    };
    assert_eq!(show(&mut machine), 0);
    machine.set("key", b"value", Expiry::NEVER);
    // The cache had no item until now, so the index had no table either. The sampler must find the
    // first table at once.
    assert!(show(&mut machine) > 0);
}

#[test]
fn expired_items_are_counted_like_live_ones() {
    let mut machine = Machine::open(Options { memory: 32 << 20, ..Options::default() });
    for number in 0..4000 {
        let expiry = if number % 4 == 0 { Expiry::at(NOW + 5) } else { Expiry::NEVER };
        machine.set(&format!("key{number}"), b"value", expiry);
    }
    let _ = machine.session.delete(&machine.session.key(b"key1"), &Delete::default());
    let mut sampler = ItemSampler::new(7);
    let mut shown = 0;
    let mut draw = |machine: &Machine| {
        for _ in 0..40 {
            machine.session.sample(&mut sampler, 500, 1, &mut |_| shown += 1);
        }
        (std::mem::take(&mut shown), sampler.expired())
    };
    assert_eq!(draw(&machine), (20_000, 0));
    machine.session.tick(NOW + 5);
    assert_eq!(machine.engine.stats().items, 3999);
    let (shown, expired) = draw(&machine);
    assert_eq!(shown + expired, 20_000);
    // A quarter of the draws must lead to expired items, within five standard deviations.
    assert!((4690..5310).contains(&expired), "{expired}");
}

#[test]
fn a_device_that_does_not_answer_holds_up_no_other_sample() {
    let device = Arc::new(SimDevice::new(128 << 20, 1));
    let store = store(Arc::<SimDevice>::clone(&device), Durability::Async);
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    let mut machine = Machine::open(options);
    for number in 0..20_000 {
        machine.set(&format!("key{number}"), &[b'v'; 500], Expiry::NEVER);
        if number % 64 == 0 {
            machine.turn();
        }
    }
    machine.turn();
    let mut sampler = ItemSampler::new(3);
    let mut shown = 0;
    let mut step = |machine: &mut Machine| {
        let waiting = machine.session.sample(&mut sampler, 200, 16, &mut |_| shown += 1);
        (waiting, shown, sampler.unreadable())
    };
    let (waiting, before, unreadable) = step(&mut machine);
    assert_eq!((waiting, unreadable), (16, 0));
    let late = machine.session.take_reads().unwrap();
    // The test serves no read. Like a caller that has waited too long, it gives up the reads it
    // waits for.
    machine.session.release(late);
    machine.session.tick(NOW);
    let (waiting, after, unreadable) = step(&mut machine);
    assert!(waiting == 0 && after > before + 10 && unreadable > 16, "{after} {unreadable}");
    assert!(machine.session.take_reads().is_none());
    let reads = machine.engine.totals().sample_reads;
    assert!((1..=16).contains(&reads), "{reads}");
    step(&mut machine);
    assert_eq!(machine.engine.totals().sample_reads, reads, "the device is not asked for more");
    // The device answers again, so the sample must request reads again.
    machine.engine.serve_reads();
    machine.session.tick(NOW);
    let (waiting, ..) = step(&mut machine);
    assert_eq!(waiting, 16);
    assert!(machine.engine.totals().sample_reads > reads);
}
