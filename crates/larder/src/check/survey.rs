//! Reads all segments of a store, and combines what their commit numbers prove about each other.
//!
//! A commit completes only after the previous commit was synced. So the greatest commit number in
//! any trailer proves that earlier commits were durable once; [`Trailer::proof`] returns the number
//! before which all commits were durable. This proof tells damaged data, which was durable, from
//! torn data, whose commit never completed. The greatest number is known only after all segments
//! were read. So segments that are damaged or not sealed are read a second time.

use std::collections::{BTreeMap, HashMap, HashSet};

use larder_disk::Device;
use larder_log::format::checksum::checksum64;
use larder_log::format::geometry::TAIL_BYTES;
use larder_log::format::jumbo::RECORD_AT;
use larder_log::format::scan::{self, Damage, Ending, Expect, Extent, Scanned};
use larder_log::format::segment::TRAILER_BYTES;
use larder_log::format::summary::{SummaryEntry, SummaryPlace};
use larder_log::format::{
    DurableEnd, Header, MachineTime, Meta, NANOS, NoSegment, STREAMS, SegmentSeed, Summary,
    Trailer, Use, meta,
};
use larder_log::{Record, SegmentNumber};

use super::keys::Keys;
pub(super) use super::reader::Unusable;
use super::reader::{JumboState, Marks, Store};
use super::report::{Damaged, Lane, Report, Segments, Torn};

/// The number of notes after which no more segments are named, and the largest number of unreadable
/// ranges in the notes.
const NAMED_MAX: usize = 20;

/// Reads the whole store. `progress` receives the number of segments read so far and their total.
pub(super) fn survey(
    device: &dyn Device,
    machine: &MachineTime,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Report, Unusable> {
    let store = Store::open(device)?;
    let now = machine.of_store([&store.superblock]) / NANOS;
    let mut survey = Survey::new(&store, now);
    survey.report_superblock();
    survey.scan_all(progress);
    survey.judge();
    Ok(survey.conclude())
}

/// A segment that the first pass could not judge, because that needs facts from all segments.
struct Open {
    segment: SegmentNumber,
    marks: Marks,
    header: Option<Header>,
    /// The generation that a meta, a tail or a trailer gives, if the header is damaged.
    generation: Option<u32>,
    /// Trailers after the offset where the first scan ended, as (commit number, end offset).
    behind: Vec<(u64, u32)>,
    sealed: bool,
}

/// A jumbo that was read, but is not judged yet.
struct LargeItem {
    header: Header,
    state: JumboState,
    version: Option<Version>,
    /// True if the item is marked dead or its meta cannot be read. A start then uses the item's
    /// record only to hide older versions.
    dead: bool,
}

/// One version of a key, found in a segment.
struct Version {
    hash: u64,
    seq: u64,
    bytes: u64,
    alive: bool,
}

struct Survey<'a> {
    store: &'a Store<'a>,
    now: u64,
    report: Report,
    keys: Keys,
    /// The greatest commit number seen so far.
    greatest: u64,
    /// All commits before this one are proved to have been durable.
    proof: u64,
    /// The newest trailer found so far: its commit number, and the offset up to which each stream
    /// was durable according to it.
    durable: (u64, [DurableEnd; STREAMS]),
    /// The first commit that can be in each segment, by segment number; 0 for a segment that is not
    /// in use or has lost its header.
    opened: Vec<u64>,
    /// Segments that must be read a second time, after the first pass.
    open: Vec<Open>,
    /// Segments whose header cannot be read, and whose generation is not known from a meta, a tail
    /// or a trailer. The value is the greatest commit number in the segment's trailers.
    headless: Vec<(SegmentNumber, Option<u64>)>,
    /// Jumbos, as (first segment, header, whether the item is dead).
    jumbos: Vec<(SegmentNumber, Header, bool)>,
    /// Pieces of jumbos. The key is the jumbo's first segment, its generation and the index of the
    /// piece. The value is the segment with the piece, and the jumbo's commit number, which the
    /// `cover` of the segment's meta holds.
    parts: HashMap<(SegmentNumber, u32, u32), (SegmentNumber, u64)>,
    /// Segments with a damaged header and without a trailer. One of them may be the first segment
    /// of a jumbo. The value is the greatest generation whose records are no longer valid.
    no_header: HashMap<SegmentNumber, u32>,
    image: Vec<u8>,
    /// Segments whose meta is [unreadable](Marks::unreadable).
    unmarked: HashSet<SegmentNumber>,
    /// Number of places that may hold a piece of a jumbo: no segment was found there, and the meta
    /// is unreadable.
    unknown: usize,
    /// Number of jumbos with missing pieces that count neither as damaged nor as torn.
    incomplete: u32,
}

