//! A slot: 8 bytes of tag, frequency and address.
//!
//! ```text
//! 63..47 tag (17)   46 older (1)   45..44 frequency (2)   43..0 address (segment 24, offset 20)
//! ```
//!
//! The tag only saves looks at records: a match is a match after the key compared equal.

use larder_log::Address;

const TAG_SHIFT: u32 = 47;
const FREQUENCY_SHIFT: u32 = 44;
const FREQUENCY_MASK: u64 = 0b11 << FREQUENCY_SHIFT;

/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 17;
/// The greatest frequency.
pub(crate) const MAX_FREQUENCY: u8 = 3;

/// A slot's contents; all zero is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const EMPTY: Slot = Slot(0);

    #[inline]
    pub(crate) fn new(tag: u32, frequency: u8, address: Address) -> Self {
        debug_assert!(tag < 1 << TAG_BITS && frequency <= MAX_FREQUENCY);
        let frequency = u64::from(frequency) << FREQUENCY_SHIFT;
        Slot(u64::from(tag) << TAG_SHIFT | frequency | address.bits())
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn tag(self) -> u32 {
        (self.0 >> TAG_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn address(self) -> Address {
        Address::from_bits(self.0)
    }

    /// How often the item was read, saturating at 3.
    #[inline]
    pub(crate) fn frequency(self) -> u8 {
        ((self.0 & FREQUENCY_MASK) >> FREQUENCY_SHIFT) as u8
    }

    #[inline]
    pub(crate) fn with_frequency(self, frequency: u8) -> Self {
        debug_assert!(frequency <= MAX_FREQUENCY);
        Slot(self.0 & !FREQUENCY_MASK | u64::from(frequency) << FREQUENCY_SHIFT)
    }
}

const _: () = assert!(Address::BITS == FREQUENCY_SHIFT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let address = Address::new((1 << 24) - 1, ((1 << 20) - 1) * 8);
        let slot = Slot::new((1 << TAG_BITS) - 1, 0, address);
        assert_eq!((slot.tag(), slot.frequency(), slot.address()), (0x1FFFF, 0, address));
        let slot = slot.with_frequency(3);
        assert_eq!((slot.tag(), slot.frequency(), slot.address()), (0x1FFFF, 3, address));
        assert_eq!(slot.with_frequency(0).frequency(), 0);
    }
}
