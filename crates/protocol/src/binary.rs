//! The binary protocol: packets with a header of 24 bytes, then extras, key and value. The rules
//! are those of memcached 1.6.45, where the protocol is deprecated and frozen. Three things differ
//! on purpose. A packet whose header is wrong is refused before the rest of the packet has arrived.
//! If the connection continues after a refused packet, exactly the bytes of that packet are
//! skipped. A few commands are refused if they have a surplus value; memcached would parse that
//! value as the next packet.

mod request;
mod response;
#[cfg(test)]
mod tests;

pub use request::{Arithmetic, Command, Create, Delete, Get, Head, Request, Store};
pub use response::{Refusal, Response, Status};

use crate::{BINARY_MAGIC, KEY_LEN_MAX, KeySink, Parse, StoreMode, Then};

/// Length of the header of every packet, in bytes.
pub const HEADER_LEN: usize = 24;

/// The longest body (extras, key and value) that a packet may announce, in bytes.
pub const BODY_LEN_MAX: usize = 1 << 30;

/// The expiry time with which an increment or decrement does not create a missing counter.
const NEVER_CREATE: u32 = u32::MAX;

/// The result of [`parse`]. The reply of a refusal is `None` only if the magic number is wrong.
pub type Parsed<'a> = Parse<Request<'a>, Option<Refusal>>;

/// Parses the request at the beginning of `input` and passes its key to `keys`. An incomplete or
/// refused request leaves no key in `keys`, with one exception: if the result is
/// [`Parse::NeedValue`], the key of the storage command stays there.
#[inline]
pub fn parse<'a>(input: &'a [u8], keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    if input.first().is_some_and(|&magic| magic != BINARY_MAGIC) {
        return Parse::Refused { reply: None, consumed: input.len(), then: Then::Close };
    }
    let Some((bytes, body)) = input.split_first_chunk() else {
        return Parse::NeedMore { total: HEADER_LEN };
    };
    let header = Header::read(bytes);
    let kind = match header.check() {
        Ok(kind) => kind,
        Err(refused) => return refused,
    };
    let head_len = header.extras_len + header.key_len;
    let Some((head, rest)) = body.split_at_checked(head_len) else {
        return Parse::NeedMore { total: HEADER_LEN + head_len };
    };
    let (extras, key) = head.split_at(header.extras_len);
    let mut command = header.command(kind, Extras(extras), key);
    let mut consumed = HEADER_LEN + head_len;
    if kind.has_key() {
        keys.push(key);
    }
    if let Command::Store(store) = &mut command {
        match rest.get(..header.value_len) {
            Some(value) => {
                store.value = value;
                consumed += value.len();
            }
            None => {
                return Parse::NeedValue {
                    request: Request { head: header.head, command },
                    header: consumed,
                    value: header.value_len,
                    trailer: 0,
                };
            }
        }
    }
    Parse::Request { request: Request { head: header.head, command }, consumed }
}

/// The supported opcodes; the quiet form of each has the same kind as the loud one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    GetK,
    Gat,
    GatK,
    Touch,
    Store(StoreMode),
    Delete,
    Arithmetic,
    Flush,
    Noop,
    Version,
    Stat,
    Quit,
}

impl Kind {
    fn has_key(self) -> bool {
        !matches!(self, Kind::Flush | Kind::Noop | Kind::Version | Kind::Stat | Kind::Quit)
    }
}

/// The decoded header of a packet.
struct Header {
    head: Head,
    extras_len: usize,
    key_len: usize,
    value_len: usize,
    /// Total length of extras, key and value, in bytes.
    body_len: usize,
    cas: u64,
}

