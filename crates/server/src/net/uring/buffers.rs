//! Buffers that the kernel fills with arriving bytes. All connections of a worker share them, so a
//! connection that waits for input owns no buffer. Invariant: a buffer belongs to the kernel once
//! the tail of the buffer ring has moved past the buffer's entry. It belongs to the worker again
//! once the completion of a receive names the buffer.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// A registered ring of buffers of equal size. A `BufferRing` must outlive all receives in the
/// [`IoUring`] with which it is registered.
pub(super) struct BufferRing {
    memory: NonNull<u8>,
    mapped: usize,
    entries: u16,
    size: usize,
    tail: u16,
}

impl BufferRing {
    /// The id with which receives name this group of buffers.
    pub(super) const GROUP: u16 = 0;

    /// Allocates and registers `entries` buffers of `size` bytes each. `entries` must be a power of
    /// two.
    pub(super) fn new(ring: &IoUring, entries: u16, size: usize) -> io::Result<BufferRing> {
        assert!(entries.is_power_of_two());
        let table = usize::from(entries) * size_of::<BufRingEntry>();
        let mapped = table + usize::from(entries) * size;
        // SAFETY: the call creates a new anonymous mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast::<u8>()).expect("a mapping is never at address 0");
        let mut buffers = BufferRing { memory, mapped, entries, size, tail: 0 };
        // SAFETY: the table begins at a page and is large enough. It lives until this `BufferRing`
        // removes the mapping, and the `IoUring` is dropped before that.
        unsafe {
            let table = memory.as_ptr() as u64;
            ring.submitter().register_buf_ring_with_flags(table, entries, Self::GROUP, 0)?;
        }
        for buffer in 0..entries {
            buffers.put(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    fn address(&self, buffer: u16) -> *mut u8 {
        debug_assert!(buffer < self.entries);
        let table = usize::from(self.entries) * size_of::<BufRingEntry>();
        // SAFETY: `buffer` is below `entries`, so the address is within the mapping.
        unsafe { self.memory.as_ptr().add(table + usize::from(buffer) * self.size) }
    }

    /// Returns the first `len` bytes of a buffer that a completion has named.
    #[inline]
    pub(super) fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(buffer < self.entries && len <= self.size);
        // SAFETY: the bytes lie within the mapping, as asserted. They are initialised: a new
        // mapping is zero, and the kernel writes received bytes to it. The kernel does not write to
        // them until `give_back`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address(buffer), len) }
    }

    fn put(&mut self, buffer: u16) {
        let index = usize::from(self.tail & (self.entries - 1));
        let address = self.address(buffer);
        // SAFETY: `index` is below `entries`. The entry at the tail does not belong to the kernel.
        // The fields are set one by one: writing a whole entry could overwrite the tail, which lies
        // in the unused bytes of the first entry.
        let entry = unsafe { &mut *self.memory.as_ptr().cast::<BufRingEntry>().add(index) };
        entry.set_addr(address as u64);
        entry.set_len(self.size as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        // SAFETY: the tail is within the mapping and is aligned. While the kernel shares it, all
        // accesses to it are atomic.
        let tail = unsafe {
            let tail = BufRingEntry::tail(self.memory.as_ptr().cast());
            AtomicU16::from_ptr(tail.cast_mut())
        };
        tail.store(self.tail, Ordering::Release);
    }

    /// Gives a buffer back to the kernel.
    #[inline]
    pub(super) fn give_back(&mut self, buffer: u16) {
        self.put(buffer);
        self.publish();
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping. No receive uses the buffers any more, because this
        // value outlives all receives.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped) };
    }
}
