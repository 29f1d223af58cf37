//! With a store: chooses which memory to free. The contents stay on the device. The cleaner drops
//! frames of durable segments and copies of records read from the device. As in S3-FIFO, frames of
//! new writes and new copies are on probation, and frames of survivors and the other copies are in
//! the main queues.

use crate::cleaner::state::{Cleaner, READY_FRAMES, Step};
use crate::cleaner::walk;
use crate::key::Key;
use crate::lane::{DurableLane, Lane};
use larder_log::{Address, Among, Queue, Record, RecordId, SegmentNumber, Stream};
use std::sync::atomic::Ordering;

/// New writes may hold 1/`PROBATION` of the freeable memory before their oldest frame is dropped.
/// New copies may hold the same share of all copies. S3-FIFO gives probation a tenth. Here new
/// writes and new copies are two probation queues, so each gets half of that.
const PROBATION: u64 = 20;

/// While this many frames of evicted copies wait for their epoch to pass, no more copies are
/// evicted.
const RETIRED_COPY_FRAMES: usize = 4;

/// Number of turns for which the cleaner spares large values that were read for calls but not used
/// yet. Each read or use of a large value restarts the count. The turns may take about 0.8 ms
/// together: the cleaner waits up to 50 µs between two of them.
const SPARED_TURNS: u32 = 16;

impl Cleaner {
    /// Frees the least wanted frame. Returns false if there is none.
    pub(super) fn free_frame(&mut self, lane: DurableLane<'_>) -> bool {
        let just_read = lane.readers.large.unused(lane.now.load(Ordering::Relaxed));
        let usage = lane.log.usage();
        // Finds each stream's live bytes in memory and its oldest segment in memory. Passes over
        // segments with a large value that a call has yet to use.
        let [(hot, new), (survivors, old)] = [Stream::Hot, Stream::Survivors].map(|stream| {
            let oldest = usage.resident(stream).find(|number| !just_read.contains(number));
            (oldest, usage.live(stream, Among::Resident))
        });
        drop(usage);
        let [small, main] = lane.log.copies().frames();
        let copies = ((small + main) * lane.log.segment_size()) as u64;
        if lane.log.has_lower()
            && let Some(survivors) = survivors
        {
            // With a lower device, survivors are the items that the cleaner moved there, so their
            // frames go first. Their frequently read records stay in memory as copies.
            return self.drop_frame(lane, Stream::Survivors, survivors);
        }
        if new * PROBATION > new + old + copies
            && let Some(hot) = hot
        {
            return self.drop_frame(lane, Stream::Hot, hot);
        }
        if let Some(survivors) = survivors {
            return self.drop_frame(lane, Stream::Survivors, survivors);
        }
        // Evicting copies moves the wanted copies to new frames. The new frames may exceed the
        // budget until the old frames are returned.
        if small + main > 0 && lane.log.copies().retired_frames() < RETIRED_COPY_FRAMES {
            let probation = main == 0 || small as u64 * PROBATION > (small + main) as u64;
            if self.forget_copies(&lane, if probation { Queue::Small } else { Queue::Main }) {
                return true;
            }
        }
        hot.is_some_and(|hot| self.drop_frame(lane, Stream::Hot, hot))
    }

    /// Drops the frame of a jumbo that was read for a call but not used yet. The cleaner calls this
    /// only if it can drop nothing else. Returns `Step::Later` for the first [`SPARED_TURNS`]
    /// turns, so that calls can use the values meanwhile. Calls that need a dropped value fetch it
    /// again, a bounded number of times.
    pub(super) fn drop_just_read(&mut self, lane: DurableLane<'_>) -> Step {
        let resident = |id: &RecordId| {
            let segment = lane.log.segment(id.address.segment());
            segment.generation() == id.generation && !segment.frame().is_null()
        };
        let mut values = lane.readers.large.least_read();
        values.retain(resident);
        if values.is_empty() {
            return Step::Nothing;
        }
        let changes = lane.readers.large.changes();
        if self.spared.0 != changes {
            self.spared = (changes, 0);
        }
        if self.spared.1 < SPARED_TURNS {
            self.spared.1 += 1;
            return Step::Later;
        }
        self.spared.1 = 0;
        let dropped = values.into_iter().any(|id| lane.log.drop_frame(id.address.segment()));
        if dropped { Step::Freed } else { Step::Nothing }
    }

