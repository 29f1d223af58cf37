//! A set of an item that is only on the device reads nothing. Clients must see no difference: not
//! for this key, not for keys that the index cannot tell apart from it, and not after a restart.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{
    CommitPoint, Delete, Deleted, Durability, Expiry, ManualCleaner, Options, Outcome, Refusal,
    ScanCursor, Store, Stored, WhenFull,
};
use machine::{Machine, NOW};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// Number of turns after which a waiting call counts as stuck.
const PATIENCE: usize = 100_000;
/// Number of items that, once set, push all earlier items out of memory.
const FILL: u32 = 12_000;

fn machine(device: &Arc<SimDevice>, durability: Durability) -> Machine {
    open(device, durability, WhenFull::Evict)
}

fn open(device: &Arc<SimDevice>, durability: Durability, when_full: WhenFull) -> Machine {
    let store = Some(store(Arc::<SimDevice>::clone(device), durability));
    Machine::open(
        Arc::clone(device),
        Options { memory: 8 << 20, when_full, store, ..Options::default() },
    )
}

fn start(durability: Durability) -> Machine {
    machine(&Arc::new(SimDevice::new(64 << 20, 1)), durability)
}

/// Makes the other threads of a test end if the current thread panics.
struct EndsWith<'a>(&'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Machine {
    fn turn(&mut self) {
        // In some tests other threads must run before there is room.
        std::thread::yield_now();
        self.engine.serve_reads();
        self.engine.clean(&mut self.cleaner);
        self.engine.commit();
        self.session.tick(NOW);
    }

