//! Memory of the index's tables: runs of whole pages in one reserved region.
//!
//! Tables come in a few sizes and whole generations of them are replaced by the next size at about
//! the same time. The pages of freed runs are given back at once, so what is resident is what is in
//! use, and their addresses are used again.

use super::bucket::Bucket;
use larder_log::memory::PAGE;
use larder_log::sync::{self, Mutex, MutexGuard};
use larder_log::{Budget, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, PoisonError};

/// Buckets in a page. In a model a few, because loom remembers a history of each slot.
pub(crate) const BUCKETS_PER_PAGE: usize = if cfg!(loom) { 2 } else { PAGE / size_of::<Bucket>() };
/// The most pages of one table: the count shares a word with the table's address.
pub(crate) const MAX_PAGES: usize = PAGE - 1;

/// A table: an array of buckets, and how many pages it has. Packed into one word, so that readers
/// load both at once; all zero is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table(u64);

impl Table {
    pub(crate) const NONE: Table = Table(0);

    fn new(at: *mut u8, pages: usize) -> Self {
        debug_assert!(pages <= MAX_PAGES && (at as usize).is_multiple_of(PAGE));
        Table(at as u64 | pages as u64)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Table(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn pages(self) -> usize {
        self.0 as usize % PAGE
    }

    fn at(self) -> *mut u8 {
        (self.0 as usize - self.pages()) as *mut u8
    }

    /// Before the first use of the pages. They are zero, which is a table without slots; in a model it is
    /// not, for atomics are loom's there.
    fn begin(self) {
        sync::writes(self.at());
        #[cfg(loom)]
        for bucket in 0..self.pages() * BUCKETS_PER_PAGE {
            // SAFETY: the pages are this table's, have room for its buckets, and nobody uses them yet.
            unsafe { self.at().cast::<Bucket>().add(bucket).write(Bucket::default()) };
        }
    }

    /// The buckets; none without a table.
    ///
    /// # Safety
    /// The table must not be given back to its [`Pages`] during `'a`.
    #[inline]
    pub(crate) unsafe fn buckets<'a>(self) -> &'a [Bucket] {
        let pages = self.pages();
        if pages == 0 {
            return &[];
        }
        sync::reads(self.at());
        // SAFETY: a table is a run of pages that hold only atomics, zero being a valid state; to loom
        // it is none, and `begin` made them.
        unsafe { std::slice::from_raw_parts(self.at().cast(), pages * BUCKETS_PER_PAGE) }
    }
}

/// Where tables come from.
#[derive(Debug)]
pub(crate) struct Pages {
    region: Region,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Pages handed out from the front of the region so far.
    fresh: usize,
    free: Runs,
    /// Pages in use.
    used: usize,
}

/// Free runs of pages. No two are adjacent: a generation of tables that was replaced becomes one
/// run again, in which larger ones have room.
#[derive(Debug, Default)]
struct Runs {
    /// Lengths by first page.
    by_place: BTreeMap<usize, usize>,
    /// Length and first page.
    by_length: BTreeSet<(usize, usize)>,
}

impl Runs {
    /// Takes `pages` out of the shortest run that has them.
    fn take(&mut self, pages: usize) -> Option<usize> {
        let &(length, first) = self.by_length.range((pages, 0)..).next()?;
        self.remove(first, length);
        if length > pages {
            self.insert(first + pages, length - pages);
        }
        Some(first)
    }

    /// Adds a run, joined with those that it touches.
    fn give(&mut self, mut first: usize, mut length: usize) {
        let before =
            self.by_place.range(..first).next_back().map(|(&first, &length)| (first, length));
        if let Some((place, pages)) = before.filter(|(place, pages)| place + pages == first) {
            self.remove(place, pages);
            (first, length) = (place, length + pages);
        }
        if let Some(&pages) = self.by_place.get(&(first + length)) {
            self.remove(first + length, pages);
            length += pages;
        }
        self.insert(first, length);
    }

    fn insert(&mut self, first: usize, length: usize) {
        self.by_place.insert(first, length);
        self.by_length.insert((length, first));
    }

    fn remove(&mut self, first: usize, length: usize) {
        self.by_place.remove(&first);
        self.by_length.remove(&(length, first));
    }
}

impl State {
    /// A run of pages: one that was given back, or fresh ones.
    fn run(&mut self, pages: usize, limit: usize) -> Option<usize> {
        if let Some(run) = self.free.take(pages) {
            return Some(run);
        }
        if self.fresh + pages > limit {
            return None;
        }
        self.fresh += pages;
        Some(self.fresh - pages)
    }
}

impl Pages {
    pub(crate) fn reserve(bytes: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let region = Region::reserve(bytes as usize, PAGE)?;
        Ok(Pages { region, budget, state: Mutex::default() })
    }

    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        (self.lock().used * PAGE) as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty table. With `strict` only within the budget. `None`: no memory.
    pub(crate) fn take(&self, pages: usize, strict: bool) -> Option<Table> {
        if pages > MAX_PAGES {
            return None;
        }
        let bytes = (pages * PAGE) as u64;
        if strict && !self.budget.try_charge_wanted(bytes) {
            self.budget.want(bytes);
            return None;
        }
        let mut state = self.lock();
        let Some(run) = state.run(pages, self.region.len() / PAGE) else {
            if strict {
                self.budget.release(bytes);
            }
            return None;
        };
        state.used += pages;
        if !strict {
            self.budget.charge(bytes);
        }
        let table = Table::new(self.region.at(run * PAGE), pages);
        table.begin();
        Some(table)
    }

    /// Takes a table back.
    ///
    /// # Safety
    /// Nobody may read it any more.
    pub(crate) unsafe fn give_back(&self, table: Table) {
        let pages = table.pages();
        if pages == 0 {
            return;
        }
        let offset = table.at() as usize - self.region.at(0) as usize;
        // SAFETY: the caller says that the table is unused.
        unsafe { self.region.discard(offset, pages * PAGE) };
        self.budget.release((pages * PAGE) as u64);
        let mut state = self.lock();
        state.used -= pages;
        state.free.give(offset / PAGE, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 6 << 20;

    /// All tables of an index grow to half of the addresses, an eighth at a time and one after
    /// another.
    #[test]
    fn addresses_are_used_again_by_larger_tables() {
        let pages = Pages::reserve(LIMIT as u64, Arc::new(Budget::new(1 << 40))).unwrap();
        let mut tables = vec![Table::NONE; 16];
        let mut size = 1;
        while size * tables.len() * PAGE * 9 / 8 <= LIMIT / 2 {
            size += (size / 8).max(1);
            for table in &mut tables {
                let larger = pages.take(size, false).unwrap_or_else(|| panic!("{size} pages each"));
                // SAFETY: nobody else knows the table.
                unsafe { pages.give_back(std::mem::replace(table, larger)) };
            }
        }
        assert_eq!(pages.used_bytes(), (size * tables.len() * PAGE) as u64);
        let mut places: Vec<_> = tables.iter().map(|table| table.at() as usize).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= size * PAGE), "none overlap");
    }

    #[test]
    fn runs_that_touch_become_one() {
        let mut runs = Runs::default();
        for first in [20, 0, 10, 40] {
            runs.give(first, 10);
        }
        assert_eq!(runs.take(31), None);
        runs.give(30, 10);
        assert_eq!(runs.by_length.len(), 1);
        assert_eq!(runs.take(31), Some(0));
        assert_eq!(runs.take(19), Some(31));
        assert_eq!(runs.take(1), None);
    }
}
