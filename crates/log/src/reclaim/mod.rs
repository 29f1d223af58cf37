//! How segments are freed. An emptied segment stays in quarantine until nothing can need it any
//! more.
//!
//! Without a store, the segment waits until every thread has passed a quiescent point. With a
//! store, it also waits until no crash can bring back a version that the segment's records hide. So
//! three conditions must hold:
//!
//! 1. every change that took a record of the segment out of the index is durable;
//! 2. no recovery needs the segment's *ends* (tombstones, and expired or evicted items that hide
//!    older versions). Either durable dead maps of the other segments mark all these versions (see
//!    [`deaths`]), or the ends were copied elsewhere and the copies are durable;
//! 3. the segment's own free mark is durable.

pub(crate) mod deaths;
pub(crate) mod quarantine;
mod queues;
pub(crate) mod usage;

pub use quarantine::QuarantineCounts;
pub use usage::{Among, Candidate, SegmentTotals, UsageTable};

use crate::address::{Address, SegmentNumber};
use crate::append::Appended;
use crate::log::Log;
use crate::memory::prefetch::{self, LINE};
use crate::reclaim::quarantine::Quarantined;
use crate::record::Record;
use crate::rule::Rule;
use crate::segment::State;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// The distance, in bytes, between the next record of a walk and the memory that it prefetches.
const FETCHED_AHEAD: usize = 1024;

impl Log {
    /// Returns the newest epoch that every participant has reached. If a segment's
    /// [`Sealed::sealed`](crate::Sealed::sealed) is not greater, no thread appends to the segment
    /// any more.
    pub fn settled(&self) -> u64 {
        self.epochs.horizon()
    }

