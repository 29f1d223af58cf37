//! A key and its hash. The hash is computed once, before any look-up, so that a batch can prefetch
//! the memory of all its keys.

use crate::index::slot::{POSITION_BITS, TAG_BITS};
use larder_log::format::{KeyHash, key_hash};
use std::fmt;
use std::num::NonZeroU64;

/// A key of 1 to 250 bytes and its seeded 128-bit hash, computed by XXH3. The output of XXH3 never
/// changes, which matters because stores keep hashes on disk.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    bytes: &'a [u8],
    /// The low half of the hash. Its top bits select the partition and the stripe, its bottom bits
    /// the position in the stripe's table.
    pub(crate) lo: u64,
    /// The high half of the hash. It distinguishes keys that share a position.
    pub(crate) hi: u64,
    /// The number of the slot that probably belongs to the key, plus one; 0 if there is no guess.
    /// The sixteen slots of the key's two buckets are numbered from 0.
    hint: u8,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], seed: u64) -> Self {
        let hash = key_hash(bytes, seed);
        Key { bytes, lo: hash as u64, hi: (hash >> 64) as u64, hint: 0 }
    }

    /// Creates a key from its hash alone. The hash is enough to look the key up in the index.
    pub(crate) fn of_hash(hash: KeyHash) -> Key<'static> {
        Key { bytes: &[], lo: hash.lo, hi: hash.hi.into(), hint: 0 }
    }

    /// Returns the key as the client wrote it.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns a part of the key's hash. By this part, a list of requests, such as that of the slow
    /// commands, shows which requests had the same key without storing the key.
    #[inline]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash(NonZeroU64::MIN | self.lo)
    }

    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.lo as u32 & ((1 << POSITION_BITS) - 1)
    }

    #[inline]
    pub(crate) fn tag(&self) -> u32 {
        self.lo as u32 & ((1 << TAG_BITS) - 1)
    }

    /// Returns the key's stripe and position in an index of 64 stripes, as one number. The index
    /// cannot tell two keys with the same number apart. Only simulations and tests call this.
    pub fn place(&self) -> u32 {
        const STRIPES: u32 = 6;
        let stripe = (self.lo >> (u64::BITS - STRIPES)) as u32;
        stripe << POSITION_BITS | self.position()
    }

    /// Returns 44 bits of the hash that distinguish the key from other keys at its position. A key
    /// that [`Key::of_hash`] created has them too, because they are among the 96 bits of a
    /// `KeyHash`.
    #[inline]
    pub(crate) fn beyond_position(&self) -> u64 {
        const LOW: u32 = 12;
        (self.hi & 0xFFFF_FFFF) << LOW | self.lo >> POSITION_BITS & ((1 << LOW) - 1)
    }

    /// Returns the number of the slot that a look-up should try first, if the prefetch has found
    /// one.
    #[inline]
    pub(crate) fn hint(&self) -> Option<usize> {
        self.hint.checked_sub(1).map(usize::from)
    }

    #[inline]
    pub(crate) fn set_hint(&mut self, number: usize) {
        self.hint = number as u8 + 1;
    }

    /// Returns a fingerprint of the key and `version`. Different versions of a key, and versions of
    /// different keys, very probably have different fingerprints. A fingerprint is never 0.
    pub(crate) fn fingerprint(&self, version: u64) -> u64 {
        (self.lo ^ self.hi.rotate_left(32) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1
    }
}

/// A part of a key's hash: a secret that must not be shown. The hash function is invertible, so the
/// hashes of a few short keys reveal the hash seed. With the seed, an attacker can make keys that
/// share one position in the index. So this type gives no access to the hash. To show a
/// `SecretHash`, apply a keyed hash function to it, such as that of
/// [`RandomState`](std::hash::RandomState).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(NonZeroU64);

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_hash_distinguishes_keys_and_shows_nothing() {
        let shown = |seed: u64| format!("{:?}", Key::new(b"fig", seed).secret_hash());
        assert_eq!(shown(1), shown(2));
        let hash = |bytes, seed| Key::new(bytes, seed).secret_hash();
        assert_eq!(hash(b"fig", 1), hash(b"fig", 1));
        assert_ne!(hash(b"fig", 1), hash(b"fog", 1));
        assert_ne!(hash(b"fig", 1), hash(b"fig", 2));
    }
}
