//! Per-thread state of a writing thread: a [chunk](crate::append::chunks) of the open segment, and
//! a [tally](crate::append::tally) of the bytes it made dead. Without them, two writing threads
//! would contend for the cache lines of segments with every record.
//!
//! With a store, the size of a chunk is a small share of what the thread has appended since the
//! last commit was closed. So commits in quick succession waste little.

use crate::address::{Address, SegmentNumber};
use crate::append::chunks::{Chunk, EvenClosings, OpenChunk};
use crate::append::tally::Tally;
use crate::append::{Claim, Reservation, Stream};
use crate::format;
use crate::log::Log;
use crate::record::{HEADER, Kind, Layout, write_filler};
use crate::rule::{self, Rule};
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use std::cell::Cell;
use std::sync::Arc;

/// A thread takes at most 1/`CHUNKS_PER_SEGMENT` of a segment at once: 8 KiB of 2 MiB. Its chunk
/// grows by as much again if no other thread has appended behind it.
const CHUNKS_PER_SEGMENT: usize = 256;
/// All threads together take at most 1/`ALL_CHUNKS_SHARE` of a segment at once, because the unused
/// rests of their chunks are lost when the segment is full.
const ALL_CHUNKS_SHARE: usize = 16;
/// A thread takes or extends a chunk for a record only if at least this many records of its size
/// fit into a chunk. This limits waste: a chunk's rest that is too short for the next record is
/// lost if another thread has appended behind the chunk.
const RECORDS_PER_CHUNK: usize = 32;
/// With a store, a thread takes at once at most 1/`SHARE_OF_APPENDED` of the bytes that it has
/// appended since the last commit was closed. The next commit ends the chunk, and on average half
/// of the bytes that were taken last are then unused.
const SHARE_OF_APPENDED: u32 = 16;

/// One thread's state for appending.
#[derive(Debug)]
pub struct Appender {
    chunk: Cell<Chunk>,
    open: Arc<OpenChunk>,
    /// True if the rest of the chunk is counted as dead; never while the thread fills the chunk.
    rest_is_dead: Cell<bool>,
    /// Without a store: true if the chunk was used since the thread's last quiescent point.
    used: Cell<bool>,
    /// The [count of closings](EvenClosings) at the thread's last append, and the bytes that the
    /// thread has appended since this count was reached.
    appended: Cell<(EvenClosings, u32)>,
    tally: Tally,
}

impl Appender {
    /// Returns the unused bytes of the chunk.
    fn left(&self) -> u32 {
        self.chunk.get().end - self.open.at()
    }

    /// Takes the next `bytes` of the chunk. Returns `None` if they do not fit, or if they would
    /// leave a rest that is too short for a filler.
    #[inline]
    fn take(&self, bytes: u32) -> Option<u32> {
        let left = self.left().checked_sub(bytes)?;
        let at = self.open.at();
        let fits = left == 0 || left as usize > HEADER;
        fits.then(|| {
            self.open.set_at(at + bytes);
            at
        })
    }

    /// Returns the bytes that the thread appended since the last commit was closed.
    fn appended(&self, now: EvenClosings) -> u32 {
        let (since, bytes) = self.appended.get();
        if since == now { bytes } else { 0 }
    }

    fn count_appended(&self, now: EvenClosings, bytes: u32) {
        self.appended.set((now, self.appended(now).saturating_add(bytes)));
    }
}

impl Log {
    /// Announces that a commit is about to reserve its trailers, by raising the count of closings.
    /// From here to [`Log::end_closing`], appends that begin use no chunk: they reserve space at
    /// the segment's end. So once a record lies behind a trailer, no later append goes in front of
    /// that trailer. A thread that has not seen the raised count was already appending, and the
    /// committer waits for that append. Only one thread at a time closes a commit.
    pub(crate) fn begin_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends what [`Log::begin_closing`] announced. The trailers are reserved, so later reservations
    /// lie behind them.
    pub(crate) fn end_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes fillers into the unused rests of all chunks that the commit covers. Appends that
    /// began before the commit was closed must be complete.
    pub(crate) fn fill_covered_chunks(&self) {
        let count = self.closings.0.load(Ordering::Relaxed);
        let chunks: Vec<Arc<OpenChunk>> = lock(&self.open_chunks).clone();
        for open in chunks {
            let mut unfilled = lock(&open.unfilled);
            if unfilled.is_some_and(|chunk| chunk.taken.0 < count) {
                self.fill_up_taken(&open, &mut unfilled);
            }
        }
    }

