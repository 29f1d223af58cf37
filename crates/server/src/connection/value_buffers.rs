//! A pool of buffers for arriving values. Without the pool, the allocator would map and unmap
//! memory for every large buffer. Each of these system calls stalls the page faults of all threads.
//!
//! Each buffer is charged to the engine's memory limit. Invariants: the charge of a buffer, lent or
//! idle, is at most its capacity and at least its resident bytes less one page. Idle buffers are
//! kept only while their charges and the capacities of the lent buffers together fit into
//! [`Engine::arriving_limit`].

use crate::net::Incoming;
use larder_engine::Engine;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The charges of all idle buffers together are at most 1/`IDLE_PART` of the limit for arriving
/// values, and at most [`IDLE_MAX`] bytes.
const IDLE_PART: u64 = 8;
/// The largest sum of the charges of all idle buffers, in bytes, even if the limit for arriving
/// values is high.
const IDLE_MAX: u64 = 16 << 20;
/// The largest number of idle buffers.
const IDLE_COUNT: usize = 64;
/// Time after which an idle buffer is freed.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// The smallest buffer that the pool keeps, in bytes. The allocator takes smaller buffers from its
/// heap, without a system call.
const POOLED_MIN: usize = 64 << 10;
/// The largest buffer that the pool keeps, in bytes. Buffers from [`POOLED_MIN`] to `POOLED_MAX`
/// bytes have power-of-two capacities, so that values of different lengths share them. All other
/// buffers are as long as their value and do not return to the pool.
const POOLED_MAX: usize = 1 << 20;
/// The smallest charge of a buffer that is not empty, in bytes, unless the buffer's capacity is
/// smaller. If a value grows beyond its buffer's charge, the charge is at least doubled, up to the
/// capacity.
const CHARGE_STEP: usize = 16 << 10;

/// Returns the capacity of the buffer for a value of `len` bytes.
pub(super) fn capacity(len: usize) -> usize {
    match len {
        POOLED_MIN..POOLED_MAX => len.next_power_of_two(),
        _ => len,
    }
}

/// The pool: the idle buffers, and the total capacity of the lent buffers.
pub(crate) struct ValueBufferPool {
    engine: Arc<Engine>,
    idle: Mutex<Idle>,
}

/// The idle buffers of a pool. Invariant: `charged` is the sum of the charges of `buffers`.
#[derive(Default)]
struct Idle {
    /// The idle buffers with the times of their return, oldest first.
    buffers: VecDeque<(Instant, Allocation)>,
    /// Bytes charged to the engine's memory limit.
    charged: usize,
    /// Sum of the capacities of all lent buffers, in bytes.
    lent: usize,
}

/// The memory of a buffer, and the part of it that is charged to the memory limit.
#[derive(Default)]
struct Allocation {
    bytes: Vec<u8>,
    /// Bytes charged to the engine's memory limit.
    charged: usize,
}

