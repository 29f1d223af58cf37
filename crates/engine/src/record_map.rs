//! Hash maps whose keys are numbers that Larder assigned, such as a
//! [`RecordId`](larder_log::RecordId) or a segment number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A fast hash function for the keys of a [`RecordMap`]. These keys are numbers. Larder assigns
/// them, and clients cannot choose them. So the function need not resist attacks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordHasher(u64);

impl Hasher for RecordHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // A bit of the product depends on no input bit above it, so the product's high bits are the
        // best mixed. The rotation moves them to the low end, because the hash table finds the
        // bucket by the lowest bits of a hash. It also uses the highest bits, which then come from
        // the product's middle.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map whose keys are `RecordId`s, segment numbers or numbers of reads.
pub(crate) type RecordMap<K, V> = HashMap<K, V, BuildHasherDefault<RecordHasher>>;
