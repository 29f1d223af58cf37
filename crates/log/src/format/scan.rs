//! Scans the image of one segment: finds whole commits, the segment's end, and the surviving
//! records of damaged commits.
//!
//! A commit that is not whole is *torn* if nothing shows that it was ever durable. The segment then
//! ends before that commit, and the scan ignores the commit's records. Otherwise the commit is
//! *damaged*: the scan checks each of its records by itself. A caller with several segments first
//! scans each without prior knowledge. If other segments show that more of a segment was durable,
//! the caller scans that segment again (see [`Extent`]).

use super::STREAMS;
use super::checksum::{Identity, SegmentSeed, record_is_intact};
use super::segment::{DurableEnd, Header, NoSegment, TRAILER_BYTES, Trailer};
use crate::address::{GRANULE, SegmentNumber};
use crate::record::{Kind, Record};

/// The largest number of bytes, per byte of a damaged commit, that the search for records hashes in
/// vain. The search takes any bytes that look like a record as a candidate, and hashes the
/// candidate to check it. After this limit it hashes only candidates of up to [`SHORT`] bytes.
/// Otherwise a client could stall a recovery with values that look like long records.
const EFFORT: usize = 1024;
/// The largest size, in bytes, of candidates that the search always hashes: see [`EFFORT`].
const SHORT: usize = 4096;

/// Prior knowledge about a segment.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// The identity of the store.
    pub identity: Identity,
    /// The segment's number.
    pub segment: SegmentNumber,
    /// The generation to use if the header cannot be read. With `None`, the scan fails in that
    /// case.
    pub generation: Option<u32>,
    /// How much of the segment is known to have been durable.
    pub extent: Extent,
}

/// How much of a segment is known to have been durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Nothing is known except what the segment's own bytes show.
    Unknown,
    /// At least this many bytes from the segment's start, because another segment's trailer says
    /// so.
    AtLeast(u32),
    /// All of the segment up to the trailer that seals it, wherever that trailer is.
    Sealed,
    /// Exactly this many bytes, because the segment's meta says so. The scan ignores the bytes
    /// behind them.
    Exactly(u32),
}

/// How a segment ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The segment ends at the trailer that seals it, or where its meta says.
    Sealed,
    /// The segment ends behind a commit, and nothing of this generation follows.
    #[default]
    Open,
    /// The segment ends before an incomplete commit.
    Torn {
        /// Bytes of that commit that reached the device, as far as they can be recognised.
        dropped: u32,
    },
}

/// Damage to bytes that were durable once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Number of damaged commits. Damaged parts of one commit count once. Neighbouring commits that
    /// have lost their trailers count as one.
    pub commits: u32,
    /// Number of gaps: runs of bytes in which no whole record was found. In each gap at least one
    /// record is lost, unless the gap was only a header, a trailer or a filler.
    pub gaps: u32,
    /// Number of bytes in the gaps.
    pub bytes: u32,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanned {
    /// The header; `None` if it is damaged and the expected generation was used.
    pub header: Option<Header>,
    /// The generation of everything that was found.
    pub generation: u32,
    /// The end of the last commit that is not torn; 0 without one. If that commit has lost its
    /// trailer, this is the end of the bytes known to be durable.
    pub end: u32,
    /// Number of items and tombstones that the scan has passed to `visit` of [`segment`].
    pub records: u32,
    /// Number of whole records of kinds that only newer programs know. They do not count as damage,
    /// and the scan does not pass them to `visit`.
    pub newer: u32,
    /// The greatest number of the commits that are not torn; 0 without one.
    pub last_commit: u64,
    /// The greatest [`Trailer::proof`] of commits that are not torn: all commits with lower numbers
    /// were durable. 0 without one.
    pub proof: u64,
    /// The greatest [`Trailer::seq_limit`] of commits that are not torn.
    pub seq_limit: u64,
    /// [`Trailer::durable`] of the last trailer of a commit that is not torn.
    pub durable: [DurableEnd; STREAMS],
    /// What is damaged.
    pub damage: Damage,
    /// How the segment ends.
    pub ending: Ending,
    /// The number of the first torn commit whose trailer can be recognised, and the offset at which
    /// that trailer ends; `None` without one. A trailer in another segment may prove that this
    /// commit was durable. The caller then scans this segment again, and the commit counts as
    /// damaged.
    pub torn: Option<(u64, u32)>,
}

