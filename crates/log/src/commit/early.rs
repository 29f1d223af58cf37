//! Early writes: what the open commit covers so far goes to the device before the commit is closed, without a
//! sync. So the end of the process alone loses little, however rare or slow syncs are.
//!
//! Invariants: an early write settles nothing. Marks, frames, places and changes wait for the commit, whose sync
//! covers everything that was written early for it. Trailers that are written early while the sync of the commit
//! before is under way prove nothing. An early write that fails is repeated by the commit.

use super::{Before, Closed, Committer, Part, STREAMS, Written};
use crate::address::SegmentNumber;
use crate::format::seal_record;
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::{Log, lock};
use crate::record::{HEADER, Kind, Layout, Record, write_filler};
use crate::rule::Rule;
use crate::store::Store;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

/// What was written early for the open commit.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The last part of each segment.
    pub(super) parts: BTreeMap<SegmentNumber, Part>,
    /// A write has failed: the rest is left to the commit.
    failed: bool,
    /// Parts that may not have been written.
    pub(super) unwritten: Vec<Part>,
    /// Large values.
    pub(super) jumbos: Vec<SegmentNumber>,
    /// Metas of their further places, and the versions of these.
    pub(super) metas: Vec<(SegmentNumber, u64)>,
    /// How many syncs had failed before the first of these writes.
    pub(super) failed_syncs: Option<u64>,
}

impl Early {
    /// How many syncs had failed before the first write of the commit, which may be about to follow.
    pub(super) fn failed_syncs(&self, store: &Store) -> u64 {
        let first = self.failed_syncs.filter(|_| !Rule::FailedSyncsFirst.is_broken());
        first.unwrap_or_else(|| store.failed_syncs())
    }
}

impl Log {
    /// Writes what was reserved before this call and belongs to no closed commit. `Some` if all of that is
    /// written now, with whether there was anything new; `None` if it is left to the commit, after a failure. It may be
    /// called while the sync of a commit is under way.
    ///
    /// # Errors
    /// Those of the device. Then the next commit writes it.
    pub fn write_early(&self, committer: &mut Committer) -> io::Result<Option<bool>> {
        let store = self.durable_log();
        let early = &mut committer.early;
        // After a failure the next commit writes everything from memory.
        if committer.after_failure || early.failed {
            return Ok(None);
        }
        let failed_syncs = store.failed_syncs();
        let began = early.failed_syncs.unwrap_or(failed_syncs);
        let syncing = committer.syncing.unwrap_or(failed_syncs);
        if began != failed_syncs || syncing != failed_syncs {
            // The device may have lost writes of the open commit, or of the commit whose sync is under way. A
            // commit with a write from before the failure does not believe in its own sync.
            early.failed = true;
            return Ok(None);
        }
        let (Closed { parts, jumbos, number, .. }, before) = self.close_early(committer);
        if parts.is_empty() && jumbos.is_empty() {
            return Ok(Some(false));
        }
        let early = &mut committer.early;
        early.failed_syncs.get_or_insert(failed_syncs);
        early.unwritten.clone_from(&parts);
        early.failed = true;
        for part in &parts {
            // Into the operating system's memory: that outlives the process, and does not wait for a sync.
            self.write_part(store, committer, number, part, Store::write)?;
        }
        committer.early.unwritten.clear();
        for jumbo in jumbos {
            let mut written = Written::default();
            self.write_jumbo(store, &mut written, number, jumbo, before)?;
            committer.early.jumbos.push(jumbo);
            committer.early.metas.append(&mut written.into_metas());
        }
        committer.early.failed = false;
        Ok(Some(true))
    }

    /// Closes what the open commit covers so far, with trailers that prove nothing while the commit before is
    /// not durable.
    fn close_early(&self, committer: &mut Committer) -> (Closed, Before) {
        let store = self.durable_log();
        let mut parts = Vec::new();
        self.begin_closing();
        // As when a commit is closed, so that no segment is overlooked that is opened meanwhile.
        let rolling = self.streams.each_ref().map(|open| lock(&open.roll));
        let number = store.open_commit();
        // If the one before had failed, nothing would be written early.
        let is_settled = store.settled_commit() + 1 == number;
        let before = if is_settled { Before::Durable } else { Before::Unknown };
        let mut jumbos = lock(&store.new_jumbos).clone();
        jumbos.retain(|jumbo| !committer.early.jumbos.contains(jumbo));
        for stream in STREAMS {
            let open = self.streams[stream as usize].segment.load(Ordering::Acquire);
            let rolled = store.unsynced_segments(stream).into_iter().map(|number| (number, true));
            let segments = rolled.chain((open != 0).then_some((open, false)));
            let early = &committer.early.parts;
            parts.extend(
                segments
                    .filter_map(|(number, rolled)| {
                        self.close_part(number, stream, rolled, early.get(&number))
                    })
                    .filter(Part::is_new),
            );
        }
        drop(rolling);
        self.end_closing();
        if !jumbos.is_empty() || !parts.is_empty() {
            self.epochs.wait_for_appends();
            self.fill_covered_chunks();
        }
        for part in &parts {
            self.write_trailer(store, number, part, before);
            committer.early.parts.insert(part.segment, *part);
            if Rule::EarlySettlesNothing.is_broken() {
                self.settle_part(store, number, part.segment, part.to);
            }
        }
        (Closed { number, parts, jumbos, early: Early::default() }, before)
    }

    /// Makes one part of all that is not durable before `last`, which ends there: trailers within disappear. A
    /// sealed segment has no room for another trailer, so its last one stays to be written anew: then the
    /// answer is that part.
    pub(super) fn merge_parts(&self, store: &Store, last: &Part) -> Option<Part> {
        let segment = self.segment(last.segment);
        let frame = self.undurable_frame(last.segment);
        let from = segment.durable();
        if from == 0 {
            // SAFETY: the header is this thread's own, and nobody reads it.
            unsafe { store.reopen_segment(last.segment, segment, last.stream, frame) };
        }
        let end = last.to as usize - if last.sealed { TRAILER_BYTES } else { 0 };
        let layout = Layout { header: HEADER, key: 0, value: TRAILER_BYTES - HEADER };
        let seed = store.segment_seed(last.segment, segment.generation());
        let mut at = (from as usize).max(HEADER_BYTES);
        while at < end {
            let memory = frame.wrapping_add(at);
            // SAFETY: records are complete up to the end of the last trailer.
            let record = unsafe { Record::at(memory, || 0) };
            let (kind, size) = (record.kind(), record.size());
            if kind == Kind::Commit {
                // SAFETY: trailers are this thread's own, and nobody reads them.
                unsafe {
                    write_filler(memory, TRAILER_BYTES);
                    seal_record(memory, Kind::Filler, &layout, None, seed);
                }
            }
            at += size;
        }
        if last.sealed {
            return Some(Part { from, continues: false, ..*last });
        }
        segment.set_closed(from);
        None
    }
}
