//! A key and its hash. The hash is computed once, before anything is looked up, so that a batch can
//! fetch the memory of all its keys ahead.

use crate::index::slot::{POSITION_BITS, TAG_BITS};
use larder_log::format::{KeyHash, key_hash};

/// A key of 1 to 250 bytes and its seeded 128-bit hash (XXH3: a frozen algorithm, because a store
/// will keep hashes on disk).
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    bytes: &'a [u8],
    /// Stripe (from the top) and position in the stripe's table (from the bottom).
    pub(crate) lo: u64,
    /// For fingerprints.
    pub(crate) hi: u64,
    /// Which candidate slot probably is the key's, plus one; 0 if nobody looked yet.
    hint: u8,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], seed: u64) -> Self {
        let hash = key_hash(bytes, seed);
        Key { bytes, lo: hash as u64, hi: (hash >> 64) as u64, hint: 0 }
    }

    /// A key of which only the hash is known: enough to find its place in the index.
    pub(crate) fn of_hash(hash: KeyHash) -> Key<'static> {
        Key { bytes: &[], lo: hash.lo, hi: hash.hi.into(), hint: 0 }
    }

    /// The key as the client wrote it.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.lo as u32 & ((1 << POSITION_BITS) - 1)
    }

    #[inline]
    pub(crate) fn tag(&self) -> u32 {
        self.lo as u32 & ((1 << TAG_BITS) - 1)
    }

    /// For simulations: an index of 64 stripes cannot tell keys with the same number apart.
    pub fn place(&self) -> u32 {
        const STRIPES: u32 = 6;
        let stripe = (self.lo >> (u64::BITS - STRIPES)) as u32;
        stripe << POSITION_BITS | self.position()
    }

    /// What tells it from other keys of its position: 44 of the 96 bits by which keys are told apart on a device.
    #[inline]
    pub(crate) fn beyond_position(&self) -> u64 {
        const LOW: u32 = 12;
        (self.hi & 0xFFFF_FFFF) << LOW | self.lo >> POSITION_BITS & ((1 << LOW) - 1)
    }

    /// The candidate slot that is worth the first look.
    #[inline]
    pub(crate) fn hint(&self) -> Option<usize> {
        self.hint.checked_sub(1).map(usize::from)
    }

    #[inline]
    pub(crate) fn set_hint(&mut self, number: usize) {
        self.hint = number as u8 + 1;
    }

    /// A number that tells this key from others with high probability, together with `version`.
    pub(crate) fn fingerprint(&self, version: u64) -> u64 {
        (self.lo ^ self.hi.rotate_left(32) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1
    }
}
