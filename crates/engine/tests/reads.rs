//! Reads of many records through a queue. They respect the session's limit of reads in flight, and
//! a thread without work polls for reads that finish quickly.

#[path = "common/store.rs"]
mod common;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use common::store;
use larder_disk::{Device, ReadBuffer, ReadQueue, SimDevice};
use larder_engine::{Durability, Engine, Expiry, ManualCleaner, Options, Outcome, Session, Store};

const NOW: u32 = 1;
const BLOCK: u64 = 4096;
const MEMORY: usize = 8 << 20;
/// Limit, in bytes, of the memory for all sessions' reads: those in flight, and those whose records
/// a session keeps.
const MOST: usize = MEMORY / 8;
/// Unit, in bytes, in which the memory of reads is charged.
const STEP: usize = 128 << 10;

/// A device with a read queue that notes the largest number of bytes in flight.
#[derive(Clone, Debug)]
struct Queued {
    device: Arc<SimDevice>,
    /// The largest number of bytes in flight.
    most: Arc<AtomicUsize>,
    /// Number of further reads that the test lets complete.
    may_end: Arc<AtomicUsize>,
    /// Number of failed reads.
    failed: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Reads {
    noted: Vec<(u64, u64, usize)>,
    queued: Queued,
}

impl Queued {
    fn new() -> Queued {
        let device = Arc::new(SimDevice::new(64 << 20, 1));
        let may_end = Arc::new(AtomicUsize::new(usize::MAX));
        Queued { device, most: Arc::default(), may_end, failed: Arc::default() }
    }
}

impl Device for Queued {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn read_queue(&self, _event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        Ok(Box::new(Reads { noted: Vec::new(), queued: self.clone() }))
    }
}

impl ReadQueue for Reads {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        self.noted.push((token, offset, len));
        let bytes = self.noted.iter().map(|(_, _, len)| len).sum();
        self.queued.most.fetch_max(bytes, Relaxed);
        Ok(())
    }

    fn submit(&mut self) {}

    fn has_ended(&mut self) -> bool {
        !self.noted.is_empty() && self.queued.may_end.load(Relaxed) > 0
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        let Queued { device, may_end, failed, .. } = &self.queued;
        let ended = self.noted.len().min(may_end.load(Relaxed));
        may_end.fetch_sub(ended, Relaxed);
        for (token, offset, len) in self.noted.drain(..ended) {
            let mut buffer = ReadBuffer::new(offset, len, 512);
            // A read that bypasses the page cache reads whole blocks. It fails if any part of them
            // is unreadable.
            let (from, end) =
                (offset / BLOCK * BLOCK, (offset + len as u64).next_multiple_of(BLOCK));
            let read = device
                .read_at(from, &mut vec![0; (end - from) as usize])
                .and_then(|()| device.read_at(offset, buffer.bytes_mut()));
            failed.fetch_add(usize::from(read.is_err()), Relaxed);
            each(token, read.map(|()| buffer));
        }
    }
}

/// Opens an engine with little memory, and a session that reads through the queue. Stores 24 MiB of
/// values of `size` bytes. Without `size`, values have three quarters of the length at which they
/// count as large. Returns the engine, the session, the keys and the value.
fn filled(queued: &Queued, size: Option<usize>) -> (Arc<Engine>, Session, Vec<String>, Vec<u8>) {
    let store = store(Arc::new(queued.clone()), Durability::Async);
    let options = Options { memory: MEMORY as u64, store: Some(store), ..Options::default() };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.read_through(io::stderr().as_fd()).unwrap();
    session.tick(NOW);
    let value = vec![b'v'; size.unwrap_or(engine.large_value_threshold() * 3 / 4)];
    let keys: Vec<_> = (0..(24 << 20) / value.len()).map(|n| format!("key{n}")).collect();
    let mut cleaner = ManualCleaner::default();
    for name in &keys {
        while !matches!(
            session.store(&session.key(name.as_bytes()), Store::set(&value, 0, Expiry::NEVER)),
            Outcome::Ready(_)
        ) {
            engine.clean(&mut cleaner);
            engine.commit();
            session.tick(NOW);
        }
    }
    (engine, session, keys, value)
}

/// Returns true if the key's value is available. Otherwise requests a read of the record.
fn is_there(session: &Session, name: &str, value: &[u8]) -> bool {
    match session.get(&session.key(name.as_bytes())) {
        Outcome::Ready(found) => {
            assert!(found.is_some_and(|item| item.value() == value), "{name}");
            true
        }
        Outcome::NeedsRead => false,
        _ => panic!("a get waits for reads alone"),
    }
}

