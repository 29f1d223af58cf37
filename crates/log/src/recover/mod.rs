//! Reading a store back. Finds the segments, passes their records to the engine, and makes the
//! segments part of the log. The engine decides which version of a key is the newest.

pub mod index_image;

mod jumbos;
mod metas;

pub use jumbos::{JumboFacts, LoadedJumbo, jumbo_footprint};

use crate::address::SegmentNumber;
use crate::append::{Sealed, Stream};
use crate::commit::Written;
use crate::format::geometry::{SUPERBLOCKS, TAIL_BYTES, TAIL_PLACES};
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::{self, Meta};
use crate::format::segment::HEADER_BYTES;
use crate::format::summary::SummaryPlace;
use crate::format::superblock::{self, SuperblockError};
use crate::format::{
    BLOCK, Expect, Extent, Header, NoSegment, STREAMS, Scanned, Summary, Superblock, Tail, Trailer,
    Use, header_under_tails, scan,
};
use crate::log::DurableLog;
use crate::reclaim::usage::End;
use crate::record::Record;
use crate::residency::fill_gaps;
use crate::segment::Restored;
use crate::store::Store;
use crate::sync::lock;
use larder_disk::Device;
use metas::{MetaCopies, Metas};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::{io, iter, thread};

/// Reads the superblock of the store on `device`.
///
/// # Errors
/// Those of the device. The inner error says why there is no store that this program can use.
pub fn read_superblock(device: &dyn Device) -> io::Result<Result<Superblock, SuperblockError>> {
    let mut copies = [[0; BLOCK]; 2];
    let mut unread = None;
    for (copy, at) in copies.iter_mut().zip(SUPERBLOCKS) {
        if let Err(error) = device.read_at(at, copy).or_else(|_| device.read_at(at, copy)) {
            // An unreadable copy counts as damaged; the other copy must suffice.
            *copy = superblock::mark();
            if let Some(before) = unread.replace(error) {
                return Err(before);
            }
        }
    }
    Ok(superblock::choose([&copies[0], &copies[1]]).map(|(superblock, _)| superblock))
}

/// A segment that was found on the device.
#[derive(Debug)]
pub struct Found {
    /// The segment's number.
    pub number: SegmentNumber,
    /// The segment's header.
    pub header: Header,
    /// Number of the commit that was open when the segment was opened. No earlier commit has
    /// records in the segment.
    pub opened: u64,
    /// The offset at which the segment was cut; 0 if it was not cut, or its meta does not say.
    end: u32,
    meta: Option<Meta>,
    /// The segment's dead map.
    pub dead: Box<[u8]>,
    /// True if a copy of the segment's meta is unreadable and may be newer than the readable copy,
    /// or if both copies are damaged. The lost copy may say that records are dead or that the place
    /// is free. So `dead` marks all records as dead. The records then only hide older versions.
    pub unmarked: bool,
}

impl Found {
    /// Creates a segment with this header and without a meta.
    pub(crate) fn without_meta(header: Header) -> Self {
        let (number, opened) = (header.segment, header.opened);
        Found { number, header, opened, end: 0, meta: None, dead: Box::default(), unmarked: false }
    }

    /// Returns the greatest commit number in the header and in the dead map's cover. A commit
    /// without records leaves no other trace. New commits must have greater numbers. If a new
    /// commit got a number up to the cover, the dead map would claim to mark the records that this
    /// commit supersedes, and it does not.
    fn newest_known(&self) -> u64 {
        self.opened.max(self.meta.map_or(0, |meta| meta.cover))
    }
}

/// Stands in for an unreadable header, if the segment's trailers name its generation. The other
/// fields are not known. So `opened` is the first commit of the store, and the stream is a guess.
const HEADLESS: Header = Header {
    segment: 0,
    generation: 0,
    stream: Stream::Hot as u8,
    opened: 1,
    born: 0,
    jumbo: None,
};

/// A place after the first one of a jumbo, as its meta describes it: the number of places of the
/// jumbo before it, and the commit in the meta's cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    index: u32,
    place: SegmentNumber,
    commit: u64,
}

