//! Group commit: everything that was reserved before a moment becomes durable with one sync.
//!
//! A commit is *closed* (a trailer is reserved behind what was reserved so far, in both streams),
//! *written* and synced, and *settled* (marks move, whoever waits is told). While one commit is
//! written the next one fills, so there is no fixed pause between commits: under load each takes
//! as many records as arrive during one sync.
//!
//! Invariants: one thread commits. A commit is closed only after the one before it was settled, so a
//! commit that is seen on a device proves that all before it were durable, unless all that is seen of
//! it was written [early](early), beside the sync of that one. In place, every block of a segment is written once; what does not fill a block yet goes to one of several tail
//! places, so no write ever touches bytes that an earlier commit made durable.

mod early;

use crate::address::SegmentNumber;
use crate::cover::DeadMap;
use crate::failure::Cut;
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
use crate::summarize::Staged;
use early::Early;
use std::io;
use std::sync::atomic::Ordering;

const STREAMS: [Stream; 2] = [Stream::Hot, Stream::Survivors];

/// A part of a segment that one commit covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) segment: SegmentNumber,
    pub(crate) stream: Stream,
    from: u32,
    /// Behind the trailer; where it begins if all of it was written early.
    pub(crate) to: u32,
    sealed: bool,
    /// In front of it lies an early part of the same commit.
    continues: bool,
}

impl Part {
    /// Whether there is something in it that was not written early.
    fn is_new(&self) -> bool {
        self.to > self.from
    }
}

/// What the trailers of a commit know of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// It is durable.
    Durable,
    /// It has failed.
    Failed,
    /// Nothing: they are early, and its sync is under way.
    Unknown,
}

/// Which of a stream's tail places hold what is still needed.
#[derive(Clone, Copy, Debug, Default)]
struct Tails {
    /// What is durable.
    durable: usize,
    /// What the sync that is under way makes durable.
    syncing: usize,
    /// What was written last: nothing else may have it if the process ends.
    last: usize,
}

impl Tails {
    /// A place for the next tail.
    fn next(&self) -> usize {
        if Rule::TailsAreKept.is_broken() {
            return 1 - self.last % 2;
        }
        let needed = [self.durable, self.syncing, self.last];
        let free = (0..TAIL_PLACES).find(|place| !needed.contains(place));
        free.expect("there are more places than are needed at once")
    }

    /// What was written and is not durable is not needed any more.
    fn forget(&mut self) {
        (self.syncing, self.last) = (self.durable, self.durable);
    }
}

/// A commit that is closed: what it covers is complete and no longer changes.
#[derive(Debug)]
pub struct Closed {
    /// Its number.
    pub number: u64,
    parts: Vec<Part>,
    jumbos: Vec<SegmentNumber>,
    /// What of it was written early.
    early: Early,
}

/// The committer's own state.
#[derive(Debug)]
pub struct Committer {
    /// Of each stream.
    tails: [Tails; 2],
    buffer: Box<[u8; TAIL_BYTES]>,
    pub(crate) maps: Vec<DeadMap>,
    /// Durable dead maps of segments that may still be cut, whose metas are then written anew. Segments were
    /// freed because of what they say.
    pub(crate) last_maps: Vec<DeadMap>,
    pub(crate) cuts: Vec<Cut>,
    /// Of segments that are durable.
    pub(crate) summaries: Vec<Staged>,
    /// Ends of segments whose commit failed although it was acknowledged: they belong to the next.
    again: Vec<Part>,
    /// What was written early for the open commit.
    early: Early,
    /// Of the commit whose sync is under way: how many syncs had failed before its first write.
    syncing: Option<u64>,
    /// The last commit that was written failed: its remains are on the device under its number.
    pub(crate) after_failure: bool,
    /// A commit that is written again may have left tails in each stream's other places, with
    /// trailers that are none any more.
    stale_tails: bool,
}

/// What a commit wrote beside records.
#[derive(Debug, Default)]
pub struct Written {
    pub(crate) freed: Vec<SegmentNumber>,
    /// Segments whose metas were written, and the versions of these.
    metas: Vec<(SegmentNumber, u64)>,
    superblock: Option<SuperblockWrite>,
    /// Segments whose dead maps were written, and which use of them.
    pub(crate) mapped: Vec<(SegmentNumber, u32)>,
    /// Of segments that it sealed.
    summaries: Vec<Staged>,
    tails: [usize; 2],
    /// How many syncs had failed before its first write.
    failed_syncs: u64,
}

impl Written {
    /// Segments whose metas were written, and the versions of these.
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
    /// Dead maps to be written once what they say is durable.
    pub fn stage_all(&mut self, maps: &mut Vec<DeadMap>) {
        self.maps.append(maps);
    }

    /// What a commit that ends knows of the one before it.
    fn before(&self) -> Before {
        if self.after_failure { Before::Failed } else { Before::Durable }
    }

    /// The durable dead map of a segment that is being cut, if it has one.
    pub(crate) fn last_map(&self, segment: SegmentNumber, generation: u32) -> Option<&[u8]> {
        let map = self
            .last_maps
            .iter()
            .find(|map| map.begun().segment == segment && map.begun().generation == generation);
        map.map(DeadMap::bits)
    }

