//! The index maps a key's hash to the address of its record. It takes 8 bytes per slot.
//!
//! Keys are spread over *stripes*. A stripe has its own table of buckets, writers' lock and version
//! counter (`seq`). A full table grows by an eighth without stopping other stripes. Readers take no
//! lock: they load the table and look at two buckets. They retry only if they found nothing while a
//! slot was displaced, or was marked as older or current. No cache line has both fields that
//! readers load and fields that every write changes; otherwise reads would wait for cache lines
//! that writing processors hold.
//!
//! Invariant: at most one slot leads to a record of a given key, apart from [older](crate::older)
//! slots.

pub(crate) mod bucket;
mod chunks;
mod guard;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod slot;
pub(crate) mod table;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::UnixSeconds;
use crate::key::Key;
use bucket::{Bucket, Candidates, StripeVersion};
pub(crate) use guard::{Guard, Judgement, NoSlot, SlotPlace};
use larder_log::recover::index_image::unusable;
use larder_log::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use larder_log::sync::{Mutex, MutexGuard, count_lock, lock};
use larder_log::{Address, Budget, Epochs, prefetch};
use slot::Slot;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use table::{Pages, Table, Tidy};

/// Bytes of the engine's memory per stripe. With more bytes, tables would be larger, and it would
/// take longer to grow one. With fewer bytes, a table would have too few pages even when memory is
/// full of small items, because tables grow by whole pages.
const MEMORY_PER_STRIPE: u64 = 1 << 20;
/// The value of `Index::limit` if only the budget limits the index.
const NO_LIMIT: u64 = u64::MAX;
const BYTES_PER_STRIPE: u64 = (size_of::<Stripe>() + size_of::<View>()) as u64;
const MIN_STRIPES: u64 = if cfg!(loom) { 2 } else { 64 };
const MAX_STRIPES: u64 = 1 << 18;
/// Tables grow by 1/`GROWTH`.
const GROWTH: u32 = 8;
/// Tables grow by 1/`REBUILD_GROWTH` while the whole index is rebuilt.
const REBUILD_GROWTH: u32 = 2;
/// A table sized for a known number of items keeps 1/`REBUILD_SPARE` of its slots free, so that it
/// need not grow at once.
const REBUILD_SPARE: usize = 5;
/// As `REBUILD_SPARE`, for a rebuild while memory is short. Some tables then have to grow.
const PACKED_SPARE: usize = 16;
/// The approximate largest number of pages of replaced tables that are freed in one step. During a
/// step no other thread can take or free a table.
const REAPED_PAGES: usize = 1024;

/// The fields that every write to a stripe changes, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    /// 1 while a writer holds the lock.
    lock: AtomicU32,
    /// Number of slots that lead to items. Written under the lock.
    items: AtomicU32,
    /// The last version assigned. Written under the lock.
    seq: AtomicU64,
}

/// The fields that a stripe's readers load. Written rarely, under the stripe's lock.
#[derive(Debug, Default)]
struct View {
    version: StripeVersion,
    /// The stripe's [`Table`], packed into a word.
    table: AtomicU64,
}

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    stripes: Box<[Stripe]>,
    /// One view for each stripe.
    views: Box<[View]>,
    shift: u32,
    pages: Pages,
    epochs: Arc<Epochs>,
    /// Replaced tables, each with the epoch that must pass before its pages are reused.
    retired: Mutex<VecDeque<(u64, Table)>>,
    /// True if tables may grow only within the budget.
    strict: AtomicBool,
    /// Tables grow by 1/`growth`: [`GROWTH`] or [`REBUILD_GROWTH`].
    growth: AtomicU32,
    /// The largest number of bytes of all tables together, or [`NO_LIMIT`].
    limit: AtomicU64,
    /// True if a table could not grow because of `limit`, since the last [`Index::take_full`].
    full: AtomicBool,
    /// Once a stripe has assigned a version at or above this mark, the store extends the lane's
    /// lease of versions.
    lease_mark: AtomicU64,
    /// The last version of the lane's durable lease.
    lease_end: AtomicU64,
    wants_lease: AtomicBool,
}

