//! Streams of segments: where records are appended, in which order segments are reclaimed, and how
//! a segment's frame gets back to the pool.

use crate::address::{Address, SegmentNumber};
use crate::chunks::{Closings, OpenChunk};
use crate::copies::Copies;
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::frames::Frames;
use crate::grow::most_places;
use crate::memory::{Mapping, PAGE};
use crate::pins::{Pin, Pins};
use crate::places::{Places, Tier};
use crate::prefetch;
use crate::quarantine::Quarantine;
use crate::record::Record;
use crate::residency::{Dropped, Image};
use crate::segment::{Segment, State};
use crate::store::{Entry, Store};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::table::Table;
use crate::usage::{End, UsageTable};
use crate::{Budget, Epochs};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};

/// A stream: what kind of records are appended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// New writes: S3-FIFO's probation queue.
    Hot = 0,
    /// What has proved its worth: S3-FIFO's main queue.
    Survivors = 1,
}

impl Stream {
    /// The stream that a segment's header names.
    pub fn of(stream: u8) -> Stream {
        if stream == Stream::Hot as u8 { Stream::Hot } else { Stream::Survivors }
    }
}

/// Who asks for space: the more urgent, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Claim {
    /// A client's write of something new.
    Write = 0,
    /// As [`Claim::Update`], and larger than what is there.
    Grow = 1,
    /// A client's write of the next state of what is there: a counter, or an item with another expiry.
    Update = 2,
    /// A client's delete.
    Delete = 3,
    /// The cleaner, which may use all there is.
    Clean = 4,
}

impl Claim {
    const ALL: [Claim; 5] = [Claim::Write, Claim::Grow, Claim::Update, Claim::Delete, Claim::Clean];
}

/// Segments of a store that only the cleaner may take: one per stream that it appends to.
const CLEANER_SEGMENTS: usize = 2;
/// Of a store that evicts nothing, deletes have one segment in so many to themselves, updates as much again,
/// and so have those that make items larger. The first two make at least as much dead as they append, so
/// when theirs is used up, some segment holds enough that is dead to be worth cleaning. Only what is alive
/// must leave room for them: see [`Log::set_reclaimable`].
const RESERVE_SHARE: usize = 64;
/// The claims that such a reserve is kept from or for.
const RESERVES: usize = 3;
/// How far behind a reservation memory is fetched for later ones, bytes: a few records, for the fetch takes as
/// long as a few writes.
const PREFETCH_AHEAD: usize = 512;
/// Of longer records only so many bytes: the processor sees by itself where the rest goes.
const PREFETCHED: usize = 256;

/// Space for one record, not yet visible to anybody. It must be filled before the thread's next
/// quiescent point.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Where the record will be.
    pub address: Address,
    /// Its memory: 8-byte aligned, as long as was asked for, written by this thread alone.
    pub memory: *mut u8,
}

impl Reservation {
    /// Asks the processor for memory that later records of the thread will be written to, as much as one of
    /// `bytes` needs. What is written to memory that is not at hand keeps the next lock waiting, for
    /// a locked instruction waits for all writes before it.
    #[inline]
    pub fn prefetch_next(&self, bytes: usize) {
        for line in (0..bytes.min(PREFETCHED)).step_by(prefetch::LINE) {
            prefetch::for_writing(self.memory.wrapping_add(PREFETCH_AHEAD + line));
        }
    }
}

/// A sealed segment in the order of sealing.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The segment.
    pub segment: SegmentNumber,
    /// Its last appenders are done when this epoch has passed.
    pub sealed: u64,
}

/// What was appended together: an address and its record's bytes.
pub type Appended<'a> = (Address, Record<'a>);

/// Room that a mapping for [`Log::adopt_jumbo`] must have in front of the record: the header that
/// comes first on a device.
pub const JUMBO_HEADROOM: usize = HEADER_BYTES;
/// Room that it must have behind the record.
pub const JUMBO_FOOTROOM: usize = TRAILER_BYTES;