/// The result of looking at every place of a store.
#[derive(Debug, Default)]
pub struct Survey {
    /// Segments that can be used, the newest first. Each has a good header, or `HEADLESS` stands in
    /// for an unreadable one.
    pub segments: Vec<Found>,
    /// First places of segments that cannot be used, because the header is damaged or places of a
    /// jumbo are missing. Each has the greatest commit that the segment is known to have.
    pub damaged: Vec<(SegmentNumber, Option<u64>)>,
    /// Number of places that may belong to a jumbo. No segment begins in such a place, and one copy
    /// of its meta cannot be read, or both are damaged.
    unknown: usize,
    tails: Vec<(Tail, Vec<u8>)>,
    /// Places after the first one of jumbos that were never completed, were being freed, or have
    /// lost their first block.
    orphans: Vec<SegmentNumber>,
    /// Numbers of unreadable tail places. They may have held the last records of the last commits.
    pub lost_tails: Vec<u32>,
    /// The places after a jumbo's first place, by the jumbo's number and generation.
    parts: BTreeMap<(SegmentNumber, u32), Vec<Piece>>,
    /// Places with a damaged header, each with the last generation that the meta declares invalid
    /// or, of a jumbo, dead. A jumbo of a later generation that begins there is lost.
    headless: BTreeMap<SegmentNumber, u32>,
    /// Places in which no usable segment begins, and whose meta is damaged in both copies.
    blank: Vec<SegmentNumber>,
    /// The greatest commit number in the tails and in the headers of incomplete jumbos.
    others: u64,
}

impl Survey {
    /// Adds the results for other places.
    fn add(&mut self, other: Survey) {
        self.segments.extend(other.segments);
        self.damaged.extend(other.damaged);
        self.unknown += other.unknown;
        for (jumbo, pieces) in other.parts {
            self.parts.entry(jumbo).or_default().extend(pieces);
        }
        self.headless.extend(other.headless);
        self.blank.extend(other.blank);
    }

    /// Returns the greatest commit number that the survey found in tails, headers, dead maps and
    /// the trailers of segments that cannot be used. Torn commits count, too.
    pub fn newest_known(&self) -> u64 {
        let segments = self.segments.iter().map(Found::newest_known);
        let damaged = self.damaged.iter().filter_map(|&(_, newest)| newest);
        segments.chain(damaged).max().unwrap_or(0).max(self.others)
    }
}

