//! The requests of the binary protocol. The keys of those that have one went to the
//! [`KeySink`](crate::KeySink).

use crate::StoreMode;

/// What every reply repeats from its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The opcode as it was sent, quiet or not.
    pub opcode: u8,
    /// The client's own number, in the byte order it came in.
    pub opaque: [u8; 4],
}

/// A request of the binary protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What the reply repeats.
    pub head: Head,
    /// What is asked for.
    pub command: Command<'a>,
}

/// What a request asks for. Quiet requests are not answered when all is well, and quiet gets not
/// when they miss; every other error is answered all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// get, getk, gat, gatk; one key.
    Get(Get),
    /// touch; one key.
    Touch {
        /// The new expiry time as the client wrote it.
        exptime: u32,
    },
    /// set, add, replace, append, prepend; one key.
    Store(Store<'a>),
    /// delete; one key.
    Delete(Delete),
    /// increment, decrement; one key.
    Arithmetic(Arithmetic),
    /// flush.
    Flush {
        /// When: an expiry time as the client wrote it, 0 for now.
        exptime: u32,
        /// No reply is wanted.
        quiet: bool,
    },
    /// noop.
    Noop,
    /// version.
    Version,
    /// stat, with the group and its arguments.
    Stat(&'a [u8]),
    /// quit.
    Quit {
        /// No reply is wanted.
        quiet: bool,
    },
}

/// A retrieval of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The item gets this expiry time, as the client wrote it.
    pub exptime: Option<u32>,
    /// The reply repeats the key, that of a miss as well.
    pub with_key: bool,
    /// A miss is not answered.
    pub quiet: bool,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which items the command may meet.
    pub mode: StoreMode,
    /// Only the item with this cas id. memcached forgets the difference between set, add and
    /// replace when this is given.
    pub compare: Option<u64>,
    /// The client's flags; 0 for append and prepend, which keep those of the item.
    pub flags: u32,
    /// The expiry time as the client wrote it; 0 for append and prepend.
    pub exptime: u32,
    /// No reply is wanted.
    pub quiet: bool,
    /// The value.
    pub value: &'a [u8],
}

/// A delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Only the item with this cas id.
    pub compare: Option<u64>,
    /// No reply is wanted.
    pub quiet: bool,
}

/// An increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Decrement.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// How to create a missing counter; `None` if it is to be reported missing.
    pub create: Option<Create>,
    /// Only the item with this cas id.
    pub compare: Option<u64>,
    /// No reply is wanted.
    pub quiet: bool,
}

/// How to create a missing counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Its value.
    pub initial: u64,
    /// Its expiry time as the client wrote it.
    pub exptime: u32,
}
