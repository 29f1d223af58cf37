//! The superblock: identity and state of a store.
//!
//! A superblock has two copies, which are written alternately. So a torn write leaves the other
//! copy whole. A start uses only the newest whole copy. If the program does not know that copy's
//! version or incompatible features, the start fails. It does not fall back to the older copy.

use super::BLOCK;
use super::accepted::{ACCEPTED_BYTES, Accepted};
use super::bytes::{all_zero, get, put, u32_at, u64_at};
use super::checksum::{Identity, checksum64};
use super::geometry::Geometry;
use super::lanes::Lanes;
use crate::record::MAX_SEQ;

const MAGIC: [u8; 8] = *b"LARDER\0\x01";
/// The format version that this program writes.
pub const VERSION: u32 = 1;
/// The oldest release of Larder that understands everything this program writes.
const UNDERSTOOD_BY: Release = Release([0, 1, 0]);
const CHECKSUM: usize = BLOCK - 8;
const COUNTER: usize = 16;

const CLEAN: u32 = 1;
const VOLATILE: u32 = 2;
/// The read-only features that this program knows. A program that does not know a store's read-only
/// feature may read the store but not write to it.
const KNOWN_READ_ONLY: u64 = 0;
/// The incompatible features that this program knows. A program that does not know a store's
/// incompatible feature may neither read nor write the store.
const KNOWN_INCOMPATIBLE: u64 = LANES | TIERS | RENEWED | COUNTERS;
/// Incompatible feature: the store has, or had, several lanes.
const LANES: u64 = 1;
/// Incompatible feature: the lane has a lower device.
const TIERS: u64 = 2;
/// Incompatible feature: the store's contents were discarded once.
const RENEWED: u64 = 4;
/// Incompatible feature: the store may hold records of two more kinds, for counters and limiters.
const COUNTERS: u64 = 8;
const FAST_SEGMENTS: usize = 3008;
const CLOCK: usize = 3012;
const ACCEPTED: usize = 3016;
const RELEASE: usize = 4040;
const BOOT_ID: usize = 4048;
const BOOT_OFFSET: usize = 4064;

const _: () = assert!(ACCEPTED + ACCEPTED_BYTES <= RELEASE && RELEASE + 6 <= BOOT_ID);
const _: () = assert!(BOOT_ID + 16 <= BOOT_OFFSET && BOOT_OFFSET + 8 <= CHECKSUM);

/// A release of Larder: major, minor and patch number. Zeros if a store's superblock does not name
/// the release that can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release(pub [u16; 3]);

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [0, 0, 0] => f.write_str("a newer Larder"),
            [major, minor, patch] => write!(f, "Larder {major}.{minor}.{patch} or newer"),
        }
    }
}

/// A store's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The number of this write of the superblock: 1 for the first, and one more for each later
    /// write.
    pub counter: u64,
    /// Feature bits that a program need not know.
    pub compatible: u64,
    /// Random id of the store.
    pub store_id: u128,
    /// Random seed of the hashes of keys.
    pub hash_seed: u64,
    /// Random secret that seeds all checksums except those of superblocks and labels.
    pub checksum_seed: u64,
    /// The size and number of the store's segments.
    pub geometry: Geometry,
    /// Unix seconds at which the store was created.
    pub created: u64,
    /// True if the store was stopped cleanly.
    pub clean: bool,
    /// True while a server with `durability none` has the store open, and after that server has
    /// crashed. The next start then discards the store's contents.
    pub volatile: bool,
    /// The upper end of the lane's lease: no record has a greater seq.
    pub seq_limit: u64,
    /// Records with a seq below this one are dead.
    pub fence: u64,
    /// Unix seconds at which a delayed `flush_all` takes effect; 0 without one.
    pub pending_flush: u32,
    /// The first unused commit number; valid only after a clean stop.
    pub next_commit: u64,
    /// The number of the place with the first part of the index image; 0 without an image.
    pub image_segment: u32,
    /// The least generation for the next use of a place that was free at a start after a crash. The
    /// crash may have left records there of a generation whose header never reached the device. The
    /// floor is above that generation, so these records stay invalid.
    pub generation_floor: u32,
    /// Length of the content of the index image, in bytes, all its parts together.
    pub image_bytes: u64,
    /// The lanes, and the share of the keys that belongs to each.
    pub lanes: Lanes,
    /// Number of segments on the fast device, counted from the first; 0 without a lower device.
    pub fast_segments: u32,
    /// True if the store's old contents were discarded but still lie on the device. The
    /// [identity](Superblock::identity) in structures written since then includes the secret, so
    /// the old structures no longer match it.
    pub renewed: bool,
    /// True if the store may hold records that change in place before a commit covers them.
    pub counters: bool,
    /// The store's own time, in Unix seconds, at some moment while the store was open. A later
    /// start continues from this time or from a later one.
    pub clock: u32,
    /// The id of the machine's boot in which the store was last opened; 0 if unknown.
    pub boot_id: u128,
    /// The store's time minus the time since the boot `boot_id`, in nanoseconds.
    pub boot_offset: i64,
    /// Damage that a start has reported and accepted.
    pub accepted: Accepted,
    /// Why this program may read the store but not write to it; `None` if it may do both.
    pub read_only: Option<SuperblockError>,
}

