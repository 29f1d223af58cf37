//! A full store that refuses new items. Deletes, increments and touches must keep working for ever,
//! and the room that they free must become usable again.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Random, SimDevice};
use larder_engine::{
    Arith, CommitState, Counted, Create, Delete, Deleted, Durability, Engine, Expiry, Get, Options,
    Outcome, Refusal, Session, Store, Stored, WhenFull,
};
use machine::{Machine, NOW};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Number of turns after which a waiting call counts as stuck.
const PATIENCE: usize = 3000;
/// The largest number of sets with which a client fills the store again after a delete.
const MOST_SETS: usize = 400;
const COUNTERS: u32 = 16;

fn options(device: &Arc<SimDevice>, durability: Durability) -> Options {
    let store = store(Arc::<SimDevice>::clone(device), durability);
    let (memory, when_full) = (8 << 20, WhenFull::Refuse);
    Options { memory, max_item_size: 1 << 20, when_full, store: Some(store), ..Options::default() }
}

/// Access to an engine. Calls are repeated until they are done.
trait Caller {
    /// Repeats the call until it is done. Returns `None` if there is no room.
    fn done<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Option<T>;

    fn set(&mut self, key: u64, len: usize) -> bool {
        let (name, value) = (key.to_string(), vec![b'0' + (key % 10) as u8; len]);
        let stored = self.done(|session| {
            let store = Store::set(&value, 0, Expiry::NEVER);
            session.store(&session.key(name.as_bytes()), store)
        });
        stored.inspect(|stored| assert!(matches!(stored, Stored::Stored { .. }))).is_some()
    }

    fn delete(&mut self, key: u64) {
        let name = key.to_string();
        let deleted =
            self.done(|session| session.delete(&session.key(name.as_bytes()), &Delete::default()));
        assert_eq!(deleted, Some(Deleted::Deleted), "{key}");
    }

    fn count(&mut self, counter: &str, by: u64) -> u64 {
        let arith =
            Arith { create: Some(Create { initial: by, expiry: Expiry::NEVER }), ..Arith::add(by) };
        let counted = self.done(|session| session.arith(&session.key(counter.as_bytes()), &arith));
        match counted {
            Some(Counted::Value { value, .. }) => value,
            other => panic!("{counter}: {other:?}"),
        }
    }

    fn touch(&mut self, key: u64, expiry: u32) {
        assert!(self.try_touch(key, expiry), "{key}");
    }

    /// Sets an expiry for an existing key. Returns false if the store has no room for the new
    /// record.
    fn try_touch(&mut self, key: u64, expiry: u32) -> bool {
        let (name, touch) = (key.to_string(), Some(Expiry::at(NOW + 1_000_000 + expiry)));
        let get = Get { touch, ..Get::default() };
        let touched = self.done(|session| {
            session.get_with(&session.key(name.as_bytes()), &get).map(|found| found.is_some())
        });
        assert_ne!(touched, Some(false), "{key}");
        touched.is_some()
    }

    /// Checks that the value belongs to the key, and returns its length.
    fn get(&mut self, key: u64) -> Option<usize> {
        let name = key.to_string();
        self.done(|session| {
            session.get(&session.key(name.as_bytes())).map(|item| {
                item.map(|item| {
                    assert!(item.value().iter().all(|&byte| byte == b'0' + (key % 10) as u8));
                    item.value().len()
                })
            })
        })
        .expect("a read is not refused")
    }
}

impl Caller for Machine {
    fn done<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Option<T> {
        for _ in 0..PATIENCE {
            match call(&self.session) {
                Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => return Some(answer),
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::StoreFull);
                    return None;
                }
                Outcome::NeedsRead => drop(self.engine.serve_reads()),
                Outcome::NeedsSpace => {
                    self.engine.clean(&mut self.cleaner);
                    assert!(self.engine.commit());
                }
            }
            self.session.tick(NOW);
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }
}

/// A client with its own items.
struct Client<C> {
    caller: C,
    random: Random,
    keys: Range<u64>,
    sizes: Range<u64>,
    items: BTreeMap<u64, usize>,
    counters: Vec<u64>,
}

impl<C: Caller> Client<C> {
    fn new(caller: C, keys: Range<u64>, sizes: Range<u64>) -> Client<C> {
        let random = Random::new(keys.start + 1);
        Client { caller, random, keys, sizes, items: BTreeMap::new(), counters: Vec::new() }
    }

    fn counter(&self, at: usize) -> String {
        format!("counter {at} of {}", self.keys.start)
    }

    /// Stores new items until there is no room, or until `most` items are stored. Returns the
    /// number of items stored.
    fn fill(&mut self, most: usize) -> usize {
        for stored in 0..most {
            let key = (0..)
                .map(|_| self.random.between(self.keys.start, self.keys.end - 1))
                .find(|key| !self.items.contains_key(key))
                .expect("there are more keys than items");
            let len = self.random.between(self.sizes.start, self.sizes.end - 1);
            if !self.caller.set(key, len as usize) {
                return stored;
            }
            self.items.insert(key, len as usize);
        }
        most
    }

