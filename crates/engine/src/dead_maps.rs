//! Dead maps: which records of a segment are superseded, written down so that a segment with
//! tombstones or evicted items can be freed without older versions coming back after a crash.
//!
//! A map is made by asking the index about every item. What is marked is not shown after a crash, but
//! goes on hiding older versions as long as it lies there, as a tombstone does: so it does not matter
//! whether an item was superseded or removed, or in which order maps become durable.

use crate::cleaner::Cleaner;
use crate::engine::Engine;
use crate::key::Key;
use larder_log::SegmentNumber;
use larder_log::cover::DeadMap;
use larder_log::format::jumbo::RECORD_AT;
use larder_log::format::meta::mark;
use larder_log::record::Kind;

impl Engine {
    /// A segment's records are out of the index; `ends` are the offsets of those that nothing newer
    /// hides.
    pub(crate) fn quarantine(&self, number: SegmentNumber, mut ends: Vec<u32>) {
        if let Some(store) = self.log.store() {
            ends.extend(store.kept_ends(number));
        }
        self.log.quarantine(number, ends);
        if let Some(durable) = &self.durable {
            durable.want_commit();
        }
    }

    /// A segment was not emptied after all, but these of its records are removed.
    pub(crate) fn keep_ends(&self, number: SegmentNumber, ends: Vec<u32>) {
        if let Some(store) = self.log.store() {
            store.keep_ends(number, ends);
        }
    }
}

impl Cleaner {
    /// Makes the dead maps that are needed to free segments.
    pub(crate) fn make_dead_maps(&mut self, engine: &Engine) {
        let Some(store) = engine.log.store() else { return };
        let durable = store.durable_commit();
        let wanted = engine.log.wanted_maps();
        // One that was lost with a failed commit is made again.
        self.mapped.retain(|number, after| durable <= *after + 1 && wanted.contains(number));
        for number in wanted {
            if !self.mapped.contains_key(&number)
                && let Some(map) = self.dead_map(engine, number)
            {
                self.mapped.insert(number, map.after);
                engine.stage_dead_map(map);
            }
        }
    }

    fn dead_map(&mut self, engine: &Engine, number: SegmentNumber) -> Option<DeadMap> {
        let store = engine.log.store()?;
        // What the settled commits did is all published; what came later may be in the map too,
        // which is why it is not written before that is durable as well.
        let failures = store.failures();
        let cover = store.settled_commit();
        let segment = engine.log.segment(number);
        let generation = segment.generation();
        if segment.is_dead_jumbo() {
            let mut bits = vec![0; store.map_bytes()];
            mark(&mut bits, RECORD_AT);
            return Some(DeadMap {
                segment: number,
                generation,
                cover,
                after: cover,
                failures,
                bits,
            });
        }
        let loaded = engine.log.load_if_absent(number).ok()?;
        self.participant.tick();
        let mut bits = vec![0; store.map_bytes()];
        let durable = segment.durable();
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: only the cleaner frees segments, and what is durable is complete.
        for (address, record) in unsafe { engine.log.records(number, image) } {
            let offset = address.offset() as u32;
            if offset >= durable {
                break;
            }
            if record.kind() != Kind::Item {
                continue;
            }
            let key = Key::new(record.key(), engine.options.hash_seed);
            let guard = engine.index.lock(&key);
            let current = guard.find(&key, |slot| (slot.address() == address).then_some(()));
            if current.is_none() {
                let at = if segment.is_jumbo() { RECORD_AT } else { offset as usize };
                mark(&mut bits, at);
            }
        }
        self.participant.sleep();
        let after = store.open_commit();
        Some(DeadMap { segment: number, generation, cover, after, failures, bits })
    }
}
