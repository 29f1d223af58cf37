//! memcached's protocols as pure functions: bytes to requests, and replies to bytes. Nothing here
//! does I/O, reads a clock, allocates for a request without a value, or fails: every input is a
//! request, "more bytes are needed", or an error reply together with how the stream goes on.
//!
//! The first byte of a connection chooses the protocol: [`BINARY_MAGIC`] the binary one, anything
//! else the [text](text) one, in which classic and [meta] commands mix freely.
//!
//! Keys do not travel inside the requests. A parser hands them to a [`KeySink`] as it finds them,
//! so that a server can hash and prefetch them while the parser still looks for the next one.

pub mod base64;
pub mod binary;
mod guess;
pub mod meta;
pub mod reply;
pub mod scan;
pub mod text;

pub use guess::guess_key;

/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 250;

/// The longest text line that a parser waits for, in bytes. Retrieval lines have no limit: they
/// are parsed piece by piece.
pub const LINE_LEN_MAX: usize = 2048;

/// The longest value that a length field may announce: memcached keeps it in an `int`, together
/// with the two bytes of the line end.
pub const VALUE_LEN_MAX: usize = i32::MAX as usize - 2;

/// The first byte of a connection that speaks the binary protocol.
pub const BINARY_MAGIC: u8 = 0x80;

/// Which items a storage request may meet, in every protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Any.
    #[default]
    Set,
    /// Only a missing one.
    Add,
    /// Only an existing one.
    Replace,
    /// An existing one, which grows at its end.
    Append,
    /// An existing one, which grows at its front.
    Prepend,
}

/// What a parser made of the beginning of its input. `R` is the protocol's request, `E` its error
/// reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<R, E> {
    /// Nothing can be said before more bytes have arrived.
    NeedMore {
        /// How many bytes are needed in all; one more than there are if that is not known.
        total: usize,
    },
    /// A whole request.
    Request {
        /// The request.
        request: R,
        /// How many bytes of the input it took, its value included.
        consumed: usize,
    },
    /// A storage request whose value has not arrived completely. The caller either waits and
    /// parses again, or takes the value elsewhere and parses `header` bytes again when it is
    /// complete: a header without its value always parses to this.
    NeedValue {
        /// The request; its value is empty.
        request: R,
        /// Length of what stands before the value, in bytes.
        header: usize,
        /// Length of the value, in bytes.
        value: usize,
        /// Length of what must follow the value (the line end of the text protocol), in bytes.
        trailer: usize,
    },
    /// What was sent is refused.
    Refused {
        /// The reply; a text reply is empty where the client asked for none.
        reply: E,
        /// How many bytes of the input are done with.
        consumed: usize,
        /// How the connection goes on.
        then: Then,
    },
}

/// How a connection goes on after a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// With the next request.
    Continue,
    /// By throwing away this many bytes: the value of the refused request.
    Swallow(usize),
    /// By throwing away everything up to the next line end.
    SkipLine,
    /// Not at all.
    Close,
}

/// Where a parser puts the keys of requests, in their order.
pub trait KeySink<'a> {
    /// Takes a key of 1 to [`KEY_LEN_MAX`] bytes.
    fn push(&mut self, key: &'a [u8]);
    /// How many keys are there.
    fn len(&self) -> usize;
    /// Forgets all keys behind the first `len`: their request turned out to be wrong.
    fn truncate(&mut self, len: usize);
    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> KeySink<'a> for Vec<&'a [u8]> {
    #[inline]
    fn push(&mut self, key: &'a [u8]) {
        self.push(key);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }
}