    fn any(&mut self) -> u64 {
        let from = self.random.between(self.keys.start, self.keys.end - 1);
        let found = self.items.range(from..).next().or_else(|| self.items.iter().next());
        *found.expect("there are items").0
    }

    fn delete_any(&mut self) {
        let key = self.any();
        self.caller.delete(key);
        self.items.remove(&key);
    }

    /// In each round, deletes an item, fills the store again, and increments a counter. If
    /// `touches` is true, also touches an item. Returns the number of items stored.
    fn rounds(&mut self, rounds: u32, touches: bool) -> usize {
        let mut stored = 0;
        for round in 0..rounds {
            self.delete_any();
            stored += self.fill(MOST_SETS);
            let at = self.random.below(self.counters.len() as u64) as usize;
            self.counters[at] += 1;
            assert_eq!(self.caller.count(&self.counter(at), 1), self.counters[at], "round {round}");
            if touches {
                let key = self.any();
                self.caller.touch(key, round);
            }
        }
        stored
    }

    fn make_counters(&mut self) {
        for at in 0..COUNTERS as usize {
            self.counters.push(self.caller.count(&self.counter(at), 1000));
        }
    }

    fn check(&mut self) {
        let items = std::mem::take(&mut self.items);
        for (&key, &len) in &items {
            assert_eq!(self.caller.get(key), Some(len), "{key}");
        }
        for at in 0..self.counters.len() {
            assert_eq!(self.caller.count(&self.counter(at), 0), self.counters[at]);
        }
        self.items = items;
    }
}

fn delete_one_and_fill_up(durability: Durability, sizes: Range<u64>, rounds: u32) {
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, durability));
    let mut client = Client::new(machine, 0..1 << 20, sizes.clone());
    client.make_counters();
    let fill = client.fill(usize::MAX);
    let room: usize = client.items.values().sum();
    assert!(room > 8_000_000, "{fill} items of {room} bytes have room in 12 MiB");
    client.rounds(rounds, true);
    client.check();
    // After half of the items were deleted, more than a third as many as at first must fit again.
    for _ in 0..fill / 2 {
        client.delete_any();
    }
    let again = client.fill(usize::MAX);
    assert!(again > fill / 3, "{again} of {fill} have room again");
    client.rounds(rounds / 10, true);
    // Another process must find the same items and counters.
    let Client { caller, items, counters, .. } = &mut client;
    assert!(caller.engine.commit());
    let device = Arc::new(caller.device.image());
    let machine = Machine::open(Arc::clone(&device), options(&device, durability));
    let mut next = Client::new(machine, 0..1 << 20, sizes);
    (next.items, next.counters) = (std::mem::take(items), std::mem::take(counters));
    next.check();
    next.fill(usize::MAX);
    next.rounds(rounds / 10, true);
    next.check();
}

#[test]
fn a_full_store_of_small_items_deletes_counts_and_touches() {
    delete_one_and_fill_up(Durability::Async, 100..700, 4000);
}

#[test]
fn a_full_store_of_larger_items_deletes_counts_and_touches() {
    delete_one_and_fill_up(Durability::Sync, 1000..20_000, 3000);
}

#[test]
fn a_full_store_of_items_that_fill_half_a_segment_deletes_counts_and_touches() {
    delete_one_and_fill_up(Durability::Async, 8_000..32_000, 3000);
}

/// Large values have their own places. A touch of a large value needs room for a second copy, so
/// this test touches none.
#[test]
fn a_full_store_of_large_values_deletes_and_counts() {
    let device = Arc::new(SimDevice::new(24 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, Durability::Async));
    let mut client = Client::new(machine, 0..1 << 20, 40_000..400_000);
    client.make_counters();
    let fill = client.fill(usize::MAX);
    assert!(fill > 50, "{fill} have room");
    client.rounds(1000, false);
    client.check();
}

/// In a store that is full of other items, increments of counters must succeed for ever.
#[test]
fn a_full_store_counts_for_ever() {
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, Durability::Sync));
    let mut client = Client::new(machine, 0..1 << 20, 100..3000);
    client.make_counters();
    client.fill(usize::MAX);
    for round in 0..100_000 {
        let at = round % COUNTERS as usize;
        client.counters[at] += 1;
        assert_eq!(client.caller.count(&client.counter(at), 1), client.counters[at]);
        if round % 100 == 0 {
            assert!(client.caller.engine.commit());
            assert!(!client.caller.set(u64::MAX, 30_000), "there is too much room");
        }
    }
    client.check();
}

