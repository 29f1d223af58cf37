//! The buffers of values that arrive. A buffer is a memory mapping, and mapping memory stops every
//! thread of the process that touches fresh pages. So a few buffers stay mapped when their values
//! are stored, and receive the next values.

use larder_engine::Engine;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Spare buffers take at most one byte of the memory for arriving values in this many.
const SPARE_PART: u64 = 8;
/// Spare buffers take no more than this, in bytes.
const SPARE_MAX: u64 = 16 << 20;
/// Longer values have buffers of their exact length; others share power-of-two sizes.
const ROUNDED_MAX: usize = 1 << 20;
/// The smallest step in which a buffer grows, in bytes.
const GROWTH_MIN: usize = 16 << 10;

/// The buffers that no value needs.
pub(super) struct ValueBuffers {
    engine: Arc<Engine>,
    spare: Mutex<Spare>,
}

/// Invariant: `charged` is the sum over `buffers`.
#[derive(Default)]
struct Spare {
    /// The oldest first.
    buffers: VecDeque<Buffer>,
    /// Bytes that the engine's memory limit counts.
    charged: usize,
}

/// Memory with what the engine's memory limit counts of it.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// At least as many bytes as are resident.
    charged: usize,
}

impl ValueBuffers {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(ValueBuffers { engine: Arc::clone(engine), spare: Mutex::default() })
    }

    /// An empty buffer for a value of `len` bytes; `None` if the operating system has no memory.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<ValueBuffer> {
        let capacity = len.next_power_of_two().min(ROUNDED_MAX).max(len);
        let buffer = match self.spare.lock().unwrap_or_else(PoisonError::into_inner).take(capacity)
        {
            Some(buffer) => buffer,
            None => {
                // All addresses at once: growing would leave freed mappings behind. A page becomes
                // resident, and is charged, only when bytes arrive for it.
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(capacity).ok()?;
                Buffer { bytes, charged: 0 }
            }
        };
        Some(ValueBuffer { buffers: Arc::clone(self), buffer })
    }

    /// Keeps `buffer` for another value, instead of older ones if there are too many.
    fn keep(&self, mut buffer: Buffer) {
        buffer.bytes.clear();
        let limit = (self.engine.arriving_limit() / SPARE_PART).min(SPARE_MAX) as usize;
        let mut freed = Vec::new();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.charged += buffer.charged;
        spare.buffers.push_back(buffer);
        while spare.charged > limit
            && let Some(oldest) = spare.buffers.pop_front()
        {
            spare.charged -= oldest.charged;
            freed.push(oldest);
        }
        drop(spare);
        freed.into_iter().for_each(|buffer| self.free(buffer));
    }

    fn free(&self, buffer: Buffer) {
        drop(buffer.bytes);
        self.engine.release_arriving(buffer.charged);
    }
}

impl Drop for ValueBuffers {
    fn drop(&mut self) {
        let spare = std::mem::take(self.spare.get_mut().unwrap_or_else(PoisonError::into_inner));
        spare.buffers.into_iter().for_each(|buffer| self.free(buffer));
    }
}

impl Spare {
    /// The buffer of this capacity that was used last: the processor may still have it in its cache.
    fn take(&mut self, capacity: usize) -> Option<Buffer> {
        let at = self.buffers.iter().rposition(|buffer| buffer.bytes.capacity() == capacity)?;
        let buffer = self.buffers.remove(at)?;
        self.charged -= buffer.charged;
        Some(buffer)
    }
}

/// A value's buffer. It counts against the engine's memory limit as long as it exists.
pub(super) struct ValueBuffer {
    buffers: Arc<ValueBuffers>,
    buffer: Buffer,
}

impl ValueBuffer {
    /// What has arrived of the value.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes
    }

    /// Appends a part of the value; all parts together fit the length that the buffer was taken for.
    pub(super) fn extend(&mut self, part: &[u8]) {
        let Buffer { bytes, charged } = &mut self.buffer;
        let needed = bytes.len() + part.len();
        debug_assert!(needed <= bytes.capacity());
        if needed > *charged {
            let grown = needed.max((2 * *charged).max(GROWTH_MIN).min(bytes.capacity()));
            self.buffers.engine.charge_arriving(grown - *charged);
            *charged = grown;
        }
        bytes.extend_from_slice(part);
    }
}

impl Drop for ValueBuffer {
    fn drop(&mut self) {
        self.buffers.keep(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_engine::Options;

    fn buffers() -> Arc<ValueBuffers> {
        let options = Options { memory: 64 << 20, ..Options::default() };
        ValueBuffers::new(&Engine::open_without_threads(options).unwrap())
    }

    /// Bytes that the engine has counted since `before`.
    fn charged(engine: &Engine, before: u64) -> u64 {
        engine.stats().memory_used - before
    }

    fn take(buffers: &Arc<ValueBuffers>, len: usize) -> ValueBuffer {
        let mut buffer = buffers.take(len).unwrap();
        assert!(buffer.bytes().is_empty());
        let value = vec![7; len];
        value.chunks(10_000).for_each(|part| buffer.extend(part));
        assert!(buffer.bytes() == value);
        buffer
    }

    #[test]
    fn the_next_value_of_that_size_has_the_buffer_of_the_last() {
        let buffers = buffers();
        let before = charged(&buffers.engine, 0);
        let first = take(&buffers, 200_000);
        let (address, bytes) = (first.bytes().as_ptr(), charged(&buffers.engine, before));
        assert!((200_000..=256 << 10).contains(&bytes), "{bytes}");
        drop(first);
        let next = take(&buffers, 190_000);
        assert_eq!((next.bytes().as_ptr(), charged(&buffers.engine, before)), (address, bytes));
        assert_ne!(take(&buffers, 190_000).bytes().as_ptr(), address);
    }

    #[test]
    fn spare_buffers_are_a_bounded_share_and_the_latest() {
        let buffers = buffers();
        let engine = Arc::clone(&buffers.engine);
        let (before, limit) = (charged(&engine, 0), engine.arriving_limit() / SPARE_PART);
        let many: Vec<ValueBuffer> = (0..40).map(|_| take(&buffers, 100_000)).collect();
        assert!(charged(&engine, before) > 2 * limit);
        drop(many);
        assert!((limit / 2..=limit).contains(&charged(&engine, before)));
        let latest: Vec<ValueBuffer> = (0..10).map(|_| take(&buffers, 30_000)).collect();
        let addresses: Vec<_> = latest.iter().map(|buffer| buffer.bytes().as_ptr()).collect();
        drop(latest);
        assert!(charged(&engine, before) <= limit);
        let again: Vec<ValueBuffer> = (0..10).map(|_| take(&buffers, 30_000)).collect();
        assert!(again.iter().all(|buffer| addresses.contains(&buffer.bytes().as_ptr())));
        // One longer than all spare buffers may be is not kept, nor is any other kept for it.
        drop(take(&buffers, 1_500_000));
        drop(again);
        assert!(charged(&engine, before) <= limit);
        drop(buffers);
        assert_eq!(charged(&engine, before), 0);
    }
}
