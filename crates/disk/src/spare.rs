//! Memory of completed reads, which each thread keeps for its next reads. Reads of records need
//! aligned buffers of the same few sizes again and again. To align a buffer, a general allocator
//! cuts it out of a larger block, each time anew.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// The largest amount of memory that a thread keeps, in bytes.
const KEPT: usize = 128 << 10;
/// The largest buffer that is kept, in bytes.
const LARGEST: usize = 16 << 10;

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// Free memory by its layout.
#[derive(Default)]
struct Spare {
    lists: Vec<(Layout, Vec<NonNull<u8>>)>,
    bytes: usize,
}

impl Spare {
    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let (_, list) = self.lists.iter_mut().find(|(size, _)| *size == layout)?;
        let memory = list.pop()?;
        self.bytes -= layout.size();
        Some(memory)
    }

    /// Keeps the memory and returns true. Returns false if the memory is too large, or if the
    /// thread keeps enough already.
    fn give(&mut self, memory: NonNull<u8>, layout: Layout) -> bool {
        if layout.size() > LARGEST || self.bytes + layout.size() > KEPT {
            return false;
        }
        self.bytes += layout.size();
        match self.lists.iter_mut().find(|(size, _)| *size == layout) {
            Some((_, list)) => list.push(memory),
            None => self.lists.push((layout, vec![memory])),
        }
        true
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        for (layout, list) in &self.lists {
            for memory in list {
                // SAFETY: the memory was allocated with this layout, and its last owner gave it to
                // `give`.
                unsafe { dealloc(memory.as_ptr(), *layout) };
            }
        }
    }
}

/// Returns initialised memory with arbitrary content. The size of `layout` must not be 0.
pub(crate) fn take(layout: Layout) -> NonNull<u8> {
    let kept = SPARE.try_with(|spare| spare.borrow_mut().take(layout));
    if let Ok(Some(memory)) = kept {
        return memory;
    }
    assert_ne!(layout.size(), 0);
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Keeps memory for a later [`take`]. Frees it if it is too large, or if the thread keeps enough
/// already.
///
/// # Safety
/// `memory` came from [`take`] with the same layout and is no longer used.
pub(crate) unsafe fn give(memory: NonNull<u8>, layout: Layout) {
    // When a thread ends, `SPARE` may be dropped before the thread's last buffers. The memory of
    // these buffers is freed.
    let kept = SPARE.try_with(|spare| spare.borrow_mut().give(memory, layout));
    if kept != Ok(true) {
        // SAFETY: the caller guarantees that the memory came from `take` with this layout and is
        // unused.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_for_the_same_layout_and_a_limited_amount_is_kept() {
        let small = Layout::from_size_align(2048, 512).unwrap();
        let other = Layout::from_size_align(2048, 4096).unwrap();
        let first = take(small);
        // SAFETY: the memory came from `take` with this layout and is no longer used.
        unsafe { give(first, small) };
        let different = take(other);
        assert_ne!(different, first);
        assert_eq!(take(small), first);
        let many: Vec<_> = (0..100).map(|_| take(small)).collect();
        for memory in many.into_iter().chain([first]) {
            // SAFETY: the memory came from `take` with this layout and is no longer used.
            unsafe { give(memory, small) };
        }
        // SAFETY: the memory came from `take` with this layout and is no longer used.
        unsafe { give(different, other) };
        let kept = SPARE.with(|spare| spare.borrow().bytes);
        assert_eq!(kept, KEPT, "{} bytes were given back", 102 * 2048);
        let large = Layout::from_size_align(2 * LARGEST, 512).unwrap();
        // SAFETY: the memory came from `take` with this layout and is no longer used.
        unsafe { give(take(large), large) };
        assert_eq!(SPARE.with(|spare| spare.borrow().bytes), kept);
    }
}
