//! The layout of a device. A segment's number alone determines its place. So a store grows by
//! adding segments behind the last one, and nothing moves.

use super::{BLOCK, STREAMS};
use crate::MAX_SEGMENT_SIZE;
use crate::address::{MAX_SEGMENT, SegmentNumber};

/// The smallest segment of a store, in bytes.
pub const MIN_SEGMENT_SIZE: u32 = 8 << 10;
/// Bytes of a tail place: a header block and a data block.
pub const TAIL_BYTES: usize = 2 * BLOCK;
/// Number of tail places per stream. Three may hold tails that are still needed: the durable tail,
/// the tail that is being synced, and the last tail written (by an early write, perhaps). The next
/// tail goes to the fourth.
pub const TAIL_PLACES: usize = 4;
/// Offsets of the superblock's two copies, in bytes.
pub const SUPERBLOCKS: [u64; 2] = [0, BLOCK as u64];

const TAILS: u64 = 2 * BLOCK as u64;
/// Offset of the first group, in bytes. All groups begin at multiples of this offset, and so do all
/// segments of at least this size.
const GROUPS: u64 = 128 << 10;
/// Number of segments in a group. The metas of a group lie together, in front of its segments.
const GROUP: u64 = 16;
/// Length of a meta's header, in bytes. The dead map follows the header.
pub(super) const META_HEADER: usize = 64;

/// The shape of a store: segment size and number of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    segment_size: u32,
    segment_count: u32,
}

impl Geometry {
    /// Returns the shape of a store of `segment_count` segments. Returns `None` unless the size is
    /// a power of two from 8 KiB to 8 MiB and there are 1 to 2²³ − 1 segments.
    pub fn new(segment_size: u32, segment_count: u32) -> Option<Self> {
        let size_is_good = segment_size.is_power_of_two()
            && (MIN_SEGMENT_SIZE..=MAX_SEGMENT_SIZE as u32).contains(&segment_size);
        let count_is_good = (1..=MAX_SEGMENT).contains(&segment_count);
        (size_is_good && count_is_good).then_some(Geometry { segment_size, segment_count })
    }

    /// Returns the largest store that a device of `device_bytes` holds, or `None` if not even one
    /// segment fits or the segment size is invalid.
    pub fn fit(device_bytes: u64, segment_size: u32) -> Option<Self> {
        let one = Geometry::new(segment_size, 1)?;
        let room = device_bytes.checked_sub(GROUPS)?;
        let whole = room / one.group_bytes();
        let rest = room % one.group_bytes();
        let more = rest.saturating_sub(one.group_metas()) / u64::from(segment_size);
        let count = (whole * GROUP + more.min(GROUP)).min(u64::from(MAX_SEGMENT));
        Geometry::new(segment_size, count as u32)
    }

    /// Returns the size of a segment, in bytes.
    pub fn segment_size(&self) -> u32 {
        self.segment_size
    }

    /// Returns the number of segments; they are numbered `1..=segment_count`.
    pub fn segment_count(&self) -> u32 {
        self.segment_count
    }

    /// Returns the number of bytes that the store takes on its device.
    pub fn total_bytes(&self) -> u64 {
        self.segment(self.segment_count) + u64::from(self.segment_size)
    }

    /// Returns the size of a dead map in bytes: one bit per 16 bytes of segment.
    pub fn map_bytes(&self) -> usize {
        self.segment_size as usize / 128
    }

    /// Returns the size of one copy of a meta in bytes, a multiple of a block.
    pub fn meta_bytes(&self) -> usize {
        (META_HEADER + self.map_bytes()).next_multiple_of(BLOCK)
    }

    /// Returns the offset of a stream's tail place `which` (below [`TAIL_PLACES`]).
    pub fn tail_place(&self, stream: usize, which: usize) -> u64 {
        assert!(stream < STREAMS && which < TAIL_PLACES);
        TAILS + ((stream * TAIL_PLACES + which) * TAIL_BYTES) as u64
    }

    /// Returns the offset of copy `which` (0 or 1) of a segment's meta. The two copies are
    /// adjacent. The metas of all segments of a group are adjacent, too.
    pub fn meta(&self, segment: SegmentNumber, which: usize) -> u64 {
        assert!(which < 2);
        let (group, within) = self.group(segment);
        group + (within * 2 + which as u64) * self.meta_bytes() as u64
    }

