//! Reads the segments that are not jumbos. A segment is read again if other segments prove that
//! more of it was durable than was found. All segments are read again if memory had no room to
//! decide all keys.

use super::Progress;
use super::jumbos::Jumbos;
use super::newest::{Gathering, Version};
use crate::error::StoreError;
use crate::lane::DurableLane;
use crate::lock::lock;
use crate::recovery::parallel::{Shared, in_parallel, is_marked};
use larder_log::Address;
use larder_log::format::summary::{Summary, SummaryEntry};
use larder_log::format::{self, DurableEnd, Ending, Extent, Scanned, Trailer};
use larder_log::recover::Found;
use std::sync::Mutex;

/// The table of newest versions may take 1/`TABLE_SHARE` of memory.
const TABLE_SHARE: usize = 2;
/// Bytes of index per key, including free slots.
const INDEX_BYTES: usize = 11;

impl DurableLane<'_> {
    /// Reads every normal segment.
    pub(super) fn read_all(
        self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), StoreError> {
        let segments = &shared.survey.segments;
        let results = Mutex::new((scans, progress));
        in_parallel(shared.readers, segments.len(), |numbers| {
            let mut gathering = Gathering::new(&shared.newest);
            while let Some(at) = numbers.next() {
                if segments[at].header.jumbo.is_some() {
                    continue;
                }
                let found = &segments[at];
                self.limit_table(shared, at);
                let scan = match self.log.read_summary(found)? {
                    Some(summary) => {
                        self.log.enter_summarized(found, &summary);
                        for entry in &summary.entries {
                            gather(shared, found, entry, &mut gathering);
                        }
                        Scan::of_summary(&summary)
                    }
                    None => self.read_one(shared, found, Extent::Unknown, &mut gathering)?,
                };
                let mut results = lock(&results);
                let (scans, progress) = &mut *results;
                scans[at] = Some(scan);
                let of = (segments.len() * shared.newest.passes()) as u64;
                progress(Progress::Reading { segments: numbers.taken() as u64, of });
            }
            Ok(())
        })
    }

    /// Limits the table of newest versions so that memory is left for the index. Estimates the
    /// index's size from the `done` segments read so far.
    fn limit_table(self, shared: &Shared<'_>, done: usize) {
        let all = shared.survey.segments.len();
        shared.newest.has_read(done, all);
        let memory = self.options.memory as usize;
        let (table, keys) = shared.newest.size();
        // The first sixteenth of the segments is too little for an estimate.
        let expected = (done * 16 >= all).then(|| (keys * all).checked_div(done)).flatten();
        let index = expected.map_or(0, |keys| keys * shared.newest.passes() * INDEX_BYTES);
        let others = (self.budget.used() as usize).saturating_sub(table);
        let limit = memory.saturating_sub(index + others);
        shared.newest.set_limit(limit.clamp(memory / 16, memory / TABLE_SHARE));
    }

    /// Reads a segment again if other segments prove that more of it was durable than was found.
    pub(super) fn read_damaged(
        self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
    ) -> Result<(), StoreError> {
        let newest =
            scans.iter().flatten().max_by_key(|scan| (scan.last_commit, scan.proof)).copied();
        let Some(newest) = newest else { return Ok(()) };
        let seen = proof(scans);
        let mut gathering = Gathering::new(&shared.newest);
        // The loop goes from the newest segment to the oldest. For each stream, `opened` has two
        // commits: the one that opened the current segment, and the next newer commit that opened a
        // segment. One commit may open several segments. So only the segments that the newer commit
        // opened are certainly newer than the current one.
        let mut opened = [(u64::MAX, u64::MAX); format::STREAMS];
        for (found, scan) in shared.survey.segments.iter().zip(scans.iter_mut()) {
            let Some(scan) = scan else { continue };
            if found.header.jumbo.is_some() {
                continue;
            }
            let stream = usize::from(found.header.stream);
            let (last, later) = &mut opened[stream];
            if found.opened < *last {
                (*last, *later) = (found.opened, *last);
            }
            // All commits before `seen` were durable. If one of them opened a later segment of the
            // stream, this segment was sealed.
            let was_sealed = *later < seen;
            if scan.sealed {
                continue;
            }
            if was_sealed {
                *scan = self.read_one(shared, found, Extent::Sealed, &mut gathering)?;
                continue;
            }
            let DurableEnd { segment, offset } = newest.durable[stream];
            let stated = segment == found.number && found.opened < newest.last_commit;
            let mut known = if stated { offset } else { 0 };
            // The commit that seems torn in this segment was durable if it is older than `seen`.
            let proved = |scan: &Scan| match scan.torn {
                Some((commit, end)) if commit < seen => end,
                _ => 0,
            };
            loop {
                known = known.max(proved(scan));
                if known <= scan.end {
                    break;
                }
                let extent = Extent::AtLeast(known);
                *scan = self.read_one(shared, found, extent, &mut gathering)?;
            }
        }
        Ok(())
    }

    /// Reads one segment and gathers its records.
    fn read_one(
        self,
        shared: &Shared<'_>,
        found: &Found,
        extent: Extent,
        gathering: &mut Gathering<'_>,
    ) -> Result<Scan, StoreError> {
        let loaded = self.log.load(shared.survey, found, extent, |offset, record| {
            if record.kind().is_item() {
                self.log.segment(found.number).note_expiry(record.expiry());
            }
            if let Some(entry) = SummaryEntry::of(offset, &record, self.options.hash_seed) {
                gather(shared, found, &entry, gathering);
            }
        })?;
        Ok(Scan::of(&loaded))
    }

    /// Gathers every record again, for another part of the keys. `read` is the number of segments
    /// read so far. Returns `read` plus the number of segments of the survey.
    pub(super) fn read_again(
        self,
        shared: &Shared<'_>,
        scans: &[Option<Scan>],
        jumbos: &Jumbos,
        read: u64,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<u64, StoreError> {
        jumbos.enter(&shared.newest);
        let segments = &shared.survey.segments;
        let progress = Mutex::new(progress);
        in_parallel(shared.readers, segments.len(), |numbers| {
            let mut gathering = Gathering::new(&shared.newest);
            while let Some(at) = numbers.next() {
                let found = &segments[at];
                if scans[at].is_none() || found.header.jumbo.is_some() {
                    continue;
                }
                shared.newest.has_read(at, segments.len());
                let segments = read + numbers.taken() as u64;
                let of = read + (shared.survey.segments.len() * shared.newest.passes_left()) as u64;
                lock(&progress)(Progress::Reading { segments, of });
                if let Some(summary) = self.log.read_summary(found)? {
                    for entry in &summary.entries {
                        gather(shared, found, entry, &mut gathering);
                    }
                    continue;
                }
                let loaded = self.log.load_if_absent(found.number)?;
                let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
                // SAFETY: the segment was read before, and nothing is freed during recovery.
                for (address, record) in unsafe { self.log.records(found.number, image) } {
                    let offset = address.offset() as u32;
                    if let Some(entry) = SummaryEntry::of(offset, &record, self.options.hash_seed) {
                        gather(shared, found, &entry, &mut gathering);
                    }
                }
                loaded.into_iter().for_each(|loaded| self.log.reuse(loaded));
            }
            Ok(())
        })?;
        Ok(read + segments.len() as u64)
    }
}

