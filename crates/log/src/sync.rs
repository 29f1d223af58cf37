//! Atomics, mutexes and spinning. In loom models (`--cfg loom`), loom's versions replace them. The
//! functions [`reads`], [`writes`] and [`discarded`] tell loom of accesses to plain memory, which
//! loom cannot see by itself.

#[cfg(loom)]
pub mod model;
#[cfg(loom)]
mod shadow;

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(loom)]
pub use shadow::{discarded, reads, writes};
use std::cell::Cell;
use std::sync::PoisonError;
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// Waits for one iteration of a spin loop and counts it in `turn`. From iteration 64 on, yields the
/// processor, because the thread that is waited for may need it.
#[inline]
pub fn spin(turn: &mut u32) {
    crate::rule::waits();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
    *turn = turn.saturating_add(1);
}

/// Stores an index slot with release ordering. Readers may meanwhile replace the slot by
/// compare-and-exchange, to count their read. In a loom model this function swaps, because loom
/// lets a plain store fall between the two halves of another thread's exchange.
#[inline(always)]
pub fn publish(place: &atomic::AtomicU64, slot: u64) {
    #[cfg(loom)]
    place.swap(slot, atomic::Ordering::Release);
    #[cfg(not(loom))]
    place.store(slot, atomic::Ordering::Release);
}

/// Marks that the calling thread reads the object at `at`. A loom model fails unless the last write
/// to the object happened before this read. Without loom this does nothing.
#[cfg(not(loom))]
#[inline(always)]
pub fn reads(_at: *const u8) {}

/// Marks that the calling thread writes the object at `at`. A loom model fails unless all earlier
/// accesses by other threads happened before this write. Without loom this does nothing.
#[cfg(not(loom))]
#[inline(always)]
pub fn writes(_at: *const u8) {}

/// Like [`writes`], for every object in a range.
#[cfg(not(loom))]
#[inline(always)]
pub fn discarded(_at: *const u8, _bytes: usize) {}

thread_local! {
    static LOCKS: Cell<u64> = const { Cell::new(0) };
}

/// Locks a mutex, whether or not a thread that held it has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    count_lock();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a mutex or spin lock that the calling thread takes.
#[inline]
pub fn count_lock() {
    LOCKS.set(LOCKS.get() + 1);
}

/// Returns the number of mutexes and spin locks that the calling thread has taken. A benchmark uses
/// it to show that no background work takes more locks in a larger store.
pub fn locks_taken() -> u64 {
    LOCKS.get()
}
