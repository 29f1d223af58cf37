//! Chunks: parts of the open segment that one thread fills alone. Without them, two appending
//! threads would take the cache line of the segment's end from each other with every record.
//!
//! Code that walks a segment need not know about chunks, because by then the rest of each is a
//! filler. Without a store the thread writes the filler at its quiescent point, and no thread walks
//! the chunk earlier. With a store a commit covers every chunk taken before it, so chunks end
//! there: while a commit is being [closed](Closings) no thread begins to use a chunk, and the
//! committer fills the rests.
//!
//! Invariant: once a record lies behind a commit's trailer, no record is put in front of that
//! trailer.

use crate::address::SegmentNumber;
use crate::format;
use crate::log::{Log, lock};
use crate::record::{HEADER, Kind, Layout, write_filler};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Counts the beginning and the end of every closing of a commit, so the count is odd while one is
/// being closed. All appending threads read it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Closings(AtomicU64);

/// An even [count of closings](Closings), at which a thread may use chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Between(u64);

impl Closings {
    /// Returns the count, or `None` while a commit is being closed.
    #[inline]
    pub(crate) fn between(&self) -> Option<Between> {
        let count = self.0.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(Between(count))
    }
}

/// A part of a segment that one thread fills alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) segment: SegmentNumber,
    pub(crate) generation: u32,
    /// The count of closings when it was taken.
    pub(crate) taken: Between,
    pub(crate) end: u32,
}

/// A thread's chunk, as the thread that closes a commit sees it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OpenChunk {
    /// Where the thread appends next. Only the thread writes it, and with a store only while it is
    /// [appending](crate::Participant::appending_seen).
    at: AtomicU32,
    /// The chunk, until its rest is a filler.
    unfilled: Mutex<Option<Chunk>>,
}

impl OpenChunk {
    /// Returns the offset of the thread's next record.
    #[inline]
    pub(crate) fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_at(&self, at: u32) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// Sets the thread's new chunk, whose rest is not a filler.
    pub(crate) fn set(&self, chunk: Chunk) {
        *lock(&self.unfilled) = Some(chunk);
    }
}

impl Log {
    /// Announces that a commit is about to reserve its trailers. From here to [`Log::end_closing`]
    /// no thread begins to use its old chunk or takes a new one. So a thread that appends after a
    /// record behind a trailer also appends behind that trailer. A thread that has not seen the new
    /// count was already appending, and the committer waits for it. Only one thread closes commits.
    pub(crate) fn begin_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the announcement once the trailers are reserved: later reservations lie behind them.
    pub(crate) fn end_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Fills up all chunks that the commit covers. Appends that began before it was closed must be
    /// complete.
    pub(crate) fn fill_covered_chunks(&self) {
        let count = self.closings.0.load(Ordering::Relaxed);
        let chunks: Vec<Arc<OpenChunk>> = lock(&self.open_chunks).clone();
        for open in chunks {
            let mut unfilled = lock(&open.unfilled);
            if unfilled.is_some_and(|chunk| chunk.taken.0 < count) {
                self.fill_up_taken(&open, &mut unfilled);
            }
        }
    }

    /// Fills up the thread's chunk, unless that is already done.
    pub(crate) fn fill_up_chunk(&self, open: &OpenChunk) {
        self.fill_up_taken(open, &mut lock(&open.unfilled));
    }

    fn fill_up_taken(&self, open: &OpenChunk, unfilled: &mut Option<Chunk>) {
        let Some(chunk) = unfilled.take() else { return };
        let left = (chunk.end - open.at()) as usize;
        if left == 0 {
            return;
        }
        let rest = self.segment(chunk.segment).frame().wrapping_add(open.at() as usize);
        // SAFETY: a rest is a multiple of 8 bytes and at least 16. With a store, no settled commit
        // covers the chunk, so the frame stays; the rest is filled once, under the lock. Without a
        // store the thread has used the chunk since its last quiescent point, so the segment cannot
        // have been reused.
        unsafe { write_filler(rest, left) };
        if let Some(store) = &self.store {
            let seed = store.segment_seed(chunk.segment, chunk.generation);
            let layout = Layout { header: HEADER, key: 0, value: left - HEADER };
            // SAFETY: as above; of a filler only the head is read.
            unsafe { format::seal_record(rest, Kind::Filler, &layout, None, seed) };
        }
    }
}