/// Numbers for a jumbo: its own, and with a store those of the further places it covers.
#[derive(Debug)]
pub struct JumboClaim {
    number: SegmentNumber,
    parts: Vec<SegmentNumber>,
    size: usize,
}

/// How a log is built.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of a segment: a power of two, at most 8 MiB.
    pub segment_size: usize,
    /// The most bytes of frames that may ever be wanted.
    pub max_frame_bytes: u64,
    /// Nothing is evicted: a store that is full must still be able to delete and to update.
    pub keeps_all: bool,
}

/// Where a stream is appended to. All threads that append read it, so nothing that changes often shares its
/// cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Open {
    /// The open segment; 0 before the first.
    pub(crate) segment: AtomicU32,
    /// The least urgent [claim](Claim) that may append to it. Written under the lock, before the segment.
    claim: AtomicU8,
    pub(crate) roll: Mutex<()>,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    segment_size: usize,
    pub(crate) budget: Arc<Budget>,
    /// Memory for the next segments that are [loaded](Log::load_if_absent).
    pub(crate) spare_images: Mutex<Vec<Image>>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) segments: Table<Segment>,
    pub(crate) frames: Frames,
    pub(crate) numbers: Mutex<Places>,
    pub(crate) streams: [Open; 2],
    pub(crate) closings: Closings,
    /// The chunks of all threads that [append](Log::appender), and how many these are.
    pub(crate) open_chunks: Mutex<Vec<Arc<OpenChunk>>>,
    pub(crate) appenders: AtomicUsize,
    pub(crate) usage: Mutex<UsageTable>,
    /// Segments that have changed since the usage table looked at them, each listed once.
    pub(crate) changed: Mutex<Vec<SegmentNumber>>,
    /// For each segment, whether it is listed.
    pub(crate) listed: Table<AtomicU8>,
    /// How often threads were asked to tell what they made dead.
    pub(crate) counts_wanted: AtomicU64,
    pub(crate) quarantine: Mutex<Quarantine>,
    wanted_numbers: AtomicU32,
    /// Nothing is evicted from the store.
    pub(crate) keeps_all: bool,
    /// Places that cleaning dead records would free; 0 where items are evicted.
    reclaimable: AtomicUsize,
    /// Segments being emptied, or emptied and not durably free.
    pub(crate) evicting: AtomicU32,
    /// Frames that were dropped, and the epochs that must have passed before they are reused.
    pub(crate) dropped: Mutex<VecDeque<Dropped>>,
    /// Held while a jumbo gets its mapping or loses it.
    pub(crate) jumbo_frames: Mutex<()>,
    /// How often the background has looked at a segment.
    pub(crate) looks: AtomicU64,
    pub(crate) copies: Copies,
    pub(crate) pins: Arc<Pins>,
    pub(crate) store: Option<Store>,
}

/// Bytes of the tables that a place takes.
pub(crate) fn bytes_per_segment(with_store: bool) -> usize {
    let entry = if with_store { size_of::<Entry>() } else { 0 };
    size_of::<Segment>() + entry + UsageTable::BYTES + size_of::<AtomicU8>()
}