    /// Writes a filler into the unused rest of the thread's chunk, unless that is done already.
    pub(crate) fn fill_up_chunk(&self, open: &OpenChunk) {
        self.fill_up_taken(open, &mut lock(&open.unfilled));
    }

    fn fill_up_taken(&self, open: &OpenChunk, unfilled: &mut Option<Chunk>) {
        let Some(chunk) = unfilled.take() else { return };
        let left = (chunk.end - open.at()) as usize;
        if left == 0 {
            return;
        }
        let rest = self.segment(chunk.segment).frame().wrapping_add(open.at() as usize);
        // SAFETY: a rest is a multiple of 8 bytes and at least 16. With a store, no settled commit
        // covers the chunk, so the frame stays; the rest is filled once, under the lock. Without a
        // store the thread has used the chunk since its last quiescent point, so the segment cannot
        // have been reused.
        unsafe { write_filler(rest, left) };
        if let Some(store) = &self.store {
            let seed = store.segment_seed(chunk.segment, chunk.generation);
            let layout = Layout { header: HEADER, key: 0, value: left - HEADER };
            // SAFETY: as above, and the filler's head was just written. The checksum of a filler
            // ignores the value, so the value need not be written.
            unsafe { format::seal_record(rest, Kind::Filler, &layout, None, seed) };
        }
    }

    /// Creates an appender for a thread that will append.
    pub fn appender(&self) -> Appender {
        let tally = Tally::new(self.segments.len());
        self.budget.charge(tally.footprint());
        let open = Arc::<OpenChunk>::default();
        let mut all = lock(&self.open_chunks);
        all.push(Arc::clone(&open));
        self.appenders.store(all.len(), Ordering::Relaxed);
        drop(all);
        Appender {
            chunk: Cell::default(),
            open,
            rest_is_dead: Cell::default(),
            used: Cell::default(),
            appended: Cell::default(),
            tally,
        }
    }

    /// Retires the appender of a thread that no longer appends.
    pub fn retire(&self, appender: &Appender) {
        self.report_dead(appender);
        self.fill_up_chunk(&appender.open);
        let mut all = lock(&self.open_chunks);
        all.retain(|open| !Arc::ptr_eq(open, &appender.open));
        self.appenders.store(all.len(), Ordering::Relaxed);
        drop(all);
        self.budget.release(appender.tally.footprint());
    }

    /// Counts a record of `bytes` in a segment as superseded or removed. The caller has already
    /// changed the index.
    #[inline]
    pub fn kill_for(&self, appender: &Appender, number: SegmentNumber, bytes: usize) {
        self.count_dead(&appender.tally, number, bytes);
    }

    /// Without a store, writes a filler into the rest of the chunk if the chunk was used. Then
    /// reports the bytes that the thread made dead, if [`Log::want_counts`] has asked for them.
    /// Returns true if it has reported any. The thread must call this before each of its quiescent
    /// points.
    #[inline]
    pub fn before_quiescent(&self, appender: &Appender) -> bool {
        self.fill_used_chunk(appender);
        self.wants_counts_of(&appender.tally) && self.report_dead(appender)
    }

    /// Without a store: writes a filler into the unused rest of the chunk, if the chunk was used
    /// since the last quiescent point. After the next quiescent point, other threads may walk its
    /// segment.
    #[inline]
    fn fill_used_chunk(&self, appender: &Appender) {
        if appender.used.replace(false) {
            self.fill_up_chunk(&appender.open);
        }
    }

