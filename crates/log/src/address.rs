//! The address of a record: a segment and an offset in it. The address stays the same when the
//! segment's frame is dropped.

/// Number of a segment. The number 0 is never used, so an index slot of all zeros is empty.
pub type SegmentNumber = u32;

const OFFSET_BITS: u32 = 20;
const SEGMENT_BITS: u32 = 23;
/// Alignment of records in a segment, in bytes.
pub const GRANULE: usize = 8;
/// The largest segment, in bytes: 8 MiB.
pub const MAX_SEGMENT_SIZE: usize = GRANULE << OFFSET_BITS;
/// The greatest segment number.
pub const MAX_SEGMENT: SegmentNumber = (1 << SEGMENT_BITS) - 1;

/// The address of a record: 23 bits of segment, 20 bits of offset in units of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(u64);

impl Address {
    /// Number of bits in a packed address.
    pub const BITS: u32 = SEGMENT_BITS + OFFSET_BITS;

    /// Returns the address of the record at `offset` bytes in `segment`.
    #[inline]
    pub fn new(segment: SegmentNumber, offset: usize) -> Self {
        debug_assert!(segment != 0 && segment <= MAX_SEGMENT);
        debug_assert!(offset.is_multiple_of(GRANULE) && offset < MAX_SEGMENT_SIZE);
        Address(u64::from(segment) << OFFSET_BITS | (offset / GRANULE) as u64)
    }

    /// Unpacks an address.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Address(bits & ((1 << Self::BITS) - 1))
    }

    /// Packs the address.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the segment.
    #[inline]
    pub fn segment(self) -> SegmentNumber {
        (self.0 >> OFFSET_BITS) as SegmentNumber
    }

    /// Returns the offset of the record in its segment, in bytes.
    #[inline]
    pub fn offset(self) -> usize {
        (self.0 as usize & ((1 << OFFSET_BITS) - 1)) * GRANULE
    }
}

/// Names one record: its address, in one generation of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId {
    /// The record's address.
    pub address: Address,
    /// The generation of the address's segment.
    pub generation: u32,
}
