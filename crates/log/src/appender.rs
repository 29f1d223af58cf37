//! What a thread keeps to itself while it writes: a chunk of the open segment, and a [tally](crate::tally) of
//! what it made dead. Two threads that write would otherwise take the cache line of the segment's end from each
//! other with every record.

use crate::address::{Address, SegmentNumber};
use crate::log::{Claim, Log, Reservation, Stream};
use crate::record::{HEADER, write_filler};
use crate::segment::Segment;
use crate::tally::Tally;
use std::cell::Cell;

/// A chunk of 8 KiB in a segment of 2 MiB: one in so many bytes of a segment.
const CHUNKS: usize = 256;
/// Records of which fewer than so many fit into a chunk are appended without: what does not fit behind
/// the last one is lost if another thread has appended behind the chunk.
const RECORDS: usize = 32;

/// Bytes of an open segment that are one thread's to fill. From `at` to `end` there is a filler, so that whoever
/// walks the segment need not know of chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    segment: SegmentNumber,
    generation: u32,
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
    tally: Tally,
}

impl Log {
    /// For a thread that will append.
    pub fn appender(&self) -> Appender {
        let tally = Tally::new(self.segments.len());
        self.budget.charge(tally.footprint());
        Appender { chunk: Cell::default(), tally }
    }

    /// The thread will not append any more.
    pub fn retire(&self, appender: &Appender) {
        self.tell_dead(appender);
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
            let (generation, end) = (segment.generation(), at + chunk as u32);
            let chunk = Chunk { segment: number, generation, at, end, counted: false };
            fill_up(segment, chunk);
            let last = appender.chunk.replace(chunk);
            if !last.counted && last.left() > 0 {
                self.leave_chunk(last);
            }
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
        if chunk.counted {
            // Nobody has freed the segment meanwhile, and nobody does before this thread's next quiescent point.
            segment.revive(chunk.left() as usize);
            chunk.counted = false;
            appender.chunk.set(chunk);
        }
        let mut taken = chunk.take(bytes);
        if taken.is_none() {
            let more = (self.segment_size() / CHUNKS) as u32;
            // If nobody has appended behind it, it goes on.
            if !segment.extend(chunk.end, more) {
                return None;
            }
            chunk.end += more;
            taken = chunk.take(bytes);
        }
        fill_up(segment, chunk);
        appender.chunk.set(chunk);
        taken
    }

    /// The rest of the chunk is dead.
    fn leave_chunk(&self, chunk: Chunk) {
        self.kill_in(chunk.segment, chunk.generation, chunk.left());
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
