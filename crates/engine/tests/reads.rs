//! Reads of many records through a queue: they keep to what a session may have on its way.

#[path = "common/store.rs"]
mod common;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use common::store;
use larder_disk::{Device, ReadBuffer, ReadQueue, SimDevice};
use larder_engine::{Durability, Engine, Expiry, ManualCleaner, Options, Outcome, Store};

const NOW: u32 = 1;
/// What a session may have on its way.
const MOST: usize = 4 << 20;

/// A device with a queue that remembers how much was on its way at once.
#[derive(Debug)]
struct Queued {
    device: Arc<SimDevice>,
    most: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Reads {
    device: Arc<SimDevice>,
    noted: Vec<(u64, u64, usize)>,
    most: Arc<AtomicUsize>,
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
        let (device, most) = (Arc::clone(&self.device), Arc::clone(&self.most));
        Ok(Box::new(Reads { device, noted: Vec::new(), most }))
    }
}

impl ReadQueue for Reads {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        self.noted.push((token, offset, len));
        let bytes = self.noted.iter().map(|(_, _, len)| len).sum();
        self.most.fetch_max(bytes, Relaxed);
        Ok(())
    }

    fn submit(&mut self) {}

    fn has_ended(&mut self) -> bool {
        !self.noted.is_empty()
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        for (token, offset, len) in self.noted.drain(..) {
            let mut buffer = ReadBuffer::new(offset, len, 512);
            let read = self.device.read_at(offset, buffer.bytes_mut());
            each(token, read.map(|()| buffer));
        }
    }
}

/// Of a segment of which nothing was read yet, too little of a large record is.
#[test]
fn records_that_are_larger_than_was_guessed_wait_for_room() {
    let most = Arc::new(AtomicUsize::new(0));
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let queued = Arc::new(Queued { device, most: Arc::clone(&most) });
    let store = store(queued, Durability::Async);
    let options = Options { memory: 8 << 20, store: Some(store), ..Options::default() };
    let engine = Engine::open_without_threads(options).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.read_through(io::stderr().as_fd()).unwrap();
    session.tick(NOW);
    let value = vec![b'v'; engine.large_value_threshold() * 3 / 4];
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
    let is_there = |session: &larder_engine::Session, name: &str| match session
        .get(&session.key(name.as_bytes()))
    {
        Outcome::Ready(found) => {
            assert!(found.is_some_and(|item| item.value() == value), "{name}");
            true
        }
        Outcome::NeedsRead => false,
        _ => panic!("a get waits for reads alone"),
    };
    // All are asked for at once.
    let absent = keys.iter().filter(|name| !is_there(&session, name)).count();
    assert!(absent * value.len() > 2 * MOST, "{absent} of {} bytes", value.len());
    let mut waits = 0;
    for name in &keys {
        while !is_there(&session, name) {
            waits += 1;
            assert!(waits < 10_000, "{name} waits for ever");
            session.tick(NOW);
        }
    }
    let most = most.load(Relaxed);
    assert!(most <= MOST, "{most} bytes on their way");
}
