//! Chunks: parts of the open segment that one thread fills alone. Without them, two appending
//! threads would contend for the cache line of the segment's end with every record.
//!
//! Code that walks a segment need not know about chunks: before a segment is walked, the unused
//! rest of each of its chunks has become a filler. Without a store, the thread that used the chunk
//! writes this filler before its next quiescent point. No other thread walks the segment before
//! that point. With a store, a chunk ends with the commit that covers it. While a commit is being
//! [closed](Closings), no append to a chunk begins. Afterwards the committer writes the fillers
//! that are still missing. A thread that takes another chunk writes the filler of its last one.
//!
//! Invariant: once a record lies behind a commit's trailer, no later record is put in front of that
//! trailer.

use crate::address::SegmentNumber;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// Counts the beginning and the end of every closing of a commit. So the count is odd while a
/// commit is being closed. An early write counts like a closing. All appending threads read the
/// count.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Closings(pub(super) AtomicU64);

/// An even [count of closings](Closings): no commit is being closed, so threads may use chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvenClosings(pub(super) u64);

impl Closings {
    /// Returns the count, or `None` while a commit is being closed.
    #[inline]
    pub(crate) fn between(&self) -> Option<EvenClosings> {
        let count = self.0.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(EvenClosings(count))
    }
}

/// A part of a segment that one thread fills alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) segment: SegmentNumber,
    pub(crate) generation: u32,
    /// The count of closings when the thread took the chunk.
    pub(crate) taken: EvenClosings,
    pub(crate) end: u32,
}

/// The part of a thread's state that the thread which closes a commit needs, to write a filler into
/// the unused rest of the chunk.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OpenChunk {
    /// Offset at which the thread appends next. Only the thread writes it, and with a store only
    /// while it is [appending](crate::Participant::appending_seen).
    at: AtomicU32,
    /// The chunk; `None` once its unused rest is a filler.
    pub(super) unfilled: Mutex<Option<Chunk>>,
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

    /// Sets the thread's new chunk, whose unused rest is not a filler yet.
    pub(crate) fn set(&self, chunk: Chunk) {
        *lock(&self.unfilled) = Some(chunk);
    }
}
