//! The list of damage that a start has reported and accepted. Without this list, every later start
//! that reads the log would find the damage again and might be refused for it.

use super::bytes::{put, u64_at};
use crate::address::{MAX_SEGMENT, SegmentNumber};

/// The largest number of segments that a store remembers as damaged.
pub const MAX_ACCEPTED: usize = 128;
/// Bytes of the encoded list.
pub(super) const ACCEPTED_BYTES: usize = MAX_ACCEPTED * 8;
/// The greatest number of damaged runs that an entry can hold. An entry with this number stands for
/// `MANY` runs or more.
const MANY: u64 = 0xff;

const _: () = assert!(MAX_ACCEPTED == 1 << 7 && MAX_SEGMENT < 1 << 24);

/// The list of accepted damage. Each entry names a segment, one generation of it, and the number of
/// damaged runs of bytes that a start may find there. The segment number 0 is never used, so an
/// entry with this number stands for a damaged tail place. It has the number of the tail place in
/// place of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Bits 0..24: the segment. Bits 24..56: its generation. Bits 56..64: the number of damaged
    /// runs. An entry of 0 is unused.
    entries: [u64; MAX_ACCEPTED],
}

impl Default for Accepted {
    fn default() -> Self {
        Accepted { entries: [0; MAX_ACCEPTED] }
    }
}

impl Accepted {
    fn of_segment(segment: SegmentNumber, generation: u32) -> u64 {
        (u64::from(generation) << 24) | u64::from(segment)
    }

    /// Returns the number of accepted damaged runs in a generation of a segment.
    pub fn runs(&self, segment: SegmentNumber, generation: u32) -> u32 {
        let wanted = Self::of_segment(segment, generation);
        let known = self.entries.iter().find(|&&entry| entry & ((1 << 56) - 1) == wanted);
        match known.map_or(0, |entry| entry >> 56) {
            MANY => u32::MAX,
            runs => runs as u32,
        }
    }

    /// Accepts `runs` damaged runs in a generation of a segment. Returns false if the list is full.
    pub fn accept(&mut self, segment: SegmentNumber, generation: u32, runs: u32) -> bool {
        let free = self.entries.iter_mut().find(|entry| **entry == 0);
        let entry = (u64::from(runs).min(MANY) << 56) | Self::of_segment(segment, generation);
        free.map(|free| *free = entry).is_some()
    }

    pub(super) fn encode(&self, into: &mut [u8], at: usize) {
        for (index, entry) in self.entries.iter().enumerate() {
            put(into, at + index * 8, entry.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &[u8], at: usize) -> Self {
        let mut accepted = Accepted::default();
        for (index, entry) in accepted.entries.iter_mut().enumerate() {
            *entry = u64_at(bytes, at + index * 8);
        }
        accepted
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn accepted_damage_applies_to_one_generation_of_a_segment() {
        let mut accepted = Accepted::default();
        assert!(accepted.accept(7, 3, 2) && accepted.accept(MAX_SEGMENT, u32::MAX, 1000));
        assert_eq!((accepted.runs(7, 3), accepted.runs(7, 4), accepted.runs(8, 3)), (2, 0, 0));
        assert_eq!(accepted.runs(MAX_SEGMENT, u32::MAX), u32::MAX);
        let mut bytes = [0; ACCEPTED_BYTES + 16];
        accepted.encode(&mut bytes, 16);
        assert_eq!(Accepted::decode(&bytes, 16), accepted);
        for segment in 0..MAX_ACCEPTED as u32 - 2 {
            assert!(accepted.accept(100 + segment, 1, 1));
        }
        assert!(!accepted.accept(99, 1, 1), "there is no room");
        assert_eq!((accepted.runs(99, 1), accepted.runs(100, 1)), (0, 1));
    }
}