    /// Returns the records of a sealed segment, in order, from its frame or from `loaded`.
    ///
    /// # Safety
    /// The segment must be sealed, its appenders must be done, and it must not be freed meanwhile.
    pub unsafe fn records<'a>(
        &'a self,
        number: SegmentNumber,
        loaded: Option<&'a [u64]>,
    ) -> impl Iterator<Item = Appended<'a>> {
        let segment = self.segment(number);
        let loaded_bytes = loaded.map_or(usize::MAX, size_of_val);
        let filled = (segment.filled() as usize).min(loaded_bytes);
        let frame = loaded.map_or(segment.frame().cast_const(), |words| words.as_ptr().cast());
        let mut offset = 0;
        std::iter::from_fn(move || {
            if offset >= filled {
                return None;
            }
            // SAFETY: records follow each other without gaps up to the segment's filled length, and
            // the caller says that they are complete.
            let record = unsafe { Record::at(frame.add(offset), || segment.jumbo_value()) };
            let address = Address::new(number, offset);
            offset += record.size();
            // The next record's offset is known only from this record's size, so the processor
            // cannot prefetch by itself.
            let ahead = frame.wrapping_add(offset + FETCHED_AHEAD);
            prefetch::for_reading(ahead);
            prefetch::for_reading(ahead.wrapping_add(LINE));
            Some((address, record))
        })
    }

    /// Puts a segment into quarantine after its records have left the index. Its frame is reused
    /// once every thread has passed a quiescent point. `ends` are the offsets of the records that
    /// were removed without a newer version.
    ///
    /// `undo_count` is from `CommitMarks::undo_count`. With a store, the caller must read this
    /// count before it determines whether all records are gone, and which of them are ends.
    ///
    /// # Errors
    /// If changes were undone since `undo_count` was read, or are just being undone, the index may
    /// lead to the segment again. Then this function changes nothing and returns `ends`.
    pub fn quarantine(
        &self,
        number: SegmentNumber,
        ends: Vec<u32>,
        undo_count: u64,
    ) -> Result<(), Vec<u32>> {
        // The undo count is checked under the lock of the quarantine. So an undo that begins later
        // finds the new entry.
        let mut quarantine = lock(&self.quarantine);
        let store = self.store.as_ref();
        if store.is_some_and(|it| it.commits.undo_count() != undo_count || undo_count % 2 == 1) {
            return Err(ends);
        }
        self.segment(number).set_state(State::Quarantine);
        let epoch = self.epochs.advance();
        let emptied = store.map_or(0, |store| store.commits.open());
        let tier = self.tier(number);
        let segment = self.segment(number);
        let frames = match segment.frame().is_null() {
            true => 0,
            false => self.frames_of(segment.jumbo_mapping()),
        };
        let entry = Quarantined { number, tier, frames, epoch, emptied, ends, carried: false };
        if store.is_some() {
            quarantine.push(entry);
        } else {
            self.end_evicting();
            quarantine.push_marked(entry);
        }
        // This call removes the segment from the list `cleaning`. It comes last, so that other
        // threads always find the segment in that list or in quarantine.
        self.note_quarantined(number);
        Ok(())
    }

    /// Frees the segments in quarantine that need no free mark or have a durable one, and that no
    /// thread can be reading any more. Returns how many it has freed.
    pub fn reap(&self) -> usize {
        self.reap_frames();
        let mut freed = 0;
        loop {
            let number = {
                let mut quarantine = lock(&self.quarantine);
                let horizon = self.epochs.horizon();
                quarantine
                    .pop_marked(|entry| entry.epoch <= horizon || Rule::QuiescentReuse.is_broken())
            };
            let Some(number) = number else { return freed };
            self.free(number);
            freed += 1;
        }
    }

    /// Returns true if a crash could bring back a record that was removed without a newer version,
    /// such as an evicted item. Also returns true while such removals are in progress.
    #[inline]
    pub fn is_evicting(&self) -> bool {
        self.evicting.load(Ordering::Acquire) > 0 || self.keeps_ends()
    }

    /// Returns the segments in cleaning or quarantine, with their generations. Until the free mark
    /// of such a segment is durable, a crash could bring back records that were removed from it
    /// without a newer version. Returns none unless [`Log::is_evicting`] returns true.
    pub fn evicting(&self) -> Vec<(SegmentNumber, u32)> {
        if !self.is_evicting() {
            return Vec::new();
        }
        let now = |number| (number, self.segment(number).generation());
        let mut emptied = self.cleaning();
        {
            let quarantine = lock(&self.quarantine);
            let all = quarantine.unmarked().chain(quarantine.marked());
            emptied.extend(all.map(|entry| entry.number));
        }
        let is_evicting = |&(number, use_): &_| self.is_evicting_from(number, use_);
        emptied.into_iter().map(now).filter(is_evicting).collect()
    }

    /// Returns true if this generation of a segment is in cleaning or quarantine: see
    /// [`Log::evicting`].
    pub fn is_evicting_from(&self, number: SegmentNumber, generation: u32) -> bool {
        let segment = self.segment(number);
        segment.generation() == generation
            && matches!(segment.state(), State::Cleaning | State::Quarantine)
    }

    /// Returns true if some segment stays in use although records were removed from it without a
    /// newer version. A crash could bring these records back until the segment is cleaned.
    pub fn keeps_ends(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.keeps_ends())
    }

    /// Counts a segment from which records are about to be removed. [`Log::end_evicting`] must
    /// follow once no crash can bring these records back, or when the segment is not emptied after
    /// all.
    pub(crate) fn begin_evicting(&self) {
        self.evicting.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends [`Log::begin_evicting`]. If the segment is not freed, its removed records must first be
    /// noted as [kept ends](crate::Store::keep_ends).
    pub(crate) fn end_evicting(&self) {
        self.evicting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of segments in quarantine that will soon be free: all except those that
    /// were [given up](Log::expect_no_place).
    pub fn quarantined(&self) -> usize {
        lock(&self.quarantine).coming()
    }

    /// Returns the number of frames that the segments in quarantine have. Does not count segments
    /// that were given up. The mapping of a jumbo counts as several frames.
    pub fn quarantined_frames(&self) -> usize {
        lock(&self.quarantine).coming_frames()
    }

    /// Returns true if any segment is in quarantine.
    pub fn has_quarantine(&self) -> bool {
        lock(&self.quarantine).len() > 0
    }

    /// Counts the segments in quarantine by what they wait for.
    pub fn quarantine_counts(&self) -> QuarantineCounts {
        let durable = self.store.as_ref().map_or(0, |store| store.commits.durable());
        lock(&self.quarantine).counts(durable)
    }

    /// Gives up on a segment in quarantine whose ends cannot be moved and whose blockers cannot get
    /// dead maps. Until [`Log::expect_places`], the cleaner does not try to move its ends, and its
    /// place does not count among those that will soon be free.
    pub fn expect_no_place(&self, number: SegmentNumber) {
        lock(&self.quarantine).give_up(number);
    }

    /// Undoes all calls of [`Log::expect_no_place`]: all places in quarantine count among those
    /// that will soon be free. Returns true if any segment had been given up.
    pub fn expect_places(&self) -> bool {
        lock(&self.quarantine).expect_all()
    }

    fn free(&self, number: SegmentNumber) {
        let segment = self.segment(number);
        let (jumbo, frame) = {
            let _loading = lock(&self.jumbo_frames);
            (segment.jumbo_mapping(), segment.free())
        };
        if !frame.is_null() {
            // SAFETY: the segment's quiescent period has passed, so no thread reads the frame.
            unsafe { self.give_back(frame, jumbo) };
        }
        let store = self.store.as_ref();
        let parts = store.map(|store| {
            store.forget_segment(number);
            store.take_parts(number)
        });
        let places = parts.into_iter().flatten().chain([number]);
        // A place that cannot be read completely is not used again: new data there would be lost,
        // too.
        let is_bad = |number| store.is_some_and(|store| store.is_bad(number));
        lock(&self.free_places).extend(places.filter(|&number| !is_bad(number)));
    }
}