impl ValueBufferPool {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        let buffers = VecDeque::with_capacity(IDLE_COUNT + 1);
        let idle = Mutex::new(Idle { buffers, ..Idle::default() });
        Arc::new(ValueBufferPool { engine: Arc::clone(engine), idle })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends an empty buffer to a value of `len` bytes. Returns `None` if the operating system has
    /// no memory.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<ValueBuffer> {
        let capacity = capacity(len);
        let mut idle = self.idle();
        let found = idle.take(capacity);
        idle.lent += capacity;
        self.free_excess(idle, None);
        let allocation = match found {
            Some(allocation) => allocation,
            None => {
                // Reserve the whole capacity at once, because growing would map memory and copy
                // again. The memory becomes resident, and is charged, only as the value's bytes
                // arrive.
                let mut bytes = Vec::new();
                if bytes.try_reserve_exact(capacity).is_err() {
                    self.idle().lent -= capacity;
                    return None;
                }
                Allocation { bytes, charged: 0 }
            }
        };
        Some(ValueBuffer { pool: Arc::clone(self), capacity, allocation })
    }

    /// Takes back a buffer of `capacity` bytes. Frees the oldest idle buffers until the rest is
    /// within [`IDLE_COUNT`] and [`room`](Self::room).
    fn put_back(&self, capacity: usize, mut allocation: Allocation) {
        allocation.bytes.clear();
        let mut idle = self.idle();
        idle.lent -= capacity;
        // If less than half of a buffer was charged, few of its pages are resident. Keeping such a
        // buffer would save few page faults.
        if !(POOLED_MIN..=POOLED_MAX).contains(&capacity)
            || allocation.charged < capacity / 2
            || allocation.charged > self.room(&idle)
        {
            drop(idle);
            return self.free(allocation);
        }
        idle.charged += allocation.charged;
        idle.buffers.push_back((Instant::now(), allocation));
        self.free_excess(idle, None);
    }

    /// Frees buffers that were idle for [`IDLE_TIME`], and then the oldest idle buffers until the
    /// rest is within [`IDLE_COUNT`] and [`room`](Self::room).
    pub(crate) fn trim(&self, now: Instant) {
        self.free_excess(self.idle(), Some(now));
    }

    /// Returns the present limit for the sum of the charges of all idle buffers, in bytes.
    fn room(&self, idle: &Idle) -> usize {
        let limit = self.engine.arriving_limit();
        let room = limit.saturating_sub(idle.lent as u64);
        room.min(limit / IDLE_PART).min(IDLE_MAX) as usize
    }

    fn free_excess(&self, mut idle: MutexGuard<'_, Idle>, now: Option<Instant>) {
        let room = self.room(&idle);
        let is_old = |since: Instant| {
            now.is_some_and(|now| now.saturating_duration_since(since) >= IDLE_TIME)
        };
        let mut excess = Vec::new();
        while let Some((since, _)) = idle.buffers.front()
            && (idle.charged > room || idle.buffers.len() > IDLE_COUNT || is_old(*since))
            && let Some((_, oldest)) = idle.buffers.pop_front()
        {
            idle.charged -= oldest.charged;
            excess.push(oldest);
        }
        drop(idle);
        excess.into_iter().for_each(|allocation| self.free(allocation));
    }

    fn free(&self, allocation: Allocation) {
        drop(allocation.bytes);
        self.engine.release_arriving(allocation.charged);
    }
}

impl Drop for ValueBufferPool {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.buffers.into_iter().for_each(|(_, allocation)| self.free(allocation));
    }
}

impl Idle {
    /// Takes the most recently returned buffer of this capacity, because its bytes may still be in
    /// the processor's cache.
    fn take(&mut self, capacity: usize) -> Option<Allocation> {
        let fits = |(_, allocation): &(_, Allocation)| allocation.bytes.capacity() == capacity;
        let at = self.buffers.iter().rposition(fits)?;
        let (_, allocation) = self.buffers.remove(at)?;
        self.charged -= allocation.charged;
        Some(allocation)
    }
}

/// A buffer that is lent to one value.
pub(super) struct ValueBuffer {
    pool: Arc<ValueBufferPool>,
    /// Number of bytes that the pool counts as lent for this buffer.
    capacity: usize,
    allocation: Allocation,
}

impl ValueBuffer {
    /// Returns the bytes of the value that have arrived.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.allocation.bytes
    }

    /// Appends a part of the value. All parts together must fit the requested length.
    pub(super) fn extend(&mut self, part: &[u8]) {
        let needed = self.bytes().len() + part.len();
        debug_assert!(needed <= self.allocation.bytes.capacity());
        self.charge(needed);
        self.allocation.bytes.extend_from_slice(part);
    }

    /// Receives up to `most` further bytes of the value. Returns the number of bytes received.
    pub(super) fn receive(&mut self, incoming: &mut Incoming<'_>, most: usize) -> usize {
        let received = incoming.append_to(&mut self.allocation.bytes, most);
        // The charge follows the receive, because only then the number of bytes is known.
        self.charge(self.bytes().len());
        received
    }

    /// Charges the memory for `needed` bytes.
    fn charge(&mut self, needed: usize) {
        let Allocation { bytes, charged } = &mut self.allocation;
        if needed > *charged {
            let step = (2 * *charged).max(CHARGE_STEP).min(bytes.capacity());
            let grown = needed.max(step);
            self.pool.engine.charge_arriving(grown - *charged);
            *charged = grown;
        }
    }
}

