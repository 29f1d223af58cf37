//! The index image: what a clean stop leaves in free segments so that the next start need not read
//! the log.
//!
//! The image is a sequence of bytes, cut into parts, and each part lies in one place. The
//! superblock has the number of the first part's place, and each part that of the next one. A start
//! finds parts only in this way, so it reads no parts of older images. As a further check, each
//! part has a number that identifies the stop: the first commit number that the stop left unused.
//! The part's checksum covers its header and its content.

use super::bytes::{put, u32_at, u64_at};
use super::checksum::{Identity, checksum64};
use crate::address::SegmentNumber;

/// Length of a part's header, in bytes. The content follows the header.
pub const PART_HEADER_BYTES: usize = 64;
/// Bytes of a row of the segment table.
pub const ROW_BYTES: usize = 80;

const MAGIC: [u8; 4] = *b"LIM3";
const CHECKSUM: usize = 56;

/// One part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePart {
    /// The place that the part lies in.
    pub segment: SegmentNumber,
    /// The first commit number that was unused at the stop.
    pub stop: u64,
    /// The place of the next part; 0 for the last part.
    pub next: SegmentNumber,
    /// Length of the part's content, in bytes.
    pub length: u32,
}

impl ImagePart {
    /// Encodes the header of a part whose content is `held`. The part's checksum covers the header
    /// and `held`.
    pub fn encode(&self, held: &[u8], identity: &Identity) -> [u8; PART_HEADER_BYTES] {
        let mut bytes = [0; PART_HEADER_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 4, self.segment.to_le_bytes());
        put(&mut bytes, 8, identity.store.to_le_bytes());
        put(&mut bytes, 16, self.stop.to_le_bytes());
        put(&mut bytes, 24, self.next.to_le_bytes());
        put(&mut bytes, 28, self.length.to_le_bytes());
        let seed = checksum64(held, identity.checksum_seed);
        let checksum = checksum64(&bytes[..CHECKSUM], seed);
        put(&mut bytes, CHECKSUM, checksum.to_le_bytes());
        bytes
    }

    /// Decodes the part that `place` holds. Returns the part with its content, or `None` if the
    /// place holds no intact part of this segment and stop.
    pub fn decode<'a>(
        place: &'a [u8],
        identity: &Identity,
        segment: SegmentNumber,
        stop: u64,
    ) -> Option<(Self, &'a [u8])> {
        let (head, held) = place.split_at_checked(PART_HEADER_BYTES)?;
        let part = ImagePart {
            segment: u32_at(head, 4),
            stop: u64_at(head, 16),
            next: u32_at(head, 24),
            length: u32_at(head, 28),
        };
        let held = held.get(..part.length as usize)?;
        let seed = checksum64(held, identity.checksum_seed);
        let good = head[..4] == MAGIC
            && u64_at(head, 8) == identity.store
            && (part.segment, part.stop) == (segment, stop)
            && checksum64(&head[..CHECKSUM], seed) == u64_at(head, CHECKSUM);
        good.then_some((part, held))
    }
}

/// The use of a place at the stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// Unused.
    #[default]
    Free,
    /// A sealed segment.
    Sealed,
    /// A segment whose records are not in the index, and whose free mark was not durable.
    Quarantine,
    /// A place of a jumbo after its first.
    Part,
}

/// The segment table's entry of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageRow {
    /// The use of the place.
    pub usage: Usage,
    /// The generation of the place's number.
    pub generation: u32,
    /// The version of the place's meta.
    pub meta_version: u64,
    /// The number of the segment's stream.
    pub stream: u8,
    /// True if some record in the segment never expires.
    pub immortal: bool,
    /// True if the segment holds ends: records that hide older versions and are not hidden.
    pub ends: bool,
    /// True if the segment is a jumbo. False for a jumbo that was already dead at the last start:
    /// the recovery did not load its value.
    pub jumbo: bool,
    /// True if the segment had a frame.
    pub resident: bool,
    /// True if a part of the place, or a copy of its meta, cannot be read.
    pub bad: bool,
    /// The number of the commit that was open when the segment was opened. So no earlier commit has
    /// records in the segment.
    pub opened: u64,
    /// The number of the last commit that has records in the segment.
    pub last_commit: u64,
    /// The commit up to which the segment's dead map is complete.
    pub cover: u64,
    /// Bytes of the segment's records.
    pub filled: u32,
    /// Bytes of the segment's dead records.
    pub dead: u32,
    /// Offset at which the segment was cut. 0 if it was not cut, and so ends at the trailer that
    /// sealed it.
    pub end: u32,
    /// Unix seconds at which the segment was opened.
    pub born: u32,
    /// The least expiry of the segment's records, in Unix seconds; 0 if none expires.
    pub min_expiry: u32,
    /// The greatest expiry of the segment's records, in Unix seconds; 0 if none expires.
    pub max_expiry: u32,
    /// Length of the jumbo's value, in bytes; 0 in a normal segment.
    pub jumbo_value: u64,
    /// Of the dead records that the dead map does not mark, the earliest death, as a commit number.
    /// `u64::MAX` if there are none.
    pub earliest_death: u64,
}

