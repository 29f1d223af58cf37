//! The log: its segment table, frames and streams, and the access to records by their address.

use crate::address::{Address, MAX_SEGMENT, RecordId, SegmentNumber};
use crate::append::chunks::{Closings, OpenChunk};
use crate::append::stream::Open;
use crate::memory::frames::Frames;
use crate::memory::mapping::Mapping;
use crate::memory::pins::{Pin, Pins};
use crate::memory::prefetch;
use crate::memory::table::GrowingTable;
use crate::reclaim::quarantine::Quarantine;
use crate::reclaim::usage::UsageTable;
use crate::record::Record;
use crate::residency::copies::Copies;
use crate::residency::segment_image::{Dropped, Image};
use crate::segment::{Segment, State};
use crate::store::death_lists::DeathLists;
use crate::store::places::Places;
use crate::store::{SegmentEntry, Store};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};
use crate::{Budget, Epochs};
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Configuration of a log.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of a segment: a power of two, at most 8 MiB.
    pub segment_size: usize,
    /// The largest number of bytes that frames may ever take. Less than 8 segments count as 8.
    pub max_frame_bytes: u64,
    /// True if nothing is evicted. A full store must then still accept deletes and updates.
    pub keeps_all: bool,
}

/// The log: the segment table, the frames and the streams.
#[derive(Debug)]
pub struct Log {
    pub(crate) segment_size: usize,
    pub(crate) budget: Arc<Budget>,
    /// Memory of segments that were [loaded](Log::load_if_absent) and are no longer needed. The
    /// next loads use it again.
    pub(crate) spare_images: Mutex<Vec<Image>>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) segments: GrowingTable<Segment>,
    pub(crate) frames: Arc<Frames>,
    pub(crate) free_places: Mutex<Places>,
    pub(crate) streams: [Open; 2],
    pub(crate) closings: Closings,
    /// The open chunk of each [appender](Log::appender). `appenders` is the number of entries.
    pub(crate) open_chunks: Mutex<Vec<Arc<OpenChunk>>>,
    pub(crate) appenders: AtomicUsize,
    pub(crate) usage: Mutex<UsageTable>,
    /// Segments whose row in `usage` may be out of date, each listed once. The next query of
    /// `usage` examines them again.
    pub(crate) changed: Mutex<Vec<SegmentNumber>>,
    /// For each segment: 1 if the segment is listed in `changed`, otherwise 0.
    pub(crate) listed: GrowingTable<AtomicU8>,
    /// Number of times that threads were asked to report the bytes that they made dead.
    pub(crate) counts_wanted: AtomicU64,
    pub(crate) quarantine: Mutex<Quarantine>,
    pub(crate) wanted_places: AtomicU32,
    /// True if nothing is evicted from the store.
    pub(crate) keeps_all: bool,
    /// Number of places that cleaning could gain from the dead bytes of sealed segments. Stays 0 in
    /// a log that evicts items.
    pub(crate) reclaimable: AtomicUsize,
    /// Number of segments that are being emptied, or are emptied and not yet durably free.
    pub(crate) evicting: AtomicU32,
    /// Dropped frames, with the epochs that must pass before they are reused.
    pub(crate) dropped: Mutex<VecDeque<Dropped>>,
    /// Held while a jumbo gains or loses its mapping.
    pub(crate) jumbo_frames: Mutex<()>,
    /// Number of times that background work has examined a segment, for statistics.
    pub(crate) looks: AtomicU64,
    pub(crate) copies: Copies,
    pub(crate) pins: Arc<Pins>,
    pub(crate) store: Option<Store>,
}

/// Limits the growth of a running store: the tables with an entry per place may take at most
/// 1/`MEMORY_SHARE` of the log's memory limit.
const MEMORY_SHARE: u64 = 4;

/// Returns the largest number of places whose tables fit into their share of `memory` bytes.
pub(crate) fn most_places(memory: u64) -> u32 {
    (memory / MEMORY_SHARE / bytes_per_segment(true) as u64).min(MAX_SEGMENT.into()) as u32
}

/// Returns the number of bytes that the table entries of one segment take.
pub(crate) fn bytes_per_segment(with_store: bool) -> usize {
    let entry = if with_store { size_of::<SegmentEntry>() + DeathLists::BYTES } else { 0 };
    size_of::<Segment>() + entry + UsageTable::BYTES + size_of::<AtomicU8>()
}

