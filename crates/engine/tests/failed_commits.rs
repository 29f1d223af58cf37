//! Commits that fail while writers run. Changes answered with an error have no effect, and
//! acknowledged changes stay. No client's change comes between a failed commit and its undo.

#[path = "common/store.rs"]
mod common;

use common::store;
use larder_disk::{Device, Failure, Fault, Operation, Random, SimDevice};
use larder_engine::*;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;

/// A device whose page cache still has data that the device has lost.
#[derive(Debug)]
struct Remembered {
    device: Arc<SimDevice>,
    memory: Mutex<Vec<u8>>,
    loses: AtomicBool,
}

impl Device for Remembered {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let memory = self.memory.lock().expect("no panic");
        buffer.copy_from_slice(&memory[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.lock().expect("no panic")[offset as usize..][..bytes.len()]
            .copy_from_slice(bytes);
        if self.loses.load(Relaxed) { Ok(()) } else { self.device.write_at(offset, bytes) }
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// After a failed sync, neither a later successful sync nor the contents of the page cache prove
/// that data is on the device. The store must count as failing until the device stores data again.
#[test]
fn a_device_that_loses_writes_does_not_count_as_healed() {
    for durability in [Durability::Sync, Durability::Async] {
        let device = Arc::new(SimDevice::new(32 << 20, 1));
        let remembered = Arc::new(Remembered {
            device: Arc::clone(&device),
            memory: Mutex::new(vec![0; 32 << 20]),
            loses: AtomicBool::new(false),
        });
        let store = store(Arc::clone(&remembered) as Arc<dyn Device>, durability);
        let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
        let engine = Engine::open_without_threads(options).expect("it opens");
        let mut session = engine.session(Waker::noop().clone());
        session.tick(1);
        let set = |session: &Session| {
            let store = Store::set(b"value", 0, Expiry::NEVER);
            matches!(
                session.store(&session.key(b"key"), store),
                Outcome::Ready(_) | Outcome::AfterCommit(..)
            )
        };
        assert!(set(&session) && engine.commit());
        assert!(set(&session));
        let next = device.counts().syncs + 1;
        device.plan(Fault::once(Operation::Sync, next, Failure::Io));
        remembered.loses.store(true, Relaxed);
        for _ in 0..4 {
            assert!(!engine.commit());
            assert_ne!(engine.health(), Health::Good);
        }
        remembered.loses.store(false, Relaxed);
        let healed = (0..3).any(|_| engine.commit());
        assert!(healed && engine.health() == Health::Good, "{:?}", engine.health());
        assert!(set(&session) && engine.commit());
    }
}

/// Each writer's task, and the number of acknowledged changes after which it ends.
const WRITERS: [(Task, u64); 4] =
    [(Task::Count, 3000), (Task::Count, 3000), (Task::StoreLarge, 150), (Task::StoreLarge, 150)];
/// Bytes of a value that is stored as a jumbo.
const LARGE: usize = 300_000;
/// The largest number of changes that a writer has in flight.
const WINDOW: u64 = 4;
/// One in `FAILS` syncs fails.
const FAILS: u64 = 4;

fn options(device: &Arc<SimDevice>) -> Options {
    let store = store(Arc::clone(device) as Arc<dyn Device>, Durability::Sync);
    Options { memory: 32 << 20, store: Some(store), ..Options::default() }
}

/// Waits until the commit at `point` has ended. Returns true if the commit is durable, false if it
/// has failed.
fn settled(session: &mut Session, point: CommitPoint) -> bool {
    loop {
        match session.commit_state(point) {
            CommitState::Durable => return true,
            CommitState::Failed => return false,
            CommitState::Pending => thread::yield_now(),
        }
        session.tick(1);
    }
}

/// A writer's repeated operation.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// Increments a number.
    Count,
    /// Stores a number as a jumbo.
    StoreLarge,
}

/// Makes one change: increments the number, or stores the number after `last`. Returns the new
/// number.
fn change(session: &Session, task: Task, key: &[u8], last: u64) -> Outcome<u64> {
    let key = session.key(key);
    match task {
        Task::Count => {
            let create = Some(Create { initial: 1, expiry: Expiry::NEVER });
            let (decrement, delta, compare, cas, expiry) = (false, 1, None, None, None);
            let up = Arith { decrement, delta, compare, cas, expiry, create };
            session.arith(&key, &up).map(|counted| match counted {
                Counted::Value { value, .. } => value,
                other => panic!("{other:?}"),
            })
        }
        Task::StoreLarge => {
            let value = (last + 1).to_string() + &" ".repeat(LARGE);
            let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
            session.store(&key, store).map(|stored| match stored {
                Stored::Stored { .. } => last + 1,
                other => panic!("{other:?}"),
            })
        }
    }
}

fn read(session: &mut Session, key: &[u8]) -> u64 {
    loop {
        let number = |item: Option<Item<'_>>| {
            let text = item.map_or(String::new(), |item| {
                String::from_utf8_lossy(item.value()).trim().to_owned()
            });
            text.parse().unwrap_or(0)
        };
        match session.get(&session.key(key)).map(number) {
            Outcome::Ready(number) => return number,
            Outcome::AfterCommit(number, point) => {
                if settled(session, point) {
                    return number;
                }
            }
            other => panic!("{other:?}"),
        }
        session.tick(1);
    }
}

/// Changes one key, with several changes in flight, and checks its value after each group of
/// changes. Returns the numbers of acknowledged and of failed changes.
fn work(engine: &Arc<Engine>, writer: usize, task: Task, enough: u64) -> (u64, u64) {
    let key = format!("key{writer}").into_bytes();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    let mut random = Random::new(writer as u64);
    let (mut acknowledged, mut failed, mut holds) = (0, 0, 0);
    while acknowledged < enough {
        let (mut window, mut last) = (Vec::new(), holds);
        for _ in 0..random.between(1, WINDOW) {
            match change(&session, task, &key, last) {
                Outcome::AfterCommit(number, point) => {
                    last = number;
                    window.push((number, point));
                }
                Outcome::Refused(Refusal::StoreFailed) => {
                    failed += 1;
                    while engine.health() != Health::Good {
                        session.tick(1);
                        thread::yield_now();
                    }
                }
                Outcome::NeedsSpace => thread::yield_now(),
                other => panic!("{other:?}"),
            }
            session.tick(1);
        }
        for (number, point) in window {
            if settled(&mut session, point) {
                acknowledged += 1;
                holds = number;
            } else {
                failed += 1;
            }
        }
        let found = read(&mut session, &key);
        assert_eq!(found, holds, "{task:?}: {acknowledged} acknowledged, {failed} failed");
        session.tick(1);
    }
    session.sleep();
    (acknowledged, failed)
}

#[test]
fn failed_writes_have_no_effect_and_acknowledged_writes_stay() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let engine = Engine::open_without_threads(options(&device)).unwrap();
    thread::scope(|scope| {
        let engine = &engine;
        let writers: Vec<_> = WRITERS
            .into_iter()
            .enumerate()
            .map(|(writer, (task, enough))| scope.spawn(move || work(engine, writer, task, enough)))
            .collect();
        let mut cleaner = ManualCleaner::default();
        let mut random = Random::new(7);
        while writers.iter().any(|writer| !writer.is_finished()) {
            if random.one_in(FAILS) {
                let next = device.counts().syncs + 1;
                device.plan(Fault::once(Operation::Sync, next, Failure::Io));
            }
            engine.commit();
            device.mend();
            engine.clean(&mut cleaner);
        }
        for writer in writers {
            let (acknowledged, failed) = writer.join().unwrap();
            println!("{acknowledged} acknowledged, {failed} failed");
            assert!(acknowledged > 0 && failed > 0);
        }
    });
}
