//! Blocking reads of whole replies.

use std::io::{BufRead, BufReader, ErrorKind, Read};

use crate::reply::{LINE_MAX, Reply, unknown};
use crate::{Error, Result};

/// The largest number of bytes per read of the source.
const BUFFER: usize = 16 * 1024;

/// Reads replies from a connection. Its buffers keep the size of the longest line and value.
#[derive(Debug)]
pub struct ReplyReader<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    value: Vec<u8>,
}

impl<R: Read> ReplyReader<R> {
    /// Returns a reader of the bytes of `source`.
    pub fn new(source: R) -> ReplyReader<R> {
        let source = BufReader::with_capacity(BUFFER, source);
        ReplyReader { source, line: Vec::new(), value: Vec::new() }
    }

    /// Returns the source of the bytes.
    pub fn source(&self) -> &R {
        self.source.get_ref()
    }

    /// Reads one line of any kind and returns it without its line end.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a read fails, [`Error::Closed`] at the end of the connection, and
    /// [`Error::Protocol`] for a line that is too long or does not end with CR LF.
    pub fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        let read = (&mut self.source)
            .take(LINE_MAX as u64)
            .read_until(b'\n', &mut self.line)
            .map_err(|e| Error::io("cannot read the answer", e))?;
        if self.line.last() != Some(&b'\n') {
            return match read {
                LINE_MAX => Err(Error::Protocol("a line without an end".into())),
                _ => Err(Error::Closed),
            };
        }
        self.line.strip_suffix(b"\r\n").ok_or_else(|| Error::Protocol(unknown(&self.line)))
    }

    /// Reads one line of a reply and the value that it announces. The value is empty if there is
    /// none.
    ///
    /// # Errors
    /// Returns the errors of [`ReplyReader::line`]. Also returns [`Error::Protocol`] if the line is
    /// no [`Reply`], or if no CR LF follows the value.
    pub fn reply(&mut self) -> Result<(Reply<'_>, &[u8])> {
        self.line()?;
        let line = self.line.strip_suffix(b"\r\n").unwrap_or_default();
        let reply = Reply::parse(line).ok_or_else(|| Error::Protocol(unknown(line)))?;
        self.value.clear();
        if let Some(length) = reply.value_length() {
            read_value(&mut self.source, length, &mut self.value)?;
        }
        Ok((reply, &self.value))
    }

    /// Returns the line read last, without its line end.
    pub fn last_line(&self) -> &[u8] {
        self.line.strip_suffix(b"\r\n").unwrap_or(&self.line)
    }

    /// Waits until bytes arrive or the connection ends.
    ///
    /// # Errors
    /// Returns the error of the source, for example that its time-out has passed.
    pub fn wait(&mut self) -> std::io::Result<()> {
        self.source.fill_buf().map(drop)
    }
}

/// Reads a value of `length` bytes into the empty `value`. `value` grows only as bytes arrive, so a
/// server that announces a wrong length cannot make the client allocate gigabytes.
fn read_value(source: &mut impl BufRead, length: usize, value: &mut Vec<u8>) -> Result<()> {
    while value.len() < length + 2 {
        let bytes = match source.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            bytes => bytes.map_err(|e| Error::io("cannot read a value", e))?,
        };
        let taken = bytes.len().min(length + 2 - value.len());
        if taken == 0 {
            return Err(Error::Closed);
        }
        value.extend_from_slice(&bytes[..taken]);
        source.consume(taken);
    }
    if !value.ends_with(b"\r\n") {
        return Err(Error::Protocol(format!("no line end after a value of {length} bytes")));
    }
    value.truncate(length);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_follow_one_another() {
        let bytes = b"VALUE k 0 4\r\n\r\n\r\n\r\nEND\r\nVA 0\r\n\r\nDELETED\r\nTOU";
        let mut replies = ReplyReader::new(&bytes[..]);
        let (reply, value) = replies.reply().unwrap();
        assert_eq!(reply, Reply::Value { key: b"k", flags: 0, length: 4, cas: None });
        assert_eq!(value, b"\r\n\r\n");
        assert_eq!(replies.reply().unwrap(), (Reply::End, &b""[..]));
        assert_eq!(replies.reply().unwrap().0.value_length(), Some(0));
        assert_eq!(replies.reply().unwrap().0, Reply::Deleted);
        assert!(matches!(replies.reply(), Err(Error::Closed)));
    }

    #[test]
    fn malformed_replies_are_errors() {
        let read = |bytes: &[u8]| ReplyReader::new(bytes).reply().map(drop).unwrap_err();
        for bytes in [&b"HELLO\r\n"[..], b"STORED\n", b"VA 1\r\nabc", &[b'x'; LINE_MAX]] {
            assert!(matches!(read(bytes), Error::Protocol(_)));
        }
        for bytes in [&b""[..], b"STORED", b"VA 9\r\nabc", b"VALUE a 0 1073741824\r\n1"] {
            assert!(matches!(read(bytes), Error::Closed));
        }
    }
}
