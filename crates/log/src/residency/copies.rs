//! RAM copies of records whose segments have no frame, so that records read often from a device are
//! read from memory instead. A durable record never changes, and an address leads to one record for
//! as long as its segment stays in one generation. So copies are never updated or invalidated: a
//! reader finds a copy by address and generation, and no reader looks for the copy of a dead
//! record. The index, cleaning, commits and recovery do not know about copies.
//!
//! Copies lie in separate frames, from the same pool as the segments' frames. These frames form two
//! queues. New copies go to [`Queue::Small`], and copies that are read again move to
//! [`Queue::Main`], which is a CLOCK queue. Source of the policy: J. Yang et al., "FIFO queues are
//! all you need for cache eviction", SOSP 2023. As long as memory suffices for all copies, a record
//! is copied when it is read again. After the first eviction of copies, a read from the device
//! makes a copy only if the [ghosts](Ghosts) remember the record.
//!
//! A table with one cache line per bucket leads to the copies. Readers use the table, and count
//! their reads in its slots, without a lock. For any other change, a thread must hold the lock
//! `state`.
//!
//! Invariant: before a frame's number is taken away or given to another frame, every slot that
//! leads to the frame is removed, and then a quiescent period passes.

mod ghosts;

use self::ghosts::Ghosts;
use crate::address::{Address, RecordId};
use crate::memory::frames::Frames;
use crate::memory::{mapping, prefetch};
use crate::record::Record;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crate::sync::{self, Mutex, MutexGuard};
use crate::{Budget, Epochs};
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, TryLockError};

/// The queue of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Queue of new copies. A copy that is read here moves to `Main` when its frame is freed.
    Small = 0,
    /// Queue of copies that were read again, and of records whose frame was dropped although they
    /// were read often.
    Main = 1,
}

/// The result of [`Copies::keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// There is a copy.
    Yes,
    /// There is no copy: another thread is changing the copies, the record is too large, or the
    /// cleaner already knows that a frame is wanted.
    No,
    /// There is no copy: a frame must be freed first, and the cleaner does not know it yet.
    NeedsFrame,
}

/// Number of slots in a bucket, which is one cache line.
const BUCKET: usize = 8;
/// Number of buckets of the first table.
const FIRST_BUCKETS: usize = if cfg!(loom) { 1 } else { 1 << 9 };
/// Bytes in front of each copied record: its address, its generation, its size.
const HEAD: usize = 16;
/// A record is copied only if it takes at most 1/`LARGEST_SHARE` of a frame.
const LARGEST_SHARE: usize = 8;

/// Reads the head of a copy: the record's address, its segment's generation, its size.
///
/// # Safety
/// `copy` must point to a whole copy. The write of the copy must happen before this read.
unsafe fn read_head(copy: *const u8) -> (RecordId, usize) {
    sync::reads(copy);
    let head = copy.cast::<u64>();
    // SAFETY: a head is two words.
    let (address, rest) = unsafe { (head.read(), head.add(1).read()) };
    let id = RecordId { address: Address::from_bits(address), generation: rest as u32 };
    (id, (rest >> 32) as usize)
}

/// A slot: 22 bits of tag, 2 of frequency, 20 of frame number, 20 of offset in units of 8 bytes.
/// The value 0 is an empty slot, so no frame has the number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(u64);

const OFFSET_BITS: u32 = 20;
const FRAME_BITS: u32 = 20;
const FREQUENCY: u64 = 1 << (OFFSET_BITS + FRAME_BITS);
const MAX_FREQUENCY: u64 = 3;
const TAG_SHIFT: u32 = OFFSET_BITS + FRAME_BITS + 2;
const PLACE: u64 = FREQUENCY - 1;

impl Slot {
    fn new(hash: u64, frequency: u64, frame: u32, offset: usize) -> Slot {
        let tag = hash >> TAG_SHIFT << TAG_SHIFT;
        let place = u64::from(frame) << OFFSET_BITS | (offset / 8) as u64;
        Slot(tag | (frequency * FREQUENCY) | place)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn has_tag(self, hash: u64) -> bool {
        (self.0 ^ hash) >> TAG_SHIFT == 0
    }

    fn frequency(self) -> u64 {
        (self.0 / FREQUENCY) & MAX_FREQUENCY
    }

    /// Raises the frequency of this slot at `place`, unless another thread has changed the slot. In
    /// that case this read is not counted.
    fn count_read(self, place: &AtomicU64) {
        if self.frequency() < MAX_FREQUENCY {
            let (read, order) = (self.0 + FREQUENCY, Ordering::Relaxed);
            let _ = place.compare_exchange(self.0, read, Ordering::Release, order);
        }
    }

    fn frame(self) -> usize {
        ((self.0 & PLACE) >> OFFSET_BITS) as usize
    }

    fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize * 8
    }

