//! How segments are freed. An emptied segment stays in quarantine until nothing can need it any
//! more.
//!
//! Without a store, the segment waits until every thread has passed a quiescent point. With a
//! store, it also waits until no crash can bring back a version that the segment's records
//! superseded or ended. So three conditions must hold:
//!
//! 1. every change that took a record of the segment out of the index is durable;
//! 2. if the segment holds *ends* (records that hide older versions without being hidden
//!    themselves: tombstones, expired and evicted items), the durable dead maps of the other
//!    segments mark all older versions there (see [`deaths`]);
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

/// A walk over records prefetches memory at this distance ahead of the next record, in bytes.
const FETCHED_AHEAD: usize = 1024;

impl Log {
    /// Returns the newest epoch that has passed. A segment that was [sealed](crate::Sealed::sealed)
    /// up to this epoch has no appender left.
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
    /// after the quiescent period. `ends` are the offsets of the records that were removed without
    /// a newer version. With a store, the caller must read `undo_count` from
    /// `CommitMarks::undo_count` before it determines that the records are gone and which of them
    /// are ends.
    ///
    /// # Errors
    /// Returns `ends` and changes nothing if changes were undone since then, because the index may
    /// lead to the segment again.
    pub fn quarantine(
        &self,
        number: SegmentNumber,
        ends: Vec<u32>,
        undo_count: u64,
    ) -> Result<(), Vec<u32>> {
        // The undo count is checked under the lock of the quarantine. So an undo that begins later
        // finds the new entry.
        let mut quarantine = lock(&self.quarantine);
        if self
            .store
            .as_ref()
            .is_some_and(|s| s.commits.undo_count() != undo_count || undo_count % 2 == 1)
        {
            return Err(ends);
        }
        self.segment(number).set_state(State::Quarantine);
        let epoch = self.epochs.advance();
        let emptied = self.store.as_ref().map_or(0, |store| store.commits.open());
        let tier = self.tier(number);
        let segment = self.segment(number);
        let resident = !segment.frame().is_null();
        let frames = self.frames_of(if resident { segment.jumbo_mapping() } else { 0 });
        let entry = Quarantined { number, tier, frames, epoch, emptied, ends, carried: false };
        if self.store.is_none() {
            self.end_evicting();
            quarantine.push_marked(entry);
        } else {
            quarantine.push(entry);
        }
        // Called last, so that the segment is always in `cleaning` or in quarantine.
        self.note_quarantined(number);
        Ok(())
    }

    /// Frees the segments that have been in quarantine long enough. Returns how many.
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

    /// Returns true if records were or are being removed without a newer version, and the removals
    /// are not durable yet.
    #[inline]
    pub fn is_evicting(&self) -> bool {
        self.evicting.load(Ordering::Acquire) > 0 || self.keeps_ends()
    }

    /// Returns the segments in cleaning or quarantine, with their generations. Records of these
    /// segments were or are being removed without a newer version, and the removals are not durable
    /// yet.
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

    /// Returns true if a removal from this generation of a segment, without a newer version, is in
    /// progress or not durable yet.
    pub fn is_evicting_from(&self, number: SegmentNumber, generation: u32) -> bool {
        let segment = self.segment(number);
        segment.generation() == generation
            && matches!(segment.state(), State::Cleaning | State::Quarantine)
    }

    /// Returns true if some segment stays in use although records were removed from it without a
    /// newer version. Until it is cleaned, a crash could bring them back.
    pub fn keeps_ends(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.keeps_ends())
    }

    /// Counts a segment from which records are about to be removed. [`Log::end_evicting`] must
    /// follow once the emptying is durable, or when the segment is not emptied after all.
    pub(crate) fn begin_evicting(&self) {
        self.evicting.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends [`Log::begin_evicting`]. If the segment stays, its removed records must be
    /// [kept](crate::Store::keep_ends) first.
    pub(crate) fn end_evicting(&self) {
        self.evicting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of segments in quarantine that will soon be free.
    pub fn quarantined(&self) -> usize {
        lock(&self.quarantine).coming()
    }

    /// Returns the memory of segments in quarantine that will soon be free, in frames.
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

    /// Counts all places in quarantine among those that will soon be free. Returns true if some had
    /// been given up.
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
        let parts = self.store.as_ref().map(|store| {
            store.forget_segment(number);
            store.take_parts(number)
        });
        let places = parts.into_iter().flatten().chain([number]);
        // A place that cannot be read completely is not used again: new data there would be lost,
        // too.
        let is_bad = |number| self.store.as_ref().is_some_and(|store| store.is_bad(number));
        lock(&self.free_places).extend(places.filter(|&number| !is_bad(number)));
    }
}
