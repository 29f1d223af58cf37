//! Settings of the C library's allocator, which supplies the part of the memory budget that
//! connection buffers use. Items and the index have separate mappings. Freed buffers must return to
//! the system; otherwise the process would occupy more memory than it has charged to the budget.

/// Size in bytes from which an allocation gets a separate mapping.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 64 << 10;

/// Makes large buffers return to the system when they are freed. Must be called before any thread
/// starts.
pub(crate) fn give_back_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only changes settings of the C library's allocator, and no other thread
    // exists yet. Setting the threshold also keeps the library from raising it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}
