//! The ghost queue of S3-FIFO: fingerprints of items that were evicted from probation. An item that
//! comes back is written straight to the main queue.
//!
//! A bucket has eight 16-bit fingerprints and drops the oldest first. Races between threads lose a
//! ghost, never an item. Source: J. Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023.

use crate::key::Key;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A lane has one ghost for every `MEMORY_PER_GHOST` bytes of its memory limit. A ghost takes 2
/// bytes.
const MEMORY_PER_GHOST: u64 = 256;
const PER_WORD: u64 = 4;

#[derive(Debug)]
pub(crate) struct Ghost {
    /// Two words per bucket: the younger four fingerprints, then the older four.
    words: Box<[AtomicU64]>,
}

impl Ghost {
    pub(crate) fn new(memory: u64) -> Self {
        let buckets = (memory / MEMORY_PER_GHOST / PER_WORD / 2).max(64);
        // The operating system provides zeroed pages, so a page takes memory only once a ghost is
        // written to it.
        let words = Box::<[AtomicU64]>::new_zeroed_slice(buckets as usize * 2);
        // SAFETY: all zero is a valid atomic integer.
        Ghost { words: unsafe { words.assume_init() } }
    }

    /// Returns the bytes of RAM that the ghosts take when every page is in use.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    fn bucket(&self, key: &Key<'_>) -> (&AtomicU64, &AtomicU64, u64) {
        let buckets = self.words.len() / 2;
        let at = (((key.hi >> 32) * buckets as u64) >> 32) as usize * 2;
        let print = (key.hi >> 16 & 0xFFFF).max(1);
        (&self.words[at], &self.words[at + 1], print)
    }

    /// Adds the key's fingerprint to its bucket. The oldest fingerprint of a full bucket is lost.
    pub(crate) fn remember(&self, key: &Key<'_>) {
        let (young, old, print) = self.bucket(key);
        let word = young.load(Relaxed);
        old.store(old.load(Relaxed) << 16 | word >> 48, Relaxed);
        young.store(word << 16 | print, Relaxed);
    }

    /// Returns true if the bucket holds the key's fingerprint, and removes the fingerprint.
    pub(crate) fn recall(&self, key: &Key<'_>) -> bool {
        let (young, old, print) = self.bucket(key);
        for word in [young, old] {
            let prints = word.load(Relaxed);
            for lane in 0..PER_WORD {
                if prints >> (lane * 16) & 0xFFFF == print {
                    word.store(prints & !(0xFFFF << (lane * 16)), Relaxed);
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_recalled_once() {
        let ghost = Ghost::new(1 << 20);
        let keys: Vec<String> = (0..200).map(|n| format!("key:{n}")).collect();
        keys.iter().for_each(|key| ghost.remember(&Key::new(key.as_bytes(), 1)));
        let recalled = |key: &String| ghost.recall(&Key::new(key.as_bytes(), 1));
        assert!(keys.iter().filter(|key| recalled(key)).count() >= 199);
        assert!(keys.iter().filter(|key| recalled(key)).count() <= 1);
    }
}
