//! The requests of the binary protocol. They do not contain their keys: the parser passes each key
//! to the [`KeySink`](crate::KeySink).

use crate::StoreMode;

/// The fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The opcode that the client sent. The quiet form of a command, such as getq, has another
    /// opcode than the form that always gets a reply.
    pub opcode: u8,
    /// Four bytes that the client chose to match the reply to the request. The server does not
    /// interpret them.
    pub opaque: [u8; 4],
}

/// A request of the binary protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The fields that the reply repeats.
    pub head: Head,
    /// The command.
    pub command: Command<'a>,
}

/// The command of a request. A quiet get receives no reply on a miss. Other quiet requests receive
/// no reply on success. All other replies, such as errors, are sent to quiet requests, too.
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
        /// The time of the flush: an expiry time as the client wrote it, 0 for now.
        exptime: u32,
        /// True to send no reply on success.
        quiet: bool,
    },
    /// noop.
    Noop,
    /// version.
    Version,
    /// stat. The bytes are the key of the packet: the name of a group of statistics, with its
    /// arguments, or empty.
    Stat(&'a [u8]),
    /// quit.
    Quit {
        /// True to send no reply.
        quiet: bool,
    },
}

/// A retrieval of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The new expiry time of the item, as the client wrote it. `None` for get and getk, which do
    /// not change it.
    pub exptime: Option<u32>,
    /// True if the reply repeats the key, also on a miss.
    pub with_key: bool,
    /// True to send no reply on a miss.
    pub quiet: bool,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which items the command may replace or change.
    pub mode: StoreMode,
    /// Write only if the item has this cas id. As in memcached, set, add and replace with a cas id
    /// all do the same: they replace the item with this cas id.
    pub compare: Option<u64>,
    /// The client's flags; 0 for append and prepend, which keep the item's flags.
    pub flags: u32,
    /// The expiry time as the client wrote it; 0 for append and prepend.
    pub exptime: u32,
    /// True to send no reply on success.
    pub quiet: bool,
    /// The value.
    pub value: &'a [u8],
}

/// A delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Delete only if the item has this cas id.
    pub compare: Option<u64>,
    /// True to send no reply on success.
    pub quiet: bool,
}

/// An increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// True for decrement.
    pub decrement: bool,
    /// The amount to add or subtract.
    pub delta: u64,
    /// How to create a missing counter; `None` to report it missing.
    pub create: Option<Create>,
    /// Change only if the item has this cas id.
    pub compare: Option<u64>,
    /// True to send no reply on success.
    pub quiet: bool,
}

/// How to create a missing counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// The counter's initial value.
    pub initial: u64,
    /// The counter's expiry time as the client wrote it.
    pub exptime: u32,
}
