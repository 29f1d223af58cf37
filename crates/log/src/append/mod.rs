//! Appending: the streams of segments, the reservation of space, and the chunk and the tally of
//! each writing thread.

mod appender;
pub(crate) mod chunks;
mod claims;
pub(crate) mod jumbo;
pub(crate) mod stream;
mod tally;

pub use appender::Appender;
pub use jumbo::{JUMBO_FOOTROOM, JUMBO_HEADROOM, JumboClaim};
pub use stream::{Claim, Sealed, Stream};

use crate::address::{Address, SegmentNumber};
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::Log;
use crate::memory::prefetch;
use crate::reclaim::usage::End;
use crate::record::Record;
use crate::segment::State;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// Distance between a reservation and the memory that is prefetched for later reservations, in
/// bytes. The distance spans a few records, because a fetch from memory takes as long as a few
/// writes.
const PREFETCH_AHEAD: usize = 512;
/// The largest number of bytes prefetched per record. The hardware prefetcher fetches the rest by
/// itself.
const PREFETCHED: usize = 256;

/// Space for one record, not yet visible to other threads. The thread that reserved it must fill it
/// before its own next quiescent point.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// The address of the future record.
    pub address: Address,
    /// The record's memory: 8-byte aligned, of the requested length, written by this thread alone.
    pub memory: *mut u8,
}

impl Reservation {
    /// Prefetches memory for a later record of the thread, assuming that it is `bytes` long, too.
    /// Without the prefetch, writing that record would miss the processor's cache. The thread's
    /// next atomic instruction would then wait until the write is complete.
    #[inline]
    pub fn prefetch_next(&self, bytes: usize) {
        for line in (0..bytes.min(PREFETCHED)).step_by(prefetch::LINE) {
            prefetch::for_writing(self.memory.wrapping_add(PREFETCH_AHEAD + line));
        }
    }
}

/// An appended record: its address and its bytes.
pub type Appended<'a> = (Address, Record<'a>);

impl Log {
    /// Reserves space for a record of `bytes` (a multiple of 8). Never waits for space. Returns
    /// `None` if the cleaner must first free memory or a place.
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

    /// Returns the stream's open segment; 0 while there is none.
    #[inline]
    pub(crate) fn open_segment(&self, stream: Stream) -> SegmentNumber {
        self.streams[stream as usize].segment.load(Ordering::Acquire)
    }

    /// Seals the stream's segment `full` and opens the next, unless another thread has done so.
    /// Returns `None` if no frame or no place is available.
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
        // `full` is closed before the next segment opens. So all records in the next segment are
        // newer than those in `full`.
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
        // `claim` and `segment` are stored before `enqueue_sealed` begins a new epoch. A thread
        // that has seen that epoch also sees the new open segment, so it no longer appends to a
        // chunk of `full`.
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

    /// Seals the open segments of both streams, full or not.
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

    /// Returns true if this record is the first of its segment. A frame was then taken for the
    /// segment just before, so the cleaner may have to make room. Without a store, also returns
    /// true for records that begin at most `HEADER_BYTES` behind the first.
    #[inline]
    pub fn begins_segment(&self, address: Address) -> bool {
        address.offset() <= HEADER_BYTES
    }
}
