//! The label of a lower device: which lane it belongs to, and which of the lane's segments lie
//! there.
//!
//! A start writes the label before it adds the device to the lane's superblock. After that the
//! label never changes. If a crash comes before, the device may have the whole label or any part of
//! it, and the next start may write the label again.

use super::BLOCK;
use super::bytes::{all_zero, get, put, u32_at, u64_at};
use super::checksum::checksum64;
use super::geometry::Geometry;
use super::lanes::LaneNumber;

const MAGIC: [u8; 8] = *b"LARTIER\x01";
/// The version of labels that this program writes.
const VERSION: u32 = 1;
/// End of the fields; from here to the checksum all bytes are zero.
const FIELDS: usize = 49;
/// Offset of the byte that holds the lane's number plus 1. The byte is 0 in labels that do not name
/// the lane.
const LANE: usize = 48;
const CHECKSUM: usize = BLOCK - 8;

/// Bytes of the two copies of a label.
pub const LABEL_BYTES: usize = 2 * BLOCK;
/// Offset on a lower device at which the lane's data begins, behind the label. Groups on a fast
/// device are aligned to this number of bytes, too.
pub const LABEL_AREA: u64 = 128 << 10;

/// A lower device's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The store id of the device's lane.
    pub store_id: u128,
    /// The number and size of the segments that lie on the lane's fast device.
    fast: Geometry,
    /// The number of the device's lane, for an operator who has only this device. Labels of older
    /// programs do not name it.
    pub lane: Option<LaneNumber>,
}

/// Why a device is not the expected lower device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelError {
    /// The device is empty.
    Empty,
    /// The device holds something other than a label, for example a superblock.
    NotALabel,
    /// The label has this version, which this program does not know.
    UnknownVersion(u32),
    /// Both copies of the label are damaged.
    Damaged,
    /// The device belongs to another store, or to another fast device of this store.
    OfAnother,
}

impl std::fmt::Display for LabelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty, and the store has data on its lower device"),
            Self::NotALabel => f.write_str("its contents are not the lower part of a store"),
            Self::UnknownVersion(version) => {
                write!(f, "its label has version {version}, this program knows {VERSION}")
            }
            Self::Damaged => f.write_str("both copies of its label are damaged"),
            Self::OfAnother => f.write_str("it belongs to another store or fast device"),
        }
    }
}

impl std::error::Error for LabelError {}

impl Label {
    /// Creates the label of a lower device. `fast` is the geometry of the fast device, which holds
    /// the store's first segments; the lower device holds the others.
    pub fn new(store_id: u128, fast: Geometry, lane: LaneNumber) -> Self {
        Label { store_id, fast, lane: Some(lane) }
    }

    /// Encodes both copies.
    pub fn encode(&self) -> [u8; LABEL_BYTES] {
        let mut copies = [0; LABEL_BYTES];
        for into in copies.chunks_exact_mut(BLOCK) {
            put(into, 0, MAGIC);
            put(into, 8, VERSION.to_le_bytes());
            put(into, 16, self.store_id.to_le_bytes());
            put(into, 32, self.fast.segment_size().to_le_bytes());
            put(into, 36, self.fast.segment_count().to_le_bytes());
            put(into, 40, self.fast.total_bytes().to_le_bytes());
            into[LANE] = self.lane.map_or(0, |lane| lane.0.saturating_add(1));
            let checksum = checksum64(&into[..CHECKSUM], 0);
            put(into, CHECKSUM, checksum.to_le_bytes());
        }
        copies
    }

    /// Decodes the label at the start of a device, from its first intact copy.
    ///
    /// # Errors
    /// If no copy has the magic and the right checksum, or if the contents are invalid.
    pub fn decode(head: &[u8; LABEL_BYTES]) -> Result<Self, LabelError> {
        let copies = || head.chunks_exact(BLOCK);
        let sum_is_right = |copy: &&[u8]| {
            copy[..8] == MAGIC && checksum64(&copy[..CHECKSUM], 0) == u64_at(copy, CHECKSUM)
        };
        match copies().find(sum_is_right) {
            Some(copy) => Self::judge(copy),
            None if all_zero(head) => Err(LabelError::Empty),
            None if copies().any(|copy| copy[..8] == MAGIC) => Err(LabelError::Damaged),
            None => Err(LabelError::NotALabel),
        }
    }

    /// Interprets a copy whose checksum is right.
    fn judge(copy: &[u8]) -> Result<Self, LabelError> {
        let version = u32_at(copy, 8);
        if version != VERSION {
            return Err(LabelError::UnknownVersion(version));
        }
        let fast = Geometry::new(u32_at(copy, 32), u32_at(copy, 36));
        let fast = fast.filter(|fast| fast.total_bytes() == u64_at(copy, 40));
        let store_id = u128::from_le_bytes(get(copy, 16));
        let lane = copy[LANE].checked_sub(1).map(LaneNumber);
        fast.map(|fast| Label { store_id, fast, lane }).ok_or(LabelError::Damaged)
    }

    /// Checks that a device that begins with `head` has this label.
    ///
    /// # Errors
    /// If the device has no label, an unusable label, or another one.
    pub fn check(&self, head: &[u8; LABEL_BYTES]) -> Result<(), LabelError> {
        let found = Self::decode(head)?;
        let is_it = (found.store_id, found.fast) == (self.store_id, self.fast);
        if is_it { Ok(()) } else { Err(LabelError::OfAnother) }
    }