    /// Reports all bytes that the thread made dead, the rest of its chunk included. Must be called
    /// before the thread passes a quiescent point. Returns true if there were any.
    pub fn report_dead(&self, appender: &Appender) -> bool {
        self.fill_used_chunk(appender);
        let has_rest = !appender.rest_is_dead.get() && appender.left() > 0;
        if has_rest {
            self.leave_chunk(appender);
            appender.rest_is_dead.set(true);
        }
        self.report_counts(&appender.tally) || has_rest
    }

    /// Returns the dead bytes of a segment, as far as threads have reported them. Once the
    /// appenders of a sealed segment have passed a quiescent point, the count is never too high. A
    /// count that is too high could free a segment with live records.
    pub fn dead(&self, number: SegmentNumber) -> u32 {
        self.segment(number).dead()
    }

    /// Returns the number of live bytes of a segment. Bytes whose death no thread has reported yet
    /// count as live.
    pub fn live(&self, number: SegmentNumber) -> u32 {
        self.segment(number).filled().saturating_sub(self.dead(number))
    }

    /// Like [`Log::reserve`], for a thread with an appender: small records come from the thread's
    /// chunk. With a store, the thread must [show](crate::Participant::appending_seen) that it
    /// appends.
    #[inline]
    pub fn reserve_for(
        &self,
        appender: &Appender,
        stream: Stream,
        bytes: usize,
        now: u32,
        claim: Claim,
    ) -> Option<Reservation> {
        let Some(between) = self.closings.between().filter(|_| stream == Stream::Hot) else {
            return self.reserve(stream, bytes, now, claim);
        };
        loop {
            let number = self.open_segment(stream);
            self.admit(stream, number, claim)?;
            let segment = self.segment(number);
            if let Some(offset) = self.reserve_in_chunk(appender, number, between, bytes as u32) {
                if self.keeps_all {
                    segment.note_record(bytes as u32);
                }
                let address = Address::new(number, offset as usize);
                // SAFETY: the chunk lies inside the frame of a segment that was open a moment ago.
                // The segment is neither walked nor freed before this thread's next quiescent
                // point: see `roll`. No commit that covers the chunk is written before this append
                // has ended: see `begin_closing`.
                let memory = unsafe { segment.frame().add(offset as usize) };
                rule::reserved();
                return Some(Reservation { address, memory });
            }
            let taken = self
                .chunk_bytes(appender, between, bytes)
                .and_then(|length| Some((segment.reserve(length, 0)?, length)));
            let Some((at, length)) = taken else {
                // The record is too large for a chunk, or the segment has no room for a chunk. So
                // the record goes to the segment's end, or into the next segment.
                appender.count_appended(between, bytes as u32);
                return self.reserve(stream, bytes, now, claim);
            };
            appender.count_appended(between, length);
            let generation = segment.generation();
            let chunk = Chunk { segment: number, generation, taken: between, end: at + length };
            self.begin_chunk(appender, chunk, at);
        }
    }

    /// Gives the thread another chunk, which begins at `at`.
    fn begin_chunk(&self, appender: &Appender, chunk: Chunk, at: u32) {
        self.fill_up_chunk(&appender.open);
        if !appender.rest_is_dead.replace(false) && appender.left() > 0 {
            self.leave_chunk(appender);
        }
        appender.chunk.set(chunk);
        appender.open.set_at(at);
        appender.open.set(chunk);
        appender.used.set(self.store.is_none());
    }

    /// Returns the length of a chunk for a record of `bytes`, or `None` if the record gets no
    /// chunk.
    fn chunk_bytes(&self, appender: &Appender, between: EvenClosings, bytes: usize) -> Option<u32> {
        let (segment, appenders) = (self.segment_size(), self.appenders.load(Ordering::Relaxed));
        let mut most = (segment / CHUNKS_PER_SEGMENT.max(ALL_CHUNKS_SHARE * appenders)) as u32;
        if self.store.is_some() {
            if rule::CHUNKS_AT_ONCE {
                let length = (segment / CHUNKS_PER_SEGMENT * RECORDS_PER_CHUNK) as u32;
                return (bytes as u32 <= length).then_some(length);
            }
            most = most.min(appender.appended(between) / SHARE_OF_APPENDED);
        }
        let length = most / 8 * 8;
        ((bytes * RECORDS_PER_CHUNK) as u32 <= length).then_some(length)
    }

