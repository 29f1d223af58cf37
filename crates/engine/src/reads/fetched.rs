//! Records that are not in memory: read for the session that asked, through its own queue or by the
//! [readers](crate::readers), and kept until those who asked have asked again.
//!
//! A record never changes, so what was read for one call serves all of the session's that want it.

use crate::lock::lock;
use crate::reads::requests::{Charge, Inbox, Read, ReadShare, Readers, Request};
use crate::record_map::RecordMap;
use larder_disk::{Looks, ReadBuffer, ReadQueue};
use larder_log::{Address, Budget, Log, Record, prefetch};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Records that a session keeps although nobody waits for them.
const IDLE: usize = 256;
/// Bytes of them, beside the last one.
const IDLE_BYTES: usize = 1 << 20;
/// Bytes that one read of many records takes: few reads per segment, and no long one before others.
const RUN: usize = 128 << 10;
/// What of a record that was read is brought into the cache at once, bytes.
const PREFETCHED: usize = 2 << 10;

/// A record: where it lies, in which use of its segment.
type Place = (Address, u32);

/// Most calls wait for one record.
type Places = SmallVec<[Place; 1]>;

/// What somebody waits for. To be given back.
#[derive(Debug)]
#[must_use = "what is not given back is kept for ever"]
pub(crate) struct LaneReads {
    places: Places,
    /// All before this one have arrived.
    next: usize,
}

/// A record that was read.
#[derive(Debug)]
struct Arrived {
    /// `None` if it could not be read.
    bytes: Option<ReadBuffer>,
    /// How often it is wanted.
    users: Cell<u32>,
}

impl Arrived {
    fn footprint(&self) -> usize {
        self.bytes.as_ref().map_or(0, ReadBuffer::footprint)
    }
}

/// A record that was asked for.
#[derive(Debug, Default)]
struct Expected {
    /// How often it is wanted.
    users: u32,
    /// What its read takes, bytes; 0 before that has begun.
    bytes: usize,
    /// What it is to take: of a run, or of a record that was found to be larger than what was read.
    size: Option<usize>,
}

/// A session's fetched records.
#[derive(Debug)]
pub(crate) struct Fetched {
    readers: Arc<Readers>,
    waker: Waker,
    inbox: Arc<Inbox>,
    queue: Option<RefCell<Box<dyn ReadQueue>>>,
    arrived: RecordMap<Place, Arrived>,
    /// Of these, those that nobody wants, the oldest first; some may be wanted again.
    idle: RefCell<VecDeque<Place>>,
    /// What could not be read: when nobody wants it any more, the next one that asks has it read again.
    unreadable: Vec<Place>,
    /// What was asked for and has not arrived.
    expected: RefCell<RecordMap<Place, Expected>>,
    /// Of these, those whose read has not begun.
    waiting: RefCell<VecDeque<Place>>,
    /// Those that the queue reads, by the numbers that it knows them by.
    queued: RefCell<RecordMap<u64, Place>>,
    next_number: Cell<u64>,
    /// LaneReads on their way.
    started: Cell<usize>,
    /// What is kept and on its way, bytes.
    bytes: Cell<usize>,
    /// Where they are charged.
    share: ReadShare,
    /// How often the thread may look for the next end of a read before it blocks.
    looks: Looks,
    /// What calls asked for since the last [`Fetched::take`].
    wanted: RefCell<Places>,
    /// Empty: memory of [`Fetched::collect`].
    ended: Vec<(Place, io::Result<ReadBuffer>)>,
}

impl Fetched {
    pub(crate) fn new(readers: Arc<Readers>, budget: &Arc<Budget>, waker: Waker) -> Fetched {
        Fetched {
            share: ReadShare::new(&readers, budget),
            readers,
            waker,
            inbox: Arc::default(),
            queue: None,
            arrived: RecordMap::default(),
            idle: RefCell::default(),
            unreadable: Vec::new(),
            expected: RefCell::default(),
            waiting: RefCell::default(),
            queued: RefCell::default(),
            next_number: Cell::new(0),
            started: Cell::new(0),
            bytes: Cell::new(0),
            looks: Looks::default(),
            wanted: RefCell::default(),
            ended: Vec::new(),
        }
    }

