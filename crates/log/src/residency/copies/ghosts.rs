//! Ghosts: an array of bits that remembers which records were read from the device recently.
//!
//! Every [noted](Ghosts::recall) read sets the bit that its record hashes to. It also clears one
//! byte of the array, and the reads clear the bytes in turn. So a set bit lasts until its byte is
//! cleared: at most as many reads as the array has bytes, and half as many on average. About 1/16
//! of the bits are set. So a record that was not read recently seems recently read with a
//! probability of 1/16. A copy made by such an error is evicted, unless it is read again.

use crate::memory::mapping;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

#[derive(Debug)]
pub(super) struct Ghosts {
    /// The bits; their number of bytes is a power of two.
    bits: Box<[AtomicU8]>,
    /// Number of reads so far.
    reads: AtomicUsize,
}

impl Ghosts {
    /// Creates ghosts that remember a read for at most `reads` further reads. `reads` must be a
    /// power of two.
    pub(super) fn new(reads: usize) -> Ghosts {
        let mut bits = Vec::with_capacity(reads);
        mapping::advise_huge(bits.spare_capacity_mut());
        bits.extend((0..reads).map(|_| AtomicU8::new(0)));
        Ghosts { bits: bits.into(), reads: AtomicUsize::new(0) }
    }

    /// Notes that a record with this hash is read from the device. Returns true if it was read
    /// recently.
    pub(super) fn recall(&self, hash: u64) -> bool {
        let mask = self.bits.len() - 1;
        let place = &self.bits[(hash >> 3) as usize & mask];
        let bit = 1 << (hash & 7);
        let oldest = self.reads.fetch_add(1, Ordering::Relaxed) & mask;
        self.bits[oldest].store(0, Ordering::Relaxed);
        place.fetch_or(bit, Ordering::Relaxed) & bit != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::hash;
    use super::*;
    use crate::Address;

    #[test]
    fn ghosts_remember_recent_reads_and_little_else() {
        let ghosts = Ghosts::new(1 << 12);
        let read = |n: u64| ghosts.recall(hash(Address::new(1, n as usize * 8)));
        let fresh = (0..20_000).filter(|n| read(*n)).count();
        assert!((600..2000).contains(&fresh), "{fresh} of 20 000 that were never read");
        // A round is as many reads as the array has bytes. The records are read again at once,
        // after a quarter of a round, and after a whole round. Most must be known in the first two
        // cases, and few in the last.
        let at_once = (20_000..20_500).filter(|n| read(*n) | read(*n)).count();
        assert!(at_once > 495, "{at_once} of 500");
        let lately = (20_000..20_500).filter(|n| read(*n)).count();
        assert!(lately > 350, "{lately} of 500");
        assert!((30_000..34_096).filter(|n| read(*n)).count() < 500);
        let before = (20_000..20_500).filter(|n| read(*n)).count();
        assert!(before < 100, "{before} of 500");
    }
}
