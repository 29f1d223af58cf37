//! The records that a session has read from a device, through its own queue or by the [reader
//! threads](crate::reads). A record is kept until the calls that needed it were repeated.
//!
//! A record on a device never changes, so one read serves all calls of the session that need it.

use crate::lock::lock;
use crate::reads::requests::{Charge, Inbox, Read, ReadShare, Readers, Request};
use crate::record_map::RecordMap;
use larder_disk::{PollBudget, ReadBuffer, ReadQueue};
use larder_log::{Budget, DurableLog, Record, RecordId, prefetch};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The largest number of fetched records that a session keeps although no call needs them.
const IDLE: usize = 256;
/// While fetched records and reads in flight take more bytes than this, or than a quarter of
/// [`ReadShare::most`], records that no call needs are dropped. One such record is always kept.
const IDLE_BYTES: usize = 1 << 20;
/// Size of a read that covers many records, in bytes. It is large enough that a segment takes few
/// reads, and small enough not to delay other reads.
const RUN: usize = 128 << 10;
/// The largest part of a fetched record that is prefetched into the processor's cache, in bytes.
const PREFETCHED: usize = 2 << 10;

/// The records that a call waits for, mostly one.
type RecordIds = SmallVec<[RecordId; 1]>;

/// Records that a call waits for. The caller must [release](Fetched::release) them.
#[derive(Debug)]
#[must_use = "records that are not released are kept forever"]
pub(crate) struct LaneReads {
    ids: RecordIds,
    /// All records in `ids` before this index have arrived.
    next: usize,
}

/// A record that has arrived.
#[derive(Debug)]
struct Arrived {
    /// The bytes read; `None` if the record is unreadable.
    bytes: Option<ReadBuffer>,
    /// The number of requests for the record that were not released.
    users: Cell<u32>,
}

impl Arrived {
    fn footprint(&self) -> usize {
        self.bytes.as_ref().map_or(0, ReadBuffer::footprint)
    }
}

/// A record that was requested but has not arrived.
#[derive(Debug, Default)]
struct Expected {
    /// The number of requests for the record that were not released.
    users: u32,
    /// Memory that the read takes, in bytes; 0 before the read has begun.
    bytes: usize,
    /// The number of bytes to read: [`RUN`], or the size of a record that turned out to be larger
    /// than its first read. If `None`, the log chooses the number.
    size: Option<usize>,
}

