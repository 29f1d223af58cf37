//! Summaries. A summary describes the records of a sealed segment, so that recovery need not read
//! the segment.
//!
//! A summary lies at the end of its segment's place, behind the segment's last trailer, if there is
//! room. Larder writes it after the commit that sealed the segment is durable. So all records that
//! a summary describes are durable. If there is no valid summary, for any reason, recovery reads
//! the segment itself.

use super::bytes::{put, u32_at, u64_at};
use super::checksum::{Identity, SegmentSeed, checksum64, key_hash};
use super::{BLOCK, DurableEnd, STREAMS};
use crate::address::{GRANULE, SegmentNumber};
use crate::record::Record;

const MAGIC: [u8; 4] = *b"LSUM";
/// Length of a summary's head, in bytes. The head is the last part of the summary, at the very end
/// of the segment's place. The entries lie in front of it.
const HEAD: usize = 128;
const CHECKSUM: usize = 120;
const IMMORTAL: u32 = 1;
const AFTER_FAILURE: u32 = 2;
/// Length of an entry, in bytes. An entry describes one record.
const ENTRY: usize = 24;
const TOMBSTONE: u64 = 1 << 40;
/// Mask of an offset or a size, in units of [`GRANULE`] bytes.
const UNITS: u64 = (1 << 20) - 1;

/// The hash by which recovery distinguishes keys: the low 96 bits of [`key_hash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash {
    /// Bits 0 to 63.
    pub lo: u64,
    /// Bits 64 to 95.
    pub hi: u32,
}

impl KeyHash {
    /// Returns the hash of a key; the seed is the store's hash seed.
    pub fn of(key: &[u8], hash_seed: u64) -> Self {
        let hash = key_hash(key, hash_seed);
        KeyHash { lo: hash as u64, hi: (hash >> 64) as u32 }
    }
}

/// The description of one item or tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// The hash of the record's key.
    pub hash: KeyHash,
    /// The record's version.
    pub seq: u64,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
    /// Size of the record, in bytes.
    pub size: u32,
    /// True for an item, false for a tombstone.
    pub is_item: bool,
}

impl SummaryEntry {
    /// Describes the record at `offset`. Returns `None` if it is neither item nor tombstone.
    pub fn of(offset: u32, record: &Record<'_>, hash_seed: u64) -> Option<Self> {
        record.kind().is_version().then(|| SummaryEntry {
            hash: KeyHash::of(record.key(), hash_seed),
            seq: record.seq(),
            offset,
            size: record.size() as u32,
            is_item: record.kind().is_item(),
        })
    }

    fn encode(&self) -> [u8; ENTRY] {
        let units = |bytes: u32| u64::from(bytes) / GRANULE as u64;
        let place = units(self.offset) | units(self.size) << 20;
        let place = place | if self.is_item { 0 } else { TOMBSTONE };
        let mut bytes = [0; ENTRY];
        put(&mut bytes, 0, self.hash.lo.to_le_bytes());
        put(&mut bytes, 8, self.hash.hi.to_le_bytes());
        bytes[12..18].copy_from_slice(&self.seq.to_le_bytes()[..6]);
        bytes[18..24].copy_from_slice(&place.to_le_bytes()[..6]);
        bytes
    }

    fn decode(bytes: &[u8; ENTRY]) -> Self {
        let six = |at: usize| u64_at(bytes, at - 2) >> 16;
        let place = six(18);
        let bytes_of = |units: u64| (units & UNITS) as u32 * GRANULE as u32;
        SummaryEntry {
            hash: KeyHash { lo: u64_at(bytes, 0), hi: u32_at(bytes, 8) },
            seq: six(12),
            offset: bytes_of(place),
            size: bytes_of(place >> 20),
            is_item: place & TOMBSTONE == 0,
        }
    }
}

/// The segment that a summary belongs to. The summary's checksum depends on it.
#[derive(Clone, Copy, Debug)]
pub struct SummaryPlace {
    /// The identity of the store.
    pub identity: Identity,
    /// The segment's number.
    pub segment: SegmentNumber,
    /// The generation of that number.
    pub generation: u32,
}

impl SummaryPlace {
    fn seed(&self) -> u64 {
        SegmentSeed::new(self.identity.checksum_seed, self.segment, self.generation).get()
    }
}