impl Log {
    /// Creates an empty log. The kernel supplies the frames' memory when they are first written.
    /// With a store, the caller must run a recovery ([`DurableLog::survey`] to
    /// [`DurableLog::finish_recovery`]) before it appends anything.
    pub fn new(
        config: Config,
        mut store: Option<Store>,
        budget: Arc<Budget>,
        epochs: Arc<Epochs>,
    ) -> io::Result<Self> {
        assert!(config.segment_size.is_power_of_two());
        assert!(config.segment_size <= crate::MAX_SEGMENT_SIZE);
        let frames = Arc::new(Frames::reserve(config.max_frame_bytes, config.segment_size)?);
        // The number of frames that copies may take. It is 0 without a store, because all segments
        // then have frames and no record needs a copy.
        let frames_at_most = if store.is_some() { frames.count() as usize } else { 0 };
        let count = match &mut store {
            Some(store) => {
                store.reserve_places(most_places(config.max_frame_bytes));
                store.segment_count()
            }
            None => {
                // Jumbos are longer than half a segment, so three segment numbers per frame are
                // enough for any mix of jumbos and normal segments.
                let wanted = (config.max_frame_bytes as usize / config.segment_size + 8) * 3;
                wanted.min(crate::address::MAX_SEGMENT as usize)
            }
        };
        let limit = store.as_ref().map_or(count, Store::most_segments);
        let segments = GrowingTable::new(count + 1, limit + 1, |_| Segment::default());
        budget.charge((segments.len() * bytes_per_segment(store.is_some())) as u64);
        let mut free_places = Places::new(store.as_ref().map_or(0, Store::fast_segments));
        if store.is_none() {
            free_places.extend((1..=count as SegmentNumber).rev());
        }
        let copies = Copies::new(
            frames_at_most,
            config.segment_size,
            Arc::clone(&frames),
            Arc::clone(&budget),
            Arc::clone(&epochs),
        );
        Ok(Log {
            segment_size: config.segment_size,
            pins: Pins::new(&budget),
            budget,
            spare_images: Mutex::default(),
            epochs,
            segments,
            frames,
            free_places: Mutex::new(free_places),
            streams: Default::default(),
            closings: Closings::default(),
            open_chunks: Mutex::default(),
            appenders: AtomicUsize::new(0),
            usage: Mutex::new(UsageTable::new(limit + 1)),
            changed: Mutex::default(),
            listed: GrowingTable::new(count + 1, limit + 1, |_| AtomicU8::new(0)),
            counts_wanted: AtomicU64::new(0),
            quarantine: Mutex::default(),
            wanted_places: AtomicU32::new(0),
            keeps_all: config.keeps_all,
            reclaimable: AtomicUsize::new(0),
            evicting: AtomicU32::new(0),
            dropped: Mutex::default(),
            jumbo_frames: Mutex::default(),
            looks: AtomicU64::new(0),
            copies,
            store,
        })
    }

    /// Returns the store, if there is one.
    #[inline]
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Returns the log with its store, if it has one.
    #[inline]
    pub fn durable(&self) -> Option<DurableLog<'_>> {
        self.store.as_ref().map(|store| DurableLog { log: self, store })
    }

    /// Returns the copies of records whose segments have no frame.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Returns the id of the record at `address` in the present generation of its segment.
    #[inline]
    pub fn record_id(&self, address: Address) -> RecordId {
        RecordId { address, generation: self.segment(address.segment()).generation() }
    }

    /// Returns the size of a segment, in bytes.
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

    /// Returns the number of times that background work has examined a segment to decide what to
    /// write, free or report.
    pub fn segments_looked_at(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn count_looks(&self, segments: usize) {
        self.looks.fetch_add(segments as u64, Ordering::Relaxed);
    }

    /// Returns the number of resident bytes of frames, without jumbos.
    pub fn frame_bytes(&self) -> u64 {
        self.frames.resident()
    }

    /// Returns the number of frames that writers could take without reclaiming.
    pub fn available_frames(&self) -> usize {
        self.frames.available(&self.budget)
    }

    /// Returns true if a writer could take a frame now. The writer must leave the cleaner's
    /// reserve, and the memory that another thread [waits for](Budget::want). Without a store and
    /// without eviction, the writer may take the memory that another thread waits for.
    pub fn has_frame_for_writers(&self) -> bool {
        self.frames.has_one_for_writers(&self.budget)
    }

    /// Returns the number of frames with resident memory that are ready for writers.
    pub fn ready_frames(&self) -> usize {
        self.frames.ready()
    }

    /// Makes the memory of the next frame resident before a writer needs it.
    pub fn prepare_frame(&self) {
        self.frames.prepare(&self.budget);
    }

    /// Returns unused frames to the operating system while the budget is exceeded.
    pub fn shrink(&self) {
        self.frames.shrink(&self.budget);
    }

    /// Frees the memory that is kept for the next loads of segments. The lane calls this when its
    /// memory limit changes, because the new limit may be smaller.
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

    /// Pins the value of the record at `address`, from the value's byte `from` on. These bytes stay
    /// readable even after the record is dead or its frame is dropped, unless the pin is
    /// [given up](Pin).
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
        // SAFETY: only `Log::give_back` gives a frame back for reuse, and it unpins the frame's
        // values first. By the caller's promise, it does not run for this frame before the thread's
        // next quiescent point.
        unsafe { self.pins.pin(frame, rest) }
    }

    /// Prefetches the record at `address`. If its segment has no frame, prefetches the slots that
    /// may lead to a copy of the record.
    ///
    /// # Safety
    /// The thread must be an awake participant of the log's epochs.
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
}

/// A log that has a store: see [`Log::durable`]. Functions that need a store are methods of this
/// type, so they need not check whether there is a store.
#[derive(Clone, Copy, Debug)]
pub struct DurableLog<'a> {
    log: &'a Log,
    /// The log's store.
    pub store: &'a Store,
}

impl Deref for DurableLog<'_> {
    type Target = Log;

    #[inline]
    fn deref(&self) -> &Log {
        self.log
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for Dropped { frame, jumbo, .. } in std::mem::take(&mut *lock(&self.dropped)) {
            // SAFETY: the log is being dropped, so no thread reads the frame any more.
            unsafe { self.give_back(frame as *mut u8, jumbo) };
        }
        for number in self.numbers() {
            let segment = self.segment(number);
            let jumbo = segment.jumbo_mapping();
            if segment.state() != State::Free && jumbo != 0 && !segment.frame().is_null() {
                // SAFETY: the log is being dropped, so no thread reads the jumbo any more.
                drop(unsafe { Mapping::of_jumbo(segment.free(), jumbo) });
            }
        }
    }
}