impl Index {
    /// Creates an empty index. `max_memory` is the largest number of bytes that data and index may
    /// ever have. With `strict`, tables grow only within the budget.
    pub(crate) fn new(
        memory: u64,
        max_memory: u64,
        strict: bool,
        budget: &Arc<Budget>,
        epochs: &Arc<Epochs>,
    ) -> io::Result<Self> {
        let stripes = (memory / MEMORY_PER_STRIPE).next_power_of_two();
        let stripes = stripes.clamp(MIN_STRIPES, MAX_STRIPES);
        budget.charge(stripes * BYTES_PER_STRIPE);
        Ok(Index {
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            views: (0..stripes).map(|_| View::default()).collect(),
            shift: 64 - stripes.trailing_zeros(),
            pages: Pages::reserve(max_memory + (256 << 20), Arc::clone(budget))?,
            epochs: Arc::clone(epochs),
            retired: Mutex::default(),
            strict: AtomicBool::new(strict),
            growth: AtomicU32::new(GROWTH),
            limit: AtomicU64::new(NO_LIMIT),
            full: AtomicBool::new(false),
            lease_mark: AtomicU64::new(u64::MAX),
            lease_end: AtomicU64::new(u64::MAX),
            wants_lease: AtomicBool::new(false),
        })
    }

    #[inline]
    fn view(&self, key: &Key<'_>) -> &View {
        &self.views[self.stripe_of(key)]
    }

    /// Returns the slot that the key's [hint](Index::guess) names, if it still has the key's tag.
    /// Callers try it before the other candidates.
    ///
    /// # Safety
    /// As [`Index::find`].
    #[inline]
    pub(crate) unsafe fn hinted(&self, key: &Key<'_>) -> Option<(&AtomicU64, Slot)> {
        let number = key.hint()?;
        // SAFETY: a replaced table is reused only after this thread's next quiescent point.
        bucket::hinted(unsafe { self.view(key).table().buckets() }, key, number)
    }

    /// Looks a key up without a lock. Returns the first slot with the key's tag that `matches`
    /// accepts.
    ///
    /// # Safety
    /// The thread must be awake in the epochs and must use the result before its next quiescent
    /// point.
    #[inline]
    pub(crate) unsafe fn find<T>(
        &self,
        key: &Key<'_>,
        mut matches: impl FnMut(Slot) -> Option<T>,
    ) -> Option<(&AtomicU64, Slot, T)> {
        let view = self.view(key);
        loop {
            let begun = view.version.begin();
            // SAFETY: a replaced table is reused only after this thread's next quiescent point.
            let buckets = unsafe { view.table().buckets() };
            if buckets.is_empty() {
                return None;
            }
            let at = Candidates::of(key.position(), buckets.len());
            let found = bucket::find(buckets, at, key.tag(), &mut matches);
            if found.is_some() || view.version.unchanged(begun) {
                return found;
            }
        }
    }

    /// Prefetches the key's buckets.
    ///
    /// # Safety
    /// As [`Index::find`].
    #[inline]
    pub(crate) unsafe fn prefetch(&self, key: &Key<'_>) {
        // SAFETY: a replaced table is reused only after this thread's next quiescent point.
        let buckets = unsafe { self.view(key).table().buckets() };
        if buckets.is_empty() {
            return;
        }
        let at = Candidates::of(key.position(), buckets.len());
        prefetch::for_reading((&raw const buckets[at.first]).cast());
        prefetch::for_reading((&raw const buckets[at.second]).cast());
    }

    /// Prefetches the cache line that [`Index::lock`] writes. If another processor wrote this line
    /// last, fetching it takes long.
    #[inline]
    pub(crate) fn prefetch_lock(&self, key: &Key<'_>) {
        prefetch::for_writing((&raw const self.stripes[self.stripe_of(key)]).cast());
    }

    /// Returns the address in the first slot with the key's tag, which is most probably the address
    /// of the key's record. Notes the slot in the key, so that the look-up need not search again.
    ///
    /// # Safety
    /// As [`Index::find`].
    #[inline]
    pub(crate) unsafe fn guess(&self, key: &mut Key<'_>) -> Option<Address> {
        // SAFETY: a replaced table is reused only after this thread's next quiescent point.
        let buckets = unsafe { self.view(key).table().buckets() };
        if buckets.is_empty() {
            return None;
        }
        let at = Candidates::of(key.position(), buckets.len());
        let mut mask = bucket::tagged(buckets, at, key.tag());
        while mask != 0 {
            let number = mask.trailing_zeros() as usize;
            let slot = Slot(bucket::place(buckets, at, number).load(Ordering::Acquire));
            if !slot.is_older() {
                key.set_hint(number);
                return (!slot.is_empty()).then(|| slot.address());
            }
            mask &= mask - 1;
        }
        None
    }

