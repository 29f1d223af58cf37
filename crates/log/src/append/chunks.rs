//! Chunks: parts of the open segment that one thread fills alone. Without them, two appending
//! threads would contend for the cache line of the segment's end with every record.
//!
//! Code that walks a segment need not know about chunks, because by then the rest of each is a
//! filler. Without a store, the thread writes the filler at its quiescent point, and no thread
//! walks the chunk earlier. With a store, a chunk ends with the commit that covers it: while a
//! commit is being [closed](Closings), no thread begins to use a chunk, and the committer fills the
//! rests.
//!
//! Invariant: once a record lies behind a commit's trailer, no record is put in front of that
//! trailer.

use crate::address::SegmentNumber;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// Counts the beginning and the end of every closing of a commit, so the count is odd while one is
/// being closed. All appending threads read it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Closings(pub(super) AtomicU64);

/// An even [count of closings](Closings): no commit is being closed, so threads may use chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Between(pub(super) u64);

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
    /// The count of closings when the thread took the chunk.
    pub(crate) taken: Between,
    pub(crate) end: u32,
}

/// A thread's chunk, as the thread that closes a commit sees it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OpenChunk {
    /// Offset at which the thread appends next. Only the thread writes it, and with a store only
    /// while it is [appending](crate::Participant::appending_seen).
    at: AtomicU32,
    /// The chunk; `None` once its rest is a filler.
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

    /// Sets the thread's new chunk, whose rest is not a filler.
    pub(crate) fn set(&self, chunk: Chunk) {
        *lock(&self.unfilled) = Some(chunk);
    }
}