    /// What was written and is not durable will be written again, or is given up.
    pub(crate) fn forget_writes(&mut self) {
        self.after_failure = true;
        self.syncing = None;
        self.tails.iter_mut().for_each(Tails::forget);
    }
}

impl Closed {
    /// Whether it covers any record.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.jumbos.is_empty()
    }

    /// The segments of its parts.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentNumber> {
        self.parts.iter().map(|part| part.segment).chain(self.jumbos.iter().copied())
    }

    /// Bytes of segments that it covers.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.to - part.from)).sum()
    }
}

impl Log {
    pub(crate) fn durable_log(&self) -> &Store {
        self.store.as_ref().expect("only a log with a store is committed")
    }

    /// Closes the open commit. Afterwards every record that it covers is filled and published, and
    /// new ones belong to the next.
    pub fn close_commit(&self, committer: &mut Committer) -> Closed {
        self.close(committer, false)
    }

    /// As [`Log::close_commit`]; the streams go on in other segments.
    pub fn close_and_leave(&self, committer: &mut Committer) -> Closed {
        self.close(committer, true)
    }

    fn close(&self, committer: &mut Committer, leave: bool) -> Closed {
        let store = self.durable_log();
        let mut parts = std::mem::take(&mut committer.again);
        let early = std::mem::take(&mut committer.early);
        self.begin_closing();
        // Who opens a segment reads the number and makes the segment known under one of these locks. So what
        // is found here was opened before the next commit, and what is not found belongs to it.
        let rolling = self.streams.each_ref().map(|open| lock(&open.roll));
        let (number, jumbos) = {
            let mut new_jumbos = lock(&store.new_jumbos);
            // First the number, then the trailers: a record behind a trailer is never counted to its
            // commit. One in front of it may be counted to the next, which is late but not wrong.
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

    /// Reserves the trailer of what is new in a segment, behind what was written `early` of it.
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
        // Behind this trailer there must be room for another.
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

    /// The RAM copy of a segment of which something is not durable.
    ///
    /// # Panics
    /// If it has none: what was acknowledged would be lost with it.
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
        // SAFETY: what lies below the trailer is filled and never changes; the trailer, and in a
        // sealed segment all behind it, is this thread's own. The frame of an un-durable segment
        // stays.
        unsafe {
            let covered = std::slice::from_raw_parts(frame.add(from), at - from);
            let own = std::slice::from_raw_parts_mut(frame.add(at), end - at);
            own[..TRAILER_BYTES].copy_from_slice(&trailer.encode(covered, seed));
            own[TRAILER_BYTES..].fill(0);
        }
    }

    /// Writes a closed commit and what waits to be written with it.
    ///
    /// # Errors
    /// Those of the device. Then nothing of the commit may be believed to be durable; it must be
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

    /// Makes a commit that was written durable. What is written early meanwhile does not belong to it.
    ///
    /// # Errors
    /// As [`Log::write_commit`].
    pub fn sync_commit(&self, written: &Written) -> io::Result<()> {
        self.durable_log().sync(written.failed_syncs)
    }

    /// Clears tail places that hold neither what is durable nor what this commit has written.
    fn clear_stale_tails(&self, store: &Store, committer: &Committer) -> io::Result<()> {
        for (stream, tails) in committer.tails.iter().enumerate() {
            let stale = |place: &usize| ![tails.durable, tails.last].contains(place);
            for place in (0..TAIL_PLACES).filter(stale) {
                store.write(store.geometry.tail_place(stream, place), &[0; BLOCK])?;
            }
        }
        Ok(())
    }

    /// Whole blocks in place, by `write`, the rest of an open segment to a tail place of its stream.
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
            // SAFETY: everything below the part's end is complete and never changes; behind the end
            // of a sealed segment nothing is written any more.
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

    /// A jumbo's header, record and trailer, cut into its places.
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
        // behind it, see `JUMBO_HEADROOM`; the record never changes, the rest is this thread's own.
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

    /// Writes a segment's meta to the older of its two copies.
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

    /// The commit was written and synced: its marks move.
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

    /// A commit that covers nothing and had nothing to write.
    pub fn settle_idle(&self, closed: &Closed) {
        self.durable_log().settle(closed.number);
    }

    /// A commit could not be written, but what it covers was acknowledged: its records stay in
    /// memory and become part of the next commit, which is written from there; so does what was written early
    /// for that one. So all their trailers must
    /// disappear: a later commit that is found behind one would prove that it was durable. Whoever
    /// waits for it is told that it failed.
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
            // SAFETY: as above.
            unsafe { store.reopen_segment(jumbo, self.segment(jumbo), Stream::Hot, header) };
        }
        lock(&store.new_jumbos).extend(closed.jumbos);
        store.settle_failed(closed.number);
    }

    /// Whether a commit would have something to write although no record is new.
    pub fn has_commit_work(&self, committer: &Committer) -> bool {
        let store = self.durable_log();
        lock(&store.changing).wants_write()
            || !committer.cuts.is_empty()
            || !committer.again.is_empty()
            || self.has_maps_to_write(store, committer)
            || !self.freeable(store).is_empty()
    }

    /// Bytes of segments that are not durable.
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

/// A trailer of a commit in a segment that covers nothing yet.
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