    /// Locks the key's stripe for writing.
    #[inline]
    pub(crate) fn lock(&self, key: &Key<'_>) -> Guard<'_> {
        self.lock_stripe(self.stripe_of(key))
    }

    #[inline]
    fn lock_stripe(&self, number: usize) -> Guard<'_> {
        let (stripe, view) = (&self.stripes[number], &self.views[number]);
        stripe.acquire();
        Guard { index: self, stripe, view }
    }

    /// Locks every stripe and empties the index. Chooses the fence of a flush_all: all versions
    /// assigned so far are below it, and no later version is. Calls `while_locked` with the fence
    /// before it unlocks any stripe.
    pub(crate) fn clear(&self, while_locked: impl FnOnce(u64)) {
        let guards: Vec<_> =
            (0..self.stripes.len()).map(|number| self.lock_stripe(number)).collect();
        let fence = self.newest_seq(0..self.stripes.len()) + 1;
        while_locked(fence);
        let mut tables = Vec::with_capacity(guards.len());
        for Guard { stripe, view, .. } in &guards {
            // Makes the fence itself the stripe's next version.
            stripe.seq.store(fence - 1, Ordering::Relaxed);
            stripe.items.store(0, Ordering::Relaxed);
            tables.push(Table::from_bits(view.table.swap(Table::NONE.bits(), Ordering::AcqRel)));
        }
        drop(guards);
        tables.retain(|&table| table != Table::NONE);
        let epoch = self.epochs.advance();
        self.lock_retired().extend(tables.into_iter().map(|table| (epoch, table)));
    }

    /// Returns true if no stripe has a table: nothing was written since the index was
    /// [cleared](Index::clear).
    pub(crate) fn is_bare(&self) -> bool {
        self.views.iter().all(|view| view.table() == Table::NONE)
    }

    /// Lets tables exceed the budget and grow by a half while the index is rebuilt. With normal
    /// growth nearly every item would be copied eight times.
    pub(crate) fn begin_rebuild(&self) {
        self.strict.store(false, Ordering::Relaxed);
        self.growth.store(REBUILD_GROWTH, Ordering::Relaxed);
    }

    /// Returns the number of the key's stripe.
    pub(crate) fn stripe_of(&self, key: &Key<'_>) -> usize {
        (key.lo >> self.shift) as usize
    }

    /// Gives the stripe a table with room for `items` items, if it has no table yet. Without memory
    /// for such a table, the stripe grows its table as items arrive.
    pub(crate) fn reserve(&self, stripe: usize, items: usize) {
        let view = &self.views[stripe];
        if view.table() != Table::NONE || items == 0 {
            return;
        }
        let packed = self.growth.load(Ordering::Relaxed) == GROWTH;
        let spare = if packed { PACKED_SPARE } else { REBUILD_SPARE };
        let buckets = (items * spare).div_ceil((spare - 1) * bucket::SLOTS);
        let pages = buckets.div_ceil(table::BUCKETS_PER_PAGE).max(table::MIN_PAGES);
        if let Some(table) = self.pages.take(pages, false) {
            view.table.store(table.bits(), Ordering::Release);
        }
    }

    /// Makes tables that are created or grow from now on as dense as those of a running server.
    /// Called during a rebuild if memory is short.
    pub(crate) fn pack(&self) {
        self.growth.store(GROWTH, Ordering::Relaxed);
    }

    /// Returns true if tables for `items` items fit into `bytes` bytes with 1/[`REBUILD_SPARE`] of
    /// their slots free.
    pub(crate) fn has_room(items: usize, bytes: u64) -> bool {
        let sparse = items * REBUILD_SPARE / (REBUILD_SPARE - 1);
        (sparse * size_of::<Slot>()) as u64 <= bytes
    }

    /// Ends the rebuild; `strict` as in [`Index::new`].
    pub(crate) fn end_rebuild(&self, strict: bool) {
        self.strict.store(strict, Ordering::Relaxed);
        self.growth.store(GROWTH, Ordering::Relaxed);
    }

    /// Limits all tables together to `bytes`. A recovery lifts the limit until the index is
    /// rebuilt.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns the limit of all tables together, in bytes.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Returns true if tables take at least this percentage of their limit.
    pub(crate) fn fills(&self, percent: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.pages.used_bytes() >= limit / 100 * percent
    }

