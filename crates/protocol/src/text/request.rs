//! The requests of the text protocol. They do not contain their keys: the parser passes each key to
//! the [`KeySink`](crate::KeySink). A [`Get`] has any number of keys. Other requests have one key
//! if their comment says so, and otherwise none.

use super::admin::Admin;
use crate::StoreMode;
use crate::meta::Meta;

/// A request of the text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// get, gets, gat, gats.
    Get(Get),
    /// A meta command with a key; one key, or none if [`Meta::plain_key`] is `None`.
    Meta(Meta<'a>),
    /// set, add, replace, append, prepend, cas; one key.
    Store(Store<'a>),
    /// delete; one key.
    Delete(Delete),
    /// incr, decr; one key.
    Arithmetic(Arithmetic),
    /// touch; one key.
    Touch(Touch),
    /// mn.
    MetaNoop,
    /// version.
    Version,
    /// quit.
    Quit,
    /// stats, with the rest of its line.
    Stats(&'a [u8]),
    /// An admin command.
    Admin(Admin<'a>),
}

/// A retrieval of any number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// True if the reply shows cas ids (gets, gats).
    pub cas: bool,
    /// The new expiry time of the items, as the client wrote it (gat, gats).
    pub exptime: Option<i32>,
    /// True if the line is so long that the parser has not read its keys yet. They follow in the
    /// input, and the caller reads them with [`parse_keys`](super::parse_keys).
    pub keys_follow: bool,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which items the command may replace or change; `Set` for cas.
    pub mode: StoreMode,
    /// Write only if the item has this cas id (cas).
    pub compare: Option<u64>,
    /// The client's flags.
    pub flags: u32,
    /// The expiry time, truncated to 32 bits as memcached does.
    pub exptime: i32,
    /// True to send no reply.
    pub noreply: bool,
    /// The value, without its line end.
    pub value: &'a [u8],
}

/// A delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// True to send no reply.
    pub noreply: bool,
}

/// An incr or decr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// True for decr.
    pub decrement: bool,
    /// The amount to add or subtract.
    pub delta: u64,
    /// True to send no reply.
    pub noreply: bool,
}

/// A touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The expiry time as the client wrote it.
    pub exptime: i32,
    /// True to send no reply.
    pub noreply: bool,
}
