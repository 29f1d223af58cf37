//! Arguments and results of the verbs. The verbs are methods of [`Session`](crate::Session), one
//! file each.

pub(crate) mod arith;
mod delete;
mod flush;
mod get;
pub(crate) mod recache;
mod sample;
mod scan;
mod store;
pub(crate) mod take;
pub(crate) mod version;
mod write;

pub use sample::ItemSampler;
pub use scan::ScanCursor;

use crate::limit::{Decision, Limit, Limiter};
use crate::{Durability, Expiry, Item, LargeValue};

/// How the counters record a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadCount {
    /// A get.
    #[default]
    Get,
    /// A touch and no get (touch, gat).
    Touch,
    /// A touch if there is an item, and a get if there is none (meta `T`).
    TouchIfFound,
    /// Not counted, because the read is part of another command or of the debugging command `me`.
    Nothing,
}

/// How a read changes and counts the item that it returns. The default is memcached's plain `get`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Get {
    /// How the counters record the read.
    pub counted_as: ReadCount,
    /// Leave the item's frequency alone (meta `u`, `me`).
    pub no_bump: bool,
    /// Give the item this expiry (gat, touch, meta `T`). Its cas id does not change.
    pub touch: Option<Expiry>,
    /// Create an empty item on a miss (meta `N`). The caller becomes the winner that recaches it.
    pub vivify: Option<Vivify>,
    /// Tell one caller to recache a stale item or one that expires soon (meta get). With `None`,
    /// this caller is never told to recache.
    pub recache: Option<Recache>,
}

/// Selects the items to recache: stale items, and items with fewer than `below` seconds to live
/// (meta `R`). The default selects stale items only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recache {
    /// The time to live below which an item is recached, in seconds.
    pub below: u32,
    /// Compare `below` with the expiry that `touch` sets, not with the previous one.
    pub touched: bool,
}

/// How to create an item that is missing.
#[derive(Clone, Copy, Debug)]
pub struct Vivify {
    /// The expiry of the new item.
    pub expiry: Expiry,
    /// The explicit cas id of the new item (meta `E`).
    pub cas: Option<u64>,
}

/// The item that a read found or created.
#[derive(Debug)]
pub struct Got<'a> {
    /// The item as it is after the read.
    pub item: Item<'a>,
    /// The expiry before the read touched it.
    pub old_expiry: Expiry,
    /// True if the read created the item.
    pub created: bool,
    /// True if this caller should recache (meta `W`).
    pub won: bool,
    /// True if another caller was already told to recache (meta `Z`).
    pub won_before: bool,
}

/// A condition on the key's item. A write whose condition does not hold changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// The item may exist or not.
    #[default]
    Set,
    /// The item must not exist.
    Add,
    /// The item must exist.
    Replace,
    /// The item must exist. The value is appended; flags and expiry stay.
    Append,
    /// The item must exist. The value is prepended; flags and expiry stay.
    Prepend,
}

/// The bytes of a value.
#[derive(Debug)]
pub enum Value<'a> {
    /// A whole value in the caller's memory; it is copied.
    Bytes(&'a [u8]),
    /// A value that the caller has put directly into its segment: see
    /// [`Session::large_value`](crate::Session::large_value).
    Large(&'a mut LargeValue),
}

impl Value<'_> {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Large(large) => large.len(),
        }
    }

    /// Returns true if the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A write of a whole value.
#[derive(Debug)]
pub struct Store<'a> {
    /// The condition on the key's item.
    pub mode: StoreMode,
    /// The value, or the bytes to append or prepend.
    pub value: Value<'a>,
    /// The client's flags.
    pub flags: u32,
    /// When the item expires.
    pub expiry: Expiry,
    /// Write only over the item with this cas id (cas, meta `C`). Add ignores it.
    pub compare: Option<u64>,
    /// The explicit cas id of the new version (meta `E`).
    pub cas: Option<u64>,
    /// If `compare` is lower than the item's cas id, write nevertheless, keep the old expiry and
    /// mark the item stale (meta `I`).
    pub invalidate: bool,
    /// Append and prepend create a missing item with this expiry (meta `N`).
    pub vivify: Option<Expiry>,
}