    /// Returns true if a table could not grow since the last call because of the limit. Then the
    /// caller must evict items.
    pub(crate) fn take_full(&self) -> bool {
        self.full.swap(false, Ordering::Relaxed)
    }

    /// Makes every later version larger than `seq`.
    pub(crate) fn raise_seq(&self, seq: u64) {
        self.raise_seq_in(0..self.stripes.len(), seq);
    }

    /// Returns the newest version in these stripes.
    pub(crate) fn newest_seq(&self, stripes: Range<usize>) -> u64 {
        let newest = self.stripes[stripes].iter().map(|stripe| stripe.seq.load(Ordering::Relaxed));
        newest.max().unwrap_or(0)
    }

    /// As [`Index::raise_seq`], for these stripes only.
    pub(crate) fn raise_seq_in(&self, stripes: Range<usize>, seq: u64) {
        stripes.for_each(|number| self.lock_stripe(number).raise_seq(seq));
    }

    /// Sets the last version of the lease, and the version at which [`Index::wants_lease`] becomes
    /// true. The lease must be durable.
    pub(crate) fn set_lease(&self, mark: u64, end: u64) {
        self.lease_mark.store(mark, Ordering::Relaxed);
        self.lease_end.store(end, Ordering::Relaxed);
    }

    /// Returns true if, since the last call, a stripe has assigned a version at or above the mark
    /// or has found no version left.
    pub(crate) fn wants_lease(&self) -> bool {
        self.wants_lease.swap(false, Ordering::Relaxed)
    }

