//! Records that are not in memory: read from the store by threads of their own, kept by the session
//! that asked until it has asked again.

use crate::engine::{Engine, lock};
use larder_log::{Address, Record};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;

/// Threads that read. Each waits for one read at a time.
const READERS: usize = 8;
/// Fetched records that a session keeps: more than one batch of commands can ask for.
const KEPT: usize = 256;
/// Bytes of fetched records that a session keeps, beside the last one.
const KEPT_BYTES: usize = 1 << 20;

/// A fetched record's bytes, 8-byte aligned; `None` if it could not be read.
type Bytes = Option<Box<[u64]>>;

/// Where readers put what a session asked for.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    arrived: Mutex<Vec<(Address, u32, Bytes)>>,
    any: AtomicBool,
}

/// A session's fetched records.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    inbox: Arc<Inbox>,
    records: HashMap<u64, (u32, Bytes)>,
    order: VecDeque<u64>,
    /// What could not be read and is said so in this turn: the next one that asks has it read again.
    unreadable: Vec<u64>,
    bytes: usize,
    /// What was asked for and has not arrived.
    pending: RefCell<HashSet<u64>>,
}

impl Fetched {
    /// Takes what has arrived. Records of earlier turns may be forgotten.
    pub(crate) fn turn(&mut self) {
        for bits in self.unreadable.drain(..) {
            self.records.remove(&bits);
        }
        if !self.inbox.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (address, generation, bytes) in std::mem::take(&mut *lock(&self.inbox.arrived)) {
            self.pending.get_mut().remove(&address.bits());
            if bytes.is_none() {
                self.unreadable.push(address.bits());
            }
            self.bytes += len(&bytes);
            self.order.push_back(address.bits());
            if let Some((_, old)) = self.records.insert(address.bits(), (generation, bytes)) {
                self.bytes -= len(&old);
            }
        }
        while self.order.len() > 1 && (self.order.len() > KEPT || self.bytes > KEPT_BYTES) {
            let oldest = self.order.pop_front().and_then(|bits| self.records.remove(&bits));
            self.bytes -= oldest.map_or(0, |(_, bytes)| len(&bytes));
        }
    }

    /// The record at `address` in that use of its segment, if it was fetched.
    pub(crate) fn get(&self, address: Address, generation: u32) -> Option<Record<'_>> {
        let (fetched, bytes) = self.records.get(&address.bits())?;
        let bytes = bytes.as_deref().filter(|_| *fetched == generation)?;
        // SAFETY: the reader checked that the bytes are one whole record, and they stay until the
        // session, which is borrowed, takes its next turn.
        Some(unsafe { Record::at(bytes.as_ptr().cast(), || 0) })
    }

    /// Whether the record has arrived, readable or not.
    pub(crate) fn has(&self, address: Address, generation: u32) -> bool {
        let found = self.records.get(&address.bits());
        found.is_some_and(|(fetched, _)| *fetched == generation)
    }

    /// Whether the record was asked for and could not be read.
    pub(crate) fn is_unreadable(&self, address: Address, generation: u32) -> bool {
        let found = self.records.get(&address.bits());
        found.is_some_and(|(fetched, bytes)| *fetched == generation && bytes.is_none())
    }
}

fn len(bytes: &Bytes) -> usize {
    bytes.as_ref().map_or(0, |bytes| bytes.len() * size_of::<u64>())
}

/// Reads that wait for a reader.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    queue: Mutex<VecDeque<Fetch>>,
    ready: Condvar,
    ended: AtomicBool,
}

#[derive(Debug)]
struct Fetch {
    address: Address,
    inbox: Arc<Inbox>,
    waker: Waker,
}

impl Fetches {
    /// The readers end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        drop(lock(&self.queue));
        self.ready.notify_all();
    }
}

/// Starts the readers. They hold no handle of the engine while they wait.
pub(crate) fn spawn(engine: &Arc<Engine>) -> io::Result<()> {
    for number in 0..READERS {
        let (weak, fetches) = (Arc::downgrade(engine), Arc::clone(&engine.fetches));
        let builder = thread::Builder::new().name(format!("reader-{number}"));
        builder.spawn(move || run(&weak, &fetches))?;
    }
    Ok(())
}

fn run(weak: &Weak<Engine>, fetches: &Fetches) {
    loop {
        let fetch = {
            let mut queue = lock(&fetches.queue);
            loop {
                if fetches.ended.load(Ordering::Acquire) {
                    return;
                }
                match queue.pop_front() {
                    Some(fetch) => break fetch,
                    None => {
                        queue = fetches.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        };
        let Some(engine) = weak.upgrade() else { return };
        engine.serve(fetch);
    }
}

impl Engine {
    /// Has a record read; `waker` is woken when it is in the session's inbox.
    pub(crate) fn fetch(&self, address: Address, fetched: &Fetched, waker: &Waker) {
        if !fetched.pending.borrow_mut().insert(address.bits()) {
            // It may have arrived after this turn took what had, and its wake-up may have been the
            // one that led to this call: then no other would come.
            if fetched.inbox.any.load(Ordering::Acquire) {
                waker.wake_by_ref();
            }
            return;
        }
        let inbox = Arc::clone(&fetched.inbox);
        let waker = waker.clone();
        lock(&self.fetches.queue).push_back(Fetch { address, inbox, waker });
        self.fetches.ready.notify_one();
    }

    /// Reads what sessions wait for, for engines without threads of their own; the answer is whether
    /// anybody waited.
    pub fn serve_reads(&self) -> bool {
        let mut any = false;
        loop {
            let Some(fetch) = lock(&self.fetches.queue).pop_front() else { return any };
            any = true;
            self.serve(fetch);
        }
    }

    fn serve(&self, fetch: Fetch) {
        let Fetch { address, inbox, waker } = fetch;
        let generation = self.log.segment(address.segment()).generation();
        let bytes = self.log.read_record(address).ok();
        lock(&inbox.arrived).push((address, generation, bytes));
        inbox.any.store(true, Ordering::Release);
        waker.wake();
    }
}
