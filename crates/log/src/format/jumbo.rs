//! Jumbos: items that may take several places. The image of a jumbo is header, record and trailer
//! in one run. It is cut into pieces of a segment's size, whose places need not be adjacent.
//!
//! The trailer's checksum covers the header and the record up to its value, with the record
//! checksum. Only the record checksum covers the value. So a reader can decide from the first block
//! and the trailer whether a jumbo was committed, without reading the value.

use super::checksum::{Identity, SegmentSeed, record_checksum};
use super::segment::{HEADER_BYTES, Header, NoSegment, TRAILER_BYTES, Trailer};
use crate::address::SegmentNumber;
use crate::record::{Fields, Head, Kind};

/// Offset of a jumbo's record in its image.
pub const RECORD_AT: usize = HEADER_BYTES;

/// Returns the size of a jumbo's image in bytes. The jumbo's record takes `record` bytes.
pub fn image_bytes(record: usize) -> usize {
    HEADER_BYTES + record + TRAILER_BYTES
}

/// Returns the number of places of a jumbo whose record takes `record` bytes.
pub fn parts(record: usize, segment_size: u32) -> u32 {
    image_bytes(record).div_ceil(segment_size as usize) as u32
}

/// A jumbo as seen in its first block. Its header is intact. The record's head is parsed but not
/// verified: [`Jumbo::trailer`] and [`Jumbo::has_value`] verify it.
#[derive(Clone, Copy, Debug)]
pub struct Jumbo<'a> {
    /// The jumbo's header.
    pub header: Header,
    /// The fields of the jumbo's record.
    pub fields: Fields,
    /// The key of the jumbo's record.
    pub key: &'a [u8],
    /// Number of places that the jumbo takes.
    pub parts: u32,
    /// Bytes of the jumbo's record.
    pub record_bytes: usize,
    /// Offset of the value in the jumbo's image.
    pub value_at: usize,
    /// Bytes of the jumbo's value.
    pub value_bytes: usize,
    /// Offset of the trailer in the jumbo's image. The trailer may cross from one piece into the
    /// next.
    pub trailer_at: usize,
    covered: &'a [u8],
    checksum: u32,
    seed: SegmentSeed,
}

impl<'a> Jumbo<'a> {
    /// Parses the jumbo in the place of `segment`. `first` is the beginning of that place, at least
    /// one block. Returns `Damaged` if the header is that of a jumbo, but the record behind it does
    /// not match.
    pub fn open(
        first: &'a [u8],
        identity: &Identity,
        segment: SegmentNumber,
        segment_size: u32,
    ) -> Result<Self, NoSegment> {
        let header = Header::decode(first, identity, segment)?;
        let size = header.jumbo.ok_or(NoSegment::Absent)?;
        // A value cannot be longer than all its places. This check also keeps the sizes below from
        // overflowing.
        let most = u64::from(size.parts) * u64::from(segment_size);
        let value = usize::try_from(size.value).ok().filter(|_| size.value <= most);
        let value = value.ok_or(NoSegment::Damaged)?;
        let bytes = first.get(RECORD_AT..).ok_or(NoSegment::Damaged)?;
        let head = Head::parse(bytes, Some(value)).ok_or(NoSegment::Damaged)?;
        let (layout, record_bytes) = (head.layout, head.layout.size());
        let value_at = RECORD_AT + layout.value_offset();
        if head.kind != Kind::Item
            || layout.value != value
            || parts(record_bytes, segment_size) != size.parts
        {
            return Err(NoSegment::Damaged);
        }
        Ok(Jumbo {
            header,
            fields: head.fields,
            key: head.key,
            parts: size.parts,
            record_bytes,
            value_at,
            value_bytes: value,
            trailer_at: RECORD_AT + record_bytes,
            covered: &first[..value_at],
            checksum: head.checksum,
            seed: header.seed(identity),
        })
    }

    /// Returns the jumbo's trailer. `bytes` are the 64 bytes at `trailer_at` of the image. Returns
    /// `None` if these bytes are no trailer, or if the trailer does not cover this jumbo's head.
    pub fn trailer(&self, bytes: &[u8]) -> Option<Trailer> {
        let found = Trailer::find(bytes, self.header.generation, self.seed)?;
        let right = found.trailer.length as usize == self.trailer_at
            && found.trailer.sealed
            && found.covers(self.covered);
        right.then_some(found.trailer)
    }

    /// Returns true if the jumbo's value has this hash (see [`super::ValueHasher`]).
    pub fn has_value(&self, value_hash: u64) -> bool {
        let head = &self.covered[RECORD_AT..];
        record_checksum(head, value_hash, self.seed) == self.checksum
    }
}