/// The content of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Offset in the segment at which its last trailer ends, the one that sealed the segment.
    pub end: u32,
    /// The number of the commit that sealed the segment.
    pub commit: u64,
    /// [`Trailer::after_failure`](super::segment::Trailer::after_failure) of the last trailer.
    pub after_failure: bool,
    /// [`Trailer::seq_limit`](super::segment::Trailer::seq_limit) of the last trailer.
    pub seq_limit: u64,
    /// [`Trailer::durable`](super::segment::Trailer::durable) of the last trailer.
    pub durable: [DurableEnd; STREAMS],
    /// The least and the greatest expiry of the segment's records (0: none has one), and true if
    /// some record never expires.
    pub expiries: (u32, u32, bool),
    /// The segment's items and tombstones, in order.
    pub entries: Vec<SummaryEntry>,
}

impl Summary {
    /// Returns the size of a summary with `entries` entries in bytes, rounded up to whole blocks.
    pub fn bytes(entries: usize) -> usize {
        (HEAD + entries * ENTRY).next_multiple_of(BLOCK)
    }

    /// Encodes the summary in whole blocks. The last of these blocks must be the last block of the
    /// place.
    pub fn encode(&self, place: &SummaryPlace) -> Vec<u8> {
        let mut bytes = vec![0; Self::bytes(self.entries.len())];
        let (rest, head) = bytes.split_at_mut(Self::bytes(self.entries.len()) - HEAD);
        let first = rest.len() - self.entries.len() * ENTRY;
        for (entry, into) in self.entries.iter().zip(rest[first..].chunks_exact_mut(ENTRY)) {
            into.copy_from_slice(&entry.encode());
        }
        let (min_expiry, max_expiry, immortal) = self.expiries;
        let flags = if immortal { IMMORTAL } else { 0 };
        let flags = flags | if self.after_failure { AFTER_FAILURE } else { 0 };
        put(head, 0, MAGIC);
        put(head, 4, place.segment.to_le_bytes());
        put(head, 8, place.identity.store.to_le_bytes());
        put(head, 16, place.generation.to_le_bytes());
        put(head, 20, (self.entries.len() as u32).to_le_bytes());
        put(head, 24, self.end.to_le_bytes());
        put(head, 28, flags.to_le_bytes());
        put(head, 32, self.commit.to_le_bytes());
        put(head, 40, self.seq_limit.to_le_bytes());
        for (end, at) in self.durable.iter().zip([48, 56]) {
            put(head, at, end.segment.to_le_bytes());
            put(head, at + 4, end.offset.to_le_bytes());
        }
        put(head, 64, min_expiry.to_le_bytes());
        put(head, 68, max_expiry.to_le_bytes());
        let checksum = checksum64(&head[..CHECKSUM], checksum64(&rest[first..], place.seed()));
        put(head, CHECKSUM, checksum.to_le_bytes());
        bytes
    }

    /// Returns the size in bytes, rounded up to whole blocks, of the summary whose head is at the
    /// end of `bytes`. Returns `None` if `bytes` does not end with the head of a summary for
    /// `place`. Does not verify the checksum.
    pub fn look(bytes: &[u8], place: &SummaryPlace) -> Option<usize> {
        let head = bytes.last_chunk::<HEAD>()?;
        let ours = head[..4] == MAGIC
            && u32_at(head, 4) == place.segment
            && u64_at(head, 8) == place.identity.store
            && u32_at(head, 16) == place.generation;
        ours.then(|| Self::bytes(u32_at(head, 20) as usize))
    }

