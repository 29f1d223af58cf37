//! PROVISIONAL signatures.
#![allow(missing_docs, clippy::unimplemented)]
use crate::*;
use std::sync::Arc;
use std::task::Waker;

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    bytes: &'a [u8],
}
impl<'a> Key<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// `memory` cannot hold the smallest engine; holds the minimum in bytes.
    MemoryTooSmall { minimum: u64 },
    /// `max_item_size` is out of range for this memory; holds the maximum.
    MaxItemSize { minimum: u64, maximum: u64 },
    /// The operating system gave no memory.
    Map(std::io::Error),
}

/// One engine, shared by all threads.
#[derive(Debug)]
pub struct Engine {}
impl Engine {
    /// Opens an engine and starts its background cleaner thread.
    pub fn open(_options: Options) -> Result<Arc<Engine>, OpenError> {
        unimplemented!()
    }
    /// A session for the calling thread; `waker` is woken (from any thread) when a call that
    /// answered `NeedsSpace` may be repeated.
    pub fn session(self: &Arc<Self>, _waker: Waker) -> Session {
        unimplemented!()
    }
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
    /// Sets the counters to zero (`stats reset`); gauges stay.
    pub fn reset_stats(&self) {
        unimplemented!()
    }
    pub fn options(&self) -> &Options {
        unimplemented!()
    }
    /// Changes the memory limit while running (`cache_memlimit`), in bytes.
    pub fn set_memory_limit(&self, _bytes: u64) -> Result<(), OpenError> {
        unimplemented!()
    }
    /// Charges connection buffers against the memory limit; false when they may not grow further.
    pub fn charge_buffers(&self, _bytes: usize) -> bool {
        unimplemented!()
    }
    /// Gives back what was charged.
    pub fn release_buffers(&self, _bytes: usize) {
        unimplemented!()
    }
    /// The largest value that fits an item with this key length.
    pub fn max_value_len(&self, _key_len: usize) -> usize {
        unimplemented!()
    }
    /// Values longer than this are filled in place: see `Session::large_value`.
    pub fn large_value_threshold(&self) -> usize {
        unimplemented!()
    }
}

/// Memory of a large value while its bytes arrive. Write through `bytes_mut`.
#[derive(Debug)]
pub struct LargeValue {}
impl LargeValue {
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        unimplemented!()
    }
}

/// Where a scan of all items stands. `ScanCursor::default()` is the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanCursor {
    _stripe: u32,
}

/// One thread's way into the engine. Send, but not Sync.
pub struct Session {
    _not_sync: std::cell::Cell<()>,
}
impl Session {
    pub fn engine(&self) -> &Arc<Engine> {
        unimplemented!()
    }
    /// Once per turn of the thread's loop: no item of an earlier turn is used any more, and this
    /// is the time.
    pub fn tick(&mut self, _now: UnixSeconds) {
        unimplemented!()
    }
    /// The thread is about to block in the kernel: it holds no items. The next `tick` ends this.
    pub fn sleep(&mut self) {
        unimplemented!()
    }
    /// The time of the last tick.
    pub fn now(&self) -> UnixSeconds {
        unimplemented!()
    }
    /// Hashes a key of 1 to 250 bytes.
    pub fn key<'k>(&self, _bytes: &'k [u8]) -> Key<'k> {
        unimplemented!()
    }
    /// First stage of a batch: brings the key's buckets into the processor's cache.
    pub fn prefetch_buckets(&self, _key: &Key<'_>) {
        unimplemented!()
    }
    /// Second stage of a batch: brings the key's record into the processor's cache.
    pub fn prefetch_record(&self, _key: &Key<'_>) {
        unimplemented!()
    }
    /// Plain get, the hot path: counts, bumps.
    pub fn get(&self, _key: &Key<'_>) -> Outcome<Option<Item<'_>>> {
        unimplemented!()
    }
    /// Get with options.
    pub fn get_with(&self, _key: &Key<'_>, _get: &Get) -> Outcome<Option<Got<'_>>> {
        unimplemented!()
    }
    /// Finds the version that `handle` names, or `None` when its memory has been reclaimed.
    pub fn reopen(&self, _handle: ItemHandle) -> Option<Item<'_>> {
        unimplemented!()
    }
    pub fn store(&self, _key: &Key<'_>, _store: Store<'_>) -> Outcome<Stored> {
        unimplemented!()
    }
    /// Memory for a value of `len` bytes that is filled as it arrives; `None` when it can never
    /// fit.
    pub fn large_value(&self, _len: usize) -> Outcome<Option<LargeValue>> {
        unimplemented!()
    }
    pub fn delete(&self, _key: &Key<'_>, _delete: &Delete) -> Outcome<Deleted> {
        unimplemented!()
    }
    pub fn arith(&self, _key: &Key<'_>, _arith: &Arith) -> Outcome<Counted> {
        unimplemented!()
    }
    /// Forgets every item written before now, or at `at` every item written before then.
    pub fn flush_all(&self, _at: Option<UnixSeconds>) -> Outcome<()> {
        unimplemented!()
    }
    /// Calls `visit` for some live items and moves the cursor on; false when the scan has ended.
    /// Every item that exists during the whole scan is visited at least once.
    pub fn scan(&self, _cursor: &mut ScanCursor, _visit: &mut dyn FnMut(Item<'_>)) -> bool {
        unimplemented!()
    }
}
