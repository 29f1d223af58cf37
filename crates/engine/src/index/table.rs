//! Memory of the index's tables: runs of whole pages in one reserved region.
//!
//! Tables come in a few sizes and whole generations of them are replaced by the next size at about
//! the same time. Freed runs are kept apart by size and their pages given back at once, so what is
//! resident is what is in use; only addresses are spent, and those are cheap.

use super::bucket::Bucket;
use larder_log::memory::PAGE;
use larder_log::{Budget, Region};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Buckets in a page.
pub(crate) const BUCKETS_PER_PAGE: usize = PAGE / size_of::<Bucket>();
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
        // SAFETY: a table is a run of pages that hold only atomics, zero being a valid state.
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
    /// Freed runs by their length: page numbers.
    free: HashMap<usize, Vec<usize>>,
    /// Pages in use.
    used: usize,
}

impl State {
    /// A run of free pages: one of this very length, or fresh ones, or a piece of a longer run.
    fn run(&mut self, pages: usize, limit: usize) -> Option<usize> {
        if let Some(run) = self.free.get_mut(&pages).and_then(Vec::pop) {
            return Some(run);
        }
        if self.fresh + pages <= limit {
            self.fresh += pages;
            return Some(self.fresh - pages);
        }
        let longer = |(&length, runs): (&usize, &Vec<usize>)| {
            (length > pages && !runs.is_empty()).then_some(length)
        };
        let length = self.free.iter().filter_map(longer).min()?;
        let run = self.free.get_mut(&length)?.pop()?;
        self.free.entry(length - pages).or_default().push(run + pages);
        Some(run)
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

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
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
        Some(Table::new(self.region.at(run * PAGE), pages))
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
        state.free.entry(pages).or_default().push(offset / PAGE);
    }
}
