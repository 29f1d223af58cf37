//! Summaries of sealed segments. A new segment leaves room for its summary. The summary is made
//! when the segment is sealed, and written once the segment is durable.
//!
//! A summary is worth its space only if it is much shorter than the segment that recovery would
//! read otherwise. So a segment leaves at most a sixteenth of its bytes for its summary. Full
//! segments of small records have no summary, and recovery reads them whole.

use crate::append::Stream;
use crate::commit::committer::Staged;
use crate::commit::{Committer, SegmentPart};
use crate::format::segment::TRAILER_BYTES;
use crate::format::summary::{SummaryEntry, SummaryPlace};
use crate::format::{BLOCK, Summary, Trailer};
use crate::log::{DurableLog, Log};
use crate::segment::State;
use std::sync::atomic::Ordering;

/// A new segment leaves at most 1/`SHARE` of its bytes for its summary.
const SHARE: usize = 16;

impl Log {
    /// Returns the number of bytes at the end of a stream's new segment that are left for its
    /// summary.
    pub(crate) fn summary_room(&self, stream: Stream) -> u32 {
        let room = self.store.as_ref().map(|store| &store.summary_room[stream as usize]);
        room.map_or(0, |room| room.load(Ordering::Relaxed))
    }
}

impl DurableLog<'_> {
    /// Returns the summary of a segment that `part` seals, if there is room for it. Also sets the
    /// room that the stream's next segments leave for their summaries, in bytes: enough for an
    /// eighth more entries than this summary has. If that is more than 1/`SHARE` of a segment, the
    /// room is 0.
    pub(crate) fn summarize(self, part: &SegmentPart) -> Option<Staged> {
        let segment = self.segment(part.segment);
        let frame = self.undurable_frame(part.segment);
        // SAFETY: the segment is sealed, all its records are complete, and its frame stays until
        // the segment is durable.
        let records = || unsafe { self.records(part.segment, None) };
        let count = records().filter(|(_, record)| record.kind().is_version()).count();
        let room = Summary::bytes(count + count / 8);
        let room = if room <= self.segment_size() / SHARE { room } else { 0 };
        self.store.summary_room[part.stream as usize].store(room as u32, Ordering::Relaxed);
        let end = part.to as usize;
        if end.next_multiple_of(BLOCK) + Summary::bytes(count) > self.segment_size() {
            return None;
        }
        let generation = segment.generation();
        let seed = self.store.segment_seed(part.segment, generation);
        // SAFETY: the trailer that seals the segment is complete, and no thread changes it.
        let bytes =
            unsafe { std::slice::from_raw_parts(frame.add(end - TRAILER_BYTES), TRAILER_BYTES) };
        let Trailer { commit, after_failure, seq_limit, durable, .. } =
            Trailer::find(bytes, generation, seed)?.trailer;
        let hash_seed = self.store.superblock().hash_seed;
        let entry = |(address, record): (crate::Address, _)| {
            SummaryEntry::of(address.offset() as u32, &record, hash_seed)
        };
        let summary = Summary {
            end: part.to,
            commit,
            after_failure,
            seq_limit,
            durable,
            expiries: segment.expiries(),
            entries: records().filter_map(entry).collect(),
        };
        let place =
            SummaryPlace { identity: self.store.identity, segment: part.segment, generation };
        Some(Staged { segment: part.segment, generation, bytes: summary.encode(&place) })
    }

    /// Writes the summaries of segments that are durable. A failed write is ignored, because a
    /// summary is optional; if the device is failing, the sync reports it.
    pub(crate) fn write_summaries(self, committer: &mut Committer) {
        for staged in committer.summaries.drain(..) {
            let segment = self.segment(staged.segment);
            // Only the holder of `committer` writes a new generation to the place. So the place
            // cannot be reused between this check and the write.
            let in_use = matches!(segment.state(), State::Sealed | State::Cleaning);
            if in_use && segment.generation() == staged.generation {
                let end = self.store.geometry.segment(staged.segment) + self.segment_size() as u64;
                let _ = self.store.write(end - staged.bytes.len() as u64, &staged.bytes);
            }
        }
    }
}
