//! The allocator's part of the memory budget. Items and the index lie in mappings of their own. The
//! rest is connection buffers: freed ones must return to the system, or the process would be larger
//! than what it has charged to the budget.

/// Smallest allocation that gets its own mapping, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 64 << 10;

/// Makes freed large buffers return to the system. Must be called before any thread starts.
pub(crate) fn give_back_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only changes settings of the C library's allocator, and no other thread
    // exists yet. Setting the threshold also keeps the library from raising it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}
