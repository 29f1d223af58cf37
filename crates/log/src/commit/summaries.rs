//! Summaries of sealed segments: room is left for them, they are made when a segment is sealed, and written
//! once that is durable.
//!
//! A summary pays where records are so large that reading it instead of them saves most of the reading.
//! So segments leave room for one of at most a sixteenth of their size; segments of small records
//! have none, and are read.

use crate::append::Stream;
use crate::commit::committer::Staged;
use crate::commit::{Committer, Part};
use crate::format::segment::TRAILER_BYTES;
use crate::format::summary::{Entry, Place};
use crate::format::{BLOCK, Summary, Trailer};
use crate::log::Log;
use crate::record::Kind;
use crate::segment::State;
use crate::store::Store;
use std::sync::atomic::Ordering;

/// Of a segment, its summary takes one part in so many, at most.
const SHARE: usize = 16;

impl Log {
    /// Bytes at the end of a new segment of the stream that records leave to its summary.
    pub(crate) fn summary_room(&self, stream: Stream) -> u32 {
        let room = self.store.as_ref().map(|store| &store.summary_room[stream as usize]);
        room.map_or(0, |room| room.load(Ordering::Relaxed))
    }

    /// The summary of a segment that `part` seals, if there is room for one. The next segments of its
    /// stream leave as much room as this one would have needed.
    pub(crate) fn summarize(&self, store: &Store, part: &Part) -> Option<Staged> {
        let segment = self.segment(part.segment);
        // SAFETY: the segment is sealed, all its records are complete, and its frame stays until it is
        // durable.
        let records = || unsafe { self.records(part.segment, None) };
        let count = records()
            .filter(|(_, record)| matches!(record.kind(), Kind::Item | Kind::Tombstone))
            .count();
        let room = Summary::bytes(count + count / 8);
        let room = if room <= self.segment_size() / SHARE { room } else { 0 };
        store.summary_room[part.stream as usize].store(room as u32, Ordering::Relaxed);
        let end = part.to as usize;
        if end.next_multiple_of(BLOCK) + Summary::bytes(count) > self.segment_size() {
            return None;
        }
        let generation = segment.generation();
        let seed = store.segment_seed(part.segment, generation);
        let frame = self.undurable_frame(part.segment);
        // SAFETY: the trailer that seals the segment is complete, and nobody changes it.
        let bytes =
            unsafe { std::slice::from_raw_parts(frame.add(end - TRAILER_BYTES), TRAILER_BYTES) };
        let Trailer { commit, after_failure, seq_limit, durable, .. } =
            Trailer::find(bytes, generation, seed)?.trailer;
        let hash_seed = store.superblock().hash_seed;
        let entry = |(address, record): (crate::Address, _)| {
            Entry::of(address.offset() as u32, &record, hash_seed)
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
        let place = Place { identity: store.identity, segment: part.segment, generation };
        Some(Staged { segment: part.segment, generation, bytes: summary.encode(&place) })
    }

    /// Writes the summaries whose segments are durable. One that cannot be written is done without; if
    /// the device is sick, the sync tells.
    pub(crate) fn write_summaries(&self, store: &Store, committer: &mut Committer) {
        for staged in committer.summaries.drain(..) {
            let segment = self.segment(staged.segment);
            // If the place has got another use since, that is written by this thread, and later.
            let in_use = matches!(segment.state(), State::Sealed | State::Cleaning);
            if in_use && segment.generation() == staged.generation {
                let end = store.geometry.segment(staged.segment) + self.segment_size() as u64;
                let _ = store.write(end - staged.bytes.len() as u64, &staged.bytes);
            }
        }
    }
}
