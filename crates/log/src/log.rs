//! Streams of segments: where records are appended, in which order segments are reclaimed, and how
//! a segment's frame returns to the pool.

use crate::address::{Address, SegmentNumber};
use crate::append::chunks::{Closings, OpenChunk};
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::memory::frames::Frames;
use crate::memory::mapping::{Mapping, PAGE};
use crate::memory::pins::{Pin, Pins};
use crate::memory::prefetch;
use crate::memory::table::Table;
use crate::reclaim::quarantine::Quarantine;
use crate::reclaim::usage::{End, UsageTable};
use crate::record::Record;
use crate::residency::copies::Copies;
use crate::residency::{Dropped, Image};
use crate::segment::{Segment, State};
use crate::store::grow::most_places;
use crate::store::places::{Places, Tier};
use crate::store::{Entry, Store};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::{Budget, Epochs};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};

/// A stream: a sequence of segments that takes one kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// New writes: S3-FIFO's probation queue.
    Hot = 0,
    /// Records that the cleaner kept: S3-FIFO's main queue.
    Survivors = 1,
}

impl Stream {
    /// Returns the stream with the number `stream` in a segment's header.
    pub fn of(stream: u8) -> Stream {
        if stream == Stream::Hot as u8 { Stream::Hot } else { Stream::Survivors }
    }
}

/// The kind of operation that asks for space, in order of rising urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Claim {
    /// A client writes something new.
    Write = 0,
    /// A client updates an item and makes it larger.
    Grow = 1,
    /// A client updates an item without making it larger: a counter, or a new expiry.
    Update = 2,
    /// A client deletes an item.
    Delete = 3,
    /// The cleaner. It may use all the space there is.
    Clean = 4,
}

impl Claim {
    const ALL: [Claim; 5] = [Claim::Write, Claim::Grow, Claim::Update, Claim::Delete, Claim::Clean];
}

/// Segments of a store that only the cleaner may take: one per stream that it appends to.
const CLEANER_SEGMENTS: usize = 2;
/// In a store that evicts nothing, deletes have 1/`RESERVE_SHARE` of the segments to themselves.
/// Updates have as much again, and so do updates that make items larger. Deletes and plain updates
/// make at least as many bytes dead as they append. So when their reserve is used up, some segment
/// holds enough dead bytes to be worth cleaning. Only live records must leave room for the
/// reserves: see [`Log::set_reclaimable`].
const RESERVE_SHARE: usize = 64;
/// Number of these reserves: for deletes, for updates, and for updates that make items larger.
const RESERVES: usize = 3;
/// Distance between a reservation and the memory that is prefetched for later ones, in bytes. It
/// covers a few records, because a fetch takes as long as a few writes.
const PREFETCH_AHEAD: usize = 512;
/// The largest number of bytes prefetched per record. Beyond them the hardware prefetcher follows
/// by itself.
const PREFETCHED: usize = 256;

/// Space for one record, not yet visible to other threads. The thread must fill it before its next
/// quiescent point.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// The address of the future record.
    pub address: Address,
    /// Its memory: 8-byte aligned, of the requested length, written by this thread alone.
    pub memory: *mut u8,
}

impl Reservation {
    /// Prefetches the memory for the thread's later records, as much as a record of `bytes` needs.
    /// A locked instruction waits for all earlier writes, so a write that misses the processor's
    /// cache would delay the next lock.
    #[inline]
    pub fn prefetch_next(&self, bytes: usize) {
        for line in (0..bytes.min(PREFETCHED)).step_by(prefetch::LINE) {
            prefetch::for_writing(self.memory.wrapping_add(PREFETCH_AHEAD + line));
        }
    }
}

/// A sealed segment, with the epoch of its sealing.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The segment.
    pub segment: SegmentNumber,
    /// Once this epoch has passed, no thread appends to the segment any more.
    pub sealed: u64,
}

/// An appended record: its address and its bytes.
pub type Appended<'a> = (Address, Record<'a>);

