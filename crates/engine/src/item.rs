//! An item as a reader sees it.

use crate::index::slot::Slot;
use crate::lane::Lane;
use crate::{Expiry, UnixSeconds};
use larder_log::record::Kind;
use larder_log::{Address, Pin, Record};
use std::sync::Arc;

/// An item in RAM, readable until its session ticks.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    record: Record<'a>,
    slot: Slot,
    lane: &'a Arc<Lane>,
}

/// An item as a [scan](crate::Session::scan) shows it: without its value, which need not be in memory.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a>(Item<'a>);

impl<'a> Listed<'a> {
    pub(crate) fn new(item: Item<'a>) -> Self {
        Listed(item)
    }

    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.0.key()
    }

    /// The value's length, in bytes.
    pub fn value_len(&self) -> usize {
        self.0.record.layout().value
    }

    /// The client's flags.
    pub fn flags(&self) -> u32 {
        self.0.flags()
    }

    /// The cas id.
    pub fn cas(&self) -> u64 {
        self.0.cas()
    }

    /// When the item dies.
    pub fn expiry(&self) -> Expiry {
        self.0.expiry()
    }

    /// Whether the item has been read.
    pub fn hit_before(&self) -> bool {
        self.0.hit_before()
    }

    /// When the item was last used, approximately: when its segment was begun.
    pub fn last_access(&self) -> UnixSeconds {
        self.0.last_access()
    }

    /// The bytes that the record occupies in the log.
    pub fn record_size(&self) -> usize {
        self.0.record_size()
    }
}

/// Where an item was found, to look at it again after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemHandle {
    /// The position of its lane.
    pub(crate) lane: u8,
    pub(crate) address: Address,
    pub(crate) generation: u32,
}

/// A value, or the rest of one, that can be read to its end: its item may be overwritten, deleted or
/// evicted meanwhile. Values that only their readers keep take a bounded share of memory; beyond it the one
/// that was read least lately is given up.
#[derive(Debug)]
pub struct KeptValue {
    // Before what holds the memory that it may lie in.
    pin: Pin,
    _lane: Arc<Lane>,
}

impl KeptValue {
    /// Shows at most `most` of the bytes that were not read yet; the answer is how many are left then,
    /// `None` if the value was given up.
    pub fn read(&mut self, most: usize, see: impl FnOnce(&[u8])) -> Option<usize> {
        self.pin.read(most, see)
    }
}

impl<'a> Item<'a> {
    #[inline]
    pub(crate) fn new(record: Record<'a>, slot: Slot, lane: &'a Arc<Lane>) -> Self {
        Item { record, slot, lane }
    }

    /// The same item with what `slot` knew of its reads.
    pub(crate) fn with_frequency_of(self, slot: Slot) -> Self {
        Item { slot: self.slot.with_frequency(slot.frequency()), ..self }
    }

    /// Whether it is one, and not the mark of a deleted one.
    pub(crate) fn is_item(&self) -> bool {
        self.record.kind() == Kind::Item
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.record.key()
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.record.value()
    }

    /// The client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// The cas id.
    #[inline]
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }

    /// When the item dies.
    pub fn expiry(&self) -> Expiry {
        Expiry::from_raw(self.record.expiry())
    }

    /// Marked stale by meta `I`.
    pub fn is_stale(&self) -> bool {
        self.record.is_stale()
    }

    /// Whether the item had been read before this read (meta `h`).
    pub fn hit_before(&self) -> bool {
        self.slot.frequency() > u8::from(self.record.inherits_reads())
    }

    /// When the item was last used, approximately: when its segment was begun (meta `l`).
    pub fn last_access(&self) -> UnixSeconds {
        self.lane.log.segment(self.slot.address().segment()).born()
    }

    /// The bytes that the record occupies in the log.
    pub fn record_size(&self) -> usize {
        self.record.size()
    }

    /// Its value from the byte `from` on, to be read after the session's next tick, too.
    pub fn keep_value(&self, from: usize) -> KeptValue {
        // SAFETY: an item is readable until its session ticks.
        let pin = unsafe { self.lane.log.pin(self.slot.address(), &self.record, from) };
        KeptValue { pin, _lane: Arc::clone(self.lane) }
    }
}
