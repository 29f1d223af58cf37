//! Atomics, mutexes and spinning, switched to loom's when a model is checked (`--cfg loom`), and notes
//! of who reads and writes plain memory, which loom cannot see by itself.

#[cfg(loom)]
pub mod model;
#[cfg(loom)]
mod shadow;

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(loom)]
pub use shadow::{discarded, reads, writes};
use std::sync::PoisonError;
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// One turn of a spin loop: polite for a while, then gives the processor away, because the holder
/// of the lock may need it.
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

/// Publishes a slot that readers may exchange for one that counts their read. A store; in a model an
/// exchange, because loom lets a store come between the two halves of another thread's exchange.
#[inline(always)]
pub fn publish(place: &atomic::AtomicU64, slot: u64) {
    #[cfg(loom)]
    place.swap(slot, atomic::Ordering::Release);
    #[cfg(not(loom))]
    place.store(slot, atomic::Ordering::Release);
}

/// The calling thread reads what begins at `at`, which another thread may have written: in a model,
/// that write must have happened before. Otherwise nothing.
#[cfg(not(loom))]
#[inline(always)]
pub fn reads(_at: *const u8) {}

/// The calling thread writes what begins at `at`: in a model, what others did with it must have
/// happened before. Otherwise nothing.
#[cfg(not(loom))]
#[inline(always)]
pub fn writes(_at: *const u8) {}

/// As [`writes`], of everything in a range.
#[cfg(not(loom))]
#[inline(always)]
pub fn discarded(_at: *const u8, _bytes: usize) {}

/// Locks a mutex, whether or not a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
