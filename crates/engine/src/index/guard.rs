//! Operations of a writer that holds a stripe's lock.

use super::bucket::{self, Bucket, Candidates, SLOTS, StripeVersion};
use super::slot::Slot;
use super::table::{MIN_PAGES, Table};
use super::{GROWTH, Index, Stripe, View};
use crate::key::Key;
use larder_log::memory::mapping::PAGE;
use larder_log::record::MAX_SEQ;
use larder_log::sync;
use larder_log::sync::atomic::{AtomicU64, Ordering};

/// The largest number of older slots of a key. Each older slot occupies one of the key's sixteen
/// candidate slots.
const MOST_OLDER: usize = 3;
/// A table does not grow while less than 1/`SPARSE` of it is in use. If keys are spread well, far
/// more of the table is in use before both buckets of a key are full. So keys that fill buckets of
/// such a sparse table were made to collide, and they would also collide in a larger table.
const SPARSE: usize = 4;

/// Why a key gets no place in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// There is no memory for a larger table, or the index is at its limit.
    Full,
    /// Too many keys share the key's buckets.
    Crowded,
}

/// How a slot that has a key's tag relates to that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The slot belongs to another key.
    Other,
    /// The slot is an older slot, already replaced by a set of this key.
    Older,
    /// The slot may belong to this key. Its record is not in memory, and a set of the key may mark
    /// the slot as older without reading the record.
    Suspect,
    /// The slot may belong to this key, and a set may not mark it as older without knowing more.
    Unknown,
}

/// A locked stripe. Until the guard is dropped, slots that a writer found move only if the writer
/// calls [`Guard::vacate`].
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    pub(super) index: &'a Index,
    pub(super) stripe: &'a Stripe,
    pub(super) view: &'a View,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.stripe.release();
    }
}

/// A slot found under the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotPlace<'a> {
    pub(super) place: &'a AtomicU64,
    /// For an empty place: true if the place is in the second candidate bucket of the key that will
    /// use it.
    pub(super) displaced: bool,
}

impl<'a> SlotPlace<'a> {
    /// Returns the atomic word of the place, in which readers may raise the frequency.
    pub(crate) fn cell(&self) -> &'a AtomicU64 {
        self.place
    }

    /// Returns the current slot. Concurrent readers may raise its frequency.
    pub(crate) fn slot(&self) -> Slot {
        Slot(self.place.load(Ordering::Relaxed))
    }
}