    /// Returns the offset of a segment.
    pub fn segment(&self, segment: SegmentNumber) -> u64 {
        let (group, within) = self.group(segment);
        group + self.group_metas() + within * u64::from(self.segment_size)
    }

    /// Returns the numbers of all segments in the group of `segment`, up to the store's last one.
    /// Their metas are adjacent.
    pub fn meta_run(&self, segment: SegmentNumber) -> std::ops::RangeInclusive<SegmentNumber> {
        let first = (segment - 1) / GROUP as u32 * GROUP as u32 + 1;
        first..=(first + GROUP as u32 - 1).min(self.segment_count)
    }

    /// Returns the segment that lies at an offset of the device, or `None` if none does.
    pub fn segment_at(&self, offset: u64) -> Option<SegmentNumber> {
        let behind = offset.checked_sub(GROUPS)?;
        let (group, within) = (behind / self.group_bytes(), behind % self.group_bytes());
        let place = within.checked_sub(self.group_metas())? / u64::from(self.segment_size);
        let number = u32::try_from(group * GROUP + place + 1).ok()?;
        (number <= self.segment_count).then_some(number)
    }

    fn group(&self, segment: SegmentNumber) -> (u64, u64) {
        assert!((1..=self.segment_count).contains(&segment), "no segment {segment}");
        let index = u64::from(segment - 1);
        (GROUPS + index / GROUP * self.group_bytes(), index % GROUP)
    }

    fn group_metas(&self) -> u64 {
        2 * GROUP * self.meta_bytes() as u64
    }

    fn group_bytes(&self) -> u64 {
        self.group_metas() + GROUP * u64::from(self.segment_size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_offset_leads_to_its_segment() {
        let geometry = Geometry::new(64 << 10, 3 * GROUP as u32 - 5).unwrap();
        for segment in 1..=geometry.segment_count() {
            let at = geometry.segment(segment);
            assert_eq!(geometry.segment_at(at), Some(segment));
            assert_eq!(geometry.segment_at(at + (64 << 10) - 1), Some(segment));
            assert_eq!(geometry.segment_at(geometry.meta(segment, 1)), None);
        }
        assert_eq!(geometry.segment_at(geometry.total_bytes()), None);
        assert_eq!(geometry.segment_at(0), None);
    }

    #[test]
    fn nothing_overlaps_and_nothing_moves_when_a_store_grows() {
        for segment_size in [8 << 10, 64 << 10, 1 << 20, 8 << 20] {
            let small = Geometry::new(segment_size, 5).expect("geometry");
            let geometry = Geometry::new(segment_size, 53).expect("geometry");
            let mut places: Vec<(u64, u64)> = SUPERBLOCKS.map(|at| (at, BLOCK as u64)).to_vec();
            for stream in 0..STREAMS {
                for which in 0..TAIL_PLACES {
                    places.push((geometry.tail_place(stream, which), TAIL_BYTES as u64));
                }
            }
            for number in 1..=53 {
                for which in 0..2 {
                    let meta = geometry.meta(number, which);
                    places.push((meta, geometry.meta_bytes() as u64));
                    assert!(number > 5 || small.meta(number, which) == meta);
                    assert!(geometry.meta_run(number).contains(&number));
                }
                places.push((geometry.segment(number), u64::from(segment_size)));
                assert!(number > 5 || small.segment(number) == geometry.segment(number));
            }
            places.sort_unstable();
            for pair in places.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                assert!(pair[1].0.is_multiple_of(BLOCK as u64));
            }
            let last = places.last().expect("places");
            assert_eq!(last.0 + last.1, geometry.total_bytes());
        }
    }

    #[test]
    fn fit_returns_the_largest_store_that_fits() {
        for segment_size in [8 << 10, 1 << 20] {
            for count in [1, 2, 15, 16, 17, 31, 32, 33, 100] {
                let bytes = Geometry::new(segment_size, count).expect("geometry").total_bytes();
                let fits =
                    |bytes| Geometry::fit(bytes, segment_size).map_or(0, |g| g.segment_count);
                assert_eq!(fits(bytes), count);
                assert_eq!(fits(bytes - 1), count - 1);
            }
        }
        assert_eq!(Geometry::fit(0, 1 << 20), None);
        assert_eq!(Geometry::fit(u64::MAX, 1 << 20).map(|g| g.segment_count), Some(MAX_SEGMENT));
        assert_eq!(Geometry::fit(1 << 40, 3 << 20), None);
    }
}