impl<'a> Store<'a> {
    /// Returns a plain set.
    pub fn set(value: &'a [u8], flags: u32, expiry: Expiry) -> Self {
        Store {
            mode: StoreMode::Set,
            value: Value::Bytes(value),
            flags,
            expiry,
            compare: None,
            cas: None,
            invalidate: false,
            vivify: None,
        }
    }
}

/// How a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value was written.
    Stored {
        /// The cas id of the new version.
        cas: u64,
        /// The length of the whole value, in bytes.
        size: usize,
    },
    /// The condition of the mode does not hold: add found an item; replace, append or prepend found
    /// none. Also returned if append or prepend would make the item too large.
    NotStored,
    /// The item has another cas id than `compare`.
    Exists,
    /// `compare` was given and there is no item.
    NotFound,
    /// The value is too large for an item with this key. Nothing changed.
    TooLarge,
}

/// A delete, or one of its meta variants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delete {
    /// True if the delete is part of another command and is not counted.
    pub uncounted: bool,
    /// Delete only the item with this cas id.
    pub compare: Option<u64>,
    /// Keep the item, mark it stale and give it a new cas id (meta `I`).
    pub invalidate: bool,
    /// The new expiry of an item that is kept (meta `T`; only with `invalidate` or `clear_value`).
    pub expiry: Option<Expiry>,
    /// Keep the item with an empty value, flags 0 and (unless `expiry` says otherwise) no expiry
    /// (meta `x`).
    pub clear_value: bool,
    /// The explicit cas id of an item that is kept (meta `E`).
    pub cas: Option<u64>,
}

/// How a delete ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The item was deleted, or changed as asked.
    Deleted,
    /// There is no such item.
    NotFound,
    /// The item has another cas id than `compare`.
    Exists,
}

/// An increment or decrement of a decimal number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arith {
    /// Subtract and stop at 0 instead of adding modulo 2^64.
    pub decrement: bool,
    /// The amount to add or subtract.
    pub delta: u64,
    /// Change only the item with this cas id.
    pub compare: Option<u64>,
    /// The explicit cas id of the new version (meta `E`).
    pub cas: Option<u64>,
    /// The new expiry of an existing item (meta `T`).
    pub expiry: Option<Expiry>,
    /// If the item is missing, create a counter with this initial value, without applying the
    /// delta.
    pub create: Option<Create>,
}

impl Arith {
    /// Returns an increment by `delta` without conditions.
    pub fn add(delta: u64) -> Arith {
        Arith { delta, ..Arith::default() }
    }
}

/// How to create a missing counter.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// The value of the new counter.
    pub initial: u64,
    /// The expiry of the new counter.
    pub expiry: Expiry,
}

/// How an increment or decrement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The number was changed, or the counter was created.
    Value {
        /// The number after the change.
        value: u64,
        /// The cas id of the new version.
        cas: u64,
        /// The expiry of the new version.
        expiry: Expiry,
        /// True if the counter was created with its initial value.
        created: bool,
    },
    /// There is no such item.
    NotFound,
    /// The item's value is not a number.
    NonNumeric,
    /// The item has another cas id than `compare`.
    Exists,
}

/// A request for units of a rate limit.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// The limit. It may differ from that of earlier requests.
    pub limit: Limit,
    /// The number of units; with 0, the request only reads the limiter.
    pub cost: u64,
    /// Take only from the item with this cas id.
    pub compare: Option<u64>,
    /// The explicit cas id of the new version (meta `E`).
    pub cas: Option<u64>,
    /// The new end of the window, if units are taken (meta `T`).
    pub expiry: Option<Expiry>,
    /// The durability that the answer waits for. With `None`, it waits for the durability of the
    /// store. Without a store, the answer is given at once.
    pub durability: Option<Durability>,
}

impl Take {
    /// Returns a request for `cost` units without conditions.
    pub fn of(limit: Limit, cost: u64) -> Take {
        Take { limit, cost, compare: None, cas: None, expiry: None, durability: None }
    }
}

/// How a request for units ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The units were taken, or refused.
    Decided {
        /// The decision.
        decision: Decision,
        /// The limiter after the decision; `None` if there is none.
        limiter: Option<Limiter>,
        /// The cas id of the limiter; 0 if there is none.
        cas: u64,
    },
    /// There is no item, but a cas id to compare with was given.
    NotFound,
    /// The item's value is neither a limiter nor a number.
    NonNumeric,
    /// The item has another cas id than `compare`.
    Exists,
}
