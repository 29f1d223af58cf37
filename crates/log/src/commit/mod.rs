//! Group commit: everything reserved before a moment becomes durable with one sync.
//!
//! A commit is *closed* (a trailer is reserved behind the records so far, in both streams),
//! *written* and synced, and *settled* (marks move, waiters are notified). The next commit fills
//! while one is being written, so there is no fixed pause between commits: under load each takes as
//! many records as arrive during one sync.
//!
//! Invariants: one thread commits. A commit is closed only after the one before it has settled. So
//! a commit found on a device proves that all earlier ones were durable, unless everything found of
//! it was written [early](early), while the earlier commit was being synced. In a segment's place
//! every block is written once. An incomplete last block goes to one of several tail places, so no
//! write ever touches bytes that an earlier commit made durable.

pub mod dead_maps;
pub(crate) mod failed;
mod failure;
mod summaries;

mod early;

use crate::address::SegmentNumber;
use crate::commit::dead_maps::DeadMap;
use crate::commit::failure::Cut;
use crate::commit::summaries::Staged;
use crate::format::geometry::{TAIL_BYTES, TAIL_PLACES};
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::map_in;
use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use crate::format::{BLOCK, DurableEnd, Meta, Tail, Trailer, Use};
use crate::log::{Log, Stream, lock};
use crate::record::Record;
use crate::rule::Rule;
use crate::segment::Segment;
use crate::store::{Store, SuperblockWrite};
use early::Early;
use std::io;
use std::sync::atomic::Ordering;

const STREAMS: [Stream; 2] = [Stream::Hot, Stream::Survivors];

/// The part of a segment that one commit covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) segment: SegmentNumber,
    pub(crate) stream: Stream,
    from: u32,
    /// End of the trailer; if all of the part was written early, equal to `from`.
    pub(crate) to: u32,
    sealed: bool,
    /// True if an early part of the same commit precedes it.
    continues: bool,
}

impl Part {
    /// Returns true if the part has bytes that were not written early.
    fn is_new(&self) -> bool {
        self.to > self.from
    }
}

/// What a commit's trailers say about the commit before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// The commit before is durable.
    Durable,
    /// The commit before has failed.
    Failed,
    /// Nothing: the trailers are written early, while the commit before is being synced.
    Unknown,
}

/// The tail places of a stream that are still needed.
#[derive(Clone, Copy, Debug, Default)]
struct Tails {
    /// The place of the durable tail.
    durable: usize,
    /// The place of the tail that the running sync makes durable.
    syncing: usize,
    /// The place of the last tail written. If the process ends, it may hold the only copy of these
    /// bytes.
    last: usize,
}

impl Tails {
    /// Returns a free place for the next tail.
    fn next(&self) -> usize {
        if Rule::TailsAreKept.is_broken() {
            return 1 - self.last % 2;
        }
        let needed = [self.durable, self.syncing, self.last];
        let free = (0..TAIL_PLACES).find(|place| !needed.contains(place));
        free.expect("there are more places than are needed at once")
    }

    /// Forgets the tails that were written and are not durable.
    fn forget(&mut self) {
        (self.syncing, self.last) = (self.durable, self.durable);
    }
}

/// A closed commit: what it covers is complete and no longer changes.
#[derive(Debug)]
pub struct Closed {
    /// The commit's number.
    pub number: u64,
    parts: Vec<Part>,
    jumbos: Vec<SegmentNumber>,
    /// The parts and jumbos of it that were written early.
    early: Early,
}

/// The state of the committing thread.
#[derive(Debug)]
pub struct Committer {
    /// One per stream.
    tails: [Tails; 2],
    buffer: Box<[u8; TAIL_BYTES]>,
    pub(crate) maps: Vec<DeadMap>,
    /// Durable dead maps of segments that may still be cut. Cutting rewrites the meta and must
    /// repeat the map, because other segments were freed on the strength of it.
    pub(crate) last_maps: Vec<DeadMap>,
    pub(crate) cuts: Vec<Cut>,
    /// Summaries of durable segments, to be written with the next commit.
    pub(crate) summaries: Vec<Staged>,
    /// Ends of segments whose commit failed after it was acknowledged. They belong to the next
    /// commit.
    again: Vec<Part>,
    /// What was written early for the open commit.
    early: Early,
    /// For the commit being synced: the number of failed syncs before its first write.
    syncing: Option<u64>,
    /// True if the last written commit failed. Its remains are on the device under its number.
    pub(crate) after_failure: bool,
    /// True if a commit that is written again may have left stale tails, with withdrawn trailers,
    /// in the other tail places of each stream.
    stale_tails: bool,
}

