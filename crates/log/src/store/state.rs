//! The parts of a store's state: per-segment entries, superblock changes, counts of background
//! work, device I/O, and kept ends.

use crate::address::SegmentNumber;
use crate::format::Superblock;
use crate::store::death_lists::Deaths;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::collections::{BTreeMap, BTreeSet};

/// What the store knows about a segment beyond its entry in the segment table.
#[derive(Debug, Default)]
pub(crate) struct SegmentEntry {
    /// The commit that was open when the segment was opened.
    pub(crate) opened: AtomicU64,
    /// The last commit that covers a part of the segment.
    pub(crate) last_commit: AtomicU64,
    /// The commit up to which the durable dead map is complete: the map marks every record that had
    /// died by this commit.
    pub(crate) cover: AtomicU64,
    /// The deaths in the segment that its durable dead map does not mark.
    pub(crate) deaths: Deaths,
    /// Estimated size of the segment's ends if they were written as tombstones, in bytes.
    pub(crate) end_bytes: AtomicU32,
    /// Bytes of tombstones that were copied into this segment because they are still needed. They
    /// count as alive.
    pub(crate) held_bytes: AtomicU32,
    /// Bytes of records that are most probably dead: see
    /// [`Log::assume_dead`](crate::Log::assume_dead).
    pub(crate) assumed_dead: AtomicU32,
    /// Version of the segment's meta on the device.
    pub(crate) meta_version: AtomicU64,
    /// Offset at which the segment was cut; 0 if the segment is open or ends at the trailer that
    /// sealed it.
    pub(crate) end: AtomicU32,
    /// Bytes from the segment's start that were written early, or are about to be; 0 if none.
    pub(crate) early: AtomicU32,
    /// True if the segment was cut and the cut is not durable yet. The segment's frame must stay
    /// until the cut is durable, because the committer writes the cut from the frame.
    pub(crate) cutting: AtomicBool,
    /// True once the segment's last trailer is reserved or the segment is cut. No commit appends
    /// anything after that.
    pub(crate) sealed: AtomicBool,
}

/// Counts of background work, in bytes since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    /// Bytes of dead maps that were written.
    pub(crate) maps: AtomicU64,
    /// Bytes of records in segments that were freed.
    pub(crate) freed: AtomicU64,
    /// Bytes read in whole segments, for cleaning and for other purposes.
    pub(crate) segment_reads: AtomicU64,
}

/// The superblock, and how many of its changes are durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changing {
    /// The superblock with all changes, durable or not. Only its field `counter` is that of the
    /// last durable write. The next write of the superblock uses the next number.
    pub(crate) superblock: Superblock,
    /// Counts changes of the superblock.
    pub(super) changes: u64,
    pub(super) durable: u64,
    /// True if both copies on the device have the durable contents. Two copies are needed because
    /// one may become unreadable.
    pub(super) mirrored: bool,
}

/// A write of the superblock that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockWrite {
    pub(super) counter: u64,
    pub(super) changes: u64,
}

impl Changing {
    /// Returns how often the superblock was changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns how many of the changes are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns true if a copy on the device is out of date.
    pub(crate) fn wants_write(&self) -> bool {
        self.durable != self.changes || !self.mirrored
    }
}

/// What the store knows about reads, writes and syncs of its device.
#[derive(Debug, Default)]
pub(super) struct IoState {
    /// Bytes written.
    pub(super) written: AtomicU64,
    /// Held during a sync of the device.
    pub(super) syncing: Mutex<()>,
    /// Number of syncs that have failed.
    pub(super) failed_syncs: AtomicU64,
    /// The [retired](super::Store::retire) places.
    pub(super) bad: Mutex<BTreeSet<SegmentNumber>>,
}

/// The offsets of the kept ends of each segment. A kept end is a record that was removed from the
/// index without a newer version, in a segment that is not freed yet.
#[derive(Debug, Default)]
pub(super) struct KeptEnds {
    pub(super) by_segment: Mutex<BTreeMap<SegmentNumber, Vec<u32>>>,
    /// Number of segments in `by_segment`.
    pub(super) segments: AtomicU32,
}
