//! Copies of records that [change in place](larder_log::record::Kind::changes_in_place). Readers get
//! such a copy, made under the stripe's lock, and may look at it without the lock until the session's
//! next tick.

use larder_log::Record;
use std::cell::{Cell, RefCell, UnsafeCell};

/// Words in a block of copies: more than the largest record that is copied has.
const WORDS: usize = 512;

type Block = Box<[UnsafeCell<u64>; WORDS]>;

/// The copies of a session's turn.
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
        let words = record.size() / size_of::<u64>();
        let mut blocks = self.blocks.borrow_mut();
        if blocks.is_empty() || self.used.get() + words > WORDS {
            blocks.push(Box::new([const { UnsafeCell::new(0) }; WORDS]));
            self.used.set(0);
        }
        let block = blocks.last().expect("one was pushed");
        let from = self.used.get();
        self.used.set(from + words);
        let at = block[from..from + words].as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the words lie in a block of this session's own, which stays until `clear`, and no
        // other copy uses them. Nothing changes the record while its stripe is locked.
        unsafe {
            at.copy_from_nonoverlapping(record.pointer(), record.size());
            Record::at(at, || unreachable!("large values do not change in place"))
        }
    }

    /// Forgets all copies, but keeps the memory of a few.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.used.replace(0) != 0 {
            self.blocks.get_mut().truncate(1);
        }
    }
}
