//! What the log knows about its device: geometry, superblock, and for every segment which commits
//! it belongs to.
//!
//! A segment's number is its place on the device. What is written where, and why a crash at any
//! moment leaves every acknowledged record readable, stands in `docs/file-format.md`.

pub(crate) mod grow;
pub(crate) mod places;

pub use grow::GrowError;
pub use places::Tier;

use crate::address::SegmentNumber;
use crate::commit::failed::FailedCommits;
use crate::format::geometry::SUPERBLOCKS;
use crate::format::segment::JumboSize;
use crate::format::{
    self, BLOCK, DurableEnd, Geometry, Header, Identity, STREAMS, SegmentSeed, Superblock, Use,
};
use crate::log::{Stream, lock};
use crate::memory::table::Table;
use crate::reclaim::deaths::{Deaths, Fenced, Holders, Unmarked};
use crate::record::MAX_SEQ;
use crate::segment::Segment;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, spin};
use larder_disk::Device;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// A version number that is leased ahead lasts for so many versions of one stripe: long enough that
/// no stripe uses it up between two commits, short enough for a crash every second for half a year.
pub const SEQ_LEASE: u64 = 1 << 24;
/// So many versions must be left when a store is opened: of one key a million a second for half a year.
pub const SEQ_LIFE: u64 = 1 << 44;

/// The limit that leases versions behind `seq`.
pub fn seq_lease(seq: u64) -> u64 {
    (seq + SEQ_LEASE).min(MAX_SEQ)
}

/// What is known about a segment beyond its entry in the segment table.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// The commit that was open when the segment was opened.
    pub(crate) opened: AtomicU64,
    /// The last commit that covers a part of it.
    pub(crate) last_commit: AtomicU64,
    /// Every record in it that was dead after this commit is marked in its durable dead map.
    pub(crate) cover: AtomicU64,
    /// When records in it died that are not marked.
    pub(crate) deaths: Deaths,
    /// About how many bytes its ends would take as tombstones.
    pub(crate) end_bytes: AtomicU32,
    /// Bytes of tombstones that were copied here because they are still needed. They count as alive.
    pub(crate) held_bytes: AtomicU32,
    /// Bytes of records that are most probably dead: see [`Log::assume_dead`](crate::Log::assume_dead).
    pub(crate) assumed_dead: AtomicU32,
    /// Version of its meta on the device.
    pub(crate) meta_version: AtomicU64,
    /// Where it was cut; 0: it ends at its sealed trailer, or is open.
    pub(crate) end: AtomicU32,
    /// It was cut, and that is not durable: its frame is needed.
    pub(crate) cutting: AtomicBool,
    /// Its last trailer was written, or it was cut: nothing more is written to it.
    pub(crate) sealed: AtomicBool,
}

/// What it takes to free segments, in bytes since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    /// Dead maps that were written.
    pub(crate) maps: AtomicU64,
    /// Records of segments that were freed.
    pub(crate) freed: AtomicU64,
    /// Whole segments that were read.
    pub(crate) segment_reads: AtomicU64,
}

/// How far a commit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Everything that belongs to it is durable.
    Durable,
    /// It is being filled or written.
    Pending,
    /// It could not be made durable; what belongs to it was undone.
    Failed,
}

/// What the superblock says, and how much of that the device knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changing {
    /// Its counter is the one that is durable; what is written has the next.
    pub(crate) superblock: Superblock,
    /// Counts changes; the superblock is durable when `durable` has reached `changes`.
    changes: u64,
    durable: u64,
    /// Both copies say what is durable: one of them may become unreadable.
    mirrored: bool,
}

/// The superblock was written, and is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockWrite {
    counter: u64,
    changes: u64,
}

impl Changing {
    /// How often it was changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// How many of the changes are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether one of its copies says something else.
    pub(crate) fn wants_write(&self) -> bool {
        self.durable != self.changes || !self.mirrored
    }
}

