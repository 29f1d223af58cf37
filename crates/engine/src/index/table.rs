//! Memory of the index's tables: runs of whole pages in one reserved region.
//!
//! Tables come in a few sizes, and all tables of one size are replaced by tables of the next size
//! at about the same time. So their freed pages form long runs, which later tables reuse. The
//! memory of freed pages is returned to the system at once. So only pages in use are resident, and
//! the unused pages of huge pages.

use super::bucket::{Bucket, MIN_BUCKETS};
use super::chunks::{self, Chunks, Joined, Todo};
use crate::UnixSeconds;
use larder_log::memory::mapping::{HUGE_PAGE, PAGE};
use larder_log::sync::{self, Mutex, MutexGuard};
use larder_log::{Budget, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Buckets per page. Loom models use few buckets, because loom keeps a history of each slot.
pub(crate) const BUCKETS_PER_PAGE: usize = if cfg!(loom) { 2 } else { PAGE / size_of::<Bucket>() };
/// The smallest number of pages of a table.
pub(crate) const MIN_PAGES: usize = MIN_BUCKETS.div_ceil(BUCKETS_PER_PAGE);
/// The largest number of pages that are added to [`PagesState::area`] at a time.
const AREA: usize = 8 * chunks::CHUNK;
/// The largest number of pages of a table: the count shares a word with the table's address.
pub(crate) const MAX_PAGES: usize = PAGE - 1;

/// A table: the address of an array of buckets and its number of pages, packed into one word so
/// that readers load both at once. Zero means no table.
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

    /// Returns true if part of the table is in this range of addresses.
    pub(crate) fn reaches(self, range: &Range<usize>) -> bool {
        let start = self.at() as usize;
        start < range.end && start + self.pages() * PAGE > range.start
    }

    fn at(self) -> *mut u8 {
        (self.0 as usize - self.pages()) as *mut u8
    }

    /// Prepares new pages. They are zero, which is a table of empty slots. In a loom model zero is
    /// not valid, because the atomics are loom's. So in loom models this function writes the
    /// buckets.
    ///
    /// Writes to each page to make it resident. Otherwise a look-up could map the system's zero
    /// page first. The next write would then have to replace that mapping, which interrupts all
    /// processors.
    fn begin(self) {
        sync::writes(self.at());
        for page in 0..self.pages() {
            // SAFETY: the pages are this table's, and no other thread uses them yet.
            unsafe { self.at().add(page * PAGE).write_volatile(0) };
        }
        #[cfg(loom)]
        for bucket in 0..self.pages() * BUCKETS_PER_PAGE {
            // SAFETY: the pages are this table's, have room for its buckets, and no other thread
            // uses them yet.
            unsafe { self.at().cast::<Bucket>().add(bucket).write(Bucket::default()) };
        }
    }

    /// Returns the buckets, or none without a table.
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
        // SAFETY: a table is a run of pages that hold only atomics, for which zero is a valid
        // state. In a loom model zero is not valid, so `begin` has written the buckets.
        unsafe { std::slice::from_raw_parts(self.at().cast(), pages * BUCKETS_PER_PAGE) }
    }
}

/// Allocates and frees the pages of tables.
#[derive(Debug)]
pub(crate) struct Pages {
    region: Region,
    budget: Arc<Budget>,
    state: Mutex<PagesState>,
}

#[derive(Debug, Default)]
struct PagesState {
    /// Number of pages allocated from the front of the region so far.
    fresh: usize,
    free: Runs,
    /// Number of pages in use by tables.
    used: usize,
    chunks: Chunks,
    /// Reserved pages, to which tables that are moved next go.
    area: Range<usize>,
    /// Number of requests to the system to turn pages into a huge page.
    joins: u64,
}

/// Free runs of pages. Adjacent runs are merged, so the freed tables of one size form a run that
/// has room for larger tables.
#[derive(Debug, Default)]
struct Runs {
    /// The length of each run, by its first page.
    by_place: BTreeMap<usize, usize>,
    /// The length and the first page of each run.
    by_length: BTreeSet<(usize, usize)>,
}

impl Runs {
    /// Takes `pages` pages out of the shortest run that has enough.
    fn take(&mut self, pages: usize) -> Option<usize> {
        let &(length, first) = self.by_length.range((pages, 0)..).next()?;
        self.cut(first..first + length, first..first + pages);
        Some(first)
    }