impl ImageRow {
    /// Encodes the row.
    pub fn encode(&self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        put(&mut bytes, 0, self.generation.to_le_bytes());
        bytes[4] = self.usage as u8;
        bytes[5] = self.stream;
        let flags = [self.immortal, self.ends, self.jumbo, self.resident, self.bad];
        bytes[6] = (0u8..).zip(flags).map(|(bit, set)| u8::from(set) << bit).sum();
        put(&mut bytes, 8, self.opened.to_le_bytes());
        put(&mut bytes, 16, self.last_commit.to_le_bytes());
        put(&mut bytes, 24, self.cover.to_le_bytes());
        put(&mut bytes, 32, self.meta_version.to_le_bytes());
        put(&mut bytes, 40, self.filled.to_le_bytes());
        put(&mut bytes, 44, self.dead.to_le_bytes());
        put(&mut bytes, 48, self.end.to_le_bytes());
        put(&mut bytes, 52, self.born.to_le_bytes());
        put(&mut bytes, 56, self.min_expiry.to_le_bytes());
        put(&mut bytes, 60, self.max_expiry.to_le_bytes());
        put(&mut bytes, 64, self.jumbo_value.to_le_bytes());
        put(&mut bytes, 72, self.earliest_death.to_le_bytes());
        bytes
    }

    /// Decodes the row. Returns `None` if the byte of the usage has no valid value.
    pub fn decode(bytes: &[u8; ROW_BYTES]) -> Option<Self> {
        let flag = |bit: u8| bytes[6] >> bit & 1 != 0;
        Some(ImageRow {
            usage: match bytes[4] {
                0 => Usage::Free,
                1 => Usage::Sealed,
                2 => Usage::Quarantine,
                3 => Usage::Part,
                _ => return None,
            },
            generation: u32_at(bytes, 0),
            stream: bytes[5],
            immortal: flag(0),
            ends: flag(1),
            jumbo: flag(2),
            resident: flag(3),
            bad: flag(4),
            opened: u64_at(bytes, 8),
            last_commit: u64_at(bytes, 16),
            cover: u64_at(bytes, 24),
            meta_version: u64_at(bytes, 32),
            filled: u32_at(bytes, 40),
            dead: u32_at(bytes, 44),
            end: u32_at(bytes, 48),
            born: u32_at(bytes, 52),
            min_expiry: u32_at(bytes, 56),
            max_expiry: u32_at(bytes, 60),
            jumbo_value: u64_at(bytes, 64),
            earliest_death: u64_at(bytes, 72),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn table_rows_read_back() {
        let row = ImageRow {
            usage: Usage::Quarantine,
            generation: 7,
            meta_version: 8,
            stream: 1,
            immortal: false,
            ends: true,
            jumbo: false,
            resident: true,
            bad: true,
            opened: 9,
            last_commit: 10,
            cover: 11,
            filled: 12,
            dead: 13,
            end: 14,
            born: 15,
            min_expiry: 16,
            max_expiry: 17,
            jumbo_value: 18,
            earliest_death: 19,
        };
        assert_eq!(ImageRow::decode(&row.encode()), Some(row));
        let mut bytes = ImageRow::default().encode();
        bytes[4] = 4;
        assert_eq!(ImageRow::decode(&bytes), None);
    }

    #[test]
    fn an_image_part_is_accepted_only_in_its_place_and_for_its_stop() {
        let identity = Identity { store: 3, checksum_seed: 4 };
        let part = ImagePart { segment: 5, stop: 6, next: 0, length: 3 };
        let place = [&part.encode(b"abc", &identity)[..], b"abc behind"].concat();
        assert_eq!(ImagePart::decode(&place, &identity, 5, 6), Some((part, &b"abc"[..])));
        assert_eq!(ImagePart::decode(&place, &identity, 4, 6), None);
        assert_eq!(ImagePart::decode(&place, &identity, 5, 7), None);
        for bit in 0..(PART_HEADER_BYTES + 3) * 8 {
            let mut torn = place.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ImagePart::decode(&torn, &identity, 5, 6), None, "bit {bit}");
        }
    }
}
