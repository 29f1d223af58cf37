//! Group commit: everything reserved before a moment becomes durable with one sync.
//!
//! A commit is first *closed*: in both streams, a trailer is reserved behind the records so far.
//! Then it is *written* and synced. Last, it is *settled*: it counts as durable, and waiters are
//! notified. While a commit is being written, the next one collects records. So commits need no
//! fixed pause between them: under load, each commit takes the records that arrive during one sync.
//!
//! Invariants: one thread at a time commits. A commit is closed only after the previous one has
//! settled, unless both are [given up](DurableLog::fail_commits). So a commit found on a device
//! proves that all earlier commits were durable. There are two exceptions, which the trailers mark:
//! the previous commit has failed, or an early write (see `early`) has written the trailer while
//! the previous commit was being synced. In a segment's place, every block is written once, unless
//! a write or a sync fails. An incomplete last block goes to one of several tail places, so no
//! write ever touches bytes that an earlier commit made durable.

pub(crate) mod committer;
mod cut;
pub(crate) mod dead_map;
mod early;
pub(crate) mod failed_commits;
mod free_marks;
mod summaries;
mod write;

pub use committer::{Closed, Committer, Written};
pub use dead_map::{BegunMap, DeadMap, MapState};

use crate::address::SegmentNumber;
use crate::append::Stream;
use crate::commit::committer::SegmentPart;
use crate::format::DurableEnd;
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::DurableLog;
use crate::rule::Rule;
use crate::segment::Segment;
use crate::sync::lock;
use std::sync::atomic::Ordering;

