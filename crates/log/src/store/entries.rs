//! Per-segment bookkeeping of the store: segment headers, places of jumbos, kept ends, and the
//! lists of segments that are not durable.

use crate::address::SegmentNumber;
use crate::append::Stream;
use crate::format::segment::JumboSize;
use crate::format::{self, DurableEnd, Header};
use crate::segment::Segment;
use crate::store::Store;
use crate::sync::atomic::Ordering;
use crate::sync::lock;

impl Store {
    /// Begins the bookkeeping of a segment's new generation, and writes its header at `at`.
    /// `jumbo_parts` are the places of a jumbo after its first; `None` for a normal segment.
    ///
    /// # Safety
    /// The caller must own the header's bytes at `at`.
    pub(crate) unsafe fn begin_segment(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
        jumbo_parts: Option<Vec<SegmentNumber>>,
    ) {
        // The header of a jumbo must name the commit that will cover the jumbo. A commit covers the
        // jumbos that are in `new_jumbos` when the commit is closed. So `new_jumbos` stays locked
        // until the header is written and the jumbo is in the list. A normal segment needs no list:
        // it is begun under its stream's lock, which is held while a commit is closed.
        let mut new_jumbos = jumbo_parts.is_some().then(|| lock(&self.new_jumbos));
        let entry = self.entry(number);
        // The segment has no dead map yet. So its cover must be lower than every commit in which a
        // record of the segment can die. The settled commit is lower, the open one is not.
        entry.cover.store(self.commits.settled(), Ordering::Relaxed);
        self.begin_deaths(number);
        entry.end.store(0, Ordering::Relaxed);
        entry.early.store(0, Ordering::Relaxed);
        entry.sealed.store(false, Ordering::Release);
        let parts = jumbo_parts.as_ref().map(Vec::len);
        // SAFETY: the caller owns these bytes.
        unsafe { self.write_header(number, segment, stream, at, parts) };
        if let Some(parts) = jumbo_parts {
            lock(&self.parts).insert(number, parts);
        }
        if let Some(new_jumbos) = &mut new_jumbos {
            new_jumbos.push(number);
        }
    }

    /// Assigns a segment to the open commit, in place of the commit in which it was opened. For
    /// this, writes the segment's header again. No part of the segment may be durable.
    ///
    /// # Safety
    /// As [`Store::begin_segment`].
    pub(crate) unsafe fn reopen_segment(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
    ) {
        let parts = segment.is_jumbo().then(|| self.parts(number).len());
        // SAFETY: the caller owns these bytes.
        unsafe { self.write_header(number, segment, stream, at, parts) };
    }

    /// # Safety
    /// As [`Store::begin_segment`].
    unsafe fn write_header(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
        further: Option<usize>,
    ) {
        let opened = self.commits.open();
        let entry = self.entry(number);
        entry.opened.store(opened, Ordering::Relaxed);
        entry.last_commit.store(opened, Ordering::Relaxed);
        let header = Header {
            segment: number,
            generation: segment.generation(),
            stream: stream as u8,
            opened,
            born: segment.born(),
            jumbo: further.map(|further| JumboSize {
                value: segment.jumbo_value() as u64,
                parts: further as u32 + 1,
            }),
        };
        let bytes = header.encode(&self.identity);
        // SAFETY: the caller owns these bytes.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Returns the number of places, the first included, of a jumbo whose record has `size` bytes.
    pub(crate) fn jumbo_places(&self, size: usize) -> usize {
        format::jumbo::parts(size, self.geometry.segment_size()) as usize
    }

    /// Returns all places of a jumbo: `number`, which is its first, and then its parts.
    pub(crate) fn places(&self, number: SegmentNumber) -> impl Iterator<Item = SegmentNumber> {
        std::iter::once(number).chain(self.parts(number))
    }

    /// Returns the places of a jumbo after its first.
    pub(crate) fn parts(&self, number: SegmentNumber) -> Vec<SegmentNumber> {
        lock(&self.parts).get(&number).cloned().unwrap_or_default()
    }

    pub(crate) fn set_parts(&self, number: SegmentNumber, parts: Vec<SegmentNumber>) {
        lock(&self.parts).insert(number, parts);
    }

    pub(crate) fn take_parts(&self, number: SegmentNumber) -> Vec<SegmentNumber> {
        lock(&self.parts).remove(&number).unwrap_or_default()
    }

    /// Notes kept ends: the records at the offsets `ends` of the segment were removed from the
    /// index without a newer version.
    pub fn keep_ends(&self, number: SegmentNumber, mut ends: Vec<u32>) {
        if !ends.is_empty() {
            let mut all = lock(&self.kept_ends.by_segment);
            let kept = all.entry(number).or_default();
            kept.append(&mut ends);
            kept.sort_unstable();
            kept.dedup();
            self.kept_ends.segments.store(all.len() as u32, Ordering::Release);
        }
    }

    /// Returns true if any segment has [kept ends](Store::kept_ends).
    pub(crate) fn keeps_ends(&self) -> bool {
        self.kept_ends.segments.load(Ordering::Acquire) > 0
    }

    /// Returns the offsets of a segment's records that [`Store::keep_ends`] noted.
    pub fn kept_ends(&self, number: SegmentNumber) -> Vec<u32> {
        lock(&self.kept_ends.by_segment).get(&number).cloned().unwrap_or_default()
    }

    /// Returns the segments that have kept ends.
    pub fn segments_with_kept_ends(&self) -> Vec<SegmentNumber> {
        lock(&self.kept_ends.by_segment).keys().copied().collect()
    }

    /// Returns all kept ends, by segment.
    pub(crate) fn all_kept_ends(&self) -> Vec<(SegmentNumber, Vec<u32>)> {
        let kept = lock(&self.kept_ends.by_segment);
        kept.iter().map(|(&number, ends)| (number, ends.clone())).collect()
    }

    /// Forgets the kept ends and durable end of a segment that is free. The next generation of the
    /// segment begins without them.
    pub(crate) fn forget_segment(&self, number: SegmentNumber) {
        {
            let mut kept = lock(&self.kept_ends.by_segment);
            kept.remove(&number);
            self.kept_ends.segments.store(kept.len() as u32, Ordering::Release);
        }
        for end in lock(&self.durable_ends).iter_mut().filter(|end| end.segment == number) {
            *end = DurableEnd::default();
        }
    }

    pub(crate) fn note_unsynced(&self, stream: Stream, number: SegmentNumber) {
        lock(&self.unsynced[stream as usize]).push(number);
    }

    pub(crate) fn unsynced_segments(&self, stream: Stream) -> Vec<SegmentNumber> {
        lock(&self.unsynced[stream as usize]).clone()
    }

    pub(crate) fn take_unsynced(&self, stream: Stream) -> Vec<SegmentNumber> {
        std::mem::take(&mut *lock(&self.unsynced[stream as usize]))
    }
}