/// A store that is open.
#[derive(Debug)]
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    written: AtomicU64,
    pub(crate) work: BackgroundWork,
    /// Where things lie, in all places that there may be before the next start.
    pub(crate) geometry: Geometry,
    fast_segments: u32,
    /// Where the lower device's part begins, if there is one.
    lower_from: Option<u64>,
    pub(crate) changing: Mutex<Changing>,
    /// Held by whoever writes the superblock, and taken before `changing`.
    writing_superblock: Mutex<()>,
    /// Held while the store grows. The size that the device goes back to before the next growth, if the
    /// last one may not be durable.
    pub(crate) growing: Mutex<Option<u64>>,
    /// Whether the store was closed to growth. Held while new places are published, and never while the
    /// device allocates space.
    pub(crate) closed_to_growth: Mutex<bool>,
    /// Held by whoever syncs the device.
    syncing: Mutex<()>,
    /// How many syncs have failed.
    failed_syncs: AtomicU64,
    pub(crate) identity: Identity,
    pub(crate) entries: Table<Entry>,
    /// The commit that new records belong to, or the one before it if it is being closed.
    pub(crate) open_commit: AtomicU64,
    /// The last commit of which it is decided, and written in the segments, what it covers.
    pub(crate) closed_commit: AtomicU64,
    /// The last commit that is durable or has failed.
    pub(crate) settled_commit: AtomicU64,
    /// The last commit that is durable. One that failed and is written again is settled, and durable
    /// only with a later one.
    pub(crate) durable_commit: AtomicU64,
    failed: Mutex<FailedCommits>,
    /// The last commit that has failed; 0: none has.
    last_failed: AtomicU64,
    /// Counts when the changes of failed commits begin to be undone, and when that has ended: odd meanwhile.
    undoings: AtomicU64,
    /// Sealed segments of each stream of which something is not durable.
    unsynced: [Mutex<Vec<SegmentNumber>>; 2],
    /// Jumbos that are complete and in no commit yet.
    pub(crate) new_jumbos: Mutex<Vec<SegmentNumber>>,
    /// The further places of each jumbo.
    parts: Mutex<HashMap<SegmentNumber, Vec<SegmentNumber>>>,
    /// Where ends begin in segments that were emptied and then filled again by an undone commit.
    kept_ends: Mutex<HashMap<SegmentNumber, Vec<u32>>>,
    /// In how many segments.
    keep_ends: AtomicU32,
    /// Where each stream was durable after the last commit: segment and offset.
    pub(crate) durable_ends: Mutex<[DurableEnd; STREAMS]>,
    pub(crate) unmarked: Mutex<Unmarked>,
    /// Of these, what a fence that is not durable yet will put to rest.
    pub(crate) fenced: Mutex<Fenced>,
    /// Segments that hold copied tombstones.
    pub(crate) holders: Mutex<Holders>,
    /// Counts the segments that were opened in this life of the store.
    pub(crate) opened_segments: AtomicU64,
    /// Places of which a part cannot be read.
    bad: Mutex<BTreeSet<SegmentNumber>>,
    /// Bytes that new segments of each stream leave to their summaries.
    pub(crate) summary_room: [AtomicU32; STREAMS],
}

