//! Bytes that a connection keeps between turns: unconsumed input, and output that the socket did
//! not take. Most connections keep no bytes most of the time, and then own no allocation. Memory
//! for kept bytes is charged to the [`Budget`].

use super::options::Budget;

/// A queue of bytes. Invariant: the queue has charged exactly its capacity, and it owns no memory
/// while it is empty. The queue must be [cleared](Self::clear) before it is dropped.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    memory: Vec<u8>,
    start: usize,
}

/// Allocations are multiples of this size, in bytes.
const GRAIN: usize = 64;

impl ByteQueue {
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

    /// Returns the number of allocated bytes.
    pub(super) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    pub(super) fn replace(&mut self, bytes: &[u8], budget: &dyn Budget) {
        if bytes.is_empty() {
            return self.clear(budget);
        }
        let fits = self.memory.capacity() >= bytes.len()
            && self.memory.capacity() <= 2 * bytes.len() + GRAIN;
        if !fits {
            self.clear(budget);
            self.reserve(bytes.len(), budget);
        }
        self.start = 0;
        self.memory.clear();
        self.memory.extend_from_slice(bytes);
    }

    pub(super) fn append(&mut self, bytes: &[u8], budget: &dyn Budget) {
        if self.start > 0 && self.memory.capacity() - self.memory.len() < bytes.len() {
            self.memory.drain(..self.start);
            self.start = 0;
        }
        if self.memory.capacity() - self.memory.len() < bytes.len() {
            let needed = self.memory.len() + bytes.len();
            // The capacity grows by at least half, so that many small appends take linear time in
            // total.
            self.reserve(needed.max(self.memory.capacity() * 3 / 2), budget);
        }
        self.memory.extend_from_slice(bytes);
    }

    /// Removes the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize, budget: &dyn Budget) {
        debug_assert!(n <= self.len());
        self.start += n;
        if self.start == self.memory.len() {
            self.clear(budget);
        }
    }

    /// Removes all bytes and frees the memory.
    pub(super) fn clear(&mut self, budget: &dyn Budget) {
        if self.memory.capacity() > 0 {
            budget.release(self.memory.capacity());
            self.memory = Vec::new();
        }
        self.start = 0;
    }

    /// Grows the allocation to at least `capacity` bytes, and charges the growth to the budget.
    fn reserve(&mut self, capacity: usize, budget: &dyn Budget) {
        let before = self.memory.capacity();
        let wanted = capacity.next_multiple_of(GRAIN);
        self.memory.reserve_exact(wanted - self.memory.len());
        // `reserve_exact` may round up, so the charge is the actual growth.
        budget.charge(self.memory.capacity() - before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[derive(Default)]
    struct Meter {
        used: AtomicUsize,
    }

    impl Budget for Meter {
        fn charge(&self, bytes: usize) {
            self.used.fetch_add(bytes, Relaxed);
        }
        fn held(&self) -> (u64, u64) {
            (self.used.load(Relaxed) as u64, u64::MAX)
        }
        fn release(&self, bytes: usize) {
            self.used.fetch_sub(bytes, Relaxed);
        }
    }

    #[test]
    fn the_budget_is_charged_for_the_capacity() {
        let meter = Meter::default();
        let mut queue = ByteQueue::default();
        queue.replace(b"set key 0 0 5", &meter);
        assert_eq!((queue.bytes(), meter.used.load(Relaxed)), (&b"set key 0 0 5"[..], 64));
        queue.append(&[b'x'; 100], &meter);
        assert_eq!(queue.capacity(), meter.used.load(Relaxed));
        queue.consume(13, &meter);
        assert_eq!(queue.bytes(), &[b'x'; 100]);
        for _ in 0..50 {
            queue.append(&[b'y'; 50], &meter);
            queue.consume(50, &meter);
            assert_eq!(queue.len(), 100);
            assert_eq!(queue.capacity(), meter.used.load(Relaxed));
        }
        assert!(queue.capacity() < 512);
        queue.consume(100, &meter);
        assert_eq!((queue.capacity(), meter.used.load(Relaxed)), (0, 0));
    }
}
