//! Prefetching memory into the processor's cache. A prefetch is a hint: any address is allowed, and
//! no contents change.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Prefetches the cache line of `at`.
#[inline]
pub fn for_reading(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches all cache lines of `bytes`.
#[inline]
pub fn all(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        for_reading(line.as_ptr());
    }
}

/// Prefetches the cache line of `at` for a write by this thread. The prefetch removes the line from
/// the caches of other processors, so the write does not wait for this removal.
#[inline]
pub fn for_writing(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and a processor without this instruction ignores it. It is
    // inline assembly because the intrinsic compiles to a prefetch for reading, unless all
    // processors of the target are known to have `prefetchw`.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
