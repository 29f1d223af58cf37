//! The store: what the log knows about its device. That is the geometry, the superblock, and for
//! each segment the commits it belongs to.
//!
//! A segment's number determines its place on the device. `docs/file-format.md` describes what is
//! written where. It also explains why every acknowledged record stays readable after a crash at
//! any moment.

mod commit_marks;
pub(crate) mod death_lists;
mod entries;
mod grow;
mod io;
pub(crate) mod places;
mod state;
mod superblock;
mod tiers;

pub use commit_marks::{CommitMarks, CommitState};
pub use grow::GrowError;
pub use places::Tier;
pub(crate) use state::{SegmentEntry, SuperblockWrite};

use state::{BackgroundWork, Changing, IoState, KeptEnds};

use crate::address::SegmentNumber;
use crate::format::{self, DurableEnd, Geometry, Identity, STREAMS, SegmentSeed, Superblock};
use crate::memory::table::GrowingTable;
use crate::record::MAX_SEQ;
use crate::store::death_lists::DeathLists;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use larder_disk::Device;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Number of versions of one stripe that a lease covers. It is large enough that no stripe uses up
/// its lease between two commits. A crash wastes the rest of a lease. With this size, a stripe does
/// not run out of 48-bit versions for half a year, even with a crash every second.
pub const SEQ_LEASE: u64 = 1 << 24;
/// The smallest number of unused versions with which a store can be opened. This many versions last
/// for half a year if one key gets a million versions per second.
pub const SEQ_LIFE: u64 = 1 << 44;

/// Returns the seq limit of a lease that begins behind `seq`.
pub fn seq_lease(seq: u64) -> u64 {
    (seq + SEQ_LEASE).min(MAX_SEQ)
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    io: IoState,
    pub(crate) work: BackgroundWork,
    /// The layout of the device. It has all places that the store can have before the next start,
    /// including those that growth may add.
    pub(crate) geometry: Geometry,
    fast_segments: u32,
    /// Offset at which the lower device's part begins, if there is one.
    lower_from: Option<u64>,
    pub(crate) changing: Mutex<Changing>,
    /// Locked while the superblock is written. A thread that locks both this and `changing` locks
    /// this first.
    writing_superblock: Mutex<()>,
    /// Locked while the store grows. The value is `None`, except after a growth that failed and
    /// could not be undone. After such a growth it is the device's earlier size, and the next
    /// growth first sets the device back to that size.
    pub(crate) growing: Mutex<Option<u64>>,
    /// True if the store was closed to growth. A growth locks this while it publishes new places.
    /// It does not lock this while the device allocates space, so closing the store to growth never
    /// waits for the device to grow.
    pub(crate) closed_to_growth: Mutex<bool>,
    pub(crate) identity: Identity,
    pub(crate) entries: GrowingTable<SegmentEntry>,
    /// The progress of the commits.
    pub commits: CommitMarks,
    /// Segments of each stream that were sealed since a commit was last closed.
    unsynced: [Mutex<Vec<SegmentNumber>>; 2],
    /// Complete jumbos that no commit covers yet.
    pub(crate) new_jumbos: Mutex<Vec<SegmentNumber>>,
    /// The segments of closed commits that have not settled yet. A thread that locks both this and
    /// `new_jumbos` or `unsynced` locks this first.
    pub(crate) closed: Mutex<BTreeSet<SegmentNumber>>,
    /// The places of each jumbo after its first.
    parts: Mutex<HashMap<SegmentNumber, Vec<SegmentNumber>>>,
    kept_ends: KeptEnds,
    /// The segment and offset up to which the last durable commit made each stream durable.
    pub(crate) durable_ends: Mutex<[DurableEnd; STREAMS]>,
    pub(crate) deaths: DeathLists,
    /// The number of bytes that each new segment of a stream leaves free for its summary.
    pub(crate) summary_room: [AtomicU32; STREAMS],
}

