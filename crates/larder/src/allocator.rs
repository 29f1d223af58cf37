//! The allocator's part of the memory budget. Items and the index lie in mappings of their own; what
//! is left are connection buffers, and those must be the system's again when they are freed, or the
//! process would be larger than what it has charged.

/// Allocations from this size on are mappings of their own, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 64 << 10;

/// Has large buffers go back to the system when they are freed. Call it before any thread starts.
pub(crate) fn give_back_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: two settings of the C library's allocator, made before other threads exist. Naming the
    // threshold also keeps the library from raising it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}