    /// From now on it reads by itself.
    pub(crate) fn read_through(&mut self, queue: Box<dyn ReadQueue>) {
        self.queue = Some(RefCell::new(queue));
    }

    /// Takes what has arrived. Records that nobody waits for may be forgotten.
    pub(crate) fn turn(&mut self, log: &Log) {
        // Before the calls since the last turn are forgotten: one that found this unreadable and must wait for
        // something else finds it so again.
        self.unreadable.retain(|place| {
            let wanted = self.arrived.get(place).is_some_and(|record| record.users.get() > 0);
            if !wanted {
                self.arrived.remove(place);
            }
            wanted
        });
        if let Some(nobodys) = self.take() {
            self.release(nobodys);
        }
        if self.started.get() > 0 {
            self.collect(log);
        }
        if self.inbox.any.swap(false, Ordering::Acquire) {
            let arrived = std::mem::take(&mut *lock(&self.inbox.arrived));
            arrived.into_iter().for_each(|(place, read)| self.arrive(place, read));
        }
        self.forget_idle();
        self.start(log);
    }

    /// Takes what the queue has read.
    fn collect(&mut self, log: &Log) {
        let Some(queue) = &mut self.queue else { return };
        let queued = self.queued.get_mut();
        let mut ended = std::mem::take(&mut self.ended);
        queue.get_mut().ended(&mut |number, read| {
            let Some(place) = queued.remove(&number) else { return };
            if let Ok(bytes) = &read {
                // The device has written it around the caches; all are looked at when they are on their way.
                prefetch::all(&bytes[..bytes.len().min(PREFETCHED)]);
            }
            ended.push((place, read));
        });
        self.looks.ended(ended.len());
        // The last one first, so that the first of those that wait again is in front.
        for (place, read) in ended.drain(..).rev() {
            let checked = read.and_then(|bytes| Ok((log.check_record(place.0, &bytes)?, bytes)));
            match checked {
                Ok((Some(size), _)) => self.wait_again(place, size),
                Ok((None, bytes)) => self.arrive(place, Read::Record(bytes)),
                // What cannot be read may lie beside the record: a reader looks closer.
                Err(_) => self.ask_readers(place, None, None),
            }
        }
        self.ended = ended;
    }

    /// A record is larger than what was read of it: it is read again when there is room for it, before
    /// those that came later.
    fn wait_again(&mut self, place: Place, size: usize) {
        self.started.set(self.started.get() - 1);
        let Some(expected) = self.expected.get_mut().get_mut(&place) else { return };
        self.bytes.set(self.bytes.get() - std::mem::take(&mut expected.bytes));
        expected.size = Some(size);
        self.waiting.get_mut().push_front(place);
    }

    fn arrive(&mut self, place: Place, read: Read) {
        self.started.set(self.started.get() - 1);
        let Expected { users, bytes, .. } =
            self.expected.get_mut().remove(&place).unwrap_or_default();
        self.bytes.set(self.bytes.get() - bytes);
        let bytes = match read {
            Read::Record(bytes) => Some(bytes),
            Read::Failed => None,
            Read::InMemory => return,
        };
        if bytes.is_none() {
            self.unreadable.push(place);
        } else if users == 0 {
            self.idle.get_mut().push_back(place);
        }
        let record = Arrived { bytes, users: Cell::new(users) };
        self.bytes.set(self.bytes.get() + record.footprint());
        self.arrived.insert(place, record);
    }

