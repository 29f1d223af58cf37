//! memcached's protocols as pure functions: bytes to requests, and replies to bytes. The functions
//! here do no I/O, read no clock and allocate no memory; only the caller's [`KeySink`] may
//! allocate. Parsing never fails: it returns a request, "more bytes are needed", or an error reply
//! and how the connection continues.
//!
//! The first byte of a connection chooses the protocol: [`BINARY_MAGIC`] the binary one, anything
//! else the [text] one. The text protocol mixes classic and [meta] commands freely.
//!
//! Requests do not contain their keys. A parser passes each key to a [`KeySink`] as soon as it
//! finds the key. So a server can hash and prefetch the key while the parser looks for the next
//! one.
//!
//! ```
//! use larder_protocol::{Parse, text};
//!
//! let mut keys: Vec<&[u8]> = Vec::new();
//! match text::parse(b"get fig\r\nget pear", &mut keys) {
//!     Parse::Request { request: text::Request::Get(_), consumed } => assert_eq!(consumed, 9),
//!     other => panic!("{other:?}"),
//! }
//! assert_eq!(keys, [b"fig"]);
//! assert!(matches!(text::parse(b"get pear", &mut keys), Parse::NeedMore { .. }));
//! ```

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

/// If the input is longer than this many bytes and has no line end, a parser refuses it instead of
/// asking for more input. Retrieval lines have no limit, because they are parsed piece by piece.
pub const LINE_LEN_MAX: usize = 2048;

/// The longest value that a request of the text protocol may announce, in bytes. memcached stores
/// this length plus the two bytes of the line end in an `int`.
pub const VALUE_LEN_MAX: usize = i32::MAX as usize - 2;

/// The first byte of a connection that speaks the binary protocol.
pub const BINARY_MAGIC: u8 = 0x80;

/// Which items a storage request may replace or change, in every protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Any item, existing or not.
    #[default]
    Set,
    /// Only a missing item.
    Add,
    /// Only an existing item.
    Replace,
    /// An existing item; the value is added at its end.
    Append,
    /// An existing item; the value is added at its front.
    Prepend,
}

/// The result of parsing the beginning of the input. `R` is the protocol's request, `E` its error
/// reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<R, E> {
    /// The input is too short to decide.
    NeedMore {
        /// The total number of bytes needed. If that is not known, one more than the input has.
        total: usize,
    },
    /// A complete request.
    Request {
        /// The request.
        request: R,
        /// The number of input bytes that the request used, including its value.
        consumed: usize,
    },
    /// A storage request whose value has not arrived completely. The caller has two choices. It can
    /// wait for the value and parse the whole input again. Or it can receive the value into another
    /// buffer and parse only the `header` bytes again when the value is complete. A header without
    /// its value always parses to this variant, which has the request.
    NeedValue {
        /// The request; its value is empty.
        request: R,
        /// Length of the input before the value, in bytes.
        header: usize,
        /// Length of the value, in bytes.
        value: usize,
        /// Length of what must follow the value, in bytes (the line end of the text protocol).
        trailer: usize,
    },
    /// The input is refused.
    Refused {
        /// The reply. In the text protocol it is empty if no reply must be sent.
        reply: E,
        /// The number of input bytes to drop.
        consumed: usize,
        /// How the connection continues.
        then: Then,
    },
}

/// How a connection continues after a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Parse the next request.
    Continue,
    /// Discard this many bytes, the rest of the refused request, then continue.
    Swallow(usize),
    /// Discard everything up to the next line end, then continue.
    SkipLine,
    /// Close the connection.
    Close,
}

/// Receives the keys of requests in their order.
pub trait KeySink<'a> {
    /// Adds a key of 1 to [`KEY_LEN_MAX`] bytes.
    fn push(&mut self, key: &'a [u8]);
    /// Returns the number of keys.
    fn len(&self) -> usize;
    /// Removes all keys after the first `len`, because their request turned out to be wrong.
    fn truncate(&mut self, len: usize);
    /// Returns true if there are no keys.
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
