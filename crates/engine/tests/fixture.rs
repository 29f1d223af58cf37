//! Stores written by an earlier version. Every later version must open them and find their
//! contents.
//!
//! A fixture holds the non-zero blocks of a device, each after its offset. To write new fixtures
//! after an unreleased change of the format:
//!
//!     cargo test -p larder-engine --test fixture -- --ignored

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Device, SimDevice};
use larder_engine::{
    Arith, Create, Delete, Durability, Expiry, ManualCleaner, Options, Outcome, Session, Store,
    WhenFull,
};
use machine::{Machine, NOW};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

const SIZE: u64 = 8 << 20;
const BLOCK: usize = 4096;
/// A time long after [`NOW`].
const LATE: u32 = 4_000_000_000;
const LARGE: usize = 40_000;

/// How the store was left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// The store was left by a clean stop, with an index image.
    Clean,
    /// The store was left by a kill, so a start reads the log.
    Killed,
}

impl Left {
    fn path(self) -> PathBuf {
        let name = format!("format-1-{self:?}.blocks").to_lowercase();
        [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", &name].iter().collect()
    }
}

fn machine(device: SimDevice) -> Machine {
    let device = Arc::new(device);
    let options = Options {
        memory: 8 << 20,
        max_item_size: 1 << 20,
        when_full: WhenFull::Refuse,
        hash_seed: 7,
        lanes: 1,
        store: Some(store(Arc::<SimDevice>::clone(&device), Durability::Sync)),
    };
    Machine::open(device, options)
}

impl Machine {
    fn done<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> T {
        for _ in 0..100 {
            match call(&self.session) {
                Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => return answer,
                Outcome::Refused(refusal) => panic!("{refusal:?}"),
                Outcome::NeedsRead | Outcome::NeedsSpace => {
                    self.engine.serve_reads();
                    self.engine.clean(&mut self.cleaner);
                    self.engine.commit();
                    self.session.tick(NOW);
                }
            }
        }
        panic!("a call waits for ever");
    }

    fn set(&mut self, key: &str, value: &[u8], flags: u32, expiry: Expiry) {
        let _ = self.done(|session| {
            session.store(&session.key(key.as_bytes()), Store::set(value, flags, expiry))
        });
    }

    fn get(&mut self, key: &str) -> Option<(Vec<u8>, u32, Option<u32>)> {
        self.done(|session| {
            session.get(&session.key(key.as_bytes())).map(|found| {
                found.map(|item| (item.value().to_vec(), item.flags(), item.expiry().seconds()))
            })
        })
    }

    fn commit(&mut self) {
        assert!(self.engine.commit());
    }
}

/// Writes the items that [`look`] expects.
fn fill(machine: &mut Machine) {
    for number in 0..200 {
        machine.set(&format!("item{number}"), &[b'v'; 300], 0, Expiry::NEVER);
    }
    machine.commit();
    machine.set("flags", b"with flags", 0xDEAD_BEEF, Expiry::NEVER);
    machine.set("expires", b"later", 1, Expiry::at(LATE));
    machine.set("large", &[b'l'; LARGE], 2, Expiry::NEVER);
    machine.set("empty", b"", 0, Expiry::NEVER);
    machine.set("expired", b"gone by now", 0, Expiry::at(NOW + 1));
    let create = Create { initial: 41, expiry: Expiry::NEVER };
    let arith = Arith { create: Some(create), ..Arith::add(1) };
    for _ in 0..2 {
        let _ = machine.done(|session| session.arith(&session.key(b"counter"), &arith));
    }
    machine.commit();
    for number in (0..200).step_by(2) {
        machine.set(&format!("item{number}"), b"overwritten", 3, Expiry::NEVER);
    }
    for number in (0..200).step_by(5) {
        let key = format!("item{number}");
        let delete = Delete::default();
        let _ = machine.done(|session| session.delete(&session.key(key.as_bytes()), &delete));
    }
    machine.commit();
    machine.engine.clean(&mut ManualCleaner::default());
    machine.commit();
}

fn look(machine: &mut Machine) {
    for number in 0..200 {
        let found = machine.get(&format!("item{number}"));
        let expected = match number {
            _ if number % 5 == 0 => None,
            _ if number % 2 == 0 => Some((b"overwritten".to_vec(), 3, None)),
            _ => Some((vec![b'v'; 300], 0, None)),
        };
        assert_eq!(found, expected, "item{number}");
    }
    assert_eq!(machine.get("flags"), Some((b"with flags".to_vec(), 0xDEAD_BEEF, None)));
    assert_eq!(machine.get("expires"), Some((b"later".to_vec(), 1, Some(LATE))));
    assert_eq!(machine.get("large"), Some((vec![b'l'; LARGE], 2, None)));
    assert_eq!(machine.get("empty"), Some((Vec::new(), 0, None)));
    machine.session.tick(NOW + 2);
    assert_eq!(machine.get("expired"), None);
    assert_eq!(machine.get("counter").map(|(value, ..)| value), Some(b"42".to_vec()));
}

#[expect(clippy::disallowed_methods, reason = "the fixture is a file")]
fn read(left: Left) -> SimDevice {
    let fixture = fs::read(left.path()).expect("the fixture is there");
    let mut bytes = vec![0; SIZE as usize];
    for block in fixture.chunks_exact(8 + BLOCK) {
        let (at, block) = block.split_first_chunk::<8>().expect("it has an offset");
        let at = u64::from_le_bytes(*at) as usize;
        bytes[at..at + BLOCK].copy_from_slice(block);
    }
    SimDevice::from_bytes(&bytes, 1)
}

fn open_and_look(left: Left) {
    let mut machine = machine(read(left));
    let recovered = machine.engine.recovered().expect("there is a store").clone();
    assert_eq!(recovered.clean, left == Left::Clean, "{recovered:?}");
    look(&mut machine);
    // The store must accept writes, and a restart must find them.
    machine.set("new", b"of this version", 0, Expiry::NEVER);
    machine.commit();
    let device = machine.device.image();
    drop(machine);
    let mut machine = self::machine(device);
    look(&mut machine);
    assert_eq!(machine.get("new").map(|(value, ..)| value), Some(b"of this version".to_vec()));
}

#[test]
fn a_store_that_was_stopped_is_opened() {
    open_and_look(Left::Clean);
}

#[test]
fn a_store_that_was_killed_is_opened() {
    open_and_look(Left::Killed);
}

#[test]
#[ignore = "writes the fixtures"]
#[expect(clippy::disallowed_methods, reason = "the fixture is a file")]
fn write_fixtures() -> io::Result<()> {
    for left in [Left::Clean, Left::Killed] {
        let mut machine = machine(SimDevice::new(SIZE, 1));
        fill(&mut machine);
        if left == Left::Clean {
            machine.session.sleep();
            machine.engine.close()?;
        }
        let device = machine.device.image();
        let mut fixture = Vec::new();
        for at in (0..device.size()).step_by(BLOCK) {
            let mut block = [0; BLOCK];
            device.peek(at, &mut block);
            if block != [0; BLOCK] {
                fixture.extend_from_slice(&at.to_le_bytes());
                fixture.extend_from_slice(&block);
            }
        }
        fs::create_dir_all(left.path().parent().expect("it is in a directory"))?;
        fs::write(left.path(), fixture)?;
    }
    Ok(())
}