    #[inline]
    fn reserve_in_chunk(
        &self,
        appender: &Appender,
        number: SegmentNumber,
        between: EvenClosings,
        bytes: u32,
    ) -> Option<u32> {
        let (chunk, segment) = (appender.chunk.get(), self.segment(number));
        // A segment is closed a moment before the next one becomes the stream's open segment. Then
        // other threads append to the next segment, and their records count as newer than all
        // records of the closed one. So a chunk of a closed segment takes no more records.
        let is_open = chunk.segment == number
            && chunk.generation == segment.generation()
            && segment.takes_records();
        if !is_open || chunk.taken != between && !Rule::ChunksEndWithCommits.is_broken() {
            return None;
        }
        if appender.rest_is_dead.replace(false) {
            // The segment is still open, so it was not freed while the rest of the chunk counted as
            // dead. The segment will not be freed before this thread's next quiescent point.
            segment.revive(appender.left() as usize);
        }
        let taken = appender.take(bytes).or_else(|| {
            let more = self.chunk_bytes(appender, between, bytes as usize)?;
            self.extend_chunk(appender, between, more)?;
            appender.take(bytes)
        });
        if self.store.is_none() && taken.is_some() && !appender.used.replace(true) {
            appender.open.set(appender.chunk.get());
        }
        taken
    }

    /// Extends the chunk if no other thread has appended behind it.
    fn extend_chunk(&self, appender: &Appender, between: EvenClosings, more: u32) -> Option<()> {
        let chunk = appender.chunk.get();
        if !self.segment(chunk.segment).extend(chunk.end, more) {
            return None;
        }
        appender.count_appended(between, more);
        let chunk = Chunk { end: chunk.end + more, ..chunk };
        appender.chunk.set(chunk);
        appender.open.set(chunk);
        Some(())
    }