impl Header {
    #[inline]
    fn read(bytes: &[u8; HEADER_LEN]) -> Self {
        let [_, opcode, k0, k1, e, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = *bytes;
        let key_len = usize::from(u16::from_be_bytes([k0, k1]));
        let extras_len = usize::from(e);
        let body_len = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
        Header {
            head: Head { opcode, opaque: [o0, o1, o2, o3] },
            extras_len,
            key_len,
            value_len: body_len.saturating_sub(key_len + extras_len),
            body_len,
            cas: u64::from_be_bytes(cas),
        }
    }

    /// Returns the kind of the opcode. Returns a refusal if the opcode does not exist or the
    /// lengths do not fit it.
    #[inline]
    fn check<'a>(&self) -> Result<Kind, Parsed<'a>> {
        if self.key_len + self.extras_len > self.body_len {
            return Err(self.refuse(Status::UnknownCommand, Then::Close));
        }
        if self.body_len > BODY_LEN_MAX || self.key_len > KEY_LEN_MAX {
            return Err(self.refuse(Status::InvalidArguments, Then::Close));
        }
        let Header { extras_len, key_len, value_len, .. } = *self;
        let (keyed, keyless) = (key_len > 0, key_len == 0);
        let (kind, fits) = match self.head.opcode {
            0x00 | 0x09 => (Kind::Get, keyed && extras_len == 0 && value_len == 0),
            0x01 | 0x11 => (Kind::Store(StoreMode::Set), keyed && extras_len == 8),
            0x02 | 0x12 => (Kind::Store(StoreMode::Add), keyed && extras_len == 8),
            0x03 | 0x13 => (Kind::Store(StoreMode::Replace), keyed && extras_len == 8),
            0x04 | 0x14 => (Kind::Delete, keyed && extras_len == 0 && value_len == 0),
            0x05 | 0x06 | 0x15 | 0x16 => {
                (Kind::Arithmetic, keyed && extras_len == 20 && value_len == 0)
            }
            0x07 | 0x17 => (Kind::Quit, self.body_len == 0),
            0x08 | 0x18 => (Kind::Flush, keyless && matches!(extras_len, 0 | 4) && value_len == 0),
            0x0a => (Kind::Noop, self.body_len == 0),
            0x0b => (Kind::Version, self.body_len == 0),
            0x0c | 0x0d => (Kind::GetK, keyed && extras_len == 0 && value_len == 0),
            0x0e | 0x19 => (Kind::Store(StoreMode::Append), keyed && extras_len == 0),
            0x0f | 0x1a => (Kind::Store(StoreMode::Prepend), keyed && extras_len == 0),
            0x10 => (Kind::Stat, extras_len == 0 && value_len == 0),
            0x1c => (Kind::Touch, keyed && extras_len == 4 && value_len == 0),
            0x1d | 0x1e => (Kind::Gat, keyed && extras_len == 4 && value_len == 0),
            0x23 | 0x24 => (Kind::GatK, keyed && extras_len == 4 && value_len == 0),
            _ => return Err(self.refuse_unserved()),
        };
        if fits { Ok(kind) } else { Err(self.refuse(Status::InvalidArguments, Then::Close)) }
    }

    /// Refuses opcodes that memcached does not know, and the opcodes of SASL. A memcached without
    /// SASL first checks the lengths of a SASL packet, and then replies that it does not know the
    /// opcode. So does this function.
    #[cold]
    fn refuse_unserved<'a>(&self) -> Parsed<'a> {
        let fits = match self.head.opcode {
            0x20 => self.body_len == 0,
            0x21 | 0x22 => self.extras_len == 0 && self.key_len > 0,
            _ => true,
        };
        match self.body_len {
            _ if !fits => self.refuse(Status::InvalidArguments, Then::Close),
            0 => self.refuse(Status::UnknownCommand, Then::Continue),
            len => self.refuse(Status::UnknownCommand, Then::Swallow(len)),
        }
    }

    #[cold]
    fn refuse<'a>(&self, status: Status, then: Then) -> Parsed<'a> {
        let reply = Some(Refusal { head: self.head, status });
        Parse::Refused { reply, consumed: HEADER_LEN, then }
    }

    fn command<'a>(&self, kind: Kind, extras: Extras<'_>, key: &'a [u8]) -> Command<'a> {
        let quiet = self.is_quiet();
        let compare = (self.cas != 0).then_some(self.cas);
        match kind {
            Kind::Get | Kind::GetK => {
                Command::Get(Get { exptime: None, with_key: kind == Kind::GetK, quiet })
            }
            Kind::Gat | Kind::GatK => {
                let exptime = Some(extras.u32_at(0));
                Command::Get(Get { exptime, with_key: kind == Kind::GatK, quiet })
            }
            Kind::Touch => Command::Touch { exptime: extras.u32_at(0) },
            Kind::Store(mode) => Command::Store(Store {
                mode,
                compare,
                flags: extras.u32_at(0),
                exptime: extras.u32_at(4),
                quiet,
                value: &[],
            }),
            Kind::Delete => Command::Delete(Delete { compare, quiet }),
            Kind::Arithmetic => {
                let create = Create { initial: extras.u64_at(8), exptime: extras.u32_at(16) };
                Command::Arithmetic(Arithmetic {
                    decrement: matches!(self.head.opcode, 0x06 | 0x16),
                    delta: extras.u64_at(0),
                    create: (create.exptime != NEVER_CREATE).then_some(create),
                    compare,
                    quiet,
                })
            }
            Kind::Flush => Command::Flush { exptime: extras.u32_at(0), quiet },
            Kind::Noop => Command::Noop,
            Kind::Version => Command::Version,
            Kind::Stat => Command::Stat(key),
            Kind::Quit => Command::Quit { quiet },
        }
    }

    fn is_quiet(&self) -> bool {
        matches!(self.head.opcode, 0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24)
    }
}

/// The extras of a packet. Missing bytes read as 0: the extras of flush are optional, and append
/// has none.
#[derive(Clone, Copy)]
struct Extras<'a>(&'a [u8]);

impl Extras<'_> {
    #[inline]
    fn u32_at(self, at: usize) -> u32 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |&bytes| u32::from_be_bytes(bytes))
    }

    #[inline]
    fn u64_at(self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }
}
