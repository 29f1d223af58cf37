//! Memory of reads that have ended, kept by its thread for the next ones: reads of records ask for the same few
//! sizes again and again, aligned, which an allocator has to cut out of larger pieces.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// What a thread keeps, bytes.
const KEPT: usize = 128 << 10;
/// Larger ones are not kept, bytes.
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

    /// Whether it is kept.
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
                // SAFETY: it was allocated with this layout, and its last owner gave it away.
                unsafe { dealloc(memory.as_ptr(), *layout) };
            }
        }
    }
}

/// Initialised memory, whatever it holds. `layout` must have a size.
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

/// Takes memory back.
///
/// # Safety
/// It came from [`take`] with the same layout, and nobody uses it any more.
pub(crate) unsafe fn give(memory: NonNull<u8>, layout: Layout) {
    // A thread that ends may drop buffers after what it kept.
    let kept = SPARE.try_with(|spare| spare.borrow_mut().give(memory, layout));
    if kept != Ok(true) {
        // SAFETY: as the caller says.
        unsafe { dealloc(memory.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_by_the_same_layout_only_and_little_is_kept() {
        let small = Layout::from_size_align(2048, 512).unwrap();
        let other = Layout::from_size_align(2048, 4096).unwrap();
        let first = take(small);
        // SAFETY: taken with this layout.
        unsafe { give(first, small) };
        let different = take(other);
        assert_ne!(different, first);
        assert_eq!(take(small), first);
        let many: Vec<_> = (0..100).map(|_| take(small)).collect();
        for memory in many.into_iter().chain([first]) {
            // SAFETY: taken with this layout.
            unsafe { give(memory, small) };
        }
        // SAFETY: taken with this layout.
        unsafe { give(different, other) };
        let kept = SPARE.with(|spare| spare.borrow().bytes);
        assert_eq!(kept, KEPT, "{} bytes were given back", 102 * 2048);
        let large = Layout::from_size_align(2 * LARGEST, 512).unwrap();
        // SAFETY: taken with this layout.
        unsafe { give(take(large), large) };
        assert_eq!(SPARE.with(|spare| spare.borrow().bytes), kept);
    }
}