/// Scans the image of a segment that is not a jumbo. Calls `visit` for every item and tombstone, in
/// order, with the record and its offset. Skips torn commits and damaged records. A commit is whole
/// if the checksum in its trailer is right. In a damaged commit, the scan verifies each record by
/// its own checksum.
///
/// Returns `Err` if there is no segment, or if it holds a jumbo ([`super::jumbo`]).
pub fn segment<'a>(
    image: &'a [u8],
    expect: &Expect,
    visit: impl FnMut(u32, Record<'a>),
) -> Result<Scanned, NoSegment> {
    let header = Header::decode(image, &expect.identity, expect.segment);
    let generation = match (&header, expect.generation) {
        (Ok(Header { jumbo: Some(_), .. }), _) => return Err(NoSegment::Jumbo),
        (Ok(header), _) => header.generation,
        (Err(_), Some(generation)) => generation,
        (Err(error), None) => return Err(*error),
    };
    let (known, limit) = match expect.extent {
        Extent::Unknown => (0, image.len()),
        Extent::AtLeast(end) => (image.len().min(end as usize), image.len()),
        Extent::Sealed => (image.len(), image.len()),
        Extent::Exactly(end) => (image.len().min(end as usize), image.len().min(end as usize)),
    };
    let scanned = Scanned { header: header.ok(), generation, ..Scanned::default() };
    let seed = SegmentSeed::new(expect.identity.checksum_seed, expect.segment, generation);
    let ends_at_limit = matches!(expect.extent, Extent::Exactly(_));
    let mut walk = Walk { bytes: &image[..limit], known, ends_at_limit, seed, scanned, visit };
    walk.scanned.ending = walk.run();
    Ok(walk.scanned)
}

struct Walk<'a, F> {
    /// The bytes of the image that may belong to the segment.
    bytes: &'a [u8],
    /// Commits that begin before this offset were durable.
    known: usize,
    ends_at_limit: bool,
    seed: SegmentSeed,
    scanned: Scanned,
    visit: F,
}

