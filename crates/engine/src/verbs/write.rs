//! The only path by which new versions enter the log. Under the stripe's lock, a writer reserves
//! space, fills it and publishes the slot.
//!
//! Reserving never waits, so a writer never waits while it holds a lock. If there is no space,
//! nothing has changed: the writer releases the lock and returns `NeedsSpace`.

use crate::index::slot::{MAX_FREQUENCY, Slot};
use crate::index::{Guard, Judgement, SlotPlace};
use crate::key::Key;
use crate::lane::session::LaneSession;
use crate::limit::expiry::is_unused;
use crate::stats::bump;
use crate::verbs::version::{Before, Body, Existing, Manner, NotWritten, OldReads, Part};
use crate::{Item, Outcome};
use larder_log::record::{HEADER, Kind, write_head};
use larder_log::sync::atomic::Ordering;
use larder_log::{Address, Appending, Claim, Fields, Layout, Record, Stream};

impl LaneSession {
    /// Changes a key under its stripe's lock. `change` returns the answer, or the reason why
    /// nothing was written. The reason becomes an outcome after the lock is released.
    #[inline(always)]
    pub(crate) fn update<'a, T>(
        &'a self,
        key: &Key<'_>,
        change: impl FnOnce(&Guard<'a>) -> Result<T, NotWritten>,
    ) -> Outcome<T> {
        let guard = self.lane.index.lock(key);
        let changed = change(&guard);
        drop(guard);
        match changed {
            Ok(answer) => self.answer(answer),
            Err(why) => self.not_written(key, why),
        }
    }