impl<'a> Survey<'a> {
    fn new(store: &'a Store<'a>, now: u64) -> Self {
        Survey {
            store,
            now,
            report: Report::default(),
            keys: Keys::new(),
            greatest: store.superblock.next_commit.saturating_sub(1),
            proof: store.superblock.next_commit.saturating_sub(1),
            durable: Default::default(),
            opened: vec![0; store.superblock.geometry.segment_count() as usize + 1],
            open: Vec::new(),
            headless: Vec::new(),
            jumbos: Vec::new(),
            parts: HashMap::new(),
            no_header: HashMap::new(),
            image: Vec::new(),
            unmarked: HashSet::new(),
            unknown: 0,
            incomplete: 0,
        }
    }

    /// Records in the report what the superblock and the tails tell about the store.
    fn report_superblock(&mut self) {
        let superblock = &self.store.superblock;
        let geometry = &superblock.geometry;
        let report = &mut self.report;
        report.store_id = format!("{:032x}", superblock.store_id);
        report.format_version = larder_log::format::superblock::VERSION;
        report.created = superblock.created;
        report.segment_size = geometry.segment_size();
        report.segments = Segments { all: geometry.segment_count(), ..Segments::default() };
        report.stopped_cleanly = superblock.clean;
        report.volatile = superblock.volatile;
        report.lane = Lane::of(superblock);
        for (copy, state) in self.store.copies.iter().enumerate() {
            use larder_log::format::superblock::Copy;
            if matches!(state, Copy::Damaged | Copy::Foreign) {
                let note = format!("copy {copy} of the superblock is not whole; the other one is");
                report.notes.push(note);
            }
        }
        if superblock.pending_flush != 0 {
            let note = format!("flush_all is due at {} (Unix seconds)", superblock.pending_flush);
            report.notes.push(note);
        }
        report.has_image = superblock.clean && superblock.image_segment != 0;
        report.cut = self.store.is_cut();
        report.read_only = superblock.read_only.map(|why| why.to_string());
        if report.cut {
            let what = format!("the store has {} bytes, the device fewer", geometry.total_bytes());
            report.damaged.push(damaged(0, 0, what));
        }
        let told = |place| superblock.accepted.runs(0, place) > 0;
        for &(at, _) in self.store.lost_tails.iter().filter(|&&(_, place)| !told(place)) {
            let what = format!("the end of a last commit, at {at} of the device, cannot be read");
            let lost = damaged(0, TAIL_BYTES as u64, what);
            report.damaged.push(Damaged { records: 1, ..lost });
        }
        for (tail, data) in &self.store.tails {
            self.greatest = self.greatest.max(tail.commit);
            // The trailer at the end of a tail tells what the tail proves. An early write is made
            // while commit `tail.commit - 1` may still be under way, so it proves only that the
            // commits before that one were durable.
            let seed = self.store.identity.checksum_seed;
            let seed = SegmentSeed::new(seed, tail.segment, tail.generation);
            let at = data.len().saturating_sub(TRAILER_BYTES);
            let found = Trailer::find(&data[at..], tail.generation, seed);
            let proof = found.map_or(0, |found| match found.trailer {
                Trailer { early: true, commit, .. } => commit.saturating_sub(1),
                trailer => trailer.proof(),
            });
            self.proof = self.proof.max(proof);
        }
    }

    fn scan_all(&mut self, progress: &mut dyn FnMut(u32, u32)) {
        let all = self.report.segments.all;
        let mut next = 1;
        while next <= all {
            let run = self.store.superblock.geometry.meta_run(next);
            let last = *run.end();
            if !self.store.is_there(next) {
                break;
            }
            let marks = self.store.marks(run.clone());
            for (segment, marks) in run.zip(marks) {
                progress(segment, all);
                if !self.store.is_there(segment) {
                    continue;
                }
                self.scan_segment(segment, marks);
            }
            next = last + 1;
        }
    }

