//! The decoded flags of a meta command.

use super::{LimitFlags, Meta, Verb};
use crate::scan::{parse_i32, parse_u32, parse_u64};
use crate::{KEY_LEN_MAX, StoreMode, base64, reply};

/// The largest number of tokens of a command line: verb, key, flags and, in `ms`, the length of the
/// value.
const TOKENS_MAX: usize = 20;
/// The longest opaque token, in bytes, including its letter.
const OPAQUE_LEN_MAX: usize = 32;
/// Flag letters are below this byte.
const FLAG_MAX: u8 = 127;

/// The checked flags of a meta command. Times are as the client wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    seen: u128,
    /// T: the new expiry time.
    pub ttl: Option<i32>,
    /// N: create a missing item with this expiry time.
    pub vivify: Option<i32>,
    /// R: if the item's remaining time to live is shorter than this, one client gets the right to
    /// recompute the item.
    pub recache: Option<i32>,
    /// C: the cas id to compare with.
    pub compare: Option<u64>,
    /// E: the new cas id.
    pub cas: Option<u64>,
    /// F: the client's flags.
    pub client_flags: u32,
    /// D: the amount to add or subtract.
    pub delta: u64,
    /// J: the initial value of a created counter.
    pub initial: u64,
    /// M of `ms`: the storage mode.
    pub set_mode: StoreMode,
    /// M of `ma`: true to decrement.
    pub decrement: bool,
}

impl Flags {
    /// Reads the flags of `command`.
    ///
    /// # Errors
    /// Returns the reply that refuses the command. The flag `q` (quiet) never suppresses it.
    pub fn parse(command: &Meta<'_>) -> Result<Flags, &'static str> {
        let mut flags = Flags {
            seen: 0,
            ttl: None,
            vivify: None,
            recache: None,
            compare: None,
            cas: None,
            client_flags: 0,
            delta: 1,
            initial: 0,
            set_mode: StoreMode::Set,
            decrement: false,
        };
        match flags.read(command) {
            Err(_) if command.verb == Verb::Arithmetic => Err(reply::INVALID_OR_DUPLICATE_FLAG),
            Err(reply) => Err(reply),
            Ok(Tail { mode, opaque_len }) => {
                if !flags.limits() {
                    flags.set_mode(command.verb, mode)?;
                }
                if opaque_len > OPAQUE_LEN_MAX {
                    return Err(reply::OPAQUE_TOO_LONG);
                }
                Ok(flags)
            }
        }
    }

    /// Returns true if the flag `letter` is present.
    #[inline]
    pub fn has(&self, letter: u8) -> bool {
        self.seen >> (letter & 0x7f) & 1 != 0
    }

    /// Returns true if the command takes units of a rate limit.
    #[inline]
    pub fn limits(&self) -> bool {
        self.seen & (1 << b'B' | 1 << b'Q') != 0
    }

    /// Reads all flags. Returns at once for an unknown or repeated flag. After a flag with a wrong
    /// argument, it reads the rest: if an unknown or repeated flag follows, it returns the error of
    /// that flag instead.
    fn read(&mut self, command: &Meta<'_>) -> Result<Tail, &'static str> {
        if command.key.len() > KEY_LEN_MAX {
            return Err(reply::BAD_FORMAT);
        }
        let before = if command.verb == Verb::Set { 3 } else { 2 };
        if command.tokens().count() + before > TOKENS_MAX {
            return Err(reply::TOO_MANY_FLAGS);
        }
        let arithmetic = command.verb == Verb::Arithmetic;
        let limits = arithmetic && command.tokens().any(LimitFlags::is_named_by);
        let mut wrong = None;
        let mut tail = Tail { mode: None, opaque_len: 0 };
        for token in command.tokens() {
            let (letter, argument) = (token[0], &token[1..]);
            if letter >= FLAG_MAX || self.has(letter) {
                return Err(reply::DUPLICATE_FLAG);
            }
            self.seen |= 1 << letter;
            let read = match letter {
                b'q' | b'k' | b's' | b't' | b'c' | b'f' | b'v' | b'h' | b'l' | b'u' | b'x'
                | b'I' | b'P' | b'L' => Ok(()),
                b'b' => is_base64(command.key),
                // These flags are read by `LimitFlags`.
                b'B' | b'Q' | b'G' | b'N' | b'r' | b'w' if limits => Ok(()),
                b'O' => {
                    tail.opaque_len = token.len();
                    Ok(())
                }
                b'M' => {
                    tail.mode = Some(argument.first().copied().unwrap_or(b' '));
                    Ok(())
                }
                b'F' => match parse_u32(argument) {
                    Some(client_flags) => {
                        self.client_flags = client_flags;
                        Ok(())
                    }
                    // As in memcached, a wrong F does not replace the error of an earlier flag.
                    // Other wrong arguments do.
                    None => Err(wrong.unwrap_or(reply::BAD_FORMAT)),
                },
                b'N' => store(parse_i32(argument), &mut self.vivify),
                b'T' => store(parse_i32(argument), &mut self.ttl),
                b'R' => store(parse_i32(argument), &mut self.recache),
                b'C' => store(parse_u64(argument), &mut self.compare),
                b'E' => store(parse_u64(argument), &mut self.cas),
                b'D' => number(argument, &mut self.delta, reply::BAD_DELTA_TOKEN),
                b'J' => number(argument, &mut self.initial, reply::BAD_INITIAL_TOKEN),
                _ => return Err(reply::INVALID_FLAG),
            };
            wrong = read.err().or(wrong);
        }
        wrong.map_or(Ok(tail), Err)
    }

    fn set_mode(&mut self, verb: Verb, mode: Option<u8>) -> Result<(), &'static str> {
        match (verb, mode) {
            (Verb::Set, mode) => {
                self.set_mode = match mode {
                    None | Some(b'S') => StoreMode::Set,
                    Some(b'E') => StoreMode::Add,
                    Some(b'R') => StoreMode::Replace,
                    Some(b'A') => StoreMode::Append,
                    Some(b'P') => StoreMode::Prepend,
                    Some(_) => return Err(reply::INVALID_SET_MODE),
                };
            }
            (Verb::Arithmetic, mode) => {
                self.decrement = match mode {
                    None | Some(b'I' | b'+') => false,
                    Some(b'D' | b'-') => true,
                    Some(_) => return Err(reply::INVALID_ARITHMETIC_MODE),
                };
            }
            _ => {}
        }
        Ok(())
    }
}

/// Values that are checked only after all flags are known to be correct.
struct Tail {
    mode: Option<u8>,
    opaque_len: usize,
}

fn store<T>(argument: Option<T>, field: &mut Option<T>) -> Result<(), &'static str> {
    *field = argument;
    if field.is_some() { Ok(()) } else { Err(reply::BAD_TOKEN) }
}

fn number(argument: &[u8], field: &mut u64, reply: &'static str) -> Result<(), &'static str> {
    *field = parse_u64(argument).ok_or(reply)?;
    Ok(())
}

fn is_base64(key: &[u8]) -> Result<(), &'static str> {
    let mut out = [0; base64::DECODED_KEY_MAX];
    base64::decode(key, &mut out).map(|_| ()).ok_or(reply::KEY_NOT_DECODED)
}
