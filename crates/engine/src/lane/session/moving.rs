//! The [mover](crate::mover)'s operations on a lane: finds the items of some stripes, copies items
//! in from another lane, and deletes what has moved away.

use super::LaneSession;
use crate::item::ItemHandle;
use crate::key::Key;
use crate::verbs::version::{Body, Manner, OldReads, Part};
use crate::{CommitState, Item, Outcome};
use larder_log::{Address, Claim, Fields};
use std::ops::Range;

impl LaneSession {
    /// Returns the handles of these stripes' items, of records behind [older slots](crate::older),
    /// and of tombstones that are not durable yet.
    pub(crate) fn handles(&self, stripes: Range<usize>) -> Vec<ItemHandle> {
        let mut handles = Vec::new();
        for stripe in stripes {
            self.lane.index.visit_stripe(stripe, |slot| {
                handles.push(self.handle(slot.address()));
            });
        }
        handles
    }

    /// Returns the handle of the record at an address.
    pub(crate) fn handle(&self, address: Address) -> ItemHandle {
        ItemHandle { lane: self.lane.options.position, id: self.lane.log.record_id(address) }
    }

    /// Returns true if a read of the record that `handle` names has failed.
    pub(crate) fn is_unreadable(&self, handle: ItemHandle) -> bool {
        self.fetched.is_unreadable(handle.id)
    }

    /// Returns true if `handle` names an unreadable record that must not count as evicted, because
    /// the lane [may lose nothing](crate::lane::Lane::may_lose_nothing).
    pub(crate) fn must_be_readable(&self, handle: ItemHandle) -> bool {
        self.lane.may_lose_nothing() && self.is_unreadable(handle)
    }

    /// Returns true if a commit is still pending. Then also requests the open commit, because
    /// `commit` may be the open one.
    pub(crate) fn is_pending(&self, commit: u64) -> bool {
        let pending = self.commit_state(commit) == CommitState::Pending;
        if pending {
            self.wake_on_next_commit();
        }
        pending
    }

    /// Returns true if the changes that `commit` covers may not be durable yet. Then also requests
    /// the open commit: if `commit` failed and was not undone, a later commit covers the same
    /// changes.
    pub(crate) fn is_undurable(&self, commit: u64) -> bool {
        let store = self.lane.log.store();
        let undurable = store.is_some_and(|store| store.commits.durable() < commit);
        if undurable {
            self.wake_on_next_commit();
        }
        undurable
    }

    /// Copies an item in from another lane. The copy gets a version of this lane, newer than every
    /// version of the key that this lane ever held. Does nothing if the item is already here.
    pub(crate) fn take_in(&self, item: &Item<'_>) -> Outcome<()> {
        let key = Key::new(item.key(), self.lane.options.hash_seed);
        self.update(&key, |guard| {
            let mut found = None;
            let existing = self.existing(guard, &key, Part::Head, &mut found)?;
            if existing.is_some_and(|existing| !existing.gone) {
                return Ok(());
            }
            let fields = Fields { cas: Some(item.cas()), inherits_reads: false, ..item.fields() };
            let body = Body::Pieces(item.value(), &[]);
            let manner = Manner { claim: Claim::Write, reads: OldReads::Inherit };
            self.write_any_size(guard, &key, existing, manner, fields, body)?;
            Ok(())
        })
    }

    /// Returns true if the index leads to the item. Resolves an [older slot](crate::older) to find
    /// out.
    pub(crate) fn is_item_current(&self, handle: ItemHandle, item: &Item<'_>) -> bool {
        let key = self.key(item.key());
        self.lane.resolve_older_at(handle.id.address, &key, item.record_size())
    }