    /// Counts the rest of the chunk as dead.
    fn leave_chunk(&self, appender: &Appender) {
        let chunk = appender.chunk.get();
        self.kill_in(chunk.segment, chunk.generation, appender.left());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::commit::Committer;
    use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
    use crate::model::durable_log_of;
    use crate::record::{Kind, write_filler};
    use crate::{Budget, Config, Epochs};
    use std::sync::Arc;

    const SEGMENT: usize = 1 << 20;
    const CHUNK: usize = SEGMENT / CHUNKS_PER_SEGMENT;

    fn log() -> Log {
        let config = Config { segment_size: SEGMENT, max_frame_bytes: 32 << 20, keeps_all: false };
        let budget = Arc::new(Budget::new(32 << 20));
        Log::new(config, None, budget, Arc::new(Epochs::default())).unwrap()
    }

    fn append(log: &Log, appender: &Appender, bytes: usize) -> Address {
        let reserved =
            log.reserve_for(appender, Stream::Hot, bytes, 1, Claim::Write).expect("there is room");
        // SAFETY: the reservation is `bytes` long and belongs to this thread.
        unsafe { write_filler(reserved.memory, bytes) };
        reserved.address
    }

    /// Three appenders take turns, with and without chunks. A segment must be a run of records
    /// without gaps, and everything in it except the appended records must count as dead.
    #[test]
    fn chunks_leave_no_gaps_and_their_rests_count_as_dead() {
        let log = log();
        let appenders = [log.appender(), log.appender(), log.appender()];
        let mut written = Vec::new();
        for n in 0..SEGMENT / 40 {
            let bytes = [16, 24, 56, 40, 64, CHUNK][n % 6];
            written.push((append(&log, &appenders[n % 7 % 3], bytes), bytes));
        }
        log.seal_all();
        for appender in &appenders {
            log.report_dead(appender);
        }
        for number in log.numbers().filter(|&number| log.segment(number).is_in_use()) {
            let of_this = |&&(address, _): &&(Address, usize)| address.segment() == number;
            let wanted: Vec<_> = written.iter().filter(of_this).collect();
            let live: usize = wanted.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(log.live(number) as usize, live);
            // SAFETY: no thread appends any more.
            let records = unsafe { log.records(number, None) };
            let found: Vec<(Address, usize)> = records
                .inspect(|(_, record)| assert_eq!(record.kind(), Kind::Filler))
                .map(|(address, record)| (address, record.size()))
                .collect();
            let end = found.last().map_or(0, |(address, size)| address.offset() + size);
            assert_eq!(end, log.segment(number).filled() as usize);
            assert!(wanted.iter().all(|place| found.contains(place)));
        }
        for (address, bytes) in &written {
            log.kill_for(&appenders[0], address.segment(), *bytes);
        }
        for appender in &appenders {
            log.retire(appender);
        }
        for number in log.numbers().filter(|&number| log.segment(number).is_in_use()) {
            assert_eq!(log.live(number), 0);
        }
    }

    #[test]
    fn several_threads_waste_little() {
        for bytes in (16..CHUNK / 16).step_by(8) {
            let log = log();
            let appenders = [log.appender(), log.appender()];
            let first = append(&log, &appenders[0], bytes).segment();
            let mut n = 0;
            while append(&log, &appenders[n % 2], bytes).segment() == first {
                n += 1;
            }
            for appender in &appenders {
                log.report_dead(appender);
            }
            let wasted = log.dead(first) * 100 / log.segment(first).filled();
            assert!(wasted <= 4, "{wasted} % with records of {bytes} bytes");
        }
    }

    /// A commit ends the chunks of its records, and the rest of each chunk is wasted. A thread gets
    /// a chunk only if it has appended enough since the last commit. So commits of few records must
    /// waste nothing, and commits of many records at most 4 %.
    #[test]
    fn with_a_store_commits_waste_little() {
        for (records_per_commit, most_percent) in [(100, 0), (10_000, 4)] {
            let (log, _epochs) = durable_log_of(SEGMENT as u32);
            let appenders = [log.appender(), log.appender()];
            let (mut committer, mut in_chunks, mut before) = (Committer::default(), 0, None);
            let mut bytes = 0;
            for n in 0..6 * records_per_commit {
                let address = append(&log, &appenders[n / 7 % 2], 40);
                let place = (address.segment(), address.offset());
                in_chunks += usize::from(before.is_some_and(|before| place < before));
                before = Some(place);
                bytes += 40;
                if n % records_per_commit == records_per_commit - 1 {
                    let log = log.durable().unwrap();
                    let closed = log.close_commit(&mut committer);
                    assert!(log.is_closed(address));
                    let written = log.write_commit(&mut committer, &closed).unwrap();
                    log.settle_commit(&mut committer, &closed, written);
                }
            }
            assert_eq!(in_chunks > 0, records_per_commit > 1000, "{in_chunks}");
            log.seal_all();
            for appender in &appenders {
                log.report_dead(appender);
            }
            let numbers = || log.numbers().filter(|&number| log.segment(number).is_in_use());
            let live: usize = numbers().map(|number| log.live(number) as usize).sum();
            let filled: usize = numbers().map(|number| log.segment(number).filled() as usize).sum();
            let beside = 6 * TRAILER_BYTES + numbers().count() * (HEADER_BYTES + TRAILER_BYTES);
            assert_eq!(live, bytes);
            let wasted = (filled.saturating_sub(bytes + beside)) * 100 / bytes;
            assert!(wasted <= most_percent, "{wasted} % are lost");
        }
    }

    #[test]
    fn one_thread_alone_wastes_nothing() {
        let log = log();
        let appender = log.appender();
        let first = append(&log, &appender, 40);
        for n in 1..500 {
            let next = append(&log, &appender, 40);
            assert_eq!((next.segment(), next.offset()), (first.segment(), n * 40));
        }
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p larder-log --release loom`
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::commit::Committer;
    use crate::model::{SEGMENT, durable_log};
    use crate::record::{Fields, Layout, write_head};
    use crate::sync::atomic::AtomicU64;
    use crate::sync::model::{Outcomes, check, spawn};
    use std::sync::Arc;

    /// A thread appends in its chunk, then at the end of the segment, then in its chunk again,
    /// while a commit is closed. If the commit covers the last of the three records, it must also
    /// cover the second. All records that it covers must be filled.
    #[test]
    fn loom_chunks_end_with_commits() {
        let outcomes = Arc::new(Outcomes::default());
        let noted = Arc::clone(&outcomes);
        check(3, move || {
            let (log, epochs) = durable_log();
            let writer = epochs.join();
            let (with_chunk, without) = (log.appender(), log.appender());
            // The first append opens the segment, the second takes a chunk.
            let begun = [append(&log, &with_chunk), append(&log, &with_chunk)];
            let filled = Arc::new(AtomicU64::new(0));
            loom::explore();
            let thread = {
                let (log, filled) = (Arc::clone(&log), Arc::clone(&filled));
                spawn(move || {
                    let [_, before] = [&with_chunk, &without].map(|appender| {
                        let _appending = writer.appending_seen();
                        append(&log, appender)
                    });
                    let _appending = writer.appending_seen();
                    let address = append(&log, &with_chunk);
                    filled.store(1, Ordering::Relaxed);
                    (before, address)
                })
            };
            log.durable().unwrap().close_commit(&mut Committer::default());
            let was_filled = filled.load(Ordering::Relaxed) == 1;
            let (before, address) = thread.join().unwrap();
            let covered = log.is_closed(address);
            assert!(begun.into_iter().all(|address| log.is_closed(address)));
            assert!(!covered || was_filled, "a commit covers a record that is not filled");
            assert!(!covered || log.is_closed(before), "a commit covers the later one only");
            noted.note((covered, address.offset() < before.offset()));
        });
        let all = outcomes.all();
        assert!(all.contains(&(true, true)), "in its chunk: {all:?}");
        assert!(all.contains(&(false, false)), "behind the commit: {all:?}");
    }

    /// One thread closes the full segment F and opens the next. Meanwhile another thread opens the
    /// segment S of the other stream, and then appends a record R in its chunk. If R still goes
    /// into F, S must not count as opened after F was closed. Otherwise Larder would assume that no
    /// record of F hides a version in S. R may do so, and F could then be freed too early.
    #[test]
    fn loom_chunks_end_with_their_segment() {
        let outcomes = Arc::new(Outcomes::default());
        let noted = Arc::clone(&outcomes);
        check(3, move || {
            let (log, epochs) = durable_log();
            let (writer, appender) = (epochs.join(), log.appender());
            let [first, _] = [append(&log, &appender), append(&log, &appender)];
            let most = SEGMENT as usize / 2 - 64;
            log.reserve(Stream::Hot, most, 1, Claim::Clean).expect("there is room");
            loom::explore();
            let thread = {
                let log = Arc::clone(&log);
                spawn(move || log.reserve(Stream::Hot, most, 1, Claim::Clean).is_some())
            };
            let other = log.reserve(Stream::Survivors, 64, 1, Claim::Clean).expect("there is room");
            let appending = writer.appending_seen();
            let address = append(&log, &appender);
            drop(appending);
            assert!(thread.join().unwrap());
            let in_old = address.segment() == first.segment();
            let is_newer =
                log.durable().unwrap().is_opened_after(other.address.segment(), first.segment());
            assert!(!in_old || !is_newer, "S counts as opened after F, which took R later");
            noted.note((in_old, is_newer));
        });
        let all = outcomes.all();
        assert!(all.contains(&(true, false)) && all.contains(&(false, true)), "{all:?}");
    }

    fn append(log: &Log, appender: &Appender) -> Address {
        let fields = Fields { seq: 1, ..Fields::default() };
        let layout = Layout::of(&fields, 1, 0);
        let reserved = log
            .reserve_for(appender, Stream::Hot, layout.size(), 1, Claim::Write)
            .expect("there is room");
        // SAFETY: the reservation belongs to this thread and has the length of the layout.
        unsafe { write_head(reserved.memory, &layout, &fields, b"k") };
        reserved.address
    }
}