/// The records that a session has fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    readers: Arc<Readers>,
    waker: Waker,
    inbox: Arc<Inbox>,
    queue: Option<RefCell<Box<dyn ReadQueue>>>,
    arrived: RecordMap<RecordId, Arrived>,
    /// Arrived records that no call needed any more when they were added to this list, the oldest
    /// first. A later call may still use them.
    idle: RefCell<VecDeque<RecordId>>,
    /// Unreadable records. A record is forgotten once no call needs it any more. The next request
    /// reads it again.
    unreadable: Vec<RecordId>,
    /// Records that were requested but have not arrived.
    expected: RefCell<RecordMap<RecordId, Expected>>,
    /// The records of `expected` whose read has not begun. The first one is read next.
    waiting: RefCell<VecDeque<RecordId>>,
    /// The records that the queue is reading. The key is the number that identifies the read in the
    /// queue, from `next_number`.
    queued: RefCell<RecordMap<u64, RecordId>>,
    next_number: Cell<u64>,
    /// The number of reads in flight.
    started: Cell<usize>,
    /// Memory of the arrived records and of the reads in flight, in bytes.
    bytes: Cell<usize>,
    /// The memory share that `bytes` is charged to.
    share: ReadShare,
    /// Decides whether the session's thread, when it has no work, polls for ended reads or sleeps.
    poll_budget: PollBudget,
    /// Records that calls requested since the last [`Fetched::take`].
    wanted: RefCell<RecordIds>,
    /// The list that [`Fetched::collect`] fills. It is empty between calls and kept to save
    /// allocations.
    ended: Vec<(RecordId, io::Result<ReadBuffer>)>,
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
            poll_budget: PollBudget::default(),
            wanted: RefCell::default(),
            ended: Vec::new(),
        }
    }

    /// Makes the session read through its own queue from now on.
    pub(crate) fn read_through(&mut self, queue: Box<dyn ReadQueue>) {
        self.queue = Some(RefCell::new(queue));
    }

    /// Takes the records that have arrived. May forget records that no call waits for.
    pub(crate) fn turn(&mut self, log: DurableLog<'_>) {
        // Forgets unreadable records that no call has requested. Requests that are still in
        // `wanted` are released only below, so their records stay for this turn. A call may have
        // found such a record unreadable and now wait for another record. When the call is
        // repeated, it must find the first record unreadable again.
        self.unreadable.retain(|id| {
            let wanted = self.arrived.get(id).is_some_and(|record| record.users.get() > 0);
            if !wanted {
                self.arrived.remove(id);
            }
            wanted
        });
        if let Some(nobodys) = self.take() {
            self.release(nobodys, None);
        }
        if self.started.get() > 0 {
            self.collect(log);
        }
        if self.inbox.any.swap(false, Ordering::Acquire) {
            let arrived = std::mem::take(&mut *lock(&self.inbox.arrived));
            arrived.into_iter().for_each(|(id, read)| self.arrive(id, read));
        }
        self.forget_idle();
        self.start(log);
    }

    /// Takes the records that the queue has read.
    fn collect(&mut self, log: DurableLog<'_>) {
        let Some(queue) = &mut self.queue else { return };
        let queued = self.queued.get_mut();
        let mut ended = std::mem::take(&mut self.ended);
        queue.get_mut().ended(&mut |number, read| {
            let Some(id) = queued.remove(&number) else { return };
            if let Ok(bytes) = &read {
                // The device wrote the record to memory and not to the processor's caches. So all
                // records of this turn are prefetched before any is used: the prefetches overlap.
                prefetch::all(&bytes[..bytes.len().min(PREFETCHED)]);
            }
            ended.push((id, read));
        });
        self.poll_budget.ended(ended.len());
        // The reads are handled in reverse order, because `wait_again` queues in front. So the
        // first record stays the first.
        for (id, read) in ended.drain(..).rev() {
            let checked = read.and_then(|bytes| Ok((log.check_record(id.address, &bytes)?, bytes)));
            match checked {
                Ok((Some(size), _)) => self.wait_again(id, size),
                Ok((None, bytes)) => self.arrive(id, Read::Record(bytes)),
                // The error may concern bytes beside the record. A reader thread reads fewer of
                // these bytes, so its read may succeed.
                Err(_) => self.ask_readers(id, None, None),
            }
        }
        self.ended = ended;
    }

    /// Queues a second read, in front of all waiting ones, of a record that is larger than its
    /// first read.
    fn wait_again(&mut self, id: RecordId, size: usize) {
        self.started.set(self.started.get() - 1);
        let Some(expected) = self.expected.get_mut().get_mut(&id) else { return };
        self.bytes.set(self.bytes.get() - std::mem::take(&mut expected.bytes));
        expected.size = Some(size);
        self.waiting.get_mut().push_front(id);
    }

    fn arrive(&mut self, id: RecordId, read: Read) {
        self.started.set(self.started.get() - 1);
        let Expected { users, bytes, .. } = self.expected.get_mut().remove(&id).unwrap_or_default();
        self.bytes.set(self.bytes.get() - bytes);
        let bytes = match read {
            Read::Record(bytes) => Some(bytes),
            Read::Failed => None,
            Read::InMemory => return,
        };
        if bytes.is_none() {
            self.unreadable.push(id);
        } else if users == 0 {
            self.idle.get_mut().push_back(id);
        }
        let record = Arrived { bytes, users: Cell::new(users) };
        self.bytes.set(self.bytes.get() + record.footprint());
        self.arrived.insert(id, record);
    }

    /// Forgets the oldest records that no call needs, down to the limits [`IDLE`] and
    /// [`IDLE_BYTES`].
    fn forget_idle(&mut self) {
        let idle = self.idle.get_mut();
        while idle.len() > IDLE
            || idle.len() > 1 && self.bytes.get() > IDLE_BYTES.min(self.share.most() / 4)
        {
            let Some(id) = idle.pop_front() else { return };
            if self.arrived.get(&id).is_some_and(|record| record.users.get() == 0)
                && let Some(record) = self.arrived.remove(&id)
            {
                self.bytes.set(self.bytes.get() - record.footprint());
            }
        }
    }

    /// Starts waiting reads as far as the memory share has room, and submits them to the device.
    pub(crate) fn start(&self, log: DurableLog<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        let most = if waiting.is_empty() { 0 } else { self.share.most() };
        while let Some(&id) = waiting.front() {
            let size = self.expected.borrow().get(&id).and_then(|expected| expected.size);
            let (offset, len) = log.record_range(id.address, size);
            if self.started.get() > 0 && self.bytes.get() + len > most {
                break;
            }
            waiting.pop_front();
            if let Some(expected) = self.expected.borrow_mut().get_mut(&id) {
                expected.bytes = len;
                self.bytes.set(self.bytes.get() + len);
            }
            let jumbo = log.segment(id.address.segment()).is_jumbo();
            if jumbo || !self.push(id, offset, len) {
                self.ask_readers(id, size, None);
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

    /// Hands a read to the queue. Returns false if there is no queue or if the queue does not
    /// accept the read.
    fn push(&self, id: RecordId, offset: u64, len: usize) -> bool {
        let Some(queue) = &self.queue else { return false };
        let number = self.next_number.replace(self.next_number.get() + 1);
        let taken = queue.borrow_mut().push(number, offset, len).is_ok();
        if taken {
            self.queued.borrow_mut().insert(number, id);
        }
        taken
    }

    fn ask_readers(&self, id: RecordId, size: Option<usize>, charge: Option<Charge>) {
        let (inbox, waker) = (Arc::clone(&self.inbox), self.waker.clone());
        self.readers.ask(Request { id, size, charge, inbox, waker });
    }

    /// Requests that a large value be read into memory, unless a read is already under way.
    /// `charge` reserves the memory. Returns false if there is no memory.
    pub(crate) fn want_large(&self, id: RecordId, charge: impl FnOnce() -> Option<Charge>) -> bool {
        if !self.expected.borrow().contains_key(&id) {
            let Some(charge) = charge() else { return false };
            self.expected.borrow_mut().insert(id, Expected::default());
            self.started.set(self.started.get() + 1);
            self.ask_readers(id, None, Some(charge));
        }
        if let Some(expected) = self.expected.borrow_mut().get_mut(&id) {
            expected.users += 1;
        }
        self.wake_for_more();
        true
    }

    /// Notes that a call needs a large value, whether it is in memory or not.
    pub(crate) fn need_large(&self, id: RecordId) {
        self.readers.large.request(id);
        self.wanted.borrow_mut().push(id);
    }

    /// Returns true if the call must be refused, because the large value that it needs was read
    /// into memory too often without any use.
    pub(crate) fn refuses(&self, id: RecordId) -> bool {
        self.readers.large.refuses(id)
    }

    /// Wakes the session's thread if more reads have ended since this turn took the arrived ones.
    /// The wake-up for these new reads may already have been consumed, and no other would come.
    fn wake_for_more(&self) {
        let queued = self.queue.as_ref().is_some_and(|queue| queue.borrow_mut().has_ended());
        if queued || self.inbox.any.load(Ordering::Acquire) {
            self.waker.wake_by_ref();
        }
    }

    /// Requests a read of a record, unless it has arrived. When it arrives, the waker is woken or
    /// the queue's event becomes readable. A read through the queue starts at the end of the turn.
    /// Returns true if the record has to be read and was not yet requested.
    pub(crate) fn want(&self, log: DurableLog<'_>, id: RecordId) -> bool {
        self.want_bytes(log, id, None)
    }

    /// As [`Fetched::want`], but reads [`RUN`] bytes: the record and the bytes behind it. See
    /// [`Fetched::run`].
    pub(crate) fn want_run(&self, log: DurableLog<'_>, id: RecordId) -> bool {
        self.want_bytes(log, id, Some(RUN))
    }

    fn want_bytes(&self, log: DurableLog<'_>, id: RecordId, size: Option<usize>) -> bool {
        self.wanted.borrow_mut().push(id);
        if let Some(record) = self.arrived.get(&id) {
            record.users.set(record.users.get() + 1);
            return false;
        }
        if let Some(expected) = self.expected.borrow_mut().get_mut(&id) {
            expected.users += 1;
            self.wake_for_more();
            return false;
        }
        self.expected.borrow_mut().insert(id, Expected { users: 1, bytes: 0, size });
        self.waiting.borrow_mut().push_back(id);
        if self.queue.is_none() {
            self.start(log);
        }
        true
    }

    /// Returns the records that calls requested since the last call of this function.
    #[inline]
    pub(crate) fn take(&self) -> Option<LaneReads> {
        let mut wanted = self.wanted.borrow_mut();
        (!wanted.is_empty()).then(|| LaneReads { ids: std::mem::take(&mut *wanted), next: 0 })
    }

    /// Releases records that a call no longer waits for. If the call was repeated and must wait
    /// again, `next` has the records that it now waits for.
    pub(crate) fn release(&self, reads: LaneReads, next: Option<&LaneReads>) {
        for id in reads.ids {
            // Only the records of large values are at offset 0.
            if id.address.offset() == 0 {
                // If the call now waits for another part of the same segment, such as the head, it
                // has not used the value yet.
                let is_same = |next: &RecordId| {
                    next.address.segment() == id.address.segment()
                        && next.generation == id.generation
                };
                let again = next.is_some_and(|next| next.ids.iter().any(is_same));
                self.readers.large.release(id, !again);
            }
            // A large value that is in memory is neither in `expected` nor in `arrived`. If another
            // call requests it again after its memory was dropped, it is in `expected`. The users
            // there do not include the request that is released now. So the subtractions saturate.
            if let Some(expected) = self.expected.borrow_mut().get_mut(&id) {
                expected.users = expected.users.saturating_sub(1);
            } else if let Some(record) = self.arrived.get(&id) {
                record.users.set(record.users.get().saturating_sub(1));
                if record.users.get() == 0 && record.bytes.is_some() {
                    self.idle.borrow_mut().push_back(id);
                }
            }
        }
    }

    /// Returns true if some of these records have not arrived.
    pub(crate) fn awaits(&self, reads: &mut LaneReads) -> bool {
        let expected = self.expected.borrow();
        while let Some(id) = reads.ids.get(reads.next) {
            if expected.contains_key(id) {
                self.wake_for_more();
                return true;
            }
            reads.next += 1;
        }
        false
    }

    /// Returns true if an idle thread should [poll](PollBudget) for ended reads instead of
    /// blocking.
    #[inline]
    pub(crate) fn polls(&mut self) -> bool {
        self.queue.is_some() && self.poll_budget.again(self.started.get())
    }

    /// Returns true if the record was requested but has not arrived.
    pub(crate) fn expects(&self, id: RecordId) -> bool {
        self.expected.borrow().contains_key(&id)
    }

    /// Returns true if some requested record has not arrived and is no longer needed by any call.
    pub(crate) fn expects_unneeded(&self) -> bool {
        self.expected.borrow().values().any(|expected| expected.users == 0)
    }

    /// Returns the record, if it was fetched.
    pub(crate) fn get(&self, id: RecordId) -> Option<Record<'_>> {
        let bytes = self.arrived.get(&id)?.bytes.as_ref()?;
        // SAFETY: the bytes were checked to begin with one whole record, and they stay until the
        // session, which is borrowed, takes its next turn.
        Some(unsafe { Record::at(bytes.as_ptr(), || 0) })
    }

    /// Returns the bytes read for a record: the record, and perhaps unchecked bytes behind it.
    pub(crate) fn run(&self, id: RecordId) -> Option<&[u8]> {
        self.arrived.get(&id)?.bytes.as_deref()
    }

    /// Returns the head of the large record whose value has `len` bytes, if the head was fetched
    /// under the address [`Log::jumbo_head`](larder_log::Log::jumbo_head). The value itself is
    /// absent, so the caller must not read it.
    pub(crate) fn get_head(&self, head: RecordId, len: usize) -> Option<Record<'_>> {
        let bytes = self.arrived.get(&head)?.bytes.as_ref()?;
        let record = bytes.get(head.address.offset()..)?;
        // SAFETY: the head was checked, and its bytes stay as in `get`. The caller does not read
        // the value.
        Some(unsafe { Record::at(record.as_ptr(), || len) })
    }

    /// Returns true if the record was requested and turned out to be unreadable.
    pub(crate) fn is_unreadable(&self, id: RecordId) -> bool {
        let found = self.arrived.get(&id);
        found.is_some_and(|record| record.bytes.is_none())
    }
}
