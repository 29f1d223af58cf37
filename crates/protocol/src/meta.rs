//! Meta commands: `mg`, `ms`, `md`, `ma`, `me`. A command is its key and one-letter flags, some
//! with a token. Parsing has two steps, because a command is moved around more often than its
//! flags are looked at: [`Meta`] is the command line cut in pieces, [`Flags`] what the flags say.

mod flags;
#[cfg(test)]
mod tests;

pub use flags::Flags;

use crate::KEY_LEN_MAX;
use crate::scan::Tokens;

/// Which command.
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

/// A meta command. Its key went to the [`KeySink`](crate::KeySink) unless
/// [`plain_key`](Self::plain_key) is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Which command.
    pub verb: Verb,
    /// The key is in base64.
    pub base64: bool,
    /// The key as it was sent, of any length.
    pub key: &'a [u8],
    /// The flags as they were sent.
    pub flags: &'a [u8],
    /// The value (ms), without its line end.
    pub value: &'a [u8],
}

/// So many tokens memcached looks at.
const TOKENS_MAX: usize = 23;

impl<'a> Meta<'a> {
    /// Cuts a command line in pieces: the flags begin behind `skip` tokens. `None` if there is no
    /// key or if something that stands for a flag does not begin with a letter or a digit.
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

    /// The key, if it is one as it stands: neither in base64 nor too long.
    #[inline]
    pub fn plain_key(&self) -> Option<&'a [u8]> {
        (!self.base64 && self.key.len() <= KEY_LEN_MAX).then_some(self.key)
    }

    /// The flags with their tokens, in their order.
    #[inline]
    pub fn tokens(&self) -> Tokens<'a> {
        Tokens::new(self.flags)
    }
}
