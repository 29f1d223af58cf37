//! What a thread keeps to itself while it writes: a chunk of the open segment, and counts of the bytes
//! that it made dead. Two threads that write would otherwise take two cache lines from each other with
//! every record: that of the segment's end, and that of the count of whatever segment the old version
//! lies in.

use crate::address::{Address, SegmentNumber};
use crate::log::{Claim, Log, Reservation, Stream, lock};
use crate::record::{HEADER, write_filler};
use crate::segment::Segment;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::table::Table;
use std::cell::Cell;
use std::sync::Arc;

/// A chunk of 8 KiB in a segment of 2 MiB: one in so many bytes of a segment.
const CHUNKS: usize = 256;
/// Records of which fewer than so many fit into a chunk are appended without: what does not fit behind
/// the last one is lost if another thread has appended behind the chunk.
const RECORDS: usize = 32;

/// Bytes of an open segment that are one thread's to fill. From `at` to `end` there is a filler, which
/// counts as dead, so that whoever walks the segment or weighs it need not know of chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    segment: SegmentNumber,
    generation: u32,
    at: u32,
    end: u32,
}

impl Chunk {
    /// Space for a record at its front, if what is left can be a filler.
    fn take(&mut self, bytes: u32) -> Option<u32> {
        let left = (self.end - self.at).checked_sub(bytes)?;
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
    /// Bytes of each segment's records that this thread made dead, counted on and on.
    dead: Arc<Counts>,
}

/// A count for each segment.
type Counts = Table<AtomicU32>;

impl Appender {
    /// A record of `bytes` in a segment was superseded or removed.
    #[inline]
    pub fn kill(&self, number: SegmentNumber, bytes: usize) {
        self.count(number, bytes as u32);
    }