/// Returns how often a thread without work polls before it blocks.
fn looks(session: &mut Session) -> usize {
    (0..10_000).take_while(|_| session.polls()).count()
}

/// If a device answers quickly, the thread must keep polling. If the device is slow, polling must
/// take only a bounded share of a processor's time.
#[test]
fn a_thread_polls_for_reads_as_long_as_they_complete_quickly() {
    let queued = Queued::new();
    let (_engine, mut session, keys, value) = filled(&queued, Some(1000));
    let end = |session: &mut Session, reads: usize| {
        queued.may_end.store(reads, Relaxed);
        session.tick(NOW);
        assert_eq!(queued.may_end.load(Relaxed), 0);
    };
    queued.may_end.store(0, Relaxed);
    let absent = keys.iter().filter(|name| !is_there(&session, name, &value)).take(40).count();
    assert_eq!(absent, 40);
    session.tick(NOW);
    assert_eq!(looks(&mut session), 0, "no read has completed: its duration is unknown");
    end(&mut session, 2);
    let for_two = looks(&mut session);
    assert!((20..1000).contains(&for_two), "{for_two} looks after two reads");
    assert_eq!(looks(&mut session), 0, "it takes long: the thread blocks");
    end(&mut session, 1);
    assert_eq!(looks(&mut session), for_two / 2, "it has come all the same");
    // Each completed read allows the thread further polls. Polls that it did not use must remain
    // available.
    end(&mut session, 4);
    end(&mut session, 4);
    assert_eq!(looks(&mut session), for_two * 4);
    end(&mut session, 20);
    assert_eq!(looks(&mut session), 0, "few are left, and the next may take as long as any");
}

/// Until it has read a record of a segment, the engine guesses how many bytes to read. If a record
/// is larger, the engine reads it a second time. These second reads must respect the memory limit,
/// too.
#[test]
fn records_that_are_larger_than_was_guessed_wait_for_room() {
    let queued = Queued::new();
    let (engine, mut session, keys, value) = filled(&queued, None);
    let before = engine.memory_used() as usize;
    // Requests all records at once.
    let absent = keys.iter().filter(|name| !is_there(&session, name, &value)).count();
    assert!(absent * value.len() > 2 * MOST, "{absent} of {} bytes", value.len());
    let mut waits = 0;
    let mut charged = 0;
    for name in &keys {
        while !is_there(&session, name, &value) {
            waits += 1;
            assert!(waits < 10_000, "{name} waits for ever");
            session.tick(NOW);
            charged = charged.max(engine.memory_used() as usize - before);
        }
    }
    let most = queued.most.load(Relaxed);
    assert!(most <= MOST, "{most} bytes on their way");
    assert!((most..=MOST + STEP).contains(&charged), "{charged} bytes charged for {most}");
    let held = engine.memory_used();
    drop(session);
    assert!(engine.memory_used() < held, "records of an ended session are still charged");
}

#[test]
fn sessions_share_the_memory_limit_of_reads() {
    let queued = Queued::new();
    let (engine, mut session, keys, value) = filled(&queued, None);
    let _others = [(); 3].map(|()| engine.session(Waker::noop().clone()));
    for name in &keys {
        is_there(&session, name, &value);
    }
    session.tick(NOW);
    let most = queued.most.load(Relaxed);
    assert!((MOST / 8..=MOST / 4).contains(&most), "{most} bytes on their way");
}

/// An unreadable sector may be next to a record. The record must then be read alone, so that only
/// the records in that sector are lost.
#[test]
fn an_unreadable_block_costs_only_the_records_that_overlap_it() {
    let queued = Queued::new();
    let (engine, mut session, keys, value) = filled(&queued, Some(1000));
    for at in [6, 9, 12, 15] {
        queued.device.spoil(at << 20..(at << 20) + 100);
    }
    for _ in 0..2 {
        queued.failed.store(0, Relaxed);
        let mut unreadable = 0;
        for name in &keys {
            loop {
                match session.get(&session.key(name.as_bytes())) {
                    Outcome::Ready(found) => {
                        assert!(found.as_ref().is_none_or(|item| item.value() == value), "{name}");
                        unreadable += usize::from(found.is_none());
                        break;
                    }
                    _ => {
                        engine.serve_reads();
                        session.tick(NOW);
                    }
                }
            }
        }
        let failed = queued.failed.load(Relaxed);
        assert!((1..=8).contains(&unreadable) && failed > unreadable, "{unreadable}, {failed}");
    }
}
