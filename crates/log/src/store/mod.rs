//! What the log knows about its device: geometry, superblock, and for every segment which commits
//! it belongs to.
//!
//! A segment's number is its place on the device. What is written where, and why a crash at any
//! moment leaves every acknowledged record readable, stands in `docs/file-format.md`.

pub(crate) mod deaths;
mod entries;
mod grow;
mod io;
mod marks;
pub(crate) mod places;
mod state;
mod superblock;
mod tiers;

pub use grow::GrowError;
pub use marks::{CommitMarks, CommitState};
pub use places::Tier;
pub(crate) use state::{Entry, SuperblockWrite};

use state::{BackgroundWork, Changing, IoState, KeptEnds};

use crate::address::SegmentNumber;
use crate::format::{self, DurableEnd, Geometry, Identity, STREAMS, SegmentSeed, Superblock};
use crate::memory::table::Table;
use crate::record::MAX_SEQ;
use crate::store::deaths::DeathLists;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use larder_disk::Device;
use std::collections::HashMap;
use std::sync::Arc;

/// A version number that is leased ahead lasts for so many versions of one stripe: long enough that
/// no stripe uses it up between two commits, short enough for a crash every second for half a year.
pub const SEQ_LEASE: u64 = 1 << 24;
/// So many versions must be left when a store is opened: of one key a million a second for half a year.
pub const SEQ_LIFE: u64 = 1 << 44;

/// The limit that leases versions behind `seq`.
pub fn seq_lease(seq: u64) -> u64 {
    (seq + SEQ_LEASE).min(MAX_SEQ)
}

/// A store that is open.
#[derive(Debug)]
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    io: IoState,
    pub(crate) work: BackgroundWork,
    /// Where things lie, in all places that there may be before the next start.
    pub(crate) geometry: Geometry,
    fast_segments: u32,
    /// Where the lower device's part begins, if there is one.
    lower_from: Option<u64>,
    pub(crate) changing: Mutex<Changing>,
    /// Held by whoever writes the superblock, and taken before `changing`.
    writing_superblock: Mutex<()>,
    /// Held while the store grows. The size that the device goes back to before the next growth, if the
    /// last one may not be durable.
    pub(crate) growing: Mutex<Option<u64>>,
    /// Whether the store was closed to growth. Held while new places are published, and never while the
    /// device allocates space.
    pub(crate) closed_to_growth: Mutex<bool>,
    pub(crate) identity: Identity,
    pub(crate) entries: Table<Entry>,
    /// How far commits have come.
    pub commits: CommitMarks,
    /// Sealed segments of each stream of which something is not durable.
    unsynced: [Mutex<Vec<SegmentNumber>>; 2],
    /// Jumbos that are complete and in no commit yet.
    pub(crate) new_jumbos: Mutex<Vec<SegmentNumber>>,
    /// The further places of each jumbo.
    parts: Mutex<HashMap<SegmentNumber, Vec<SegmentNumber>>>,
    kept_ends: KeptEnds,
    /// Where each stream was durable after the last commit: segment and offset.
    pub(crate) durable_ends: Mutex<[DurableEnd; STREAMS]>,
    pub(crate) deaths: DeathLists,
    /// Bytes that new segments of each stream leave to their summaries.
    pub(crate) summary_room: [AtomicU32; STREAMS],
}

impl Store {
    /// The store on `device`, as its superblock describes it.
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
            entries: Table::new(count + 1, count + 1, |_| Entry::default()),
            growing: Mutex::default(),
            closed_to_growth: Mutex::default(),
            commits: CommitMarks::new(next),
            unsynced: Default::default(),
            new_jumbos: Mutex::default(),
            parts: Mutex::default(),
            kept_ends: KeptEnds::default(),
            durable_ends: Mutex::default(),
            deaths: DeathLists::default(),
            summary_room: Default::default(),
        }
    }

    /// Bytes that were written to the device since the store was opened, of whatever kind.
    pub fn written(&self) -> u64 {
        self.io.written.load(Ordering::Relaxed)
    }

    /// Bytes of dead maps that were written, since the store was opened.
    pub fn map_bytes_written(&self) -> u64 {
        self.work.maps.load(Ordering::Relaxed)
    }

    /// Bytes of records in segments that were freed, since the store was opened.
    pub fn freed_bytes(&self) -> u64 {
        self.work.freed.load(Ordering::Relaxed)
    }

    /// Bytes that were read to look at whole segments, since the store was opened.
    pub fn segment_bytes_read(&self) -> u64 {
        self.work.segment_reads.load(Ordering::Relaxed)
    }

    /// Segments of the store.
    pub fn segment_count(&self) -> usize {
        self.entries.len() - 1
    }

    /// How many segments there may be before the next start.
    pub fn most_segments(&self) -> usize {
        self.geometry.segment_count() as usize
    }

    /// Makes room for so many segments, before the store is used.
    pub(crate) fn reserve_places(&mut self, most: u32) {
        let now = self.segment_count();
        let geometry = Geometry::new(self.geometry.segment_size(), most.max(now as u32));
        if let Some(geometry) = geometry {
            let most = geometry.segment_count() as usize;
            self.entries = Table::new(now + 1, most + 1, |_| Entry::default());
            self.geometry = geometry;
        }
    }

    /// How many segments, the first ones, lie on the fast device; 0: there is no lower one.
    pub fn fast_segments(&self) -> u32 {
        self.fast_segments
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> usize {
        self.geometry.segment_size() as usize
    }

    /// Hash of a value for its record's checksum; the value may come in two pieces.
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

    /// With what the checksums of records in this use of a segment are seeded.
    #[inline]
    pub(crate) fn segment_seed(&self, number: SegmentNumber, generation: u32) -> SegmentSeed {
        SegmentSeed::new(self.identity.checksum_seed, number, generation)
    }

    /// Bytes of a dead map.
    pub fn map_bytes(&self) -> usize {
        self.geometry.map_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    #[inline]
    pub(crate) fn entry(&self, number: SegmentNumber) -> &Entry {
        &self.entries[number as usize]
    }

    /// Every record of the segment that was dead after this commit is marked in its durable dead map.
    pub(crate) fn cover(&self, number: SegmentNumber) -> u64 {
        self.entry(number).cover.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