impl Store {
    /// Opens the store on `device`, as the superblock describes it. Neither reads nor writes the
    /// device.
    pub fn new(device: Arc<dyn Device>, superblock: Superblock) -> Self {
        let geometry = superblock.geometry;
        let count = geometry.segment_count() as usize;
        let next = superblock.next_commit.max(1);
        Store {
            device,
            io: IoState::default(),
            work: BackgroundWork::default(),
            geometry,
            fast_segments: superblock.fast_segments,
            lower_from: superblock.fast_part().map(|part| part.total_bytes()),
            identity: superblock.identity(),
            changing: Mutex::new(Changing { superblock, changes: 0, durable: 0, mirrored: false }),
            writing_superblock: Mutex::default(),
            entries: GrowingTable::new(count + 1, count + 1, |_| SegmentEntry::default()),
            growing: Mutex::default(),
            closed_to_growth: Mutex::default(),
            commits: CommitMarks::new(next),
            unsynced: Default::default(),
            new_jumbos: Mutex::default(),
            closed: Mutex::default(),
            parts: Mutex::default(),
            kept_ends: KeptEnds::default(),
            durable_ends: Mutex::default(),
            deaths: DeathLists::default(),
            summary_room: Default::default(),
        }
    }

    /// Returns all bytes written to the device since the store was opened.
    pub fn written(&self) -> u64 {
        self.io.written.load(Ordering::Relaxed)
    }

    /// Returns the bytes of dead maps written since the store was opened.
    pub fn map_bytes_written(&self) -> u64 {
        self.work.maps.load(Ordering::Relaxed)
    }

    /// Returns the bytes of records in segments that were freed since the store was opened.
    pub fn freed_bytes(&self) -> u64 {
        self.work.freed.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes read in whole segments since the store was opened, for cleaning
    /// and for other purposes.
    pub fn segment_bytes_read(&self) -> u64 {
        self.work.segment_reads.load(Ordering::Relaxed)
    }

    /// Returns the number of segments of the store.
    pub fn segment_count(&self) -> usize {
        self.entries.len() - 1
    }

    /// Returns the largest number of segments that the store can have before the next start.
    pub fn most_segments(&self) -> usize {
        self.geometry.segment_count() as usize
    }

    /// Makes room for `most` segments. Must be called before the store is used.
    pub(crate) fn reserve_places(&mut self, most: u32) {
        let now = self.segment_count();
        let geometry = Geometry::new(self.geometry.segment_size(), most.max(now as u32));
        if let Some(geometry) = geometry {
            let most = geometry.segment_count() as usize;
            self.entries = GrowingTable::new(now + 1, most + 1, |_| SegmentEntry::default());
            self.geometry = geometry;
        }
    }

    /// Returns the number of segments on the fast device, which are the first ones; 0 if there is
    /// no lower device.
    pub fn fast_segments(&self) -> u32 {
        self.fast_segments
    }

    /// Returns the size of a segment, in bytes.
    pub fn segment_size(&self) -> usize {
        self.geometry.segment_size() as usize
    }

    /// Returns the hash of a value for its record's checksum. The value may come in two pieces.
    pub fn value_hash(&self, first: &[u8], second: &[u8]) -> u64 {
        let seed = self.identity.checksum_seed;
        if second.is_empty() {
            return format::value_hash(first, seed);
        }
        let mut hasher = format::ValueHasher::new(seed);
        hasher.update(first);
        hasher.update(second);
        hasher.finish()
    }

    /// Returns the seed for the checksums of records in this generation of a segment.
    #[inline]
    pub(crate) fn segment_seed(&self, number: SegmentNumber, generation: u32) -> SegmentSeed {
        SegmentSeed::new(self.identity.checksum_seed, number, generation)
    }

    /// Returns the size of a dead map, in bytes.
    pub fn map_bytes(&self) -> usize {
        self.geometry.map_bytes()
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    #[inline]
    pub(crate) fn entry(&self, number: SegmentNumber) -> &SegmentEntry {
        &self.entries[number as usize]
    }

    /// Returns the segment's cover: its durable dead map marks every record that had died by
    /// this commit.
    pub(crate) fn cover(&self, number: SegmentNumber) -> u64 {
        self.entry(number).cover.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