    fn lock_retired(&self) -> MutexGuard<'_, VecDeque<(u64, Table)>> {
        lock(&self.retired)
    }

    /// Frees all retired tables whose epoch has passed.
    pub(crate) fn reap(&self) {
        while self.reap_some() {}
    }

    /// Frees the oldest retired tables whose epoch has passed, at most about [`REAPED_PAGES`]
    /// pages. Returns false if there were no such tables.
    fn reap_some(&self) -> bool {
        let (mut tables, mut pages) = (Vec::new(), 0);
        let mut retired = self.lock_retired();
        while let Some(&(epoch, table)) = retired.front()
            && pages < REAPED_PAGES
            && self.epochs.passed(epoch)
        {
            retired.pop_front();
            pages += table.pages();
            tables.push(table);
        }
        drop(retired);
        // SAFETY: each table was replaced before the epoch that is stored with it, and that epoch
        // has passed.
        unsafe { self.pages.give_back(&mut tables) };
        !tables.is_empty()
    }

    /// Returns true if replaced tables wait to be freed.
    pub(crate) fn has_retired(&self) -> bool {
        !self.lock_retired().is_empty()
    }

    /// Does one step for one chunk (see `chunks.rs`) of the tables' memory: moves the chunk's
    /// tables into the chunk that is being filled, or asks the system to turn the chunk into a huge
    /// page. Chooses only chunks in which no table was created, moved or freed for some seconds.
    /// Returns true if more work may be left.
    pub(crate) fn tidy(&self, now: UnixSeconds) -> bool {
        match self.pages.tidy(now) {
            None => false,
            Some(Tidy::Joined) => true,
            Some(Tidy::Move(range)) => {
                let lies_there = |number: &usize| self.views[*number].table().reaches(&range);
                (0..self.stripes.len()).filter(lies_there).all(|number| {
                    let guard = self.lock_stripe(number);
                    !lies_there(&number) || guard.move_table()
                })
            }
        }
    }

    /// As [`Pages::joins`].
    pub(crate) fn joins(&self) -> u64 {
        self.pages.joins()
    }

    /// Returns the number of stripes.
    pub(crate) fn stripe_count(&self) -> usize {
        self.stripes.len()
    }

    /// Returns the number of slots of a stripe's table.
    pub(crate) fn table_slots(&self, stripe: usize) -> usize {
        self.views[stripe].table().pages() * table::BUCKETS_PER_PAGE * bucket::SLOTS
    }

    /// Returns the slot with this number in a stripe's table; `None` if the table has no such slot
    /// or the slot is empty.
    ///
    /// # Safety
    /// As [`Index::find`].
    pub(crate) unsafe fn slot_at(&self, stripe: usize, number: usize) -> Option<Slot> {
        // SAFETY: a replaced table is reused only after this thread's next quiescent point.
        let buckets = unsafe { self.views[stripe].table().buckets() };
        let place = buckets.get(number / bucket::SLOTS)?.0.get(number % bucket::SLOTS)?;
        let slot = Slot(place.load(Ordering::Acquire));
        (!slot.is_empty()).then_some(slot)
    }

    /// Calls `visit` for every slot of a stripe, under its lock.
    pub(crate) fn visit_stripe(&self, number: usize, mut visit: impl FnMut(Slot)) {
        let guard = self.lock_stripe(number);
        for place in bucket::places(guard.buckets()) {
            let slot = Slot(place.load(Ordering::Relaxed));
            if !slot.is_empty() {
                visit(slot);
            }
        }
    }

    /// Empties those slots of a stripe for which `takes` returns true. They must lead to items, not
    /// to tombstones. Calls `taken` for each slot while the stripe is locked.
    pub(crate) fn take_slots(
        &self,
        number: usize,
        takes: impl Fn(Slot) -> bool,
        mut taken: impl FnMut(Slot),
    ) {
        let guard = self.lock_stripe(number);
        for place in bucket::places(guard.buckets()) {
            let slot = Slot(place.load(Ordering::Relaxed));
            if !slot.is_empty() && takes(slot) {
                guard.remove(SlotPlace { place, displaced: slot.is_displaced() }, !slot.is_older());
                taken(slot);
            }
        }
    }

    /// Empties the slot that leads to `address`, if the stripe has one. Calls `taken` while the
    /// stripe is locked.
    pub(crate) fn take_address(&self, number: usize, address: Address, taken: impl FnOnce()) {
        let guard = self.lock_stripe(number);
        let mut places = bucket::places(guard.buckets());
        let leads_there = |place: &&AtomicU64| {
            let slot = Slot(place.load(Ordering::Relaxed));
            !slot.is_empty() && slot.address() == address
        };
        if let Some(place) = places.find(leads_there) {
            let place = SlotPlace { place, displaced: false };
            guard.remove(place, !place.slot().is_older());
            taken();
        }
    }

    /// Copies a stripe's table. Returns its number of pages and its number of slots that lead to
    /// items.
    pub(crate) fn copy_table(&self, number: usize, into: &mut Vec<u8>) -> (u32, u32) {
        let guard = self.lock_stripe(number);
        into.clear();
        for place in bucket::places(guard.buckets()) {
            into.extend_from_slice(&place.load(Ordering::Relaxed).to_le_bytes());
        }
        (guard.view.table().pages() as u32, guard.stripe.items.load(Ordering::Relaxed))
    }

    /// Gives a stripe, which must have no table, a table with the contents that
    /// [`Index::copy_table`] produced.
    pub(crate) fn fill_table(
        &self,
        number: usize,
        pages: usize,
        items: u32,
        from: &mut impl Read,
    ) -> io::Result<()> {
        if pages == 0 {
            return Ok(());
        }
        if pages < table::MIN_PAGES {
            return Err(unusable("a table is too small"));
        }
        let table = self.pages.take(pages, false).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut bytes = [0; size_of::<Bucket>()];
        // SAFETY: only this thread knows the table until it is published.
        for bucket in unsafe { table.buckets() } {
            from.read_exact(&mut bytes)?;
            for (place, slot) in bucket.0.iter().zip(bytes.as_chunks().0) {
                place.store(u64::from_le_bytes(*slot), Ordering::Relaxed);
            }
        }
        self.stripes[number].items.store(items, Ordering::Relaxed);
        self.views[number].table.store(table.bits(), Ordering::Release);
        Ok(())
    }

    /// Returns the number of slots that lead to items.
    pub(crate) fn items(&self) -> u64 {
        self.stripes.iter().map(|s| u64::from(s.items.load(Ordering::Relaxed))).sum()
    }

    /// Returns the bytes of memory that stripes and tables take.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.used_bytes() + self.stripes.len() as u64 * BYTES_PER_STRIPE
    }

    /// Returns the number of slots, used and free.
    pub(crate) fn slots(&self) -> u64 {
        self.pages.used_bytes() / size_of::<u64>() as u64
    }
}

impl Stripe {
    #[inline]
    fn acquire(&self) {
        count_lock();
        let mut turn = 0;
        while self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            larder_log::sync::spin(&mut turn);
        }
    }

    #[inline]
    fn release(&self) {
        self.lock.store(0, Ordering::Release);
    }
}

impl View {
    #[inline]
    fn table(&self) -> Table {
        Table::from_bits(self.table.load(Ordering::Acquire))
    }
}
