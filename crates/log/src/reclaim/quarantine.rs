//! The quarantine holds segments whose records have left the index, until neither a reader nor a
//! recovery after a crash can need them. See [`reclaim`](crate::reclaim) for the rules.

use crate::address::SegmentNumber;
use crate::store::places::Tier;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A segment whose records are out of the index.
#[derive(Debug)]
pub(crate) struct Quarantined {
    pub(crate) number: SegmentNumber,
    pub(crate) tier: Tier,
    /// Number of frames that the segment has. A jumbo's mapping counts as several.
    pub(crate) frames: usize,
    /// The epoch that must pass before the segment's frame is reused.
    pub(crate) epoch: u64,
    /// With a store: the number of the commit that makes the emptying durable.
    pub(crate) emptied: u64,
    /// Offsets of the records that the emptying removed without a newer version.
    pub(crate) ends: Vec<u32>,
    /// True if the segment's ends were copied elsewhere. The commit `emptied` then makes the copies
    /// durable, too.
    pub(crate) carried: bool,
}

/// The number of segments in quarantine, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuarantineCounts {
    /// All segments in quarantine.
    pub all: usize,
    /// Segments whose emptying is not durable; none without a store.
    pub uncommitted: usize,
    /// Segments whose emptying is durable, but not their free mark; none without a store.
    pub unmarked: usize,
}

/// The segments in quarantine, in the order in which they were emptied.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Segments whose free mark is not durable. The keys count the segments in the order of their
    /// arrival.
    unmarked: BTreeMap<u64, Quarantined>,
    /// The key in the map `unmarked` of each segment, by the segment's number.
    orders: HashMap<SegmentNumber, u64>,
    next: u64,
    /// Segments whose free mark is durable. Without a store, all segments in quarantine.
    marked: VecDeque<Quarantined>,
    /// Number of segments on each tier.
    lengths: [usize; 2],
    /// Sum of [`Quarantined::frames`].
    frames: usize,
    /// Segments that were [given up](Quarantine::give_up), with their tiers.
    stuck: HashMap<SegmentNumber, Tier>,
}

impl Quarantine {
    /// Adds a segment whose free mark is not durable.
    pub(crate) fn push(&mut self, entry: Quarantined) {
        self.count(&entry);
        self.orders.insert(entry.number, self.next);
        self.unmarked.insert(self.next, entry);
        self.next += 1;
    }

    /// Adds a segment that needs no free mark.
    pub(crate) fn push_marked(&mut self, entry: Quarantined) {
        self.count(&entry);
        self.marked.push_back(entry);
    }

    fn count(&mut self, entry: &Quarantined) {
        self.lengths[entry.tier as usize] += 1;
        self.frames += entry.frames;
    }

    /// Notes that the segment's free mark is durable. Returns false if the segment waits for no
    /// mark.
    pub(crate) fn mark(&mut self, number: SegmentNumber) -> bool {
        let order = self.orders.remove(&number);
        let entry = order.and_then(|order| self.unmarked.remove(&order));
        self.stuck.remove(&number);
        entry.map(|entry| self.marked.push_back(entry)).is_some()
    }

    /// Removes the segment that was marked first, if `is_unneeded` returns true for it.
    pub(crate) fn pop_marked(
        &mut self,
        is_unneeded: impl FnOnce(&Quarantined) -> bool,
    ) -> Option<SegmentNumber> {
        let entry = self.marked.pop_front_if(|entry| is_unneeded(entry))?;
        self.lengths[entry.tier as usize] -= 1;
        self.frames -= entry.frames;
        Some(entry.number)
    }

    /// Removes the segments that wait for a free mark and whose emptying was undone, as
    /// `was_undone` decides. Returns them, the most recently added one first.
    pub(crate) fn take_undone(
        &mut self,
        was_undone: impl Fn(&Quarantined) -> bool,
    ) -> Vec<Quarantined> {
        let mut undone: Vec<_> =
            self.unmarked.extract_if(.., |_, entry| was_undone(entry)).map(|(_, it)| it).collect();
        for entry in &undone {
            self.orders.remove(&entry.number);
            self.stuck.remove(&entry.number);
            self.lengths[entry.tier as usize] -= 1;
            self.frames -= entry.frames;
        }
        undone.reverse();
        undone
    }

    /// Returns the segments that wait for a mark.
    pub(crate) fn unmarked(&self) -> impl Iterator<Item = &Quarantined> {
        self.unmarked.values()
    }

