//! Without a store: chooses a probation segment to evict early.
//!
//! When probation exceeds its share, S3-FIFO evicts the oldest segment of probation. But a scan
//! fills whole segments with items that are never read again. So a segment without reads is evicted
//! first, once the newer segments of probation alone fill probation's share of the live bytes. A
//! scan then evicts its own items, and older items have more time to be read.
//!
//! With a store, the cleaner makes no such choice. Sampling a segment might read the device, and
//! evictions from a store free places, not memory.

use crate::cleaner::state::{Cleaner, PROBATION_SHARE};
use crate::cleaner::walk;
use crate::lane::Lane;
use larder_log::{Among, SegmentNumber, Stream};

/// Number of live items sampled per segment. If one item in 32 of a segment was read, a sample of
/// 64 items misses all reads in one case of eight. The segment is then evicted early by mistake.
const SAMPLE: usize = 64;
/// The largest number of records visited to find the sample, because some may be dead.
const MOST_WALKED: usize = 8 * SAMPLE;
/// The largest number of segments examined per eviction, so that a turn stays short.
const LOOKS: usize = 32;

impl Cleaner {
    /// Returns the oldest segment of probation without reads in a sample, if the newer segments of
    /// probation alone fill probation's share of the live bytes. Segments that have reads are not
    /// examined again.
    pub(super) fn oldest_unread(&mut self, lane: &Lane) -> Option<SegmentNumber> {
        if lane.has_store() {
            return None;
        }
        for _ in 0..LOOKS {
            let (place, number) = self.next_beyond_share(lane)?;
            if !self.is_read(lane, number) {
                return Some(number);
            }
            self.examined_until = place;
        }
        None
    }

    /// Returns the oldest unexamined segment of probation and its position in the queue. Returns
    /// `None` if there is none, or if the segments newer than it hold less than probation's share
    /// of the live bytes.
    fn next_beyond_share(&self, lane: &Lane) -> Option<(i64, SegmentNumber)> {
        let usage = lane.log.usage();
        let [new, old] = [Stream::Hot, Stream::Survivors].map(|it| usage.live(it, Among::Resident));
        let share = u128::from((new + old) / PROBATION_SHARE);
        let (place, number) = usage.resident_behind(Stream::Hot, self.examined_until)?;
        let (first, last) = usage.resident_places(Stream::Hot)?;
        // Positions in the queue are assigned in order. So the distance from `place` to the newest
        // segment tells approximately how many bytes the newer segments hold.
        let part = |from: i64| u128::from(last.abs_diff(from));
        let behind = u128::from(new) * part(place) / part(first).max(1);
        (behind >= share).then_some((place, number))
    }

    /// Returns true if one of the segment's first live items was read.
    fn is_read(&mut self, lane: &Lane, number: SegmentNumber) -> bool {
        self.participant.tick();
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments.
        let records = unsafe { lane.log.records(number, None) };
        let mut items = records.filter(|(_, record)| record.kind().is_item());
        let mut batch = Vec::with_capacity(walk::BATCH);
        let (mut walked, mut looked, mut read) = (0, 0, false);
        while !read && looked < SAMPLE && walked < MOST_WALKED {
            // SAFETY: the cleaner is awake in the epochs.
            if !unsafe { walk::next_batch(lane, &mut items, &mut batch) } {
                break;
            }
            walked += batch.len();
            for (address, _, key) in &batch {
                // SAFETY: the cleaner is awake in the epochs.
                let found = unsafe { lane.index.find(key, walk::at(*address)) };
                looked += usize::from(found.is_some());
                read |= found.is_some_and(|(_, slot, ())| slot.frequency() > 0);
            }
        }
        drop((batch, items));
        self.participant.sleep();
        read
    }
}
