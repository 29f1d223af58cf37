//! Bytes that a connection keeps from one turn to the next: input that no whole command came of,
//! output that the socket did not take. Most connections keep none most of the time, and then
//! there is no allocation. What there is, is charged to the [`Budget`].

use super::options::Budget;

/// The memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// A queue of bytes. Invariant: what it owns (its capacity) is what it has charged, and it owns
/// nothing when it is empty. Must be [cleared](Self::clear) before it is dropped.
#[derive(Debug, Default)]
pub(super) struct Held {
    memory: Vec<u8>,
    start: usize,
}

/// Allocations are multiples of this.
const GRAIN: usize = 64;

impl Held {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The bytes of memory it owns.
    pub(super) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Keeps exactly `bytes`.
    pub(super) fn replace(&mut self, bytes: &[u8], budget: &dyn Budget) -> Result<(), Refused> {
        if bytes.is_empty() {
            self.clear(budget);
            return Ok(());
        }
        let fits = self.memory.capacity() >= bytes.len()
            && self.memory.capacity() <= 2 * bytes.len() + GRAIN;
        if !fits {
            self.clear(budget);
            self.reserve(bytes.len(), budget)?;
        }
        self.start = 0;
        self.memory.clear();
        self.memory.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends `bytes`.
    pub(super) fn append(&mut self, bytes: &[u8], budget: &dyn Budget) -> Result<(), Refused> {
        if self.start > 0 && self.memory.capacity() - self.memory.len() < bytes.len() {
            self.memory.drain(..self.start);
            self.start = 0;
        }
        if self.memory.capacity() - self.memory.len() < bytes.len() {
            let needed = self.memory.len() + bytes.len();
            // At least half as much again, so that many small appends stay linear.
            self.reserve(needed.max(self.memory.capacity() * 3 / 2), budget)?;
        }
        self.memory.extend_from_slice(bytes);
        Ok(())
    }

    /// Forgets the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize, budget: &dyn Budget) {
        debug_assert!(n <= self.len());
        self.start += n;
        if self.start == self.memory.len() {
            self.clear(budget);
        }
    }

    /// Forgets all bytes and gives the memory back.
    pub(super) fn clear(&mut self, budget: &dyn Budget) {
        if self.memory.capacity() > 0 {
            budget.release(self.memory.capacity());
            self.memory = Vec::new();
        }
        self.start = 0;
    }

    /// Makes the capacity at least `capacity`.
    fn reserve(&mut self, capacity: usize, budget: &dyn Budget) -> Result<(), Refused> {
        let before = self.memory.capacity();
        let wanted = capacity.next_multiple_of(GRAIN);
        if !budget.charge(wanted - before) {
            return Err(Refused);
        }
        self.memory.reserve_exact(wanted - self.memory.len());
        // `reserve_exact` may round up; the difference is charged whatever the budget says.
        let surplus = self.memory.capacity() - wanted;
        if surplus > 0 && !budget.charge(surplus) {
            budget.release(wanted - before);
            self.memory.shrink_to(before);
            return Err(Refused);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    struct Meter {
        used: AtomicUsize,
        limit: usize,
    }

    impl Budget for Meter {
        fn charge(&self, bytes: usize) -> bool {
            if self.used.load(Relaxed) + bytes > self.limit {
                return false;
            }
            self.used.fetch_add(bytes, Relaxed);
            true
        }
        fn release(&self, bytes: usize) {
            self.used.fetch_sub(bytes, Relaxed);
        }
    }

    #[test]
    fn charges_what_it_owns() {
        let meter = Meter { used: AtomicUsize::new(0), limit: 4096 };
        let mut held = Held::default();
        held.replace(b"set key 0 0 5", &meter).unwrap();
        assert_eq!((held.bytes(), meter.used.load(Relaxed)), (&b"set key 0 0 5"[..], 64));
        held.append(&[b'x'; 100], &meter).unwrap();
        assert_eq!(held.capacity(), meter.used.load(Relaxed));
        held.consume(13, &meter);
        assert_eq!(held.bytes(), &[b'x'; 100]);
        for _ in 0..50 {
            held.append(&[b'y'; 50], &meter).unwrap();
            held.consume(50, &meter);
            assert_eq!(held.len(), 100);
            assert_eq!(held.capacity(), meter.used.load(Relaxed));
        }
        assert!(held.capacity() < 512);
        held.consume(100, &meter);
        assert_eq!((held.capacity(), meter.used.load(Relaxed)), (0, 0));
    }

    #[test]
    fn refused_memory_leaves_it_usable() {
        let meter = Meter { used: AtomicUsize::new(0), limit: 128 };
        let mut held = Held::default();
        held.append(&[1; 100], &meter).unwrap();
        assert_eq!(held.append(&[2; 100], &meter), Err(Refused));
        assert_eq!(held.bytes(), &[1; 100]);
        assert_eq!(held.replace(&[3; 4096], &meter), Err(Refused));
        held.clear(&meter);
        assert_eq!(meter.used.load(Relaxed), 0);
    }
}
