//! Checksums, and the seeds that bind them to one store, one segment and one use of that segment.
//!
//! What an earlier use of a segment left behind has right checksums too; only the seed tells it from
//! what belongs here. And because clients choose values but never learn the seed, no value can look
//! like a record when recovery searches damaged bytes for them.

use crate::record::{CHECKSUM_AT, HEADER, Kind, Layout, MAX_KEY, Record};
use crate::rule::Rule;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128_with_seed};

/// The longest head of a record: all optional fields and the longest key.
const MAX_HEAD: usize = HEADER + 16 + MAX_KEY;

/// XXH3-64 of `bytes` with a seed.
#[inline]
pub fn checksum64(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// The hash by which keys are found: XXH3-128. The seed is the store's hash seed.
#[inline]
pub fn key_hash(key: &[u8], hash_seed: u64) -> u128 {
    xxh3_128_with_seed(key, hash_seed)
}

/// What all structures of one store have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Low 64 bits of the store id; in a store whose contents were discarded, combined with the secret.
    pub store: u64,
    /// The store's secret.
    pub checksum_seed: u64,
}

impl Identity {
    /// Whether `store`, from something whose checksum is wrong, was this store's id before it was
    /// damaged: flipped bits must not make it look as if it had never been written, and what another
    /// store left behind must not look like damage. Random ids differ in 32 bits.
    pub(super) fn nearly(&self, store: u64) -> bool {
        (store ^ self.store).count_ones() <= 8
    }
}

/// The seed of everything inside of one segment in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSeed {
    checksum_seed: u64,
    mixed: u64,
}

impl SegmentSeed {
    /// The seed of `segment` in `generation`.
    #[inline]
    pub fn new(checksum_seed: u64, segment: u32, generation: u32) -> Self {
        let place = u64::from(generation) << 32 | u64::from(segment);
        SegmentSeed { checksum_seed, mixed: mix(checksum_seed ^ place) }
    }

    /// The seed of checksums over the segment's bytes.
    #[inline]
    pub fn get(self) -> u64 {
        self.mixed
    }

    /// The seed of value hashes: the store's.
    #[inline]
    pub fn value_seed(self) -> u64 {
        self.checksum_seed
    }
}

/// SplitMix64's finalizer.
#[inline]
fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// The hash of a value, which does not depend on the record's place.
#[inline]
pub fn value_hash(value: &[u8], checksum_seed: u64) -> u64 {
    checksum64(value, checksum_seed)
}

/// [`value_hash`] of a value that comes in pieces.
#[derive(Clone)]
pub struct ValueHasher(Xxh3);

impl std::fmt::Debug for ValueHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueHasher")
    }
}

impl ValueHasher {
    /// Nothing hashed yet.
    pub fn new(checksum_seed: u64) -> Self {
        ValueHasher(Xxh3::with_seed(checksum_seed))
    }

    /// The value goes on with `piece`.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The hash of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// The checksum of a record: `head` is everything before its value, at most 281 bytes; its checksum
/// field counts as zero. A filler's value hash is that of no bytes.
#[inline]
pub fn record_checksum(head: &[u8], value_hash: u64, seed: SegmentSeed) -> u32 {
    debug_assert!((HEADER..=MAX_HEAD).contains(&head.len()));
    let seed = value_hash ^ seed.mixed;
    let field = CHECKSUM_AT..CHECKSUM_AT + 4;
    let hash = if head[field.clone()] == [0; 4] {
        checksum64(head, seed)
    } else {
        let mut copy = [0u8; MAX_HEAD];
        let copy = &mut copy[..head.len()];
        copy.copy_from_slice(head);
        copy[field].fill(0);
        checksum64(copy, seed)
    };
    (hash ^ hash >> 32) as u32
}

/// The hash that goes into a record's checksum for its value.
#[inline]
fn hash_of_value(kind: Kind, value: &[u8], seed: SegmentSeed) -> u64 {
    value_hash(if kind == Kind::Filler { &[] } else { value }, seed.value_seed())
}

/// Whether a record's checksum is right in the segment that `seed` is of.
#[inline]
pub fn record_is_intact(record: &Record<'_>, seed: SegmentSeed) -> bool {
    let value_hash = hash_of_value(record.kind(), record.value(), seed);
    record_checksum(record.head(), value_hash, seed) == record.checksum()
        || Rule::CheckWhatIsRead.is_broken()
}

/// Computes the checksum of the record at `at` and writes it. `value_hash`, if the caller has it
/// already; otherwise the value is read.
///
/// # Safety
/// `at` must point to a whole record with this layout, head and value written and the checksum zero,
/// valid for reads and writes, that nobody else reads or writes yet.
#[inline]
pub unsafe fn seal_record(
    at: *mut u8,
    kind: Kind,
    layout: &Layout,
    value_hash: Option<u64>,
    seed: SegmentSeed,
) {
    // SAFETY: by the caller's promise `layout` is inside of what may be read.
    let (head, value) = unsafe {
        let value = at.add(layout.value_offset());
        let value = std::slice::from_raw_parts(value.cast_const(), layout.value);
        (std::slice::from_raw_parts(at.cast_const(), layout.value_offset()), value)
    };
    let value_hash = value_hash.unwrap_or_else(|| hash_of_value(kind, value, seed));
    let checksum = record_checksum(head, value_hash, seed);
    // SAFETY: the caller's promise covers the head; both borrows above have ended.
    unsafe { crate::record::write_checksum(at, checksum) };
}
