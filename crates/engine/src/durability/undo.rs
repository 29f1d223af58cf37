//! Undoes changes that could not be made durable, and forgets changes once they are durable.
//! Invariant: the changes of a key are undone newest first, so its slot gets back the contents from
//! before all of them.

use crate::durability::state::Change;
use crate::key::Key;
use crate::lane::DurableLane;
use larder_log::Address;

impl DurableLane<'_> {
    /// Undoes changes, the newest first.
    pub(super) fn undo(self, changes: Vec<Change>) {
        let mut newest_first: Vec<(u64, Change)> = Vec::with_capacity(changes.len());
        for change in changes {
            // SAFETY: no settled commit covers this record, so its segment still has its frame.
            // Only the committer settles commits, and this thread is the committer.
            if let Some(record) = unsafe { self.log.record(change.address) } {
                newest_first.push((record.seq(), change));
            }
        }
        newest_first.sort_unstable_by_key(|&(seq, _)| std::cmp::Reverse(seq));
        for (_, change) in newest_first {
            // SAFETY: the segment still has its frame, because only this thread settles commits.
            let Some(record) = (unsafe { self.log.record(change.address) }) else { continue };
            let key = Key::new(record.key(), self.options.hash_seed);
            let guard = self.index.lock(&key);
            let found = guard.find(&key, |slot| (slot.address() == change.address).then_some(()));
            let Some((place, _, ())) = found else { continue };
            let was_item = record.kind().is_item();
            self.log.segment(change.address.segment()).kill(record.size());
            let before = change.before.address();
            let mut before_size = change.before_size;
            if change.before.is_older() {
                let taken_back = self.take_back_over(&guard, &key, place, was_item, before);
                match self.older.size_of_dead(before) {
                    _ if taken_back => continue,
                    Some(size) => before_size = size,
                    // `before` led to the record of another key, and that record has moved since.
                    // So there is no older version of this key to put back, and only the new one is
                    // removed.
                    None => {
                        guard.remove(place, was_item);
                        continue;
                    }
                }
            } else if change.before.is_empty() {
                guard.remove(place, was_item);
                continue;
            }
            let segment = self.log.segment(before.segment());
            if !change.before_is_item && segment.durable() as usize > before.offset() {
                // Before the change, the slot led to a tombstone whose commit has settled. If it
                // were put back, nothing would ever remove it from the index.
                guard.remove(place, was_item);
                self.log.note_end(before.segment(), before_size as usize);
                self.log.note_changed(before.segment());
                continue;
            }
            let items = i32::from(change.before_is_item) - i32::from(was_item);
            guard.replace(place, change.before.with_older(false), items);
            segment.revive(before_size as usize);
            self.log.note_changed(before.segment());
        }
    }

    /// Forgets the changes that the commit in flight covers, and removes the tombstones among them
    /// from the index. The commit was synced and is not settled yet.
    pub(super) fn settle_changes(self, changes: &mut Vec<Change>) {
        changes.retain(|change| {
            if !self.log.is_closed(change.address) {
                return true;
            }
            if change.is_tombstone {
                // SAFETY: the commit is not settled, so its frames stay.
                let record = unsafe { self.log.record(change.address) };
                let record = record.expect("a record of an unsettled commit has a frame");
                self.bury(change.address, record.key(), record.size());
            }
            false
        });
    }

    /// Removes a tombstone from the index. From then on, the tombstone only hides older versions
    /// from recovery.
    fn bury(self, address: Address, key: &[u8], size: usize) {
        let key = Key::new(key, self.options.hash_seed);
        let guard = self.index.lock(&key);
        let found = guard.find(&key, |slot| (slot.address() == address).then_some(()));
        if let Some((place, _, ())) = found {
            guard.remove(place, false);
            self.log.note_end(address.segment(), size);
            self.log.segment(address.segment()).kill(size);
        }
    }
}
