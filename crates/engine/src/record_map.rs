//! Hash maps from record identifiers or segment numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A fast hash function for record identifiers and segment numbers. It need not resist attacks,
/// because clients do not choose these numbers.
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
        // Only the product's high bits depend on all input bits. The hash table uses the lowest and
        // the highest bits of a hash, so the rotation moves the high bits to the low end.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map whose keys are record identifiers or segment numbers.
pub(crate) type RecordMap<K, V> = HashMap<K, V, BuildHasherDefault<RecordHasher>>;
