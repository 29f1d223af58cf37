//! The queues of sealed segments, in the order of reclaiming. [`Log::usage`] brings the queues up
//! to date: it examines the segments that have changed.

use crate::address::SegmentNumber;
use crate::append::{Sealed, Stream};
use crate::log::Log;
use crate::reclaim::usage::{Contents, End, ReclaimState, Row, UsageTable};
use crate::segment::{Segment, State};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, lock};

/// The largest number of changed segments examined at a time under the lock of the usage table. A
/// thread that seals a segment waits for this lock.
const BATCH: usize = 256;

impl Log {
    /// Locks the usage table after bringing it up to date with all changes.
    pub fn usage(&self) -> MutexGuard<'_, UsageTable> {
        loop {
            let mut usage = lock(&self.usage);
            if self.look_at_changed(&mut usage) == BATCH {
                // More segments may have changed. `continue` releases the lock for a moment, so
                // that a thread that waits to seal a segment gets it.
                continue;
            }
            self.look_at_waiting(&mut usage);
            let room = self.most_summary_room();
            if room > usage.gain_room {
                // The gain of every segment depends on `gain_room`, so all segments are examined
                // again. This is rare, because `gain_room` at least doubles each time.
                usage.gain_room = room.next_power_of_two();
                for number in 1..usage.rows.len() as SegmentNumber {
                    self.look_at(&mut usage, number);
                }
            }
            return usage;
        }
    }

    /// Examines up to [`BATCH`] segments that have changed. Returns how many.
    fn look_at_changed(&self, usage: &mut UsageTable) -> usize {
        // The segments leave the list before they are examined. Still no query overlooks them: the
        // caller holds the table's lock, and a query needs it.
        let numbers = {
            let mut changed = lock(&self.changed);
            let rest = changed.len().saturating_sub(BATCH);
            changed.split_off(rest)
        };
        for &number in &numbers {
            // The flag is cleared before the segment is examined. So a change during the
            // examination lists the segment again.
            self.listed[number as usize].swap(0, Ordering::AcqRel);
            self.look_at(usage, number);
        }
        numbers.len()
    }

    fn look_at(&self, usage: &mut UsageTable, number: SegmentNumber) {
        let Some(Row { reclaim_state, .. }) = usage.row(number).copied() else { return };
        let contents = self.contents(number, usage.gain_room);
        // A kept segment can be reclaimed once none of its records is alive.
        let is_over = reclaim_state == ReclaimState::Kept && contents.live == 0;
        usage.update(number, if is_over { ReclaimState::Ready } else { reclaim_state }, contents);
    }

    /// Makes waiting segments reclaimable once they are final: see [`Log::is_final`].
    fn look_at_waiting(&self, usage: &mut UsageTable) {
        if usage.waiting.is_empty() {
            return;
        }
        let settled = self.settled();
        let is_final = |&number: &SegmentNumber| {
            let sealed = usage.row(number).map_or(u64::MAX, |row| row.sealed);
            self.is_final(Sealed { segment: number, sealed }, settled)
        };
        self.count_looks(usage.waiting.len());
        let done: Vec<_> = usage.waiting.values().copied().filter(is_final).collect();
        for number in done {
            let contents = self.contents(number, usage.gain_room);
            usage.update(number, ReclaimState::Ready, contents);
        }
    }

    fn contents(&self, number: SegmentNumber, gain_room: u64) -> Contents {
        self.count_looks(1);
        let segment: &Segment = self.segment(number);
        let known = self.live(number);
        // A segment without live bytes is freed without examining its records. So deaths that are
        // only assumed (see `assume_dead`) leave at least one byte alive.
        let live = known.saturating_sub(self.assumed_dead(number)).max(known.min(1));
        let (min_expiry, max_expiry, immortal) = segment.expiries();
        let jumbo = if segment.is_jumbo() { segment.jumbo_mapping() as u32 } else { 0 };
        let gains = self.durable().filter(|_| jumbo == 0 && self.keeps_all);
        Contents {
            born: segment.born(),
            filled: segment.filled(),
            live,
            gain: gains.map_or(0, |log| log.gain(number, known, gain_room) as u32),
            min_expiry,
            max_expiry: if immortal { 0 } else { max_expiry },
            jumbo,
            resident: !segment.frame().is_null(),
        }
    }

    /// Lists a segment as changed, so that the table examines it again.
    pub fn note_changed(&self, number: SegmentNumber) {
        if self.listed[number as usize].swap(1, Ordering::AcqRel) == 0 {
            lock(&self.changed).push(number);
        }
    }

    /// Assumes that `bytes` of a segment's records are dead, besides those known to be dead. The
    /// assumption makes the cleaner choose the segment earlier. Replaces the previous assumption
    /// about this segment. Does nothing without a store.
    pub fn assume_dead(&self, number: SegmentNumber, bytes: u32) {
        let Some(store) = &self.store else { return };
        store.entry(number).assumed_dead.store(bytes, Ordering::Relaxed);
        self.note_changed(number);
    }

    fn assumed_dead(&self, number: SegmentNumber) -> u32 {
        let store = self.store.as_ref();
        store.map_or(0, |store| store.entry(number).assumed_dead.load(Ordering::Relaxed))
    }

    /// Puts a sealed segment into the queue of a stream.
    pub(crate) fn enqueue(&self, stream: Stream, Sealed { segment, sealed }: Sealed, end: End) {
        let mut usage = lock(&self.usage);
        usage.cleaning.remove(&segment);
        let order = usage.order(end);
        let contents = self.contents(segment, usage.gain_room);
        let (tier, reclaim_state) = (self.tier(segment), ReclaimState::Waiting);
        usage.insert(segment, Row { order, sealed, stream, tier, reclaim_state, contents });
    }

    /// Takes every sealed segment out of the queues. The caller must ensure that no thread appends.
    pub fn drain_sealed(&self) -> Vec<SegmentNumber> {
        let mut usage = lock(&self.usage);
        let all = usage.in_order(None);
        self.count_looks(all.len());
        for &number in &all {
            usage.remove(number);
            usage.cleaning.insert(number);
            self.begin_evicting();
        }
        all
    }

    /// Returns a stream's sealed segments in the order of its queue. Walks over all segments.
    pub fn sealed(&self, stream: Stream) -> Vec<SegmentNumber> {
        lock(&self.usage).in_order(Some(stream))
    }

    /// Moves a sealed segment to the end of the survivors' queue. Its records stay where they are.
    pub fn promote(&self, number: SegmentNumber) {
        let mut usage = lock(&self.usage);
        if let Some(row) = usage.remove(number) {
            let order = usage.order(End::Back);
            usage.insert(number, Row { order, stream: Stream::Survivors, ..row });
        }
    }

    /// Takes a sealed segment for cleaning. Returns the stream in whose queue it was, or `None` if
    /// another thread has taken it.
    pub fn begin_cleaning(&self, number: SegmentNumber) -> Option<Stream> {
        let mut usage = lock(&self.usage);
        let row = usage.remove(number)?;
        usage.cleaning.insert(number);
        self.begin_evicting();
        self.segment(number).set_state(State::Cleaning);
        Some(row.stream)
    }

    /// Puts a segment that could not be cleaned back at the front of its queue.
    pub fn abandon_cleaning(&self, stream: Stream, number: SegmentNumber) {
        self.return_cleaned(stream, number, End::Front);
    }

    /// Puts a segment that could not be cleaned at the end of its queue, so that other segments
    /// come first.
    pub fn postpone_cleaning(&self, stream: Stream, number: SegmentNumber) {
        self.return_cleaned(stream, number, End::Back);
    }

    fn return_cleaned(&self, stream: Stream, number: SegmentNumber, end: End) {
        self.end_evicting();
        self.segment(number).set_state(State::Sealed);
        self.enqueue(stream, Sealed { segment: number, sealed: 0 }, end);
    }

    /// Like [`Log::postpone_cleaning`], for a segment with unreadable records that must not be
    /// lost. The segment is not reclaimed while any of its records is alive.
    pub fn keep_unreadable(&self, stream: Stream, number: SegmentNumber) {
        self.postpone_cleaning(stream, number);
        let mut usage = lock(&self.usage);
        if let Some(contents) = usage.row(number).map(|row| row.contents).filter(|it| it.live > 0) {
            usage.update(number, ReclaimState::Kept, contents);
        }
    }

    /// Notes that a segment that was being emptied is now in quarantine.
    pub(crate) fn note_quarantined(&self, number: SegmentNumber) {
        lock(&self.usage).cleaning.remove(&number);
    }

    /// Returns the segments that have records but are open or being emptied.
    pub fn unsealed(&self) -> Vec<SegmentNumber> {
        let mut numbers = self.cleaning();
        numbers.extend([Stream::Hot, Stream::Survivors].map(|stream| self.open_segment(stream)));
        numbers.retain(|&number| number != 0);
        numbers
    }

    /// Returns the segments that are being emptied.
    pub(crate) fn cleaning(&self) -> Vec<SegmentNumber> {
        lock(&self.usage).cleaning.iter().copied().collect()
    }
}
