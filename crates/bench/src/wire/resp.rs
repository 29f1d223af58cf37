//! The protocol of Redis and Valkey, version 2 (RESP2). Values and counters share one key space.

use std::io::{Read, Write};

use larder_client::{Address, Reply, Stream};

use super::caller::open;
use super::{Asker, Replies, Wire, asked};
use crate::workload::Verb;
use crate::workload::keys::push_number;
use crate::{Error, Result};

/// The longest line of a reply, in bytes. Redis limits lines to the same length.
const LINE_MAX: usize = 64 * 1024;
/// The longest value, in bytes: the default limit of Redis.
const VALUE_MAX: u64 = 512 << 20;

/// The script that takes a unit from a rate limit. The limit is a fixed window if the burst is 0,
/// and otherwise a token bucket. The script returns 1 if the unit was granted, and otherwise 0.
const SCRIPT: &[u8] = include_bytes!("limit.lua");
/// The SHA-1 of [`SCRIPT`], by which EVALSHA names it. Any change of the script changes this hash.
const SCRIPT_HASH: &[u8] = b"b0cd15eff637d8d57ec05f545f0b7c96ad28f992";

/// Redis, Valkey, and other servers with their protocol.
#[derive(Debug)]
pub(crate) struct Resp;

impl Resp {
    /// Returns a section of the reply to INFO.
    ///
    /// # Errors
    /// Returns an error if the server refuses or cannot be reached.
    pub(crate) fn info(server: &Address, section: &str) -> Result<String> {
        let mut socket = &open(server)?;
        let mut request = b"*2\r\n$4\r\nINFO\r\n".to_vec();
        push_bulk(&mut request, section.as_bytes());
        socket.write_all(&request).map_err(|e| Error::io("cannot send INFO", e))?;
        let line = read_line(socket)?;
        let text = String::from_utf8_lossy(&line).into_owned();
        let length = text.strip_prefix('$').and_then(|length| length.parse().ok());
        let Some(length) = length.filter(|&length: &usize| length <= LINE_MAX) else {
            return Err(Error::server(format!("the reply to INFO is: {text}")));
        };
        let mut info = vec![0; length];
        socket.read_exact(&mut info).map_err(|e| Error::io("cannot read the reply to INFO", e))?;
        Ok(String::from_utf8_lossy(&info).into_owned())
    }
}

impl Wire for Resp {
    fn speaks(&self, verb: Verb) -> bool {
        matches!(verb, Verb::Get | Verb::Set | Verb::Incr | Verb::SetCounter | Verb::Limit)
    }

    /// Loads the script of limits. Ignores an error reply, because a server without scripts can
    /// serve all requests that need no script, and refuses the others.
    fn prepare(&self, server: &Address) -> Result<()> {
        let socket = open(server)?;
        self.greet(&socket)?;
        let mut load = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n".to_vec();
        push_bulk(&mut load, SCRIPT);
        (&socket).write_all(&load).map_err(|e| Error::io("cannot send SCRIPT LOAD", e))?;
        read_line(&socket).map(drop)
    }

    /// Checks that the server serves requests. After a start, it refuses them while it loads its
    /// data.
    fn greet(&self, mut socket: &Stream) -> Result<()> {
        socket.write_all(b"*1\r\n$4\r\nPING\r\n").map_err(|e| Error::io("cannot send PING", e))?;
        let line = read_line(socket)?;
        match line.as_slice() {
            b"+PONG" => {}
            line => {
                let line = String::from_utf8_lossy(line);
                return Err(Error::server(format!("the server does not serve: {line}")));
            }
        }
        Ok(())
    }

    #[inline]
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>) {
        let opening: &[u8] = match verb {
            Verb::Get => b"*2\r\n$3\r\nGET\r\n",
            Verb::Incr => b"*2\r\n$4\r\nINCR\r\n",
            Verb::Set | Verb::SetCounter => b"*3\r\n$3\r\nSET\r\n",
            Verb::Limit => b"*7\r\n$7\r\nEVALSHA\r\n",
            _ => return,
        };
        buffer.extend_from_slice(opening);
        if verb == Verb::Limit {
            push_bulk(buffer, SCRIPT_HASH);
            push_bulk(buffer, b"1");
        }
        push_bulk(buffer, key);
        match verb {
            Verb::Set => push_bulk(buffer, value),
            Verb::SetCounter => push_bulk(buffer, b"0"),
            Verb::Limit => value.split(|&byte| byte == b' ').for_each(|w| push_bulk(buffer, w)),
            _ => {}
        }
    }

    fn push_expiring(&self, key: &[u8], value: &[u8], seconds: u32, buffer: &mut Vec<u8>) -> bool {
        buffer.extend_from_slice(b"*5\r\n$3\r\nSET\r\n");
        push_bulk(buffer, key);
        push_bulk(buffer, value);
        push_bulk(buffer, b"EX");
        push_bulk(buffer, seconds.to_string().as_bytes());
        true
    }

    fn replies(&self) -> Box<dyn Replies> {
        Box::new(RespReplies::default())
    }
}

