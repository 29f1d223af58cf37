//! The first walk of a lane: its segments that are only on a device, except jumbos.

use crate::Listed;
use crate::Outcome;
use crate::cleaner::walk::{BATCH, at, next_batch};
use crate::lane::Lane;
use crate::lane::session::LaneSession;
use crate::reads::Charge;
use larder_log::{Address, PartialRecords, RecordId, SegmentNumber, State};

/// The largest number of batches of records per step.
const BATCHES: usize = 8;
/// The largest number of segments skipped per step.
const PASSED: usize = 1 << 10;

/// The position of the walk.
#[derive(Debug, Default)]
pub(super) struct InSegments {
    /// Number of segments walked or skipped.
    passed: usize,
    reading: Option<Reading>,
}

/// A segment that is being read.
#[derive(Debug)]
struct Reading {
    number: SegmentNumber,
    generation: u32,
    /// Offset of the first byte of the read that holds the next record.
    start: usize,
    /// Offset of the next record to show.
    next: usize,
}

impl LaneSession {
    /// Shows some records of segments that are only on a device. Returns false when all of these
    /// were walked.
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

    /// Returns the position at which the walk of a segment begins. Returns `None` if the segment
    /// need not be walked: it is a jumbo, it is not only on a device, or it has no live bytes. All
    /// records of a segment that is only on a device are published, so without live bytes no slot
    /// leads to it.
    fn to_be_read(&self, number: SegmentNumber) -> Option<Reading> {
        let segment = self.lane.log.segment(number);
        let generation = segment.generation();
        let absent = segment.state() == State::Sealed && segment.frame().is_null();
        let worth = self.lane.log.live(number) > 0 && !segment.is_jumbo();
        let start = PartialRecords::BEGIN;
        (absent && worth).then_some(Reading { number, generation, start, next: start })
    }

    /// Shows some records of a segment. Returns true at the segment's end or at unreadable bytes.
    /// Returns `None` if bytes must be read first.
    fn scan_segment(
        &self,
        reading: &mut Reading,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Option<bool> {
        let (log, generation) = (self.lane.log.durable()?, reading.generation);
        let segment = log.segment(reading.number);
        if segment.generation() != generation || reading.next >= segment.filled() as usize {
            return Some(true);
        }
        let id = |offset| RecordId { address: Address::new(reading.number, offset), generation };
        let read = |offset| self.fetched.run(id(offset));
        if read(reading.start).is_none() {
            // The bytes of the previous read were dropped meanwhile, so the next read begins at the
            // next record.
            reading.start = reading.next;
        }
        let Some(bytes) = read(reading.start) else {
            let unreadable = self.fetched.is_unreadable(id(reading.start));
            if !unreadable {
                self.fetched.want_run(log, id(reading.start));
            }
            return unreadable.then_some(true);
        };
        let begun = reading.next;
        let of = (reading.number, generation);
        let mut run = log.partial_records(of, bytes, reading.start, begun);
        let mut batch = Vec::with_capacity(BATCH);
        let mut more = true;
        for _ in 0..BATCHES {
            let mut items = run.by_ref().filter(|(_, record)| record.kind().is_item());
            // SAFETY: a session is awake while its calls are made.
            more = unsafe { next_batch(&self.lane, &mut items, &mut batch) };
            for (address, record, key) in &batch {
                // SAFETY: a session is awake while its calls are made.
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
        reading.next = run.next;
        let ends = reading.next >= segment.filled() as usize;
        let stuck = !more && (run.damaged || reading.next == reading.start);
        if !more {
            // All whole records of this read were handled, so the next read begins at the next
            // record.
            reading.start = reading.next;
        }
        Some(ends || stuck)
    }
}

/// For each segment, the offset up to which the first walk of a scan has shown its live records,
/// and the segment's generation at that time.
#[derive(Debug)]
pub(super) struct Shown {
    /// By segment number: generation and offset. Empty until [`note`](Self::note) is first called.
    ends: Vec<(u32, u32)>,
    charge: Option<Charge>,
    /// The lane's count of undone commits at the start of the scan. After an undo, the index may
    /// lead to records that were not shown.
    undo_count: u64,
}

impl Shown {
    pub(super) fn new(lane: &Lane) -> Self {
        Shown { ends: Vec::new(), charge: None, undo_count: lane.undo_count() }
    }

    fn note(&mut self, lane: &Lane, number: SegmentNumber, generation: u32, end: usize) {
        // `ends` is empty at first, and the store may have grown since the last call.
        if self.ends.len() <= number as usize {
            let segments = lane.log.numbers().end as usize;
            let bytes = segments * size_of::<(u32, u32)>();
            // This charge may exceed the limit. Without the table, the second walk would read every
            // item of the device with a separate read. The callers limit the number of concurrent
            // scans.
            self.charge = Some(Charge::needed(&lane.budget, bytes as u64));
            self.ends.resize(segments, (0, 0));
        }
        self.ends[number as usize] = (generation, end as u32);
    }

    /// Returns true if the record at this address was shown. The index must lead to it.
    pub(super) fn has(&self, lane: &Lane, address: Address) -> bool {
        let generation = lane.log.segment(address.segment()).generation();
        let end = self.ends.get(address.segment() as usize);
        end.is_some_and(|&(of, end)| of == generation && (address.offset() as u32) < end)
    }

    /// Forgets everything if a commit was undone, because the index may now lead to records that
    /// were not shown. Must be called after the caller has read slots from the index. If it were
    /// called first, it would miss an undo before those slots are read.
    pub(super) fn check(&mut self, lane: &Lane) {
        let now = lane.undo_count();
        // The count is odd while an undo is under way.
        if now != self.undo_count || now % 2 == 1 {
            self.ends = Vec::new();
            self.charge = None;
        }
    }
}
