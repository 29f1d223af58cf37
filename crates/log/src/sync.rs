//! Atomics, mutexes and spinning, switched to loom's when a model is checked (`--cfg loom`).

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard, atomic};
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
