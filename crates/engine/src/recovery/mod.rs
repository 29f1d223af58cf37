//! Recovery rebuilds, from the device, an index in which every key leads to its newest version.
//!
//! The greatest seq of a key wins, wherever its record is. Several threads read the segments,
//! newest first: the summary if there is one, else the whole segment. All versions go into a
//! [table](newest::Newest) that picks the winners, and only these go into the index. Tombstones,
//! and records that a dead map marks, compete like items but are not shown.
//!
//! Clients are served as soon as the location of each item is known. Only then does the cleaner
//! fill memory, because the operating system may need longer to supply memory than the device to
//! read it.

mod index_image;
mod jumbos;
mod newest;
mod open;
mod parallel;
mod report;
mod segments;
mod tiers;

pub(crate) use open::{Recovery, open_store};
pub use report::{Progress, Recovered};

use crate::WhenFull;
use crate::durability::Durability;
use crate::error::StoreError;
use crate::index::slot::Slot;
use crate::key::Key;
use crate::lane::DurableLane;
use crate::lock::lock;
use crate::recovery::parallel::{Shared, in_parallel};
use jumbos::Jumbos;
use larder_log::SegmentNumber;
use larder_log::format::Accepted;
use larder_log::record::MAX_SEQ;
use larder_log::recover::{Found, Survey};
use larder_log::store::{SEQ_LIFE, seq_lease};
use newest::{Newest, Version};
use segments::Scan;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The largest number of threads that fill a lane's index, and of threads that read its segments.
const THREADS: usize = 16;
/// Number of threads that read segments, per thread that fills the index. About half of the reading
/// threads wait for the device.
const READERS: usize = 2;
/// The segments that the reading threads hold take at most 1/`READER_SHARE` of memory.
const READER_SHARE: u64 = 16;

/// The number of threads that survey a lane's places, unless recovery is single-threaded. These
/// threads mostly wait for the device.
const SURVEYORS: usize = 16;

/// Returns the number of threads to use: one per processor, at most [`THREADS`].
pub(crate) fn threads() -> usize {
    THREADS.min(thread::available_parallelism().map_or(1, Into::into))
}

