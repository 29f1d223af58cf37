//! Checksums, and the seeds that bind them to one store, one segment and one generation.
//!
//! A place may still contain records of an earlier generation of its segment. These records are
//! undamaged, but their checksums have another seed, so they do not match in the new generation.
//!
//! When recovery searches damaged bytes for records, it may meet a client's value. Clients never
//! learn the seed, so they cannot store a value that passes for a record.

use crate::record::{CHECKSUM_AT, HEADER, Kind, Layout, MAX_KEY, Record};
use crate::rule::Rule;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128_with_seed};

/// The largest length, in bytes, of a record without its value: the header, all optional fields (16
/// bytes) and the longest key.
const MAX_HEAD: usize = HEADER + 16 + MAX_KEY;

/// Returns the XXH3-64 of `bytes` with a seed.
#[inline]
pub fn checksum64(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Returns the hash by which keys are found: XXH3-128. The seed is the store's hash seed.
#[inline]
pub fn key_hash(key: &[u8], hash_seed: u64) -> u128 {
    xxh3_128_with_seed(key, hash_seed)
}

/// The store's id and secret, which tie every structure on a device to this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The low 64 bits of the store id. After a start has discarded the store's contents, they are
    /// XORed with `checksum_seed`. So the old structures, which are still on the device, do not
    /// match.
    pub store: u64,
    /// The store's secret, part of the checksums.
    pub checksum_seed: u64,
}

impl Identity {
    /// Returns true if `store`, the id in a structure, differs from this store's id in few bits. If
    /// the checksum of such a structure is wrong, the structure is damaged. A structure with any
    /// other id is a remainder of another store: the ids of two stores are random and differ in 32
    /// bits on average.
    pub(super) fn nearly(&self, store: u64) -> bool {
        (store ^ self.store).count_ones() <= 8
    }
}

/// The seed of all checksums inside one segment in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSeed {
    checksum_seed: u64,
    mixed: u64,
}

impl SegmentSeed {
    /// Returns the seed of `segment` in `generation`.
    #[inline]
    pub fn new(checksum_seed: u64, segment: u32, generation: u32) -> Self {
        let place = u64::from(generation) << 32 | u64::from(segment);
        SegmentSeed { checksum_seed, mixed: mix(checksum_seed ^ place) }
    }

    /// Returns the seed of checksums over the segment's bytes.
    #[inline]
    pub fn get(self) -> u64 {
        self.mixed
    }

    /// Returns the seed of value hashes, which is the same for all segments of a store.
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

/// Returns the hash of a value, which does not depend on the record's place.
#[inline]
pub fn value_hash(value: &[u8], checksum_seed: u64) -> u64 {
    checksum64(value, checksum_seed)
}

/// Computes [`value_hash`] of a value that comes in pieces.
#[derive(Clone)]
pub struct ValueHasher(Xxh3);

impl std::fmt::Debug for ValueHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueHasher")
    }
}

impl ValueHasher {
    /// Creates a hasher that has hashed nothing.
    pub fn new(checksum_seed: u64) -> Self {
        ValueHasher(Xxh3::with_seed(checksum_seed))
    }

    /// Hashes the next piece of the value.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the hash of all pieces.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// Returns the checksum of a record. `head` is everything before its value, at most 281 bytes. The
/// checksum field in `head` counts as zero. For a filler, `value_hash` is the hash of no bytes.
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

/// Returns the value hash that goes into a record's checksum. The value of a filler counts as
/// empty.
#[inline]
fn hash_of_value(kind: Kind, value: &[u8], seed: SegmentSeed) -> u64 {
    value_hash(if kind == Kind::Filler { &[] } else { value }, seed.value_seed())
}

/// Returns true if a record's checksum is right. `seed` is the seed of the record's segment.
#[inline]
pub fn record_is_intact(record: &Record<'_>, seed: SegmentSeed) -> bool {
    let value_hash = hash_of_value(record.kind(), record.value(), seed);
    record_checksum(record.head(), value_hash, seed) == record.checksum()
        || Rule::CheckWhatIsRead.is_broken()
}

/// Computes the checksum of the record at `at` and writes it. Reads the value unless the caller
/// already has `value_hash`.
///
/// # Safety
/// `at` must point to a record of this `layout`, and all its bytes must be valid for reads and
/// writes. The head and the value must be written, with zeroes as the checksum. No other thread may
/// read or write the record yet.
#[inline]
pub unsafe fn seal_record(
    at: *mut u8,
    kind: Kind,
    layout: &Layout,
    value_hash: Option<u64>,
    seed: SegmentSeed,
) {
    // SAFETY: by the caller's promise, the bytes that `layout` describes may be read.
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