impl<'a, F: FnMut(u32, Record<'a>)> Walk<'a, F> {
    fn run(&mut self) -> Ending {
        let mut at = 0;
        // The greatest number that the commit last counted as damaged may have.
        let mut counted = None;
        loop {
            if self.ends_at_limit && at >= self.bytes.len() {
                return Ending::Sealed;
            }
            if let Some((trailer, end)) = self.whole_commit(at) {
                self.visit_all(at, end);
                at = end + TRAILER_BYTES;
                self.note(&trailer, at);
                if trailer.sealed {
                    return Ending::Sealed;
                }
                continue;
            }
            let next = self.next_trailer(at, self.scanned.last_commit);
            if !self.was_durable(at, next.as_ref()) {
                self.scanned.torn = next
                    .as_ref()
                    .map(|(trailer, end)| (trailer.commit, (end + TRAILER_BYTES) as u32));
                return self.torn(at, next.map(|(_, end)| end));
            }
            let commit = next.as_ref().map_or(u64::MAX, |next| newest_commit(at, next));
            if counted.replace(commit) != Some(commit) {
                self.scanned.damage.commits += 1;
            }
            match next {
                Some((trailer, end)) if end - trailer.length as usize == at => {
                    self.salvage(at, end);
                    at = end + TRAILER_BYTES;
                    self.note(&trailer, at);
                    if trailer.sealed {
                        return Ending::Sealed;
                    }
                }
                // The damaged commit has lost its trailer. The trailer that was found belongs to a
                // later commit, which begins behind the damaged one.
                Some((trailer, end)) => {
                    let resume = end - trailer.length as usize;
                    self.salvage(at, resume);
                    at = resume;
                }
                None => {
                    self.salvage(at, self.known);
                    self.scanned.end = self.known as u32;
                    return if self.ends_at_limit { Ending::Sealed } else { Ending::Open };
                }
            }
        }
    }

    /// Returns the trailer, and its offset, of the commit that begins at `start`, if the commit is
    /// whole.
    fn whole_commit(&self, start: usize) -> Option<(Trailer, usize)> {
        let mut at = start;
        loop {
            let bytes = self.bytes.get(at..)?;
            let record = Record::parse(bytes, None)?;
            if record.kind() == Kind::Commit {
                if let Some(found) = Trailer::find(bytes, self.scanned.generation, self.seed) {
                    let trailer = found.trailer;
                    let right = trailer.length as usize == at - start
                        && follows(&trailer, self.scanned.last_commit)
                        && found.covers(&self.bytes[start..at]);
                    return right.then_some((trailer, at));
                }
                // At offset 0, a commit record that is no trailer is the segment's header.
                // Anywhere else it is a damaged trailer, so the commit is not whole.
                if at != 0 {
                    return None;
                }
            }
            at += record.size();
        }
    }

    /// Returns the first trailer, and its offset, that may follow a trailer of `commit` and covers
    /// only bytes at or behind `from`. Does not check the bytes it covers.
    fn next_trailer(&self, from: usize, commit: u64) -> Option<(Trailer, usize)> {
        let last = self.bytes.len().checked_sub(TRAILER_BYTES)?;
        (from..=last).step_by(GRANULE).find_map(|at| {
            let trailer =
                Trailer::find(&self.bytes[at..], self.scanned.generation, self.seed)?.trailer;
            let begins = at.checked_sub(trailer.length as usize)?;
            let plausible =
                follows(&trailer, commit) && begins >= from && begins.is_multiple_of(GRANULE);
            plausible.then_some((trailer, at))
        })
    }

    /// Returns true if the commit that begins at `start` was durable. A commit's trailers are
    /// written only after the previous commit was synced; [`Trailer::proof`] has the exceptions. So
    /// the trailer of a later commit proves that the commit at `start` was durable. `next` is the
    /// first trailer behind `start`.
    fn was_durable(&self, start: usize, next: Option<&(Trailer, usize)>) -> bool {
        let Some(next) = next else { return start < self.known };
        let newest = newest_commit(start, next);
        let (first, at) = next;
        start < self.known
            || first.proof() > newest
            || self.is_followed(at + TRAILER_BYTES, first, newest)
    }

    /// Returns true if a later trailer than `last` proves that `commit` was durable. `from` is the
    /// offset at which `last` ends.
    fn is_followed(&self, mut from: usize, last: &Trailer, commit: u64) -> bool {
        let mut last = *last;
        while let Some((trailer, at)) = self.next_trailer(from, last.commit) {
            if trailer.proof() > commit {
                return true;
            }
            (from, last) = (at + TRAILER_BYTES, trailer);
        }
        false
    }

    /// Returns the ending of a segment whose commit at `start` is torn.
    fn torn(&self, start: usize, trailer: Option<usize>) -> Ending {
        let mut at = start;
        while let Some(record) = Record::parse(&self.bytes[at..], None)
            && record_is_intact(&record, self.seed)
        {
            at += record.size();
        }
        let arrived = trailer.map_or(at, |trailer| at.max(trailer + TRAILER_BYTES));
        match arrived - start {
            0 => Ending::Open,
            dropped => Ending::Torn { dropped: dropped as u32 },
        }
    }

    /// Notes a commit that is not torn and has its trailer.
    fn note(&mut self, trailer: &Trailer, end: usize) {
        let scanned = &mut self.scanned;
        scanned.end = end as u32;
        scanned.last_commit = trailer.commit;
        scanned.proof = scanned.proof.max(trailer.proof());
        scanned.seq_limit = scanned.seq_limit.max(trailer.seq_limit);
        scanned.durable = trailer.durable;
    }

    /// Visits the records of a whole commit.
    fn visit_all(&mut self, start: usize, end: usize) {
        let mut at = start;
        while let Some(record) = Record::parse(&self.bytes[at..end], None) {
            self.offer(at, record);
            at += record.size();
        }
    }

    /// Visits the whole records between `start` and `end`, and counts the rest as damage.
    fn salvage(&mut self, start: usize, end: usize) {
        let mut effort = (end - start).saturating_mul(EFFORT);
        let (mut at, mut in_gap) = (start, false);
        while at < end {
            if let Some(record) = Record::parse(&self.bytes[at..end], None) {
                let size = record.size();
                if size <= SHORT.max(effort) {
                    if record_is_intact(&record, self.seed) {
                        self.offer(at, record);
                        at += size;
                        in_gap = false;
                        continue;
                    }
                    effort = effort.saturating_sub(size);
                }
            }
            let damage = &mut self.scanned.damage;
            damage.gaps += u32::from(!in_gap);
            damage.bytes += GRANULE.min(end - at) as u32;
            in_gap = true;
            at += GRANULE;
        }
    }

    fn offer(&mut self, at: usize, record: Record<'a>) {
        if record.kind().is_version() {
            self.scanned.records += 1;
            (self.visit)(at as u32, record);
        }
        self.scanned.newer += u32::from(record.kind() == Kind::Newer);
    }
}

/// Returns the greatest number that the commit at `start` may have. `next` is the first trailer
/// behind `start`, and its offset.
fn newest_commit(start: usize, next: &(Trailer, usize)) -> u64 {
    let (first, at) = next;
    // If the first trailer covers exactly the bytes from `start` on, it is the trailer of the
    // commit at `start`. Otherwise, the commit at `start` has lost its trailer. It is then
    // earlier than the found trailer's commit, or an earlier part of the same commit.
    let is_first = at - first.length as usize == start;
    if is_first || first.continues { first.commit } else { first.commit - 1 }
}

/// Returns true if `trailer` may come next after a trailer of `commit`, the last commit so far in
/// its segment.
fn follows(trailer: &Trailer, commit: u64) -> bool {
    trailer.commit > commit || trailer.continues && trailer.commit == commit
}