    /// Forgets the oldest of what nobody waits for.
    fn forget_idle(&mut self) {
        let idle = self.idle.get_mut();
        while idle.len() > IDLE
            || idle.len() > 1 && self.bytes.get() > IDLE_BYTES.min(self.share.most() / 4)
        {
            let Some(place) = idle.pop_front() else { return };
            if self.arrived.get(&place).is_some_and(|record| record.users.get() == 0)
                && let Some(record) = self.arrived.remove(&place)
            {
                self.bytes.set(self.bytes.get() - record.footprint());
            }
        }
    }

    /// Begins the reads that wait, as far as there is room, and hands them to the device.
    pub(crate) fn start(&self, log: &Log) {
        let mut waiting = self.waiting.borrow_mut();
        let most = if waiting.is_empty() { 0 } else { self.share.most() };
        while let Some(&place) = waiting.front() {
            let size = self.expected.borrow().get(&place).and_then(|expected| expected.size);
            let (offset, len) = log.record_range(place.0, size);
            if self.started.get() > 0 && self.bytes.get() + len > most {
                break;
            }
            waiting.pop_front();
            if let Some(expected) = self.expected.borrow_mut().get_mut(&place) {
                expected.bytes = len;
                self.bytes.set(self.bytes.get() + len);
            }
            let jumbo = log.segment(place.0.segment()).is_jumbo();
            if jumbo || !self.push(place, offset, len) {
                self.ask_readers(place, size, None);
            }
            self.started.set(self.started.get() + 1);
        }
        if let Some(queue) = &self.queue
            && self.started.get() > 0
        {
            queue.borrow_mut().submit();
        }
        self.share.set(self.bytes.get());
    }

    /// Hands a read to the queue; false if there is none, or it does not take it.
    fn push(&self, place: Place, offset: u64, len: usize) -> bool {
        let Some(queue) = &self.queue else { return false };
        let number = self.next_number.replace(self.next_number.get() + 1);
        let taken = queue.borrow_mut().push(number, offset, len).is_ok();
        if taken {
            self.queued.borrow_mut().insert(number, place);
        }
        taken
    }

    fn ask_readers(&self, place: Place, size: Option<usize>, charge: Option<Charge>) {
        let (inbox, waker) = (Arc::clone(&self.inbox), self.waker.clone());
        self.readers.ask(Request { place, size, charge, inbox, waker });
    }

    /// Has a large value read into memory, for which `charge` gives the room, unless that is on its way
    /// already. False if there is no room.
    pub(crate) fn want_large(
        &self,
        address: Address,
        generation: u32,
        charge: impl FnOnce() -> Option<Charge>,
    ) -> bool {
        let place = (address, generation);
        if !self.expected.borrow().contains_key(&place) {
            let Some(charge) = charge() else { return false };
            self.expected.borrow_mut().insert(place, Expected::default());
            self.started.set(self.started.get() + 1);
            self.ask_readers(place, None, Some(charge));
        }
        if let Some(expected) = self.expected.borrow_mut().get_mut(&place) {
            expected.users += 1;
        }
        self.wanted.borrow_mut().push(place);
        self.wake_for_more();
        true
    }

    /// What somebody goes on waiting for may have arrived after this turn took what had, and its wake-up
    /// may have been the one that led to this call: then no other would come.
    fn wake_for_more(&self) {
        let queued = self.queue.as_ref().is_some_and(|queue| queue.borrow_mut().has_ended());
        if queued || self.inbox.any.load(Ordering::Acquire) {
            self.waker.wake_by_ref();
        }
    }

    /// Has a record read, unless it was: the waker is woken, or the queue's event is readable, when
    /// it has arrived. A read through the queue begins at the end of the turn. The answer is whether
    /// it has to be read.
    pub(crate) fn want(&self, log: &Log, address: Address, generation: u32) -> bool {
        self.want_bytes(log, address, generation, None)
    }

    /// As [`Fetched::want`], with the records behind it: see [`Fetched::run`].
    pub(crate) fn want_run(&self, log: &Log, address: Address, generation: u32) -> bool {
        self.want_bytes(log, address, generation, Some(RUN))
    }

