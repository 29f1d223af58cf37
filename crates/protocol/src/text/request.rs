//! The requests of the text protocol. Their keys went to the [`KeySink`](crate::KeySink): one for
//! every request that says so, any number for [`Get`].

use super::admin::Admin;
use crate::StoreMode;
use crate::meta::Meta;

/// A request of the text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// get, gets, gat, gats.
    Get(Get),
    /// A meta command with a key.
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
    /// stats, with the tokens behind it.
    Stats(&'a [u8]),
    /// Everything that operators send.
    Admin(Admin<'a>),
}

/// A retrieval of any number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The reply shows cas ids (gets, gats).
    pub cas: bool,
    /// The items get this expiry time, as the client wrote it (gat, gats).
    pub exptime: Option<i32>,
    /// No keys were parsed: they follow in the input, see [`parse_keys`](super::parse_keys).
    pub keys_follow: bool,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which items the command may meet; `Set` for cas.
    pub mode: StoreMode,
    /// Only the item with this cas id (cas).
    pub compare: Option<u64>,
    /// The client's flags.
    pub flags: u32,
    /// The expiry time, cut to 32 bits as memcached does.
    pub exptime: i32,
    /// No reply is wanted.
    pub noreply: bool,
    /// The value, without its line end.
    pub value: &'a [u8],
}

/// A delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// No reply is wanted.
    pub noreply: bool,
}

/// An incr or decr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// decr.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// No reply is wanted.
    pub noreply: bool,
}

/// A touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The expiry time as the client wrote it.
    pub exptime: i32,
    /// No reply is wanted.
    pub noreply: bool,
}