    /// Reads a segment in the first pass over the store.
    fn scan_segment(&mut self, segment: SegmentNumber, marks: Marks) {
        if marks.damaged {
            self.note_damaged_marks(segment, marks.meta.is_none());
        }
        if marks.meta.is_some_and(|meta| meta.usage == Use::Retired) {
            self.report.segments.retired += 1;
            return;
        }
        let header = self.store.header(segment, marks.meta);
        let admits = |generation| marks.meta.is_none_or(|meta| meta.admits(generation));
        if let Some(Meta {
            usage: Use::Part { owner, owner_generation, index },
            generation,
            cover,
            ..
        }) = marks.meta
            && !header.is_ok_and(|header| header.generation > generation)
        {
            self.parts.insert((owner, owner_generation, index), (segment, cover));
            return;
        }
        if marks.unreadable {
            self.unmarked.insert(segment);
            self.unknown +=
                usize::from(matches!(header, Err(NoSegment::Absent | NoSegment::Jumbo)));
        }
        match header {
            Ok(header) if !admits(header.generation) => {}
            Ok(header) => {
                // Commit `opened` or a later one wrote this header. If an early write wrote it,
                // commit `opened - 1` may not have been durable yet. So the header proves only that
                // the commits before `opened - 1` were durable.
                self.greatest = self.greatest.max(header.opened);
                self.proof = self.proof.max(header.opened.saturating_sub(1));
                self.opened[segment as usize] = header.opened;
                match header.jumbo {
                    Some(_) => {
                        let speaks =
                            marks.meta.is_some_and(|meta| meta.describes(header.generation));
                        let marked = speaks && meta::is_marked(&marks.map, RECORD_AT);
                        let dead = marked || marks.unreadable;
                        self.jumbos.push((segment, header, dead));
                    }
                    None => {
                        if marks.unreadable {
                            self.report_unreadable_meta(segment, header.generation);
                        }
                        self.scan_first(segment, marks, Some(header), None);
                    }
                }
            }
            Err(NoSegment::Damaged) => self.look_without_header(segment, marks),
            Err(_) => {
                if let Some(Meta { usage: Use::InUse { .. }, generation, .. }) = marks.meta {
                    self.scan_first(segment, marks, None, Some(generation));
                }
            }
        }
    }

    /// Reads, in the first pass, a segment whose header is damaged.
    fn look_without_header(&mut self, segment: SegmentNumber, marks: Marks) {
        let meta = marks.meta;
        let tails = self.store.tails.iter().map(|(tail, _)| tail);
        let here = tails.filter(|tail| tail.segment == segment);
        let tail = here.map(|tail| tail.generation).max();
        let over = meta.map_or(0, |meta| meta.over());
        let known = tail.max(meta.map(|meta| meta.generation)).unwrap_or(0);
        let found = self.store.use_by_trailers(segment, over, known);
        if found.is_none() {
            if self.store.is_lost_whole(segment) {
                let what = "nothing of it can be read".to_owned();
                let bytes = self.store.segment_size().into();
                self.report.damaged.push(damaged(segment, bytes, what));
                return;
            }
            let is_dead = meta::is_marked(&marks.map, RECORD_AT) && !marks.unreadable;
            self.no_header.insert(segment, over + u32::from(is_dead));
        }
        if let Some(Meta { usage: Use::InUse { .. }, generation, .. }) = meta {
            return self.scan_first(segment, marks, None, Some(generation));
        }
        // A segment that is free, or that may never have been used, has no data to lose.
        let was_header = meta.is_none() && self.store.can_read_header(segment);
        let found = found.or(tail).filter(|&generation| generation > over);
        if was_header || found.is_some() {
            self.scan_first(segment, marks, None, found);
        }
    }

    /// Reports an unreadable meta. The segment may be free, or its records may be superseded. So a
    /// start uses its records only to hide older records.
    fn report_unreadable_meta(&mut self, segment: SegmentNumber, generation: u32) {
        let what = "its meta cannot be read".to_owned();
        if self.store.superblock.accepted.runs(segment, generation) > 0 {
            let notes = &mut self.report.notes;
            if notes.len() < NAMED_MAX {
                notes.push(format!(
                    "segment {segment}: {what}; an earlier start accepted this damage"
                ));
            }
        } else {
            let bytes = self.store.segment_size().into();
            self.report.damaged.push(Damaged { records: 1, ..damaged(segment, bytes, what) });
        }
    }

