//! Writes a commit to the device: its parts, its jumbos, and the metas that must be written with
//! it.

use crate::address::SegmentNumber;
use crate::commit::committer::{Before, Closed, Committer, SegmentPart, Written};
use crate::format::geometry::TAIL_PLACES;
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::map_in;
use crate::format::segment::TRAILER_BYTES;
use crate::format::{BLOCK, Meta, Tail, Trailer, Use};
use crate::log::DurableLog;
use crate::record::Record;
use crate::segment::Segment;
use crate::store::Store;
use crate::sync::lock;
use std::io;
use std::sync::atomic::Ordering;

impl DurableLog<'_> {
    pub(super) fn write_trailer(self, commit: u64, part: &SegmentPart, before: Before) {
        let segment = self.segment(part.segment);
        let trailer = Trailer {
            length: part.to - part.from - TRAILER_BYTES as u32,
            sealed: part.sealed,
            continues: part.continues,
            ..new_trailer(self.store, segment, commit, before)
        };
        let seed = self.store.segment_seed(part.segment, trailer.generation);
        let from = part.from as usize;
        let at = part.to as usize - TRAILER_BYTES;
        let end = if part.sealed {
            (part.to as usize).next_multiple_of(BLOCK)
        } else {
            at + TRAILER_BYTES
        };
        let frame = self.undurable_frame(part.segment);
        // SAFETY: bytes below the trailer are filled and never change. The trailer, and in a sealed
        // segment everything behind it, belongs to this thread. The frame of an un-durable segment
        // stays.
        unsafe {
            let covered = std::slice::from_raw_parts(frame.add(from), at - from);
            let own = std::slice::from_raw_parts_mut(frame.add(at), end - at);
            own[..TRAILER_BYTES].copy_from_slice(&trailer.encode(covered, seed));
            own[TRAILER_BYTES..].fill(0);
        }
    }

    /// Writes a closed commit, with the cuts, dead maps, summaries and free marks that are due.
    ///
    /// # Errors
    /// Those of the device. Then nothing of the commit may count as durable, and the caller must
    /// give it to [`DurableLog::fail_commits`] or [`DurableLog::retry_commit`].
    pub fn write_commit(self, committer: &mut Committer, closed: &Closed) -> io::Result<Written> {
        let failed_syncs = closed.early.failed_syncs(self.store);
        let metas = closed.early.metas.clone();
        let mut written = Written { metas, failed_syncs, ..Written::default() };
        self.write_cuts(committer, &mut written)?;
        self.write_maps(committer, &mut written)?;
        self.write_summaries(committer);
        for part in &closed.early.unwritten {
            self.write_part(committer, closed.number, part, Store::write_directly)?;
        }
        for part in &closed.parts {
            if part.is_new() {
                self.write_part(committer, closed.number, part, Store::write_directly)?;
            }
            if part.sealed {
                written.summaries.extend(self.summarize(part));
            }
        }
        for jumbo in closed.jumbos.iter().filter(|jumbo| !closed.early.jumbos.contains(jumbo)) {
            self.write_jumbo(&mut written, closed.number, *jumbo, committer.before())?;
        }
        if committer.stale_tails {
            self.clear_stale_tails(committer)?;
        }
        for (tails, written) in committer.tails.iter_mut().zip(&mut written.tails) {
            tails.syncing = tails.last;
            *written = tails.last;
        }
        self.write_free_marks(&mut written)?;
        written.superblock = self.store.write_changed_superblock()?;
        committer.syncing = Some(failed_syncs);
        Ok(written)
    }

    /// Makes a written commit durable. Early writes made meanwhile belong to the next commit.
    ///
    /// # Errors
    /// As [`DurableLog::write_commit`].
    pub fn sync_commit(self, written: &Written) -> io::Result<()> {
        self.store.sync(written.failed_syncs)
    }

    /// Clears the tail places that hold neither a durable tail nor a tail written by this commit.
    pub(super) fn clear_stale_tails(self, committer: &Committer) -> io::Result<()> {
        for (stream, tails) in committer.tails.iter().enumerate() {
            let stale = |place: &usize| ![tails.durable, tails.last].contains(place);
            for place in (0..TAIL_PLACES).filter(stale) {
                self.store.write(self.store.geometry.tail_place(stream, place), &[0; BLOCK])?;
            }
        }
        Ok(())
    }

    /// Writes the part's whole blocks in place with `write`. Writes the incomplete last block of an
    /// open segment to a tail place of its stream.
    pub(super) fn write_part(
        self,
        committer: &mut Committer,
        commit: u64,
        part: &SegmentPart,
        write: fn(&Store, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let segment = self.segment(part.segment);
        let first = part.from as usize / BLOCK * BLOCK;
        let to = part.to as usize;
        let whole = if part.sealed { to.next_multiple_of(BLOCK) } else { to / BLOCK * BLOCK };
        let place = self.store.geometry.segment(part.segment);
        let frame = self.undurable_frame(part.segment);
        if whole > first {
            // SAFETY: bytes below the part's end are complete and never change; behind the end of a
            // sealed segment nothing is written any more.
            let blocks = unsafe { std::slice::from_raw_parts(frame.add(first), whole - first) };
            write(self.store, place + first as u64, blocks)?;
        }
        if whole < to {
            let which = committer.tails[part.stream as usize].next();
            // SAFETY: as above.
            let data = unsafe { std::slice::from_raw_parts(frame.add(whole), to - whole) };
            let tail = Tail {
                stream: part.stream as u8,
                segment: part.segment,
                generation: segment.generation(),
                offset: whole as u32,
                commit,
            };
            tail.encode(data, &self.store.identity, &mut committer.buffer);
            let place = self.store.geometry.tail_place(part.stream as usize, which);
            self.store.write(place, &committer.buffer[..])?;
            committer.tails[part.stream as usize].last = which;
        }
        Ok(())
    }

    /// Writes a jumbo's header, record and trailer, divided among its places.
    pub(super) fn write_jumbo(
        self,
        written: &mut Written,
        commit: u64,
        number: SegmentNumber,
        before: Before,
    ) -> io::Result<()> {
        let segment = self.segment(number);
        let size = segment.filled() as usize;
        let parts = self.store.parts(number);
        let trailer = Trailer {
            length: (RECORD_AT + size) as u32,
            sealed: true,
            ..new_trailer(self.store, segment, commit, before)
        };
        let seed = self.store.segment_seed(number, trailer.generation);
        // SAFETY: the record is complete and never changes.
        let record = unsafe { Record::at(segment.frame(), || segment.jumbo_value()) };
        let value_at = RECORD_AT + record.layout().value_offset();
        // SAFETY: the mapping has room for the header in front of the record and for the trailer
        // behind it, see `JUMBO_HEADROOM`. The record never changes; the rest belongs to this
        // thread.
        let image = unsafe {
            let base = segment.frame().sub(RECORD_AT);
            let covered = std::slice::from_raw_parts(base, value_at);
            let own = base.add(RECORD_AT + size);
            own.copy_from_nonoverlapping(trailer.encode(covered, seed).as_ptr(), TRAILER_BYTES);
            std::slice::from_raw_parts(base, RECORD_AT + size + TRAILER_BYTES)
        };
        for (piece, place) in image.chunks(self.segment_size()).zip(self.store.places(number)) {
            self.store.write(self.store.geometry.segment(place), piece)?;
        }
        for (index, &part) in parts.iter().enumerate() {
            let usage = Use::Part {
                owner: number,
                owner_generation: segment.generation(),
                index: index as u32 + 1,
            };
            self.write_meta(written, part, usage, commit, None)?;
        }
        self.store.entry(number).sealed.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes a segment's meta over the older of its two copies.
    pub(crate) fn write_meta(
        self,
        written: &mut Written,
        number: SegmentNumber,
        usage: Use,
        cover: u64,
        dead: Option<&[u8]>,
    ) -> io::Result<()> {
        let version = self.store.entry(number).meta_version.load(Ordering::Relaxed) + 1;
        let generation = self.segment(number).generation();
        let meta = Meta { version, cover, generation, usage };
        let map = dead.map_or(0, <[u8]>::len);
        let mut bytes = vec![0; Meta::encoded_bytes(map)];
        if let Some(dead) = dead {
            map_in(&mut bytes, map).copy_from_slice(dead);
        }
        meta.encode(number, map, &self.store.identity, &mut bytes);
        written.metas.push((number, version));
        self.store.write(self.store.geometry.meta(number, meta.copy()), &bytes)
    }

    /// Returns the frame of a segment that is not yet entirely durable.
    ///
    /// # Panics
    /// If the segment has no frame. Then the data that is not durable would be lost.
    pub(crate) fn undurable_frame(self, number: SegmentNumber) -> *mut u8 {
        let frame = self.segment(number).frame();
        assert!(!frame.is_null(), "segment {number} lost its frame before it was durable");
        frame
    }
}

/// Returns a trailer of a commit for a segment. The trailer's length is still 0: it covers no bytes
/// yet.
fn new_trailer(store: &Store, segment: &Segment, commit: u64, before: Before) -> Trailer {
    Trailer {
        generation: segment.generation(),
        length: 0,
        commit,
        durable: *lock(&store.durable_ends),
        seq_limit: store.superblock().seq_limit,
        sealed: false,
        after_failure: before == Before::Failed,
        early: before == Before::Unknown,
        continues: false,
    }
}