/// What a commit wrote besides records.
#[derive(Debug, Default)]
pub struct Written {
    pub(crate) freed: Vec<SegmentNumber>,
    /// Segments whose metas were written, with the metas' versions.
    metas: Vec<(SegmentNumber, u64)>,
    superblock: Option<SuperblockWrite>,
    /// Segments whose dead maps were written, with the segments' generations.
    pub(crate) mapped: Vec<(SegmentNumber, u32)>,
    /// Summaries of the segments that the commit sealed.
    summaries: Vec<Staged>,
    tails: [usize; 2],
    /// Number of failed syncs before the commit's first write.
    failed_syncs: u64,
}

impl Written {
    /// Returns the segments whose metas were written, with the metas' versions.
    pub(crate) fn into_metas(self) -> Vec<(SegmentNumber, u64)> {
        self.metas
    }
}

impl Default for Committer {
    fn default() -> Self {
        Committer {
            tails: Default::default(),
            buffer: Box::new([0; TAIL_BYTES]),
            maps: Vec::new(),
            last_maps: Vec::new(),
            cuts: Vec::new(),
            summaries: Vec::new(),
            again: Vec::new(),
            early: Early::default(),
            syncing: None,
            after_failure: false,
            stale_tails: false,
        }
    }
}

impl Committer {
    /// Queues dead maps, to be written once the deaths they mark are durable.
    pub fn stage_all(&mut self, maps: &mut Vec<DeadMap>) {
        self.maps.append(maps);
    }

    /// Returns what the trailers of a closing commit say about the one before it.
    fn before(&self) -> Before {
        if self.after_failure { Before::Failed } else { Before::Durable }
    }

    /// Returns the durable dead map of a segment that is being cut, if it has one.
    pub(crate) fn last_map(&self, segment: SegmentNumber, generation: u32) -> Option<&[u8]> {
        let map = self
            .last_maps
            .iter()
            .find(|map| map.begun().segment == segment && map.begun().generation == generation);
        map.map(DeadMap::bits)
    }

    /// Forgets writes that are not durable. They are repeated or given up.
    pub(crate) fn forget_writes(&mut self) {
        self.after_failure = true;
        self.syncing = None;
        self.tails.iter_mut().for_each(Tails::forget);
    }
}

impl Closed {
    /// Returns true if the commit covers no record.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.jumbos.is_empty()
    }

    /// Returns the segments of its parts and its jumbos.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentNumber> {
        self.parts.iter().map(|part| part.segment).chain(self.jumbos.iter().copied())
    }

    /// Returns the bytes of segments that the commit covers and that were not written early,
    /// without jumbos.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.to - part.from)).sum()
    }
}

impl Log {
    pub(crate) fn durable_log(&self) -> &Store {
        self.store.as_ref().expect("only a log with a store is committed")
    }

    /// Closes the open commit. On return every record it covers is filled and published, and new
    /// records belong to the next commit.
    pub fn close_commit(&self, committer: &mut Committer) -> Closed {
        self.close(committer, false)
    }

    /// Like [`Log::close_commit`], but makes the streams continue in other segments.
    pub fn close_and_leave(&self, committer: &mut Committer) -> Closed {
        self.close(committer, true)
    }