/// Of a store with so many places, those that each claim leaves to more urgent ones.
fn spared(places: usize, keeps_all: bool, reclaimable: usize) -> [usize; Claim::ALL.len()] {
    let of_each = places.div_ceil(RESERVE_SHARE).saturating_sub(reclaimable / RESERVES);
    // Where items are evicted there is soon room for all of them.
    let reserve = if keeps_all { of_each.max(1) } else { 1 };
    let more = if keeps_all { reserve } else { 0 };
    let delete = CLEANER_SEGMENTS;
    let update = delete + reserve;
    [update + 2 * more, update + more, update, delete, 0]
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// An empty log; memory is touched as it is written. With a store, its segments are loaded by
    /// [`Log::recover`] before anything is appended.
    pub fn new(
        config: Config,
        mut store: Option<Store>,
        budget: Arc<Budget>,
        epochs: Arc<Epochs>,
    ) -> io::Result<Self> {
        assert!(config.segment_size.is_power_of_two());
        assert!(config.segment_size <= crate::MAX_SEGMENT_SIZE);
        let frames = Frames::reserve(config.max_frame_bytes, config.segment_size)?;
        // Without a store nothing is read from one.
        let frames_at_most = if store.is_some() { frames.count() as usize } else { 0 };
        let count = match &mut store {
            Some(store) => {
                store.reserve_places(most_places(config.max_frame_bytes));
                store.segment_count()
            }
            None => {
                // Jumbos are longer than half a segment: three numbers per frame are enough for
                // any mix.
                let wanted = (config.max_frame_bytes as usize / config.segment_size + 8) * 3;
                wanted.min(crate::address::MAX_SEGMENT as usize)
            }
        };
        let limit = store.as_ref().map_or(count, Store::most_segments);
        let segments = Table::new(count + 1, limit + 1, |_| Segment::default());
        budget.charge((segments.len() * bytes_per_segment(store.is_some())) as u64);
        let mut numbers = Places::new(store.as_ref().map_or(0, Store::fast_segments));
        if store.is_none() {
            numbers.extend((1..=count as SegmentNumber).rev());
        }
        Ok(Log {
            segment_size: config.segment_size,
            pins: Pins::new(&budget),
            budget,
            spare_images: Mutex::default(),
            epochs,
            segments,
            frames,
            numbers: Mutex::new(numbers),
            streams: Default::default(),
            closings: Closings::default(),
            open_chunks: Mutex::default(),
            appenders: AtomicUsize::new(0),
            usage: Mutex::new(UsageTable::new(limit + 1)),
            changed: Mutex::default(),
            listed: Table::new(count + 1, limit + 1, |_| AtomicU8::new(0)),
            counts_wanted: AtomicU64::new(0),
            quarantine: Mutex::default(),
            wanted_numbers: AtomicU32::new(0),
            keeps_all: config.keeps_all,
            reclaimable: AtomicUsize::new(0),
            evicting: AtomicU32::new(0),
            dropped: Mutex::default(),
            jumbo_frames: Mutex::default(),
            looks: AtomicU64::new(0),
            copies: Copies::new(frames_at_most, config.segment_size),
            store,
        })
    }

    /// The store, if there is one.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Records up to this many bytes lie in normal segments; larger ones are jumbos.
    pub fn largest_record(&self) -> usize {
        self.segment_size / 2
    }

    /// The entry of a segment.
    #[inline]
    pub fn segment(&self, number: SegmentNumber) -> &Segment {
        &self.segments[number as usize]
    }

    /// The numbers of all segments.
    pub fn numbers(&self) -> std::ops::Range<SegmentNumber> {
        1..self.segments.len() as SegmentNumber
    }

    /// Segments that hold records.
    pub fn segments_in_use(&self) -> u32 {
        self.numbers().filter(|&number| self.segment(number).is_in_use()).count() as u32
    }

    /// How many segments were looked at, each time counted, to find out what to write, free or tell.
    pub fn segments_looked_at(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn count_looks(&self, segments: usize) {
        self.looks.fetch_add(segments as u64, Ordering::Relaxed);
    }

    /// Bytes of RAM in normal frames.
    pub fn frame_bytes(&self) -> u64 {
        self.frames.resident()
    }

    /// Frames that writers could take without reclaiming.
    pub fn available_frames(&self) -> usize {
        self.frames.available(&self.budget)
    }

    /// Frames whose memory was used before and that are ready for writers.
    pub fn ready_frames(&self) -> usize {
        self.frames.ready()
    }

    /// Has the next frame's memory supplied before a writer needs it.
    pub fn prepare_frame(&self) {
        self.frames.prepare(&self.budget);
    }

    /// Whether nothing stands before this record in its segment: a frame was taken for it.
    #[inline]
    pub fn begins_segment(&self, address: Address) -> bool {
        address.offset() <= HEADER_BYTES
    }

    /// Gives unused frames back to the operating system while the budget is exceeded.
    pub fn shrink(&self) {
        self.frames.shrink(&self.budget);
    }

    /// Gives the memory back that is kept for segments which are loaded: there may be less from now on.
    pub fn forget_spare(&self) {
        let spare = std::mem::take(&mut *lock(&self.spare_images));
        self.budget.release((spare.len() * self.segment_size()) as u64);
    }

    /// The record at `address`, or `None` if it has no RAM copy.
    ///
    /// # Safety
    /// `address` must have been read from a published slot since the thread's last quiescent point
    /// (or be protected in another way from the frame's reuse).
    #[inline]
    pub unsafe fn record(&self, address: Address) -> Option<Record<'_>> {
        let segment = self.segment(address.segment());
        let frame = segment.frame();
        if frame.is_null() {
            return None;
        }
        // SAFETY: a published address points to a whole record; by the caller's promise its frame
        // is not reused while the answer is in use.
        Some(unsafe { Record::at(frame.add(address.offset()), || segment.jumbo_value()) })
    }

    /// Whether a value in this segment's frame is [pinned](Log::pin).
    pub fn is_pinned(&self, number: SegmentNumber) -> bool {
        self.pins.are_in(self.segment(number).frame())
    }

    /// Keeps the value of the record at `address` readable from its byte `from` on, whatever becomes of
    /// the record.
    ///
    /// # Safety
    /// As [`Log::record`], for the record as it is given.
    pub unsafe fn pin(&self, address: Address, record: &Record<'_>, from: usize) -> Pin {
        let rest = &record.value()[from..];
        let segment = self.segment(address.segment());
        let frame = segment.frame();
        let bytes = if segment.is_jumbo() { segment.jumbo_mapping() } else { self.segment_size };
        let range = frame as usize..frame as usize + bytes;
        let in_frame = !frame.is_null() && range.contains(&(rest.as_ptr() as usize));
        if !in_frame {
            return self.pins.copy(rest);
        }
        // SAFETY: a frame is given back by `Log::give_back`, by the caller's promise not before the thread's
        // next quiescent point.
        unsafe { self.pins.pin(frame, rest) }
    }

    /// Asks the processor to fetch the record at `address`, or what leads to its copy.
    ///
    /// # Safety
    /// The thread is awake in the epochs.
    #[inline]
    pub unsafe fn prefetch(&self, address: Address) {
        let frame = self.segment(address.segment()).frame();
        if frame.is_null() {
            // SAFETY: by the caller's promise.
            return unsafe { self.copies.prefetch(address) };
        }
        let at = frame.wrapping_add(address.offset());
        prefetch::for_reading(at);
        prefetch::for_reading(at.wrapping_add(prefetch::LINE));
    }

    /// Reserves space for a record of `bytes` (a multiple of 8). Never waits; `None` means that
    /// memory must be reclaimed first.
    #[inline]
    pub fn reserve(
        &self,
        stream: Stream,
        bytes: usize,
        now: u32,
        claim: Claim,
    ) -> Option<Reservation> {
        debug_assert!(bytes <= self.largest_record() && bytes.is_multiple_of(8));
        loop {
            let number = self.open_segment(stream);
            self.admit(stream, number, claim)?;
            let segment = self.segment(number);
            if let Some(offset) = segment.reserve(bytes as u32, 0) {
                if self.keeps_all {
                    segment.note_record(bytes as u32);
                }
                let address = Address::new(number, offset as usize);
                // SAFETY: the reserved range lies inside of the frame.
                let memory = unsafe { segment.frame().add(offset as usize) };
                crate::rule::reserved();
                return Some(Reservation { address, memory });
            }
            self.roll(stream, number, now, claim)?;
        }
    }

    /// The segment that the stream is appended to; 0 before the first.
    #[inline]
    pub(crate) fn open_segment(&self, stream: Stream) -> SegmentNumber {
        self.streams[stream as usize].segment.load(Ordering::Acquire)
    }

    /// Takes a free number for a segment of a stream, unless it is among those reserved for more urgent
    /// claims; with the least urgent claim that may append to the segment.
    fn take_number(&self, stream: Stream, claim: Claim) -> Option<(SegmentNumber, Claim)> {
        let mut numbers = lock(&self.numbers);
        if numbers.len() <= self.spared(claim) {
            return None;
        }
        let number = numbers.take(Tier::of(stream))?;
        let admitted = |&least: &Claim| numbers.len() >= self.spared(least);
        Some((number, Claim::ALL.into_iter().find(admitted).unwrap_or(claim)))
    }

    /// Whether the claim may append to the stream's segment `open`, which was read before: `None` if that was
    /// opened for more urgent ones.
    #[inline]
    pub(crate) fn admit(&self, stream: Stream, open: SegmentNumber, claim: Claim) -> Option<()> {
        // Read after the segment that it is about.
        if self.streams[stream as usize].claim.load(Ordering::Relaxed) > claim as u8 {
            self.admit_late(stream, open, claim)?;
        }
        Some(())
    }

    /// The stream's segment `open` was opened for more urgent claims. If as much is free again as this one
    /// has to spare, it may append there; else the answer is `None`.
    #[cold]
    fn admit_late(&self, stream: Stream, open: SegmentNumber, claim: Claim) -> Option<()> {
        let stream = &self.streams[stream as usize];
        let _rolling = lock(&stream.roll);
        if stream.segment.load(Ordering::Acquire) != open {
            return Some(());
        }
        if lock(&self.numbers).len() < self.spared(claim) {
            return None;
        }
        let least = stream.claim.load(Ordering::Relaxed).min(claim as u8);
        stream.claim.store(least, Ordering::Relaxed);
        Some(())
    }

    /// Places of the store that a claim leaves to more urgent ones; without a store, none.
    pub fn spared(&self, claim: Claim) -> usize {
        let Some(store) = &self.store else { return 0 };
        let reclaimable = self.reclaimable.load(Ordering::Relaxed);
        spared(store.segment_count(), self.keeps_all, reclaimable)[claim as usize]
    }

    /// Sets the number of places that cleaning dead records would free. They count as free in the reserves, because
    /// cleaning costs less the more dead records a store may hold. The cleaner must count again before a place that
    /// it emptied becomes free: otherwise that place would count twice.
    pub fn set_reclaimable(&self, places: usize) {
        self.reclaimable.store(places, Ordering::Relaxed);
    }

    /// Bytes of places that emptying a sealed segment gains at least, however badly what is alive in it packs: a
    /// record that does not fit leaves less than its length unused. Ends may have to move on as tombstones. New
    /// segments leave so much room to their summaries.
    pub(crate) fn gain(&self, number: SegmentNumber, live: u32, summary_room: u64) -> u64 {
        let size = self.segment_size as u64;
        let usable = size - HEADER_BYTES as u64 - TRAILER_BYTES as u64;
        let usable = usable.saturating_sub(summary_room);
        let largest = self.segment(number).largest().map_or(size / 2, u64::from);
        let filled_at_least = usable.saturating_sub(largest).max(1);
        let moving = u64::from(live) + self.end_bytes(number) + largest;
        size.saturating_sub((moving * size).div_ceil(filled_at_least))
    }

    /// The most bytes that a new segment of either stream leaves to its summary.
    pub(crate) fn most_summary_room(&self) -> u64 {
        self.summary_room(Stream::Hot).max(self.summary_room(Stream::Survivors)).into()
    }

    /// Whether claims leave places to more urgent ones for good: nothing is evicted from the store.
    pub fn keeps_reserves(&self) -> bool {
        self.store.is_some() && self.keeps_all
    }

    /// Places of the store that a claim could take; without a store, `usize::MAX`.
    pub fn available_numbers(&self, claim: Claim) -> usize {
        match self.store {
            Some(_) => lock(&self.numbers).len().saturating_sub(self.spared(claim)),
            None => usize::MAX,
        }
    }

    /// Seals the stream's segment `full` and opens the next. `None`: no frame, or no place.
    #[cold]
    fn roll(&self, stream: Stream, full: SegmentNumber, now: u32, claim: Claim) -> Option<()> {
        let open = &self.streams[stream as usize];
        let _rolling = lock(&open.roll);
        if open.segment.load(Ordering::Acquire) != full {
            return Some(());
        }
        let frame = self.frames.take(&self.budget, claim == Claim::Clean)?;
        let Some((number, least)) = self.take_number(stream, claim) else {
            // SAFETY: the frame was just taken and nobody has seen it.
            unsafe { self.frames.put(frame, &self.budget) };
            return None;
        };
        // What is appended to the next segment is newer than all that is in this one.
        self.close_segment(full);
        match &self.store {
            None => self.segment(number).open(frame, 0..self.segment_size, stream as u8, now),
            Some(store) => {
                let segment = self.segment(number);
                // The last trailer and a summary must fit behind the records.
                let behind = TRAILER_BYTES + self.summary_room(stream) as usize;
                let room = HEADER_BYTES..self.segment_size - behind;
                segment.open(frame, room, stream as u8, now);
                segment.kill(HEADER_BYTES);
                // SAFETY: the frame was just taken, and no record can be reserved in it before the
                // segment is the stream's open one.
                unsafe { store.begin_segment(number, segment, stream, frame, None) };
            }
        }
        // Before the epoch in which `full` is sealed begins: a thread that has seen that epoch does not
        // take `full` for the open segment, and fills no chunk of it any more.
        open.claim.store(least as u8, Ordering::Relaxed);
        open.segment.store(number, Ordering::Release);
        self.enqueue_sealed(stream, full);
        Some(())
    }

    /// No appends follow in the segment, if there is one.
    pub(crate) fn close_segment(&self, number: SegmentNumber) {
        if number != 0 {
            self.segment(number).close();
            self.note_closed(number);
        }
    }

    pub(crate) fn enqueue_sealed(&self, stream: Stream, number: SegmentNumber) {
        if number != 0 {
            self.segment(number).close();
            let sealed = self.epochs.advance();
            self.segment(number).set_state(State::Sealed);
            self.enqueue(stream, Sealed { segment: number, sealed }, End::Back);
            if let Some(store) = &self.store {
                store.note_unsynced(stream, number);
            }
        }
    }

    /// Seals both open segments, whatever they hold.
    pub fn seal_all(&self) {
        self.seal(Stream::Hot);
        self.seal(Stream::Survivors);
    }

    /// Seals the open segment of a stream, whatever it holds.
    pub fn seal(&self, stream: Stream) {
        let open = &self.streams[stream as usize];
        let _rolling = lock(&open.roll);
        let number = open.segment.swap(0, Ordering::AcqRel);
        self.close_segment(number);
        self.enqueue_sealed(stream, number);
    }

    /// Gives a filled mapping a segment number: one record, of the size that was claimed for, that begins at `start`
    /// in the mapping's first page. The mapping is charged already. `seal` completes the record when
    /// its address is known.
    pub fn adopt_jumbo(
        &self,
        claimed: JumboClaim,
        mapping: Mapping,
        start: usize,
        value: usize,
        now: u32,
        seal: impl FnOnce(Address),
    ) -> Address {
        let JumboClaim { number, parts, size } = claimed;
        let (base, bytes) = mapping.into_raw();
        let segment = self.segment(number);
        debug_assert!(start < PAGE);
        let at = base.wrapping_add(start);
        segment.open(at, 0..0, Stream::Hot as u8, now);
        segment.make_jumbo(size, value, bytes);
        seal(Address::new(number, 0));
        if let Some(store) = &self.store {
            // SAFETY: in front of the record there is room for the header, see `JUMBO_HEADROOM`.
            unsafe {
                let header = at.wrapping_sub(HEADER_BYTES);
                store.begin_segment(number, segment, Stream::Hot, header, Some(parts));
            }
            self.note_closed(number);
        }
        let sealed = self.epochs.advance();
        self.enqueue(Stream::Hot, Sealed { segment: number, sealed }, End::Back);
        Address::new(number, 0)
    }

    /// Places in the store that a jumbo waits for.
    pub fn wanted_numbers(&self) -> usize {
        self.wanted_numbers.load(Ordering::Relaxed) as usize
    }

    /// Nobody waits for them any more.
    pub fn unwant_numbers(&self) {
        self.wanted_numbers.store(0, Ordering::Relaxed);
    }

    /// Claims what [`Log::adopt_jumbo`] needs for a record of `size` bytes; `None` if places must be
    /// freed first.
    pub fn claim_jumbo(&self, size: usize, claim: Claim) -> Option<JumboClaim> {
        let Some(store) = &self.store else {
            let (number, _) = self.take_number(Stream::Hot, claim)?;
            return Some(JumboClaim { number, parts: Vec::new(), size });
        };
        let parts = store.jumbo_places(size);
        let mut numbers = lock(&self.numbers);
        if numbers.len() < parts + self.spared(claim) {
            self.wanted_numbers.store(parts as u32, Ordering::Relaxed);
            return None;
        }
        self.unwant_numbers();
        let mut take = || numbers.take(Tier::of(Stream::Hot));
        let number = take()?;
        let parts: Vec<_> = (1..parts).filter_map(|_| take()).collect();
        parts.iter().for_each(|&part| self.segment(part).begin_part());
        Some(JumboClaim { number, parts, size })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for Dropped { frame, jumbo, .. } in std::mem::take(&mut *lock(&self.dropped)) {
            // SAFETY: the log ends, so nobody reads it any more.
            unsafe { self.give_back(frame as *mut u8, jumbo) };
        }
        for number in self.numbers() {
            let segment = self.segment(number);
            let jumbo = segment.jumbo_mapping();
            if segment.state() != State::Free && jumbo != 0 && !segment.frame().is_null() {
                // SAFETY: the log ends, so nobody reads the jumbo any more.
                drop(unsafe { jumbo_mapping(segment.free(), jumbo) });
            }
        }
    }
}

/// Takes an adopted mapping of `bytes` back, whose record begins at `frame`.
///
/// # Safety
/// `frame` is what [`Log::adopt_jumbo`] stored, nobody reads it any more, and this is called once for it.
pub(crate) unsafe fn jumbo_mapping(frame: *mut u8, bytes: usize) -> Mapping {
    let base = frame.wrapping_sub(frame as usize % PAGE);
    // SAFETY: the record begins in the mapping's first page, so this is the base that `into_raw`
    // gave; it is taken back once, when its segment is freed.
    unsafe { Mapping::from_raw(base, bytes) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_dead_stands_in_for_places_that_claims_leave() {
        assert_eq!(spared(768, true, 0), [38, 26, 14, 2, 0]);
        assert_eq!(spared(768, true, 18), [20, 14, 8, 2, 0]);
        assert_eq!(spared(768, true, 1000), [5, 4, 3, 2, 0], "each claim has one of its own");
        assert_eq!(spared(768, false, 0), [3, 3, 3, 2, 0]);
        for reclaimable in 0..1000 {
            let [write, ..] = spared(768, true, reclaimable);
            assert!(write + reclaimable >= 38, "{reclaimable} stand in for more places");
        }
    }
}