    /// Returns the segments whose mark is durable.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &Quarantined> {
        self.marked.iter()
    }

    /// Returns the segment `number`, if it waits for its free mark.
    pub(crate) fn get_mut(&mut self, number: SegmentNumber) -> Option<&mut Quarantined> {
        self.unmarked.get_mut(self.orders.get(&number)?)
    }

    /// Returns true if the segment `number` waits for its free mark.
    pub(crate) fn waits(&self, number: SegmentNumber) -> bool {
        self.orders.contains_key(&number)
    }

    /// Gives up a segment that waits for its free mark, because it is unknown when it will get one.
    /// The segment then does not count among those that will soon be free.
    pub(crate) fn give_up(&mut self, number: SegmentNumber) {
        if let Some(entry) = self.get_mut(number) {
            let tier = entry.tier;
            self.stuck.insert(number, tier);
        }
    }

    /// Undoes [`Quarantine::give_up`] for a segment, because its ends have been copied elsewhere.
    pub(crate) fn expect(&mut self, number: SegmentNumber) {
        self.stuck.remove(&number);
    }

    /// Undoes [`Quarantine::give_up`] for all segments. Returns true if any had been given up.
    pub(crate) fn expect_all(&mut self) -> bool {
        !std::mem::take(&mut self.stuck).is_empty()
    }

    /// Returns true if the segment was given up.
    pub(crate) fn is_given_up(&self, number: SegmentNumber) -> bool {
        self.stuck.contains_key(&number)
    }

    /// Returns the number of segments.
    pub(crate) fn len(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Counts the segments by what they wait for. `durable` is the number of the last durable
    /// commit.
    pub(crate) fn counts(&self, durable: u64) -> QuarantineCounts {
        let uncommitted = self.unmarked.values().filter(|entry| entry.emptied > durable).count();
        QuarantineCounts {
            all: self.len(),
            uncommitted,
            unmarked: self.unmarked.len() - uncommitted,
        }
    }

    /// Returns the number of segments that will soon be free: all that were not given up.
    pub(crate) fn coming(&self) -> usize {
        self.len() - self.stuck.len()
    }

    /// Returns the number of frames of the segments that will soon be free.
    pub(crate) fn coming_frames(&self) -> usize {
        let frames = |number| Some(self.unmarked.get(self.orders.get(number)?)?.frames);
        self.frames - self.stuck.keys().filter_map(frames).sum::<usize>()
    }

    /// Returns the number of segments on one tier that will soon be free.
    pub(crate) fn coming_on(&self, tier: Tier) -> usize {
        let stuck = self.stuck.values().filter(|&&stuck| stuck == tier).count();
        self.lengths[tier as usize] - stuck
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(number: SegmentNumber, tier: Tier) -> Quarantined {
        let (epoch, emptied) = (number.into(), number.into());
        Quarantined { number, tier, frames: 2, epoch, emptied, ends: Vec::new(), carried: false }
    }

    #[test]
    fn a_segment_leaves_quarantine_once_marked_and_unneeded() {
        let mut quarantine = Quarantine::default();
        for number in 1..=4 {
            let tier = if number == 2 { Tier::Lower } else { Tier::Fast };
            quarantine.push(entry(number, tier));
        }
        assert_eq!((quarantine.len(), quarantine.coming_on(Tier::Lower)), (4, 1));
        assert_eq!(quarantine.pop_marked(|_| true), None);
        quarantine.give_up(3);
        quarantine.give_up(4);
        quarantine.give_up(9);
        assert_eq!((quarantine.len(), quarantine.coming()), (4, 2));
        assert_eq!(quarantine.coming_frames(), 4);
        let counts = |all, uncommitted, unmarked| QuarantineCounts { all, uncommitted, unmarked };
        assert_eq!(quarantine.counts(0), counts(4, 4, 0));
        assert_eq!(quarantine.counts(3), counts(4, 1, 3));
        assert!(quarantine.mark(2) && quarantine.mark(3) && !quarantine.mark(2));
        assert!(quarantine.waits(1) && !quarantine.waits(2));
        assert_eq!(quarantine.pop_marked(|entry| entry.epoch < 2), None);
        assert_eq!(quarantine.counts(1), counts(4, 1, 1));
        assert_eq!(quarantine.pop_marked(|_| true), Some(2));
        assert_eq!((quarantine.len(), quarantine.coming_on(Tier::Lower)), (3, 0));
        assert_eq!(quarantine.coming(), 2);
        quarantine.expect(4);
        assert_eq!(quarantine.coming(), 3);
        let undone = quarantine.take_undone(|entry| entry.emptied > 0);
        assert_eq!(undone.iter().map(|entry| entry.number).collect::<Vec<_>>(), [4, 1]);
        assert_eq!((quarantine.len(), quarantine.marked().count()), (1, 1));
        assert_eq!(quarantine.coming_frames(), 2);
    }
}
