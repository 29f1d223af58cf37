//! The meta commands, as lines: the caller writes the flags, the client keeps the stream in step.

use crate::client::error_of;
use crate::text::number;
use crate::{Client, Error, Result};

/// The answer to one meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaReply {
    /// The code: `HD`, `VA`, `EN`, `NF`, `NS`, `EX`, `MN` or `ME`.
    pub code: [u8; 2],
    /// The words behind the code (behind the length for `VA`), in order: `f30`, `kname`, ….
    pub flags: Vec<String>,
    /// The value of a `VA`.
    pub value: Option<Vec<u8>>,
}

impl MetaReply {
    /// The text behind the first returned flag with this letter.
    pub fn flag(&self, letter: char) -> Option<&str> {
        self.flags.iter().find_map(|flag| flag.strip_prefix(letter))
    }

    /// Whether the code is this one.
    pub fn is(&self, code: &str) -> bool {
        self.code == code.as_bytes()
    }
}

impl Client {
    /// Sends one meta line such as `mg key v t`, with the value behind it for `ms`, and reads one
    /// answer. The length that `ms` needs is part of the line.
    ///
    /// With the `q` flag the server may stay silent: send `mn` behind it through a
    /// [`Pipeline`](crate::Pipeline) or read with [`Client::read_meta`].
    ///
    /// # Errors
    /// [`Error::Usage`] for a line with a line end in it, else what [`Client::read_meta`] answers.
    pub fn meta(&mut self, line: &str, value: Option<&[u8]>) -> Result<MetaReply> {
        self.request.clear();
        push_meta(&mut self.request, line, value)?;
        self.send_request()?;
        self.read_meta()
    }

    /// Reads one answer to a meta command.
    ///
    /// # Errors
    /// The three error answers as errors, [`Error::Protocol`] for anything that is no meta answer.
    pub fn read_meta(&mut self) -> Result<MetaReply> {
        let line = self.read_line()?;
        if let Some(error) = error_of(line) {
            return Err(error);
        }
        let (mut reply, length) =
            parse_meta(line).ok_or_else(|| Error::unexpected("a meta command", line))?;
        if let Some(length) = length {
            reply.value = Some(self.read_value(length)?);
        }
        Ok(reply)
    }
}

pub(crate) fn push_meta(request: &mut Vec<u8>, line: &str, value: Option<&[u8]>) -> Result<()> {
    if line.contains(['\r', '\n']) {
        return Err(Error::Usage("a meta command must be one line".into()));
    }
    request.extend_from_slice(line.as_bytes());
    request.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }
    Ok(())
}

/// The reply and, for `VA`, the length of the value that follows.
pub(crate) fn parse_meta(line: &[u8]) -> Option<(MetaReply, Option<usize>)> {
    let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
    let code: [u8; 2] = words.next()?.try_into().ok()?;
    let length = match &code {
        b"VA" => Some(usize::try_from(number(words.next()?)?).ok()?),
        b"HD" | b"EN" | b"NF" | b"NS" | b"EX" | b"MN" | b"ME" => None,
        _ => return None,
    };
    let flags = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    Some((MetaReply { code, flags, value: None }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let (reply, length) = parse_meta(b"VA 5 f30 kname").unwrap();
        assert!(reply.is("VA"));
        assert_eq!((length, reply.flag('f'), reply.flag('k')), (Some(5), Some("30"), Some("name")));
        assert_eq!(reply.flag('t'), None);
        let (reply, length) = parse_meta(b"HD ").unwrap();
        assert!(reply.is("HD") && reply.flags.is_empty() && length.is_none());
        for line in ["VA", "VA x", "STORED", ""] {
            assert!(parse_meta(line.as_bytes()).is_none(), "{line:?}");
        }
    }

    #[test]
    fn a_line_cannot_smuggle_another() {
        let mut request = Vec::new();
        assert!(push_meta(&mut request, "mg a\r\nflush_all", None).is_err());
        assert!(request.is_empty());
    }
}