impl DurableLane<'_> {
    /// Rebuilds the index from the store.
    pub(crate) fn recover(
        self,
        recovery: Recovery,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Recovered, StoreError> {
        let Recovery { mut report, began } = recovery;
        let (store, options) = (self.log.store, &self.state.store);
        let threads = options.threads;
        let surveyors = if threads > 1 { SURVEYORS } else { 1 };
        // If all places hold discarded data, there is nothing to survey.
        let survey = if report.discarded {
            self.log.survey_nothing()
        } else {
            self.log.survey(surveyors)?
        };
        let shared = self.share(&survey, store.superblock().fence, threads);
        let mut scans = vec![None; survey.segments.len()];
        let jumbos = self.fill_index(&shared, &mut scans, progress)?;
        let superseded = |number: &SegmentNumber| shared.newest.is_superseded(*number);
        let superseded: Vec<_> = self.log.numbers().filter(superseded).collect();
        drop(shared);
        self.settle_unread(&survey, &jumbos)?;
        let accepted = count_damage(&mut report, &survey, &scans, &store.superblock().accepted);
        let lost = report.damaged_records + u64::from(report.damaged_segments);
        if lost > 0 && self.may_lose_nothing() {
            return Err(StoreError::Damaged { records: lost });
        }
        let scanned = survey.segments.iter().zip(&scans);
        let sealed = |(found, scan): (_, &Option<Scan>)| Some((found, scan.as_ref()?.sealed));
        let loaded: Vec<_> = scanned.clone().filter_map(sealed).collect();
        let useless = scanned.clone().filter(|(_, scan)| scan.is_none());
        let useless: Vec<_> = useless.map(|(found, _)| found.number).collect();
        let read = scans.iter().flatten();
        // The next commit number must be above every commit number that was found, and not only
        // above the last good commit. Torn and failed commits after that one may have left newer
        // numbers, and commits without records in between have left none.
        let newest = read.clone().map(Scan::newest_known).fold(survey.newest_known(), u64::max);
        self.log.finish_recovery(&survey, &loaded, &useless, newest)?;
        // Records that are unreadable now may be readable at the next start, which must not take
        // them for current. So their segments count as having deaths that no dead map marks. Ends
        // that hide these records then stay.
        let is_damaged = |(found, scan): &(&Found, &Option<Scan>)| {
            found.unmarked || scan.is_some_and(|scan| scan.gaps > 0)
        };
        let damaged = scanned.filter(is_damaged).map(|(found, _)| found.number);
        superseded
            .into_iter()
            .chain(damaged)
            .for_each(|number| self.log.note_recovered_deaths(number));
        // The damage is reported, hence accepted. The superblock write in `begin_life` makes the
        // acceptance durable.
        store.change_superblock(|superblock| superblock.accepted = accepted);
        self.limit_index();
        self.index.end_rebuild(self.options.when_full == WhenFull::Refuse);
        let seq_limit =
            read.map(|scan| scan.seq_limit).fold(store.superblock().seq_limit, u64::max);
        self.begin_life(seq_limit)?;
        self.warm_later(loaded.iter().map(|&(found, _)| found.number));
        report.segments = loaded.len() as u32;
        report.items = self.index.items();
        report.took = (options.common.clock.0)().saturating_sub(began);
        Ok(report)
    }

    /// Creates the state that the threads of a recovery share.
    fn share<'a>(self, survey: &'a Survey, fence: u64, threads: usize) -> Shared<'a> {
        let (memory, segment_size) = (self.options.memory, self.log.segment_size() as u64);
        let newest = Newest::new(
            memory as usize,
            self.log.numbers().end,
            survey.segments.len() as u64 * segment_size,
            &self.budget,
        );
        let affordable = (memory / READER_SHARE / segment_size) as usize;
        let readers = match threads {
            1 => 1,
            _ => (threads * READERS).min(affordable).clamp(2, THREADS),
        };
        Shared { survey, fence, newest, threads, readers }
    }

    /// Reads the segments and fills the index with the newest version of each key. Stores in
    /// `scans` what it found in each readable segment of the survey.
    fn fill_index(
        self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Jumbos, StoreError> {
        // The index may take all memory that it needs. Frames are freed to make up for that later.
        self.index.begin_rebuild();
        self.index.set_limit(u64::MAX);
        // Jumbos come first, while there is memory for their values.
        let mut jumbos = self.read_jumbos(shared, scans)?;
        self.read_all(shared, scans, progress)?;
        self.read_damaged(shared, scans)?;
        let (mut items, mut read) = (0, scans.len() as u64);
        loop {
            self.publish(shared, &mut jumbos, &mut items)?;
            if !shared.newest.next_part() {
                break;
            }
            read = self.read_again(shared, scans, &jumbos, read, progress)?;
        }
        self.check_index(items)?;
        Ok(jumbos)
    }

    /// Adds the newest version of each key of this pass to the index, and the number of these items
    /// to `all`. If memory has no room for an index of `all` items, only counts the items.
    fn publish(
        self,
        shared: &Shared<'_>,
        jumbos: &mut Jumbos,
        all: &mut usize,
    ) -> Result<(), StoreError> {
        let part = shared.newest.part();
        let items: Box<[_]> = (0..self.index.stripe_count()).map(|_| AtomicUsize::new(0)).collect();
        in_parallel(shared.threads, part.len(), |numbers| {
            let mut places = Vec::new();
            while let Some(shard) = numbers.next() {
                shared.newest.visit(part.start + shard, &mut places, |key, version| {
                    let stripe = self.index.stripe_of(&Key::of_hash(key));
                    items[stripe].fetch_add(version.shown.into(), Ordering::Relaxed);
                });
            }
            Ok(())
        })?;
        *all += items.iter().map(|items| items.load(Ordering::Relaxed)).sum::<usize>();
        if self.check_index(*all).is_err() {
            return Ok(());
        }
        if !self.has_room_for_index(shared.newest.expected(*all)) {
            self.index.pack();
        }
        in_parallel(shared.threads, items.len(), |stripes| {
            while let Some(stripe) = stripes.next() {
                self.index.reserve(stripe, items[stripe].load(Ordering::Relaxed));
            }
            Ok(())
        })?;
        let chosen: Mutex<Vec<SegmentNumber>> = Mutex::default();
        in_parallel(shared.threads, part.len(), |numbers| {
            let mut participant = self.epochs.join();
            let (mut result, mut places) = (Ok(()), Vec::new());
            while let Some(shard) = numbers.next() {
                participant.tick();
                shared.newest.visit(part.start + shard, &mut places, |key, version| {
                    if jumbos.is_unread(version.address.segment()) {
                        lock(&chosen).push(version.address.segment());
                    } else if version.shown {
                        let shown = self.show(&Key::of_hash(key), version);
                        result = std::mem::replace(&mut result, Ok(())).and(shown);
                    } else {
                        self.log.note_end(version.address.segment(), version.size);
                    }
                });
                participant.sleep();
                self.index.reap();
            }
            result
        })?;
        jumbos.choose(chosen.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// Adds the newest version of a key to the index, which has no version of this key yet.
    fn show(self, key: &Key<'_>, version: Version) -> Result<(), StoreError> {
        let Version { address, size, .. } = version;
        let guard = self.index.lock(key);
        let no_memory = || StoreError::Device(io::ErrorKind::OutOfMemory.into());
        let place = guard.vacate(key).map_err(|_| no_memory())?;
        guard.fill(place, Slot::new(key.tag(), 0, address), 1);
        if !self.owns(key.lo) {
            lock(&self.strays).push(address);
        }
        let segment = self.log.segment(address.segment());
        segment.revive(if segment.is_jumbo() { segment.filled() as usize } else { size });
        Ok(())
    }

    /// Lets the cleaner read those of the segments that are not in memory, the newest first, until
    /// memory has no more room. Clients are served meanwhile.
    pub(crate) fn warm_later(self, newest_first: impl Iterator<Item = SegmentNumber>) {
        let mut cold: Vec<SegmentNumber> =
            newest_first.filter(|&number| self.log.segment(number).frame().is_null()).collect();
        cold.reverse();
        *lock(&self.cold) = cold;
    }

    /// Marks the store as in use. From now on, the lane gives items seqs above all seqs that the
    /// store has used.
    pub(crate) fn begin_life(self, seq_limit: u64) -> Result<(), StoreError> {
        let (store, options) = (self.log.store, &self.state.store);
        let superblock = store.superblock();
        let newest = seq_limit.max(superblock.fence);
        if newest + SEQ_LIFE > MAX_SEQ {
            return Err(StoreError::VersionsUsedUp);
        }
        self.index.raise_seq(newest);
        self.flush_at.store(superblock.pending_flush, Ordering::Relaxed);
        if superblock.counter == 0 {
            // A new store needs both copies of the superblock, because a single copy means that a
            // start was interrupted. Each change writes one copy, so this change writes the first
            // copy and the next change the second.
            store.change_superblock_now(|_| {})?;
        }
        store.change_superblock_now(|superblock| {
            superblock.clean = false;
            superblock.counters = true;
            superblock.volatile = options.common.durability == Durability::None;
            superblock.seq_limit = seq_lease(newest);
            superblock.image_segment = 0;
            superblock.set_time(options.opened_at, &options.common.opened);
        })?;
        self.state.remembered.store(store.superblock().clock, Ordering::Relaxed);
        self.mark_lease();
        Ok(())
    }
}

/// Adds the damage that the survey and the scans found to a report. Damage in `known` was accepted
/// by an earlier start. Returns the damage that this start accepts.
fn count_damage(
    report: &mut Recovered,
    survey: &Survey,
    scans: &[Option<Scan>],
    known: &Accepted,
) -> Accepted {
    let mut accepted = Accepted::default();
    let seen = segments::proof(scans);
    // A damaged header counts as damage only if its commit was durable. Otherwise the crash may
    // have interrupted the write of the header.
    let durable = |commit: &Option<u64>| commit.is_some_and(|commit| commit < seen.max(1));
    let damaged = survey.damaged.iter().filter(|(_, newest)| durable(newest)).count();
    report.damaged_segments = damaged as u32;
    for &place in &survey.lost_tails {
        // The content of an unreadable tail place is unknown, also its segment. So its damage is
        // recorded for segment 0, which does not exist.
        report.damaged_records += u64::from(known.runs(0, place) == 0);
        report.unremembered |= !accepted.accept(0, place, 1);
    }
    for (found, scan) in survey.segments.iter().zip(scans) {
        let Some(scan) = scan else {
            // A jumbo whose commit did not complete looks like a damaged jumbo. So a damaged jumbo
            // does not count if it may belong to the last commit that was under way. The header of
            // a jumbo names its commit.
            let torn = found.header.jumbo.is_some() && found.opened >= seen;
            report.damaged_segments += u32::from(!torn);
            continue;
        };
        let generation = found.header.generation;
        // If an unreadable copy of the segment's meta may be newer than the readable one, all
        // records of the segment only hide older versions. This counts as one more run of damaged
        // bytes.
        let gaps = scan.gaps + u32::from(found.unmarked);
        if gaps > 0 {
            let told = gaps.min(known.runs(found.number, generation));
            report.accepted_records += u64::from(told);
            report.damaged_records += u64::from(gaps - told);
            report.unremembered |= !accepted.accept(found.number, generation, gaps);
        }
        report.dropped_bytes += u64::from(scan.dropped);
    }
    accepted
}
