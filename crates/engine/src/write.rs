//! The one way in which records get into the log: under the stripe's lock, reserve, fill, publish.
//!
//! Reserving never waits, so a writer that holds a lock never waits either; if there is no space,
//! nothing has happened, the lock is released and the caller answers `NeedsSpace`.

use crate::index::slot::Slot;
use crate::index::{Guard, Place};
use crate::key::Key;
use crate::large::LargeValue;
use crate::{Item, Session};
use larder_log::record::write_head;
use larder_log::sync::atomic::Ordering;
use larder_log::{Address, Claim, Fields, Layout, Record, Stream};

/// What a key's slot leads to, under the stripe's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) record: Record<'a>,
    /// It has expired: clients see none.
    pub(crate) expired: bool,
}

/// The bytes of a new value.
pub(crate) enum Body<'a> {
    /// Two pieces, one after the other.
    Pieces(&'a [u8], &'a [u8]),
    /// Filled in place.
    Large(&'a mut LargeValue),
}

impl Body<'_> {
    fn len(&self) -> usize {
        match self {
            Body::Pieces(a, b) => a.len() + b.len(),
            Body::Large(large) => large.len(),
        }
    }
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotWritten {
    /// The item is larger than the largest.
    TooLarge,
    /// Memory must be reclaimed first.
    NoSpace,
    /// There is no memory, and the value is lost.
    OutOfMemory,
}

impl Session {
    /// What the key's slot leads to.
    #[inline]
    pub(crate) fn existing<'a>(&'a self, guard: &Guard<'a>, key: &Key<'_>) -> Option<Existing<'a>> {
        // SAFETY: under the lock a slot leads to a record that is not reused before the next tick.
        let (place, _, record) = guard.find(key, |slot| unsafe { self.matching(key, slot) })?;
        let expiry = record.expiry();
        Some(Existing { place, record, expired: expiry != 0 && expiry <= self.now() })
    }

    /// Writes a new version of the key and publishes it. The seq in `fields` is ignored.
    pub(crate) fn write<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        mut fields: Fields,
        body: Body<'_>,
    ) -> Result<Item<'a>, NotWritten> {
        let layout = Layout::of(&fields, key.bytes().len(), body.len());
        let size = layout.size();
        if size as u64 > self.engine.options.max_item_size {
            return Err(NotWritten::TooLarge);
        }
        let log = &self.engine.log;
        let place = match existing {
            Some(existing) => existing.place,
            None => guard
                .vacate(key, |at| log.prefetch(at), |at| self.position(at))
                .ok_or(NotWritten::NoSpace)?,
        };
        let address = match body {
            Body::Pieces(first, second) if size <= log.largest_record() => {
                let stream = self.stream_for(key, existing);
                let reserved = log
                    .reserve(stream, size, self.now(), Claim::Write)
                    .ok_or(NotWritten::NoSpace)?;
                fields.seq = guard.next_seq();
                // SAFETY: the reservation is `size` bytes of this thread's own; nobody reads them
                // before the slot is published. The value's pieces are `layout.value` bytes.
                unsafe {
                    write_head(reserved.memory, &layout, &fields, key.bytes());
                    let at = reserved.memory.add(layout.value_offset());
                    at.copy_from_nonoverlapping(first.as_ptr(), first.len());
                    at.add(first.len()).copy_from_nonoverlapping(second.as_ptr(), second.len());
                }
                reserved.address
            }
            body => self.write_jumbo(guard, key, fields, &layout, body)?,
        };
        log.segment(address.segment()).note_expiry(fields.expiry);
        Ok(self.publish(guard, key, existing, place, address))
    }

    /// A jumbo: adopts the mapping that the value was filled into, or copies into a new one.
    fn write_jumbo(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        mut fields: Fields,
        layout: &Layout,
        body: Body<'_>,
    ) -> Result<Address, NotWritten> {
        let mut copied;
        let large = match body {
            Body::Large(large) => large,
            Body::Pieces(first, second) => {
                copied = self.engine.map_large(layout.value).ok_or(NotWritten::NoSpace)?;
                let (front, back) = copied.bytes_mut().split_at_mut(first.len());
                front.copy_from_slice(first);
                back.copy_from_slice(second);
                &mut copied
            }
        };
        let (mapping, start) =
            large.take_record(layout.value_offset()).ok_or(NotWritten::OutOfMemory)?;
        fields.seq = guard.next_seq();
        let footprint = mapping.len() as u64;
        // SAFETY: header and key lie in the mapping's headroom, directly before the value.
        unsafe { write_head(mapping.base().add(start), layout, &fields, key.bytes()) };
        let adopted =
            self.engine.log.adopt_jumbo(mapping, start, layout.size(), layout.value, self.now());
        adopted.map_err(|_| {
            self.engine.budget.release(footprint);
            NotWritten::OutOfMemory
        })
    }

    /// Makes the record at `address` the key's current one.
    #[inline]
    fn publish<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        place: Place<'a>,
        address: Address,
    ) -> Item<'a> {
        let slot = match existing {
            Some(old) => {
                let before = old.place.slot();
                let frequency = if old.expired { 0 } else { before.frequency() };
                let slot = Slot::new(key.tag(), frequency, address);
                guard.replace(place, slot);
                self.engine.kill(before.address().segment(), old.record.size());
                slot
            }
            None => {
                let slot = Slot::new(key.tag(), 0, address);
                guard.fill(place, slot);
                slot
            }
        };
        // SAFETY: just written; its frame is not reused before the next tick.
        let record = unsafe { self.engine.log.record(address) };
        self.item(slot, record.expect("a segment that was just written has a frame"))
    }

    /// Takes the key's item out of the index.
    pub(crate) fn unpublish(&self, guard: &Guard<'_>, existing: &Existing<'_>) {
        let slot = existing.place.slot();
        guard.remove(existing.place);
        self.engine.kill(slot.address().segment(), existing.record.size());
    }

    /// New keys are on probation, unless they were evicted from there a short while ago. A new
    /// version follows the old one's stream.
    #[inline]
    fn stream_for(&self, key: &Key<'_>, existing: Option<&Existing<'_>>) -> Stream {
        let back = existing.is_none()
            && self.engine.evicts.load(Ordering::Relaxed)
            && self.engine.ghost.recall(key);
        if back { Stream::Survivors } else { Stream::Hot }
    }

    /// The position of the key of a resident record.
    fn position(&self, address: Address) -> u32 {
        // SAFETY: called for addresses in slots under the stripe's lock.
        let record = unsafe { self.engine.log.record(address) };
        record.map_or(0, |record| self.key(record.key()).position())
    }
}
