//! Streams of segments: where records are appended, in which order segments are reclaimed, and how
//! a segment's frame gets back to the pool.

use crate::address::{Address, SegmentNumber};
use crate::frames::Frames;
use crate::memory::{Mapping, PAGE};
use crate::record::Record;
use crate::segment::{Segment, State};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::{Budget, Epochs};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A stream: what kind of records are appended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// New writes: S3-FIFO's probation queue.
    Hot = 0,
    /// What has proved its worth: S3-FIFO's main queue.
    Survivors = 1,
}

/// Who asks for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A client's write.
    Write,
    /// The cleaner, which may use the reserve.
    Clean,
}

/// Space for one record, not yet visible to anybody. It must be filled before the thread's next
/// quiescent point.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Where the record will be.
    pub address: Address,
    /// Its memory: 8-byte aligned, as long as was asked for, written by this thread alone.
    pub memory: *mut u8,
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

/// How a log is built.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of a segment: a power of two, at most 8 MiB.
    pub segment_size: usize,
    /// The most bytes of frames that may ever be wanted.
    pub max_frame_bytes: u64,
}

#[derive(Debug, Default)]
struct Open {
    /// The open segment; 0 before the first.
    segment: AtomicU32,
    roll: Mutex<()>,
}

/// The log.
#[derive(Debug)]
pub struct Log {
    segment_size: usize,
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
    segments: Box<[Segment]>,
    frames: Frames,
    numbers: Mutex<Vec<SegmentNumber>>,
    streams: [Open; 2],
    queues: [Mutex<VecDeque<Sealed>>; 2],
    quarantine: Mutex<VecDeque<(u64, SegmentNumber)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// An empty log; memory is touched as it is written.
    pub fn new(config: Config, budget: Arc<Budget>, epochs: Arc<Epochs>) -> io::Result<Self> {
        assert!(config.segment_size.is_power_of_two());
        assert!(config.segment_size <= crate::MAX_SEGMENT_SIZE);
        let frames = Frames::reserve(config.max_frame_bytes, config.segment_size)?;
        // Jumbos are longer than half a segment: three numbers per frame are enough for any mix.
        let wanted = (config.max_frame_bytes as usize / config.segment_size + 8) * 3;
        let count = wanted.min(crate::address::MAX_SEGMENT as usize);
        let segments: Box<[Segment]> = (0..=count).map(|_| Segment::default()).collect();
        budget.charge((segments.len() * size_of::<Segment>()) as u64);
        Ok(Log {
            segment_size: config.segment_size,
            budget,
            epochs,
            segments,
            frames,
            numbers: Mutex::new((1..=count as SegmentNumber).rev().collect()),
            streams: Default::default(),
            queues: Default::default(),
            quarantine: Mutex::default(),
        })
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

    /// Bytes of RAM in normal frames.
    pub fn frame_bytes(&self) -> u64 {
        self.frames.resident()
    }

    /// Frames that writers could take without reclaiming.
    pub fn available_frames(&self) -> usize {
        self.frames.available(&self.budget)
    }

    /// Gives unused frames back to the operating system while the budget is exceeded.
    pub fn shrink(&self) {
        self.frames.shrink(&self.budget);
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

    /// Asks the processor to fetch the record at `address`.
    #[inline]
    pub fn prefetch(&self, address: Address) {
        let frame = self.segment(address.segment()).frame();
        let at = frame.wrapping_add(address.offset());
        prefetch(at);
        prefetch(at.wrapping_add(64));
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
            let number = self.streams[stream as usize].segment.load(Ordering::Acquire);
            let segment = self.segment(number);
            if let Some(offset) = segment.reserve(bytes as u32, self.segment_size as u32) {
                let address = Address::new(number, offset as usize);
                // SAFETY: the reserved range lies inside of the frame.
                let memory = unsafe { segment.frame().add(offset as usize) };
                return Some(Reservation { address, memory });
            }
            self.roll(stream, number, now, claim)?;
        }
    }

    /// Seals the stream's segment `full` and opens the next. `None`: no frame.
    #[cold]
    fn roll(&self, stream: Stream, full: SegmentNumber, now: u32, claim: Claim) -> Option<()> {
        let open = &self.streams[stream as usize];
        let _rolling = lock(&open.roll);
        if open.segment.load(Ordering::Acquire) != full {
            return Some(());
        }
        let frame = self.frames.take(&self.budget, claim == Claim::Clean)?;
        let Some(number) = lock(&self.numbers).pop() else {
            // SAFETY: the frame was just taken and nobody has seen it.
            unsafe { self.frames.put(frame, &self.budget) };
            return None;
        };
        self.segment(number).open(frame, stream as u8, now);
        open.segment.store(number, Ordering::Release);
        self.enqueue_sealed(stream, full);
        Some(())
    }

    fn enqueue_sealed(&self, stream: Stream, number: SegmentNumber) {
        if number != 0 {
            self.segment(number).close();
            let sealed = self.epochs.advance();
            self.segment(number).set_state(State::Sealed);
            lock(&self.queues[stream as usize]).push_back(Sealed { segment: number, sealed });
        }
    }

    /// Seals both open segments, whatever they hold.
    pub fn seal_all(&self) {
        for stream in [Stream::Hot, Stream::Survivors] {
            let open = &self.streams[stream as usize];
            let _rolling = lock(&open.roll);
            let number = open.segment.swap(0, Ordering::AcqRel);
            self.enqueue_sealed(stream, number);
        }
    }

    /// Gives a filled mapping a segment number: one record of `size` bytes that begins at `start`
    /// in the mapping's first page. The mapping is charged already; it is given back if there is no
    /// number.
    pub fn adopt_jumbo(
        &self,
        mapping: Mapping,
        start: usize,
        size: usize,
        value: usize,
        now: u32,
    ) -> Result<Address, Mapping> {
        let Some(number) = lock(&self.numbers).pop() else { return Err(mapping) };
        let (base, bytes) = mapping.into_raw();
        let segment = self.segment(number);
        debug_assert!(start < PAGE);
        segment.open(base.wrapping_add(start), Stream::Hot as u8, now);
        segment.make_jumbo(size, value, bytes);
        let sealed = self.epochs.advance();
        lock(&self.queues[Stream::Hot as usize]).push_back(Sealed { segment: number, sealed });
        Ok(Address::new(number, 0))
    }

    /// Sealed segments whose `sealed` is at most this have no appender left.
    pub fn settled(&self) -> u64 {
        self.epochs.horizon()
    }

    /// Takes every sealed segment out of the queues. The caller has made sure that nobody appends.
    pub fn drain_sealed(&self) -> Vec<SegmentNumber> {
        self.queues
            .iter()
            .flat_map(|queue| std::mem::take(&mut *lock(queue)))
            .map(|q| q.segment)
            .collect()
    }

    /// The sealed segments of a stream, oldest first.
    pub fn sealed(&self, stream: Stream) -> Vec<Sealed> {
        lock(&self.queues[stream as usize]).iter().copied().collect()
    }

    /// Moves a sealed segment to the end of the survivors: its records go on living there without
    /// being moved.
    pub fn promote(&self, stream: Stream, number: SegmentNumber) {
        if let Some(entry) = self.take_queued(stream, number) {
            lock(&self.queues[Stream::Survivors as usize]).push_back(entry);
        }
    }

    fn take_queued(&self, stream: Stream, number: SegmentNumber) -> Option<Sealed> {
        let mut queue = lock(&self.queues[stream as usize]);
        let at = queue.iter().position(|entry| entry.segment == number)?;
        queue.remove(at)
    }

    /// Takes a sealed segment for cleaning; false if somebody else has it.
    pub fn begin_cleaning(&self, stream: Stream, number: SegmentNumber) -> bool {
        if self.take_queued(stream, number).is_none() {
            return false;
        }
        self.segment(number).set_state(State::Cleaning);
        true
    }

    /// Puts a segment that could not be cleaned back at the front of its queue.
    pub fn abandon_cleaning(&self, stream: Stream, number: SegmentNumber) {
        self.segment(number).set_state(State::Sealed);
        lock(&self.queues[stream as usize]).push_front(Sealed { segment: number, sealed: 0 });
    }

    /// The records of a sealed segment, in order.
    ///
    /// # Safety
    /// The segment must be sealed, its appenders done, and it must not be freed meanwhile.
    pub unsafe fn records(&self, number: SegmentNumber) -> impl Iterator<Item = Appended<'_>> {
        let segment = self.segment(number);
        let (frame, filled) = (segment.frame(), segment.filled() as usize);
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset >= filled {
                return None;
            }
            // SAFETY: records follow each other without gaps up to the segment's filled length, and
            // the caller says that they are complete.
            let record = unsafe { Record::at(frame.add(offset), || segment.jumbo_value()) };
            let address = Address::new(number, offset);
            offset += record.size();
            Some((address, record))
        })
    }

    /// The segment's records are out of the index: its frame is reused after the quiescent period.
    pub fn quarantine(&self, number: SegmentNumber) {
        self.segment(number).set_state(State::Quarantine);
        let epoch = self.epochs.advance();
        lock(&self.quarantine).push_back((epoch, number));
    }

    /// Frees what has been in quarantine long enough; the answer is how many segments.
    pub fn reap(&self) -> usize {
        let mut freed = 0;
        loop {
            let number = {
                let mut waiting = lock(&self.quarantine);
                match waiting.front() {
                    Some(&(epoch, number)) if self.epochs.passed(epoch) => {
                        waiting.pop_front();
                        number
                    }
                    _ => return freed,
                }
            };
            self.free(number);
            freed += 1;
        }
    }

    /// Segments in quarantine.
    pub fn quarantined(&self) -> usize {
        lock(&self.quarantine).len()
    }

    fn free(&self, number: SegmentNumber) {
        let segment = self.segment(number);
        let jumbo = segment.jumbo_mapping();
        let frame = segment.free();
        if jumbo != 0 {
            // SAFETY: nobody reads the jumbo after the quiescent period.
            unsafe { unmap_jumbo(frame, jumbo) };
            self.budget.release(jumbo as u64);
        } else {
            // SAFETY: nobody reads the frame after the quiescent period.
            unsafe { self.frames.put(frame, &self.budget) };
        }
        lock(&self.numbers).push(number);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for number in self.numbers() {
            let segment = self.segment(number);
            let jumbo = segment.jumbo_mapping();
            if segment.state() != State::Free && jumbo != 0 {
                // SAFETY: the log ends, so nobody reads the jumbo any more.
                unsafe { unmap_jumbo(segment.free(), jumbo) };
            }
        }
    }
}

/// Gives an adopted mapping of `bytes` back, whose record begins at `frame`.
///
/// # Safety
/// `frame` is what [`Log::adopt_jumbo`] stored, and nobody reads it any more.
unsafe fn unmap_jumbo(frame: *mut u8, bytes: usize) {
    let base = frame.wrapping_sub(frame as usize % PAGE);
    // SAFETY: the record begins in the mapping's first page, so this is the base that `into_raw`
    // gave; it is taken back once, when its segment is freed.
    drop(unsafe { Mapping::from_raw(base, bytes) });
}

/// Asks the processor to fetch the cache line of `at`. Any address is allowed.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
