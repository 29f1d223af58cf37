//! The state of a commit (its parts, and what was written for it) and of the committing thread.

use crate::address::SegmentNumber;
use crate::append::Stream;
use crate::commit::dead_map::DeadMap;
use crate::format::geometry::{TAIL_BYTES, TAIL_PLACES};
use crate::rule::Rule;
use crate::store::{Store, SuperblockWrite};
use std::collections::BTreeMap;

/// The part of a segment that one commit covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPart {
    pub(crate) segment: SegmentNumber,
    pub(crate) stream: Stream,
    pub(super) from: u32,
    /// Offset at which the part's trailer ends. Equal to `from` if early writes have written all of
    /// the segment's records, and their trailer. Then the part is empty.
    pub(crate) to: u32,
    pub(super) sealed: bool,
    /// True if an early write for the same commit wrote the bytes before `from`, with a separate
    /// trailer.
    pub(super) continues: bool,
}

impl SegmentPart {
    /// Returns true if the part has bytes that were not written early.
    pub(super) fn is_new(&self) -> bool {
        self.to > self.from
    }
}

/// What a commit's trailers say about the previous commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The previous commit is durable.
    Durable,
    /// The previous commit has failed.
    Failed,
    /// Nothing: the trailers are written early, while the previous commit is being synced.
    Unknown,
}

/// The tail places of a stream that are still needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tails {
    /// The place of the durable tail.
    pub(super) durable: usize,
    /// The place of the tail that the running sync makes durable.
    pub(super) syncing: usize,
    /// The place of the last tail written. If the process ends, this place may hold the only copy
    /// of the tail's bytes.
    pub(super) last: usize,
}

impl Tails {
    /// Returns a free place for the next tail.
    pub(super) fn next(&self) -> usize {
        if Rule::TailsAreKept.is_broken() {
            return 1 - self.last % 2;
        }
        let needed = [self.durable, self.syncing, self.last];
        let free = (0..TAIL_PLACES).find(|place| !needed.contains(place));
        free.expect("there are more places than are needed at once")
    }

    /// After a failed commit: frees the places of all tails that were written after the durable
    /// tail. The commit's records are undone or written again.
    pub(super) fn forget(&mut self) {
        (self.syncing, self.last) = (self.durable, self.durable);
    }
}

/// A closed commit: everything that it covers is complete and no longer changes.
#[derive(Debug)]
pub struct Closed {
    /// The commit's number.
    pub number: u64,
    pub(super) parts: Vec<SegmentPart>,
    pub(super) jumbos: Vec<SegmentNumber>,
    /// The commit's parts and jumbos that were written early.
    pub(super) early: Early,
}

impl Closed {
    /// Returns true if the commit covers no record.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.jumbos.is_empty()
    }

    /// Returns the segments that the commit's parts lie in, and the commit's jumbos.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentNumber> {
        self.parts.iter().map(|part| part.segment).chain(self.jumbos.iter().copied())
    }

    /// Returns the number of bytes that the commit covers and that no early write has written.
    /// Bytes of jumbos are not included.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.to - part.from)).sum()
    }
}

/// What early writes have written for the open commit.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// For each segment, the part that the last early write covered.
    pub(super) parts: BTreeMap<SegmentNumber, SegmentPart>,
    /// True if an early write has failed, or if a failed sync may have lost earlier writes. No more
    /// early writes are then made for this commit. The commit itself writes the records that are
    /// not yet written.
    pub(super) failed: bool,
    /// Parts of the early write that failed. They may not have reached the device, so the commit
    /// writes them again. Empty if no early write failed.
    pub(super) unwritten: Vec<SegmentPart>,
    /// Jumbos written early.
    pub(super) jumbos: Vec<SegmentNumber>,
    /// The metas that early writes wrote for `jumbos`: the number of each place after a jumbo's
    /// first, and the version of the place's meta.
    pub(super) metas: Vec<(SegmentNumber, u64)>,
    /// Number of the device's failed syncs before the first early write; `None` without early
    /// writes.
    pub(super) failed_syncs: Option<u64>,
}

impl Early {
    /// Returns the number of failed syncs before the commit's first write, early or not. Without
    /// early writes, that is the number of failed syncs so far.
    pub(super) fn failed_syncs(&self, store: &Store) -> u64 {
        let first = self.failed_syncs.filter(|_| !Rule::FailedSyncsFirst.is_broken());
        first.unwrap_or_else(|| store.failed_syncs())
    }
}

/// A segment that was cut. Its last block and a meta with its end are not durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) segment: SegmentNumber,
    pub(super) generation: u32,
    pub(super) durable: u32,
}

/// A summary that is written once the commit that sealed its segment is durable.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(super) segment: SegmentNumber,
    pub(super) generation: u32,
    pub(super) bytes: Vec<u8>,
}

/// The state of the committing thread.
#[derive(Debug)]
pub struct Committer {
    /// The tail places of each stream that are still needed.
    pub(super) tails: [Tails; 2],
    pub(super) buffer: Box<[u8; TAIL_BYTES]>,
    pub(crate) maps: Vec<DeadMap>,
    /// Durable dead maps of segments that may still be cut. A cut rewrites the segment's meta and
    /// must repeat the map: other segments may have been freed because the map was durable.
    pub(crate) last_maps: Vec<DeadMap>,
    pub(crate) cuts: Vec<Cut>,
    /// Summaries of durable segments, to be written with the next commit.
    pub(crate) summaries: Vec<Staged>,
    /// Except in sync mode: parts of failed commits, in sealed segments. Their records were
    /// acknowledged already, so the next commit writes these parts again.
    pub(super) again: Vec<SegmentPart>,
    /// What was written early for the open commit.
    pub(super) early: Early,
    /// The number of the device's failed syncs before the first write of the commit that is being
    /// synced. `None` while no commit is being synced.
    pub(super) syncing: Option<u64>,
    /// True if the last written commit failed. The device may hold parts of that commit, so the
    /// trailers of the next commit say that the commit before them failed.
    pub(crate) after_failure: bool,
    /// True if a retried commit may have left stale tails in the tail places. The trailers in such
    /// tails are no longer valid.
    pub(super) stale_tails: bool,
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

    /// Returns what the trailers of a commit that is being closed say about the previous commit.
    pub(super) fn before(&self) -> Before {
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

    /// Forgets the writes that are not durable.
    /// [`DurableLog::retry_commit`](crate::DurableLog::retry_commit) repeats them, and
    /// [`DurableLog::fail_commits`](crate::DurableLog::fail_commits) gives them up.
    pub(crate) fn forget_writes(&mut self) {
        self.after_failure = true;
        self.syncing = None;
        self.tails.iter_mut().for_each(Tails::forget);
    }
}

/// What a commit wrote besides records. None of it is durable before the sync.
#[derive(Debug, Default)]
pub struct Written {
    pub(crate) freed: Vec<SegmentNumber>,
    /// Segments whose metas were written, with the metas' versions.
    pub(super) metas: Vec<(SegmentNumber, u64)>,
    pub(super) superblock: Option<SuperblockWrite>,
    /// Segments whose dead maps were written, with the segments' generations.
    pub(crate) mapped: Vec<(SegmentNumber, u32)>,
    /// Summaries of the segments that the commit sealed.
    pub(super) summaries: Vec<Staged>,
    pub(super) tails: [usize; 2],
    /// Number of failed syncs before the commit's first write.
    pub(super) failed_syncs: u64,
}

impl Written {
    /// Returns the segments whose metas were written, with the metas' versions.
    pub(crate) fn into_metas(self) -> Vec<(SegmentNumber, u64)> {
        self.metas
    }
}
