//! A slot: 8 bytes of tag, frequency and address.
//!
//! ```text
//! 63..47 tag (17)   46 displaced (1)   45..44 frequency (2)   43 older (1)   42..0 address (43)
//! ```
//!
//! A slot with another tag than the key's belongs to another key, so its record need not be read.
//! If the tags are equal, the keys must still be compared. The tag is the low part of the key's
//! position, and the bucket number determines the high part. So slots can be copied to a larger
//! table without reading their records, which may be only on a device.
//!
//! The address has 23 bits for the segment and 20 for the offset. The displaced bit is set if the
//! slot is in the second of its two candidate buckets; only the index maintains it. For the older
//! bit, see [`older`](crate::older).

use larder_log::Address;

const TAG_SHIFT: u32 = 47;
const FREQUENCY_SHIFT: u32 = 44;
const FREQUENCY_MASK: u64 = 0b11 << FREQUENCY_SHIFT;
const DISPLACED: u64 = 1 << 46;
const OLDER: u64 = 1 << 43;

/// Number of bits of a tag.
pub(crate) const TAG_BITS: u32 = 17;
/// Number of bits of a position. The lowest [`TAG_BITS`] of them are the tag. A table has at least
/// 2^(`POSITION_BITS` - `TAG_BITS`) buckets, so the bucket and the tag of a slot determine its
/// position.
pub(crate) const POSITION_BITS: u32 = if cfg!(loom) { TAG_BITS + 1 } else { 24 };
/// The largest frequency.
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

    /// Returns true if the slot is in the second of its candidate buckets.
    #[inline]
    pub(crate) fn is_displaced(self) -> bool {
        self.0 & DISPLACED != 0
    }

    #[inline]
    pub(crate) fn with_displaced(self, displaced: bool) -> Self {
        Slot(if displaced { self.0 | DISPLACED } else { self.0 & !DISPLACED })
    }

    /// Returns true if this is an older slot: a set replaced its record without comparing the keys.
    #[inline]
    pub(crate) fn is_older(self) -> bool {
        self.0 & OLDER != 0
    }

    #[inline]
    pub(crate) fn with_older(self, older: bool) -> Self {
        Slot(if older { self.0 | OLDER } else { self.0 & !OLDER })
    }

    /// Returns the read frequency, from 0 to 3. Reads raise it, and the cleaner lowers it.
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

const _: () = assert!(OLDER == 1 << Address::BITS && Address::BITS < FREQUENCY_SHIFT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let address = Address::new((1 << 23) - 1, ((1 << 20) - 1) * 8);
        let slot = Slot::new((1 << TAG_BITS) - 1, 0, address);
        assert_eq!((slot.tag(), slot.frequency(), slot.address()), (0x1FFFF, 0, address));
        let slot = slot.with_frequency(3);
        assert_eq!((slot.tag(), slot.frequency(), slot.address()), (0x1FFFF, 3, address));
        assert_eq!(slot.with_frequency(0).frequency(), 0);
        let displaced = slot.with_displaced(true);
        assert!(displaced.is_displaced() && !slot.is_displaced());
        assert_eq!(displaced.with_displaced(false), slot);
        assert_eq!(
            (displaced.tag(), displaced.frequency(), displaced.address()),
            (0x1FFFF, 3, address)
        );
        let older = displaced.with_older(true);
        assert!(older.is_older() && !displaced.is_older());
        assert_eq!((older.tag(), older.frequency(), older.address()), (0x1FFFF, 3, address));
        assert_eq!(older.with_older(false), displaced);
    }
}
