//! The second walk of a lane: all items in the index that the first walk did not show.

use super::segments::Shown;
use crate::Listed;
use crate::Outcome;
use crate::index::slot::{Slot, TAG_BITS};
use crate::lane::session::LaneSession;
use crate::stats::bump;
use larder_log::{Log, Record, RecordId};

/// The largest number of tags per step: a sixteenth of all. Each step shows the items with the next
/// tags, because a key's tag never changes. So even if slots move between two steps, no item is
/// missed or shown twice.
const WIDTH: u32 = 1 << (TAG_BITS - 4);
/// The largest number of items shown per step, unless more have the same tag.
const ITEMS: usize = 512;
/// The approximate largest number of records read per step, and the largest size of these reads, in
/// bytes.
const READS: usize = 64;
const READ_BYTES: usize = 1 << 20;
/// The largest number of stripes per step that are skipped because the scan wants none of their
/// keys.
const PASSED: usize = 64;

/// The position of the walk.
#[derive(Debug, Default)]
pub(super) struct InIndex {
    stripe: usize,
    tag: u32,
}

impl LaneSession {
    /// Shows the items of the next few slots. Returns false when no slots are left.
    pub(super) fn scan_index(
        &self,
        walk: &mut InIndex,
        shown: &mut Shown,
        unreadable: &mut u64,
        wanted: &dyn Fn(usize) -> bool,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Outcome<bool> {
        let stripes = self.lane.index.stripe_count();
        let mut passed = 0;
        while walk.stripe < stripes && !wanted(walk.stripe) {
            walk.stripe += 1;
            passed += 1;
            if passed == PASSED {
                return Outcome::Ready(true);
            }
        }
        if walk.stripe >= stripes {
            return Outcome::Ready(false);
        }
        let mut end = (walk.tag + WIDTH).min(1 << TAG_BITS);
        let mut slots = Vec::new();
        self.lane.index.visit_stripe(walk.stripe, |slot| {
            if (walk.tag..end).contains(&slot.tag()) {
                slots.push(slot);
            }
        });
        shown.check(&self.lane);
        slots.retain(|slot| !shown.has(&self.lane, slot.address()));
        while end - walk.tag > 1 && self.is_much(&slots) {
            end = walk.tag + (end - walk.tag) / 2;
            slots.retain(|slot| slot.tag() < end);
        }
        let Some(found) = self.fetch_all(&mut slots) else { return Outcome::NeedsRead };
        for (&slot, record) in slots.iter().zip(found) {
            match record {
                Some(record) if self.is_current(slot, &record) => self.show(slot, record, visit),
                Some(_) => {}
                None => {
                    *unreadable += 1;
                    bump(&self.counters.unreadable, 1);
                }
            }
        }
        walk.tag = end;
        if end == 1 << TAG_BITS {
            *walk = InIndex { stripe: walk.stripe + 1, tag: 0 };
        }
        self.answer(true)
    }

    /// Returns true if these slots are too many for one step.
    fn is_much(&self, slots: &[Slot]) -> bool {
        let absent = slots.iter().filter(|slot| !self.lane.log.is_resident(slot.address()));
        let (reads, bytes) = absent.fold((0, 0), |(reads, bytes), slot| {
            let len = self.lane.log.read_length(self.read_from(*slot).address, None);
            (reads + 1, bytes + len)
        });
        slots.len() > ITEMS || reads > READS || bytes > READ_BYTES
    }

    /// Sorts `slots` into device order and returns their records, with `None` for unreadable ones.
    /// If some records must be read from the device first, requests these reads and returns no
    /// records.
    ///
    /// Each record is looked up once. The cleaner may take a frame or a copy away at any time, but
    /// a record that was found stays valid until the next tick.
    fn fetch_all(&self, slots: &mut [Slot]) -> Option<Vec<Option<Record<'_>>>> {
        slots.sort_unstable_by_key(|slot| slot.address().bits());
        let found: Vec<_> = slots.iter().map(|&slot| self.listed(slot)).collect();
        let is_missing = |(&slot, record): (&Slot, &Option<Record<'_>>)| {
            record.is_none() && !self.fetched.is_unreadable(self.read_from(slot))
        };
        if !slots.iter().zip(&found).any(is_missing) {
            return Some(found);
        }
        let absent = slots.iter().filter(|slot| !self.lane.log.is_resident(slot.address()));
        for &slot in absent {
            // Records that have arrived are requested again; otherwise they might be dropped before
            // the others arrive.
            self.request(self.read_from(slot));
        }
        None
    }

    /// Returns the identifier under which the record of a slot is read from the device. For a
    /// jumbo, only the head is read.
    pub(in crate::verbs) fn read_from(&self, slot: Slot) -> RecordId {
        let number = slot.address().segment();
        let jumbo = self.lane.log.segment(number).is_jumbo();
        self.lane.log.record_id(if jumbo { Log::jumbo_head(number) } else { slot.address() })
    }

    /// Returns the record that a slot leads to, if the record has a frame or a copy, or this
    /// session has read it from the device. The value of a jumbo may be absent.
    pub(in crate::verbs) fn listed(&self, slot: Slot) -> Option<Record<'_>> {
        let segment = self.lane.log.segment(slot.address().segment());
        // SAFETY: the slot was read since the last tick.
        if let Some(record) = unsafe { self.lane.log.record(slot.address()) } {
            return Some(record);
        }
        let id = self.read_from(slot);
        if segment.is_jumbo() {
            return self.fetched.get_head(id, segment.jumbo_value());
        }
        self.absent(id)
    }
}