impl Drop for ValueBuffer {
    fn drop(&mut self) {
        self.pool.put_back(self.capacity, std::mem::take(&mut self.allocation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_engine::Options;

    fn pool() -> Arc<ValueBufferPool> {
        let options = Options { memory: 64 << 20, ..Options::default() };
        ValueBufferPool::new(&Engine::open_without_threads(options).unwrap())
    }

    fn buffer_bytes(pool: &ValueBufferPool) -> u64 {
        pool.engine.stats().buffer_bytes
    }

    fn limit(pool: &ValueBufferPool) -> u64 {
        pool.engine.arriving_limit() / IDLE_PART
    }

    fn receive(pool: &Arc<ValueBufferPool>, len: usize) -> ValueBuffer {
        let mut buffer = pool.take(len).unwrap();
        assert!(buffer.bytes().is_empty());
        let value = vec![7; len];
        value.chunks(10_000).for_each(|part| buffer.extend(part));
        assert!(buffer.bytes() == value);
        buffer
    }

    #[test]
    fn a_buffer_serves_the_next_value_of_its_size() {
        let pool = pool();
        let first = receive(&pool, 200_000);
        let (address, charged) = (first.bytes().as_ptr(), buffer_bytes(&pool));
        assert!((200_000..=256 << 10).contains(&charged), "{charged}");
        drop(first);
        assert_eq!(buffer_bytes(&pool), charged);
        let other_size = receive(&pool, 100_000);
        assert!(buffer_bytes(&pool) > charged);
        drop(other_size);
        let before = buffer_bytes(&pool);
        let next = receive(&pool, 190_000);
        assert_eq!((next.bytes().as_ptr(), buffer_bytes(&pool)), (address, before));
    }

    #[test]
    fn the_pool_keeps_a_bounded_number_of_the_latest_buffers() {
        let pool = pool();
        let many: Vec<ValueBuffer> = (0..40).map(|_| receive(&pool, 100_000)).collect();
        assert!(buffer_bytes(&pool) > 2 * limit(&pool));
        drop(many);
        assert!((limit(&pool) / 2..=limit(&pool)).contains(&buffer_bytes(&pool)));
        // The pool must free the older buffers, which have another size, before the latest ones.
        let latest = limit(&pool) as usize / (256 << 10);
        drop((0..latest).map(|_| receive(&pool, 200_000)).collect::<Vec<_>>());
        let before = buffer_bytes(&pool);
        let again: Vec<ValueBuffer> = (0..latest).map(|_| receive(&pool, 200_000)).collect();
        assert_eq!(buffer_bytes(&pool), before);
        drop(again);
        // The pool does not keep a buffer that is too small, too large or almost empty. When such a
        // buffer returns, the pool must not free idle buffers for it.
        for len in [20_000, limit(&pool) as usize + 1] {
            drop(receive(&pool, len));
            assert_eq!(buffer_bytes(&pool), before);
        }
        let mut hollow = pool.take(600_000).unwrap();
        hollow.extend(b"x");
        drop(hollow);
        assert_eq!(buffer_bytes(&pool), before);
    }

    #[test]
    fn idle_buffers_make_room_for_lent_ones() {
        let pool = pool();
        let arriving = pool.engine.arriving_limit() as usize;
        drop(receive(&pool, 600_000));
        assert!(buffer_bytes(&pool) >= 600_000);
        let half: Vec<ValueBuffer> =
            (0..arriving / (256 << 10) - 1).map(|_| receive(&pool, 256 << 10)).collect();
        assert!(buffer_bytes(&pool) <= arriving as u64);
        let charged = buffer_bytes(&pool);
        drop(receive(&pool, 256 << 10));
        assert!(buffer_bytes(&pool) <= charged + (256 << 10));
        drop(half);
        assert!(buffer_bytes(&pool) <= limit(&pool));
    }

    #[test]
    fn a_lower_limit_and_time_free_idle_buffers() {
        let pool = pool();
        for lower in [false, true] {
            drop((0..8).map(|_| receive(&pool, 100_000)).collect::<Vec<_>>());
            let now = Instant::now();
            pool.trim(now);
            assert!(buffer_bytes(&pool) >= 800_000);
            if lower {
                pool.engine.set_memory_limit(8 << 20).unwrap();
                pool.trim(now);
                assert!(buffer_bytes(&pool) <= limit(&pool));
            }
            pool.trim(now + IDLE_TIME);
            assert_eq!(buffer_bytes(&pool), 0);
        }
    }

    #[test]
    fn the_pool_releases_all_charges() {
        let pool = pool();
        let engine = Arc::clone(&pool.engine);
        let lent = receive(&pool, 80_000);
        drop(receive(&pool, 100_000));
        drop(pool);
        assert!(engine.stats().buffer_bytes >= 180_000);
        drop(lent);
        assert_eq!(engine.stats().buffer_bytes, 0);
    }
}
