//! The replies of the binary protocol: a header, followed by extras, key and value. In an error
//! reply, a text that describes the error follows the header.

use super::{HEADER_LEN, Head};

/// The first byte of every reply.
const MAGIC: u8 = 0x81;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Success.
    Ok = 0x00,
    /// There is no such item or group of statistics.
    NotFound = 0x01,
    /// The command is add, and the item exists; or the request has a cas id that is not the item's.
    Exists = 0x02,
    /// The item is larger than the largest item size.
    TooLarge = 0x03,
    /// The lengths in the request's header do not fit its opcode or exceed a limit.
    InvalidArguments = 0x04,
    /// The command is append or prepend. There is no item, or it would become too large.
    NotStored = 0x05,
    /// The value to increment or decrement is not a number.
    NonNumeric = 0x06,
    /// The operator has forbidden the command.
    AuthError = 0x20,
    /// The opcode is not supported, or the body is shorter than its extras and key.
    UnknownCommand = 0x81,
    /// There is not enough memory, or the store is full.
    OutOfMemory = 0x82,
    /// The store failed: it cannot write or read what the request needs.
    InternalError = 0x84,
}

impl Status {
    /// Returns the default text of an error reply.
    pub fn text(self) -> &'static str {
        match self {
            Status::Ok => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthError => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::InternalError => "Internal error",
        }
    }
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The fields repeated from the request.
    pub head: Head,
    /// The outcome of the request.
    pub status: Status,
    /// Length of the extras, in bytes.
    pub extras_len: u8,
    /// Length of the key, in bytes.
    pub key_len: u8,
    /// Length of the value, or of the text of an error, in bytes.
    pub value_len: u32,
    /// The item's cas id, or 0.
    pub cas: u64,
}

impl Response {
    /// Creates a reply without extras, key, value and cas id.
    pub fn new(head: Head, status: Status) -> Self {
        Response { head, status, extras_len: 0, key_len: 0, value_len: 0, cas: 0 }
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let body_len = u32::from(self.extras_len) + u32::from(self.key_len) + self.value_len;
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = MAGIC;
        bytes[1] = self.head.opcode;
        bytes[2..4].copy_from_slice(&u16::from(self.key_len).to_be_bytes());
        bytes[4] = self.extras_len;
        bytes[6..8].copy_from_slice(&(self.status as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.head.opaque);
        bytes[16..].copy_from_slice(&self.cas.to_be_bytes());
        bytes
    }
}

/// An error reply of the parser: the bytes of [`header`](Refusal::header), then the text of its
/// status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The fields repeated from the request.
    pub head: Head,
    /// What is wrong.
    pub status: Status,
}

impl Refusal {
    /// Returns the header; [`text`](Self::text) follows it.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        let value_len = self.text().len() as u32;
        Response { value_len, ..Response::new(self.head, self.status) }.to_bytes()
    }

    /// Returns the text that follows the header.
    pub fn text(&self) -> &'static str {
        self.status.text()
    }
}