    /// Removes `part` from a free run.
    fn cut(&mut self, run: Range<usize>, part: Range<usize>) {
        self.remove(run.start, run.len());
        self.give(run.start..part.start);
        self.give(part.end..run.end);
    }

    /// Adds a run, which may be empty, and merges it with adjacent ones.
    fn give(&mut self, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        let (mut first, mut length) = (run.start, run.len());
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
        self.by_place.insert(first, length);
        self.by_length.insert((length, first));
    }

    /// Returns length and first page of the longest run, or (0, 0) if there is none.
    fn longest(&self) -> (usize, usize) {
        self.by_length.last().copied().unwrap_or_default()
    }

    /// Returns the free parts of `pages`.
    fn within(&self, pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let before = self.by_place.range(..pages.start).next_back();
        let runs = before.into_iter().chain(self.by_place.range(pages.clone()));
        runs.map(|(&first, &length)| chunks::common(&(first..first + length), pages))
    }

    fn remove(&mut self, first: usize, length: usize) {
        self.by_place.remove(&first);
        self.by_length.remove(&(length, first));
    }
}

impl PagesState {
    /// Takes a run of freed pages if possible, or else of pages that were never used. The region
    /// has `limit` pages.
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

    /// Takes a run of pages, if possible directly behind the run that this function returned last.
    fn packed_run(&mut self, pages: usize, limit: usize) -> Option<usize> {
        while self.area.len() < pages && self.extend_area(limit) {}
        if self.area.len() < pages {
            let rest = std::mem::take(&mut self.area);
            self.free.give(rest);
            self.area = self.next_area(pages, limit)?;
        }
        self.area.start += pages;
        Some(self.area.start - pages)
    }

    /// Extends the area by free chunks behind it. Called when the rest of the area is too small for
    /// the next table and would otherwise stay unused. Returns false if no free chunk follows the
    /// area.
    fn extend_area(&mut self, limit: usize) -> bool {
        let end = self.area.end;
        if end > 0 && end == self.fresh && end + AREA <= limit {
            self.fresh += AREA;
            self.area.end = self.fresh;
            return true;
        }
        let length = self.free.by_place.get(&end).copied().unwrap_or(0);
        let whole = (length / chunks::CHUNK * chunks::CHUNK).min(AREA);
        if end == 0 || whole == 0 {
            return false;
        }
        self.area.end += whole;
        self.free.cut(end..end + length, end..self.area.end);
        true
    }

    /// Returns a new area: whole chunks without tables, at least `pages` pages. It comes from the
    /// longest free run, or else from new pages.
    fn next_area(&mut self, pages: usize, limit: usize) -> Option<Range<usize>> {
        let (length, first) = self.free.longest();
        let start = first.next_multiple_of(chunks::CHUNK);
        let whole = (first + length).saturating_sub(start) / chunks::CHUNK * chunks::CHUNK;
        if whole >= pages {
            let area = start..start + whole.min(AREA);
            self.free.cut(first..first + length, area.clone());
            return Some(area);
        }
        let start = self.fresh.next_multiple_of(chunks::CHUNK);
        if start + AREA > limit {
            return None;
        }
        self.free.give(self.fresh..start);
        self.fresh = start + AREA;
        Some(start..self.fresh)
    }
}

/// What [`Pages::tidy`] did, or asks the caller to do.
pub(crate) enum Tidy {
    /// `tidy` asked the system to turn pages into a huge page.
    Joined,
    /// The caller must move away all tables that are at least partly in this range of addresses.
    Move(Range<usize>),
}

impl Pages {
    pub(crate) fn reserve(bytes: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let bytes = (bytes as usize).next_multiple_of(HUGE_PAGE);
        let region = Region::reserve(bytes, HUGE_PAGE)?;
        Ok(Pages { region, budget, state: Mutex::default() })
    }

    /// Returns the bytes in use by tables.
    pub(crate) fn used_bytes(&self) -> u64 {
        (self.lock().used * PAGE) as u64
    }

    /// Returns how often the system was asked to replace small pages by a huge page.
    pub(crate) fn joins(&self) -> u64 {
        self.lock().joins
    }

