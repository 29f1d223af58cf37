//! An item as a reader sees it.

use crate::index::slot::Slot;
use crate::{Expiry, UnixSeconds};
use larder_log::{Address, Log, Record};

/// An item in RAM, readable until its session ticks.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    record: Record<'a>,
    slot: Slot,
    log: &'a Log,
}

/// Where an item was found, to go on reading a long value after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHandle {
    pub(crate) address: Address,
    pub(crate) generation: u32,
}

impl<'a> Item<'a> {
    #[inline]
    pub(crate) fn new(record: Record<'a>, slot: Slot, log: &'a Log) -> Self {
        Item { record, slot, log }
    }

    /// The same item with what `slot` knew of its reads.
    pub(crate) fn with_frequency_of(self, slot: Slot) -> Self {
        Item { slot: self.slot.with_frequency(slot.frequency()), ..self }
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
        self.slot.frequency() > 0
    }

    /// When the item was last used, approximately: when its segment was begun (meta `l`).
    pub fn last_access(&self) -> UnixSeconds {
        self.log.segment(self.slot.address().segment()).born()
    }

    /// The bytes that the record occupies in the log.
    pub fn record_size(&self) -> usize {
        self.record.size()
    }

    /// A handle to find this very version again after a tick.
    pub fn handle(&self) -> ItemHandle {
        let address = self.slot.address();
        ItemHandle { address, generation: self.log.segment(address.segment()).generation() }
    }
}