/// Bytes that a mapping for [`Log::adopt_jumbo`] must leave in front of the record, for the segment
/// header that precedes it on a device.
pub const JUMBO_HEADROOM: usize = HEADER_BYTES;
/// Bytes that the mapping must leave behind the record, for the commit trailer.
pub const JUMBO_FOOTROOM: usize = TRAILER_BYTES;

/// Segment numbers claimed for a jumbo: its own, and with a store those of the further places it
/// covers.
#[derive(Debug)]
pub struct JumboClaim {
    number: SegmentNumber,
    parts: Vec<SegmentNumber>,
    size: usize,
}

/// Configuration of a log.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of a segment: a power of two, at most 8 MiB.
    pub segment_size: usize,
    /// The largest number of bytes that frames may ever take.
    pub max_frame_bytes: u64,
    /// True if nothing is evicted. A full store must then still accept deletes and updates.
    pub keeps_all: bool,
}

/// The append position of a stream. Every appending thread reads it, so no frequently changing
/// field shares its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Open {
    /// The open segment; 0 before the first.
    pub(crate) segment: AtomicU32,
    /// The least urgent [claim](Claim) that may append to the segment. Written under `roll`, before
    /// `segment`.
    claim: AtomicU8,
    pub(crate) roll: Mutex<()>,
}

/// The log: the segment table, the frames and the streams.
#[derive(Debug)]
pub struct Log {
    segment_size: usize,
    pub(crate) budget: Arc<Budget>,
    /// Memory kept for the next segments that are [loaded](Log::load_if_absent).
    pub(crate) spare_images: Mutex<Vec<Image>>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) segments: Table<Segment>,
    pub(crate) frames: Frames,
    pub(crate) numbers: Mutex<Places>,
    pub(crate) streams: [Open; 2],
    pub(crate) closings: Closings,
    /// The chunks of all [appenders](Log::appender); `appenders` is their number.
    pub(crate) open_chunks: Mutex<Vec<Arc<OpenChunk>>>,
    pub(crate) appenders: AtomicUsize,
    pub(crate) usage: Mutex<UsageTable>,
    /// Segments that have changed since the usage table last looked at them, each listed once.
    pub(crate) changed: Mutex<Vec<SegmentNumber>>,
    /// For each segment, whether it is in `changed`.
    pub(crate) listed: Table<AtomicU8>,
    /// How often threads were asked to report the bytes they made dead.
    pub(crate) counts_wanted: AtomicU64,
    pub(crate) quarantine: Mutex<Quarantine>,
    wanted_numbers: AtomicU32,
    /// True if nothing is evicted from the store.
    pub(crate) keeps_all: bool,
    /// Places that cleaning dead records would free; 0 if items are evicted.
    reclaimable: AtomicUsize,
    /// Segments that are being emptied, or are emptied and not yet durably free.
    pub(crate) evicting: AtomicU32,
    /// Dropped frames, with the epochs that must pass before they are reused.
    pub(crate) dropped: Mutex<VecDeque<Dropped>>,
    /// Held while a jumbo gains or loses its mapping.
    pub(crate) jumbo_frames: Mutex<()>,
    /// How often background work has looked at a segment.
    pub(crate) looks: AtomicU64,
    pub(crate) copies: Copies,
    pub(crate) pins: Arc<Pins>,
    pub(crate) store: Option<Store>,
}

/// Returns the bytes of table entries per place.
pub(crate) fn bytes_per_segment(with_store: bool) -> usize {
    let entry = if with_store { size_of::<Entry>() } else { 0 };
    size_of::<Segment>() + entry + UsageTable::BYTES + size_of::<AtomicU8>()
}

