//! What a writer does in a stripe while it holds the lock.

use super::bucket::{self, Bucket, Candidates, Version};
use super::slot::Slot;
use super::table::{MIN_PAGES, Table};
use super::{GROWTH, Index, Stripe, View};
use crate::key::Key;
use larder_log::memory::PAGE;
use larder_log::record::MAX_SEQ;
use larder_log::sync;
use larder_log::sync::atomic::{AtomicU64, Ordering};

/// Older slots that a key has at most: each takes one of the places that it can have.
const MOST_OLDER: usize = 3;

/// What is known of a slot with a key's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Another key's.
    Other,
    /// An older one, over which this key was set.
    Older,
    /// Perhaps this key's.
    Suspect,
    /// It has to be looked at first.
    Unknown,
}

/// A locked stripe. What a writer finds stays found until it lets go.
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
pub(crate) struct Place<'a> {
    pub(super) place: &'a AtomicU64,
    /// Of an empty place: whether it is in the second bucket of the key that it is for.
    pub(super) displaced: bool,
}

impl Place<'_> {
    /// What it holds now; readers may have raised the frequency meanwhile.
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
    pub(crate) fn hinted(&self, key: &Key<'_>) -> Option<(Place<'a>, Slot)> {
        let (place, slot) = bucket::hinted(self.buckets(), key, key.hint()?)?;
        Some((Place { place, displaced: slot.is_displaced() }, slot))
    }

    /// The key's slot, if `matches` accepts one.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        key: &Key<'_>,
        matches: impl FnMut(Slot) -> Option<T>,
    ) -> Option<(Place<'a>, Slot, T)> {
        let buckets = self.buckets();
        if buckets.is_empty() {
            return None;
        }
        let at = Candidates::of(key.position(), buckets.len());
        let (place, slot, found) = bucket::find(buckets, at, key.tag(), matches)?;
        Some((Place { place, displaced: slot.is_displaced() }, slot, found))
    }

    /// The next version. The last one is given again and again, which a start sees to it that nobody lives
    /// to see.
    #[inline]
    pub(crate) fn next_seq(&self) -> u64 {
        let seq = (self.stripe.seq.load(Ordering::Relaxed) + 1).min(MAX_SEQ);
        self.stripe.seq.store(seq, Ordering::Relaxed);
        if seq >= self.index.lease_mark.load(Ordering::Relaxed) {
            self.index.wants_lease.store(true, Ordering::Relaxed);
        }
        seq
    }

    /// Every later version has a number above `seq`.
    pub(super) fn raise_seq(&self, seq: u64) {
        let newest = self.stripe.seq.load(Ordering::Relaxed);
        self.stripe.seq.store(newest.max(seq), Ordering::Relaxed);
    }

    /// Publishes a new slot in a place that is in use; the number of items changes by `items`.
    #[inline]
    pub(crate) fn replace(&self, place: Place<'_>, slot: Slot, items: i32) {
        let displaced = place.slot().is_displaced();
        sync::publish(place.place, slot.with_displaced(displaced).0);
        if items != 0 {
            self.count(items);
        }
    }

    /// Publishes a slot in a place that [`Guard::vacate`] gave; `items` as in [`Guard::replace`].
    #[inline]
    pub(crate) fn fill(&self, place: Place<'_>, slot: Slot, items: i32) {
        sync::publish(place.place, slot.with_displaced(place.displaced).0);
        self.count(items);
    }

    /// Publishes the slot of an item in a place that [`Guard::vacate`] gave. What `old` leads to may be another
    /// version of its key.
    pub(crate) fn fill_over(&self, place: Place<'_>, slot: Slot, old: Place<'_>) {
        self.view.version.change(|| {
            sync::publish(old.place, old.slot().with_older(true).0);
            sync::publish(place.place, slot.with_displaced(place.displaced).0);
        });
    }

    /// Takes [`Guard::fill_over`] back: `old` is current again.
    pub(crate) fn take_back(&self, place: Place<'_>, old: Place<'_>, was_item: bool) {
        self.view.version.change(|| {
            sync::publish(old.place, old.slot().with_older(false).0);
            sync::publish(place.place, Slot::EMPTY.0);
        });
        self.count(i32::from(!was_item));
    }

    /// Makes an older slot one like others: its record is the current item of another key.
    pub(crate) fn set_current(&self, old: Place<'_>) {
        self.view.version.change(|| sync::publish(old.place, old.slot().with_older(false).0));
        self.count(1);
    }

    /// The one slot that may lead to the key's item, of those with its tag that `judge` cannot tell from it;
    /// `None` if there are several, or none, or too few free places are left.
    pub(crate) fn only_suspect(
        &self,
        key: &Key<'_>,
        mut judge: impl FnMut(Slot) -> Judgement,
    ) -> Option<Place<'a>> {
        let buckets = self.buckets();
        let at = Candidates::of(key.position(), buckets.len());
        let mut mask = bucket::tagged(buckets, at, key.tag());
        let (mut suspect, mut older) = (None, 0);
        while mask != 0 {
            let number = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let place = Place { place: bucket::place(buckets, at, number), displaced: false };
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

    /// Empties a place that led to an item, or to a tombstone.
    pub(crate) fn remove(&self, place: Place<'_>, was_item: bool) {
        sync::publish(place.place, Slot::EMPTY.0);
        if was_item {
            self.count(-1);
        }
    }

    fn count(&self, by: i32) {
        let items = self.stripe.items.load(Ordering::Relaxed);
        self.stripe.items.store(items.wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// An empty place for the key; the table grows if it must. `None`: no memory for a larger table, or the limit.
    #[inline]
    pub(crate) fn vacate(&self, key: &Key<'_>) -> Option<Place<'a>> {
        loop {
            let buckets = self.buckets();
            if !buckets.is_empty() {
                let at = Candidates::of(key.position(), buckets.len());
                if let Some((place, displaced)) = bucket::vacate(buckets, at, &self.view.version) {
                    return Some(Place { place, displaced });
                }
            }
            self.grow()?;
        }
    }

    /// Replaces the table by one that is an eighth larger.
    #[cold]
    fn grow(&self) -> Option<()> {
        // Growth comes in waves over all stripes: take back what the last ones left. After a flush that may be the
        // whole index, too much for one writer with a stripe locked.
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
                return None;
            }
            let new = self.index.pages.take(pages, self.index.strict.load(Ordering::Relaxed))?;
            if self.copy_to(new) {
                self.publish(old, new);
                return Some(());
            }
            // SAFETY: the table was never published.
            unsafe { self.index.pages.give_back(&mut [new]) };
        }
    }

    /// Replaces the table by the same one elsewhere, close to others that were moved. False without memory.
    pub(super) fn move_table(&self) -> bool {
        let old = self.view.table();
        let Some(new) = self.index.pages.take_packed(old.pages()) else { return false };
        // SAFETY: the table is this thread's own until it is published.
        let target = unsafe { new.buckets() };
        for (place, old) in bucket::places(target).zip(bucket::places(self.buckets())) {
            place.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.publish(old, new);
        true
    }

    /// Has readers use another table.
    fn publish(&self, old: Table, new: Table) {
        self.view.table.store(new.bits(), Ordering::Release);
        let epoch = self.index.epochs.advance();
        if old != Table::NONE {
            self.index.lock_retired().push_back((epoch, old));
        }
    }

    /// Copies every slot to its bucket in an unpublished table; false if one does not fit.
    fn copy_to(&self, new: Table) -> bool {
        // SAFETY: the table is this thread's own until it is published.
        let target = unsafe { new.buckets() };
        let unpublished = Version::default();
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
