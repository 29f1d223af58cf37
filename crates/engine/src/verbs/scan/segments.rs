//! The first walk of a lane: its segments that are on a device only.

use super::Listed;
use crate::Outcome;
use crate::cleaner::walk::{BATCH, at, next_batch};
use crate::lane::Lane;
use crate::lane::session::LaneSession;
use crate::readers::Charge;
use larder_log::record::Kind;
use larder_log::{Address, Run, SegmentNumber, State};

/// Records that one step looks at, in batches.
const BATCHES: usize = 8;
/// Segments that one step passes over.
const PASSED: usize = 1 << 10;

/// Where the walk stands.
#[derive(Debug, Default)]
pub(super) struct InSegments {
    /// Segments that were walked or passed over.
    passed: usize,
    reading: Option<Reading>,
}

/// A segment that is being read.
#[derive(Debug)]
struct Reading {
    number: SegmentNumber,
    generation: u32,
    /// Where what was read begins.
    start: usize,
    /// Where the next record begins.
    next: usize,
}

impl LaneSession {
    /// Shows some records of segments that are on a device only; false when all of these were walked.
    pub(super) fn scan_segments(
        &self,
        walk: &mut InSegments,
        shown: &mut Shown,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Outcome<bool> {
        let InSegments { passed, reading } = walk;
        if reading.is_none() {
            let mut numbers = self.lane.log.numbers().skip(*passed).take(PASSED).peekable();
            if numbers.peek().is_none() {
                return Outcome::Ready(false);
            }
            *reading = numbers.inspect(|_| *passed += 1).find_map(|number| self.to_be_read(number));
        }
        let Some(at) = reading else { return Outcome::Ready(true) };
        let ended = match self.scan_segment(at, visit) {
            Some(ended) => ended,
            None => return Outcome::NeedsRead,
        };
        if ended {
            shown.note(&self.lane, at.number, at.generation, at.next);
            *reading = None;
        }
        self.answer(true)
    }

    /// The beginning of a segment that is on a device only. What has died in it was published, as all in it.
    fn to_be_read(&self, number: SegmentNumber) -> Option<Reading> {
        let segment = self.lane.log.segment(number);
        let generation = segment.generation();
        let absent = segment.state() == State::Sealed && segment.frame().is_null();
        let worth = self.lane.log.live(number) > 0 && !segment.is_jumbo();
        let start = Run::BEGIN;
        (absent && worth).then_some(Reading { number, generation, start, next: start })
    }

    /// Shows some records of a segment. The answer is whether it has ended, perhaps at what cannot be read;
    /// `None`: it must be read first.
    fn scan_segment(
        &self,
        reading: &mut Reading,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Option<bool> {
        let (log, generation) = (&self.lane.log, reading.generation);
        let segment = log.segment(reading.number);
        if segment.generation() != generation || reading.next >= segment.filled() as usize {
            return Some(true);
        }
        let place = |offset| Address::new(reading.number, offset);
        let read = |offset| self.fetched.run(place(offset), generation);
        if read(reading.start).is_none() {
            // What was read has been forgotten meanwhile.
            reading.start = reading.next;
        }
        let Some(bytes) = read(reading.start) else {
            let unreadable = self.fetched.is_unreadable(place(reading.start), generation);
            if !unreadable {
                self.fetched.want_run(log, place(reading.start), generation);
            }
            return unreadable.then_some(true);
        };
        let begun = reading.next;
        let id = (reading.number, generation);
        let mut run = log.run(id, bytes, reading.start, begun)?;
        let mut batch = Vec::with_capacity(BATCH);
        let mut more = true;
        for _ in 0..BATCHES {
            let mut items = run.by_ref().filter(|(_, record)| record.kind() == Kind::Item);
            // SAFETY: a session is awake while its calls are made.
            more = unsafe { next_batch(&self.lane, &mut items, &mut batch) };
            for (address, record, key) in &batch {
                // SAFETY: as above.
                if let Some((_, slot, ())) = unsafe { self.lane.index.find(key, at(*address)) }
                    && self.is_current(slot, record)
                {
                    self.show(slot, *record, visit);
                }
            }
            if !more {
                break;
            }
        }
        reading.next = run.next_offset();
        let ends = reading.next >= segment.filled() as usize;
        let stuck = !more && (run.is_damaged() || reading.next == reading.start);
        if !more {
            // The rest is read from here.
            reading.start = reading.next;
        }
        Some(ends || stuck)
    }
}

/// Of each segment up to where it was shown, in which use.
#[derive(Debug)]
pub(super) struct Shown {
    /// Generation and offset, by the segment's number; empty before the first is noted.
    ends: Vec<(u32, u32)>,
    charge: Option<Charge>,
    /// Counts undone commits: an undone change has the index lead to what was not shown.
    undoings: u64,
}

impl Shown {
    pub(super) fn new(lane: &Lane) -> Self {
        Shown { ends: Vec::new(), charge: None, undoings: lane.undoings() }
    }

    fn note(&mut self, lane: &Lane, number: SegmentNumber, generation: u32, end: usize) {
        // Places may have come since the last one was noted.
        if self.ends.len() <= number as usize {
            let segments = lane.log.numbers().end as usize;
            let bytes = segments * size_of::<(u32, u32)>();
            // It may be refused nothing: without this each item would be read alone. Whoever scans lets
            // only a few do so at a time.
            self.charge = Some(Charge::needed(&lane.budget, bytes as u64));
            self.ends.resize(segments, (0, 0));
        }
        self.ends[number as usize] = (generation, end as u32);
    }

    /// Whether the record at an address, that the index leads to now, was shown.
    pub(super) fn has(&self, lane: &Lane, address: Address) -> bool {
        let generation = lane.log.segment(address.segment()).generation();
        let end = self.ends.get(address.segment() as usize);
        end.is_some_and(|&(of, end)| of == generation && (address.offset() as u32) < end)
    }

    /// Forgets all if something was undone: what the index led to before may not have been shown. Asked
    /// after the index was looked at.
    pub(super) fn check(&mut self, lane: &Lane) {
        let now = lane.undoings();
        // An odd number: it is going on.
        if now != self.undoings || now % 2 == 1 {
            self.ends = Vec::new();
            self.charge = None;
        }
    }
}