/// Why a superblock cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// The device is new: no copy was ever whole, and at least one was never written.
    Empty,
    /// The device holds something else.
    NotAStore,
    /// The store has a format version that this program does not know. The fields are that version,
    /// and a release that knows it.
    UnknownVersion(u32, Release),
    /// The store has features that this program does not know. The fields are the bits of these
    /// features, and a release that knows them.
    UnknownFeatures(u64, Release),
    /// The store has read-only features that this program does not know. So it may read the store
    /// but not write to it. The fields are the bits of these features, and a release that knows
    /// them.
    UnknownToWrite(u64, Release),
    /// Both copies are damaged, or the store's values are impossible.
    Damaged,
}

impl std::fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("the device is empty"),
            Self::NotAStore => f.write_str("there is something on it that is not a store"),
            Self::UnknownVersion(version, release) => write!(
                f,
                "it has format version {version} and this program knows {VERSION}: nothing was changed, \
                 use {release}"
            ),
            Self::UnknownFeatures(bits, release) => write!(
                f,
                "it has features that this program does not know (incompatible {bits:#x}): nothing was \
                 changed, use {release}"
            ),
            Self::UnknownToWrite(bits, release) => write!(
                f,
                "it has features that this program does not know (read-only {bits:#x}), so it can be checked \
                 and not served: nothing was changed, use {release}"
            ),
            Self::Damaged => f.write_str("both copies of its superblock are damaged"),
        }
    }
}

impl std::error::Error for SuperblockError {}

/// The condition of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Magic and checksum are right.
    Whole,
    /// Empty: all bytes are zero, except perhaps a part of the magic. No write of this copy has
    /// completed.
    Empty,
    /// A superblock with a wrong checksum.
    Damaged,
    /// Something else.
    Foreign,
}

/// Returns a block with only the magic. A new store makes it durable, and then writes its first
/// superblock over it. So if a crash interrupts that write, the magic shows that the block belongs
/// to a store. A block without the magic never counts as part of a store.
pub fn mark() -> [u8; BLOCK] {
    let mut mark = [0; BLOCK];
    put(&mut mark, 0, MAGIC);
    mark
}

/// Returns the condition of one copy without interpreting its fields.
fn look_at(copy: &[u8; BLOCK]) -> Copy {
    if copy[..8] != MAGIC {
        let mut magic = copy[..8].iter().zip(MAGIC);
        let cut_off = magic.all(|(&found, own)| found == 0 || found == own) && all_zero(&copy[8..]);
        return if cut_off { Copy::Empty } else { Copy::Foreign };
    }
    let whole = checksum64(&copy[..CHECKSUM], 0) == u64_at(copy, CHECKSUM);
    if whole { Copy::Whole } else { Copy::Damaged }
}

