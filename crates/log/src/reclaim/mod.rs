//! How segments leave: the quarantine in which a segment waits until nobody can need it any more.
//!
//! Without a store that is until every thread has passed a quiescent point. With one it is also
//! until a crash could not bring back what the segment's records had superseded or ended:
//!
//! 1. every change that took a record of the segment out of the index is durable;
//! 2. if the segment holds *ends* (records that hide older versions without being hidden
//!    themselves: tombstones, expired and evicted items), no other segment holds an older version
//!    that its durable dead map does not mark (see [`deaths`](crate::reclaim::deaths));
//! 3. the segment's own free mark is durable.

pub(crate) mod deaths;
pub(crate) mod quarantine;
mod queues;
pub(crate) mod usage;

pub use usage::{Among, Candidate, Held, UsageTable};

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

/// A walk over records has the memory fetched that lies so many bytes ahead.
const FETCHED_AHEAD: usize = 1024;

impl Log {
    /// Sealed segments whose `sealed` is at most this have no appender left.
    pub fn settled(&self) -> u64 {
        self.epochs.horizon()
    }

    /// The records of a sealed segment, in order, from its frame or as it was loaded.
    ///
    /// # Safety
    /// The segment must be sealed, its appenders done, and it must not be freed meanwhile.
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
            // Only its size says where the next record begins, so the processor cannot look ahead by itself.
            let ahead = frame.wrapping_add(offset + FETCHED_AHEAD);
            prefetch::for_reading(ahead);
            prefetch::for_reading(ahead.wrapping_add(LINE));
            Some((address, record))
        })
    }

    /// The segment's records are out of the index: its frame is reused after the quiescent period.
    /// `ends` says where in it records begin that were removed without a newer version. With a store,
    /// `undoings` is [`CommitMarks::undoings`](crate::CommitMarks::undoings) from before that was found out.
    ///
    /// # Errors
    /// Something was undone since, so the index may lead there: nothing has happened, and `ends` is
    /// given back.
    pub fn quarantine(
        &self,
        number: SegmentNumber,
        ends: Vec<u32>,
        undoings: u64,
    ) -> Result<(), Vec<u32>> {
        // Who undoes looks at the list afterwards.
        let mut quarantine = lock(&self.quarantine);
        if self
            .store
            .as_ref()
            .is_some_and(|s| s.commits.undoings() != undoings || undoings % 2 == 1)
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
        // It is always in one of both.
        self.note_quarantined(number);
        Ok(())
    }

    /// Frees what has been in quarantine long enough; the answer is how many segments.
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

    /// Whether records are being removed, or were removed, without a newer version, and that is not
    /// durable yet.
    #[inline]
    pub fn is_evicting(&self) -> bool {
        self.evicting.load(Ordering::Acquire) > 0 || self.keeps_ends()
    }

    /// The segments, and which use of them, that records are being removed from without a newer version, and
    /// that is not durable yet.
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

    /// Whether that is not durable yet for this use of a segment.
    pub fn is_evicting_from(&self, number: SegmentNumber, generation: u32) -> bool {
        let segment = self.segment(number);
        segment.generation() == generation
            && matches!(segment.state(), State::Cleaning | State::Quarantine)
    }

    /// Whether some segment stays although records were removed from it without a newer version: until it
    /// is cleaned, a crash could bring them back.
    pub fn keeps_ends(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.keeps_ends())
    }

    /// Before records of a segment are removed. It ends when the segment is not emptied after all, or when
    /// that is durable.
    pub(crate) fn begin_evicting(&self) {
        self.evicting.fetch_add(1, Ordering::AcqRel);
    }

    /// The end of [`Log::begin_evicting`]. Removed records of a segment that stays are
    /// [kept](crate::Store::keep_ends) before.
    pub(crate) fn end_evicting(&self) {
        self.evicting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Segments in quarantine that will be free before long.
    pub fn quarantined(&self) -> usize {
        lock(&self.quarantine).coming()
    }

    /// The memory, in frames, of segments in quarantine that will be free before long.
    pub fn quarantined_frames(&self) -> usize {
        lock(&self.quarantine).coming_frames()
    }

    /// Whether there are any segments in quarantine.
    pub fn has_quarantine(&self) -> bool {
        lock(&self.quarantine).len() > 0
    }

    /// A segment in quarantine waits for dead maps that cannot be made, and its ends cannot move: nobody counts on
    /// its place, or tries to move them, until [`Log::expect_places`].
    pub fn expect_no_place(&self, number: SegmentNumber) {
        lock(&self.quarantine).give_up(number);
    }

    /// Counts again on all places. The answer is whether some had been given up.
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
            // SAFETY: nobody reads the frame after the quiescent period.
            unsafe { self.give_back(frame, jumbo) };
        }
        let parts = self.store.as_ref().map(|store| {
            store.forget_segment(number);
            store.take_parts(number)
        });
        let places = parts.into_iter().flatten().chain([number]);
        // What cannot be read would be lost again.
        let is_bad = |number| self.store.as_ref().is_some_and(|store| store.is_bad(number));
        lock(&self.numbers).extend(places.filter(|&number| !is_bad(number)));
    }
}