    fn close(&self, committer: &mut Committer, leave: bool) -> Closed {
        let store = self.durable_log();
        let mut parts = std::mem::take(&mut committer.again);
        let early = std::mem::take(&mut committer.early);
        self.begin_closing();
        // A thread that opens a segment reads the commit number and registers the segment under one
        // of these locks. So every segment found here was opened before the next commit, and every
        // other one belongs to that.
        let rolling = self.streams.each_ref().map(|open| lock(&open.roll));
        let (number, jumbos) = {
            let mut new_jumbos = lock(&store.new_jumbos);
            // First the number, then the trailers: a record behind a trailer is never counted to
            // that commit. A record in front of it may be counted to the next one, which is late
            // but correct.
            let number = store.open_commit.fetch_add(1, Ordering::AcqRel);
            (number, std::mem::take(&mut *new_jumbos))
        };
        for stream in STREAMS {
            let open = &self.streams[stream as usize];
            for segment in store.take_unsynced(stream) {
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
        for part in &parts {
            self.segment(part.segment).set_closed(part.to);
        }
        for &jumbo in &jumbos {
            let segment = self.segment(jumbo);
            segment.set_closed(segment.filled());
        }
        drop(rolling);
        self.end_closing();
        store.closed_commit.store(number, Ordering::Release);
        if !Rule::WaitForAppends.is_broken() {
            self.epochs.wait_for_appends();
        }
        self.fill_covered_chunks();
        for part in parts.iter().filter(|part| part.is_new()) {
            self.write_trailer(store, number, part, committer.before());
        }
        Closed { number, parts, jumbos, early }
    }

    /// Reserves the trailer for the new bytes of a segment, behind the part that was written
    /// `early`.
    fn close_part(
        &self,
        number: SegmentNumber,
        stream: Stream,
        rolled: bool,
        early: Option<&Part>,
    ) -> Option<Part> {
        let entry = self.durable_log().entry(number);
        let nothing = early.map(|early| Part { from: early.to, ..*early });
        if entry.sealed.load(Ordering::Acquire) {
            return nothing;
        }
        let segment = self.segment(number);
        let from = early.map_or_else(|| segment.closed(), |early| early.to);
        let begun = if from == 0 { HEADER_BYTES as u32 } else { from };
        if !rolled && segment.filled() == begun {
            return nothing;
        }
        // There must be room for another trailer behind this one.
        let trailer = TRAILER_BYTES as u32;
        let at = if rolled { None } else { segment.reserve(trailer, trailer) };
        let sealed = at.is_none();
        let at = at.unwrap_or_else(|| segment.seal_with(TRAILER_BYTES as u32));
        if sealed {
            entry.sealed.store(true, Ordering::Release);
        }
        let to = at + TRAILER_BYTES as u32;
        segment.kill(TRAILER_BYTES);
        Some(Part { segment: number, stream, from, to, sealed, continues: early.is_some() })
    }

    /// Returns the frame of a segment that is not yet entirely durable.
    ///
    /// # Panics
    /// If the segment has no frame: acknowledged data would be lost with it.
    pub(crate) fn undurable_frame(&self, number: SegmentNumber) -> *mut u8 {
        let frame = self.segment(number).frame();
        assert!(!frame.is_null(), "segment {number} lost its frame before it was durable");
        frame
    }

    fn write_trailer(&self, store: &Store, commit: u64, part: &Part, before: Before) {
        let segment = self.segment(part.segment);
        let trailer = Trailer {
            length: part.to - part.from - TRAILER_BYTES as u32,
            sealed: part.sealed,
            continues: part.continues,
            ..new_trailer(store, segment, commit, before)
        };
        let seed = store.segment_seed(part.segment, trailer.generation);
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

    /// Writes a closed commit, and the cuts, maps, summaries and marks that are due with it.
    ///
    /// # Errors
    /// Those of the device. Then nothing of the commit may be taken for durable, and it must be
    /// given to [`Log::fail_commits`].
    pub fn write_commit(&self, committer: &mut Committer, closed: &Closed) -> io::Result<Written> {
        let store = self.durable_log();
        let failed_syncs = closed.early.failed_syncs(store);
        let metas = closed.early.metas.clone();
        let mut written = Written { metas, failed_syncs, ..Written::default() };
        self.write_cuts(store, committer, &mut written)?;
        self.write_maps(store, committer, &mut written)?;
        self.write_summaries(store, committer);
        for part in &closed.early.unwritten {
            self.write_part(store, committer, closed.number, part, Store::write_directly)?;
        }
        for part in &closed.parts {
            if part.is_new() {
                self.write_part(store, committer, closed.number, part, Store::write_directly)?;
            }
            if part.sealed {
                written.summaries.extend(self.summarize(store, part));
            }
        }
        for jumbo in closed.jumbos.iter().filter(|jumbo| !closed.early.jumbos.contains(jumbo)) {
            self.write_jumbo(store, &mut written, closed.number, *jumbo, committer.before())?;
        }
        if committer.stale_tails {
            self.clear_stale_tails(store, committer)?;
        }
        for (tails, written) in committer.tails.iter_mut().zip(&mut written.tails) {
            tails.syncing = tails.last;
            *written = tails.last;
        }
        self.write_free_marks(store, &mut written)?;
        written.superblock = store.write_changed_superblock()?;
        committer.syncing = Some(failed_syncs);
        Ok(written)
    }

    /// Makes a written commit durable. Early writes made meanwhile do not belong to it.
    ///
    /// # Errors
    /// As [`Log::write_commit`].
    pub fn sync_commit(&self, written: &Written) -> io::Result<()> {
        self.durable_log().sync(written.failed_syncs)
    }

    /// Clears tail places that hold neither a durable tail nor one written by this commit.
    fn clear_stale_tails(&self, store: &Store, committer: &Committer) -> io::Result<()> {
        for (stream, tails) in committer.tails.iter().enumerate() {
            let stale = |place: &usize| ![tails.durable, tails.last].contains(place);
            for place in (0..TAIL_PLACES).filter(stale) {
                store.write(store.geometry.tail_place(stream, place), &[0; BLOCK])?;
            }
        }
        Ok(())
    }

    /// Writes whole blocks in place with `write`, and the rest of an open segment to a tail place
    /// of its stream.
    fn write_part(
        &self,
        store: &Store,
        committer: &mut Committer,
        commit: u64,
        part: &Part,
        write: fn(&Store, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let segment = self.segment(part.segment);
        let first = part.from as usize / BLOCK * BLOCK;
        let to = part.to as usize;
        let whole = if part.sealed { to.next_multiple_of(BLOCK) } else { to / BLOCK * BLOCK };
        let place = store.geometry.segment(part.segment);
        let frame = self.undurable_frame(part.segment);
        if whole > first {
            // SAFETY: bytes below the part's end are complete and never change; behind the end of a
            // sealed segment nothing is written any more.
            let blocks = unsafe { std::slice::from_raw_parts(frame.add(first), whole - first) };
            write(store, place + first as u64, blocks)?;
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
            tail.encode(data, &store.identity, &mut committer.buffer);
            let place = store.geometry.tail_place(part.stream as usize, which);
            store.write(place, &committer.buffer[..])?;
            committer.tails[part.stream as usize].last = which;
        }
        Ok(())
    }

    /// Writes a jumbo's header, record and trailer, cut into its places.
    fn write_jumbo(
        &self,
        store: &Store,
        written: &mut Written,
        commit: u64,
        number: SegmentNumber,
        before: Before,
    ) -> io::Result<()> {
        let segment = self.segment(number);
        let size = segment.filled() as usize;
        let parts = store.parts(number);
        let trailer = Trailer {
            length: (RECORD_AT + size) as u32,
            sealed: true,
            ..new_trailer(store, segment, commit, before)
        };
        let seed = store.segment_seed(number, trailer.generation);
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
        for (piece, place) in image.chunks(self.segment_size()).zip(store.places(number)) {
            store.write(store.geometry.segment(place), piece)?;
        }
        for (index, &part) in parts.iter().enumerate() {
            let usage = Use::Part {
                owner: number,
                owner_generation: segment.generation(),
                index: index as u32 + 1,
            };
            self.write_meta(store, written, part, usage, commit, None)?;
        }
        store.entry(number).sealed.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes a segment's meta over the older of its two copies.
    pub(crate) fn write_meta(
        &self,
        store: &Store,
        written: &mut Written,
        number: SegmentNumber,
        usage: Use,
        cover: u64,
        dead: Option<&[u8]>,
    ) -> io::Result<()> {
        let version = store.entry(number).meta_version.load(Ordering::Relaxed) + 1;
        let generation = self.segment(number).generation();
        let meta = Meta { version, cover, generation, usage };
        let map = dead.map_or(0, <[u8]>::len);
        let mut bytes = vec![0; Meta::encoded_bytes(map)];
        if let Some(dead) = dead {
            map_in(&mut bytes, map).copy_from_slice(dead);
        }
        meta.encode(number, map, &store.identity, &mut bytes);
        written.metas.push((number, version));
        store.write(store.geometry.meta(number, meta.copy()), &bytes)
    }

    /// Settles a commit that was written and synced: moves its marks.
    pub fn settle_commit(&self, committer: &mut Committer, closed: &Closed, written: Written) {
        let store = self.durable_log();
        for (tails, durable) in committer.tails.iter_mut().zip(written.tails) {
            tails.durable = durable;
            tails.syncing = durable;
        }
        committer.summaries = written.summaries;
        committer.syncing = None;
        committer.after_failure = false;
        committer.stale_tails = false;
        for cut in committer.cuts.drain(..) {
            store.entry(cut.segment).cutting.store(false, Ordering::Release);
        }
        self.settle_records(store, closed);
        for (number, version) in written.metas {
            store.entry(number).meta_version.store(version, Ordering::Relaxed);
        }
        if let Some(superblock) = written.superblock {
            store.settle_superblock(superblock);
        }
        self.settle_maps(store, committer, &written.mapped);
        if !written.freed.is_empty() {
            let mut quarantine = lock(&self.quarantine);
            for number in written.freed {
                if quarantine.mark(number) {
                    store.settle_free(number);
                    let filled = u64::from(self.segment(number).filled());
                    store.work.freed.fetch_add(filled, Ordering::Relaxed);
                    self.end_evicting();
                }
            }
        }
        store.settle(closed.number);
    }

    fn settle_records(&self, store: &Store, commit: &Closed) {
        let mut ends = lock(&store.durable_ends);
        for part in &commit.parts {
            self.settle_part(store, commit.number, part.segment, part.to);
            ends[part.stream as usize] = DurableEnd { segment: part.segment, offset: part.to };
        }
        drop(ends);
        for &jumbo in &commit.jumbos {
            self.settle_part(store, commit.number, jumbo, self.segment(jumbo).filled());
        }
    }

    fn settle_part(&self, store: &Store, commit: u64, number: SegmentNumber, end: u32) {
        let segment: &Segment = self.segment(number);
        segment.set_closed(end);
        segment.set_durable(end);
        store.entry(number).last_commit.store(commit, Ordering::Relaxed);
    }

    /// Settles a commit that covered nothing and had nothing to write.
    pub fn settle_idle(&self, closed: &Closed) {
        self.durable_log().settle(closed.number);
    }

    /// Keeps an acknowledged commit that could not be written: its records, and the early writes of
    /// the commit after it, become part of the next commit and are written from memory. All their
    /// trailers must disappear, because a later commit found behind one would prove that the failed
    /// commit was durable. Waiters are told that the commit failed.
    pub fn retry_commit(&self, committer: &mut Committer, closed: Closed) {
        let store = self.durable_log();
        committer.forget_writes();
        committer.stale_tails = true;
        let mut next = std::mem::take(&mut committer.early).parts;
        for part in closed.parts {
            let last = next.remove(&part.segment).unwrap_or(part);
            committer.again.extend(self.merge_parts(store, &last));
        }
        for last in next.values() {
            committer.again.extend(self.merge_parts(store, last));
        }
        for &jumbo in &closed.jumbos {
            let header = self.segment(jumbo).frame().wrapping_sub(HEADER_BYTES);
            // SAFETY: the header is this thread's own, and no other thread reads it.
            unsafe { store.reopen_segment(jumbo, self.segment(jumbo), Stream::Hot, header) };
        }
        lock(&store.new_jumbos).extend(closed.jumbos);
        store.settle_failed(closed.number);
    }

    /// Returns true if a commit without new records would still have something to write.
    pub fn has_commit_work(&self, committer: &Committer) -> bool {
        let store = self.durable_log();
        lock(&store.changing).wants_write()
            || !committer.cuts.is_empty()
            || !committer.again.is_empty()
            || self.has_maps_to_write(store, committer)
            || !self.freeable(store).is_empty()
    }

    /// Returns the bytes of segments that are not durable.
    pub fn unsynced_bytes(&self) -> u64 {
        let Some(store) = &self.store else { return 0 };
        let undurable = |number: SegmentNumber| {
            let segment = self.segment(number);
            u64::from(segment.filled().saturating_sub(segment.durable()))
        };
        let mut bytes = 0;
        for stream in STREAMS {
            let open = self.streams[stream as usize].segment.load(Ordering::Acquire);
            if open != 0 {
                bytes += undurable(open);
            }
            bytes += store.unsynced_segments(stream).into_iter().map(undurable).sum::<u64>();
        }
        bytes += lock(&store.new_jumbos).iter().map(|&number| undurable(number)).sum::<u64>();
        bytes
    }
}

/// Returns a commit's trailer for a segment, covering nothing yet.
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

#[cfg(all(test, loom))]
mod loom_tests;