/// Returns the newest whole one of the two copies of a superblock, and the condition of each copy.
pub fn choose(copies: [&[u8; BLOCK]; 2]) -> Result<(Superblock, [Copy; 2]), SuperblockError> {
    let states = copies.map(look_at);
    let newest = (0..2)
        .filter(|&which| states[which] == Copy::Whole)
        .max_by_key(|&which| u64_at(copies[which], COUNTER));
    match newest {
        Some(which) => Superblock::judge(copies[which]).map(|superblock| (superblock, states)),
        None if states == [Copy::Empty; 2] => Err(SuperblockError::Empty),
        // Both copies are written before a store is used. So a store with an empty copy was never
        // used: a crash interrupted its creation.
        None if matches!(states, [Copy::Empty, Copy::Damaged] | [Copy::Damaged, Copy::Empty]) => {
            Err(SuperblockError::Empty)
        }
        None if states.contains(&Copy::Damaged) => Err(SuperblockError::Damaged),
        None => Err(SuperblockError::NotAStore),
    }
}

impl Superblock {
    /// Creates the superblock of a new store with one lane and one device. The two seeds and the id
    /// must be random.
    pub fn new(
        store_id: u128,
        hash_seed: u64,
        checksum_seed: u64,
        geometry: Geometry,
        created: u64,
    ) -> Self {
        Superblock {
            counter: 0,
            compatible: 0,
            store_id,
            hash_seed,
            checksum_seed,
            geometry,
            created,
            clean: false,
            volatile: false,
            seq_limit: 0,
            fence: 0,
            pending_flush: 0,
            next_commit: 1,
            image_segment: 0,
            generation_floor: 0,
            image_bytes: 0,
            lanes: Lanes::alone(store_id),
            fast_segments: 0,
            renewed: false,
            counters: false,
            clock: 0,
            boot_id: 0,
            boot_offset: 0,
            accepted: Accepted::default(),
            read_only: None,
        }
    }

    /// Checks that this program may write to the store.
    ///
    /// # Errors
    /// If the store has read-only features that this program does not know.
    pub fn may_write(&self) -> Result<(), SuperblockError> {
        self.read_only.map_or(Ok(()), Err)
    }

    /// Returns the geometry of the segments on the fast device; `None` without a lower device.
    pub fn fast_part(&self) -> Option<Geometry> {
        Geometry::new(self.geometry.segment_size(), self.fast_segments)
    }

    /// Returns the index of the copy to which this superblock is written: 0 or 1.
    pub fn copy(&self) -> usize {
        (self.counter % 2) as usize
    }

    /// Returns true if the store also has a lower device.
    pub fn has_lower(&self) -> bool {
        self.fast_segments != 0
    }

    /// Returns the identity that ties all structures on the device to this store: see [`Identity`].
    pub fn identity(&self) -> Identity {
        let mixed = if self.renewed { self.checksum_seed } else { 0 };
        Identity { store: self.store_id as u64 ^ mixed, checksum_seed: self.checksum_seed }
    }

    /// Encodes the superblock. Overwrites the whole block.
    pub fn encode(&self, into: &mut [u8; BLOCK]) {
        into.fill(0);
        let flags = if self.clean { CLEAN } else { 0 } | if self.volatile { VOLATILE } else { 0 };
        put(into, 0, MAGIC);
        put(into, 8, VERSION.to_le_bytes());
        put(into, COUNTER, self.counter.to_le_bytes());
        put(into, 24, self.compatible.to_le_bytes());
        let lanes = if self.lanes.is_alone() { 0 } else { LANES };
        let tiers = if self.has_lower() { TIERS } else { 0 };
        let renewed = if self.renewed { RENEWED } else { 0 };
        let counters = if self.counters { COUNTERS } else { 0 };
        let incompatible = lanes | tiers | renewed | counters;
        put(into, 40, incompatible.to_le_bytes());
        put(into, 48, self.store_id.to_le_bytes());
        put(into, 64, self.hash_seed.to_le_bytes());
        put(into, 72, self.checksum_seed.to_le_bytes());
        put(into, 80, self.geometry.segment_size().to_le_bytes());
        put(into, 84, self.geometry.segment_count().to_le_bytes());
        put(into, 88, self.created.to_le_bytes());
        put(into, 96, flags.to_le_bytes());
        put(into, 100, self.pending_flush.to_le_bytes());
        put(into, 104, self.seq_limit.to_le_bytes());
        put(into, 112, self.fence.to_le_bytes());
        put(into, 120, self.next_commit.to_le_bytes());
        put(into, 128, self.image_segment.to_le_bytes());
        put(into, 132, self.generation_floor.to_le_bytes());
        put(into, 136, self.image_bytes.to_le_bytes());
        self.lanes.encode(into);
        put(into, FAST_SEGMENTS, self.fast_segments.to_le_bytes());
        put(into, CLOCK, self.clock.to_le_bytes());
        put(into, BOOT_ID, self.boot_id.to_le_bytes());
        put(into, BOOT_OFFSET, self.boot_offset.to_le_bytes());
        self.accepted.encode(into, ACCEPTED);
        for (at, number) in UNDERSTOOD_BY.0.into_iter().enumerate() {
            put(into, RELEASE + 2 * at, number.to_le_bytes());
        }
        let checksum = checksum64(&into[..CHECKSUM], 0);
        put(into, CHECKSUM, checksum.to_le_bytes());
    }