    /// Decodes the summary at the end of `bytes`, if it is whole and its values are possible for a
    /// segment in a place of `segment_size` bytes.
    pub fn decode(bytes: &[u8], place: &SummaryPlace, segment_size: usize) -> Option<Self> {
        let taken = Self::look(bytes, place)?;
        let (rest, head) = bytes.split_last_chunk::<HEAD>()?;
        let first = rest.len().checked_sub(u32_at(head, 20) as usize * ENTRY)?;
        let (entries, []) = rest[first..].as_chunks::<ENTRY>() else { return None };
        let checksum = checksum64(&head[..CHECKSUM], checksum64(&rest[first..], place.seed()));
        if checksum != u64_at(head, CHECKSUM) {
            return None;
        }
        let ends = |at| DurableEnd { segment: u32_at(head, at), offset: u32_at(head, at + 4) };
        let flags = u32_at(head, 28);
        let summary = Summary {
            end: u32_at(head, 24),
            commit: u64_at(head, 32),
            after_failure: flags & AFTER_FAILURE != 0,
            seq_limit: u64_at(head, 40),
            durable: [ends(48), ends(56)],
            expiries: (u32_at(head, 64), u32_at(head, 68), flags & IMMORTAL != 0),
            entries: entries.iter().map(SummaryEntry::decode).collect(),
        };
        let fits = |entry: &SummaryEntry| entry.offset + entry.size <= summary.end;
        let possible =
            taken + summary.end as usize <= segment_size && summary.entries.iter().all(fits);
        possible.then_some(summary)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT_SIZE: usize = 1 << 20;

    fn place(generation: u32) -> SummaryPlace {
        let identity = Identity { store: 7, checksum_seed: 0x5EED };
        SummaryPlace { identity, segment: 3, generation }
    }

    fn entry() -> impl Strategy<Value = SummaryEntry> {
        let parts = (any::<u64>(), any::<u32>(), 0..1u64 << 48, 0..60_000u32, 2..500u32);
        (parts, any::<bool>()).prop_map(|((lo, hi, seq, offset, size), is_item)| {
            let hash = KeyHash { lo, hi };
            SummaryEntry { hash, seq, offset: offset * 8, size: size * 8, is_item }
        })
    }

    fn summary() -> impl Strategy<Value = Summary> {
        let end = |segment, offset| DurableEnd { segment, offset };
        let ends = (any::<u32>(), any::<u32>()).prop_map(move |(a, b)| [end(a, b), end(b, a)]);
        let expiries = (any::<u32>(), any::<u32>(), any::<bool>());
        let numbers = (any::<u64>(), any::<bool>(), any::<u64>());
        (prop::collection::vec(entry(), 0..500), ends, expiries, numbers).prop_map(
            |(entries, durable, expiries, (commit, after_failure, seq_limit))| Summary {
                end: 500_000,
                commit,
                after_failure,
                seq_limit,
                durable,
                expiries,
                entries,
            },
        )
    }

    proptest! {
        #[test]
        fn a_summary_reads_back_in_its_generation_only(summary in summary(), before in 0..3usize) {
            let bytes = summary.encode(&place(9));
            prop_assert_eq!(bytes.len(), Summary::bytes(summary.entries.len()));
            prop_assert_eq!(Summary::look(&bytes, &place(9)), Some(bytes.len()));
            let place_end = [vec![0xAA; before * BLOCK], bytes].concat();
            let read = Summary::decode(&place_end, &place(9), SEGMENT_SIZE);
            prop_assert_eq!(read, Some(summary));
            prop_assert_eq!(Summary::decode(&place_end, &place(8), SEGMENT_SIZE), None);
        }

        #[test]
        fn a_changed_byte_is_noticed(summary in summary(), at in any::<prop::sample::Index>(), by in 1..=255u8) {
            let mut bytes = summary.encode(&place(9));
            let used = HEAD + summary.entries.len() * ENTRY;
            let at = bytes.len() - used + at.index(used);
            bytes[at] ^= by;
            prop_assert_eq!(Summary::decode(&bytes, &place(9), SEGMENT_SIZE), None);
        }

        #[test]
        fn arbitrary_bytes_contain_no_summary(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Summary::decode(&bytes, &place(9), SEGMENT_SIZE), None);
        }
    }

    #[test]
    fn a_summary_with_impossible_values_is_refused() {
        let hash = KeyHash { lo: 1, hi: 2 };
        let entry = SummaryEntry { hash, seq: 1, offset: 64, size: 64, is_item: true };
        let summary = Summary {
            end: 128,
            commit: 1,
            after_failure: false,
            seq_limit: 1,
            durable: Default::default(),
            expiries: (0, 0, true),
            entries: vec![entry],
        };
        let read = |summary: &Summary| {
            Summary::decode(&summary.encode(&place(1)), &place(1), SEGMENT_SIZE)
        };
        assert_eq!(read(&summary), Some(summary.clone()));
        assert_eq!(read(&Summary { end: 120, ..summary.clone() }), None);
        assert_eq!(read(&Summary { end: SEGMENT_SIZE as u32 - 8, ..summary }), None);
    }
}
