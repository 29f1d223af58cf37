//! Length-prefixed messages, and the fields in them.
//!
//! A length from the server is not trusted: it has a limit, and memory grows only with the bytes
//! that arrive.

use std::io::{ErrorKind, Read};

use larder_client::Stream;

use crate::{Error, Result};

/// The largest body of a message, in bytes.
const BODY_MAX: usize = 64 << 20;

/// A function that reads the length of a message's body from its header of `HEADER` bytes. It
/// returns `None` if the bytes are not a valid header.
pub(super) type BodyLength<const HEADER: usize> = fn(&[u8; HEADER]) -> Option<usize>;

/// Cuts the bytes that a server sends into messages. A message is a header of `HEADER` bytes and a
/// body.
#[derive(Debug)]
pub(super) struct Messages<const HEADER: usize> {
    body_length: BodyLength<HEADER>,
    /// The beginning of a message whose end has not arrived yet.
    partial: Vec<u8>,
}

impl<const HEADER: usize> Messages<HEADER> {
    pub(super) fn new(body_length: BodyLength<HEADER>) -> Messages<HEADER> {
        Messages { body_length, partial: Vec::new() }
    }

    /// Consumes all of `bytes`, and calls `take` with the header and the body of each message that
    /// they complete.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&[u8; HEADER], &[u8]) -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        while !bytes.is_empty() {
            // Messages that arrive whole are not copied.
            if self.partial.is_empty() {
                let length = message_length(self.body_length, bytes)?;
                if bytes.len() < length {
                    self.partial.extend_from_slice(bytes);
                    return Ok(());
                }
                let (message, rest) = bytes.split_at(length);
                bytes = rest;
                take_message(message, &mut take)?;
                continue;
            }
            let length = message_length(self.body_length, &self.partial)?;
            let (piece, rest) = bytes.split_at((length - self.partial.len()).min(bytes.len()));
            self.partial.extend_from_slice(piece);
            bytes = rest;
            // If `piece` has completed the header, the length of the whole message is known only
            // now. So it is computed again.
            if self.partial.len() == message_length(self.body_length, &self.partial)? {
                take_message(&self.partial, &mut take)?;
                self.partial.clear();
            }
        }
        Ok(())
    }
}

fn take_message<const HEADER: usize>(
    message: &[u8],
    take: &mut impl FnMut(&[u8; HEADER], &[u8]) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    match message.split_first_chunk() {
        Some((header, body)) => take(header, body),
        None => Ok(()),
    }
}

/// Returns the length of the message at the beginning of `bytes`. If its header is incomplete,
/// returns the length of the header.
fn message_length<const HEADER: usize>(
    body_length: BodyLength<HEADER>,
    bytes: &[u8],
) -> std::result::Result<usize, String> {
    let Some(header) = bytes.first_chunk() else { return Ok(HEADER) };
    match body_length(header) {
        Some(length) if length <= BODY_MAX => Ok(HEADER + length),
        _ => Err(format!("no message begins with {header:02x?}")),
    }
}

/// Reads one message from a blocking socket, and nothing beyond it.
pub(super) fn read_message<const HEADER: usize>(
    mut socket: &Stream,
    body_length: BodyLength<HEADER>,
) -> Result<([u8; HEADER], Vec<u8>)> {
    let failed = |error| Error::io("cannot read the server's greeting", error);
    let mut header = [0; HEADER];
    socket.read_exact(&mut header).map_err(failed)?;
    let length = message_length(body_length, &header).map_err(Error::Server)? - HEADER;
    let mut body = Vec::new();
    socket.take(length as u64).read_to_end(&mut body).map_err(failed)?;
    match body.len() == length {
        true => Ok((header, body)),
        false => Err(failed(ErrorKind::UnexpectedEof.into())),
    }
}

/// Takes the first `length` bytes off `bytes`. Returns `None` if there are fewer.
pub(super) fn cut<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(first)
}

/// Takes the first `N` bytes off `bytes` as an array. Returns `None` if there are fewer.
pub(super) fn cut_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Takes a NUL-terminated text off `bytes`, and returns it without the NUL. Returns `None` if there
/// is no NUL.
pub(super) fn cut_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let text = cut(bytes, end)?;
    *bytes = &bytes[1..];
    Some(text)
}