/// Larder keeps a reserve of free places. While items are overwritten, dead bytes may count as part
/// of the reserve, because cleaning can turn them into free places. When live items have filled the
/// store again, all of the reserve must be free places.
#[test]
fn a_store_of_overwritten_items_has_its_reserve_when_it_is_full() {
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, Durability::Async));
    let mut client = Client::new(machine, 0..1 << 20, 100..3000);
    client.make_counters();
    let fill = client.fill(usize::MAX);
    for _ in 0..5 {
        for _ in 0..fill / 4 {
            client.delete_any();
        }
        for _ in 0..3 * fill {
            let key = client.any();
            assert!(client.caller.set(key, client.items[&key]), "{key}");
        }
        let again = client.fill(usize::MAX);
        assert!(again > fill / 6, "{again} of {fill} have room again");
        client.rounds(1000, true);
    }
    client.check();
}

/// Records do not span segments, so dead bytes beside large records cannot be gathered into free
/// places. Such dead bytes must not stand in for the reserve of free places.
#[test]
fn a_store_of_items_that_pack_badly_has_its_reserve() {
    const LARGE: usize = 26 << 10;
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, Durability::Async));
    let mut client = Client::new(machine, 0..1 << 20, 100..200);
    client.make_counters();
    let mut key = 0;
    let mut set = |client: &mut Client<Machine>, len: usize| {
        key += 1;
        let stored = client.caller.set(key, len);
        if stored {
            client.items.insert(key, len);
        }
        stored
    };
    while [LARGE, LARGE, 7 << 10].iter().all(|&len| set(&mut client, len)) {}
    let small: Vec<u64> =
        client.items.iter().filter(|&(_, &len)| len < LARGE).map(|(&key, _)| key).collect();
    for key in small {
        client.caller.delete(key);
        client.items.remove(&key);
    }
    while set(&mut client, LARGE) {}
    let stats = client.caller.engine.stats();
    let free = stats.fast_bytes / stats.segment_size - stats.segments;
    assert!(free > stats.fast_bytes / stats.segment_size / 20, "{free} places are left: {stats:?}");
    for round in 0..20_000 {
        let at = round % COUNTERS as usize;
        client.counters[at] += 1;
        let counted = client.caller.count(&client.counter(at), 1);
        assert_eq!(counted, client.counters[at], "round {round}");
    }
    while client.items.len() > 1 {
        client.delete_any();
    }
    client.check();
}

/// A caller with its own thread.
struct Threaded {
    session: Session,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Threaded {
    fn new(engine: &Arc<Engine>) -> Threaded {
        let mut session = engine.session(Waker::from(Arc::new(Unpark(thread::current()))));
        session.tick(NOW);
        Threaded { session }
    }

    fn sleep(&mut self) {
        self.session.sleep();
        thread::park_timeout(Duration::from_millis(10));
        self.session.tick(NOW);
    }
}

impl Caller for Threaded {
    fn done<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Option<T> {
        for _ in 0..PATIENCE {
            let (answer, point) = match call(&self.session) {
                Outcome::Ready(answer) => (answer, None),
                Outcome::AfterCommit(answer, point) => (answer, Some(point)),
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::StoreFull);
                    return None;
                }
                Outcome::NeedsRead | Outcome::NeedsSpace => {
                    let reads = self.session.take_reads();
                    self.sleep();
                    reads.into_iter().for_each(|reads| self.session.release(reads));
                    continue;
                }
            };
            if let Some(point) = point {
                while self.session.commit_state(point) == CommitState::Pending {
                    self.session.wake_on_commit(point);
                    self.sleep();
                }
                assert_eq!(self.session.commit_state(point), CommitState::Durable);
            }
            self.session.tick(NOW);
            return Some(answer);
        }
        panic!("a call waits for ever: {:?}", self.session.engine().stats());
    }
}

#[test]
fn threads_delete_count_and_touch_in_a_full_store() {
    const THREADS: u64 = 3;
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let engine = Engine::open(options(&device, Durability::Sync)).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                let keys = thread << 20..(thread + 1) << 20;
                let mut client = Client::new(Threaded::new(engine), keys, 500..8000);
                client.make_counters();
                client.fill(usize::MAX);
                client.rounds(700, true);
                client.check();
                client.caller.session.sleep();
            });
        }
    });
    engine.close().unwrap();
}

/// A touch may enlarge a record: it adds an expiry, and it stores the unchanged cas id as an
/// explicit one. The room for such growth must be limited, so that increments and deletes keep the
/// room that they need.
#[test]
fn growing_items_take_no_room_from_counts_and_deletes() {
    let device = Arc::new(SimDevice::new(12 << 20, 1));
    let machine = Machine::open(Arc::clone(&device), options(&device, Durability::Async));
    let mut client = Client::new(machine, 0..1 << 20, 100..200);
    client.make_counters();
    let fill = client.fill(usize::MAX);
    let keys: Vec<u64> = client.items.keys().copied().collect();
    let touched = keys.iter().take_while(|&&key| client.caller.try_touch(key, 1)).count();
    assert!((fill / 20..fill).contains(&touched), "{touched} of {fill} items could grow");
    for (round, key) in keys[..touched].iter().enumerate() {
        client.caller.touch(*key, round as u32 + 2);
    }
    client.rounds(2000, false);
    client.check();
}
