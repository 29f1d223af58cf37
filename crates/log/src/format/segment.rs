//! The two records of kind commit: the header that begins a segment, and the trailer that ends the
//! bytes covered by one commit. Both are valid records of 64 bytes, so code that walks a segment
//! can step over them without knowing more about them.

use super::STREAMS;
use super::bytes::{get, put, u32_at, u64_at};
use super::checksum::{Identity, SegmentSeed, checksum64, record_checksum, value_hash};
use crate::address::{GRANULE, MAX_SEGMENT, SegmentNumber};
use crate::record::{CHECKSUM_AT, HEADER, Kind, MAX_SEQ};

/// Bytes of a segment header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a commit trailer.
pub const TRAILER_BYTES: usize = 64;

const HEADER_MAGIC: [u8; 6] = *b"LARSEG";
const TRAILER_MAGIC: [u8; 6] = *b"LARCMT";
const HEADER_SUBTYPE: u8 = 1;
const TRAILER_SUBTYPE: u8 = 2;
const SEALED: u8 = 1;
const AFTER_FAILURE: u8 = 2;
const EARLY: u8 = 4;
const CONTINUES: u8 = 8;
const SUBTYPE: usize = HEADER;
const CHECKSUM: usize = 56;

/// The bytes of a commit record: a segment header or a trailer.
type Bytes = [u8; 64];

/// Begins a commit record: writes the magic, the subtype and the fields that every record has.
fn begin(magic: [u8; 6], subtype: u8) -> Bytes {
    let mut bytes = [0; 64];
    put(&mut bytes, 0, magic);
    bytes[7] = (64 - HEADER) as u8;
    bytes[10] = Kind::Commit as u8;
    bytes[SUBTYPE] = subtype;
    bytes
}

/// Returns true if `bytes` begins like a commit record with this magic and subtype. The checksums
/// are not verified.
fn is_begun(bytes: &Bytes, magic: [u8; 6], subtype: u8) -> bool {
    let fixed = [0, (64 - HEADER) as u8, 0, 0, Kind::Commit as u8];
    bytes[..6] == magic && bytes[6..CHECKSUM_AT] == fixed && bytes[SUBTYPE] == subtype
}

/// Writes the two checksums of a segment header or a trailer: first the one of 64 bits, then the
/// record checksum, which covers the first. `covered_seed` is the seed of the checksum of 64 bits.
/// For a trailer, this seed is the checksum of the bytes that the trailer covers. For a header, it
/// is the segment's seed.
fn finish(bytes: &mut Bytes, covered_seed: u64, seed: SegmentSeed) {
    let checksum = checksum64(&bytes[..CHECKSUM], covered_seed);
    put(bytes, CHECKSUM, checksum.to_le_bytes());
    let checksum = own_checksum(bytes, seed);
    put(bytes, CHECKSUM_AT, checksum.to_le_bytes());
}

/// Returns the record checksum of a commit record.
fn own_checksum(bytes: &Bytes, seed: SegmentSeed) -> u32 {
    let (head, value) = bytes.split_at(HEADER);
    record_checksum(head, value_hash(value, seed.value_seed()), seed)
}

/// Returns true if the record checksum is right.
fn is_intact(bytes: &Bytes, seed: SegmentSeed) -> bool {
    own_checksum(bytes, seed) == u32_at(bytes, CHECKSUM_AT)
}

/// Returns true if the 64-bit checksum is right for `covered_seed`: see [`finish`].
fn covers(bytes: &Bytes, covered_seed: u64) -> bool {
    let mut copy = *bytes;
    put(&mut copy, CHECKSUM_AT, [0; 4]);
    checksum64(&copy[..CHECKSUM], covered_seed) == u64_at(bytes, CHECKSUM)
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The segment's number.
    pub segment: SegmentNumber,
    /// The segment's generation, which counts from 1 how often this number has been used.
    pub generation: u32,
    /// The number of the segment's stream.
    pub stream: u8,
    /// The number of the commit that was open when the segment was opened. So no earlier commit has
    /// records in the segment.
    pub opened: u64,
    /// Unix seconds at which the segment was opened.
    pub born: u32,
    /// The size of the jumbo, if the segment is one.
    pub jumbo: Option<JumboSize>,
}

/// The size of a jumbo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JumboSize {
    /// Bytes of the jumbo's value.
    pub value: u64,
    /// Number of places that the jumbo takes, the first included.
    pub parts: u32,
}

