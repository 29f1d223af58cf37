//! What a thread keeps to itself while it writes: a chunk of the open segment, and a [tally](crate::tally) of
//! what it made dead. Two threads that write would otherwise take the cache line of the segment's end from each
//! other with every record.
//!
//! With a store a commit covers all chunks that were taken before it, so they end with it: while a commit is
//! [closed](Closings) no thread begins to use a chunk, and what it had is left. Chunks are a small share of what
//! the thread has appended since then, so commits that follow each other closely waste little.

use crate::address::{Address, SegmentNumber};
use crate::format;
use crate::log::{Claim, Log, Reservation, Stream};
use crate::record::{HEADER, Kind, Layout, write_filler};
use crate::rule::{self, Rule};
use crate::segment::Segment;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tally::Tally;
use std::cell::Cell;

/// A chunk of 8 KiB in a segment of 2 MiB: one in so many bytes of a segment.
const CHUNKS: usize = 256;
/// The chunks of all threads together are one in so many bytes of a segment at most: when it is full, their rests
/// are lost.
const ALL_CHUNKS: usize = 16;
/// Records of which fewer than so many fit into a chunk are appended without: what does not fit behind
/// the last one is lost if another thread has appended behind the chunk.
const RECORDS: usize = 32;
/// With a store, one in so many bytes that the thread has appended since a commit was closed: on average half a
/// chunk is lost with the next one.
const SHARE_OF_APPENDED: u32 = 16;

/// How often commits were closed, counted when that begins and when it ends: while one is closed the count is odd.
/// All threads that append read it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Closings(AtomicU64);

/// A [count of closings](Closings) at which a thread may use chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Between(u64);

impl Closings {
    /// The count, unless a commit is being closed.
    #[inline]
    fn between(&self) -> Option<Between> {
        let count = self.0.load(Ordering::Acquire);
        count.is_multiple_of(2).then_some(Between(count))
    }
}

/// Bytes of an open segment that are one thread's to fill. From `at` to `end` there is a filler, so that whoever
/// walks the segment need not know of chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    segment: SegmentNumber,
    generation: u32,
    /// When it was taken.
    taken: Between,
    at: u32,
    end: u32,
    /// The filler is counted as dead. While the thread fills the chunk, it is not.
    counted: bool,
}

impl Chunk {
    fn left(&self) -> u32 {
        self.end - self.at
    }

    /// Space for a record at its front, if what is left can be a filler.
    fn take(&mut self, bytes: u32) -> Option<u32> {
        let left = self.left().checked_sub(bytes)?;
        let at = self.at;
        let fits = left == 0 || left as usize > HEADER;
        fits.then(|| {
            self.at += bytes;
            at
        })
    }
}

/// One thread's part in appending.
#[derive(Debug)]
pub struct Appender {
    chunk: Cell<Chunk>,
    /// Bytes that it appended since a commit was closed, and when that was.
    appended: Cell<(Between, u32)>,
    tally: Tally,
}

impl Appender {
    /// Bytes that it appended since a commit was closed.
    fn appended(&self, now: Between) -> u32 {
        let (since, bytes) = self.appended.get();
        if since == now { bytes } else { 0 }
    }

    fn count_appended(&self, now: Between, bytes: u32) {
        self.appended.set((now, self.appended(now).saturating_add(bytes)));
    }
}

impl Log {
    /// For a thread that will append.
    pub fn appender(&self) -> Appender {
        let tally = Tally::new(self.segments.len());
        self.budget.charge(tally.footprint());
        self.appenders.fetch_add(1, Ordering::Relaxed);
        Appender { chunk: Cell::default(), appended: Cell::default(), tally }
    }

    /// The thread will not append any more.
    pub fn retire(&self, appender: &Appender) {
        self.tell_dead(appender);
        self.appenders.fetch_sub(1, Ordering::Relaxed);
        self.budget.release(appender.tally.footprint());
    }

    /// A record of `bytes` in a segment was superseded or removed. The thread has changed the index before.
    #[inline]
    pub fn kill_for(&self, appender: &Appender, number: SegmentNumber, bytes: usize) {
        self.count_dead(&appender.tally, number, bytes);
    }

    /// Tells what the thread made dead, if the cleaner has asked for that. The answer is whether there was
    /// anything.
    #[inline]
    pub fn tell_dead_if_wanted(&self, appender: &Appender) -> bool {
        self.wants_counts_of(&appender.tally) && self.tell_dead(appender)
    }

    /// Tells what the thread made dead; the answer is whether there was anything.
    pub fn tell_dead(&self, appender: &Appender) -> bool {
        let mut chunk = appender.chunk.get();
        let has_rest = !chunk.counted && chunk.left() > 0;
        if has_rest {
            self.leave_chunk(chunk);
            chunk.counted = true;
            appender.chunk.set(chunk);
        }
        self.tell_counts(&appender.tally) || has_rest
    }