impl DurableLog<'_> {
    /// Closes the open commit. On return every record that this commit covers is filled and
    /// published, and new records belong to the next commit.
    pub fn close_commit(self, committer: &mut Committer) -> Closed {
        self.close(committer, false)
    }

    /// Like [`DurableLog::close_commit`], but makes the streams continue in new segments.
    pub fn close_and_leave(self, committer: &mut Committer) -> Closed {
        self.close(committer, true)
    }

    fn close(self, committer: &mut Committer, leave: bool) -> Closed {
        let mut parts = std::mem::take(&mut committer.again);
        let early = std::mem::take(&mut committer.early);
        self.begin_closing();
        // A thread that opens a segment reads the commit number and registers the segment under one
        // of these locks. So the header of every segment found here names this commit or an earlier
        // one. Headers of segments that are opened later name the next commit.
        let rolling = self.streams.each_ref().map(|open| lock(&open.roll));
        // While this is locked, `unsynced_bytes` waits, so it misses no segment that this function
        // takes from the lists below.
        let mut unsettled = lock(&self.store.closed);
        let (number, jumbos) = {
            let mut new_jumbos = lock(&self.store.new_jumbos);
            // The number advances before the trailers are reserved. So no record behind a trailer
            // counts as part of that trailer's commit. A record in front of a trailer may count as
            // part of the next commit. That is later than necessary, but correct.
            let number = self.store.commits.open_next();
            (number, std::mem::take(&mut *new_jumbos))
        };
        for stream in Stream::ALL {
            let open = &self.streams[stream as usize];
            for segment in self.store.take_unsynced(stream) {
                parts.extend(self.close_part(segment, stream, true, early.parts.get(&segment)));
            }
            let segment = open.segment.load(Ordering::Acquire);
            if segment != 0 {
                parts.extend(self.close_part(segment, stream, leave, early.parts.get(&segment)));
                if leave {
                    open.segment.store(0, Ordering::Release);
                    self.close_segment(segment);
                    self.enqueue_sealed(stream, segment);
                }
            }
        }
        unsettled.extend(parts.iter().map(|part| part.segment).chain(jumbos.iter().copied()));
        drop(unsettled);
        for part in &parts {
            self.segment(part.segment).set_closed(part.to);
        }
        for &jumbo in &jumbos {
            let segment = self.segment(jumbo);
            segment.set_closed(segment.filled());
        }
        drop(rolling);
        self.end_closing();
        self.store.commits.set_closed(number);
        if !Rule::WaitForAppends.is_broken() {
            self.epochs.wait_for_appends();
        }
        self.fill_covered_chunks();
        for part in parts.iter().filter(|part| part.is_new()) {
            self.write_trailer(number, part, committer.before());
        }
        Closed { number, parts, jumbos, early }
    }

    /// Reserves the trailer for the bytes of a segment behind its `early` part. `rolled` is true if
    /// the segment takes no more records. If no trailer is needed, returns an empty part behind
    /// `early`, or `None` if nothing was written early.
    fn close_part(
        self,
        number: SegmentNumber,
        stream: Stream,
        rolled: bool,
        early: Option<&SegmentPart>,
    ) -> Option<SegmentPart> {
        let entry = self.store.entry(number);
        let nothing = early.map(|early| SegmentPart { from: early.to, ..*early });
        if entry.sealed.load(Ordering::Acquire) {
            return nothing;
        }
        let segment = self.segment(number);
        let from = early.map_or_else(|| segment.closed(), |early| early.to);
        let begun = if from == 0 { HEADER_BYTES as u32 } else { from };
        if !rolled && segment.filled() == begun {
            return nothing;
        }
        // An open segment needs room for another trailer behind this one. If there is none, this
        // trailer seals the segment.
        let trailer = TRAILER_BYTES as u32;
        let at = if rolled { None } else { segment.reserve(trailer, trailer) };
        let sealed = at.is_none();
        let at = at.unwrap_or_else(|| segment.seal_with(TRAILER_BYTES as u32));
        if sealed {
            entry.sealed.store(true, Ordering::Release);
        }
        let to = at + TRAILER_BYTES as u32;
        segment.kill(TRAILER_BYTES);
        Some(SegmentPart { segment: number, stream, from, to, sealed, continues: early.is_some() })
    }

    /// Settles a commit that was written and synced: from here on its bytes count as durable.
    /// Returns the number of these bytes.
    pub fn settle_commit(
        self,
        committer: &mut Committer,
        closed: &Closed,
        written: Written,
    ) -> u64 {
        for (tails, durable) in committer.tails.iter_mut().zip(written.tails) {
            tails.durable = durable;
            tails.syncing = durable;
        }
        committer.summaries = written.summaries;
        committer.syncing = None;
        committer.after_failure = false;
        committer.stale_tails = false;
        for cut in committer.cuts.drain(..) {
            self.store.entry(cut.segment).cutting.store(false, Ordering::Release);
        }
        let bytes = self.settle_records(closed);
        lock(&self.store.closed).clear();
        for (number, version) in written.metas {
            self.store.entry(number).meta_version.store(version, Ordering::Relaxed);
        }
        if let Some(superblock) = written.superblock {
            self.store.settle_superblock(superblock);
        }
        self.settle_maps(committer, &written.mapped);
        if !written.freed.is_empty() {
            let mut quarantine = lock(&self.quarantine);
            for number in written.freed {
                if quarantine.mark(number) {
                    self.store.settle_free(number);
                    let filled = u64::from(self.segment(number).filled());
                    self.store.work.freed.fetch_add(filled, Ordering::Relaxed);
                    self.end_evicting();
                }
            }
        }
        self.store.commits.settle(closed.number);
        bytes
    }

    /// Marks the bytes that the commit covers as durable. Returns how many of them were not durable
    /// before.
    fn settle_records(self, commit: &Closed) -> u64 {
        let mut bytes = 0;
        let mut ends = lock(&self.store.durable_ends);
        for part in &commit.parts {
            bytes += self.settle_part(commit.number, part.segment, part.to);
            ends[part.stream as usize] = DurableEnd { segment: part.segment, offset: part.to };
        }
        drop(ends);
        for &jumbo in &commit.jumbos {
            bytes += self.settle_part(commit.number, jumbo, self.segment(jumbo).filled());
        }
        bytes
    }

    /// Marks the first `end` bytes of a segment as durable. Returns how many of them were not
    /// durable before.
    fn settle_part(self, commit: u64, number: SegmentNumber, end: u32) -> u64 {
        let segment: &Segment = self.segment(number);
        let bytes = end.saturating_sub(segment.durable());
        segment.set_closed(end);
        segment.set_durable(end);
        self.store.entry(number).last_commit.store(commit, Ordering::Relaxed);
        bytes.into()
    }

    /// Settles a commit that covered nothing and had nothing to write.
    pub fn settle_idle(self, closed: &Closed) {
        self.store.commits.settle(closed.number);
    }

    /// Except in sync mode: moves the records of a failed commit, which were acknowledged already,
    /// to the open commit. The open commit writes them from memory, and repeats its own early
    /// writes. The trailers of the failed commit and of these early writes become fillers, or the
    /// open commit rewrites them. Otherwise, a later commit found behind such a trailer would prove
    /// that the failed commit was durable. The failed commit still counts as failed for threads
    /// that wait for it.
    pub fn retry_commit(self, committer: &mut Committer, closed: Closed) {
        committer.forget_writes();
        committer.stale_tails = true;
        let mut next = std::mem::take(&mut committer.early).parts;
        for part in closed.parts {
            let last = next.remove(&part.segment).unwrap_or(part);
            committer.again.extend(self.merge_parts(&last));
        }
        for last in next.values() {
            committer.again.extend(self.merge_parts(last));
        }
        for &jumbo in &closed.jumbos {
            let header = self.segment(jumbo).frame().wrapping_sub(HEADER_BYTES);
            // SAFETY: the header is this thread's own, and no other thread reads it.
            unsafe { self.store.reopen_segment(jumbo, self.segment(jumbo), Stream::Hot, header) };
        }
        lock(&self.store.new_jumbos).extend(closed.jumbos);
        self.store.commits.settle_failed(closed.number);
    }

    /// Returns true if a commit without new records would still have something to write.
    pub fn has_commit_work(self, committer: &Committer) -> bool {
        lock(&self.store.changing).wants_write()
            || !committer.cuts.is_empty()
            || !committer.again.is_empty()
            || self.has_maps_to_write(committer)
            || !self.freeable().is_empty()
    }

    /// Returns the number of appended bytes that are not durable, with those of commits under way.
    pub fn unsynced_bytes(self) -> u64 {
        let undurable = |number: SegmentNumber| {
            let segment = self.segment(number);
            u64::from(segment.filled().saturating_sub(segment.durable()))
        };
        let closed = lock(&self.store.closed);
        let mut segments = closed.clone();
        for stream in Stream::ALL {
            let open = self.streams[stream as usize].segment.load(Ordering::Acquire);
            segments.extend((open != 0).then_some(open));
            segments.extend(self.store.unsynced_segments(stream));
        }
        segments.extend(lock(&self.store.new_jumbos).iter());
        drop(closed);
        segments.into_iter().map(undurable).sum()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
