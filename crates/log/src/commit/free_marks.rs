//! What a commit writes besides records so that segments can be freed: dead maps and free marks.

use crate::address::SegmentNumber;
use crate::commit::dead_map::DeadMap;
use crate::commit::{BegunMap, Committer, Written};
use crate::format::jumbo::RECORD_AT;
use crate::format::meta::{MAP_UNIT, mark};
use crate::format::{Meta, Use};
use crate::log::DurableLog;
use crate::reclaim::deaths::WaitingEnds;
use crate::reclaim::quarantine::Quarantined;
use crate::rule::Rule;
use crate::segment::State;
use crate::sync::lock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest number of maps that one commit writes, because replies may wait for the commit.
const MAPS_PER_COMMIT: usize = 16;
/// The largest number of segments that one commit marks as free.
const FREED_PER_COMMIT: usize = 64;

impl DurableLog<'_> {
    /// Creates a map in which all records before `begun.until` are dead. `undo_count` is
    /// `CommitMarks::undo_count` from before the map was begun.
    pub fn new_map(self, begun: BegunMap, undo_count: u64) -> DeadMap {
        let mut bits = vec![0; self.store.map_bytes()];
        let segment = self.segment(begun.segment);
        if segment.jumbo_value() == 0 {
            // No record begins in an incomplete last unit, because a record takes at least one unit
            // ([`MAP_UNIT`] bytes).
            let (bytes, rest) =
                (begun.until as usize / MAP_UNIT / 8, begun.until as usize / MAP_UNIT % 8);
            bits[..bytes].fill(u8::MAX);
            (0..rest).for_each(|bit| mark(&mut bits, (bytes * 8 + bit) * MAP_UNIT));
        } else {
            mark(&mut bits, RECORD_AT);
        }
        self.budget.charge(bits.len() as u64);
        DeadMap { begun, after: u64::MAX, undo_count, bits, budget: Arc::clone(&self.budget) }
    }

    pub(crate) fn write_maps(
        self,
        committer: &mut Committer,
        written: &mut Written,
    ) -> io::Result<()> {
        let undo_count = self.store.commits.undo_count();
        committer.maps.retain(|map| {
            let begun = map.begun();
            let gone = self.segment(begun.segment).generation() != begun.generation
                // Writing a map marks its segment as in use, which must not undo a free mark.
                || self.is_marked_free(begun.segment);
            if !gone && map.undo_count != undo_count {
                self.abandon_map(begun.segment, begun.generation);
            }
            !gone && map.undo_count == undo_count
        });
        let durable = self.store.commits.durable();
        for map in committer.maps.iter().filter(|map| can_write(map, durable)).take(MAPS_PER_COMMIT)
        {
            let begun = map.begun();
            let end = self.store.entry(begun.segment).end.load(Ordering::Relaxed);
            let usage = Use::InUse { end };
            self.write_meta(written, begun.segment, usage, begun.cover, Some(&map.bits))?;
            written.mapped.push((begun.segment, begun.generation));
            let bytes = Meta::encoded_bytes(map.bits.len()) as u64;
            self.store.work.maps.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Notes that the dead maps of the `mapped` segments are durable.
    pub(crate) fn settle_maps(self, committer: &mut Committer, mapped: &[(SegmentNumber, u32)]) {
        let is_durable =
            |map: &mut DeadMap| mapped.contains(&(map.begun.segment, map.begun.generation));
        for map in committer.maps.extract_if(.., is_durable) {
            let begun = &map.begun;
            if self.segment(begun.segment).generation() == begun.generation {
                self.store.settle_map(begun.segment, begun.cover);
                committer.last_maps.retain(|other| other.begun.segment != begun.segment);
                committer.last_maps.push(map);
            }
        }
        committer.last_maps.retain(|map| self.may_be_cut(&map.begun));
    }

    /// Returns true if a failing commit may cut the segment, or has cut it.
    fn may_be_cut(self, begun: &BegunMap) -> bool {
        let segment = self.segment(begun.segment);
        let entry = self.store.entry(begun.segment);
        let is_over = entry.sealed.load(Ordering::Acquire) && segment.is_durable(segment.filled());
        segment.generation() == begun.generation && !is_over
    }

    /// Returns true if a commit would write maps.
    pub(crate) fn has_maps_to_write(self, committer: &Committer) -> bool {
        let durable = self.store.commits.durable();
        committer.maps.iter().any(|map| can_write(map, durable))
    }

    /// Returns true if the segment's free mark is durable, so that a recovery ignores the records
    /// of the segment's last generation.
    pub(crate) fn is_marked_free(self, number: SegmentNumber) -> bool {
        // A segment in quarantine either waits for its free mark, or already has it, or is just
        // being freed.
        !lock(&self.quarantine).waits(number)
            && matches!(self.segment(number).state(), State::Free | State::Quarantine)
    }

    pub(crate) fn write_free_marks(self, written: &mut Written) -> io::Result<()> {
        for number in self.freeable() {
            for part in self.store.parts(number).into_iter().chain([number]) {
                self.write_meta(written, part, self.store.unused(part), 0, None)?;
            }
            written.freed.push(number);
        }
        Ok(())
    }

    /// Returns at most [`FREED_PER_COMMIT`] segments that can be marked as free, because their
    /// records are no longer needed.
    pub(crate) fn freeable(self) -> Vec<SegmentNumber> {
        let durable = self.store.commits.durable();
        let quarantine = lock(&self.quarantine);
        let freeable = quarantine.unmarked().filter(|entry| {
            self.count_looks(1);
            if entry.emptied > durable && !Rule::FreeWhenDurable.is_broken() {
                return false;
            }
            !self.needs_cover(entry)
                || Rule::EndsAreCovered.is_broken()
                || !self.is_blocked(&self.ending(entry.number))
        });
        freeable.map(|entry| entry.number).take(FREED_PER_COMMIT).collect()
    }

    /// Returns the segments in quarantine that hold ends and whose emptying is durable. Only their
    /// ends may still keep these segments from being freed.
    pub(crate) fn waiting_endings(self) -> Vec<WaitingEnds> {
        let durable = self.store.commits.durable();
        let quarantine = lock(&self.quarantine);
        let waiting = quarantine.unmarked().filter(|entry| {
            self.count_looks(1);
            entry.emptied <= durable
        });
        let with_ends = waiting.filter(|entry| self.needs_cover(entry));
        with_ends.map(|entry| self.ending(entry.number)).collect()
    }

    /// Returns true if freeing the segment could bring older versions back.
    fn needs_cover(self, entry: &Quarantined) -> bool {
        !entry.carried && (self.segment(entry.number).has_ends() || !entry.ends.is_empty())
    }

    /// Notes that each end of a segment in quarantine was copied elsewhere, or that a newer version
    /// of its key was found. The segment can be freed once the copies and the newer versions are
    /// durable. `undo_count` is `CommitMarks::undo_count` from before the copying. If changes were
    /// undone since then, the copies may have been undone, too. This function then notes nothing
    /// and returns false.
    pub fn ends_are_carried(self, number: SegmentNumber, undo_count: u64) -> bool {
        let open = self.store.commits.open();
        // The undo count is checked under the lock of the quarantine. An undo that begins after the
        // check takes this lock later, and finds the changed entry.
        let mut quarantine = lock(&self.quarantine);
        if self.store.commits.undo_count() != undo_count || undo_count % 2 == 1 {
            return false;
        }
        let Some(entry) = quarantine.get_mut(number) else { return false };
        entry.carried = true;
        entry.emptied = open;
        quarantine.expect(number);
        true
    }
}

fn can_write(map: &DeadMap, durable: u64) -> bool {
    map.after <= durable || Rule::MapWhenDurable.is_broken() && map.after != u64::MAX
}
