//! Settings of the C library's allocator. The allocator provides the buffers of connections. Larder
//! charges them to the memory budget, and stops charging them when they are freed. If their memory
//! then did not return to the operating system, the process would occupy more than the budget
//! counts. Items and the index have separate mappings.

/// The smallest allocation that gets its own mapping, in bytes. When such an allocation is freed,
/// its memory returns to the operating system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 64 << 10;

/// Makes the memory of freed large buffers return to the operating system. Must be called before
/// any thread starts.
///
/// By default, the C library raises its threshold for separate mappings while the program runs.
/// Setting the threshold turns that off.
pub(crate) fn give_back_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only changes settings of the C library's allocator, and no other thread
    // exists yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}
