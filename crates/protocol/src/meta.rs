//! Meta commands: `mg`, `ms`, `md`, `ma`, `me`. A command has a key and one-letter flags, some with
//! a token. Parsing has two steps, because commands are passed around more often than their flags
//! are read. [`Meta`] is the command line split into pieces; [`Flags`] are the decoded flags.

mod flags;
mod limit;
#[cfg(test)]
mod tests;

pub use flags::Flags;
pub use limit::{LimitFlags, LimitMode};

use crate::KEY_LEN_MAX;
use crate::scan::Tokens;

/// The verb of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// mg.
    Get,
    /// ms.
    Set,
    /// md.
    Delete,
    /// ma.
    Arithmetic,
    /// me.
    Debug,
}

/// A meta command. The parser passes its key to the [`KeySink`](crate::KeySink), unless
/// [`plain_key`](Self::plain_key) is `None`. The caller then has to decode or refuse the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The verb.
    pub verb: Verb,
    /// True if the key is in base64.
    pub base64: bool,
    /// The key as it was sent, of any length.
    pub key: &'a [u8],
    /// The flags as they were sent.
    pub flags: &'a [u8],
    /// The value (ms), without its line end.
    pub value: &'a [u8],
}

/// memcached looks for malformed flags only in this many tokens at the beginning of the line,
/// counting the verb and the key.
const TOKENS_MAX: usize = 23;

impl<'a> Meta<'a> {
    /// Splits a command line into pieces. The first `skip` tokens, including verb and key, are not
    /// flags. Returns `None` if there is no key, or if one of the first [`TOKENS_MAX`] tokens is a
    /// malformed flag. As in memcached, a flag begins with a digit or a character from `A` to `z`.
    pub(crate) fn parse(verb: Verb, line: &'a [u8], skip: usize) -> Option<Self> {
        let mut tokens = Tokens::new(line);
        tokens.next();
        let key = tokens.next()?;
        for _ in 2..skip {
            tokens.next();
        }
        let flags = tokens.rest();
        let mut base64 = false;
        for (at, token) in tokens.enumerate() {
            match token[0] {
                b'b' if verb == Verb::Debug => base64 |= at == 0 && token.len() == 1,
                b'b' => base64 = true,
                b'A'..=b'z' | b'0'..=b'9' => {}
                _ if at + skip < TOKENS_MAX => return None,
                _ => {}
            }
        }
        Some(Meta { verb, base64, key, flags, value: &[] })
    }

    /// Returns the key if it can be used as sent: it is neither base64 nor too long.
    #[inline]
    pub fn plain_key(&self) -> Option<&'a [u8]> {
        (!self.base64 && self.key.len() <= KEY_LEN_MAX).then_some(self.key)
    }

    /// Returns the flags in the order in which they were sent, each together with its token.
    #[inline]
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens::new(self.flags)
    }
}
