//! An item, as a reader sees it.

use crate::index::slot::Slot;
use crate::lane::Lane;
use crate::{Expiry, UnixSeconds};
use larder_log::{Address, Fields, Pin, Record, RecordId};
use std::sync::Arc;

/// An item in RAM. It is readable until the session that found it ticks or sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    record: Record<'a>,
    slot: Slot,
    lane: &'a Arc<Lane>,
}

/// An item as a [scan](crate::Session::scan) shows it: without its value, which may not be in
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a>(Item<'a>);

impl<'a> Listed<'a> {
    pub(crate) fn new(item: Item<'a>) -> Self {
        Listed(item)
    }

    /// Returns the key.
    pub fn key(&self) -> &'a [u8] {
        self.0.key()
    }

    /// Returns the value's length, in bytes.
    pub fn value_len(&self) -> usize {
        self.0.record.layout().value
    }

    /// Returns the client flags.
    pub fn flags(&self) -> u32 {
        self.0.flags()
    }

    /// Returns the cas id.
    pub fn cas(&self) -> u64 {
        self.0.cas()
    }

    /// Returns when the item expires.
    pub fn expiry(&self) -> Expiry {
        self.0.expiry()
    }

    /// Returns true if the item's slot shows that clients have read it (the meta flag `h`). The
    /// cleaner lowers the read frequency of items that it keeps, so the slot may not show old
    /// reads.
    pub fn hit_before(&self) -> bool {
        self.0.hit_before()
    }

    /// Returns the second at which the item's segment was opened, as an estimate of the item's last
    /// use. Larder does not note the times of reads.
    pub fn last_access(&self) -> UnixSeconds {
        self.0.last_access()
    }

    /// Returns the size of the record in the log, in bytes.
    pub fn record_size(&self) -> usize {
        self.0.record_size()
    }
}

/// Identifies the record of an item, so that the item can be found again after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemHandle {
    /// The position of the item's lane among the engine's lanes.
    pub(crate) lane: u8,
    pub(crate) id: RecordId,
}

/// The bytes of a value from some offset on. They stay readable even if the item is overwritten,
/// deleted or evicted. But values that only `KeptValue`s hold in memory take at most a fixed share
/// of it, except for a single larger value. When that share is full, Larder drops the value whose
/// last [`KeptValue::read`] is the oldest.
#[derive(Debug)]
pub struct KeptValue {
    // Declared before the lane, because fields are dropped in order and the pin may point into the
    // lane's memory.
    pin: Pin,
    _lane: Arc<Lane>,
}

impl KeptValue {
    /// Passes the next unread bytes, at most `most`, to `see`. Returns the number of bytes that are
    /// left, or `None` if the value was dropped.
    pub fn read(&mut self, most: usize, see: impl FnOnce(&[u8])) -> Option<usize> {
        self.pin.read(most, see)
    }
}

impl<'a> Item<'a> {
    #[inline]
    pub(crate) fn new(record: Record<'a>, slot: Slot, lane: &'a Arc<Lane>) -> Self {
        Item { record, slot, lane }
    }

    /// Returns this item with the read frequency of `slot`. If a read has written a new version,
    /// `slot` is the old version's slot, which shows whether the item had been read before.
    pub(crate) fn with_frequency_of(self, slot: Slot) -> Self {
        Item { slot: self.slot.with_frequency(slot.frequency()), ..self }
    }

    /// Returns the address of the item's record.
    pub(crate) fn address(&self) -> Address {
        self.slot.address()
    }

    /// Returns all fields of the record.
    pub(crate) fn fields(&self) -> Fields {
        self.record.fields()
    }

    /// Returns true for an item, false for a tombstone.
    pub(crate) fn is_item(&self) -> bool {
        self.record.kind().is_item()
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.record.key()
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.record.value()
    }

    /// Returns the client flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// Returns the cas id.
    #[inline]
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }

    /// Returns when the item expires.
    pub fn expiry(&self) -> Expiry {
        Expiry::from_raw(self.record.expiry())
    }

    /// Returns true if a meta command with the flag `I` has marked the item as stale.
    pub fn is_stale(&self) -> bool {
        self.record.is_stale()
    }

    /// Returns true if the slot shows a read before the one that returned the item (the meta flag
    /// `h`). The cleaner lowers the read frequency of items that it keeps.
    pub fn hit_before(&self) -> bool {
        self.slot.frequency() > u8::from(self.record.inherits_reads())
    }

    /// Returns the second at which the item's segment was opened, as an estimate of the item's last
    /// use (the meta flag `l`). Larder does not note the times of reads.
    pub fn last_access(&self) -> UnixSeconds {
        self.lane.log.segment(self.slot.address().segment()).born()
    }

    /// Returns the size of the record in the log, in bytes.
    pub fn record_size(&self) -> usize {
        self.record.size()
    }

    /// Returns the value from byte `from` on, readable beyond the session's next tick.
    pub fn keep_value(&self, from: usize) -> KeptValue {
        // SAFETY: an item is readable until its session ticks.
        let pin = unsafe { self.lane.log.pin(self.slot.address(), &self.record, from) };
        KeptValue { pin, _lane: Arc::clone(self.lane) }
    }
}