    fn lock(&self) -> MutexGuard<'_, PagesState> {
        sync::lock(&self.state)
    }

    /// Allocates an empty table. If `strict` is set, the budget must have room for it. Returns
    /// `None` if there is no memory.
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
        if !strict {
            self.budget.charge(bytes);
        }
        let table = self.note_taken(&mut state, run..run + pages);
        drop(state);
        table.begin();
        Some(table)
    }

    /// Allocates an empty table as the target of a move, close to the tables that were moved
    /// before. Returns `None` if there is no memory.
    pub(crate) fn take_packed(&self, pages: usize) -> Option<Table> {
        let bytes = (pages * PAGE) as u64;
        if !self.budget.try_charge(bytes) {
            return None;
        }
        let mut state = self.lock();
        let Some(run) = state.packed_run(pages, self.region.len() / PAGE) else {
            self.budget.release(bytes);
            return None;
        };
        let table = self.note_taken(&mut state, run..run + pages);
        drop(state);
        table.begin();
        Some(table)
    }

    /// Adds the pages of a new table to `state`, and returns the table.
    fn note_taken(&self, state: &mut PagesState, run: Range<usize>) -> Table {
        self.part(state, &run);
        state.used += run.len();
        self.budget.set_lasting((state.used * PAGE) as u64);
        state.chunks.take(&run);
        Table::new(self.region.at(run.start * PAGE), run.len())
    }

    /// Frees tables and reorders the slice. Adjacent tables are returned to the system in one call,
    /// because each call interrupts all processors.
    ///
    /// # Safety
    /// No thread may still read the tables.
    pub(crate) unsafe fn give_back(&self, tables: &mut [Table]) {
        tables.sort_unstable_by_key(|table| table.bits());
        let mut runs = tables.iter().filter(|&&table| table != Table::NONE).map(|&table| {
            let first = (table.at() as usize - self.region.at(0) as usize) / PAGE;
            first..first + table.pages()
        });
        let Some(mut run) = runs.next() else { return };
        let mut state = self.lock();
        for next in runs {
            if next.start == run.end {
                run.end = next.end;
            } else {
                self.free(&mut state, std::mem::replace(&mut run, next));
            }
        }
        self.free(&mut state, run);
    }

    /// Frees a run of pages that no table uses any more.
    fn free(&self, state: &mut PagesState, run: Range<usize>) {
        self.part(state, &run);
        // SAFETY: no table uses these pages.
        unsafe { self.discard(&run) };
        self.budget.release((run.len() * PAGE) as u64);
        state.used -= run.len();
        self.budget.set_lasting((state.used * PAGE) as u64);
        state.chunks.give(&run);
        state.free.give(run);
    }

    /// Splits each huge page with pages of `run` into small pages, before `run` is allocated or
    /// freed. Frees those small pages that no table uses, so that the system can use them.
    fn part(&self, state: &mut PagesState, run: &Range<usize>) {
        for (chunk, holes) in state.chunks.part(run) {
            self.discard_holes(state, chunk);
            self.budget.release((holes * PAGE) as u64);
        }
    }

    /// Frees those pages of a chunk that no table uses, so that the system can use them.
    fn discard_holes(&self, state: &PagesState, chunk: usize) {
        let pages = chunks::pages(chunk);
        let others = [state.area.clone(), state.fresh..pages.end.max(state.fresh)];
        let others = others.map(|run| chunks::common(&run, &pages));
        for hole in state.free.within(&pages).chain(others) {
            // SAFETY: no table uses these pages.
            unsafe { self.discard(&hole) };
        }
    }

    /// # Safety
    /// As [`Region::discard`].
    unsafe fn discard(&self, run: &Range<usize>) {
        if !run.is_empty() {
            // SAFETY: this function has the contract of `Region::discard`, and the caller keeps it.
            unsafe { self.region.discard(run.start * PAGE, run.len() * PAGE) };
        }
    }

    /// Returns the number of chunks with tables, and how many of them have a huge page or are full
    /// enough for one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn chunks(&self) -> (usize, usize) {
        self.lock().chunks.count()
    }

    /// Does one step that makes look-ups cheaper, or tells the caller to do it. Returns `None` if
    /// there is nothing more to do in this second.
    pub(crate) fn tidy(&self, now: UnixSeconds) -> Option<Tidy> {
        let mut state = self.lock();
        let filling = state.area.start / chunks::CHUNK;
        match state.chunks.next(now, filling)? {
            Todo::Join(chunk) => {
                state.joins += 1;
                // Releases the lock, so that threads that need a table do not wait for the system
                // call.
                drop(state);
                let result = self.region.join_pages(chunk * HUGE_PAGE);
                let mut state = self.lock();
                match state.chunks.joined(chunk, result) {
                    Joined::With(holes) => self.budget.charge((holes * PAGE) as u64),
                    Joined::Changed => self.discard_holes(&state, chunk),
                    Joined::Not => {}
                }
                Some(Tidy::Joined)
            }
            Todo::Empty(chunk) => {
                let start = self.region.at(chunk * HUGE_PAGE) as usize;
                Some(Tidy::Move(start..start + HUGE_PAGE))
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::bucket;
    use larder_log::sync::atomic::Ordering;

    const LIMIT: usize = 6 << 20;

    #[test]
    fn a_new_table_is_resident() {
        let pages = Pages::reserve(64 << 20, Arc::new(Budget::new(1 << 40))).unwrap();
        for table in [pages.take(5, false).unwrap(), pages.take_packed(5).unwrap()] {
            let mut resident = [0u8; 5];
            // SAFETY: the kernel writes one byte for each of the five pages.
            let asked =
                unsafe { libc::mincore(table.at().cast(), 5 * PAGE, resident.as_mut_ptr().cast()) };
            assert_eq!((asked, resident), (0, [1; 5]));
        }
    }

    /// Sixteen tables grow in turn, by an eighth at a time, until they fill half of the region. The
    /// region has room for so much growth only if freed addresses are reused.
    #[test]
    fn larger_tables_reuse_freed_addresses() {
        let pages = Pages::reserve(LIMIT as u64, Arc::new(Budget::new(1 << 40))).unwrap();
        let mut tables = vec![Table::NONE; 16];
        let mut size = 1;
        while size * tables.len() * PAGE * 9 / 8 <= LIMIT / 2 {
            size += (size / 8).max(1);
            for table in &mut tables {
                let larger = pages.take(size, false).unwrap_or_else(|| panic!("{size} pages each"));
                // SAFETY: only this test knows the table.
                unsafe { pages.give_back(&mut [std::mem::replace(table, larger)]) };
            }
        }
        assert_eq!(pages.used_bytes(), (size * tables.len() * PAGE) as u64);
        let mut places: Vec<_> = tables.iter().map(|table| table.at() as usize).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= size * PAGE), "none overlap");
    }

    /// Writes into every slot, as in a full table.
    fn touch(table: Table) {
        // SAFETY: the table was not given back.
        let places = bucket::places(unsafe { table.buckets() });
        places.for_each(|place| place.store(1, Ordering::Relaxed));
    }

    /// For tables of any size, `tidy` stops moving them after a while. Nearly all chunks with
    /// tables are then full enough for a huge page.
    #[test]
    fn moving_tables_of_any_size_ends() {
        for size in [1, 3, 9, 57, 114, 229, 257, 518, 654] {
            let count = 12 * chunks::CHUNK / size;
            let budget = Arc::new(Budget::new(1 << 40));
            let pages = Pages::reserve(256 << 20, Arc::clone(&budget)).unwrap();
            // Leaves gaps between the tables, as growth does.
            let grown: Vec<_> = (0..count)
                .map(|_| {
                    let table = pages.take(size, false).unwrap();
                    touch(table);
                    (table, pages.take(1 + size / 8, false).unwrap())
                })
                .collect();
            let mut tables: Vec<_> = grown.iter().map(|&(table, _)| table).collect();
            for (_, gap) in grown {
                // SAFETY: only this test knows the tables.
                unsafe { pages.give_back(&mut [gap]) };
            }
            let mut last = 0;
            for now in 1000..1400 {
                while let Some(tidy) = pages.tidy(now) {
                    last = now;
                    let Tidy::Move(range) = tidy else { continue };
                    for table in tables.iter_mut().filter(|table| table.reaches(&range)) {
                        let new = pages.take_packed(size).unwrap();
                        touch(new);
                        // SAFETY: only this test knows the tables.
                        unsafe { pages.give_back(&mut [std::mem::replace(table, new)]) };
                    }
                }
            }
            // Moves may go on for a while, because a chunk whose tables could not be moved is tried
            // once more after a minute.
            assert!(last < 1200, "tables of {size} pages are still moved after {} s", last - 1000);
            let (chunks, full) = pages.chunks();
            assert!(full + 2 >= chunks, "{full} of {chunks} chunks with tables of {size} pages");
            // SAFETY: only this test knows the tables.
            unsafe { pages.give_back(&mut tables) };
            assert_eq!(budget.used(), 0);
        }
    }

    /// A flush frees thousands of tables in the order of their stripes, not of their addresses.
    /// `give_back`, which merges adjacent tables, must free them all in any order.
    #[test]
    fn tables_are_given_back_in_any_order_and_with_gaps() {
        let budget = Arc::new(Budget::new(1 << 40));
        let pages = Pages::reserve(64 << 20, Arc::clone(&budget)).unwrap();
        let mut tables: Vec<_> = (0..60).map(|n| pages.take(1 + n % 3, false).unwrap()).collect();
        tables.iter().for_each(|&table| touch(table));
        let kept = tables.swap_remove(30);
        tables.push(Table::NONE);
        tables.swap(0, 17);
        // SAFETY: only this test knows the tables.
        unsafe { pages.give_back(&mut tables) };
        assert_eq!(budget.used(), (kept.pages() * PAGE) as u64);
        assert_eq!(pages.lock().free.by_place.len(), 2, "a run on either side of the kept table");
        let again = pages.take(10, false).unwrap();
        // SAFETY: the table was not given back.
        let mut places = bucket::places(unsafe { again.buckets() });
        assert!(places.all(|place| place.load(Ordering::Relaxed) == 0), "a new table is empty");
        // SAFETY: the test no longer uses the tables.
        unsafe { pages.give_back(&mut [again, kept]) };
        assert_eq!((budget.used(), pages.used_bytes()), (0, 0));
    }

    /// After a flush, the same huge page may have freed tables and tables in use. The pages in use
    /// must stay resident and charged; all other pages must not.
    #[test]
    fn runs_within_a_huge_page_are_given_back_together() {
        const COUNT: usize = 2 * chunks::CHUNK;
        let budget = Arc::new(Budget::new(1 << 40));
        let pages = Pages::reserve(64 << 20, Arc::clone(&budget)).unwrap();
        let tables: Vec<_> = (0..COUNT).map(|_| pages.take(1, false).unwrap()).collect();
        tables.iter().for_each(|&table| touch(table));
        for now in 1000..1010 {
            while pages.tidy(now).is_some() {}
        }
        assert_eq!(pages.chunks(), (2, 2));
        let (mut kept, mut given) = (Vec::new(), Vec::new());
        for (number, table) in tables.into_iter().enumerate() {
            if number % 3 == 0 { kept.push(table) } else { given.push(table) }
        }
        // SAFETY: only this test knows the tables.
        unsafe { pages.give_back(&mut given) };
        assert_eq!(budget.used(), (kept.len() * PAGE) as u64);
        let mut resident = [0u8; COUNT];
        // SAFETY: the kernel writes one byte for each of the pages.
        let asked = unsafe {
            libc::mincore(pages.region.at(0).cast(), COUNT * PAGE, resident.as_mut_ptr().cast())
        };
        let resident = resident.iter().filter(|&&page| page & 1 == 1).count();
        assert_eq!((asked, resident), (0, kept.len()));
        // SAFETY: only this test knows the tables.
        unsafe { pages.give_back(&mut kept) };
        assert_eq!((budget.used(), pages.used_bytes()), (0, 0));
    }

    #[test]
    fn adjacent_runs_are_merged() {
        let mut runs = Runs::default();
        for first in [20, 0, 10, 40] {
            runs.give(first..first + 10);
        }
        assert_eq!(runs.take(31), None);
        runs.give(30..40);
        assert_eq!(runs.by_length.len(), 1);
        assert_eq!(runs.take(31), Some(0));
        assert_eq!(runs.take(19), Some(31));
        assert_eq!(runs.take(1), None);
    }
}