    /// Decodes one copy.
    pub fn decode(copy: &[u8; BLOCK]) -> Result<Self, SuperblockError> {
        match look_at(copy) {
            Copy::Whole => Self::judge(copy),
            Copy::Empty => Err(SuperblockError::Empty),
            Copy::Damaged => Err(SuperblockError::Damaged),
            Copy::Foreign => Err(SuperblockError::NotAStore),
        }
    }

    /// Interprets a whole copy, if this program understands it.
    fn judge(copy: &[u8; BLOCK]) -> Result<Self, SuperblockError> {
        let (version, number) = (u32_at(copy, 8), |at| u16::from_le_bytes(get(copy, at)));
        let release = Release([number(RELEASE), number(RELEASE + 2), number(RELEASE + 4)]);
        if version != VERSION {
            return Err(SuperblockError::UnknownVersion(version, release));
        }
        let unknown = u64_at(copy, 40) & !KNOWN_INCOMPATIBLE;
        if unknown != 0 {
            return Err(SuperblockError::UnknownFeatures(unknown, release));
        }
        let unknown = u64_at(copy, 32) & !KNOWN_READ_ONLY;
        let read_only = SuperblockError::UnknownToWrite(unknown, release);
        let geometry =
            Geometry::new(u32_at(copy, 80), u32_at(copy, 84)).ok_or(SuperblockError::Damaged)?;
        let flags = u32_at(copy, 96);
        let store_id = u128::from_le_bytes(get(copy, 48));
        let has_lower = u64_at(copy, 40) & TIERS != 0;
        let superblock = Superblock {
            counter: u64_at(copy, COUNTER),
            compatible: u64_at(copy, 24),
            store_id,
            hash_seed: u64_at(copy, 64),
            checksum_seed: u64_at(copy, 72),
            geometry,
            created: u64_at(copy, 88),
            clean: flags & CLEAN != 0,
            volatile: flags & VOLATILE != 0,
            seq_limit: u64_at(copy, 104),
            fence: u64_at(copy, 112),
            pending_flush: u32_at(copy, 100),
            next_commit: u64_at(copy, 120),
            image_segment: u32_at(copy, 128),
            generation_floor: u32_at(copy, 132),
            image_bytes: u64_at(copy, 136),
            lanes: Lanes::decode(copy, store_id).ok_or(SuperblockError::Damaged)?,
            fast_segments: if has_lower { u32_at(copy, FAST_SEGMENTS) } else { 0 },
            renewed: u64_at(copy, 40) & RENEWED != 0,
            counters: u64_at(copy, 40) & COUNTERS != 0,
            clock: u32_at(copy, CLOCK),
            boot_id: u128::from_le_bytes(get(copy, BOOT_ID)),
            boot_offset: i64::from_le_bytes(get(copy, BOOT_OFFSET)),
            accepted: Accepted::decode(copy, ACCEPTED),
            read_only: (unknown != 0).then_some(read_only),
        };
        let possible = superblock.seq_limit <= MAX_SEQ
            && superblock.fence <= MAX_SEQ + 1
            && superblock.image_segment <= geometry.segment_count()
            && superblock.fast_segments <= geometry.segment_count()
            && superblock.has_lower() == has_lower;
        if possible { Ok(superblock) } else { Err(SuperblockError::Damaged) }
    }
}