impl<'a> Guard<'a> {
    pub(super) fn buckets(&self) -> &'a [Bucket] {
        // SAFETY: the lock keeps the table from being replaced while the guard lives, and places do
        // not outlive the epoch in which they were found.
        unsafe { self.view.table().buckets() }
    }

    /// As [`Index::hinted`].
    #[inline]
    pub(crate) fn hinted(&self, key: &Key<'_>) -> Option<(SlotPlace<'a>, Slot)> {
        let (place, slot) = bucket::hinted(self.buckets(), key, key.hint()?)?;
        Some((SlotPlace { place, displaced: slot.is_displaced() }, slot))
    }

    /// Returns the key's slot, if `matches` accepts one.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        key: &Key<'_>,
        matches: impl FnMut(Slot) -> Option<T>,
    ) -> Option<(SlotPlace<'a>, Slot, T)> {
        let buckets = self.buckets();
        if buckets.is_empty() {
            return None;
        }
        let at = Candidates::of(key.position(), buckets.len());
        let (place, slot, found) = bucket::find(buckets, at, key.tag(), matches)?;
        Some((SlotPlace { place, displaced: slot.is_displaced() }, slot, found))
    }

    /// Returns the next version. Beyond [`MAX_SEQ`] this function would return the same version
    /// every time. To prevent that, a store whose versions are nearly used up is refused when it is
    /// opened.
    #[inline]
    pub(crate) fn next_seq(&self) -> u64 {
        let seq = (self.stripe.seq.load(Ordering::Relaxed) + 1).min(MAX_SEQ);
        self.stripe.seq.store(seq, Ordering::Relaxed);
        if seq >= self.index.lease_mark.load(Ordering::Relaxed) {
            self.index.wants_lease.store(true, Ordering::Relaxed);
        }
        seq
    }

    /// Returns true if the next version lies within the durable lease. Otherwise lets the next
    /// commit extend the lease. Writers that append check this before [`Guard::next_seq`]. A crash
    /// must not leave records with versions beyond the lease: the next start would assign lower
    /// versions, and a later start would then take these records for the newest.
    #[inline]
    pub(crate) fn has_version(&self) -> bool {
        let next = (self.stripe.seq.load(Ordering::Relaxed) + 1).min(MAX_SEQ);
        let has = next <= self.index.lease_end.load(Ordering::Relaxed);
        if !has {
            self.index.wants_lease.store(true, Ordering::Relaxed);
        }
        has
    }

    /// Returns true if the next version is below the mark at which the store extends the lease.
    /// Changes in place check this. Without it, a hot counter could soon use up the whole lease,
    /// because changes in place need no space in the log.
    #[inline]
    pub(crate) fn has_leased(&self) -> bool {
        let next = self.stripe.seq.load(Ordering::Relaxed) + 1;
        next < self.index.lease_mark.load(Ordering::Relaxed)
    }

    /// Makes every later version larger than `seq`.
    pub(super) fn raise_seq(&self, seq: u64) {
        let newest = self.stripe.seq.load(Ordering::Relaxed);
        self.stripe.seq.store(newest.max(seq), Ordering::Relaxed);
    }

    /// Publishes a new slot in a place that is in use, and changes the number of items by `items`.
    #[inline]
    pub(crate) fn replace(&self, place: SlotPlace<'_>, slot: Slot, items: i32) {
        let displaced = place.slot().is_displaced();
        sync::publish(place.place, slot.with_displaced(displaced).0);
        if items != 0 {
            self.count(items);
        }
    }

    /// Publishes a slot in an empty place of the table, which [`Guard::vacate`] returned, and adds
    /// `items` to the number of items.
    #[inline]
    pub(crate) fn fill(&self, place: SlotPlace<'_>, slot: Slot, items: i32) {
        sync::publish(place.place, slot.with_displaced(place.displaced).0);
        self.count(items);
    }

    /// Publishes an item's slot in a place from [`Guard::vacate`] and marks `old` as older, because
    /// `old` may lead to another version of the same key.
    pub(crate) fn fill_over(&self, place: SlotPlace<'_>, slot: Slot, old: SlotPlace<'_>) {
        self.view.version.change(|| {
            sync::publish(old.place, old.slot().with_older(true).0);
            sync::publish(place.place, slot.with_displaced(place.displaced).0);
        });
    }

    /// Undoes [`Guard::fill_over`]: empties `place` and makes `old` current again. The undone
    /// version at `place` was an item if `was_item` is true, or else a tombstone; only an item is
    /// in the count of items.
    pub(crate) fn take_back(&self, place: SlotPlace<'_>, old: SlotPlace<'_>, was_item: bool) {
        self.view.version.change(|| {
            sync::publish(old.place, old.slot().with_older(false).0);
            sync::publish(place.place, Slot::EMPTY.0);
        });
        self.count(i32::from(!was_item));
    }

    /// Makes an older slot current, because its record turned out to be the current item of another
    /// key.
    pub(crate) fn set_current(&self, old: SlotPlace<'_>) {
        self.view.version.change(|| sync::publish(old.place, old.slot().with_older(false).0));
        self.count(1);
    }

    /// Returns the only slot that may lead to the key's item according to `judge`. Returns `None`
    /// if there are none or several, if `judge` does not know, or if the key has [`MOST_OLDER`]
    /// older slots.
    pub(crate) fn only_suspect(
        &self,
        key: &Key<'_>,
        mut judge: impl FnMut(Slot) -> Judgement,
    ) -> Option<SlotPlace<'a>> {
        let buckets = self.buckets();
        let at = Candidates::of(key.position(), buckets.len());
        let mut mask = bucket::tagged(buckets, at, key.tag());
        let (mut suspect, mut older) = (None, 0);
        while mask != 0 {
            let number = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let place = SlotPlace { place: bucket::place(buckets, at, number), displaced: false };
            let slot = place.slot();
            let bucket = if number < bucket::SLOTS { at.first } else { at.second };
            if slot.is_empty() || bucket::position(slot, bucket, buckets.len()) != key.position() {
                continue;
            }
            match judge(slot) {
                Judgement::Other => {}
                Judgement::Older => older += 1,
                Judgement::Unknown => return None,
                Judgement::Suspect if suspect.is_some() => return None,
                Judgement::Suspect => suspect = Some(place),
            }
        }
        suspect.filter(|_| older < MOST_OLDER)
    }

    /// Empties a place that led to an item, or to a tombstone if `was_item` is false.
    pub(crate) fn remove(&self, place: SlotPlace<'_>, was_item: bool) {
        sync::publish(place.place, Slot::EMPTY.0);
        if was_item {
            self.count(-1);
        }
    }

    fn count(&self, by: i32) {
        let items = self.stripe.items.load(Ordering::Relaxed);
        self.stripe.items.store(items.wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// Returns an empty place for the key, growing the table if needed.
    #[inline]
    pub(crate) fn vacate(&self, key: &Key<'_>) -> Result<SlotPlace<'a>, NoSlot> {
        loop {
            let buckets = self.buckets();
            if !buckets.is_empty() {
                let at = Candidates::of(key.position(), buckets.len());
                if let Some((place, displaced)) = bucket::vacate(buckets, at, &self.view.version) {
                    return Ok(SlotPlace { place, displaced });
                }
            }
            self.grow()?;
        }
    }

    /// Returns true if less than 1/[`SPARSE`] of the table is in use.
    fn is_sparse(&self) -> bool {
        let buckets = self.buckets();
        let used = bucket::places(buckets).filter(|place| place.load(Ordering::Relaxed) != 0);
        used.count() < buckets.len() * SLOTS / SPARSE
    }

    /// Replaces the table by one that is larger by at least 1/`growth`.
    #[cold]
    fn grow(&self) -> Result<(), NoSlot> {
        if self.is_sparse() {
            return Err(NoSlot::Crowded);
        }
        // All stripes grow at about the same time, so this call frees tables that other stripes
        // replaced when they last grew. The call frees only some of the tables that wait to be
        // freed. After a flush, these are all tables of the index: too many for a writer that holds
        // a stripe's lock.
        self.index.reap_some();
        let old = self.view.table();
        let mut pages = old.pages();
        loop {
            let growth = self.index.growth.load(Ordering::Relaxed);
            pages = (pages + (pages / growth as usize).max(1)).max(MIN_PAGES);
            let more = ((pages - old.pages()) * PAGE) as u64;
            let limit = self.index.limit.load(Ordering::Relaxed);
            if growth == GROWTH && self.index.pages.used_bytes() + more > limit {
                self.index.full.store(true, Ordering::Relaxed);
                return Err(NoSlot::Full);
            }
            let strict = self.index.strict.load(Ordering::Relaxed);
            let new = self.index.pages.take(pages, strict).ok_or(NoSlot::Full)?;
            if self.copy_to(new) {
                self.publish(old, new);
                return Ok(());
            }
            // SAFETY: the table was never published.
            unsafe { self.index.pages.give_back(&mut [new]) };
        }
    }

    /// Moves the table next to other moved tables, so that together they fill chunks. Returns false
    /// if there is no memory.
    pub(super) fn move_table(&self) -> bool {
        let old = self.view.table();
        let Some(new) = self.index.pages.take_packed(old.pages()) else { return false };
        // SAFETY: only this thread knows the table until it is published.
        let target = unsafe { new.buckets() };
        for (place, old) in bucket::places(target).zip(bucket::places(self.buckets())) {
            place.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.publish(old, new);
        true
    }

    /// Makes readers use the new table and retires the old one.
    fn publish(&self, old: Table, new: Table) {
        self.view.table.store(new.bits(), Ordering::Release);
        let epoch = self.index.epochs.advance();
        if old != Table::NONE {
            self.index.lock_retired().push_back((epoch, old));
        }
    }

    /// Copies every slot to its bucket in an unpublished table. Returns false if one does not fit.
    fn copy_to(&self, new: Table) -> bool {
        // SAFETY: only this thread knows the table until it is published.
        let target = unsafe { new.buckets() };
        let unpublished = StripeVersion::default();
        let source = self.buckets();
        let slots =
            |bucket: &'a Bucket| bucket.0.iter().map(|place| Slot(place.load(Ordering::Relaxed)));
        for (number, bucket) in source.iter().enumerate() {
            for slot in slots(bucket).filter(|slot| !slot.is_empty()) {
                let position = bucket::position(slot, number, source.len());
                let at = Candidates::of(position, target.len());
                let Some((place, displaced)) = bucket::vacate(target, at, &unpublished) else {
                    return false;
                };
                place.store(slot.with_displaced(displaced).0, Ordering::Relaxed);
            }
        }
        true
    }
}