    /// Adds a note about damaged copies of a meta. A crash during a write can damage only one copy;
    /// if both are damaged, there was another cause.
    fn note_damaged_marks(&mut self, segment: SegmentNumber, both: bool) {
        let notes = &mut self.report.notes;
        if notes.len() < NAMED_MAX {
            notes.push(match both {
                true => format!("segment {segment}: no copy of its meta is whole"),
                false => format!("segment {segment}: one copy of its meta is not whole"),
            });
        }
    }

    fn scan_first(
        &mut self,
        segment: SegmentNumber,
        marks: Marks,
        header: Option<Header>,
        generation: Option<u32>,
    ) {
        let mut marks = marks;
        let known = header.map(|header| header.generation).or(generation);
        if !marks.meta.zip(known).is_some_and(|(meta, known)| meta.describes(known)) {
            // The dead marks belong to an earlier generation of the segment.
            marks.map.clear();
        }
        if marks.unreadable {
            marks.map = vec![u8::MAX; self.store.superblock.geometry.map_bytes()];
        }
        let mut image = std::mem::take(&mut self.image);
        self.store.image(segment, &mut image);
        let extent = own_extent(&marks, known);
        let expect = Expect { identity: self.store.identity, segment, generation, extent };
        let (mut versions, mut entries) = (Vec::new(), Vec::new());
        let hash_seed = self.store.superblock.hash_seed;
        let scanned = scan::segment(&image, &expect, |at, record| {
            versions.push(self.version(at, &record, &marks));
            entries.extend(SummaryEntry::of(at, &record, hash_seed));
        });
        match scanned {
            Ok(scanned) => {
                self.learn(scanned.last_commit, scanned.proof, scanned.durable);
                if scanned.ending == Ending::Sealed && scanned.damage == Damage::default() {
                    self.count_segment(&scanned, &versions);
                    if extent == Extent::Unknown {
                        self.compare_summary(segment, &image, &scanned, &entries);
                    }
                } else {
                    let behind = trailers_behind(&image, scanned.end, segment, &scanned, self);
                    let sealed = scanned.ending == Ending::Sealed;
                    self.open.push(Open { segment, marks, header, generation, behind, sealed });
                }
            }
            // The header is lost, and no meta, tail or trailer gives the generation.
            Err(_) => {
                let newest = self.newest_trailer(segment, &image, generation.unwrap_or(0));
                self.headless.push((segment, newest));
            }
        }
        self.image = image;
    }

    /// Compares the summary with the segment's records. A start trusts a valid summary, so the two
    /// must agree.
    fn compare_summary(
        &mut self,
        segment: SegmentNumber,
        image: &[u8],
        scanned: &Scanned,
        entries: &[SummaryEntry],
    ) {
        let generation = scanned.generation;
        let place = SummaryPlace { identity: self.store.identity, segment, generation };
        let notes = &mut self.report.notes;
        match Summary::decode(image, &place, image.len()) {
            Some(summary) if summary.end == scanned.end && summary.entries == entries => {
                self.report.segments.summarized += 1;
            }
            Some(_) => {
                let what = "its summary differs from its records".to_owned();
                let wrong = damaged(segment, 0, what);
                self.report.damaged.push(Damaged { met_at_start: false, ..wrong });
            }
            None if Summary::look(image, &place).is_some() && notes.len() < NAMED_MAX => {
                notes.push(format!("segment {segment}: its summary is not whole"));
            }
            None => {}
        }
    }

    fn version(&self, at: u32, record: &Record<'_>, marks: &Marks) -> Version {
        let superblock = &self.store.superblock;
        let bytes = record.size() as u64;
        let expired = record.expiry() != 0 && u64::from(record.expiry()) <= self.now;
        let alive = record.kind().is_item()
            && record.seq() >= superblock.fence
            && !expired
            && !meta::is_marked(&marks.map, at as usize);
        let hash = checksum64(record.key(), superblock.hash_seed);
        Version { hash, seq: record.seq(), bytes, alive }
    }

    /// Adds what one segment's trailers prove about all segments.
    fn learn(&mut self, commit: u64, proof: u64, durable: [DurableEnd; STREAMS]) {
        self.greatest = self.greatest.max(commit);
        self.proof = self.proof.max(proof);
        if commit > self.durable.0 {
            self.durable = (commit, durable);
        }
    }