/// Why there is no segment in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSegment {
    /// The place has no header of this store with the place's number. For example, it was never
    /// used, or it is a place of a jumbo after the first. A normal segment where a jumbo was asked
    /// for is absent, too.
    Absent,
    /// The place has a damaged header of this store, or a damaged jumbo.
    Damaged,
    /// The place holds a jumbo, but a normal segment was asked for.
    Jumbo,
}

impl Header {
    /// Returns the seed of all checksums in the segment.
    pub fn seed(&self, identity: &Identity) -> SegmentSeed {
        SegmentSeed::new(identity.checksum_seed, self.segment, self.generation)
    }

    /// Encodes the header.
    pub fn encode(&self, identity: &Identity) -> [u8; HEADER_BYTES] {
        let mut bytes = begin(HEADER_MAGIC, HEADER_SUBTYPE);
        let jumbo = self.jumbo.unwrap_or(JumboSize { value: 0, parts: 0 });
        debug_assert!(jumbo.parts <= MAX_SEGMENT);
        put(&mut bytes, 16, identity.store.to_le_bytes());
        put(&mut bytes, 24, self.opened.to_le_bytes());
        put(&mut bytes, 32, jumbo.value.to_le_bytes());
        put(&mut bytes, 40, self.segment.to_le_bytes());
        put(&mut bytes, 44, self.generation.to_le_bytes());
        put(&mut bytes, 48, self.born.to_le_bytes());
        put(&mut bytes, 52, (jumbo.parts << 8 | u32::from(self.stream)).to_le_bytes());
        let seed = self.seed(identity);
        finish(&mut bytes, seed.get(), seed);
        bytes
    }

    /// Decodes the header of `segment` at the start of `bytes`.
    pub fn decode(
        bytes: &[u8],
        identity: &Identity,
        segment: SegmentNumber,
    ) -> Result<Self, NoSegment> {
        let bytes: &Bytes = bytes.first_chunk().ok_or(NoSegment::Absent)?;
        let looks_right = is_begun(bytes, HEADER_MAGIC, HEADER_SUBTYPE);
        let (store_is_ours, number) = (u64_at(bytes, 16) == identity.store, u32_at(bytes, 40));
        let header = Header {
            segment: number,
            generation: u32_at(bytes, 44),
            stream: bytes[52],
            opened: u64_at(bytes, 24),
            born: u32_at(bytes, 48),
            jumbo: match u32_at(bytes, 52) >> 8 {
                0 => None,
                parts => Some(JumboSize { value: u64_at(bytes, 32), parts }),
            },
        };
        let seed = header.seed(identity);
        if !looks_right || !is_intact(bytes, seed) || !covers(bytes, seed.get()) {
            let traces = bytes[..6] == HEADER_MAGIC || number == segment;
            let was_ours = traces && identity.nearly(u64_at(bytes, 16));
            return Err(if was_ours { NoSegment::Damaged } else { NoSegment::Absent });
        }
        let possible = store_is_ours && number == segment && usize::from(header.stream) < STREAMS;
        if possible { Ok(header) } else { Err(NoSegment::Absent) }
    }
}

/// The position up to which a stream is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableEnd {
    /// The segment's number; 0 if no bytes of the stream are durable yet.
    pub segment: SegmentNumber,
    /// Number of durable bytes, from the segment's start.
    pub offset: u32,
}

/// The record that ends the bytes which one commit covers in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The segment's generation.
    pub generation: u32,
    /// Number of bytes from the previous trailer's end, or offset 0, up to this trailer. The
    /// trailer covers these bytes, except the value of a jumbo.
    pub length: u32,
    /// The commit's number.
    pub commit: u64,
    /// The durable ends of both streams after the previous commit.
    pub durable: [DurableEnd; STREAMS],
    /// The upper end of the lane's lease. No greater seq is used before a greater limit is durable.
    pub seq_limit: u64,
    /// True if nothing follows in this segment.
    pub sealed: bool,
    /// True if the previous commit failed. Then the trailer does not prove that earlier commits
    /// were durable.
    pub after_failure: bool,
    /// True if the trailer was written early, while the previous commit was being synced. Then the
    /// trailer does not prove that the previous commit was durable.
    pub early: bool,
    /// True if the previous trailer in this segment was written early for the same commit.
    pub continues: bool,
}

