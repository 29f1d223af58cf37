//! The streams that records are appended to, and the claims: how urgently an operation needs space.

use crate::address::SegmentNumber;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, AtomicU32};

/// A stream: a sequence of segments that takes one kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// New writes: S3-FIFO's probation queue. Records that the cleaner moves during their probation
    /// stay in this stream.
    Hot = 0,
    /// Records that the cleaner kept, and new items whose keys were recently evicted: S3-FIFO's
    /// main queue.
    Survivors = 1,
}

impl Stream {
    pub(crate) const ALL: [Stream; 2] = [Stream::Hot, Stream::Survivors];

    /// Returns the stream that the byte `stream` of a segment's header stands for.
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
    /// A client updates an item without making it larger. For example, it changes a counter or an
    /// expiry.
    Update = 2,
    /// A client deletes an item.
    Delete = 3,
    /// The cleaner moves a record. It may use all free space.
    Clean = 4,
}

impl Claim {
    pub(crate) const ALL: [Claim; 5] =
        [Claim::Write, Claim::Grow, Claim::Update, Claim::Delete, Claim::Clean];
}

/// A sealed segment, with the epoch of its sealing.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The segment.
    pub segment: SegmentNumber,
    /// Once this epoch has passed, no thread appends to the segment any more.
    pub sealed: u64,
}

/// The append position of a stream. Every appending thread reads it, so no frequently changing
/// field shares its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Open {
    /// The open segment; 0 while there is none: before the first append, and after
    /// [`Log::seal`](crate::Log::seal) or
    /// [`DurableLog::close_and_leave`](crate::DurableLog::close_and_leave).
    pub(crate) segment: AtomicU32,
    /// The least urgent [claim](Claim) that may append to the segment. The holder of `roll` writes
    /// this field before `segment`.
    pub(crate) claim: AtomicU8,
    pub(crate) roll: Mutex<()>,
}
