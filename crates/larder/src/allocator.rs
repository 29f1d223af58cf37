//! Settings of the C library's allocator. It allocates the buffers of connections, which are
//! charged to the memory budget; items and the index have mappings of their own. Freed buffers must
//! return to the operating system. Otherwise the process would occupy more memory than the budget
//! counts.

/// The smallest allocation that gets a mapping of its own, in bytes. When such an allocation is
/// freed, its memory returns to the operating system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 64 << 10;

/// Makes freed large buffers return to the operating system. Must be called before any thread
/// starts. Setting the threshold also stops the C library from raising it while the program runs.
pub(crate) fn give_back_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only changes settings of the C library's allocator, and no other thread
    // exists yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}