/// An intact trailer. [`FoundTrailer::covers`] tells whether the bytes that the trailer covers are
/// intact.
#[derive(Clone, Copy, Debug)]
pub struct FoundTrailer {
    /// The decoded trailer.
    pub trailer: Trailer,
    bytes: Bytes,
    seed: SegmentSeed,
}

impl Trailer {
    /// Returns the commit's number if the trailer proves that all earlier commits were durable;
    /// otherwise 0.
    pub fn proof(&self) -> u64 {
        if self.after_failure || self.early { 0 } else { self.commit }
    }
}

impl FoundTrailer {
    /// Returns true if the bytes that the trailer covers are intact. `covered` are these bytes: for
    /// a jumbo everything before its value, otherwise the `length` bytes before the trailer.
    pub fn covers(&self, covered: &[u8]) -> bool {
        covers(&self.bytes, checksum64(covered, self.seed.get()))
    }
}

impl Trailer {
    /// Encodes the trailer. `covered` is everything from the previous trailer's end, or the start
    /// of the segment, up to this trailer. For a jumbo it is everything before the value.
    pub fn encode(&self, covered: &[u8], seed: SegmentSeed) -> [u8; TRAILER_BYTES] {
        debug_assert!(self.seq_limit <= MAX_SEQ);
        let mut bytes = begin(TRAILER_MAGIC, TRAILER_SUBTYPE);
        put(&mut bytes, 16, self.generation.to_le_bytes());
        put(&mut bytes, 20, self.length.to_le_bytes());
        put(&mut bytes, 24, self.commit.to_le_bytes());
        for (end, at) in self.durable.iter().zip([32, 40]) {
            put(&mut bytes, at, end.segment.to_le_bytes());
            put(&mut bytes, at + 4, end.offset.to_le_bytes());
        }
        let flags = [
            (self.sealed, SEALED),
            (self.after_failure, AFTER_FAILURE),
            (self.early, EARLY),
            (self.continues, CONTINUES),
        ];
        let flags = flags.iter().filter(|(is, _)| *is).fold(0, |all, (_, flag)| all | flag);
        put(&mut bytes, 48, (self.seq_limit & MAX_SEQ | u64::from(flags) << 48).to_le_bytes());
        finish(&mut bytes, checksum64(covered, seed.get()), seed);
        bytes
    }

    /// Returns all trailers in a segment's bytes whose record checksum is right, regardless of
    /// their generation. `seed` returns the seed of a generation.
    pub fn find_all(
        bytes: &[u8],
        seed: impl Fn(u32) -> SegmentSeed,
    ) -> impl Iterator<Item = Trailer> {
        (0..bytes.len()).step_by(GRANULE).filter_map(move |at| {
            let begun: &Bytes = bytes[at..].first_chunk()?;
            let generation = u32_at(begun, 16);
            let is_begun = is_begun(begun, TRAILER_MAGIC, TRAILER_SUBTYPE);
            let found = is_begun.then(|| Self::find(begun, generation, seed(generation)))?;
            found.map(|found| found.trailer)
        })
    }

    /// Returns the trailer at the start of `bytes`, if it was written in this segment and
    /// generation. Does not check the bytes that the trailer covers.
    pub fn find(bytes: &[u8], generation: u32, seed: SegmentSeed) -> Option<FoundTrailer> {
        let bytes: &Bytes = bytes.first_chunk()?;
        if !is_begun(bytes, TRAILER_MAGIC, TRAILER_SUBTYPE)
            || u32_at(bytes, 16) != generation
            || !is_intact(bytes, seed)
        {
            return None;
        }
        let end = |at| DurableEnd { segment: u32_at(bytes, at), offset: u32_at(bytes, at + 4) };
        let [limit @ .., flags, _] = get::<8>(bytes, 48);
        let [l0, l1, l2, l3, l4, l5] = limit;
        let trailer = Trailer {
            generation,
            length: u32_at(bytes, 20),
            commit: u64_at(bytes, 24),
            durable: [end(32), end(40)],
            seq_limit: u64::from_le_bytes([l0, l1, l2, l3, l4, l5, 0, 0]),
            sealed: flags & SEALED != 0,
            after_failure: flags & AFTER_FAILURE != 0,
            early: flags & EARLY != 0,
            continues: flags & CONTINUES != 0,
        };
        Some(FoundTrailer { trailer, bytes: *bytes, seed })
    }
}