    /// Frees a frame if few free frames are left, to make room for copies of records read from the
    /// device.
    pub(super) fn free_frame_for_copies(&mut self, lane: DurableLane<'_>) {
        let coming = lane.log.quarantined_frames() + lane.log.dropped_frames();
        if lane.log.available_frames() + coming > READY_FRAMES {
            return;
        }
        self.free_frame(lane);
    }

    /// Drops a segment's frame. Records that were read more than once stay in memory as copies. A
    /// jumbo that S3-FIFO keeps also keeps its frame, and moves to the end of the survivors' queue.
    fn drop_frame(&mut self, lane: DurableLane<'_>, stream: Stream, number: SegmentNumber) -> bool {
        if lane.log.segment(number).is_jumbo() {
            return self.promote_jumbo(&lane, stream, number) || lane.log.drop_frame(number);
        }
        let hits = lane.get_hits();
        if std::mem::replace(&mut self.hits, hits) != hits {
            self.copy_popular(&lane, number);
        }
        lane.log.drop_frame(number)
    }

    fn copy_popular(&mut self, lane: &Lane, number: SegmentNumber) {
        self.participant.tick();
        // SAFETY: the segment is sealed and settled, and only the cleaner drops its frame.
        let records = unsafe { lane.log.records(number, None) };
        let mut items = records.filter(|(_, record)| record.kind().is_item());
        let mut batch = Vec::with_capacity(walk::BATCH);
        // SAFETY: the cleaner is awake in the epochs.
        while unsafe { walk::next_batch(lane, &mut items, &mut batch) } {
            for (address, record, key) in &batch {
                // SAFETY: the cleaner is awake in the epochs.
                let found = unsafe { lane.index.find(key, walk::at(*address)) };
                let popular = found.is_some_and(|(_, slot, ())| {
                    !slot.is_older() && walk::keeps(lane, slot, Stream::Hot)
                });
                if popular {
                    let id = lane.log.record_id(*address);
                    lane.log.copies().keep(id, record, Queue::Main, 0);
                }
            }
        }
        self.participant.sleep();
    }

    /// Frees the oldest frame of a queue of copies. Copies in it that were read move to another
    /// frame if there is one, and the other copies are evicted.
    fn forget_copies(&mut self, lane: &Lane, queue: Queue) -> bool {
        self.participant.tick();
        let now = lane.now.load(Ordering::Relaxed);
        let slot_of = |address: Address, record: &Record<'_>| {
            let key = Key::new(record.key(), lane.options.hash_seed);
            // SAFETY: the cleaner is awake in the epochs.
            let found = unsafe { lane.index.find(&key, walk::at(address)) };
            found.filter(|(_, slot, ())| !slot.is_older()).map(|(place, slot, ())| (place, slot))
        };
        let is_wanted = |address, record: &Record<'_>| {
            !walk::expired(*record, now) && slot_of(address, record).is_some()
        };
        // Called for each copy that is evicted, mostly because it was not read lately. Lowers the
        // frequency in its slot to 1. So when the record's probation in the store ends, the record
        // is not promoted.
        let forgotten = |address, record: &Record<'_>| {
            if let Some((place, slot)) = slot_of(address, record)
                && slot.frequency() > 1
            {
                let next = slot.with_frequency(1);
                let order = Ordering::Relaxed;
                // If the exchange fails, a concurrent read or write has changed the slot, and that
                // change stands.
                let _ = place.compare_exchange(slot.0, next.0, order, order);
            }
        };
        let freed = lane.log.copies().evict(queue, is_wanted, forgotten);
        self.participant.sleep();
        freed
    }
}