    fn count_segment(&mut self, scanned: &Scanned, versions: &[Version]) {
        self.report.segments.in_use += 1;
        self.report.segments.open += u32::from(scanned.ending != Ending::Sealed);
        self.report.newer_records += u64::from(scanned.newer);
        self.count(versions);
    }

    fn count(&mut self, versions: &[Version]) {
        for version in versions {
            self.report.records += 1;
            self.report.record_bytes += version.bytes;
            let alive = if version.alive { version.bytes } else { 0 };
            self.keys.note(version.hash, version.seq, alive);
        }
    }

    /// Judges the segments and jumbos that the first pass could not judge.
    fn judge(&mut self) {
        let jumbos = std::mem::take(&mut self.jumbos).into_iter();
        let items: Vec<LargeItem> =
            jumbos.map(|(segment, header, dead)| self.read_jumbo(segment, header, dead)).collect();
        for item in items {
            self.judge_jumbo(item);
        }
        self.judge_lost_heads();
        for (segment, newest) in std::mem::take(&mut self.headless) {
            self.judge_headless(segment, newest);
        }
        for open in std::mem::take(&mut self.open) {
            let extent = self.extent(&open);
            self.scan_again(open, extent);
        }
    }

    /// Returns the offset up to which a segment is known to have been durable.
    fn extent(&self, open: &Open) -> Extent {
        let generation = open.header.map(|header| header.generation).or(open.generation);
        let own = own_extent(&open.marks, generation);
        if own != Extent::Unknown || open.sealed {
            return own;
        }
        let proved = open.behind.iter().filter(|(commit, _)| *commit < self.proof);
        let mut known = proved.map(|(_, end)| *end).max().unwrap_or(0);
        if let Some(header) = &open.header
            && let Some(end) = self.durable.1.get(usize::from(header.stream))
        {
            if end.segment == open.segment && header.opened < self.durable.0 {
                known = known.max(end.offset);
            } else if self.has_gone_on(header) {
                return Extent::Sealed;
            }
        }
        if known > 0 { Extent::AtLeast(known) } else { Extent::Unknown }
    }

    fn scan_again(&mut self, open: Open, extent: Extent) {
        let Open { segment, marks, header, generation, .. } = open;
        let mut image = std::mem::take(&mut self.image);
        self.store.image(segment, &mut image);
        // If the header cannot be read, use the generation that the first pass assumed.
        let generation = header.map(|header| header.generation).or(generation);
        let expect = Expect { identity: self.store.identity, segment, generation, extent };
        let mut versions = Vec::new();
        let scanned = scan::segment(&image, &expect, |at, record| {
            versions.push(self.version(at, &record, &marks));
        });
        if let Ok(scanned) = scanned {
            self.count_segment(&scanned, &versions);
            if let Ending::Torn { dropped } = scanned.ending {
                let (at, bytes) = (scanned.end.into(), dropped.into());
                self.report.torn.push(Torn { segment, at, bytes });
            }
            if scanned.damage != Damage::default() {
                self.judge_damage(segment, &image, &scanned, extent);
            }
        }
        self.image = image;
    }

    /// Reports damage in a segment. If an earlier start has already accepted this damage, adds only
    /// a note.
    fn judge_damage(
        &mut self,
        segment: SegmentNumber,
        image: &[u8],
        scanned: &Scanned,
        extent: Extent,
    ) {
        let Damage { gaps, bytes, commits } = scanned.damage;
        let what = format!("{commits} commits are not as they were written");
        let runs = gaps + u32::from(self.unmarked.contains(&segment));
        if runs <= self.store.superblock.accepted.runs(segment, scanned.generation) {
            let notes = &mut self.report.notes;
            if notes.len() < NAMED_MAX {
                notes.push(format!(
                    "segment {segment}: {what}; an earlier start accepted this damage"
                ));
            }
            return;
        }
        let place =
            SummaryPlace { identity: self.store.identity, segment, generation: scanned.generation };
        let was_cut = matches!(extent, Extent::Exactly(_));
        let summarized = !was_cut && Summary::decode(image, &place, image.len()).is_some();
        self.report.damaged.push(Damaged {
            records: gaps.into(),
            met_at_start: !summarized,
            ..damaged(segment, bytes.into(), what)
        });
    }

