//! Writes the lines of meta replies.

use crate::command::expiry::recache_below;
use crate::command::{Executed, Execution};
use crate::net::OutputBuffer;
use larder_engine::{Expiry, Key, Recache, UnixSeconds};
use larder_protocol::meta::{Flags, Meta};
use larder_protocol::{base64, reply};

/// A meta command with its parsed flags and its key.
pub(super) struct Target<'t, 'a> {
    pub(super) command: &'t Meta<'a>,
    pub(super) flags: &'t Flags,
    pub(super) key: &'t Key<'t>,
}

impl Target<'_, '_> {
    pub(super) fn quiet(&self) -> bool {
        self.flags.has(b'q')
    }

    /// Returns the expiry that the flag `T` sets, and the expiry that `N` sets if the command has
    /// created the item.
    pub(super) fn expiries_given(
        &self,
        x: &Execution<'_, '_>,
        created: bool,
    ) -> (Option<Expiry>, Option<Expiry>) {
        let vivify = self.flags.vivify.filter(|_| created);
        (self.flags.ttl.map(|ttl| x.expiry(ttl)), vivify.map(|vivify| x.expiry(vivify)))
    }

    /// Returns the condition under which the reply asks the client to recache the item. Flags take
    /// effect in the order in which the request has them. So if `T` precedes `R`, then `R` compares
    /// with the expiry that `T` has set.
    pub(super) fn recache(&self, x: &Execution<'_, '_>) -> Recache {
        let first = self.command.tokens().find(|token| matches!(token[0], b'R' | b'T'));
        let now = x.context.wall(x.session.now());
        let below = self.flags.recache.map_or(0, |recache| recache_below(recache, now));
        Recache { below, touched: first.is_some_and(|token| token[0] == b'T') }
    }

    /// Returns the expiry of an item that this command creates. If the command has both `N` and
    /// `T`, the last of these flags in the request sets the expiry.
    pub(super) fn expiry_of_new(&self, x: &Execution<'_, '_>, vivify: i32) -> Expiry {
        let last = self.command.tokens().filter(|token| matches!(token[0], b'N' | b'T')).last();
        match (last.map(|token| token[0]), self.flags.ttl) {
            (Some(b'T'), Some(ttl)) => x.expiry(ttl),
            _ => x.expiry(vivify),
        }
    }
}

/// The largest length of a reply line, in bytes: the key in base64, and 18 flags, each at most as
/// long as an opaque token.
pub(super) const LINE_MAX: usize = 1024;

/// A reply line that is being written into memory of the output. `room` is this memory, which
/// [`OutputBuffer::room`] returns. When the line is complete, the caller must
/// [`advance`](OutputBuffer::advance) the output by the length that [`Line::finish`] returns.
pub(super) struct Line<'l> {
    pub(super) room: &'l mut [u8],
    pub(super) len: usize,
}

impl Line<'_> {
    pub(super) fn text(&mut self, text: &[u8]) {
        self.room[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    pub(super) fn number(&mut self, number: u64) {
        self.len += reply::write_u64(&mut self.room[self.len..], number);
    }

    /// Writes a flag with a number.
    pub(super) fn flag(&mut self, letter: u8, number: u64) {
        self.text(&[b' ', letter]);
        self.number(number);
    }

    /// Writes a flag with a time. `None` is written as -1, which means never.
    pub(super) fn time(&mut self, letter: u8, time: Option<u64>) {
        match time {
            None => self.text(&[b' ', letter, b'-', b'1']),
            Some(time) => self.flag(letter, time),
        }
    }

    pub(super) fn time_to_live(&mut self, expiry: Expiry, now: UnixSeconds) {
        self.time(b't', expiry.remaining(now).map(u64::from));
    }

    pub(super) fn key(&mut self, target: &Target<'_, '_>) {
        self.text(b" k");
        self.plain_or_base64(target.key.bytes(), target.command.base64);
        if target.command.base64 {
            self.text(b" b");
        }
    }

    pub(super) fn plain_or_base64(&mut self, key: &[u8], base64: bool) {
        if base64 {
            self.len += base64::encode(key, &mut self.room[self.len..]);
        } else {
            self.text(key);
        }
    }

    /// Writes the reply to `token` if it is an opaque (`O`) or asks for the key (`k`). Every
    /// command replies to these two flags, regardless of its result.
    pub(super) fn echo(&mut self, target: &Target<'_, '_>, token: &[u8]) {
        match token[0] {
            b'O' => {
                self.text(b" ");
                self.text(token);
            }
            b'k' => self.key(target),
            _ => {}
        }
    }

    pub(super) fn finish(mut self) -> usize {
        self.text(b"\r\n");
        self.len
    }
}

/// Replies with a line that begins with `status`. Calls `flag` to write the reply to each flag.
pub(super) fn put_line(
    output: &mut OutputBuffer<'_>,
    status: &[u8],
    target: &Target<'_, '_>,
    flag: impl FnMut(&mut Line<'_>, &[u8]),
) {
    put_line_and(output, status, target, flag, |_| ());
}

/// Does the same as [`put_line`], and then calls `tail`, which may append more flags.
pub(super) fn put_line_and(
    output: &mut OutputBuffer<'_>,
    status: &[u8],
    target: &Target<'_, '_>,
    mut flag: impl FnMut(&mut Line<'_>, &[u8]),
    tail: impl FnOnce(&mut Line<'_>),
) {
    let mut line = Line { room: output.room(LINE_MAX), len: 0 };
    line.text(status);
    for token in target.command.tokens() {
        flag(&mut line, token);
    }
    tail(&mut line);
    let len = line.finish();
    output.advance(len);
}

/// Replies with `status`, and with the opaque and the key if the request asks for them.
pub(super) fn put_status(
    x: &mut Execution<'_, '_>,
    status: &[u8],
    target: &Target<'_, '_>,
) -> Executed {
    put_line(x.output, status, target, |line, token| line.echo(target, token));
    Executed::Done
}

/// Replies with success, and with `number` as the value if the client asked for a value (`v`).
/// Calls `flag` and `tail` as [`put_line_and`] does.
pub(super) fn put_number(
    x: &mut Execution<'_, '_>,
    target: &Target<'_, '_>,
    number: u64,
    flag: impl FnMut(&mut Line<'_>, &[u8]),
    tail: impl FnOnce(&mut Line<'_>),
) {
    if !target.flags.has(b'v') {
        return put_line_and(x.output, b"HD", target, flag, tail);
    }
    let mut digits = [0; reply::NUMBER_LEN_MAX];
    let len = reply::write_u64(&mut digits, number);
    let mut status = *b"VA 12";
    let status_len = 3 + reply::write_u64(&mut status[3..], len as u64);
    put_line_and(x.output, &status[..status_len], target, flag, tail);
    x.output.extend(&digits[..len]);
    x.output.extend(b"\r\n");
}
