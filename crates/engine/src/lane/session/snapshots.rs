//! Copies of records that [change in place](larder_log::record::Kind::changes_in_place). Readers
//! get such a copy, which is made under the stripe's lock. They may read it without the lock until
//! the session's next tick.

use larder_log::record::write_head;
use larder_log::{Fields, Layout, Record};
use std::cell::{Cell, RefCell, UnsafeCell};

/// The number of words in a block of copies. Every record that may change in place is smaller.
const WORDS: usize = 512;

type Block = Box<[UnsafeCell<u64>; WORDS]>;

/// The copies that a session has made since its last tick.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    blocks: RefCell<Vec<Block>>,
    /// Words used in the last block.
    used: Cell<usize>,
}

impl Snapshots {
    /// Copies a record of at most [`WORDS`] words. The caller holds the lock of its stripe.
    #[cold]
    pub(super) fn take<'a>(&'a self, record: &Record<'_>) -> Record<'a> {
        let at = self.reserve(record.size());
        // SAFETY: at least `record.size()` unused bytes begin at `at`. The caller holds the
        // stripe's lock, so no other thread changes the record during the copy.
        unsafe {
            at.copy_from_nonoverlapping(record.pointer(), record.size());
            self.record(at)
        }
    }

    /// Builds a record from these parts.
    pub(super) fn make<'a>(&'a self, fields: &Fields, key: &[u8], value: &[u8]) -> Record<'a> {
        let layout = Layout::of(fields, key.len(), value.len());
        let at = self.reserve(layout.size());
        // SAFETY: at least `layout.size()` unused bytes begin at `at`.
        unsafe {
            write_head(at, &layout, fields, key);
            at.add(layout.value_offset()).copy_from_nonoverlapping(value.as_ptr(), value.len());
            self.record(at)
        }
    }

    /// Returns the record at `at`.
    ///
    /// # Safety
    /// [`Snapshots::reserve`] has returned `at` since the last `clear`, and a whole record was
    /// written there.
    unsafe fn record<'a>(&'a self, at: *const u8) -> Record<'a> {
        // SAFETY: the block stays until `clear`, and nothing else uses these bytes until then.
        unsafe { Record::at(at, || unreachable!("large values do not change in place")) }
    }

    /// Returns unused bytes of a block, at least `bytes` of them.
    fn reserve(&self, bytes: usize) -> *mut u8 {
        let words = bytes.div_ceil(size_of::<u64>());
        let mut blocks = self.blocks.borrow_mut();
        if blocks.is_empty() || self.used.get() + words > WORDS {
            blocks.push(Box::new([const { UnsafeCell::new(0) }; WORDS]));
            self.used.set(0);
        }
        let from = self.used.replace(self.used.get() + words);
        let block = blocks.last().expect("one was pushed");
        block[from..from + words].as_ptr().cast::<u8>().cast_mut()
    }

    /// Forgets all copies, but keeps one block.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.used.replace(0) != 0 {
            self.blocks.get_mut().truncate(1);
        }
    }
}