impl Store {
    /// The store on `device`, as its superblock describes it.
    pub fn new(device: Arc<dyn Device>, superblock: Superblock) -> Self {
        let geometry = superblock.geometry;
        let count = geometry.segment_count() as usize;
        let next = superblock.next_commit.max(1);
        Store {
            device,
            written: AtomicU64::new(0),
            work: BackgroundWork::default(),
            geometry,
            fast_segments: superblock.fast_segments,
            lower_from: superblock.fast_part().map(|part| part.total_bytes()),
            identity: superblock.identity(),
            changing: Mutex::new(Changing { superblock, changes: 0, durable: 0, mirrored: false }),
            writing_superblock: Mutex::default(),
            syncing: Mutex::default(),
            failed_syncs: AtomicU64::new(0),
            entries: Table::new(count + 1, count + 1, |_| Entry::default()),
            growing: Mutex::default(),
            closed_to_growth: Mutex::default(),
            open_commit: AtomicU64::new(next),
            closed_commit: AtomicU64::new(next - 1),
            settled_commit: AtomicU64::new(next - 1),
            durable_commit: AtomicU64::new(next - 1),
            failed: Mutex::default(),
            last_failed: AtomicU64::new(0),
            undoings: AtomicU64::new(0),
            unsynced: Default::default(),
            new_jumbos: Mutex::default(),
            parts: Mutex::default(),
            kept_ends: Mutex::default(),
            keep_ends: AtomicU32::new(0),
            durable_ends: Mutex::default(),
            unmarked: Mutex::default(),
            fenced: Mutex::default(),
            holders: Mutex::default(),
            opened_segments: AtomicU64::new(0),
            bad: Mutex::default(),
            summary_room: Default::default(),
        }
    }

