//! get, gets, gat and gats. A line of up to [`LINE_LEN_MAX`] bytes is parsed as a whole, so one
//! illegal key refuses all of it. Longer lines are allowed, because some clients ask for 18,000
//! keys at once. Their keys are parsed and answered as they arrive, before the line ends, so a
//! connection never buffers more than one key. How a line is parsed depends only on its length,
//! never on how it was split into packets.

use super::{Frame, Get, Parsed, Request, refuse, request};
use crate::scan::{find, find_separator, parse_i32};
use crate::{KEY_LEN_MAX, KeySink, LINE_LEN_MAX, Parse, Then, reply};

/// The result of [`parse_keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The number of input bytes that were used.
    pub consumed: usize,
    /// Why the parser stopped.
    pub end: KeysEnd,
}

/// Why [`parse_keys`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysEnd {
    /// `limit` keys have been parsed, and the input holds more keys of the line.
    More,
    /// The input ended before the line did.
    NeedMore,
    /// The line, and with it the request, has ended.
    Line,
    /// A key is too long; the value is the error reply. The caller must discard the rest of the
    /// line.
    Refused(&'static str),
}

/// Parses the most common request in one pass: a `get` of one key, without surplus spaces. Returns
/// the length of the request, or `None` if [`get`] must handle the input.
#[inline]
pub(super) fn get_one<'a>(input: &'a [u8], keys: &mut impl KeySink<'a>) -> Option<usize> {
    let rest = input.strip_prefix(b"get ")?;
    let end = find_separator(rest);
    let key = match (rest.get(end)?, &rest[..end]) {
        (b'\n', [key @ .., b'\r'] | key) => key,
        _ => return None,
    };
    if !(1..=KEY_LEN_MAX).contains(&key.len()) {
        return None;
    }
    keys.push(key);
    Some(b"get ".len() + end + 1)
}

/// Parses `get` and `gets`; the keys begin after `prefix` bytes of the line.
#[inline]
pub(super) fn get<'a>(
    frame: Frame<'a>,
    prefix: usize,
    cas: bool,
    keys: &mut impl KeySink<'a>,
) -> Parsed<'a> {
    all_keys(frame, prefix, Get { cas, exptime: None, keys_follow: false }, keys)
}

/// Parses `gat` and `gats`; the expiry time begins after `prefix` bytes of the line.
pub(super) fn gat<'a>(
    frame: Frame<'a>,
    prefix: usize,
    cas: bool,
    keys: &mut impl KeySink<'a>,
) -> Parsed<'a> {
    let Some((token, end)) = token_at(frame.line, prefix) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let Some(exptime) = parse_i32(token) else {
        let has_key = frame.line[end..].iter().any(|&byte| byte != b' ');
        let reply = if has_key { reply::INVALID_EXPTIME } else { reply::BAD_FORMAT };
        return refuse(reply, frame.consumed);
    };
    all_keys(frame, end, Get { cas, exptime: Some(exptime), keys_follow: false }, keys)
}

#[inline]
fn all_keys<'a>(
    frame: Frame<'a>,
    prefix: usize,
    get: Get,
    keys: &mut impl KeySink<'a>,
) -> Parsed<'a> {
    let before = keys.len();
    let mut rest = &frame.line[prefix..];
    loop {
        while let [b' ', tail @ ..] = rest {
            rest = tail;
        }
        if rest.is_empty() {
            break;
        }
        let len = find(rest, b' ');
        if len > KEY_LEN_MAX {
            keys.truncate(before);
            return refuse(reply::BAD_FORMAT, frame.consumed);
        }
        let (key, tail) = rest.split_at(len);
        keys.push(key);
        rest = tail;
    }
    if keys.len() == before {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    }
    request(frame, Request::Get(get))
}

/// Parses the beginning of a retrieval whose line is longer than [`LINE_LEN_MAX`]. `input` has more
/// bytes than this limit. Returns `None` for other commands. The result does not depend on whether
/// the line end has arrived, because this function never reads so far.
pub(super) fn long_line<'a>(input: &[u8]) -> Option<Parsed<'a>> {
    let (prefix, cas, touch) = match input {
        [b'g', b'e', b't', b' ', ..] => (3, false, false),
        [b'g', b'e', b't', b's', b' ', ..] => (4, true, false),
        [b'g', b'a', b't', b' ', ..] => (3, false, true),
        [b'g', b'a', b't', b's', b' ', ..] => (4, true, true),
        _ => return None,
    };
    let get = Get { cas, exptime: None, keys_follow: true };
    if !touch {
        return Some(keys_follow(prefix, get));
    }
    let line = &input[..LINE_LEN_MAX];
    let refuse = |reply, consumed| Parse::Refused { reply, consumed, then: Then::SkipLine };
    Some(match token_at(line, prefix).filter(|&(_, end)| end < line.len()) {
        None => refuse(reply::BAD_FORMAT, line.len()),
        Some((token, end)) => match parse_i32(token) {
            Some(exptime) => keys_follow(end, Get { exptime: Some(exptime), ..get }),
            None => refuse(reply::INVALID_EXPTIME, end),
        },
    })
}

fn keys_follow<'a>(consumed: usize, get: Get) -> Parsed<'a> {
    Parse::Request { request: Request::Get(get), consumed }
}

/// Returns the first token after `at` bytes of the line, and where it ends.
fn token_at(line: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let start = at + line[at..].iter().position(|&byte| byte != b' ')?;
    let end = start + find(&line[start..], b' ');
    Some((&line[start..end], end))
}

/// Parses at most `limit` keys of a retrieval whose keys follow in the input.
pub fn parse_keys<'a>(input: &'a [u8], limit: usize, keys: &mut impl KeySink<'a>) -> Keys {
    let stop = keys.len() + limit;
    let mut at = 0;
    loop {
        at += input[at..].iter().take_while(|&&byte| byte == b' ').count();
        let rest = &input[at..];
        let len = find_separator(&rest[..rest.len().min(KEY_LEN_MAX + 2)]);
        let (end_of_line, key) = match (rest.get(len), &rest[..len]) {
            (Some(b'\n'), [key @ .., b'\r'] | key) => (Some(at + len + 1), key),
            (_, key) => (None, key),
        };
        // If `key` reaches the end of the input and has `KEY_LEN_MAX` + 1 bytes, it is not refused
        // yet: its last byte may be a carriage return whose line feed has not arrived.
        if key.len() > KEY_LEN_MAX + 1 || key.len() > KEY_LEN_MAX && rest.len() > len {
            return Keys { consumed: at, end: KeysEnd::Refused(reply::BAD_FORMAT) };
        }
        if rest.len() == len {
            return Keys { consumed: at, end: KeysEnd::NeedMore };
        }
        if keys.len() == stop && !key.is_empty() {
            return Keys { consumed: at, end: KeysEnd::More };
        }
        if !key.is_empty() {
            keys.push(key);
        }
        if let Some(consumed) = end_of_line {
            return Keys { consumed, end: KeysEnd::Line };
        }
        at += len;
    }
}
