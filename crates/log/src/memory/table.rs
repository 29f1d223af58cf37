//! A table that grows while other threads read it. Its entries never move, because the memory for
//! the largest possible table is reserved at the start. Pages without entries are never touched and
//! cost nothing.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Index;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A growing table of entries, numbered from 0.
///
/// Invariant: entries below `len` are complete and never replaced. The mutex `complete` holds the
/// number of complete entries, which is at least `len`. A thread touches entries from `len` on only
/// while it holds this mutex.
pub(crate) struct GrowingTable<T> {
    entries: Box<[UnsafeCell<MaybeUninit<T>>]>,
    len: AtomicUsize,
    complete: Mutex<usize>,
}

// SAFETY: the table owns its entries and moves none out.
unsafe impl<T: Send> Send for GrowingTable<T> {}
// SAFETY: threads get only shared references to entries below `len`, and one thread at a time moves
// new entries in.
unsafe impl<T: Send + Sync> Sync for GrowingTable<T> {}

impl<T> GrowingTable<T> {
    /// Creates a table with `len` entries and room for `limit`.
    pub(crate) fn new(len: usize, limit: usize, entry: impl FnMut(usize) -> T) -> Self {
        let entries = Box::<[UnsafeCell<MaybeUninit<T>>]>::new_uninit_slice(limit.max(len));
        // SAFETY: a cell of an uninitialised entry may hold any memory contents.
        let entries = unsafe { entries.assume_init() };
        let table = GrowingTable { entries, len: AtomicUsize::new(0), complete: Mutex::default() };
        table.grow(len, entry);
        table
    }

    /// Returns the number of entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the largest possible number of entries.
    pub(crate) fn limit(&self) -> usize {
        self.entries.len()
    }

    /// Adds entries until there are `len`. Does nothing if the table has that many already.
    ///
    /// # Panics
    /// If `len` exceeds the limit.
    pub(crate) fn grow(&self, len: usize, entry: impl FnMut(usize) -> T) {
        let complete = self.complete(len, entry);
        if len > self.len() {
            self.len.store(len, Ordering::Release);
        }
        drop(complete);
    }

    /// Makes entries that stay invisible until the table [grows](GrowingTable::grow). Growing then
    /// only publishes them.
    ///
    /// # Panics
    /// As for [`GrowingTable::grow`].
    pub(crate) fn prepare(&self, len: usize, entry: impl FnMut(usize) -> T) {
        drop(self.complete(len, entry));
    }

    fn complete(&self, len: usize, mut entry: impl FnMut(usize) -> T) -> MutexGuard<'_, usize> {
        assert!(len <= self.limit(), "a table for {} entries cannot have {len}", self.limit());
        let mut complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        while *complete < len {
            // SAFETY: this thread holds the lock `complete`, so entries that are not complete are
            // its own.
            unsafe { (*self.entries[*complete].get()).write(entry(*complete)) };
            *complete += 1;
        }
        complete
    }
}

impl<T> Index<usize> for GrowingTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        assert!(number < self.len(), "the table has no entry {number}");
        // SAFETY: entries below `len` are complete and live as long as the table. `len` never
        // exceeds the number of entries.
        unsafe { (*self.entries.get_unchecked(number).get()).assume_init_ref() }
    }
}

impl<T> Drop for GrowingTable<T> {
    fn drop(&mut self) {
        let complete = *self.complete.get_mut().unwrap_or_else(PoisonError::into_inner);
        for number in 0..complete {
            // SAFETY: the entry is complete, and nothing else has the table any more.
            unsafe { self.entries[number].get_mut().assume_init_drop() };
        }
    }
}

impl<T> fmt::Debug for GrowingTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowingTable")
            .field("len", &self.len())
            .field("limit", &self.limit())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn entries_do_not_move_while_the_table_grows() {
        let table = Arc::new(GrowingTable::new(3, 10_000, |number| number.to_string()));
        let first: *const String = &raw const table[0];
        let reader = Arc::clone(&table);
        let reader = thread::spawn(move || {
            let mut seen = 0;
            while seen < 10_000 {
                seen = reader.len();
                assert_eq!(reader[seen - 1], (seen - 1).to_string());
            }
        });
        for len in (0..=10_000).step_by(100) {
            table.grow(len, |number| number.to_string());
        }
        reader.join().expect("it has seen all entries");
        assert_eq!(first, &raw const table[0]);
        assert_eq!((table.len(), table.limit()), (10_000, 10_000));
    }

    #[test]
    fn every_entry_is_dropped_once() {
        let count = Arc::new(());
        let table = GrowingTable::new(2, 8, |_| Arc::clone(&count));
        table.grow(5, |_| Arc::clone(&count));
        assert_eq!(Arc::strong_count(&count), 6);
        table.prepare(7, |_| Arc::clone(&count));
        assert_eq!((table.len(), Arc::strong_count(&count)), (5, 8));
        table.grow(6, |_| unreachable!("it is prepared"));
        assert_eq!((table.len(), Arc::strong_count(&count)), (6, 8));
        drop(table);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    #[should_panic(expected = "the table has no entry 2")]
    fn indexing_behind_the_last_entry_panics() {
        let table = GrowingTable::new(2, 8, |number| number);
        assert_eq!(table[2], 2);
    }
}
