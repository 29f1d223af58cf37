//! Commands whose value follows their line. If a line has a valid length but another error, the
//! value is discarded too, so that it is not parsed as commands. If the length is missing or wrong,
//! the end of the value is unknown, and the input after the line is parsed as commands. The same
//! happens to an `ms` with a flag that does not begin with a letter or a digit.

use super::{Frame, Parsed, Request, Store, TRAILER, is_noreply, refuse};
use crate::meta::{Flags, Meta, Verb};
use crate::scan::{Tokens, find_separator, parse_c_number, parse_i32, parse_u64};
use crate::{KEY_LEN_MAX, KeySink, Parse, StoreMode, Then, VALUE_LEN_MAX, reply};

/// A storage command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageVerb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// Parses the most common write in one pass: a `set` without `noreply`, surplus spaces or long
/// numbers, whose value has arrived. Returns `None` if [`parse`] must handle the input.
#[inline(always)]
pub(super) fn set_one<'a>(
    input: &'a [u8],
    keys: &mut impl KeySink<'a>,
) -> Option<(Store<'a>, usize)> {
    let line = input.strip_prefix(b"set ")?;
    let (key, rest) = line.split_at(find_separator(line));
    if !(1..=KEY_LEN_MAX).contains(&key.len()) {
        return None;
    }
    let (flags, rest) = short_number(rest.strip_prefix(b" ")?)?;
    let (exptime, rest) = short_number(rest.strip_prefix(b" ")?)?;
    let (length, rest) = short_number(rest.strip_prefix(b" ")?)?;
    let (value, rest) = rest.strip_prefix(b"\r\n")?.split_at_checked(length as usize)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    keys.push(key);
    let exptime = exptime as i32;
    let store =
        Store { mode: StoreMode::Set, compare: None, flags, exptime, noreply: false, value };
    Some((store, input.len() - rest.len()))
}

/// Parses a number of at most nine digits. Returns the number and the bytes after it.
#[inline(always)]
fn short_number(text: &[u8]) -> Option<(u32, &[u8])> {
    const DIGITS_MAX: usize = 9;
    let mut number = 0;
    for (at, byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (at > 0).then(|| (number, &text[at..]));
        }
        if at == DIGITS_MAX {
            return None;
        }
        number = number * 10 + u32::from(digit);
    }
    None
}

/// Parses `verb key flags exptime length [cas] [noreply]`.
pub(super) fn parse<'a>(
    frame: Frame<'a>,
    verb: StorageVerb,
    keys: &mut impl KeySink<'a>,
) -> Parsed<'a> {
    let mut tokens = Tokens::new(frame.line);
    tokens.next();
    let (Some(key), Some(flags), Some(exptime), Some(length)) =
        (tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let Some(length) = parse_length(length) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let noreply = tokens.rest().len() > b"noreply".len() && is_noreply(frame.line);
    let mode = match verb {
        StorageVerb::Set | StorageVerb::Cas => StoreMode::Set,
        StorageVerb::Add => StoreMode::Add,
        StorageVerb::Replace => StoreMode::Replace,
        StorageVerb::Append => StoreMode::Append,
        StorageVerb::Prepend => StoreMode::Prepend,
    };
    let compare = match verb {
        StorageVerb::Cas => tokens.next().and_then(parse_u64).map(Some),
        _ => Some(None),
    };
    let (Some(compare), Some(flags), Some(exptime), true) =
        (compare, parse_flags(flags), parse_exptime(exptime), key.len() <= KEY_LEN_MAX)
    else {
        let reply = if noreply { "" } else { reply::BAD_FORMAT };
        let then = Then::Swallow(length + TRAILER);
        return Parse::Refused { reply, consumed: frame.consumed, then };
    };
    let store = Store { mode, compare, flags, exptime, noreply, value: &[] };
    let bad_chunk = || if noreply { "" } else { reply::BAD_CHUNK };
    with_value(frame, length, key, keys, bad_chunk, |value| {
        Request::Store(Store { value, ..store })
    })
}

/// Parses `ms key length flags`. Checks only the first byte of each flag. The caller reads the
/// flags later. If a flag is wrong, the caller can discard the value, because this function returns
/// the value's length.
pub(super) fn parse_meta<'a>(frame: Frame<'a>, keys: &mut impl KeySink<'a>) -> Parsed<'a> {
    let length = Tokens::new(frame.line).nth(2).and_then(parse_length);
    let (Some(length), Some(command)) = (length, Meta::parse(Verb::Set, frame.line, 3)) else {
        return refuse(reply::BAD_FORMAT, frame.consumed);
    };
    let key = command.plain_key().unwrap_or(&[]);
    // If a flag is wrong and also the line end after the value, the reply names the flag. If the
    // value has not arrived with the line, the caller checks the flags first, and the reply must
    // not depend on how the input is split.
    let bad_chunk = || Flags::parse(&command).err().unwrap_or(reply::BAD_CHUNK);
    with_value(frame, length, key, keys, bad_chunk, |value| {
        Request::Meta(Meta { value, ..command })
    })
}

#[inline]
fn with_value<'a>(
    frame: Frame<'a>,
    length: usize,
    key: &'a [u8],
    keys: &mut impl KeySink<'a>,
    bad_chunk: impl FnOnce() -> &'static str,
    request: impl FnOnce(&'a [u8]) -> Request<'a>,
) -> Parsed<'a> {
    let body = &frame.input[frame.consumed..];
    if body.len() >= length + TRAILER {
        let (value, tail) = body.split_at(length);
        let consumed = frame.consumed + length + TRAILER;
        if tail[..TRAILER] != *b"\r\n" {
            return refuse(bad_chunk(), consumed);
        }
        if !key.is_empty() {
            keys.push(key);
        }
        return Parse::Request { request: request(value), consumed };
    }
    if !key.is_empty() {
        keys.push(key);
    }
    Parse::NeedValue {
        request: request(&[]),
        header: frame.consumed,
        value: length,
        trailer: TRAILER,
    }
}

fn parse_length(token: &[u8]) -> Option<usize> {
    let length = usize::try_from(parse_i32(token)?).ok()?;
    (length <= VALUE_LEN_MAX).then_some(length)
}

/// Parses client flags. memcached silently keeps only the lower 32 bits, and clients rely on that.
fn parse_flags(token: &[u8]) -> Option<u32> {
    let (negative, number) = parse_c_number(token)?;
    let number = if negative { number.wrapping_neg() } else { number };
    // As in memcached, a number with a minus sign wraps around, and is refused if the result is
    // negative as a signed 64-bit number.
    (!negative || number as i64 >= 0).then_some(number as u32)
}

/// Parses a 64-bit time. As in memcached, the lower 32 bits are kept as a signed number: some
/// clients write -1 as 4294967295.
fn parse_exptime(token: &[u8]) -> Option<i32> {
    let time = match parse_c_number(token)? {
        (true, number) => 0i64.checked_sub_unsigned(number)?,
        (false, number) => i64::try_from(number).ok()?,
    };
    Some(time as i32)
}
