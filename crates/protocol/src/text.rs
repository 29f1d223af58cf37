//! The text protocol, classic and meta commands. One line is one command; in storage commands the
//! value follows the line. The rules are those of memcached 1.6.45, including its odd ones.

mod admin;
mod request;
mod retrieval;
mod storage;
#[cfg(test)]
mod tests;

pub use admin::{Admin, Device, Dump, DumpFormat, Grow, Shutdown};
pub use request::{Arithmetic, Delete, Get, Request, Store, Touch};
pub use retrieval::{Keys, KeysEnd, parse_keys};

use self::storage::StorageVerb;
use crate::scan::{Tokens, last_token, parse_i32, parse_u64};
use crate::{KEY_LEN_MAX, KeySink, LINE_LEN_MAX, Parse, Then, meta, reply};

/// The result of [`parse`]. Error replies are complete lines, or empty if no reply must be sent.
pub type Parsed<'a> = Parse<Request<'a>, &'static str>;

/// Length of the line end after a value, in bytes.
const TRAILER: usize = 2;

/// The shortest command, in bytes, including its line end.
const LINE_LEN_MIN: usize = 4;

/// Parses the most common requests in one pass: a `get` of one key, and a `set` whose value has
/// arrived. Passes the key to `keys`, then the request and its length in bytes to `take`. `take` is
/// a callback so that the request stays in registers. Returns false, without any effect, if
/// [`parse`] must handle the input, for example a line with surplus spaces or `noreply`.
#[inline(always)]
pub fn parse_common<'a>(
    input: &'a [u8],
    keys: &mut impl KeySink<'a>,
    mut take: impl FnMut(Request<'a>, usize),
) -> bool {
    if let Some(consumed) = retrieval::get_one(input, keys) {
        take(Request::Get(Get { cas: false, exptime: None, keys_follow: false }), consumed);
        return true;
    }
    if let Some((store, consumed)) = storage::set_one(input, keys) {
        take(Request::Store(store), consumed);
        return true;
    }
    false
}

/// Parses the request at the beginning of `input` and adds its keys to `keys`. An incomplete or
/// refused request adds no keys, with one exception: if the result is [`Parse::NeedValue`], the key
/// of the storage command stays in `keys`.
pub fn parse<'a>(input: &'a [u8], keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let Some(newline) = memchr::memchr(b'\n', input) else {
        return unfinished_line(input);
    };
    let consumed = newline + 1;
    if consumed > LINE_LEN_MAX
        && let Some(parsed) = retrieval::long_line(input)
    {
        return parsed;
    }
    let line = match input[..newline] {
        [ref line @ .., b'\r'] => line,
        ref line => line,
    };
    if consumed < LINE_LEN_MIN {
        return refuse(reply::BAD_FORMAT, consumed);
    }
    let frame = Frame { input, line, consumed };
    match line {
        [b'g', b'e', b't', b' ', ..] => retrieval::get(frame, 4, false, keys),
        [b's', b'e', b't', b' ', ..] => storage::parse(frame, StorageVerb::Set, keys),
        [b'm', ..] if line.len() == 2 || line[2] == b' ' => parse_meta(frame, keys),
        _ => parse_other(frame, keys),
    }
}

/// A command line and the input that follows it.
#[derive(Clone, Copy)]
struct Frame<'a> {
    /// All input, starting with the line.
    input: &'a [u8],
    /// The line without its line end.
    line: &'a [u8],
    /// The length of the line with its line end.
    consumed: usize,
}

#[inline]
fn refuse<'a>(reply: &'static str, consumed: usize) -> Parsed<'a> {
    Parse::Refused { reply, consumed, then: Then::Continue }
}

/// Refuses a command with an error that `noreply` suppresses.
fn refuse_unless<'a>(noreply: bool, reply: &'static str, consumed: usize) -> Parsed<'a> {
    refuse(if noreply { "" } else { reply }, consumed)
}

fn unfinished_line(input: &[u8]) -> Parsed<'_> {
    if input.len() <= LINE_LEN_MAX {
        return Parse::NeedMore { total: input.len() + 1 };
    }
    retrieval::long_line(input).unwrap_or(Parse::Refused {
        reply: "",
        consumed: input.len(),
        then: Then::Close,
    })
}