    /// Bytes of a segment's records that are dead, as far as threads have told: of a sealed one whose appenders
    /// have passed a quiescent point never too many, for a segment in which all is dead is freed.
    pub fn dead(&self, number: SegmentNumber) -> u32 {
        self.segment(number).dead()
    }

    /// Bytes of a segment's records that are alive, as far as threads have told.
    pub fn live(&self, number: SegmentNumber) -> u32 {
        self.segment(number).filled().saturating_sub(self.dead(number))
    }

    /// The trailers of a commit are about to be reserved: from here on nobody begins to use a chunk that was taken
    /// before, and none is taken until [`Log::end_closing`]. Whoever appends after another has appended behind a
    /// trailer sees this, and appends behind it too. Whoever does not see it is waited for when the trailers are
    /// reserved. One thread closes commits.
    pub(crate) fn begin_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The trailers are reserved: what is reserved from here on lies behind them.
    pub(crate) fn end_closing(&self) {
        self.closings.0.fetch_add(1, Ordering::AcqRel);
    }

    /// [`Log::reserve`] for a thread with an appender: small records come from the thread's chunk. With a store,
    /// the thread [shows](crate::Participant::appending_seen) that it appends.
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
                // SAFETY: the chunk lies inside of the frame of a segment that was open a moment ago: it is
                // neither walked nor freed before this thread's next quiescent point, see `roll`, and no
                // commit that covers it is written before this append has ended, see `begin_closing`.
                let memory = unsafe { segment.frame().add(offset as usize) };
                rule::reserved();
                return Some(Reservation { address, memory });
            }
            let taken = self
                .chunk_bytes(appender, between, bytes)
                .and_then(|length| Some((segment.reserve(length, 0)?, length)));
            let Some((at, length)) = taken else {
                // Too large a record; or the rest of the segment, and then the next one.
                appender.count_appended(between, bytes as u32);
                return self.reserve(stream, bytes, now, claim);
            };
            appender.count_appended(between, length);
            let chunk = Chunk {
                segment: number,
                generation: segment.generation(),
                taken: between,
                at,
                end: at + length,
                counted: false,
            };
            self.fill_up(segment, chunk);
            let last = appender.chunk.replace(chunk);
            if !last.counted && last.left() > 0 {
                self.leave_chunk(last);
            }
        }
    }

    /// How long a chunk may be that is taken for a record of `bytes`; `None`: it is appended without.
    fn chunk_bytes(&self, appender: &Appender, between: Between, bytes: usize) -> Option<u32> {
        let (segment, appenders) = (self.segment_size(), self.appenders.load(Ordering::Relaxed));
        let mut most = (segment / CHUNKS.max(ALL_CHUNKS * appenders)) as u32;
        if self.store.is_some() {
            if rule::CHUNKS_AT_ONCE {
                let length = (segment / CHUNKS * RECORDS) as u32;
                return (bytes as u32 <= length).then_some(length);
            }
            most = most.min(appender.appended(between) / SHARE_OF_APPENDED);
        }
        let length = most / 8 * 8;
        ((bytes * RECORDS) as u32 <= length).then_some(length)
    }

    #[inline]
    fn reserve_in_chunk(
        &self,
        appender: &Appender,
        number: SegmentNumber,
        between: Between,
        bytes: u32,
    ) -> Option<u32> {
        let (mut chunk, segment) = (appender.chunk.get(), self.segment(number));
        let is_open = chunk.segment == number && chunk.generation == segment.generation();
        if !is_open || chunk.taken != between && !Rule::ChunksEndWithCommits.is_broken() {
            return None;
        }
        if chunk.counted {
            // Nobody has freed the segment meanwhile, and nobody does before this thread's next quiescent point.
            segment.revive(chunk.left() as usize);
            chunk.counted = false;
            appender.chunk.set(chunk);
        }
        let mut taken = chunk.take(bytes);
        if taken.is_none() {
            let more = self.chunk_bytes(appender, between, bytes as usize)?;
            // If nobody has appended behind it, it goes on.
            if !segment.extend(chunk.end, more) {
                return None;
            }
            appender.count_appended(between, more);
            chunk.end += more;
            taken = chunk.take(bytes);
        }
        self.fill_up(segment, chunk);
        appender.chunk.set(chunk);
        taken
    }

    /// The rest of the chunk is dead.
    fn leave_chunk(&self, chunk: Chunk) {
        self.kill_in(chunk.segment, chunk.generation, chunk.left());
    }

    /// Makes what is left of a chunk a filler.
    fn fill_up(&self, segment: &Segment, chunk: Chunk) {
        let left = chunk.left() as usize;
        if left == 0 {
            return;
        }
        // SAFETY: the chunk lies inside of the frame.
        let rest = unsafe { segment.frame().add(chunk.at as usize) };
        // SAFETY: the rest of the chunk is this thread's own, a multiple of 8 bytes and at least 16.
        unsafe { write_filler(rest, left) };
        if let Some(store) = &self.store {
            let seed = store.segment_seed(chunk.segment, chunk.generation);
            let layout = Layout { header: HEADER, key: 0, value: left - HEADER };
            // SAFETY: as above; of a filler only the head is read.
            unsafe { format::seal_record(rest, Kind::Filler, &layout, None, seed) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::commit::Committer;
    use crate::format::segment::{HEADER_BYTES, TRAILER_BYTES};
    use crate::model::durable_log_of;
    use crate::record::Kind;
    use crate::{Budget, Config, Epochs};
    use std::sync::Arc;

    const SEGMENT: usize = 1 << 20;
    const CHUNK: usize = SEGMENT / CHUNKS;

    fn log() -> Log {
        let config = Config { segment_size: SEGMENT, max_frame_bytes: 32 << 20, keeps_all: false };
        let budget = Arc::new(Budget::new(32 << 20));
        Log::new(config, None, budget, Arc::new(Epochs::default())).unwrap()
    }

    fn append(log: &Log, appender: &Appender, bytes: usize) -> Address {
        let reserved =
            log.reserve_for(appender, Stream::Hot, bytes, 1, Claim::Write).expect("there is room");
        // SAFETY: the reservation is as long.
        unsafe { write_filler(reserved.memory, bytes) };
        reserved.address
    }

    /// Whatever threads have appended, a segment is a run of records without gaps, and what is not a
    /// record that somebody wrote is dead.
    #[test]
    fn chunks_leave_neither_gaps_nor_weight() {
        let log = log();
        let appenders = [log.appender(), log.appender(), log.appender()];
        let mut written = Vec::new();
        for n in 0..SEGMENT / 40 {
            let bytes = [16, 24, 56, 40, 64, CHUNK][n % 6];
            written.push((append(&log, &appenders[n % 7 % 3], bytes), bytes));
        }
        log.seal_all();
        for appender in &appenders {
            log.tell_dead(appender);
        }
        for number in log.numbers().filter(|&number| log.segment(number).is_in_use()) {
            let of_this = |&&(address, _): &&(Address, usize)| address.segment() == number;
            let wanted: Vec<_> = written.iter().filter(of_this).collect();
            let live: usize = wanted.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(log.live(number) as usize, live);
            // SAFETY: nobody appends any more.
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
                log.tell_dead(appender);
            }
            let wasted = log.dead(first) * 100 / log.segment(first).filled();
            assert!(wasted <= 4, "{wasted} % with records of {bytes} bytes");
        }
    }

    /// Chunks end with commits, and there are none while commits follow each other closely.
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
                    let closed = log.close_commit(&mut committer);
                    assert!(log.is_closed(address));
                    let written = log.write_commit(&mut committer, &closed).unwrap();
                    log.settle_commit(&mut committer, &closed, written);
                }
            }
            assert_eq!(in_chunks > 0, records_per_commit > 1000, "{in_chunks}");
            log.seal_all();
            for appender in &appenders {
                log.tell_dead(appender);
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
    use crate::model::durable_log;
    use crate::record::{Fields, write_head};
    use crate::sync::model::{Outcomes, check, spawn};
    use std::sync::Arc;

    /// A thread appends in its chunk, then at the end of the segment, then in its chunk again, while a commit is
    /// closed. The commit covers the second if it covers the last, and what it covers is filled.
    #[test]
    fn loom_chunks_end_with_commits() {
        let outcomes = Arc::new(Outcomes::default());
        let noted = Arc::clone(&outcomes);
        check(3, move || {
            let (log, epochs) = durable_log();
            let writer = epochs.join();
            let (with_chunk, without) = (log.appender(), log.appender());
            // The first opens the segment, and the second takes a chunk.
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
            log.close_commit(&mut Committer::default());
            let was_filled = filled.load(Ordering::Relaxed) == 1;
            let (before, address) = thread.join().unwrap();
            let covered = log.is_closed(address);
            assert!(begun.into_iter().all(|address| log.is_closed(address)));
            assert!(!covered || was_filled, "a commit covers what is not filled");
            assert!(!covered || log.is_closed(before), "a commit covers the later one only");
            noted.note((covered, address.offset() < before.offset()));
        });
        let all = outcomes.all();
        assert!(all.contains(&(true, true)), "in its chunk: {all:?}");
        assert!(all.contains(&(false, false)), "behind the commit: {all:?}");
    }

    fn append(log: &Log, appender: &Appender) -> Address {
        let fields = Fields { seq: 1, ..Fields::default() };
        let layout = Layout::of(&fields, 1, 0);
        let reserved = log
            .reserve_for(appender, Stream::Hot, layout.size(), 1, Claim::Write)
            .expect("there is room");
        // SAFETY: the reservation is this thread's own and as long as the layout says.
        unsafe { write_head(reserved.memory, &layout, &fields, b"k") };
        reserved.address
    }
}