    /// Returns the greatest commit number in the trailers of a segment whose header is lost. Only
    /// trailers of two generations count: `known`, and the lowest one that the segment can have
    /// after it.
    fn newest_trailer(&self, segment: SegmentNumber, image: &[u8], known: u32) -> Option<u64> {
        let next = self.store.superblock.generation_floor.max(known + 1);
        let seed = self.store.identity.checksum_seed;
        let trailers = [known, next].into_iter().flat_map(|generation| {
            let seed = SegmentSeed::new(seed, segment, generation);
            let places = (0..image.len()).step_by(8);
            places.filter_map(move |at| Trailer::find(&image[at..], generation, seed))
        });
        trailers.map(|found| found.trailer.commit).max()
    }

    /// Judges a segment without a readable header. The segment is damaged if one of its commits is
    /// known to have been durable. Otherwise it counts as torn: its first commit may not have
    /// completed, and then the header may not have been written in full.
    fn judge_headless(&mut self, segment: SegmentNumber, newest: Option<u64>) {
        let bytes = self.store.segment_size().into();
        if newest.is_some_and(|newest| newest < self.proof) {
            let what = "its header is damaged and nothing else names it".to_owned();
            self.report.damaged.push(damaged(segment, bytes, what));
        } else {
            self.report.torn.push(Torn { segment, at: 0, bytes });
        }
    }

    /// Reads a jumbo, and adds what its trailer proves.
    fn read_jumbo(&mut self, segment: SegmentNumber, header: Header, dead: bool) -> LargeItem {
        let piece = |index| self.parts.get(&(segment, header.generation, index)).map(|part| part.0);
        let superblock = &self.store.superblock;
        let mut version = None;
        let state = self.store.jumbo(segment, piece, |jumbo| {
            let fields = &jumbo.fields;
            let expired = fields.expiry != 0 && u64::from(fields.expiry) <= self.now;
            version = Some(Version {
                hash: checksum64(jumbo.key, superblock.hash_seed),
                seq: fields.seq,
                bytes: jumbo.record_bytes as u64,
                alive: fields.seq >= superblock.fence && !expired && !dead,
            });
        });
        if let JumboState::Whole(trailer) | JumboState::WrongValue(trailer) = &state {
            self.learn(trailer.commit, trailer.proof(), trailer.durable);
        }
        LargeItem { header, state, version, dead }
    }

    fn judge_jumbo(&mut self, item: LargeItem) {
        let LargeItem { header, state, version, dead } = item;
        let segment = header.segment;
        let parts = header.jumbo.map_or(1, |jumbo| jumbo.parts);
        let (what, commit) = match state {
            JumboState::Whole(_) => {
                self.report.segments.jumbos += 1;
                self.report.segments.jumbo_parts += parts - 1;
                self.count(version.as_slice());
                if self.unmarked.contains(&segment) {
                    self.report_unreadable_meta(segment, header.generation);
                }
                return;
            }
            JumboState::Headless => ("the head of a large item is damaged".to_owned(), None),
            // Pieces are missing. If at least as many places look unused and have an unreadable
            // meta, those places may hold the pieces, so this may be damage. Otherwise the commit
            // never completed, or the jumbo was being freed. A start then treats the jumbo's
            // segments as free.
            JumboState::Incomplete => {
                let is_there =
                    |&index: &u32| self.parts.contains_key(&(segment, header.generation, index));
                let missing = (1..parts).filter(|index| !is_there(index)).count();
                if !(1..=self.unknown).contains(&missing) {
                    self.incomplete += 1;
                    return;
                }
                let what = "a large item lacks pieces whose metas cannot be read".to_owned();
                (what, Some(header.opened))
            }
            JumboState::NotCommitted => ("a large item has no end".to_owned(), None),
            // A start does not read the value of a dead item, so this damage does no harm.
            JumboState::WrongValue(_) if dead && !self.unmarked.contains(&segment) => return,
            JumboState::WrongValue(trailer) => {
                ("the value of a large item is damaged".to_owned(), Some(trailer.commit))
            }
        };
        let bytes = u64::from(parts) * u64::from(self.store.segment_size());
        // An incomplete commit may leave the same bytes as damage. Only commit numbers tell the two
        // apart, here and in recovery.
        let was_durable = header.opened < self.proof
            && match commit {
                Some(commit) => commit < self.proof,
                None => self.has_gone_on(&header),
            };
        if was_durable {
            self.report.damaged.push(Damaged { records: 1, ..damaged(segment, bytes, what) });
        } else {
            self.report.torn.push(Torn { segment, at: 0, bytes });
        }
    }