impl DurableLog<'_> {
    /// Surveys every place of the store with `threads` threads. Takes about one read per place if
    /// segments have at most 256 KiB, and about three if they are larger.
    ///
    /// # Errors
    /// Those of the device.
    pub fn survey(self, threads: usize) -> io::Result<Survey> {
        let mut survey = Survey::default();
        for stream in 0..STREAMS {
            for which in 0..TAIL_PLACES {
                let mut place = Box::new([0; TAIL_BYTES]);
                let at = self.store.geometry.tail_place(stream, which);
                if !self.store.read(at, &mut place[..])? {
                    survey.lost_tails.push((stream * TAIL_PLACES + which) as u32);
                }
                if let Some((tail, data)) = Tail::decode(&place, &self.store.identity) {
                    survey.others = survey.others.max(tail.commit);
                    survey.tails.push((tail, data.to_vec()));
                }
            }
        }
        let mut free = Vec::new();
        // The first number of each group of places whose metas are adjacent.
        let groups: Vec<_> = self
            .numbers()
            .filter(|&it| *self.store.geometry.meta_run(it).start() == it)
            .rev()
            .collect();
        let survey_some = |groups: &[SegmentNumber]| {
            let mut part = Survey { tails: survey.tails.clone(), ..Survey::default() };
            let mut free = Vec::new();
            for &first in groups {
                let metas = Metas::read(self.store, first);
                // The geometry also has numbers of places that the store may gain before the next
                // start.
                for number in metas.numbers().rev().filter(|it| self.numbers().contains(it)) {
                    if !self.survey_one(&metas, number, &mut part)? {
                        free.push(number);
                    }
                }
            }
            io::Result::Ok((part, free))
        };
        let parts: Vec<_> = thread::scope(|scope| {
            let mut parts = groups.chunks(groups.len().div_ceil(threads).max(1));
            let first = parts.next().unwrap_or_default();
            let others: Vec<_> = parts.map(|part| scope.spawn(|| survey_some(part))).collect();
            let join = |other: thread::ScopedJoinHandle<'_, _>| {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            iter::once(survey_some(first)).chain(others.into_iter().map(join)).collect()
        });
        for part in parts {
            let (part, more) = part?;
            survey.add(part);
            free.extend(more);
        }
        survey.segments.sort_by_key(|found| std::cmp::Reverse((found.opened, found.number)));
        self.settle_parts(&mut survey, &mut free);
        free.retain(|&number| !self.store.is_bad(number));
        lock(&self.free_places).found_free(free);
        Ok(survey)
    }

    /// Returns the survey of a store in which no place is in use.
    pub fn survey_nothing(self) -> Survey {
        lock(&self.free_places).found_free(self.numbers().rev());
        Survey::default()
    }

    /// Surveys one place. Returns false if the place holds neither a usable segment nor a part of a
    /// jumbo.
    fn survey_one(
        self,
        metas: &Metas<'_>,
        number: SegmentNumber,
        survey: &mut Survey,
    ) -> io::Result<bool> {
        let MetaCopies { bytes: copies, unread } = metas.copies(number)?;
        let map_bytes = self.store.geometry.map_bytes();
        let copies = [&copies[0][..], &copies[1][..]];
        let chosen = meta::choose(copies, number, map_bytes, &self.store.identity);
        let (meta, map) = chosen.meta.map_or((None, &[][..]), |(meta, map)| (Some(meta), map));
        let unreadable = chosen.may_be_older_than(unread);
        if unreadable {
            self.store.retire(number);
        }
        let unmarked = unreadable || chosen.lost;
        let (header, readable) = survey.read_header(self.store, metas, number, meta)?;
        self.segment(number).set_generation(survey.greatest_generation(number, meta, header.ok()));
        let entry = self.store.entry(number);
        entry.meta_version.store(meta.map_or(0, |meta| meta.version), Ordering::Relaxed);
        match meta {
            Some(Meta { usage: Use::Retired, .. }) => {
                self.store.retire(number);
                return Ok(false);
            }
            Some(Meta {
                usage: Use::Part { owner, owner_generation, index },
                generation,
                cover,
                ..
            }) if !header.is_ok_and(|header| header.generation > generation) => {
                let parts = survey.parts.entry((owner, owner_generation)).or_default();
                parts.push(Piece { index, place: number, commit: cover });
                return Ok(true);
            }
            _ => {}
        }
        let header = match header {
            Err(NoSegment::Damaged) => {
                let is_dead = meta::is_marked(map, RECORD_AT) && !unmarked;
                self.survey_headless(survey, number, meta, is_dead, readable)?
            }
            header => {
                survey.unknown += usize::from(unmarked && header.is_err());
                header.ok()
            }
        };
        let admits = |header: &Header| meta.is_none_or(|meta| meta.admits(header.generation));
        let Some(header) = header.filter(admits) else {
            survey.blank.extend(chosen.lost.then_some(number));
            return Ok(false);
        };
        let own = meta.filter(|meta| meta.describes(header.generation));
        let end = match own {
            Some(Meta { usage: Use::InUse { end }, .. }) => end,
            _ => 0,
        };
        let dead = match own {
            _ if unmarked => vec![u8::MAX; map_bytes].into(),
            Some(_) => map.into(),
            None => Box::default(),
        };
        let opened = header.opened;
        survey.segments.push(Found { number, header, opened, end, meta: own, dead, unmarked });
        Ok(true)
    }

    /// Surveys a place whose header is damaged. If the header's block is unreadable but the place
    /// has trailers, returns a header that stands in for the lost one.
    fn survey_headless(
        self,
        survey: &mut Survey,
        number: SegmentNumber,
        meta: Option<Meta>,
        is_dead: bool,
        readable: bool,
    ) -> io::Result<Option<Header>> {
        let segment = self.segment(number);
        // The header is lost, so only the trailers tell which generation the place held. The next
        // generation of the place must be greater than that one.
        let over = meta.map_or(0, |meta| meta.over());
        let next = self.store.superblock().generation_floor.max(segment.generation() + 1);
        let found = self.find_trailers(survey, number, over + 1..=next)?;
        if let Some((generation, _)) = found
            && !readable
        {
            return Ok(Some(Header { segment: number, generation, ..HEADLESS }));
        }
        survey.headless.insert(number, over + u32::from(is_dead));
        let newest = match found {
            // No block of the place can be read. The place may have held durable records, so it
            // gets commit 0, which always counts as durable.
            None if self.is_lost_whole(number) => Some(0),
            found => found.map(|(_, newest)| newest),
        };
        let in_use = |meta: Meta| matches!(meta.usage, Use::InUse { .. });
        if newest.is_some() || meta.is_none_or(in_use) {
            segment.set_generation(next);
            survey.damaged.push((number, newest));
        }
        Ok(None)
    }

    /// Returns true if no block of a place can be read.
    fn is_lost_whole(self, number: SegmentNumber) -> bool {
        let place = self.store.geometry.segment(number);
        let mut blocks = (0..self.segment_size()).step_by(BLOCK);
        !blocks.any(|at| self.store.device.read_at(place + at as u64, &mut [0; BLOCK]).is_ok())
    }

    /// Returns the latest of `generations` that has a trailer in the segment or a tail, and its
    /// greatest commit there.
    fn find_trailers(
        self,
        survey: &Survey,
        number: SegmentNumber,
        generations: RangeInclusive<u32>,
    ) -> io::Result<Option<(u32, u64)>> {
        let mut bytes = vec![0; self.segment_size()];
        self.store.read_blocks(self.store.geometry.segment(number), &mut bytes)?;
        let tails = survey.tails.iter().filter(|(tail, _)| tail.segment == number);
        let found =
            Trailer::find_all(&bytes, |generation| self.store.segment_seed(number, generation));
        let found = found.map(|trailer| (trailer.generation, trailer.commit));
        let in_tails = tails.map(|(tail, _)| (tail.generation, tail.commit));
        Ok(found.chain(in_tails).filter(|(generation, _)| generations.contains(generation)).max())
    }

    /// Assigns to each jumbo its places after the first, and adds to `free` the places that no
    /// jumbo claims.
    fn settle_parts(self, survey: &mut Survey, free: &mut Vec<SegmentNumber>) {
        let mut parts = std::mem::take(&mut survey.parts);
        survey.segments.retain(|found| {
            let Some(jumbo) = found.header.jumbo else { return true };
            let key = (found.number, found.header.generation);
            let mut further = parts.remove(&key).unwrap_or_default();
            further.sort_unstable();
            further.dedup_by_key(|piece| piece.index);
            let complete = further.len() as u32 + 1 == jumbo.parts
                && further.iter().zip(1..).all(|(piece, index)| piece.index == index);
            if complete {
                self.store.set_parts(
                    found.number,
                    further.into_iter().map(|piece| piece.place).collect(),
                );
            } else {
                // Three causes are possible: the jumbo's commit never completed, the jumbo was
                // being freed, or the metas of the missing places cannot be read.
                survey.others = survey.others.max(found.opened);
                let missing = (jumbo.parts as usize - 1).saturating_sub(further.len());
                let is_lost = (1..=survey.unknown).contains(&missing);
                survey.damaged.push((found.number, is_lost.then_some(found.opened)));
                survey.orphans.extend(further.into_iter().map(|piece| piece.place));
                free.push(found.number);
            }
            complete
        });
        for ((owner, generation), further) in parts {
            if survey.headless.get(&owner).is_some_and(|&over| generation > over) {
                // The header of this jumbo is unreadable or damaged.
                let commit = further.iter().map(|piece| piece.commit).max();
                survey.damaged.retain(|&(number, _)| number != owner);
                survey.damaged.push((owner, commit));
                let segment = self.segment(owner);
                segment.set_generation(segment.generation().max(generation));
            }
            survey.orphans.extend(further.into_iter().map(|piece| piece.place));
        }
        free.extend(&survey.orphans);
        free.sort_unstable_by_key(|&number| std::cmp::Reverse(number));
    }

    /// Reads a normal segment, checks its commits, and makes it part of the log. Gives the segment
    /// a frame if some of its bytes may lie only in a tail place. `extent` says what the trailers
    /// of other segments prove about the end of this segment. Calls `visit` with the items and
    /// tombstones and their offsets, in order.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load(
        self,
        survey: &Survey,
        found: &Found,
        extent: Extent,
        visit: impl FnMut(u32, Record<'_>),
    ) -> io::Result<Scanned> {
        let segment = self.segment(found.number);
        let mut frame = segment.frame();
        // The last records of the segment may lie in a tail place only, until `finish_recovery`
        // copies them to the segment's own place. Until then they can be read from a frame only.
        let has_tail = survey.has_tail(found);
        if frame.is_null() && has_tail {
            let taken = self.frames.take(&self.budget, true);
            frame = taken.ok_or(io::ErrorKind::OutOfMemory)?;
        }
        let mut image = frame.is_null().then(|| self.take_image());
        let bytes = match &mut image {
            Some(image) => image.bytes_mut(),
            // SAFETY: the frame is the segment's, and only recovery knows of it yet.
            None => unsafe { std::slice::from_raw_parts_mut(frame, self.segment_size()) },
        };
        let read = self.store.read_blocks(self.store.geometry.segment(found.number), bytes);
        survey.apply_tails(self.store, found, 0, bytes);
        segment.restore(Restored {
            frame,
            filled: 0,
            stream: found.header.stream,
            generation: found.header.generation,
            born: found.header.born,
            jumbo: None,
        });
        read?;
        let expect = Expect {
            identity: self.store.identity,
            segment: found.number,
            generation: Some(found.header.generation),
            extent: if found.end == 0 { extent } else { Extent::Exactly(found.end) },
        };
        let scanned = scan::segment(bytes, &expect, visit);
        let scanned = scanned.map_err(|_| io::Error::other("a segment has changed its header"))?;
        if scanned.damage.gaps > 0 {
            fill_gaps(bytes, &expect);
        }
        segment.set_end(scanned.end);
        self.enter(found, scanned.last_commit);
        image.into_iter().for_each(|image| self.keep_image(image));
        Ok(scanned)
    }

    /// Returns the summary of a normal segment, if it has a whole one.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read_summary(self, found: &Found) -> io::Result<Option<Summary>> {
        if found.end != 0 {
            // The segment was cut instead of sealed, so it has no summary.
            return Ok(None);
        }
        self.summary(found.number, found.header.generation)
    }

    /// Returns the summary of a sealed normal segment, if it has a whole one.
    ///
    /// # Errors
    /// Those of the device.
    pub fn summary_of(self, number: SegmentNumber) -> io::Result<Option<Summary>> {
        let segment = self.segment(number);
        let summary = self.summary(number, segment.generation())?;
        Ok(summary.filter(|summary| summary.end == segment.filled()))
    }

    fn summary(self, number: SegmentNumber, generation: u32) -> io::Result<Option<Summary>> {
        let place = SummaryPlace { identity: self.store.identity, segment: number, generation };
        let end = self.store.geometry.segment(number) + self.segment_size() as u64;
        let mut bytes = vec![0; BLOCK];
        if !self.store.read(end - BLOCK as u64, &mut bytes)? {
            return Ok(None);
        }
        let taken = Summary::look(&bytes, &place).filter(|&taken| taken < self.segment_size());
        let Some(taken) = taken else { return Ok(None) };
        if taken > BLOCK {
            bytes.resize(taken, 0);
            if !self.store.read(end - taken as u64, &mut bytes)? {
                return Ok(None);
            }
        }
        Ok(Summary::decode(&bytes, &place, self.segment_size()))
    }

    /// Makes a segment part of the log after reading only its summary.
    pub fn enter_summarized(self, found: &Found, summary: &Summary) {
        let segment = self.segment(found.number);
        segment.restore(Restored {
            frame: std::ptr::null_mut(),
            filled: summary.end,
            stream: found.header.stream,
            generation: found.header.generation,
            born: found.header.born,
            jumbo: None,
        });
        segment.restore_history(summary.expiries, summary.end);
        self.enter(found, summary.commit);
    }

    fn enter(self, found: &Found, last_commit: u64) {
        let entry = self.store.entry(found.number);
        entry.opened.store(found.opened, Ordering::Relaxed);
        entry.last_commit.store(last_commit.max(found.opened), Ordering::Relaxed);
        let cover = found.meta.map_or(0, |meta| meta.cover);
        entry.cover.store(cover.max(found.opened - 1), Ordering::Relaxed);
        entry.end.store(found.end, Ordering::Relaxed);
        entry.sealed.store(true, Ordering::Release);
    }

    /// Ends the recovery. Ends each segment that was not sealed: writes its last block and the
    /// offset of its end to the device. Puts the `loaded` segments (the newest first, each with
    /// true if it was sealed) into the queues of their streams. Frees the places of `useless`
    /// segments. New commits get numbers above `newest`. The caller must make the changed
    /// superblock durable before anything is written to a free place.
    ///
    /// # Errors
    /// Those of the device.
    pub fn finish_recovery(
        self,
        survey: &Survey,
        loaded: &[(&Found, bool)],
        useless: &[SegmentNumber],
        newest: u64,
    ) -> io::Result<()> {
        let failed_syncs = self.store.failed_syncs();
        let mut written = Written::default();
        for &number in useless {
            // Marks the places as free. Otherwise, after later commits, a start would take a jumbo
            // of a torn commit for a damaged one.
            for place in self.store.take_parts(number).into_iter().chain([number]) {
                self.write_meta(&mut written, place, self.store.unused(place), 0, None)?;
                if !self.store.is_bad(place) {
                    lock(&self.free_places).put(place);
                }
            }
        }
        // Marks the places of damaged headers and of incomplete jumbos as unused. If a place still
        // named an incomplete jumbo as its owner, a later start might report that jumbo as lost. If
        // both copies of a free place's meta stayed damaged, a later start would take the records
        // of the next segment there for dead.
        let damaged = survey.damaged.iter().map(|&(number, _)| number);
        for number in damaged.chain(survey.orphans.iter().chain(&survey.blank).copied()) {
            self.write_meta(&mut written, number, self.store.unused(number), 0, None)?;
        }
        let unmarked = loaded.iter().filter(|(found, _)| found.unmarked);
        for (found, _) in unmarked {
            let end = self.store.entry(found.number).end.load(Ordering::Relaxed);
            // Writes both copies, because the unreadable one may become readable again.
            for _ in 0..2 {
                let usage = Use::InUse { end };
                let dead = Some(&found.dead[..]);
                // An unreadable block may refuse the write; then the next start finds the same
                // state.
                let _ = self.write_meta(&mut written, found.number, usage, 0, dead);
                self.store.entry(found.number).meta_version.fetch_add(1, Ordering::Relaxed);
            }
        }
        for &(found, sealed) in loaded.iter().rev() {
            let segment = self.segment(found.number);
            // Even a sealed segment may have parts of its last blocks only in tail places.
            self.write_tail_blocks(survey, found)?;
            if !sealed {
                // Without a good commit, the segment ends behind its header. An end of 0 would mean
                // that it ends at its sealed trailer.
                let end = segment.filled().max(HEADER_BYTES as u32);
                self.store.entry(found.number).end.store(end, Ordering::Relaxed);
                self.write_end(survey, found, end, &mut written)?;
            }
            let sealed = Sealed { segment: found.number, sealed: 0 };
            self.enqueue(Stream::of(segment.stream()), sealed, End::Back);
        }
        for &place in &survey.lost_tails {
            let (stream, which) = (place as usize / TAIL_PLACES, place as usize % TAIL_PLACES);
            // If the write succeeds, later starts do not report this place again.
            let _ =
                self.store.write(self.store.geometry.tail_place(stream, which), &[0; TAIL_BYTES]);
        }
        self.store.sync(failed_syncs)?;
        for (number, version) in written.into_metas() {
            self.store.entry(number).meta_version.store(version, Ordering::Relaxed);
        }
        self.raise_generations();
        // Two commits may have left no trace that the start has found: the one in flight, and the
        // next one, which may have been written early in part. So their numbers are skipped.
        let next = self.store.superblock().next_commit.max(newest + 3);
        self.store.commits.continue_with(next);
        Ok(())
    }

    /// Raises the generation floor. A free place may hold bytes of a lost generation, whose header
    /// never reached the device. The next generation of the place must have another number, or
    /// those bytes would seem to belong to it. The number of the lost generation is at most one
    /// above the old floor or a known generation. So it is below the new floor.
    fn raise_generations(self) {
        let greatest = self.numbers().map(|number| self.segment(number).generation()).max();
        let known = greatest.unwrap_or(0).max(self.store.superblock().generation_floor);
        let floor = known + 2;
        self.store.change_superblock(|superblock| superblock.generation_floor = floor);
        for number in lock(&self.free_places).iter() {
            self.segment(number).set_generation(floor - 1);
        }
    }

    /// Copies a segment's blocks from tail places to their own places, except blocks that are
    /// complete there.
    fn write_tail_blocks(self, survey: &Survey, found: &Found) -> io::Result<()> {
        for (tail, _) in survey.tails_of(found) {
            self.complete_block(survey, found, tail.offset as usize, BLOCK)?;
        }
        Ok(())
    }

    /// Copies the block at offset `first` of a segment from its tails to its own place, and sets
    /// its bytes behind the first `len` to zero. Writes nothing in two cases. If the block already
    /// has these bytes, it may be durable, and a crash during the write could destroy it. If the
    /// block is unreadable and the tails have only a part of it, a later read may succeed.
    fn complete_block(
        self,
        survey: &Survey,
        found: &Found,
        first: usize,
        len: usize,
    ) -> io::Result<()> {
        let place = self.store.geometry.segment(found.number) + first as u64;
        let mut own = [0; BLOCK];
        let readable = self.store.read(place, &mut own)?;
        let mut block = own;
        survey.apply_tails(self.store, found, first, &mut block);
        block[len..].fill(0);
        let filled = (self.segment(found.number).filled() as usize).clamp(first, first + len);
        let needed = readable || survey.tails_end(found, first) >= filled;
        if needed && !(readable && block == own) {
            self.store.write(place, &block)?;
        }
        Ok(())
    }

    /// Ends a segment that was still open: copies its last block from the tail place to the
    /// segment's own place, and records the end in the segment's meta.
    fn write_end(
        self,
        survey: &Survey,
        found: &Found,
        end: u32,
        written: &mut Written,
    ) -> io::Result<()> {
        let first = end as usize / BLOCK * BLOCK;
        let len = end as usize - first;
        if len > 0 {
            self.complete_block(survey, found, first, len)?;
        }
        let cover = self.store.entry(found.number).cover.load(Ordering::Relaxed);
        let dead = (!found.dead.is_empty()).then_some(&found.dead[..]);
        self.write_meta(written, found.number, Use::InUse { end }, cover, dead)
    }
}

