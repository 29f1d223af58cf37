//! Early writes: the records of the open commit go to the device before the commit is closed,
//! without a sync. So a crash of only the process loses little, even if syncs are rare or slow.
//!
//! Invariants: an early write makes nothing count as durable. Everything that needs durable records
//! waits until the commit has settled. Only then are frames dropped and places reused, and only
//! then do clients' changes count as durable. The commit's sync covers all early writes made for
//! the commit. A trailer that is written early while the previous commit is being synced proves
//! nothing about that commit. If an early write fails, the commit repeats it.

use crate::append::Stream;
use crate::commit::committer::{Before, Closed, Committer, Early, SegmentPart, Written};
use crate::format::seal_record;
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::log::DurableLog;
use crate::record::{HEADER, Kind, Layout, Record, write_filler};
use crate::rule::Rule;
use crate::store::Store;
use crate::sync::lock;
use std::io;
use std::sync::atomic::Ordering;

impl DurableLog<'_> {
    /// Writes the records that were reserved before this call and that no closed commit covers.
    /// Returns `Some(true)` if it wrote any, and `Some(false)` if there were none. Returns `None`
    /// if a failure has left these records to the next commit. May be called while a commit is
    /// being synced.
    ///
    /// # Errors
    /// Those of the device. The next commit then repeats the write.
    pub fn write_early(self, committer: &mut Committer) -> io::Result<Option<bool>> {
        let early = &mut committer.early;
        // After a failure the next commit writes everything from memory.
        if committer.after_failure || early.failed {
            return Ok(None);
        }
        let failed_syncs = self.store.failed_syncs();
        let began = early.failed_syncs.unwrap_or(failed_syncs);
        let syncing = committer.syncing.unwrap_or(failed_syncs);
        if began != failed_syncs || syncing != failed_syncs {
            // A sync has failed since the first early write of the open commit, or since the first
            // write of the commit being synced. In the first case, the device may have lost early
            // writes, so the open commit will fail even if its own sync succeeds. In the second
            // case, the commit being synced will fail. The open commit then fails too (sync mode),
            // or repeats its early writes (async mode). So early writes are useless in both cases.
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
            // Writes to the page cache, which outlives the process. Such a write does not wait for
            // a running sync.
            self.write_part(committer, number, part, Store::write)?;
        }
        committer.early.unwritten.clear();
        for jumbo in jumbos {
            let mut written = Written::default();
            self.write_jumbo(&mut written, number, jumbo, before)?;
            committer.early.jumbos.push(jumbo);
            committer.early.metas.append(&mut written.into_metas());
        }
        committer.early.failed = false;
        Ok(Some(true))
    }

    /// In each segment, reserves and writes a trailer behind the records that the open commit has
    /// so far. While the previous commit is not durable, these trailers are marked as early and
    /// prove nothing about it.
    fn close_early(self, committer: &mut Committer) -> (Closed, Before) {
        let mut parts = Vec::new();
        self.begin_closing();
        // Takes the locks under which threads open segments, as `close` does. So no thread opens a
        // segment while this function looks for all of them.
        let rolling = self.streams.each_ref().map(|open| lock(&open.roll));
        let number = self.store.commits.open();
        // The previous commit has not failed: after a failure, `write_early` does not call this
        // function.
        let is_settled = self.store.commits.settled() + 1 == number;
        let before = if is_settled { Before::Durable } else { Before::Unknown };
        let mut jumbos = lock(&self.store.new_jumbos).clone();
        jumbos.retain(|jumbo| !committer.early.jumbos.contains(jumbo));
        for stream in Stream::ALL {
            let open = self.streams[stream as usize].segment.load(Ordering::Acquire);
            let rolled =
                self.store.unsynced_segments(stream).into_iter().map(|number| (number, true));
            let segments = rolled.chain((open != 0).then_some((open, false)));
            let early = &committer.early.parts;
            parts.extend(
                segments
                    .filter_map(|(number, rolled)| {
                        self.close_part(number, stream, rolled, early.get(&number))
                    })
                    .filter(SegmentPart::is_new),
            );
        }
        for part in &parts {
            self.store.entry(part.segment).early.store(part.to, Ordering::Release);
        }
        drop(rolling);
        self.end_closing();
        if !jumbos.is_empty() || !parts.is_empty() {
            self.epochs.wait_for_appends();
            self.fill_covered_chunks();
        }
        for part in &parts {
            self.write_trailer(number, part, before);
            committer.early.parts.insert(part.segment, *part);
            if Rule::EarlySettlesNothing.is_broken() {
                self.settle_part(number, part.segment, part.to);
            }
        }
        (Closed { number, parts, jumbos, early: Early::default() }, before)
    }

    /// Merges all un-durable bytes of a segment up to the end of `last` into one part: turns the
    /// trailers among these bytes into fillers. In an open segment, the next commit reserves a new
    /// trailer for the part, and this function returns `None`. A sealed segment has no room for
    /// another trailer. So the merged part keeps its last trailer, which the next commit rewrites,
    /// and this function returns the part.
    pub(super) fn merge_parts(self, last: &SegmentPart) -> Option<SegmentPart> {
        let segment = self.segment(last.segment);
        let frame = self.undurable_frame(last.segment);
        let from = segment.durable();
        if from == 0 {
            // SAFETY: the header is this thread's own, and no other thread reads it.
            unsafe { self.store.reopen_segment(last.segment, segment, last.stream, frame) };
        }
        let end = last.to as usize - if last.sealed { TRAILER_BYTES } else { 0 };
        let layout = Layout { header: HEADER, key: 0, value: TRAILER_BYTES - HEADER };
        let seed = self.store.segment_seed(last.segment, segment.generation());
        let mut at = (from as usize).max(HEADER_BYTES);
        while at < end {
            let memory = frame.wrapping_add(at);
            // SAFETY: records are complete up to the end of the last trailer.
            let record = unsafe { Record::at(memory, || 0) };
            let (kind, size) = (record.kind(), record.size());
            if kind == Kind::Commit {
                // SAFETY: trailers are this thread's own, and no other thread reads them.
                unsafe {
                    write_filler(memory, TRAILER_BYTES);
                    seal_record(memory, Kind::Filler, &layout, None, seed);
                }
            }
            at += size;
        }
        if last.sealed {
            return Some(SegmentPart { from, continues: false, ..*last });
        }
        segment.set_closed(from);
        None
    }
}