    fn same_place(self, other: Slot) -> bool {
        (self.0 ^ other.0) & PLACE == 0
    }
}

fn hash(address: Address) -> u64 {
    // SplitMix64's finaliser.
    let mut hash = address.bits().wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; BUCKET]);

#[derive(Debug)]
struct CopyTable {
    /// The buckets; their number is a power of two.
    buckets: Box<[Bucket]>,
    /// Recent reads from the device: at most as many as the table has slots.
    ghosts: Ghosts,
}

impl CopyTable {
    fn new(buckets: usize) -> CopyTable {
        let mut memory = Vec::with_capacity(buckets);
        mapping::advise_huge(memory.spare_capacity_mut());
        memory.extend((0..buckets).map(|_| Bucket(std::array::from_fn(|_| AtomicU64::new(0)))));
        CopyTable { buckets: memory.into(), ghosts: Ghosts::new(buckets * BUCKET) }
    }

    /// Returns the number of bytes that a table with `buckets` buckets takes.
    const fn footprint(buckets: usize) -> u64 {
        (buckets * (size_of::<Bucket>() + BUCKET)) as u64
    }

    /// Returns all slots.
    fn slots(&self) -> impl Iterator<Item = &AtomicU64> {
        self.buckets.iter().flat_map(|bucket| &bucket.0)
    }

    /// Returns the two buckets in which a copy may be found.
    fn buckets(&self, hash: u64) -> [&Bucket; 2] {
        let mask = self.buckets.len() - 1;
        let first = hash as usize;
        [&self.buckets[first & mask], &self.buckets[first.wrapping_add(1) & mask]]
    }

    /// Returns the slots that may lead to a copy.
    fn candidates(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        self.buckets(hash).into_iter().flat_map(|bucket| &bucket.0)
    }

    /// Adds a slot. If all slots that may lead to this copy are in use, replaces the one with the
    /// lowest frequency. Returns true if a slot was free.
    fn add(&self, hash: u64, slot: Slot) -> bool {
        let all = || self.candidates(hash);
        let value = |place: &AtomicU64| Slot(place.load(Ordering::Relaxed));
        if let Some(place) = all().find(|place| value(place).is_empty()) {
            sync::publish(place, slot.0);
            return true;
        }
        if let Some(place) = all().min_by_key(|place| value(place).frequency()) {
            sync::publish(place, slot.0);
        }
        false
    }
}

/// Returns true if more than 5/8 of the slots are in use, so the table should grow.
fn is_crowded(state: &CopyState, table: &CopyTable) -> bool {
    state.slots * 8 > table.buckets.len() * BUCKET * 5
}

#[derive(Debug, Default)]
struct CopyState {
    /// The frames of each [`Queue`], the oldest first, each with the number of its filled bytes. A
    /// new copy goes to the last frame.
    queues: [VecDeque<(u32, usize)>; 2],
    /// Numbers below `fresh` that have no frame now.
    free: Vec<u32>,
    /// The lowest frame number that was never used.
    fresh: u32,
    /// Number of slots in use.
    slots: usize,
    /// Frames that no slot leads to any more, with the epochs that must pass before reuse.
    retired: VecDeque<(u64, u32)>,
    /// Replaced tables, with the epochs that must pass before they are dropped.
    old_tables: Vec<(u64, Box<CopyTable>)>,
}

/// All copies.
#[derive(Debug)]
pub struct Copies {
    /// The pool that frames of copies come from.
    pool: Arc<Frames>,
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    /// Null before the first copy.
    table: AtomicPtr<CopyTable>,
    /// The frames by number; null if no frame has the number. Number 0 is never used.
    frames: Box<[AtomicPtr<u8>]>,
    frame_size: usize,
    state: Mutex<CopyState>,
    /// True if, since the last call of [`Copies::take_want`], a copy was not made because a frame
    /// or a larger table is missing.
    wants_frame: AtomicBool,
    /// True once copies have been evicted to make room.
    evicts: AtomicBool,
}