    #[inline]
    fn count(&self, number: SegmentNumber, more: u32) {
        // Only this thread writes here. Whoever reads the count sees what was done to the index before:
        // a segment in which all is dead is freed without a look at it.
        let count = &self.dead[number as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

fn bytes_of(counts: &Counts) -> u64 {
    (counts.len() * size_of::<AtomicU32>()) as u64
}

/// The counts of all threads.
#[derive(Debug, Default)]
pub(crate) struct DeadCounts(Mutex<Vec<Arc<Counts>>>);

impl DeadCounts {
    fn sum(counts: &[Arc<Counts>], number: SegmentNumber) -> u32 {
        let counts = counts.iter().map(|counts| counts[number as usize].load(Ordering::Relaxed));
        counts.fold(0, u32::wrapping_add)
    }
}

impl Log {
    /// For a thread that will append.
    pub fn appender(&self) -> Appender {
        let mut all = lock(&self.dead.0);
        let (now, limit) = (self.segments.len(), self.segments.limit());
        let dead = Arc::new(Table::new(now, limit, |_| AtomicU32::new(0)));
        self.budget.charge(bytes_of(&dead));
        all.push(Arc::clone(&dead));
        Appender { chunk: Cell::default(), dead }
    }

    /// The thread will not append any more.
    pub fn retire(&self, appender: &Appender) {
        let mut all = lock(&self.dead.0);
        for number in self.numbers() {
            let dead = appender.dead[number as usize].load(Ordering::Relaxed);
            self.segment(number).kill(dead as usize);
        }
        all.retain(|counts| !Arc::ptr_eq(counts, &appender.dead));
        self.budget.release(bytes_of(&appender.dead));
    }

    /// Makes what [`Log::lengthen`] then only publishes, while everybody goes on.
    pub(crate) fn prepare_length(&self, len: usize, segment: impl FnMut(usize) -> Segment) {
        self.segments.prepare(len, segment);
        // A thread that comes later has its counts made when they are published.
        let all = lock(&self.dead.0).clone();
        all.iter().for_each(|dead| dead.prepare(len, |_| AtomicU32::new(0)));
    }

    /// Makes the segment table, and every thread's counts, so long.
    pub(crate) fn lengthen(&self, len: usize, segment: impl FnMut(usize) -> Segment) {
        // Whoever begins to append, or to end that, finds all of them long or none.
        let all = lock(&self.dead.0);
        for dead in &*all {
            let before = bytes_of(dead);
            dead.grow(len, |_| AtomicU32::new(0));
            self.budget.charge(bytes_of(dead) - before);
        }
        self.segments.grow(len, segment);
    }

    /// Bytes of a segment's records that are dead: of a sealed one whose appenders have passed a quiescent
    /// point never too many, for a segment in which all is dead is freed.
    pub fn dead(&self, number: SegmentNumber) -> u32 {
        let counts = lock(&self.dead.0);
        // Threads only ever count up, and what is alive again is counted in the segment: read last.
        let dead = DeadCounts::sum(&counts, number);
        fence(Ordering::Acquire);
        let dead = dead.wrapping_add(self.segment(number).dead());
        if dead as i32 >= 0 { dead } else { 0 }
    }

    /// Bytes of a segment's records that are alive.
    pub fn live(&self, number: SegmentNumber) -> u32 {
        self.segment(number).filled().saturating_sub(self.dead(number))
    }

    /// A new use of a number begins with nothing dead. All who could still count to the last have passed
    /// a quiescent point since.
    pub(crate) fn forget_dead(&self, number: SegmentNumber) {
        let counts = lock(&self.dead.0);
        self.segment(number).set_dead(0u32.wrapping_sub(DeadCounts::sum(&counts, number)));
    }

    /// [`Log::reserve`] for a thread with an appender. Without a store small records come from the
    /// thread's chunk. With one there are none: a commit covers all that was reserved before it.
    #[inline]
    pub fn reserve_for(
        &self,
        appender: &Appender,
        stream: Stream,
        bytes: usize,
        now: u32,
        claim: Claim,
    ) -> Option<Reservation> {
        let chunk = self.segment_size() / CHUNKS;
        if self.store.is_some() || stream != Stream::Hot || bytes * RECORDS > chunk {
            return self.reserve(stream, bytes, now, claim);
        }
        loop {
            let number = self.open_segment(stream);
            let segment = self.segment(number);
            if let Some(offset) = self.reserve_in_chunk(appender, number, segment, bytes as u32) {
                let address = Address::new(number, offset as usize);
                // SAFETY: the chunk lies inside of the frame of a segment that was open a moment ago: it is
                // neither walked nor freed before this thread's next quiescent point, see `roll`.
                let memory = unsafe { segment.frame().add(offset as usize) };
                return Some(Reservation { address, memory });
            }
            let Some(at) = segment.reserve(chunk as u32, 0) else {
                // The rest of the segment, and then the next one.
                return self.reserve(stream, bytes, now, claim);
            };
            appender.count(number, chunk as u32);
            let (generation, end) = (segment.generation(), at + chunk as u32);
            let chunk = Chunk { segment: number, generation, at, end };
            fill_up(segment, chunk);
            appender.chunk.set(chunk);
        }
    }

    #[inline]
    fn reserve_in_chunk(
        &self,
        appender: &Appender,
        number: SegmentNumber,
        segment: &Segment,
        bytes: u32,
    ) -> Option<u32> {
        let mut chunk = appender.chunk.get();
        if chunk.segment != number || chunk.generation != segment.generation() {
            return None;
        }
        let mut taken = chunk.take(bytes);
        if taken.is_none() {
            let more = (self.segment_size() / CHUNKS) as u32;
            // If nobody has appended behind it, it goes on.
            if !segment.extend(chunk.end, more) {
                return None;
            }
            appender.count(number, more);
            chunk.end += more;
            taken = chunk.take(bytes);
        }
        appender.count(number, 0u32.wrapping_sub(bytes));
        fill_up(segment, chunk);
        appender.chunk.set(chunk);
        taken
    }
}

/// Makes what is left of a chunk a filler.
fn fill_up(segment: &Segment, chunk: Chunk) {
    let left = (chunk.end - chunk.at) as usize;
    if left > 0 {
        // SAFETY: the rest of the chunk is this thread's own, a multiple of 8 bytes and at least 16.
        unsafe { write_filler(segment.frame().add(chunk.at as usize), left) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::Kind;
    use crate::{Budget, Config, Epochs};

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
            appenders[0].kill(address.segment(), *bytes);
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
            let wasted = log.dead(first) * 100 / log.segment(first).filled();
            assert!(wasted <= 4, "{wasted} % with records of {bytes} bytes");
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