    fn attempt<T>(
        &mut self,
        call: impl Fn(&Machine) -> Outcome<T>,
    ) -> Result<(T, Option<CommitPoint>), Refusal> {
        for _ in 0..PATIENCE {
            match call(self) {
                Outcome::Ready(answer) => return Ok((answer, None)),
                Outcome::AfterCommit(answer, point) => return Ok((answer, Some(point))),
                Outcome::NeedsRead | Outcome::NeedsSpace => self.turn(),
                Outcome::Refused(refusal) => return Err(refusal),
            }
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }

    fn done<T>(&mut self, call: impl Fn(&Machine) -> Outcome<T>) -> (T, Option<CommitPoint>) {
        self.attempt(call).unwrap_or_else(|refusal| panic!("{refusal:?}"))
    }

    fn try_set(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        let set = |machine: &Machine| {
            let key = machine.session.key(key.as_bytes());
            machine.session.store(&key, Store::set(value.as_bytes(), 0, Expiry::NEVER))
        };
        self.attempt(set).map(drop)
    }

    fn set(&mut self, key: &str, value: &str) {
        self.try_set(key, value).unwrap();
    }

    /// Sets the key, and checks that the set replaced the old record without reading it.
    fn set_unread(&mut self, key: &str, value: &str) {
        let before = self.engine.stats().totals.unread_sets;
        let key = self.session.key(key.as_bytes());
        let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
        match self.session.store(&key, store) {
            Outcome::Ready(Stored::Stored { .. })
            | Outcome::AfterCommit(Stored::Stored { .. }, _) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(self.engine.stats().totals.unread_sets, before + 1);
    }

    fn get(&mut self, key: &str) -> Option<String> {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        self.done(|machine| {
            let key = machine.session.key(key.as_bytes());
            machine.session.get(&key).map(|found| found.map(|item| text(item.value())))
        })
        .0
    }

    fn delete(&mut self, key: &str) -> Deleted {
        self.done(|machine| {
            machine.session.delete(&machine.session.key(key.as_bytes()), &Delete::default())
        })
        .0
    }

    fn fill(&mut self, round: u32) {
        let value = "f".repeat(1000);
        for n in 0..FILL {
            self.set(&format!("fill{round}:{n}"), &value);
        }
        self.turn();
    }

    fn older_slots(&self) -> u64 {
        self.engine.stats().older_slots
    }

    /// Restarts the machine after a kill that loses no written data.
    fn killed(mut self, durability: Durability) -> Machine {
        self.turn();
        let device = Arc::new(self.device.image());
        machine(&device, durability)
    }

    fn stopped(mut self, durability: Durability) -> Machine {
        self.turn();
        self.session.sleep();
        self.engine.close().unwrap();
        let device = Arc::new(self.device.image());
        drop(self);
        let machine = machine(&device, durability);
        assert!(machine.engine.recovered().is_some_and(|it| it.from_image));
        machine
    }

    /// Returns two keys that the index cannot tell apart.
    fn twins(&self) -> [String; 2] {
        let mut seen = HashMap::new();
        for n in 0.. {
            let name = format!("twin{n}");
            if let Some(other) = seen.insert(self.session.key(name.as_bytes()).place(), n) {
                return [format!("twin{other}"), name];
            }
        }
        unreachable!()
    }
}

#[test]
fn a_set_of_an_item_only_on_the_device_reads_nothing() {
    let mut machine = start(Durability::Async);
    machine.set("cold", "old");
    machine.fill(0);
    let reads = machine.engine.stats().totals.flash_reads;
    machine.set_unread("cold", "new");
    assert_eq!(machine.get("cold").as_deref(), Some("new"));
    let stats = machine.engine.stats();
    assert_eq!((stats.totals.flash_reads, stats.older_slots), (reads, 1));
    assert_eq!(stats.items, u64::from(FILL) + 1);
    // Fills memory again, so that the new version is only on the device. Sets the key once more.
    machine.fill(1);
    machine.set_unread("cold", "newer");
    assert_eq!(machine.get("cold").as_deref(), Some("newer"));
    assert_eq!(machine.older_slots(), 2);
    let mut machine = machine.stopped(Durability::Async);
    assert_eq!(machine.older_slots(), 2);
    assert_eq!(machine.get("cold").as_deref(), Some("newer"));
    let mut machine = machine.killed(Durability::Async);
    assert_eq!(machine.older_slots(), 0);
    assert_eq!(machine.get("cold").as_deref(), Some("newer"));
}

#[test]
fn a_superseded_unread_item_never_comes_back() {
    let mut machine = start(Durability::Async);
    machine.set("cold", "old");
    machine.fill(0);
    machine.set_unread("cold", "new");
    assert_eq!(machine.delete("cold"), Deleted::Deleted);
    assert_eq!((machine.get("cold"), machine.older_slots()), (None, 1));
    assert_eq!(machine.delete("cold"), Deleted::NotFound);
    let mut machine = machine.stopped(Durability::Async);
    assert_eq!((machine.get("cold"), machine.older_slots()), (None, 1));
    let mut machine = machine.killed(Durability::Async);
    assert_eq!(machine.get("cold"), None);
}

#[test]
fn an_item_stays_when_another_key_is_set_over_its_slot() {
    let mut machine = start(Durability::Async);
    let [first, second] = machine.twins();
    machine.set(&first, "first");
    machine.fill(0);
    machine.set_unread(&second, "second");
    let both = |machine: &mut Machine| {
        assert_eq!(machine.get(&first).as_deref(), Some("first"));
        assert_eq!(machine.get(&second).as_deref(), Some("second"));
    };
    both(&mut machine);
    let mut machine = machine.stopped(Durability::Async);
    both(&mut machine);
    assert_eq!(machine.delete(&second), Deleted::Deleted);
    assert_eq!(machine.get(&second), None);
    assert_eq!(machine.get(&first).as_deref(), Some("first"));
    machine.set(&second, "second");
    // A write of the first key reads the record behind the older slot. It finds that this record
    // has the first key, and so resolves the slot.
    machine.set(&first, "third");
    assert_eq!(machine.older_slots(), 0);
    assert_eq!(machine.get(&first).as_deref(), Some("third"));
    assert_eq!(machine.engine.stats().items, u64::from(FILL) + 2);
    let mut machine = machine.killed(Durability::Async);
    assert_eq!(machine.get(&first).as_deref(), Some("third"));
    assert_eq!(machine.get(&second).as_deref(), Some("second"));
}

/// The cleaner must resolve older slots, and forget those that lead to dead records.
#[test]
fn cleaning_resolves_older_slots() {
    let mut machine = start(Durability::Async);
    let [first, second] = machine.twins();
    machine.set(&first, "first");
    for n in 0..3000 {
        machine.set(&format!("cold{n}"), &"o".repeat(500));
    }
    machine.fill(0);
    machine.set_unread(&second, "second");
    for n in 0..3000 {
        machine.set(&format!("cold{n}"), &format!("{n}{}", "n".repeat(500)));
    }
    let (older, bytes) = (machine.older_slots(), machine.engine.stats().item_bytes);
    assert!(older > 2000, "{older}");
    // Writes more than the store holds, so that the cleaner cleans segments. It also cleans
    // segments that older slots lead to, because the log counts the records there as probably dead.
    for round in 1..6 {
        machine.get(&first);
        machine.fill(round);
    }
    assert!(machine.older_slots() < older / 10, "{} of {older}", machine.older_slots());
    assert!(machine.engine.stats().item_bytes < 64 << 20, "{bytes}");
    for n in 0..3000 {
        let found = machine.get(&format!("cold{n}"));
        assert!(found.is_none_or(|value| value == format!("{n}{}", "n".repeat(500))), "cold{n}");
    }
}

#[test]
fn undoing_a_set_restores_the_older_slot() {
    for twins in [false, true] {
        let mut machine = start(Durability::Sync);
        let [first, second] = machine.twins();
        let set = if twins { &second } else { &first };
        machine.set(&first, "first");
        machine.fill(0);
        for value in ["new", "newer"] {
            if value == "new" {
                machine.set_unread(set, value);
            } else {
                machine.set(set, value);
            }
        }
        assert_eq!(machine.older_slots(), 1);
        let next = machine.device.counts().syncs + 1;
        machine.device.plan(Fault::once(Operation::Sync, next, Failure::Io));
        assert!(!machine.engine.commit());
        for _ in 0..3 {
            machine.turn();
        }
        assert_eq!(machine.get(&first).as_deref(), Some("first"), "{twins}");
        assert_eq!(machine.get(set).is_some(), !twins);
        assert_eq!((machine.older_slots(), machine.engine.stats().items), (0, u64::from(FILL) + 1));
        machine.set(set, "again");
        let mut machine = machine.killed(Durability::Sync);
        assert_eq!(machine.get(set).as_deref(), Some("again"));
        assert_eq!(machine.get(&first).as_deref(), Some(if twins { "first" } else { "again" }));
    }
}

/// A set marks the slot of another key as older, and a change of that other key resolves the slot.
/// Then the commit with the set and the change fails. The undo must restore the other key's item
/// and remove the item of the set.
#[test]
fn a_set_over_another_keys_slot_is_undone_after_that_slot_was_settled() {
    for deletes in [false, true] {
        let mut machine = start(Durability::Sync);
        let [first, second] = machine.twins();
        machine.set(&first, "first");
        machine.fill(0);
        machine.set_unread(&second, "second");
        // Reads the record of the first key into memory. Otherwise the change of that key below
        // would need a turn, and a turn makes a commit.
        let session = &machine.session;
        assert!(matches!(session.get(&session.key(first.as_bytes())), Outcome::NeedsRead));
        machine.engine.serve_reads();
        machine.session.tick(NOW);
        let next = machine.device.counts().syncs + 1;
        machine.device.plan(Fault::once(Operation::Sync, next, Failure::Io));
        if deletes {
            machine.delete(&first);
        } else {
            machine.set(&first, "third");
        }
        assert_eq!(machine.older_slots(), 0);
        assert!(!machine.engine.commit());
        for _ in 0..3 {
            machine.turn();
        }
        assert_eq!(machine.get(&first).as_deref(), Some("first"), "{deletes}");
        assert_eq!(machine.get(&second), None);
        assert_eq!(machine.engine.stats().items, u64::from(FILL) + 1);
    }
}

/// A turn must read few records, however many older slots lead into a segment.
#[test]
fn a_turn_settles_a_few_older_slots() {
    // The number of reads that a turn must stay below. This many suffice for a few records or for
    // one whole segment, and for the reads of other cleaning.
    const MOST_READS: u64 = 24;
    let mut machine = start(Durability::Async);
    for n in 0..8000 {
        machine.set(&format!("cold{n}"), &"o".repeat(100));
    }
    machine.fill(0);
    let mut most = 0;
    for n in 0..8000 {
        let key = format!("cold{n}");
        let before = machine.engine.stats().totals.unread_sets;
        machine.set(&key, &"n".repeat(100));
        if machine.engine.stats().totals.unread_sets == before {
            continue;
        }
        let reads = machine.device.counts().reads;
        machine.engine.clean(&mut machine.cleaner);
        most = most.max(machine.device.counts().reads - reads);
    }
    assert!(machine.engine.stats().totals.unread_sets > 2000);
    assert!(most < MOST_READS, "{most} reads in a turn");
}

/// A dump shows each key once, with its newest value, although older slots still lead to the
/// records that were superseded unread.
#[test]
fn a_dump_shows_no_superseded_item() {
    let mut machine = start(Durability::Async);
    for n in 0..1000 {
        machine.set(&format!("cold{n}"), "old value");
    }
    machine.fill(0);
    for n in 0..500 {
        machine.set(&format!("cold{n}"), "new");
    }
    assert!(machine.older_slots() > 200, "{}", machine.older_slots());
    let (mut lengths, mut cursor) = (HashMap::new(), ScanCursor::default());
    for _ in 0..PATIENCE {
        let outcome = machine.session.scan(&mut cursor, &mut |item| {
            if item.key().starts_with(b"cold") {
                let key = String::from_utf8(item.key().to_vec()).expect("text");
                assert_eq!(lengths.insert(key, item.value_len()), None, "a key is shown twice");
            }
        });
        match outcome {
            Outcome::Ready(true) | Outcome::AfterCommit(true, _) => {}
            Outcome::Ready(false) | Outcome::AfterCommit(false, _) => break,
            Outcome::NeedsRead | Outcome::NeedsSpace => {
                machine.engine.serve_reads();
            }
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
        machine.session.tick(NOW);
    }
    assert_eq!(lengths.len(), 1000);
    for n in 0..1000 {
        let expected = if n < 500 { "new".len() } else { "old value".len() };
        assert_eq!(lengths[&format!("cold{n}")], expected, "{n}");
    }
}

/// A segment with tombstones is freed when dead maps mark the records that the tombstones hide. No
/// dead map marks a record behind an older slot before that slot is resolved. Until then the
/// tombstones must stay.
#[test]
fn a_key_set_unread_and_then_deleted_stays_deleted() {
    const COLD: u32 = 20_000;
    // With keys this long, moving a tombstone a few times costs more than a dead map. So the
    // cleaner makes dead maps.
    let cold = |n: u32| format!("{}{n}", "cold".repeat(50));
    let mut machine = start(Durability::Async);
    for n in 0..COLD {
        machine.set(&cold(n), &"c".repeat(1000));
    }
    let mut hot = 0;
    for n in (0..COLD / 2).step_by(5) {
        machine.set(&cold(n), "new");
        machine.delete(&cold(n));
        for _ in 0..20 {
            hot += 1;
            machine.set(&format!("hot{}", hot % 2000), &"h".repeat(1000));
        }
        machine.turn();
    }
    let stats = machine.engine.stats();
    assert!(stats.totals.unread_sets > 1000 && stats.map_written_bytes > 0, "{stats:?}");
    let mut machine = machine.killed(Durability::Async);
    for n in (0..COLD / 2).step_by(5) {
        assert_eq!(machine.get(&cold(n)), None, "{n}");
    }
}

/// The cleaner must resolve older slots as fast as sets create them, so that nearly all sets read
/// nothing. That must hold with and without evictions, and for large and small records.
#[test]
fn sets_go_on_reading_nothing() {
    for (when_full, keys, bytes) in [
        (WhenFull::Evict, 24_000, 1000),
        (WhenFull::Refuse, 24_000, 1000),
        (WhenFull::Refuse, 100_000, 200),
    ] {
        let mut machine =
            open(&Arc::new(SimDevice::new(64 << 20, 1)), Durability::Async, when_full);
        let mut unread = 0;
        for round in 0..4 {
            for n in 0..keys {
                machine.set(&format!("key{n}"), &format!("{round}").repeat(bytes));
                machine.turn();
            }
            let so_far = machine.engine.stats().totals.unread_sets;
            let share = (so_far - unread) as f64 / f64::from(keys);
            assert!(round == 0 || share > 0.9, "{when_full:?}, {bytes}: {share}");
            unread = so_far;
        }
    }
}

/// Unreadable records behind some older slots must not keep other older slots from being resolved.
#[test]
fn unreadable_records_behind_older_slots_delay_nothing_else() {
    const COLD: u32 = 20_000;
    let cold = |n: u32| format!("{}{n}", "cold".repeat(50));
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let device = Arc::new(SimDevice::new(64 << 20, 1));
        let mut machine = open(&device, Durability::Async, when_full);
        for n in 0..COLD {
            machine.set(&cold(n), &"c".repeat(1000));
        }
        machine.fill(0);
        // Makes one sector in each 40 KiB unreadable.
        for sector in (2 << 20..12 << 20).step_by(40 << 10) {
            device.spoil(sector..sector + 512);
        }
        let (mut hot, mut kept) = (0, 0);
        for n in 0..COLD {
            // Some sets read the old record, because there are too many older slots. Some of these
            // reads fail.
            let mut set = |machine: &mut Machine, key: &str, value: &str| {
                let set = machine.try_set(key, value);
                if let Err(refusal) = set {
                    assert_eq!((refusal, when_full), (Refusal::StoreFailed, WhenFull::Refuse));
                    kept += 1;
                }
                set.is_ok()
            };
            if set(&mut machine, &cold(n), "new") {
                assert_eq!(machine.delete(&cold(n)), Deleted::Deleted);
            }
            for _ in 0..20 {
                hot += 1;
                set(&mut machine, &format!("hot{}", hot % 2000), &"h".repeat(1000));
            }
            machine.turn();
        }
        let stats = machine.engine.stats();
        assert!(stats.totals.unread_sets > 1000 && kept < 500, "{kept}, {stats:?}");
        if when_full == WhenFull::Evict {
            let mut machine = machine.killed(Durability::Async);
            for n in 0..COLD {
                assert_eq!(machine.get(&cold(n)), None, "{n}");
            }
        }
    }
}

/// Concurrent readers must find every key and never see an older version than before.
#[test]
fn sets_race_with_gets_and_the_cleaner() {
    const KEYS: u32 = 300;
    let machine = start(Durability::Async);
    let (engine, mut writer) = (Arc::clone(&machine.engine), machine);
    for n in 0..KEYS {
        writer.set(&format!("key{n}"), &format!("{:08}{}", 0, "v".repeat(2000)));
    }
    writer.fill(0);
    let ended = AtomicBool::new(false);
    let is_over = || ended.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut session = engine.session(Waker::noop().clone());
                let mut newest = vec![0u32; KEYS as usize];
                for n in (0..KEYS).cycle() {
                    if is_over() {
                        break;
                    }
                    let _ends = EndsWith(&ended);
                    let name = format!("key{n}");
                    let found = loop {
                        session.tick(NOW);
                        match session.get(&session.key(name.as_bytes())) {
                            Outcome::Ready(found) => {
                                break found.map(|item| {
                                    std::str::from_utf8(&item.value()[..8])
                                        .unwrap()
                                        .parse()
                                        .unwrap()
                                });
                            }
                            _ => {
                                engine.serve_reads();
                            }
                        }
                    };
                    let found: u32 = found.unwrap_or_else(|| panic!("{name} is missed"));
                    assert!(found >= newest[n as usize], "{name} is older than it was");
                    newest[n as usize] = found;
                }
            });
        }
        scope.spawn(|| {
            let mut cleaner = ManualCleaner::default();
            while !is_over() {
                engine.clean(&mut cleaner);
                engine.commit();
            }
        });
        let _ends = EndsWith(&ended);
        for round in 1..4 {
            for n in 0..KEYS {
                writer.set(&format!("key{n}"), &format!("{round:08}{}", "v".repeat(2000)));
            }
            for n in 0..6000 {
                writer.set(&format!("fill{}", n % 3000), &"f".repeat(1000));
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(engine.stats().totals.unread_sets > 200, "{:?}", engine.stats().totals);
}