    /// Writes to the device. All writes go through here, or [`Store::write_directly`].
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_at(offset, bytes)
    }

    /// Writes many bytes, and may wait for the device.
    pub(crate) fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_directly(offset, bytes)
    }

    /// Reads a part of a place; false if that cannot be read although the device answers elsewhere: then the
    /// bytes are zero, and the place is not used again.
    ///
    /// # Errors
    /// The device does not answer.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        let first = self.device.read_at(offset, bytes);
        // Once more: some errors do not last.
        let Err(error) = first.or_else(|_| self.device.read_at(offset, bytes)) else {
            return Ok(true);
        };
        self.answers(offset).then(|| bytes.fill(0)).ok_or(error)?;
        self.note_bad(offset);
        Ok(false)
    }

    /// As [`Store::read`], of blocks: those that can be read are, and the others are zero. False if there
    /// are such.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) fn read_blocks(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        if bytes.len() <= BLOCK {
            return self.read(offset, bytes);
        }
        let Err(error) = self.device.read_at(offset, bytes) else { return Ok(true) };
        if !self.answers(offset) {
            return Err(error);
        }
        let half = (bytes.len() / 2).next_multiple_of(BLOCK);
        let (front, back) = bytes.split_at_mut(half);
        let front = self.read_blocks(offset, front)?;
        Ok(self.read_blocks(offset + half as u64, back)? & front)
    }

    /// Whether the device that `offset` lies on can be read at all: one copy of the superblock at least, or of
    /// the lower device a block of three.
    fn answers(&self, offset: u64) -> bool {
        // Not what the page cache holds of it.
        let can_read = |at| self.device.read_stored(at, &mut [0; BLOCK]).is_ok();
        match self.lower_from {
            Some(lower) if offset >= lower => {
                let last = self.device.size() - BLOCK as u64;
                let middle = lower + (last - lower) / 2 / BLOCK as u64 * BLOCK as u64;
                [lower, middle, last].into_iter().any(can_read)
            }
            _ => SUPERBLOCKS.into_iter().any(can_read),
        }
    }

    fn note_bad(&self, offset: u64) {
        if let Some(number) = self.geometry.segment_at(offset) {
            self.retire(number);
        }
    }

    /// A part of the place cannot be read: it is not used again.
    pub(crate) fn retire(&self, number: SegmentNumber) {
        lock(&self.bad).insert(number);
    }

    /// How the meta of a place marks that its last use is over.
    pub(crate) fn unused(&self, number: SegmentNumber) -> Use {
        if self.is_bad(number) { Use::Retired } else { Use::Free }
    }

    /// Whether a part of the place cannot be read.
    pub(crate) fn is_bad(&self, number: SegmentNumber) -> bool {
        lock(&self.bad).contains(&number)
    }

    /// Places of which a part could not be read.
    pub fn bad_places(&self) -> usize {
        lock(&self.bad).len()
    }

    /// How many syncs have failed: what [`Store::sync`] has to know from before the writes that it is for.
    pub fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Ordering::Acquire)
    }

    /// Syncs the device, for writes that began when so many syncs had [failed](Store::failed_syncs).
    ///
    /// # Errors
    /// Those of the device; also if another sync has failed since, which may have lost these writes: the device
    /// tells of a loss only once.
    pub fn sync(&self, failed_syncs: u64) -> io::Result<()> {
        // One after the other: one that failed is counted before the next can succeed.
        let _syncing = lock(&self.syncing);
        let synced = self.device.sync();
        if synced.is_err() {
            self.failed_syncs.fetch_add(1, Ordering::Release);
        } else if self.failed_syncs() != failed_syncs {
            return Err(io::Error::other("the device has lost writes in another sync"));
        }
        synced
    }

    /// Has the device prepared for a segment. If it cannot, the segment's own writes will tell.
    pub(crate) fn prepare(&self, number: SegmentNumber) {
        let place = self.geometry.segment(number);
        if let Ok(written) = self.device.prepare(place, self.segment_size()) {
            self.written.fetch_add(written as u64, Ordering::Relaxed);
        }
    }

    /// Bytes that were written to the device since the store was opened, of whatever kind.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of dead maps that were written, since the store was opened.
    pub fn map_bytes_written(&self) -> u64 {
        self.work.maps.load(Ordering::Relaxed)
    }

    /// Bytes of records in segments that were freed, since the store was opened.
    pub fn freed_bytes(&self) -> u64 {
        self.work.freed.load(Ordering::Relaxed)
    }

    /// Bytes that were read to look at whole segments, since the store was opened.
    pub fn segment_bytes_read(&self) -> u64 {
        self.work.segment_reads.load(Ordering::Relaxed)
    }

    /// Segments of the store.
    pub fn segment_count(&self) -> usize {
        self.entries.len() - 1
    }

    /// How many segments there may be before the next start.
    pub fn most_segments(&self) -> usize {
        self.geometry.segment_count() as usize
    }

    /// Makes room for so many segments, before the store is used.
    pub(crate) fn reserve_places(&mut self, most: u32) {
        let now = self.segment_count();
        let geometry = Geometry::new(self.geometry.segment_size(), most.max(now as u32));
        if let Some(geometry) = geometry {
            let most = geometry.segment_count() as usize;
            self.entries = Table::new(now + 1, most + 1, |_| Entry::default());
            self.geometry = geometry;
        }
    }

    /// How many segments, the first ones, lie on the fast device; 0: there is no lower one.
    pub fn fast_segments(&self) -> u32 {
        self.fast_segments
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> usize {
        self.geometry.segment_size() as usize
    }

    /// Hash of a value for its record's checksum; the value may come in two pieces.
    pub fn value_hash(&self, first: &[u8], second: &[u8]) -> u64 {
        let seed = self.identity.checksum_seed;
        if second.is_empty() {
            return format::value_hash(first, seed);
        }
        let mut hasher = format::ValueHasher::new(seed);
        hasher.update(first);
        hasher.update(second);
        hasher.finish()
    }

    /// With what the checksums of records in this use of a segment are seeded.
    #[inline]
    pub(crate) fn segment_seed(&self, number: SegmentNumber, generation: u32) -> SegmentSeed {
        SegmentSeed::new(self.identity.checksum_seed, number, generation)
    }

    /// Bytes of a dead map.
    pub fn map_bytes(&self) -> usize {
        self.geometry.map_bytes()
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    #[inline]
    pub(crate) fn entry(&self, number: SegmentNumber) -> &Entry {
        &self.entries[number as usize]
    }

    /// Every record of the segment that was dead after this commit is marked in its durable dead map.
    pub(crate) fn cover(&self, number: SegmentNumber) -> u64 {
        self.entry(number).cover.load(Ordering::Relaxed)
    }

    /// A commit that will cover what was reserved before this call, by the calling thread in an
    /// [`Appending`](crate::Appending) that still lives, or by another thread and published. While a
    /// commit is being closed that one may do so already: see [`Store::commit_of`].
    #[inline]
    pub fn open_commit(&self) -> u64 {
        self.open_commit.load(Ordering::Acquire)
    }

    /// The last commit that is durable or has failed.
    #[inline]
    pub fn settled_commit(&self) -> u64 {
        self.settled_commit.load(Ordering::Acquire)
    }

    /// The commit that decides about what lies before `end` in a segment, no earlier and no later one,
    /// so that what is answered when it fails has not happened; `None` if that is durable. For the
    /// thread that has just reserved it, while its [`Appending`](crate::Appending) lives, and for
    /// whoever has found it published.
    #[inline]
    pub fn commit_of(&self, segment: &Segment, end: u32) -> Option<u64> {
        let mut turn = 0;
        loop {
            let settled = self.settled_commit();
            if segment.is_durable(end) {
                return None;
            }
            let open = self.open_commit();
            let closing = self.closed_commit.load(Ordering::Acquire) + 1 != open;
            let covered = segment.closed() >= end;
            // Marks move in the order open, closed, durable, settled. So if no commit was being closed
            // or settled meanwhile, what is covered belongs to the one in flight, and the rest to the
            // one that is open.
            if covered && self.settled_commit() == settled {
                return Some(settled + 1);
            }
            if !covered && !closing && self.open_commit() == open {
                return Some(open);
            }
            spin(&mut turn);
        }
    }

    /// The last commit that is durable: everything of it and of all before it is, unless it was undone.
    pub fn durable_commit(&self) -> u64 {
        self.durable_commit.load(Ordering::Acquire)
    }

    /// The commit is durable, and with it all before it.
    pub(crate) fn settle(&self, commit: u64) {
        self.durable_commit.store(commit, Ordering::Release);
        self.settled_commit.store(commit, Ordering::Release);
    }

    /// The commit has failed, and is settled so.
    pub(crate) fn settle_failed(&self, commit: u64) {
        lock(&self.failed).insert(commit);
        self.last_failed.store(commit, Ordering::Release);
        self.settled_commit.store(commit, Ordering::Release);
    }

    /// How far a commit has come.
    #[inline]
    pub fn commit_state(&self, commit: u64) -> CommitState {
        if self.settled_commit() < commit {
            CommitState::Pending
        } else if commit <= self.last_failed.load(Ordering::Acquire)
            && lock(&self.failed).contains(commit)
        {
            CommitState::Failed
        } else {
            CommitState::Durable
        }
    }

    /// A number that changes when changes that are not durable begin to be undone, and when that has
    /// ended; odd meanwhile.
    pub fn undoings(&self) -> u64 {
        self.undoings.load(Ordering::Acquire)
    }

    /// Changes that are not durable are about to be undone; [`Log::fail_commits`](crate::Log::fail_commits)
    /// ends that.
    pub fn begin_undo(&self) {
        self.undoings.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_undo(&self) {
        self.undoings.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes the superblock; the next commit makes it durable.
    pub fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut changing = lock(&self.changing);
        change(&mut changing.superblock);
        changing.changes += 1;
    }

    /// What the superblock says now.
    pub fn superblock(&self) -> Superblock {
        lock(&self.changing).superblock
    }

    /// Changes the superblock and makes it durable at once, waiting for the device; others may change it
    /// meanwhile. For threads that nobody waits for: workers leave it to a commit.
    ///
    /// # Errors
    /// Those of the device. Then nothing is changed, with the next commit on the device too;
    /// what a crash before that shows is as uncertain as after any failed write.
    pub fn change_superblock_now(&self, change: impl Fn(&mut Superblock)) -> io::Result<()> {
        // The committer waits meanwhile: two writers would write the same copy.
        let _writing = lock(&self.writing_superblock);
        let mut next = *lock(&self.changing);
        change(&mut next.superblock);
        let failed_syncs = self.failed_syncs();
        let written = self.write_superblock(&next).and_then(|()| self.sync(failed_syncs));
        let mut changing = lock(&self.changing);
        match written {
            Ok(()) => {
                change(&mut changing.superblock);
                // A commit that wrote the same copy before may have settled meanwhile.
                changing.superblock.counter = next.superblock.counter + 1;
                changing.durable = changing.durable.max(next.changes);
                changing.mirrored = false;
            }
            Err(_) => changing.changes += 1,
        }
        written
    }

    fn write_superblock(&self, changing: &Changing) -> io::Result<()> {
        let counter = changing.superblock.counter + 1;
        let superblock = Superblock { counter, ..changing.superblock };
        let mut block = [0; BLOCK];
        superblock.encode(&mut block);
        debug_assert!(Superblock::decode(&block).is_ok(), "the next start could not read it");
        self.write(SUPERBLOCKS[superblock.copy()], &block)
    }

    /// Writes the superblock to the older of its copies if it has changed, and with the next commit to the
    /// other one: a start that cannot read one copy finds no older state in the other. The answer is
    /// for [`Store::settle_superblock`] after the sync.
    pub(crate) fn write_changed_superblock(&self) -> io::Result<Option<SuperblockWrite>> {
        let _writing = lock(&self.writing_superblock);
        // A copy: whoever only wants to know what it says does not wait for the device.
        let changing = *lock(&self.changing);
        if !changing.wants_write() {
            return Ok(None);
        }
        self.write_superblock(&changing)?;
        let counter = changing.superblock.counter + 1;
        Ok(Some(SuperblockWrite { counter, changes: changing.changes }))
    }

    /// What [`Store::write_changed_superblock`] wrote is durable.
    pub(crate) fn settle_superblock(&self, written: SuperblockWrite) {
        let mut changing = lock(&self.changing);
        // Otherwise a change that was made durable at once has gone over the same copy.
        if changing.superblock.counter < written.counter {
            changing.superblock.counter = written.counter;
            changing.mirrored = written.changes == changing.durable;
            changing.durable = changing.durable.max(written.changes);
        }
    }

    /// Begins a new use of a segment: writes its header at `at`.
    ///
    /// # Safety
    /// The header's bytes at `at` must be the caller's own.
    pub(crate) unsafe fn begin_segment(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
        jumbo_parts: Option<Vec<SegmentNumber>>,
    ) {
        // Of a jumbo the commit and the list that the commit takes it from belong together; other segments
        // are begun under their stream's lock, which no commit is closed without.
        let mut new_jumbos = jumbo_parts.is_some().then(|| lock(&self.new_jumbos));
        let entry = self.entry(number);
        // The open commit may be one too late.
        entry.cover.store(self.settled_commit(), Ordering::Relaxed);
        self.begin_deaths(number);
        entry.end.store(0, Ordering::Relaxed);
        entry.sealed.store(false, Ordering::Release);
        let parts = jumbo_parts.as_ref().map(Vec::len);
        // SAFETY: the caller owns these bytes.
        unsafe { self.write_header(number, segment, stream, at, parts) };
        if let Some(parts) = jumbo_parts {
            lock(&self.parts).insert(number, parts);
        }
        if let Some(new_jumbos) = &mut new_jumbos {
            new_jumbos.push(number);
        }
    }

    /// Counts a segment to a later commit than the one it was opened in: nothing of it is durable.
    ///
    /// # Safety
    /// As [`Store::begin_segment`].
    pub(crate) unsafe fn reopen_segment(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
    ) {
        let parts = segment.is_jumbo().then(|| self.parts(number).len());
        // SAFETY: the caller owns these bytes.
        unsafe { self.write_header(number, segment, stream, at, parts) };
    }

    /// # Safety
    /// As [`Store::begin_segment`].
    unsafe fn write_header(
        &self,
        number: SegmentNumber,
        segment: &Segment,
        stream: Stream,
        at: *mut u8,
        further: Option<usize>,
    ) {
        let opened = self.open_commit();
        let entry = self.entry(number);
        entry.opened.store(opened, Ordering::Relaxed);
        entry.last_commit.store(opened, Ordering::Relaxed);
        let header = Header {
            segment: number,
            generation: segment.generation(),
            stream: stream as u8,
            opened,
            born: segment.born(),
            jumbo: further.map(|further| JumboSize {
                value: segment.jumbo_value() as u64,
                parts: further as u32 + 1,
            }),
        };
        let bytes = header.encode(&self.identity);
        // SAFETY: the caller owns these bytes.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Places that a jumbo whose record has `size` bytes covers, its first included.
    pub(crate) fn jumbo_places(&self, size: usize) -> usize {
        format::jumbo::parts(size, self.geometry.segment_size()) as usize
    }

    /// The places of a jumbo's pieces.
    pub(crate) fn places(&self, number: SegmentNumber) -> impl Iterator<Item = SegmentNumber> {
        std::iter::once(number).chain(self.parts(number))
    }

    /// The further places of a jumbo.
    pub(crate) fn parts(&self, number: SegmentNumber) -> Vec<SegmentNumber> {
        lock(&self.parts).get(&number).cloned().unwrap_or_default()
    }

    pub(crate) fn set_parts(&self, number: SegmentNumber, parts: Vec<SegmentNumber>) {
        lock(&self.parts).insert(number, parts);
    }

    pub(crate) fn take_parts(&self, number: SegmentNumber) -> Vec<SegmentNumber> {
        lock(&self.parts).remove(&number).unwrap_or_default()
    }

    /// Records in a segment that were removed without a newer version, at these offsets.
    pub fn keep_ends(&self, number: SegmentNumber, mut ends: Vec<u32>) {
        if !ends.is_empty() {
            let mut all = lock(&self.kept_ends);
            let kept = all.entry(number).or_default();
            kept.append(&mut ends);
            kept.sort_unstable();
            kept.dedup();
            self.keep_ends.store(all.len() as u32, Ordering::Release);
        }
    }

    /// Whether any segment has such ends as [`Store::kept_ends`] gives.
    pub(crate) fn keeps_ends(&self) -> bool {
        self.keep_ends.load(Ordering::Acquire) > 0
    }

    /// The offsets of such records in a segment.
    pub fn kept_ends(&self, number: SegmentNumber) -> Vec<u32> {
        lock(&self.kept_ends).get(&number).cloned().unwrap_or_default()
    }

    /// The segments that have such ends.
    pub fn segments_with_kept_ends(&self) -> Vec<SegmentNumber> {
        lock(&self.kept_ends).keys().copied().collect()
    }

    /// All of them, by segment.
    pub(crate) fn all_kept_ends(&self) -> Vec<(SegmentNumber, Vec<u32>)> {
        let kept = lock(&self.kept_ends);
        kept.iter().map(|(&number, ends)| (number, ends.clone())).collect()
    }

    /// The segment is free: nothing that is said of it holds for its next use.
    pub(crate) fn forget_segment(&self, number: SegmentNumber) {
        {
            let mut kept = lock(&self.kept_ends);
            kept.remove(&number);
            self.keep_ends.store(kept.len() as u32, Ordering::Release);
        }
        for end in lock(&self.durable_ends).iter_mut().filter(|end| end.segment == number) {
            *end = DurableEnd::default();
        }
    }

    pub(crate) fn note_unsynced(&self, stream: Stream, number: SegmentNumber) {
        lock(&self.unsynced[stream as usize]).push(number);
    }

    pub(crate) fn unsynced_segments(&self, stream: Stream) -> Vec<SegmentNumber> {
        lock(&self.unsynced[stream as usize]).clone()
    }

    pub(crate) fn take_unsynced(&self, stream: Stream) -> Vec<SegmentNumber> {
        std::mem::take(&mut *lock(&self.unsynced[stream as usize]))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