/// Returns, for a store of `places` places, how many of them each claim leaves to more urgent ones.
fn spared(places: usize, keeps_all: bool, reclaimable: usize) -> [usize; Claim::ALL.len()] {
    let of_each = places.div_ceil(RESERVE_SHARE).saturating_sub(reclaimable / RESERVES);
    // Where items are evicted, space for all claims soon becomes free.
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
    /// Creates an empty log. Its memory is touched only as it is written. With a store,
    /// [`Log::recover`] must load the segments before anything is appended.
    pub fn new(
        config: Config,
        mut store: Option<Store>,
        budget: Arc<Budget>,
        epochs: Arc<Epochs>,
    ) -> io::Result<Self> {
        assert!(config.segment_size.is_power_of_two());
        assert!(config.segment_size <= crate::MAX_SEGMENT_SIZE);
        let frames = Frames::reserve(config.max_frame_bytes, config.segment_size)?;
        // Without a store nothing is read from a device, so there are no copies.
        let frames_at_most = if store.is_some() { frames.count() as usize } else { 0 };
        let count = match &mut store {
            Some(store) => {
                store.reserve_places(most_places(config.max_frame_bytes));
                store.segment_count()
            }
            None => {
                // Jumbos are longer than half a segment: three numbers per frame are enough for any
                // mix.
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

    /// Returns the store, if there is one.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Returns the bytes of a segment.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Returns the largest size of a record in a normal segment, in bytes; larger ones are jumbos.
    pub fn largest_record(&self) -> usize {
        self.segment_size / 2
    }

    /// Returns the segment's table entry.
    #[inline]
    pub fn segment(&self, number: SegmentNumber) -> &Segment {
        &self.segments[number as usize]
    }

    /// Returns the numbers of all segments.
    pub fn numbers(&self) -> std::ops::Range<SegmentNumber> {
        1..self.segments.len() as SegmentNumber
    }

    /// Returns the number of segments that hold records.
    pub fn segments_in_use(&self) -> u32 {
        self.numbers().filter(|&number| self.segment(number).is_in_use()).count() as u32
    }

    /// Returns how often background work looked at a segment to decide what to write, free or
    /// report.
    pub fn segments_looked_at(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn count_looks(&self, segments: usize) {
        self.looks.fetch_add(segments as u64, Ordering::Relaxed);
    }

    /// Returns the bytes of RAM in normal frames.
    pub fn frame_bytes(&self) -> u64 {
        self.frames.resident()
    }

    /// Returns the number of frames that writers could take without reclaiming.
    pub fn available_frames(&self) -> usize {
        self.frames.available(&self.budget)
    }

    /// Returns the number of frames with resident memory that are ready for writers.
    pub fn ready_frames(&self) -> usize {
        self.frames.ready()
    }

    /// Makes the memory of the next frame resident before a writer needs it.
    pub fn prepare_frame(&self) {
        self.frames.prepare(&self.budget);
    }

    /// Returns true if this record is the first of its segment, so a frame was taken for it.
    #[inline]
    pub fn begins_segment(&self, address: Address) -> bool {
        address.offset() <= HEADER_BYTES
    }

    /// Returns unused frames to the operating system while the budget is exceeded.
    pub fn shrink(&self) {
        self.frames.shrink(&self.budget);
    }

    /// Frees the memory kept for loading segments, because fewer may be loaded from now on.
    pub fn forget_spare(&self) {
        let spare = std::mem::take(&mut *lock(&self.spare_images));
        self.budget.release((spare.len() * self.segment_size()) as u64);
    }

    /// Returns the record at `address`, or `None` if its segment has no frame.
    ///
    /// # Safety
    /// `address` must have been read from a published slot since the thread's last quiescent point,
    /// or the frame must be protected from reuse in another way.
    #[inline]
    pub unsafe fn record(&self, address: Address) -> Option<Record<'_>> {
        let segment = self.segment(address.segment());
        let frame = segment.frame();
        if frame.is_null() {
            return None;
        }
        // SAFETY: a published address points to a whole record; by the caller's promise its frame
        // is not reused while the returned record is in use.
        Some(unsafe { Record::at(frame.add(address.offset()), || segment.jumbo_value()) })
    }

    /// Returns true if a value in this segment's frame is [pinned](Log::pin).
    pub fn is_pinned(&self, number: SegmentNumber) -> bool {
        self.pins.are_in(self.segment(number).frame())
    }

    /// Keeps the value of the record at `address`, from its byte `from` on, readable even after the
    /// record is dead or its frame dropped.
    ///
    /// # Safety
    /// The same as for [`Log::record`], for the given record.
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
        // SAFETY: only `Log::give_back` returns a frame, and by the caller's promise not before the
        // thread's next quiescent point.
        unsafe { self.pins.pin(frame, rest) }
    }

    /// Prefetches the record at `address`, or the slots that lead to its copy.
    ///
    /// # Safety
    /// The thread must be awake in the epochs.
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

    /// Reserves space for a record of `bytes` (a multiple of 8). Never waits. Returns `None` if
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
                // SAFETY: the reserved range lies inside the frame.
                let memory = unsafe { segment.frame().add(offset as usize) };
                crate::rule::reserved();
                return Some(Reservation { address, memory });
            }
            self.roll(stream, number, now, claim)?;
        }
    }

    /// Returns the stream's open segment; 0 before the first.
    #[inline]
    pub(crate) fn open_segment(&self, stream: Stream) -> SegmentNumber {
        self.streams[stream as usize].segment.load(Ordering::Acquire)
    }

    /// Takes a free number for a segment of a stream, unless the free ones are reserved for more
    /// urgent claims. Also returns the least urgent claim that may append to the segment.
    fn take_number(&self, stream: Stream, claim: Claim) -> Option<(SegmentNumber, Claim)> {
        let mut numbers = lock(&self.numbers);
        if numbers.len() <= self.spared(claim) {
            return None;
        }
        let number = numbers.take(Tier::of(stream))?;
        let admitted = |&least: &Claim| numbers.len() >= self.spared(least);
        Some((number, Claim::ALL.into_iter().find(admitted).unwrap_or(claim)))
    }

    /// Returns `Some` if the claim may append to `open`, the stream's open segment as read before.
    /// Returns `None` if that segment was opened for more urgent claims.
    #[inline]
    pub(crate) fn admit(&self, stream: Stream, open: SegmentNumber, claim: Claim) -> Option<()> {
        // Read after `segment`, which it belongs to.
        if self.streams[stream as usize].claim.load(Ordering::Relaxed) > claim as u8 {
            self.admit_late(stream, open, claim)?;
        }
        Some(())
    }

    /// Admits a claim to segment `open`, which was opened for more urgent claims, if enough places
    /// have become free since then. Otherwise returns `None`.
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

    /// Returns the number of places that a claim leaves to more urgent ones; 0 without a store.
    pub fn spared(&self, claim: Claim) -> usize {
        let Some(store) = &self.store else { return 0 };
        let reclaimable = self.reclaimable.load(Ordering::Relaxed);
        spared(store.segment_count(), self.keeps_all, reclaimable)[claim as usize]
    }

    /// Sets the number of places that cleaning dead records would free. The reserves count them as
    /// free, because cleaning gets cheaper the more dead records a store may hold. The cleaner must
    /// count again before a place that it emptied becomes free; otherwise that place would count
    /// twice.
    pub fn set_reclaimable(&self, places: usize) {
        self.reclaimable.store(places, Ordering::Relaxed);
    }

    /// Returns a lower bound of the place bytes gained by emptying a sealed segment, however badly
    /// its live records pack: a record that does not fit leaves less than its own length unused.
    /// Ends may have to be moved as tombstones. `summary_room` is what a new segment leaves to its
    /// summary.
    pub(crate) fn gain(&self, number: SegmentNumber, live: u32, summary_room: u64) -> u64 {
        let size = self.segment_size as u64;
        let usable = size - HEADER_BYTES as u64 - TRAILER_BYTES as u64;
        let usable = usable.saturating_sub(summary_room);
        let largest = self.segment(number).largest().map_or(size / 2, u64::from);
        let filled_at_least = usable.saturating_sub(largest).max(1);
        let moving = u64::from(live) + self.end_bytes(number) + largest;
        size.saturating_sub((moving * size).div_ceil(filled_at_least))
    }

    /// Returns the largest number of bytes that a new segment of either stream leaves to its
    /// summary.
    pub(crate) fn most_summary_room(&self) -> u64 {
        self.summary_room(Stream::Hot).max(self.summary_room(Stream::Survivors)).into()
    }

    /// Returns true if claims permanently leave places to more urgent ones, because the store
    /// evicts nothing.
    pub fn keeps_reserves(&self) -> bool {
        self.store.is_some() && self.keeps_all
    }

    /// Returns the number of places that a claim could take; `usize::MAX` without a store.
    pub fn available_numbers(&self, claim: Claim) -> usize {
        match self.store {
            Some(_) => lock(&self.numbers).len().saturating_sub(self.spared(claim)),
            None => usize::MAX,
        }
    }

    /// Seals the stream's segment `full` and opens the next. Returns `None` if no frame or no place
    /// is available.
    #[cold]
    fn roll(&self, stream: Stream, full: SegmentNumber, now: u32, claim: Claim) -> Option<()> {
        let open = &self.streams[stream as usize];
        let _rolling = lock(&open.roll);
        if open.segment.load(Ordering::Acquire) != full {
            return Some(());
        }
        let frame = self.frames.take(&self.budget, claim == Claim::Clean)?;
        let Some((number, least)) = self.take_number(stream, claim) else {
            // SAFETY: the frame was just taken and no other thread has seen it.
            unsafe { self.frames.put(frame, &self.budget) };
            return None;
        };
        // Records in the next segment must be newer than all records in this one.
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
        // Stored before the epoch of `full`'s sealing begins. A thread that has seen that epoch no
        // longer takes `full` for the open segment, and fills no chunk of it.
        open.claim.store(least as u8, Ordering::Relaxed);
        open.segment.store(number, Ordering::Release);
        self.enqueue_sealed(stream, full);
        Some(())
    }

    /// Ends appends to the segment; does nothing for number 0.
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

    /// Seals both open segments, full or not.
    pub fn seal_all(&self) {
        self.seal(Stream::Hot);
        self.seal(Stream::Survivors);
    }

    /// Seals the open segment of a stream, full or not.
    pub fn seal(&self, stream: Stream) {
        let open = &self.streams[stream as usize];
        let _rolling = lock(&open.roll);
        let number = open.segment.swap(0, Ordering::AcqRel);
        self.close_segment(number);
        self.enqueue_sealed(stream, number);
    }

    /// Gives a filled mapping the claimed segment number. The mapping holds one record of the
    /// claimed size, which begins at `start` in the first page, and is charged already. `seal`
    /// completes the record once its address is known.
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
            // SAFETY: there is room for the header in front of the record, see `JUMBO_HEADROOM`.
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

    /// Returns the number of places in the store that a jumbo waits for.
    pub fn wanted_numbers(&self) -> usize {
        self.wanted_numbers.load(Ordering::Relaxed) as usize
    }

    /// Clears the number of wanted places, because no jumbo waits any more.
    pub fn unwant_numbers(&self) {
        self.wanted_numbers.store(0, Ordering::Relaxed);
    }

    /// Claims the segment numbers that [`Log::adopt_jumbo`] needs for a record of `size` bytes.
    /// Returns `None` if places must be freed first.
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
            // SAFETY: the log ends, so no thread reads the frame any more.
            unsafe { self.give_back(frame as *mut u8, jumbo) };
        }
        for number in self.numbers() {
            let segment = self.segment(number);
            let jumbo = segment.jumbo_mapping();
            if segment.state() != State::Free && jumbo != 0 && !segment.frame().is_null() {
                // SAFETY: the log ends, so no thread reads the jumbo any more.
                drop(unsafe { jumbo_mapping(segment.free(), jumbo) });
            }
        }
    }
}

/// Takes back an adopted mapping of `bytes` whose record begins at `frame`.
///
/// # Safety
/// `frame` must be what [`Log::adopt_jumbo`] stored, no thread may still read it, and this must be
/// called only once for it.
pub(crate) unsafe fn jumbo_mapping(frame: *mut u8, bytes: usize) -> Mapping {
    let base = frame.wrapping_sub(frame as usize % PAGE);
    // SAFETY: the record begins in the mapping's first page, so this is the base that `into_raw`
    // returned. It is taken back once, when its segment is freed.
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