/// Gathers one record of a segment.
fn gather(shared: &Shared<'_>, found: &Found, entry: &SummaryEntry, gathering: &mut Gathering<'_>) {
    if entry.seq < shared.fence {
        return;
    }
    let offset = entry.offset as usize;
    let version = Version {
        seq: entry.seq,
        address: Address::new(found.number, offset),
        size: entry.size as usize,
        shown: entry.is_item && !is_marked(found, offset),
    };
    gathering.add(entry.hash, version);
}

/// The facts that recovery keeps from the scan of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    end: u32,
    last_commit: u64,
    proof: u64,
    pub(super) seq_limit: u64,
    durable: [DurableEnd; format::STREAMS],
    pub(super) sealed: bool,
    pub(super) gaps: u32,
    pub(super) dropped: u32,
    /// The number and the end of a torn commit: see [`Scanned::torn`].
    torn: Option<(u64, u32)>,
}

impl Scan {
    fn of(scanned: &Scanned) -> Self {
        Scan {
            end: scanned.end,
            last_commit: scanned.last_commit,
            proof: scanned.proof,
            seq_limit: scanned.seq_limit,
            durable: scanned.durable,
            sealed: scanned.ending == Ending::Sealed,
            gaps: scanned.damage.gaps,
            torn: scanned.torn,
            dropped: match scanned.ending {
                Ending::Torn { dropped } => dropped,
                Ending::Sealed | Ending::Open => 0,
            },
        }
    }

    /// Returns the greatest commit number in the segment's trailers, torn or not.
    pub(super) fn newest_known(&self) -> u64 {
        self.last_commit.max(self.torn.map_or(0, |(commit, _)| commit))
    }

    /// Returns the facts of a segment with a summary, which was not scanned: it is durable and
    /// sealed.
    fn of_summary(summary: &Summary) -> Self {
        Scan {
            end: summary.end,
            last_commit: summary.commit,
            proof: if summary.after_failure { 0 } else { summary.commit },
            seq_limit: summary.seq_limit,
            durable: summary.durable,
            sealed: true,
            ..Scan::default()
        }
    }

    /// Returns the facts of an intact jumbo.
    pub(super) fn of_jumbo(trailer: &Trailer) -> Self {
        Scan {
            last_commit: trailer.commit,
            proof: trailer.proof(),
            seq_limit: trailer.seq_limit,
            durable: trailer.durable,
            sealed: true,
            ..Scan::default()
        }
    }

    /// Returns the facts of a jumbo that is known to be durable and was not read. These facts prove
    /// nothing about other segments.
    pub(super) fn of_unread() -> Self {
        Scan { sealed: true, ..Scan::default() }
    }
}

/// Returns the largest commit whose presence proves that all earlier commits were durable.
pub(super) fn proof(scans: &[Option<Scan>]) -> u64 {
    scans.iter().flatten().map(|scan| scan.proof).max().unwrap_or(0)
}
