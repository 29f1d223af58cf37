//! An item as a reader sees it.

use crate::Expiry;

/// An item in RAM, readable until its session ticks.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    key: &'a [u8],
}

/// Where an item was found, to go on reading a long value after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHandle {
    _x: u64,
}

impl<'a> Item<'a> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }
    /// The value.
    pub fn value(&self) -> &'a [u8] {
        unimplemented!()
    }
    /// The client's flags.
    pub fn flags(&self) -> u32 {
        unimplemented!()
    }
    /// The cas id.
    pub fn cas(&self) -> u64 {
        unimplemented!()
    }
    /// When the item dies.
    pub fn expiry(&self) -> Expiry {
        unimplemented!()
    }
    /// Marked stale by meta `I`.
    pub fn is_stale(&self) -> bool {
        unimplemented!()
    }
    /// Whether the item had been read before this read (meta `h`).
    pub fn hit_before(&self) -> bool {
        unimplemented!()
    }
    /// When the item was last used, approximately: when its segment was begun (meta `l`).
    pub fn last_access(&self) -> crate::UnixSeconds {
        unimplemented!()
    }
    /// The bytes that the record occupies in the log.
    pub fn record_size(&self) -> usize {
        unimplemented!()
    }
    /// A handle to find this very version again after a tick.
    pub fn handle(&self) -> ItemHandle {
        unimplemented!()
    }
}