    /// Deletes the item that `handle` names in these stripes, if its key `has_moved` to another
    /// lane. An unreadable record is removed from the index without a tombstone, because the other
    /// lane has the item. But if the stripes are `shared` with keys that this lane keeps, the
    /// unreadable record stays in the index, because its key may be one of those. If its key has
    /// moved, the record does no harm: look-ups of a moved key go to the other lane.
    pub(crate) fn give_up_if(
        &self,
        handle: ItemHandle,
        stripes: &Range<usize>,
        shared: bool,
        has_moved: impl Fn(&Key<'_>) -> bool,
    ) -> Outcome<()> {
        if self.is_unreadable(handle) {
            match shared {
                true => self.lane.note_unreadable_strays(),
                false => self.give_up_unreadable(handle, stripes.clone()),
            }
            return Outcome::Ready(());
        }
        match self.reopen_key(handle) {
            Outcome::Ready(Some(key)) if has_moved(&key) => self.give_up(&key),
            other => other.map(|_| ()),
        }
    }

    /// Deletes the item of a key that belongs to another lane, so that the item does not reappear
    /// when this lane is started again.
    fn give_up(&self, key: &Key<'_>) -> Outcome<()> {
        self.update(key, |guard| {
            let mut found = None;
            match self.existing(guard, key, Part::Head, &mut found)? {
                Some(existing) if existing.record.kind().is_item() => {
                    self.remove(guard, key, existing)
                }
                _ => Ok(()),
            }
        })
    }

    /// Removes an unreadable record from the index.
    fn give_up_unreadable(&self, handle: ItemHandle, stripes: Range<usize>) {
        let address = handle.id.address;
        // The record may be readable after a restart. So it counts as a kept end until its segment
        // is cleaned.
        self.lane.keep_ends(address.segment(), vec![address.offset() as u32]);
        let log = &self.lane.log;
        let died = || log.note_death(address.segment());
        stripes.for_each(|stripe| self.lane.index.take_address(stripe, address, died));
        self.lane.older.forget(log, address);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Durability, Engine, Expiry, MachineTime, Options, Store};
    use crate::{StoreDevice, StoreOptions};
    use larder_disk::{MonotonicClock, SimDevice};
    use std::sync::Arc;
    use std::task::Waker;
    use std::time::Duration;

    /// The mover must delete a large item without reading its value. Otherwise, with memory for
    /// only one large value, the reads of two such items would evict each other's values for ever.
    #[test]
    fn a_large_item_is_given_up_without_its_value() {
        let device = Arc::new(SimDevice::new(16 << 20, 1));
        let store = StoreOptions {
            devices: vec![StoreDevice {
                name: "store".to_owned(),
                device,
                lower: None,
                seeds: [1, 2, 3],
            }],
            forget: Vec::new(),
            durability: Durability::Sync,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
            opened: MachineTime::default(),
        };
        let options = Options { memory: 16 << 20, store: Some(store), ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let lane = &engine.lanes[0];
        let session = engine.session(Waker::noop().clone());
        let large = vec![7; 900 << 10];
        let stored = session.store(&session.key(b"large"), Store::set(&large, 0, Expiry::NEVER));
        assert!(matches!(stored, Outcome::AfterCommit(..)));
        drop(session);
        assert!(lane.commit());
        let number = lane.log.numbers().find(|&at| lane.log.segment(at).is_jumbo()).unwrap();
        assert!(lane.log.durable().unwrap().drop_frame(number));

        let mut session = lane.session(Waker::noop().clone());
        let stripes = 0..lane.index.stripe_count();
        let handle = session.handle(Address::new(number, 0));
        let mut reads = None;
        let given_up = (0..100).any(|_| {
            session.tick(1);
            let outcome = session.give_up_if(handle, &stripes, false, |_| true);
            let before = std::mem::replace(&mut reads, session.take_reads());
            before.into_iter().for_each(|before| session.release(before, reads.as_ref()));
            assert!(lane.log.segment(number).frame().is_null(), "the value was read");
            session.sleep();
            lane.serve_reads();
            matches!(outcome, Outcome::Ready(()) | Outcome::AfterCommit((), _))
        });
        assert!(given_up);
        session.tick(1);
        assert!(session.handles(stripes).iter().all(|left| left.id != handle.id));
    }
}