    fn want_bytes(
        &self,
        log: &Log,
        address: Address,
        generation: u32,
        size: Option<usize>,
    ) -> bool {
        let place = (address, generation);
        self.wanted.borrow_mut().push(place);
        if let Some(record) = self.arrived.get(&place) {
            record.users.set(record.users.get() + 1);
            return false;
        }
        if let Some(expected) = self.expected.borrow_mut().get_mut(&place) {
            expected.users += 1;
            self.wake_for_more();
            return false;
        }
        self.expected.borrow_mut().insert(place, Expected { users: 1, bytes: 0, size });
        self.waiting.borrow_mut().push_back(place);
        if self.queue.is_none() {
            self.start(log);
        }
        true
    }

    /// What calls asked for since the last time.
    #[inline]
    pub(crate) fn take(&self) -> Option<LaneReads> {
        let mut wanted = self.wanted.borrow_mut();
        (!wanted.is_empty()).then(|| LaneReads { places: std::mem::take(&mut *wanted), next: 0 })
    }

    /// Nobody waits for these any more.
    pub(crate) fn release(&self, reads: LaneReads) {
        for place in reads.places {
            // A large value that came into memory and went again may be expected anew.
            if let Some(expected) = self.expected.borrow_mut().get_mut(&place) {
                expected.users = expected.users.saturating_sub(1);
            } else if let Some(record) = self.arrived.get(&place) {
                record.users.set(record.users.get().saturating_sub(1));
                if record.users.get() == 0 && record.bytes.is_some() {
                    self.idle.borrow_mut().push_back(place);
                }
            }
        }
    }

    /// Whether some of them are still to come.
    pub(crate) fn awaits(&self, reads: &mut LaneReads) -> bool {
        let expected = self.expected.borrow();
        while let Some(place) = reads.places.get(reads.next) {
            if expected.contains_key(place) {
                self.wake_for_more();
                return true;
            }
            reads.next += 1;
        }
        false
    }

    /// Whether a thread without work should [look](Looks) for reads that end instead of blocking.
    #[inline]
    pub(crate) fn polls(&mut self) -> bool {
        self.queue.is_some() && self.looks.again(self.started.get())
    }

    /// Whether the record was asked for and has not arrived.
    pub(crate) fn expects(&self, address: Address, generation: u32) -> bool {
        self.expected.borrow().contains_key(&(address, generation))
    }

    /// The record at `address` in that use of its segment, if it was fetched.
    pub(crate) fn get(&self, address: Address, generation: u32) -> Option<Record<'_>> {
        let bytes = self.arrived.get(&(address, generation))?.bytes.as_ref()?;
        // SAFETY: the bytes were checked to begin with one whole record, and they stay until the
        // session, which is borrowed, takes its next turn.
        Some(unsafe { Record::at(bytes.as_ptr(), || 0) })
    }

    /// What was read for the record at `address`: it, and perhaps what lies behind, which nobody has checked.
    pub(crate) fn run(&self, address: Address, generation: u32) -> Option<&[u8]> {
        self.arrived.get(&(address, generation))?.bytes.as_deref()
    }

    /// The head of a large value of `len` bytes that was fetched by [`Log::jumbo_head`]: the value must
    /// not be looked at.
    pub(crate) fn get_head(
        &self,
        head: Address,
        generation: u32,
        len: usize,
    ) -> Option<Record<'_>> {
        let bytes = self.arrived.get(&(head, generation))?.bytes.as_ref()?;
        let record = bytes.get(head.offset()..)?;
        // SAFETY: as in `get`, but for the value.
        Some(unsafe { Record::at(record.as_ptr(), || len) })
    }

    /// Whether the record was asked for and could not be read.
    pub(crate) fn is_unreadable(&self, address: Address, generation: u32) -> bool {
        let found = self.arrived.get(&(address, generation));
        found.is_some_and(|record| record.bytes.is_none())
    }
}