impl Survey {
    /// Reads the header of a place, whose meta is `meta`. Also returns true if the header's block
    /// is readable.
    fn read_header(
        &self,
        store: &Store,
        metas: &Metas<'_>,
        number: SegmentNumber,
        meta: Option<Meta>,
    ) -> io::Result<(Result<Header, NoSegment>, bool)> {
        let mut block = [0; BLOCK];
        let readable = metas.first_block(number, &mut block)?;
        let (tails, identity) = (&self.tails, &store.identity);
        let header = header_under_tails(tails, &mut block, readable, identity, number, meta);
        Ok((header, readable))
    }

    /// Returns the greatest generation of a place that its meta, its header or a tail names.
    fn greatest_generation(
        &self,
        number: SegmentNumber,
        meta: Option<Meta>,
        header: Option<Header>,
    ) -> u32 {
        let tails = self.tails.iter().filter(|(tail, _)| tail.segment == number);
        tails
            .map(|(tail, _)| tail.generation)
            .chain(header.map(|header| header.generation))
            .chain(meta.map(|meta| meta.generation))
            .max()
            .unwrap_or(0)
    }

    /// Returns the tails of a segment, with their data.
    fn tails_of(&self, found: &Found) -> impl Iterator<Item = &(Tail, Vec<u8>)> {
        let (segment, generation) = (found.number, found.header.generation);
        let ours = move |tail: &Tail| tail.segment == segment && tail.generation == generation;
        self.tails.iter().filter(move |(tail, _)| ours(tail))
    }

    /// Returns true if a tail place holds a block of this segment.
    fn has_tail(&self, found: &Found) -> bool {
        self.tails_of(found).next().is_some()
    }

    /// Returns where the longest tail of the block at offset `first` ends, as an offset in the
    /// segment. Returns `first` if the block has no tail.
    fn tails_end(&self, found: &Found, first: usize) -> usize {
        let tails = self.tails_of(found).filter(|(tail, _)| tail.offset as usize == first);
        tails.map(|(_, data)| first + data.len()).max().unwrap_or(first)
    }

    /// Overwrites bytes of a segment with the newer ones from its tail places. `bytes` holds either
    /// the whole segment, with `first` = 0, or the block at offset `first`.
    fn apply_tails(&self, store: &Store, found: &Found, first: usize, bytes: &mut [u8]) {
        for (tail, data) in self.tails_of(found) {
            if first == 0 {
                tail.apply_to(data, &store.identity, bytes);
            } else if tail.offset as usize == first {
                bytes[..data.len()].copy_from_slice(data);
            }
        }
    }
}