fn parse_other<'a>(frame: Frame<'a>, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let line = frame.line;
    let word = &line[..crate::scan::find(line, b' ')];
    match word {
        b"get" => retrieval::get(frame, 3, false, keys),
        b"gets" => retrieval::get(frame, 4, true, keys),
        b"gat" => retrieval::gat(frame, 3, false, keys),
        b"gats" => retrieval::gat(frame, 4, true, keys),
        b"set" => storage::parse(frame, StorageVerb::Set, keys),
        b"add" => storage::parse(frame, StorageVerb::Add, keys),
        b"cas" => storage::parse(frame, StorageVerb::Cas, keys),
        b"append" => storage::parse(frame, StorageVerb::Append, keys),
        b"prepend" => storage::parse(frame, StorageVerb::Prepend, keys),
        b"replace" => storage::parse(frame, StorageVerb::Replace, keys),
        b"incr" => arithmetic(frame, false, keys),
        b"decr" => arithmetic(frame, true, keys),
        b"touch" => touch(frame, keys),
        b"delete" => delete(frame, keys),
        b"quit" => request(frame, Request::Quit),
        b"version" => request(frame, Request::Version),
        b"stats" => {
            let mut tokens = Tokens::new(line);
            tokens.next();
            request(frame, Request::Stats(tokens.rest()))
        }
        b"watch" => refuse(reply::WATCH_NOT_ALLOWED, frame.consumed),
        _ => admin::parse(frame),
    }
}

fn request<'a>(frame: Frame<'a>, request: Request<'a>) -> Parsed<'a> {
    Parse::Request { request, consumed: frame.consumed }
}

/// Returns the key and the remaining tokens of a command with one key; `None` if there is no key.
fn keyed<'a>(frame: Frame<'a>) -> Option<(&'a [u8], Tokens<'a>)> {
    let mut tokens = Tokens::new(frame.line);
    tokens.next();
    let key = tokens.next()?;
    Some((key, tokens))
}

fn is_noreply(line: &[u8]) -> bool {
    last_token(line) == b"noreply"
}

fn arithmetic<'a>(frame: Frame<'a>, decrement: bool, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let Some((key, mut tokens)) = keyed(frame) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let Some(delta) = tokens.next() else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let noreply = is_noreply(frame.line);
    if key.len() > KEY_LEN_MAX {
        return refuse_unless(noreply, reply::BAD_FORMAT, frame.consumed);
    }
    let Some(delta) = parse_u64(delta) else {
        return refuse_unless(noreply, reply::INVALID_DELTA, frame.consumed);
    };
    keys.push(key);
    request(frame, Request::Arithmetic(Arithmetic { decrement, delta, noreply }))
}

fn touch<'a>(frame: Frame<'a>, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let Some((key, mut tokens)) = keyed(frame) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let Some(exptime) = tokens.next() else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let noreply = is_noreply(frame.line);
    if key.len() > KEY_LEN_MAX {
        return refuse_unless(noreply, reply::BAD_FORMAT, frame.consumed);
    }
    let Some(exptime) = parse_i32(exptime) else {
        return refuse_unless(noreply, reply::INVALID_EXPTIME, frame.consumed);
    };
    keys.push(key);
    request(frame, Request::Touch(Touch { exptime, noreply }))
}

/// Parses `delete`. Ignores everything after the key, except a `noreply` at the end. Some clients
/// send a time after the key, which old versions of memcached took as the delay of the delete.
fn delete<'a>(frame: Frame<'a>, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let Some((key, _)) = keyed(frame) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let noreply = is_noreply(frame.line);
    if key.len() > KEY_LEN_MAX {
        return refuse_unless(noreply, reply::BAD_FORMAT, frame.consumed);
    }
    keys.push(key);
    request(frame, Request::Delete(Delete { noreply }))
}

fn parse_meta<'a>(frame: Frame<'a>, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    use meta::Verb;
    let verb = match frame.line.get(1) {
        Some(b'g') => Verb::Get,
        Some(b's') => return storage::parse_meta(frame, keys),
        Some(b'd') => Verb::Delete,
        Some(b'a') => Verb::Arithmetic,
        Some(b'e') => Verb::Debug,
        Some(b'n') => return request(frame, Request::MetaNoop),
        _ => return admin::parse(frame),
    };
    match meta::Meta::parse(verb, frame.line, 2) {
        Some(command) => {
            if let Some(key) = command.plain_key() {
                keys.push(key);
            }
            request(frame, Request::Meta(command))
        }
        None => refuse(reply::BAD_FORMAT, frame.consumed),
    }
}