    /// Judges the pieces of jumbos whose first segment has a damaged header.
    fn judge_lost_heads(&mut self) {
        let mut lost: BTreeMap<SegmentNumber, (u64, u64)> = BTreeMap::new();
        for (&(owner, generation, _), &(_, commit)) in &self.parts {
            if self.no_header.get(&owner).is_some_and(|&over| generation > over) {
                let (pieces, newest) = lost.entry(owner).or_default();
                (*pieces, *newest) = (*pieces + 1, commit.max(*newest));
            }
        }
        for (segment, (pieces, commit)) in lost {
            let bytes = (pieces + 1) * u64::from(self.store.segment_size());
            if commit < self.proof {
                let what = "the header of a large item cannot be read".to_owned();
                self.report.damaged.push(Damaged { records: 1, ..damaged(segment, bytes, what) });
            } else {
                self.report.torn.push(Torn { segment, at: 0, bytes });
            }
        }
    }

    /// Returns true if this segment's stream is known to have been durable up to an offset in this
    /// segment or in a segment that was opened later.
    fn has_gone_on(&self, header: &Header) -> bool {
        let Some(end) = self.durable.1.get(usize::from(header.stream)) else { return false };
        let opened = self.opened.get(end.segment as usize);
        end.segment == header.segment || opened.is_some_and(|opened| header.opened < *opened)
    }

    fn conclude(mut self) -> Report {
        for range in self.store.unreadable().iter().take(NAMED_MAX) {
            let bytes = range.end - range.start;
            let note = format!("{bytes} bytes of the device at {} cannot be read", range.start);
            self.report.notes.push(note);
        }
        if self.incomplete > 0 {
            self.report.notes.push(format!(
                "{} large items lack pieces: they were being freed, or their commit never completed",
                self.incomplete
            ));
        }
        let report = &mut self.report;
        let segments = &mut report.segments;
        let used = segments.in_use + segments.jumbos + segments.jumbo_parts + segments.retired;
        segments.free = segments.all.saturating_sub(used);
        report.last_commit = self.greatest;
        let alive = self.keys.alive();
        report.live_items = alive.items;
        report.live_bytes = alive.bytes.min(report.record_bytes);
        report.dead_bytes = report.record_bytes - report.live_bytes;
        report.estimated = alive.estimated;
        report.conclude();
        self.report
    }
}

/// Builds an entry for damage. Assumes that a start reads the damaged bytes and that no record is
/// known to be lost.
fn damaged(segment: SegmentNumber, bytes: u64, what: String) -> Damaged {
    Damaged { segment, bytes, records: 0, what, met_at_start: true }
}

/// Returns the end of the segment according to its own meta, if that meta describes `generation`.
fn own_extent(marks: &Marks, generation: Option<u32>) -> Extent {
    match (marks.meta, generation) {
        (Some(meta), Some(generation)) if meta.describes(generation) => match meta.usage {
            Use::InUse { end } if end > 0 => Extent::Exactly(end),
            _ => Extent::Unknown,
        },
        _ => Extent::Unknown,
    }
}

/// Returns the commit numbers and end offsets of the trailers after offset `end`. Also adds to
/// `survey` what these trailers prove.
fn trailers_behind(
    image: &[u8],
    end: u32,
    segment: SegmentNumber,
    scanned: &Scanned,
    survey: &mut Survey<'_>,
) -> Vec<(u64, u32)> {
    let seed = SegmentSeed::new(survey.store.identity.checksum_seed, segment, scanned.generation);
    let mut found = Vec::new();
    for at in (end as usize..image.len().saturating_sub(TRAILER_BYTES - 1)).step_by(8) {
        if let Some(trailer) = Trailer::find(&image[at..], scanned.generation, seed) {
            let commit = trailer.trailer.commit;
            survey.greatest = survey.greatest.max(commit);
            survey.proof = survey.proof.max(trailer.trailer.proof());
            found.push((commit, (at + TRAILER_BYTES) as u32));
        }
    }
    found
}