fn push_bulk(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.push(b'$');
    push_number(buffer, bytes.len() as u64);
    buffer.extend_from_slice(b"\r\n");
    buffer.extend_from_slice(bytes);
    buffer.extend_from_slice(b"\r\n");
}

/// Reads one line, byte by byte, so that the bytes after the line stay in the socket.
fn read_line(mut socket: &Stream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte[0] != b'\n' && line.len() < LINE_MAX {
        socket.read_exact(&mut byte).map_err(|e| Error::io("cannot read a reply", e))?;
        line.extend_from_slice(&byte);
    }
    line.truncate(line.strip_suffix(b"\r\n").map_or(line.len(), <[u8]>::len));
    Ok(line)
}

/// A value that is arriving, followed by a line end.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    /// The number of bytes that have arrived, including those of the line end.
    offset: usize,
    /// The length of the value without the line end.
    length: usize,
}

#[derive(Debug, Default)]
struct RespReplies {
    arriving: Option<Arriving>,
    /// A line whose end has not arrived yet.
    partial: Vec<u8>,
}

impl Replies for RespReplies {
    fn feed(&mut self, mut bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        while !bytes.is_empty() {
            if let Some(arriving) = self.arriving {
                bytes = self.value(arriving, bytes, asker)?;
                continue;
            }
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                self.partial.extend_from_slice(bytes);
                return match self.partial.len() > LINE_MAX {
                    true => Err("a line without an end".into()),
                    false => Ok(()),
                };
            };
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.partial.is_empty() {
                self.line(line, asker)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, asker)?;
                whole.clear();
                self.partial = whole;
            }
        }
        Ok(())
    }
}

impl RespReplies {
    /// Processes the next piece of a value, or of the line end that follows the value. Returns the
    /// bytes after this piece.
    fn value<'a>(
        &mut self,
        Arriving { offset, length }: Arriving,
        bytes: &'a [u8],
        asker: &mut dyn Asker,
    ) -> std::result::Result<&'a [u8], String> {
        let is_body = offset < length;
        let end = if is_body { length } else { length + 2 };
        let (piece, rest) = bytes.split_at((end - offset).min(bytes.len()));
        if is_body {
            asker.body(offset, piece);
        } else if !b"\r\n"[offset - length..].starts_with(piece) {
            return Err("a value is longer than its length says".into());
        }
        let offset = offset + piece.len();
        self.arriving = Some(Arriving { offset, length });
        if offset == length + 2 {
            self.arriving = None;
            asker.reply(Reply::End, 1);
        }
        Ok(rest)
    }

    fn line(&mut self, line: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        let wrong = || {
            let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
            format!("the reply {line:?} does not belong to the request")
        };
        let text = line.strip_suffix(b"\r\n").ok_or_else(wrong)?;
        match (asked(asker)?, text) {
            (_, [b'-', error @ ..]) => asker.reply(Reply::Error(error), 0),
            (Verb::Get, b"$-1") => asker.reply(Reply::End, 0),
            (Verb::Get, [b'$', length @ ..]) => {
                let length = number(length).filter(|&length| length <= VALUE_MAX);
                let length = length.ok_or_else(wrong)? as usize;
                asker.value(b"", length);
                self.arriving = Some(Arriving { offset: 0, length });
            }
            (Verb::Set | Verb::SetCounter, b"+OK") => asker.reply(Reply::Stored, 0),
            (Verb::Limit, b":1") => asker.reply(Reply::Stored, 0),
            (Verb::Limit, b":0") => asker.reply(Reply::NotStored, 0),
            (Verb::Incr, [b':', count @ ..]) => {
                asker.reply(Reply::Number(number(count).ok_or_else(wrong)?), 0);
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