    /// Checks that a device that begins with `head` may be given this label: it is empty, has a
    /// label of the same store, or has a part of this label.
    ///
    /// # Errors
    /// If the device holds something else.
    pub fn may_replace(&self, head: &[u8; LABEL_BYTES]) -> Result<(), LabelError> {
        match Self::decode(head) {
            Ok(other) if other.store_id == self.store_id => Ok(()),
            Ok(_) => Err(LabelError::OfAnother),
            Err(error) => {
                let mut bytes = head.iter().zip(self.encode());
                let is_part = bytes.all(|(&found, own)| found == 0 || found == own);
                if is_part { Ok(()) } else { Err(error) }
            }
        }
    }
}

/// Returns true if a device that begins with `head` is empty, or has a label of any store, even a
/// damaged one or only a part. A start uses no other device as a lower device, so it overwrites no
/// foreign data. `head` must have the device's first 8192 bytes, or all if there are fewer.
pub(super) fn is_lower(head: &[u8]) -> bool {
    let mut copies = [0; LABEL_BYTES];
    let length = head.len().min(LABEL_BYTES);
    copies[..length].copy_from_slice(&head[..length]);
    // Recognises what an interrupted write of a label may leave.
    let torn = |copy: &[u8]| {
        let mut magic = copy.iter().zip(MAGIC);
        magic.all(|(&found, own)| found == 0 || found == own) && all_zero(&copy[FIELDS..CHECKSUM])
    };
    Label::decode(&copies) != Err(LabelError::NotALabel) || copies.chunks_exact(BLOCK).all(torn)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn label() -> Label {
        Label::new(7 << 70 | 9, Geometry::new(64 << 10, 37).expect("geometry"), LaneNumber(3))
    }

    #[test]
    fn a_label_reads_back_and_survives_in_either_copy() {
        let bytes = label().encode();
        assert_eq!(Label::decode(&bytes), Ok(label()));
        for copy in 0..2 {
            let mut damaged = bytes;
            damaged[copy * BLOCK + 20] ^= 1;
            assert_eq!(label().check(&damaged), Ok(()));
            damaged[(1 - copy) * BLOCK + 4090] ^= 1;
            assert_eq!(Label::decode(&damaged), Err(LabelError::Damaged));
            assert!(is_lower(&damaged));
        }
    }

    #[test]
    fn the_encoding_matches_the_documented_bytes() {
        let bytes = label().encode();
        assert_eq!(bytes[..BLOCK], bytes[BLOCK..]);
        assert_eq!(&bytes[..12], b"LARTIER\x01\x01\0\0\0");
        assert_eq!(u128::from_le_bytes(get(&bytes, 16)), label().store_id);
        assert_eq!((u32_at(&bytes, 32), u32_at(&bytes, 36)), (64 << 10, 37));
        assert_eq!(u64_at(&bytes, 40), label().fast.total_bytes());
        assert_eq!(bytes[48], 4);
        assert!(all_zero(&bytes[FIELDS..CHECKSUM]));
    }

    #[test]
    fn a_label_without_a_lane_number_is_accepted() {
        let unnumbered = Label { lane: None, ..label() }.encode();
        assert_eq!(Label::decode(&unnumbered).map(|label| label.lane), Ok(None));
        assert_eq!(label().check(&unnumbered), Ok(()));
    }

    #[test]
    fn anything_but_a_matching_label_is_refused() {
        let empty = [0; LABEL_BYTES];
        assert_eq!(Label::decode(&empty), Err(LabelError::Empty));
        assert_eq!(Label::decode(&[3; LABEL_BYTES]), Err(LabelError::NotALabel));
        assert!(is_lower(&empty) && is_lower(&[]) && !is_lower(&[3; LABEL_BYTES]));
        let mut filesystem = empty;
        filesystem[1024] = 1;
        assert!(!is_lower(&filesystem));
        let others = [
            Label { store_id: 8, ..label() },
            Label::new(
                label().store_id,
                Geometry::new(64 << 10, 38).expect("geometry"),
                LaneNumber(3),
            ),
            Label::new(
                label().store_id,
                Geometry::new(32 << 10, 37).expect("geometry"),
                LaneNumber(3),
            ),
        ];
        for other in others {
            assert_eq!(label().check(&other.encode()), Err(LabelError::OfAnother));
        }
        let mut newer = label().encode();
        for copy in newer.chunks_exact_mut(BLOCK) {
            copy[8] = 2;
            let checksum = checksum64(&copy[..CHECKSUM], 0);
            put(copy, CHECKSUM, checksum.to_le_bytes());
        }
        assert_eq!(Label::decode(&newer), Err(LabelError::UnknownVersion(2)));
        assert_eq!(label().may_replace(&newer), Err(LabelError::UnknownVersion(2)));
    }

    #[test]
    fn an_unfinished_label_can_be_written_again() {
        let whole = label().encode();
        for first in (0..LABEL_BYTES).step_by(8) {
            let mut torn = whole;
            torn[..first].fill(0);
            assert_eq!(label().may_replace(&torn), Ok(()), "without the first {first}");
            assert!(is_lower(&torn));
            let mut torn = whole;
            torn[first..].fill(0);
            assert_eq!(label().may_replace(&torn), Ok(()), "the first {first}");
            assert!(is_lower(&torn));
        }
        let other = Label { store_id: 8, ..label() };
        assert_eq!(label().may_replace(&other.encode()), Err(LabelError::OfAnother));
        assert_eq!(label().may_replace(&[3; LABEL_BYTES]), Err(LabelError::NotALabel));
        let other_border = Label::new(
            label().store_id,
            Geometry::new(8 << 10, 1).expect("geometry"),
            LaneNumber(3),
        );
        assert_eq!(label().may_replace(&other_border.encode()), Ok(()));
    }
}
