//! Recognises from a device's first bytes what the device holds. So a start does not overwrite
//! foreign data, and does not take a lower device for a fast one or the reverse.

use super::BLOCK;
use super::superblock::{self, Superblock, SuperblockError};
use super::tier::{LABEL_BYTES, Label, LabelError, is_lower};

/// Number of a device's first bytes that decide what it holds.
pub const HEAD: usize = 2 * BLOCK;

const _: () = assert!(HEAD == LABEL_BYTES);

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing, or the remains of an interrupted first start. A start may use the device as a new
    /// store, or as a new lower device of one.
    Nothing,
    /// A store without a lower device, or the fast device of a store.
    Store(Box<Superblock>),
    /// As [`Content::Store`], but damaged or of a format that this program does not know.
    UnusableStore(SuperblockError),
    /// The lower device of a store. Its label, in the first blocks, names the store.
    Lower(Label),
    /// As [`Content::Lower`], but the label is damaged or of a version that this program does not
    /// know.
    UnusableLower(LabelError),
    /// Something else.
    Other,
}

impl Content {
    /// Returns what the device that begins with `head` holds. `head` has the device's first
    /// [`HEAD`] bytes, or all if there are fewer.
    pub fn of(head: &[u8]) -> Content {
        let mut bytes = [0; HEAD];
        let length = head.len().min(HEAD);
        bytes[..length].copy_from_slice(&head[..length]);
        let mut copies = [[0; BLOCK]; 2];
        for (copy, bytes) in copies.iter_mut().zip(bytes.chunks_exact(BLOCK)) {
            copy.copy_from_slice(bytes);
        }
        match superblock::choose([&copies[0], &copies[1]]) {
            Ok((superblock, _)) => Content::Store(Box::new(superblock)),
            Err(SuperblockError::Empty) => Content::Nothing,
            Err(SuperblockError::NotAStore) => match Label::decode(&bytes) {
                Ok(label) => Content::Lower(label),
                // A start was interrupted while it wrote the label of a new lower device.
                Err(LabelError::NotALabel) if is_lower(&bytes) => Content::Nothing,
                Err(LabelError::NotALabel) => Content::Other,
                Err(error) => Content::UnusableLower(error),
            },
            Err(error) => Content::UnusableStore(error),
        }
    }

    /// Returns true if the device holds nothing, or a store (even an unusable one). Then it may be
    /// the only or the fast device of a lane.
    pub fn is_store(&self) -> bool {
        matches!(self, Content::Nothing | Content::Store(_) | Content::UnusableStore(_))
    }

    /// Returns true if the device holds nothing, or a label (even an unusable one). Then it may be
    /// the lower device of a lane.
    pub fn is_lower(&self) -> bool {
        matches!(self, Content::Nothing | Content::Lower(_) | Content::UnusableLower(_))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::Geometry;
    use crate::format::LaneNumber;

    #[test]
    fn every_part_of_a_store_is_recognised_alone() {
        let geometry = Geometry::new(64 << 10, 37).expect("geometry");
        let superblock = Superblock { counter: 1, ..Superblock::new(9, 1, 2, geometry, 3) };
        let mut head = [0; HEAD];
        superblock.encode((&mut head[BLOCK..]).try_into().expect("a block"));
        assert_eq!(Content::of(&head), Content::Store(Box::new(superblock)));
        head[BLOCK + 30] ^= 1;
        assert_eq!(Content::of(&head), Content::Nothing, "both copies are written before use");
        head[..8].copy_from_slice(b"somebody");
        assert_eq!(Content::of(&head), Content::UnusableStore(SuperblockError::Damaged));

        let label = Label::new(9, geometry, LaneNumber(2));
        let mut head = label.encode();
        assert_eq!(Content::of(&head), Content::Lower(label));
        head[BLOCK + 20] ^= 1;
        assert_eq!(Content::of(&head), Content::Lower(label), "one copy is enough");
        head[20] ^= 1;
        assert_eq!(Content::of(&head), Content::UnusableLower(LabelError::Damaged));
        assert!(Content::of(&head).is_lower() && !Content::of(&head).is_store());

        for nothing in [&[][..], &[0; 100], &[0; HEAD]] {
            assert_eq!(Content::of(nothing), Content::Nothing);
        }
        assert_eq!(Content::of(&[b'x'; HEAD]), Content::Other);
        assert_eq!(Content::of(b"a short file"), Content::Other);
    }

    #[test]
    fn an_unfinished_label_counts_as_nothing_or_as_a_label() {
        let geometry = Geometry::new(64 << 10, 37).expect("geometry");
        let whole = Label::new(9, geometry, LaneNumber(0)).encode();
        for kept in (0..=HEAD).step_by(512) {
            let mut torn = [0; HEAD];
            torn[..kept].copy_from_slice(&whole[..kept]);
            assert!(Content::of(&torn).is_lower(), "the first {kept}");
        }
    }
}