impl Copies {
    /// Creates an empty set of copies, which may take up to `frames` frames of `frame_size` bytes
    /// from `pool`.
    pub(crate) fn new(
        frames: usize,
        frame_size: usize,
        pool: Arc<Frames>,
        budget: Arc<Budget>,
        epochs: Arc<Epochs>,
    ) -> Copies {
        let frames = frames.min((1 << FRAME_BITS) - 1);
        Copies {
            pool,
            budget,
            epochs,
            table: AtomicPtr::new(ptr::null_mut()),
            frames: (0..=frames).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            frame_size,
            state: Mutex::new(CopyState { fresh: 1, ..CopyState::default() }),
            wants_frame: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CopyState> {
        sync::lock(&self.state)
    }

    /// # Safety
    /// As for [`Copies::find`].
    unsafe fn table(&self) -> Option<&CopyTable> {
        let table = self.table.load(Ordering::Acquire);
        sync::reads(table.cast());
        // SAFETY: a table is dropped when the quiescent period after its replacement has passed.
        unsafe { table.as_ref() }
    }

    /// Returns the memory of the copy that a slot leads to.
    fn memory(&self, slot: Slot) -> *mut u8 {
        self.frames[slot.frame()].load(Ordering::Acquire).wrapping_add(slot.offset())
    }

    /// Prefetches the slots that may lead to a copy of the record at `address`.
    ///
    /// # Safety
    /// As for [`Copies::find`].
    #[cold]
    pub(crate) unsafe fn prefetch(&self, address: Address) {
        // SAFETY: by the caller's promise.
        let Some(table) = (unsafe { self.table() }) else { return };
        for bucket in table.buckets(hash(address)) {
            prefetch::for_reading(ptr::from_ref(bucket).cast());
        }
    }

    /// Returns the copy of a record, with the place and value of its slot.
    ///
    /// # Safety
    /// The thread must be awake in the epochs, and may use the result only until its next quiescent
    /// point.
    unsafe fn find(&self, id: RecordId) -> Option<(Record<'_>, &AtomicU64, Slot)> {
        // SAFETY: by the caller's promise.
        let table = unsafe { self.table() }?;
        let hash = hash(id.address);
        for place in table.candidates(hash) {
            let slot = Slot(place.load(Ordering::Acquire));
            if slot.is_empty() || !slot.has_tag(hash) {
                continue;
            }
            let memory = self.memory(slot);
            // SAFETY: this thread has loaded the slot since its last quiescent point, so the frame
            // is not reused before the thread's next quiescent point. The bytes that the slot leads
            // to were written before the slot.
            let (found, _) = unsafe { read_head(memory) };
            if found != id {
                continue;
            }
            // SAFETY: behind the head lies a whole record.
            return Some((unsafe { Record::at(memory.add(HEAD), || 0) }, place, slot));
        }
        None
    }

    /// Returns the copy of a record, or `None` if the record has no copy.
    ///
    /// # Safety
    /// The thread must be awake in the epochs, and may use the result only until its next quiescent
    /// point.
    #[inline]
    pub unsafe fn get(&self, id: RecordId) -> Option<Record<'_>> {
        // SAFETY: by the caller's promise.
        unsafe { self.find(id) }.map(|(record, ..)| record)
    }

    /// Counts a read of a record's copy. Returns false if there is no copy.
    ///
    /// # Safety
    /// The thread must be awake in the epochs.
    pub unsafe fn count_read(&self, id: RecordId) -> bool {
        // SAFETY: by the caller's promise.
        let found = unsafe { self.find(id) };
        found.map(|(_, place, slot)| slot.count_read(place)).is_some()
    }

    /// Returns true if a record that was just read from the device should be copied. Before the
    /// first eviction of copies, every record is copied that had been read at any earlier time
    /// (`was_read`). After it, a record is copied only if it had been read from the device
    /// recently.
    ///
    /// # Safety
    /// The thread must be awake in the epochs.
    pub unsafe fn admits(&self, address: Address, was_read: bool) -> bool {
        if !self.evicts.load(Ordering::Relaxed) {
            return was_read;
        }
        // SAFETY: by the caller's promise.
        unsafe { self.table() }.is_some_and(|table| table.ghosts.recall(hash(address)))
    }

    /// Copies a record to the end of a queue. `frame` supplies a new frame if one is needed.
    /// Returns false if there is no frame or no number for it.
    fn push(
        &self,
        state: &mut CopyState,
        queue: Queue,
        RecordId { address, generation }: RecordId,
        record: &Record<'_>,
        frequency: u64,
        frame: impl FnOnce() -> Option<*mut u8>,
    ) -> bool {
        let bytes = HEAD + record.size();
        let last = state.queues[queue as usize].back();
        if last.is_none_or(|&(_, filled)| filled + bytes > self.frame_size) {
            let number = match state.free.pop() {
                Some(number) => number,
                None if state.fresh as usize == self.frames.len() => return false,
                None => {
                    state.fresh += 1;
                    state.fresh - 1
                }
            };
            let Some(frame) = frame() else {
                state.free.push(number);
                return false;
            };
            self.frames[number as usize].store(frame, Ordering::Release);
            state.queues[queue as usize].push_back((number, 0));
        }
        let Some((number, filled)) = state.queues[queue as usize].back_mut() else {
            return false;
        };
        let hash = hash(address);
        let slot = Slot::new(hash, frequency, *number, *filled);
        let memory = self.memory(slot);
        let size_and_use = (record.size() as u64) << 32 | u64::from(generation);
        sync::writes(memory);
        sync::writes(memory.wrapping_add(HEAD));
        // SAFETY: from `filled` on, the frame is written only by the holder of `state`, and no slot
        // leads there. The rest of the frame has room for the head and the record.
        unsafe {
            memory.cast::<u64>().write(address.bits());
            memory.cast::<u64>().add(1).write(size_and_use);
            memory.add(HEAD).copy_from_nonoverlapping(record.pointer(), record.size());
        }
        *filled += bytes;
        // SAFETY: only the holder of `state` replaces the table.
        if let Some(table) = unsafe { self.table() }
            && table.add(hash, slot)
        {
            state.slots += 1;
        }
        true
    }

    /// Creates the first table, or a larger one if the present one is crowded.
    fn provide_slots(&self, state: &mut CopyState) {
        // SAFETY: only the holder of `state` replaces the table.
        let old = unsafe { self.table() };
        let buckets = match old {
            None => FIRST_BUCKETS,
            Some(table) if is_crowded(state, table) => table.buckets.len() * 2,
            Some(_) => return,
        };
        // This charge may exceed the budget. The cleaner then gives frames back.
        self.budget.charge(CopyTable::footprint(buckets));
        let table = CopyTable::new(buckets);
        state.slots = 0;
        for place in old.into_iter().flat_map(CopyTable::slots) {
            let slot = Slot(place.load(Ordering::Acquire));
            if slot.is_empty() {
                continue;
            }
            // SAFETY: only the holder of `state` frees frames that slots lead to.
            let (id, _) = unsafe { read_head(self.memory(slot)) };
            state.slots += usize::from(table.add(hash(id.address), slot));
        }
        let table = Box::into_raw(Box::new(table));
        sync::writes(table.cast());
        let old = self.table.swap(table, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the old table came out of a box, and no thread uses it once this epoch has
            // passed.
            state.old_tables.push((self.epochs.advance(), unsafe { Box::from_raw(old) }));
        }
    }

    /// Removes the slot that leads to a copy of the record at `address`, at the frame and offset in
    /// `at`. Returns the slot's frequency, or `None` if no slot leads to that copy.
    fn remove(&self, state: &mut CopyState, address: Address, at: Slot) -> Option<u64> {
        // SAFETY: only the holder of `state` replaces the table.
        let table = unsafe { self.table() }?;
        for place in table.candidates(hash(address)) {
            if Slot(place.load(Ordering::Relaxed)).same_place(at) {
                state.slots -= 1;
                return Some(Slot(place.swap(0, Ordering::AcqRel)).frequency());
            }
        }
        None
    }

    /// Copies a record into `queue`. Takes a new frame for this only if `spare` frames are then
    /// left for writers. If the record has a copy already, this call counts as a read of that copy.
    pub fn keep(&self, id: RecordId, record: &Record<'_>, queue: Queue, spare: usize) -> Kept {
        if HEAD + record.size() > self.frame_size / LARGEST_SHARE {
            return Kept::No;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Kept::No,
        };
        // SAFETY: only the holder of `state` replaces the table.
        if unsafe { self.table() }.is_none_or(|table| is_crowded(&state, table)) {
            return self.ask();
        }
        // SAFETY: only the holder of `state` removes slots, tables and frames.
        if let Some((_, at, slot)) = unsafe { self.find(id) } {
            slot.count_read(at);
            return Kept::Yes;
        }
        let frame = || {
            let spare = self.pool.available(&self.budget) > spare;
            spare.then(|| self.pool.take(&self.budget, false)).flatten()
        };
        if self.push(&mut state, queue, id, record, 0, frame) {
            return Kept::Yes;
        }
        self.ask()
    }

    /// Asks the cleaner to provide the missing frame or table.
    fn ask(&self) -> Kept {
        let first = !self.wants_frame.swap(true, Ordering::Relaxed);
        if first { Kept::NeedsFrame } else { Kept::No }
    }

    /// Frees the oldest frame of a queue. Returns false if the queue is empty. A copy in the frame
    /// moves to another frame if it was read, `is_wanted` accepts its record, and there is a frame
    /// for it. Otherwise it is evicted, and this function calls `forgotten` with its record. Copies
    /// to which no slot leads any more are skipped. The frame can be reused once every thread has
    /// passed a quiescent point.
    pub fn evict(
        &self,
        queue: Queue,
        is_wanted: impl Fn(Address, &Record<'_>) -> bool,
        forgotten: impl Fn(Address, &Record<'_>),
    ) -> bool {
        let state = &mut *self.lock();
        let Some((number, filled)) = state.queues[queue as usize].pop_front() else {
            return false;
        };
        self.evicts.store(true, Ordering::Relaxed);
        let mut offset = 0;
        while offset < filled {
            let at = Slot::new(0, 0, number, offset);
            let copy = self.memory(at);
            // SAFETY: up to `filled` the frame holds copies, and it is retired only below.
            let ((id, size), record) =
                unsafe { (read_head(copy), Record::at(copy.add(HEAD), || 0)) };
            offset += HEAD + size;
            let Some(frequency) = self.remove(state, id.address, at) else { continue };
            let wanted = frequency > 0 && is_wanted(id.address, &record);
            let left = if queue == Queue::Small { 0 } else { frequency.saturating_sub(1) };
            let frame = || self.pool.take(&self.budget, true);
            if !wanted || !self.push(state, Queue::Main, id, &record, left, frame) {
                forgotten(id.address, &record);
            }
        }
        state.retired.push_back((self.epochs.advance(), number));
        true
    }

    /// Frees frames and tables that no thread can be reading any more.
    pub(crate) fn reap(&self) {
        let mut state = self.lock();
        while let Some(&(epoch, number)) = state.retired.front()
            && self.epochs.passed(epoch)
        {
            state.retired.pop_front();
            let frame = self.frames[number as usize].swap(ptr::null_mut(), Ordering::AcqRel);
            state.free.push(number);
            // SAFETY: no slot has led there since before `epoch`, which has passed.
            unsafe { self.pool.put(frame, &self.budget) };
        }
        state.old_tables.retain(|(epoch, table)| {
            let passed = self.epochs.passed(*epoch);
            if passed {
                sync::discarded((&raw const **table).cast(), size_of::<CopyTable>());
                self.budget.release(CopyTable::footprint(table.buckets.len()));
            }
            !passed
        });
    }

    /// Returns the number of freed frames that wait for their quiescent period.
    pub fn retired_frames(&self) -> usize {
        self.lock().retired.len()
    }

    /// Returns true if a copy was not made since the last call because a frame or a larger table is
    /// missing. Creates that table, but not the frame.
    pub fn take_want(&self) -> bool {
        let wants = self.wants_frame.swap(false, Ordering::Relaxed);
        if wants {
            self.provide_slots(&mut self.lock());
        }
        wants
    }

    /// Returns the number of copies.
    pub fn count(&self) -> usize {
        self.lock().slots
    }

    /// Returns the number of frames in each queue.
    pub fn frames(&self) -> [usize; 2] {
        let state = self.lock();
        [Queue::Small, Queue::Main].map(|queue| state.queues[queue as usize].len())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let table = self.table.load(Ordering::Acquire);
        if !table.is_null() {
            // SAFETY: the table came out of a box, and no thread uses it any more.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
