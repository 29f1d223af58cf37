//! Hash maps whose keys say where records lie.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes record identifiers and segments. These are the engine's own numbers, so no client can make
/// them collide.
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
        // The product's high bits depend on all input bits. The hash table uses both the high and
        // the low bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map whose keys are record identifiers or segments.
pub(crate) type RecordMap<K, V> = HashMap<K, V, BuildHasherDefault<RecordHasher>>;