    /// Finds the record that the key's slot leads to, writes it to `found`, and returns a reference
    /// to it. A returned `Existing` would be copied, and a copy of fields that were just stored one
    /// by one stalls the processor.
    #[inline(always)]
    pub(crate) fn existing<'f, 'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        part: Part,
        found: &'f mut Option<Existing<'a>>,
    ) -> Result<Option<&'f Existing<'a>>, NotWritten> {
        *found = self.existing_at_hand(guard, key);
        if found.is_none() {
            self.search_existing(guard, key, part, found)?;
        }
        Ok(found.as_ref())
    }

    /// Returns the record that the key's hint leads to, if it belongs to the key and is in memory.
    #[inline(always)]
    fn existing_at_hand<'a>(&'a self, guard: &Guard<'a>, key: &Key<'_>) -> Option<Existing<'a>> {
        let (place, slot) = guard.hinted(key)?;
        // SAFETY: under the lock, a slot leads to a record whose memory is not reused before the
        // next tick.
        let record = unsafe { self.matching_at_hand(key, slot) }?;
        Some(self.existing_in(place, slot, record))
    }

    /// As [`LaneSession::existing`], without the hint. `found` must be `None`, and stays `None` if
    /// the key has no record.
    #[inline(never)]
    fn search_existing<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        part: Part,
        found: &mut Option<Existing<'a>>,
    ) -> Result<(), NotWritten> {
        // SAFETY: under the lock, a slot leads to a record whose memory is not reused before the
        // next tick.
        let matches = |slot| unsafe {
            match part {
                Part::Head => self.matching_head(key, slot),
                Part::Whole => self.matching(key, slot),
            }
        };
        let Some((place, slot, record)) = guard.find(key, matches) else {
            return if self.must_read() { Err(NotWritten::NeedsRead) } else { Ok(()) };
        };
        if slot.is_older() {
            self.lane.resolve_older(guard, key, place, record.size());
        }
        *found = Some(self.existing_in(place, slot, record));
        Ok(())
    }

    #[inline(always)]
    fn existing_in<'a>(
        &self,
        place: SlotPlace<'a>,
        slot: Slot,
        record: Record<'a>,
    ) -> Existing<'a> {
        self.depends_on(slot.address(), &record);
        let expiry = record.expiry();
        let kind = record.kind();
        let gone = expiry != 0 && expiry <= self.now()
            || !kind.is_item()
            || is_unused(&record, self.nanos());
        Existing { place, record, gone }
    }

    /// Writes a new version of the key and publishes it. The seq in `fields` is ignored.
    pub(crate) fn write<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        claim: Claim,
        fields: Fields,
        body: Body<'_>,
    ) -> Result<Item<'a>, NotWritten> {
        let manner = Manner { claim, reads: OldReads::Inherit };
        self.write_as(guard, key, existing, manner, fields, body)
    }

    /// As [`LaneSession::write`]. `manner` gives the claim, and says whether the new version
    /// inherits the old one's read frequency.
    pub(crate) fn write_as<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        manner: Manner,
        fields: Fields,
        body: Body<'_>,
    ) -> Result<Item<'a>, NotWritten> {
        // Limits the size of the value, not of the item. A touch must not fail because it adds an
        // expiry to the item.
        if body.len() > self.lane.max_value_len(key.bytes().len()) {
            return Err(NotWritten::TooLarge);
        }
        self.write_any_size(guard, key, existing, manner, fields, body)
    }

    /// As [`LaneSession::write_as`], even if the item exceeds the largest size.
    pub(crate) fn write_any_size<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        manner: Manner,
        fields: Fields,
        body: Body<'_>,
    ) -> Result<Item<'a>, NotWritten> {
        let before = existing.map_or(Before::Nothing, Before::Known);
        self.write_after(guard, key, before, manner, fields, body)
    }

    /// Writes a new version of the key without reading the record that its slot leads to. Returns
    /// `None` if that record must be read, or if the write fails.
    pub(crate) fn write_unread<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        fields: Fields,
        body: Body<'_>,
    ) -> Option<Item<'a>> {
        if !self.lane.older.admits() {
            return None;
        }
        // `vacate` must come before the search for the old slot, because `vacate` may move slots.
        guard.vacate(key).ok()?;
        let old = guard.only_suspect(key, |slot| self.judge(key, slot))?;
        let manner = Manner { claim: Claim::Write, reads: OldReads::Inherit };
        self.write_after(guard, key, Before::Unread(old), manner, fields, body).ok()
    }

    /// Judges how a slot with the key's tag relates to the key, after a look-up that found no
    /// record of the key in memory.
    fn judge(&self, key: &Key<'_>, slot: Slot) -> Judgement {
        let (lane, address) = (&self.lane, slot.address());
        if slot.is_older() {
            let same = lane.older.is_set_over(address, key) == Some(true);
            return if same { Judgement::Older } else { Judgement::Unknown };
        }
        let segment = lane.log.segment(address.segment());
        let takes_more = !segment.is_jumbo() && lane.older.is_open(address.segment());
        if !takes_more || self.fetched.is_unreadable(lane.log.record_id(address)) {
            return Judgement::Unknown;
        }
        // SAFETY: under the lock, a slot leads to a record whose memory is not reused before the
        // next tick.
        match unsafe { lane.log.record(address) } {
            // The record has no frame, and its key is not compared here. If the record belongs to
            // another key, it does no harm to mark its slot as older: the cleaner or a later write
            // corrects this.
            None => Judgement::Suspect,
            // The record came into memory after the look-up, so the key must be looked up again.
            Some(record) if record.key() == key.bytes() => Judgement::Unknown,
            Some(_) => Judgement::Other,
        }
    }

    fn write_after<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        before: Before<'_, 'a>,
        Manner { claim, reads }: Manner,
        mut fields: Fields,
        body: Body<'_>,
    ) -> Result<Item<'a>, NotWritten> {
        // Readers may raise the old slot's read frequency until the new version is published. The
        // new version inherits this frequency, but at most `most_reads`.
        let most_reads = match reads {
            OldReads::Keep => MAX_FREQUENCY,
            OldReads::Inherit => {
                fields.inherits_reads = before.was_read();
                u8::from(fields.inherits_reads)
            }
        };
        let layout = Layout::of(&fields, key.bytes().len(), body.len());
        let (size, log) = (layout.size(), &self.lane.log);
        let grows = before.known().is_none_or(|old| old.record.size() < size);
        let claim = if grows { claim.min(Claim::Grow) } else { claim };
        // A large value may have been received for another lane, whose segments are smaller. In
        // this lane it may fit into a normal segment.
        let body = match &body {
            Body::Large(large) if size <= log.largest_record() => Body::Pieces(large.bytes(), &[]),
            _ => body,
        };
        let place = match before {
            Before::Known(existing) => existing.place,
            Before::Nothing | Before::Unread(_) => guard.vacate(key)?,
        };
        let value_hash = self.value_hash(&body);
        let _appending = self.appending_version(guard)?;
        let address = match body {
            Body::Pieces(first, second) if size <= log.largest_record() => {
                let stream = self.stream_for(key, before);
                let reserved = log
                    .reserve_for(&self.appender, stream, size, self.now(), claim)
                    .ok_or(NotWritten::NoSpace(claim))?;
                if log.begins_segment(reserved.address) {
                    self.lane.kick_cleaner();
                }
                reserved.prefetch_next(size);
                fields.seq = guard.next_seq();
                // SAFETY: the reservation is `size` bytes of this thread's own; no thread reads
                // them before the slot is published. The value's pieces are `layout.value` bytes.
                unsafe {
                    write_head(reserved.memory, &layout, &fields, key.bytes());
                    let at = reserved.memory.add(layout.value_offset());
                    at.copy_from_nonoverlapping(first.as_ptr(), first.len());
                    at.add(first.len()).copy_from_nonoverlapping(second.as_ptr(), second.len());
                    log.seal_record(reserved.address, reserved.memory, &layout, value_hash);
                }
                reserved.address
            }
            body => {
                let rewritten = before.known().filter(|old| self.is_rewritten(old, &body));
                let written = self.write_jumbo(guard, key, claim, fields, body, value_hash);
                if let (Err(NotWritten::NoSpace(_)), Some(old)) = (&written, rewritten)
                    && !self.keep_for_rewrite(old.place.slot().address(), layout.value)
                {
                    return Err(NotWritten::OutOfMemory);
                }
                written?
            }
        };
        log.segment(address.segment()).note_expiry(fields.expiry);
        bump(&self.counters.written_bytes, size as u64);
        match before {
            Before::Unread(old) => self.changed_unread(address, size, old.slot()),
            _ => self.changed(Kind::Item, address, size, before.known()),
        }
        Ok(self.publish(guard, key, before, place, (address, size), most_reads))
    }

    /// Changes the value of the item's record in place. Returns the new version. Returns `None` and
    /// changes nothing if the change needs a new record, for example because `fields` differ from
    /// the record's fields or a commit covers the record. The seq in `fields` is ignored.
    #[inline(always)]
    pub(crate) fn change_in_place(
        &self,
        guard: &Guard<'_>,
        old: &Existing<'_>,
        fields: &Fields,
        value: (&[u8], &[u8]),
    ) -> Result<Option<u64>, NotWritten> {
        let kept = old.record.fields();
        let same = Fields { seq: kept.seq, ..*fields } == kept && kept.cas.is_none();
        let len = value.0.len() + value.1.len();
        if !same || !kept.kind.changes_in_place() || old.record.layout().value != len {
            return Ok(None);
        }
        if !guard.has_leased() {
            self.lane.want_commit();
            return Ok(None);
        }
        let address = old.place.slot().address();
        let value_hash = self.value_hash(&Body::Pieces(value.0, value.1));
        let _appending = self.appending()?;
        let log = &self.lane.log;
        if !log.is_changeable(address, &old.record) {
            return Ok(None);
        }
        let seq = guard.next_seq();
        // SAFETY: the guard is the lock of the key's stripe, and the slot leads to this record.
        unsafe { log.change_in_place(address, &old.record, seq, value, value_hash) };
        self.changed_in_place(address, old.record.size());
        bump(&self.counters.counted_in_place, 1);
        Ok(Some(seq))
    }

    /// Writes a tombstone for the key. Only a lane with a store has tombstones. In sync mode the
    /// key's slot, if there is one, leads to the tombstone until the tombstone is durable.
    pub(crate) fn write_tombstone(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        existing: Option<&Existing<'_>>,
    ) -> Result<(), NotWritten> {
        let layout = Layout { header: HEADER, key: key.bytes().len(), value: 0 };
        let log = &self.lane.log;
        let value_hash = self.value_hash(&Body::Pieces(&[], &[]));
        let _appending = self.appending_version(guard)?;
        let reserved = log
            .reserve_for(&self.appender, Stream::Hot, layout.size(), self.now(), Claim::Delete)
            .ok_or(NotWritten::NoSpace(Claim::Delete))?;
        let seq = guard.next_seq();
        // SAFETY: the reservation is this thread's own and as long as the layout says.
        unsafe {
            let fields = Fields { seq, ..Fields::of_kind(Kind::Tombstone) };
            write_head(reserved.memory, &layout, &fields, key.bytes());
            log.seal_record(reserved.address, reserved.memory, &layout, value_hash);
        }
        let address = reserved.address;
        bump(&self.counters.written_bytes, layout.size() as u64);
        self.changed(Kind::Tombstone, address, layout.size(), existing);
        let bury = || {
            log.note_end(address.segment(), layout.size());
            log.segment(address.segment()).kill(layout.size());
        };
        let Some(existing) = existing else {
            bury();
            return Ok(());
        };
        let old = existing.place.slot();
        let was_item = existing.record.kind().is_item();
        if self.is_sync() {
            let slot = Slot::new(key.tag(), 0, address);
            guard.replace(existing.place, slot, -i32::from(was_item));
        } else {
            guard.remove(existing.place, was_item);
            bury();
        }
        self.kill(old.address(), existing.record.size());
        Ok(())
    }

    /// Returns true if the new value is built from the value of the old version, as by an append,
    /// and this version is a jumbo in memory. If the write then finds no space, the repeated call
    /// needs the old version in memory again.
    fn is_rewritten(&self, old: &Existing<'_>, body: &Body<'_>) -> bool {
        let segment = self.lane.log.segment(old.place.slot().address().segment());
        let Body::Pieces(first, second) = body else { return false };
        segment.is_jumbo() && !segment.frame().is_null() && {
            let value = old.record.value().as_ptr_range();
            [first, second].iter().any(|piece| value.contains(&piece.as_ptr()))
        }
    }

    /// Writes a jumbo: adopts the mapping that the value was filled into, or copies the value into
    /// a new one.
    fn write_jumbo(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        claim: Claim,
        mut fields: Fields,
        body: Body<'_>,
        value_hash: u64,
    ) -> Result<Address, NotWritten> {
        let layout = Layout::of(&fields, key.bytes().len(), body.len());
        // Room for a large value may never become free. A write with an urgent claim is refused
        // late, so it might wait for this room for ever. So this error names the least urgent
        // claim, `Write`: the call is refused as soon as the cleaner finds nothing to reclaim for
        // ordinary writes.
        let no_space = NotWritten::NoSpace(Claim::Write);
        let mut copied;
        let large = match body {
            Body::Large(large) => {
                large.charge_to(&self.lane.budget);
                large
            }
            Body::Pieces(first, second) => {
                copied = self.lane.map_large(layout.value).ok_or(no_space)?;
                let (front, back) = copied.bytes_mut().split_at_mut(first.len());
                front.copy_from_slice(first);
                back.copy_from_slice(second);
                &mut copied
            }
        };
        let log = &self.lane.log;
        let claimed = log.claim_jumbo(layout.size(), claim).ok_or(no_space)?;
        let (mapping, start) =
            large.take_record(layout.value_offset()).ok_or(NotWritten::OutOfMemory)?;
        fields.seq = guard.next_seq();
        let record = mapping.base().wrapping_add(start);
        // SAFETY: header and key lie in the mapping's headroom, directly before the value.
        unsafe { write_head(record, &layout, &fields, key.bytes()) };
        let now = self.now();
        Ok(log.adopt_jumbo(claimed, mapping, start, layout.value, now, |address| {
            // SAFETY: no thread reads the record before its slot is published.
            unsafe { log.seal_record(address, record, &layout, value_hash) };
        }))
    }

    /// Makes the record at `address` the key's current one.
    #[inline]
    fn publish<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        before: Before<'_, 'a>,
        place: SlotPlace<'a>,
        (address, size): (Address, usize),
        most_reads: u8,
    ) -> Item<'a> {
        self.found_space();
        let slot = match before {
            Before::Known(old) => {
                let before = old.place.slot();
                let frequency = if old.gone { 0 } else { before.frequency().min(most_reads) };
                let slot = Slot::new(key.tag(), frequency, address);
                guard.replace(place, slot, i32::from(!old.record.kind().is_item()));
                self.kill(before.address(), old.record.size());
                slot
            }
            Before::Unread(old) => {
                let frequency = old.slot().frequency().min(most_reads);
                let slot = Slot::new(key.tag(), frequency, address);
                self.lane.fill_over(guard, key, place, slot, old, size);
                slot
            }
            Before::Nothing => {
                let slot = Slot::new(key.tag(), 0, address);
                guard.fill(place, slot, 1);
                slot
            }
        };
        // SAFETY: the record was just written; its frame is not reused before the next tick.
        let record = unsafe { self.lane.log.record(address) };
        self.item_locked(slot, record.expect("a segment that was just written has a frame"))
    }

    /// Deletes the key's item.
    pub(crate) fn remove(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        existing: &Existing<'_>,
    ) -> Result<(), NotWritten> {
        if self.lane.has_store() {
            return self.write_tombstone(guard, key, Some(existing));
        }
        let slot = existing.place.slot();
        guard.remove(existing.place, true);
        self.kill(slot.address(), existing.record.size());
        Ok(())
    }

    /// As [`LaneSession::appending`], for a record that gets the stripe's next version.
    #[inline]
    fn appending_version(&self, guard: &Guard<'_>) -> Result<Appending<'_>, NotWritten> {
        let appending = self.appending()?;
        guard.has_version().then_some(appending).ok_or(NotWritten::NoVersion)
    }

    /// Returns the stream for a new version: `Hot`, which is the probation of new items, or
    /// `Survivors` for a new key that was recently evicted from probation.
    #[inline]
    fn stream_for(&self, key: &Key<'_>, before: Before<'_, '_>) -> Stream {
        let back = matches!(before, Before::Nothing)
            && self.lane.evicts.load(Ordering::Relaxed)
            && self.lane.ghost.recall(key);
        if back { Stream::Survivors } else { Stream::Hot }
    }

    /// Returns the hash of a new value for the record's checksum. Without a store there are no
    /// checksums.
    fn value_hash(&self, body: &Body<'_>) -> u64 {
        let Some(store) = self.lane.log.store() else { return 0 };
        match body {
            Body::Pieces(first, second) => store.value_hash(first, second),
            Body::Large(large) => store.value_hash(large.bytes(), &[]),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Delete, Engine, Expiry, Key, Options, Outcome, Refusal, Store};
    use std::task::Waker;

    /// An attacker who knows the hash seed can make keys with the same hash. Once such keys fill
    /// their sixteen slots, further ones must be refused, and nothing may be evicted for them.
    #[test]
    fn sets_of_keys_made_to_collide_are_refused() {
        let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() }).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(1_700_000_000);
        let names: Vec<_> = (0..64).map(|n| format!("key{n}")).collect();
        let keys: Vec<Key<'_>> = names
            .iter()
            .map(|name| {
                let mut key = session.key(name.as_bytes());
                key.lo = 0x1234_5678;
                key
            })
            .collect();
        let set = |key: &Key<'_>| session.store(key, Store::set(b"v", 0, Expiry::NEVER));
        for (number, key) in keys.iter().enumerate() {
            match set(key) {
                Outcome::Ready(_) if number < 16 => {}
                Outcome::Refused(Refusal::OutOfMemory) if number >= 16 => {}
                other => panic!("{number}: {other:?}"),
            }
        }
        let found = |key| matches!(session.get(key), Outcome::Ready(Some(_)));
        assert_eq!(keys.iter().filter(|key| found(key)).count(), 16);
        assert!(matches!(session.delete(&keys[3], &Delete::default()), Outcome::Ready(_)));
        assert!(matches!(set(&keys[63]), Outcome::Ready(_)));
        assert!(found(&keys[63]) && !found(&keys[3]));
        let stats = engine.stats();
        assert_eq!((stats.items, stats.totals.evictions), (16, 0));
    }
}
