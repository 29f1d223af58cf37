//! A thread's tally of bytes that it made dead and has not reported yet. Without it, a thread would
//! count the old version's bytes at once for each item that it overwrites. Threads would then
//! contend for the cache lines of the segments' counts.
//!
//! A thread reports its tally when the cleaner or the statistics [ask](Log::want_counts) for it,
//! and before the thread sleeps. The tally is an array of entries, and each entry holds the count
//! of one segment. In a large log, several segments share an entry. If the entry holds another
//! segment's count, the thread reports that count first. Until a count is reported, its segment
//! seems to hold more live bytes than it does. That is safe: only a segment without live bytes is
//! freed without examining its records.

use crate::address::SegmentNumber;
use crate::log::Log;
use crate::sync::atomic::Ordering;
use std::cell::{Cell, RefCell};

/// The largest number of entries of a tally. A segment's number determines its entry. In a log with
/// more segments than entries, several segments share an entry.
const ENTRIES: usize = 4096;

/// Bytes of a segment that the thread made dead. An entry with 0 bytes is unused.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    segment: SegmentNumber,
    generation: u32,
    bytes: u32,
}

/// One thread's counts.
#[derive(Debug)]
pub(crate) struct Tally {
    entries: Box<[Cell<Count>]>,
    /// Indices of the entries in use.
    used: RefCell<Vec<u16>>,
    /// The value of `Log::counts_wanted` at the last report.
    told: Cell<u64>,
}

const _: () = assert!(ENTRIES <= 1 << u16::BITS);

impl Tally {
    /// Creates an empty tally for a log of `segments` segments.
    pub(crate) fn new(segments: usize) -> Self {
        let entries = segments.next_power_of_two().min(ENTRIES);
        Tally {
            entries: vec![Cell::default(); entries].into_boxed_slice(),
            used: RefCell::new(Vec::with_capacity(entries)),
            told: Cell::new(0),
        }
    }

    /// Returns the memory that the tally takes, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        (self.entries.len() * (size_of::<Count>() + size_of::<u16>())) as u64
    }

    /// Counts dead bytes in this generation of a segment. If the entry held the count of another
    /// segment or generation, returns that count.
    #[inline]
    fn count(&self, segment: SegmentNumber, generation: u32, bytes: u32) -> Option<Count> {
        let index = segment as usize & (self.entries.len() - 1);
        let before = self.entries[index].get();
        if before.segment == segment && before.generation == generation && before.bytes != 0 {
            let bytes = before.bytes + bytes;
            self.entries[index].set(Count { bytes, ..before });
            return None;
        }
        self.entries[index].set(Count { segment, generation, bytes });
        if before.bytes == 0 {
            self.used.borrow_mut().push(index as u16);
            return None;
        }
        Some(before)
    }
}

impl Log {
    /// Asks all threads to report their tallies. All threads have reported when the returned epoch
    /// has [passed](crate::Epochs::passed).
    pub fn want_counts(&self) -> u64 {
        self.counts_wanted.fetch_add(1, Ordering::Release);
        self.epochs.advance()
    }

    /// Returns true if tallies were asked for since `tally` was last reported.
    #[inline]
    pub(crate) fn wants_counts_of(&self, tally: &Tally) -> bool {
        self.counts_wanted.load(Ordering::Acquire) != tally.told.get()
    }

    #[inline]
    pub(crate) fn count_dead(&self, tally: &Tally, number: SegmentNumber, bytes: usize) {
        let generation = self.segment(number).generation();
        if let Some(entry) = tally.count(number, generation, bytes as u32) {
            self.kill_in(entry.segment, entry.generation, entry.bytes);
        }
    }

    /// Reports all counts. Returns true if there were any.
    pub(crate) fn report_counts(&self, tally: &Tally) -> bool {
        tally.told.set(self.counts_wanted.load(Ordering::Acquire));
        let mut used = tally.used.borrow_mut();
        let any = !used.is_empty();
        for index in used.drain(..) {
            let Count { segment, generation, bytes } = tally.entries[usize::from(index)].take();
            self.kill_in(segment, generation, bytes);
        }
        any
    }

    /// Counts `bytes` as dead if the segment is still in this generation.
    #[cold]
    pub(crate) fn kill_in(&self, number: SegmentNumber, generation: u32, bytes: u32) {
        // A new generation begins without dead bytes, so counts of an earlier generation are
        // dropped.
        if self.segment(number).kill_in(generation, bytes) {
            self.note_changed(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segments_that_share_an_entry_are_counted_separately() {
        let tally = Tally::new(1000);
        assert_eq!(tally.entries.len(), 1024);
        assert!(tally.count(5, 1, 40).is_none());
        assert!(tally.count(5, 1, 8).is_none());
        assert!(tally.count(6, 1, 16).is_none());
        let told = tally.count(5 + 1024, 1, 24).expect("the entry was in use");
        assert_eq!((told.segment, told.generation, told.bytes), (5, 1, 48));
        let told = tally.count(5 + 1024, 2, 32).expect("that was another use");
        assert_eq!((told.segment, told.generation, told.bytes), (5 + 1024, 1, 24));
        assert_eq!(*tally.used.borrow(), [5, 6]);
    }
}
