//! The server's replies, parsed from the bytes of a connection.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::value::Print;

/// An item as a client read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) print: Print,
    pub(crate) flags: u32,
    /// Seconds until the item expires; `None` if it never does.
    pub(crate) ttl: Option<u64>,
    pub(crate) cas: u64,
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// `STORED` or `HD`, with the cas id if it was requested.
    Stored(Option<u64>),
    NotStored,
    Exists,
    NotFound,
    /// A counter's new value, and its cas id if that was requested.
    Number(u64, Option<u64>),
    Deleted,
    Touched,
    Item(Seen),
    Miss,
    /// `SERVER_ERROR` with its reason.
    Failed(String),
}

fn broken(what: &str, line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {line:?}"))
}

/// The longest line in bytes. Short values are also read as lines.
const LINE: u64 = 1 << 16;

/// Reads one line and removes its line end.
pub(crate) fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.by_ref().take(LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') || line.pop() != Some(b'\r') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Returns the value of the meta flag `letter` in a reply line.
fn flag(line: &str, letter: char) -> Option<&str> {
    line.split(' ').skip(1).find_map(|word| word.strip_prefix(letter))
}

fn number(line: &str, letter: char) -> Option<u64> {
    flag(line, letter)?.parse().ok()
}

/// Reads a value of `length` bytes and the line end after it.
fn value(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes)?;
    if bytes.split_off(length) != b"\r\n" {
        return Err(broken("a value without its line end", &length.to_string()));
    }
    Ok(bytes)
}

/// Reads the answer to `operation`.
///
/// # Errors
/// Returns the error of a broken connection, or [`io::ErrorKind::InvalidData`] for a malformed
/// reply.
pub(crate) fn read(from: &mut impl BufRead, operation: &Operation) -> io::Result<Reply> {
    let line = read_line(from)?;
    if let Some(reason) = line.strip_prefix("SERVER_ERROR ") {
        return Ok(Reply::Failed(reason.to_owned()));
    }
    let counts = matches!(operation, Operation::Count { .. });
    let reply = match line.as_str() {
        "STORED" => Reply::Stored(None),
        "NOT_STORED" | "NS" => Reply::NotStored,
        "EXISTS" => Reply::Exists,
        "NOT_FOUND" => Reply::NotFound,
        "DELETED" => Reply::Deleted,
        "TOUCHED" => Reply::Touched,
        "EN" => Reply::Miss,
        _ if line.starts_with("EX") => Reply::Exists,
        _ if line.starts_with("NS") => Reply::NotStored,
        _ if line.starts_with("NF") => Reply::NotFound,
        _ if line.starts_with("HD") => match operation {
            Operation::Delete { .. } => Reply::Deleted,
            Operation::Store { .. } => Reply::Stored(number(&line, 'c')),
            _ => return Err(broken("an unexpected answer", &line)),
        },
        _ if line.starts_with("VA ") => {
            let length = line[3..].split(' ').next().and_then(|word| word.parse().ok());
            let bytes =
                value(from, length.ok_or_else(|| broken("a value without length", &line))?)?;
            let print = Print::of(&bytes);
            let cas = number(&line, 'c');
            if counts {
                let now =
                    print.number.ok_or_else(|| broken("a counter that is no number", &line))?;
                Reply::Number(now, cas)
            } else {
                let missing = || broken("a flag is missing", &line);
                Reply::Item(Seen {
                    print,
                    flags: number(&line, 'f').ok_or_else(missing)? as u32,
                    ttl: match flag(&line, 't').ok_or_else(missing)? {
                        "-1" => None,
                        text => Some(text.parse().map_err(|_| missing())?),
                    },
                    cas: cas.ok_or_else(missing)?,
                })
            }
        }
        text if counts && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Reply::Number(text.parse().map_err(|_| broken("a number too large", text))?, None)
        }
        _ => return Err(broken("an unexpected answer", &line)),
    };
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(bytes: &[u8]) -> io::Result<Reply> {
        read(&mut &bytes[..], &Operation::Get)
    }

    #[test]
    fn items_are_read_with_all_that_is_asked_of_them() {
        let seen = Seen { print: Print::of(b"ab"), flags: 7, ttl: None, cas: 99 };
        assert_eq!(get(b"VA 2 f7 t-1 c99\r\nab\r\n").unwrap(), Reply::Item(seen));
        let seen = Seen { ttl: Some(12), ..seen };
        assert_eq!(get(b"VA 2 f7 t12 c99\r\nab\r\n").unwrap(), Reply::Item(seen));
        assert_eq!(get(b"EN\r\n").unwrap(), Reply::Miss);
        assert_eq!(get(b"SERVER_ERROR full\r\n").unwrap(), Reply::Failed("full".into()));
    }

    #[test]
    fn half_an_answer_and_a_wrong_one_are_errors() {
        let kind = |bytes: &[u8]| get(bytes).unwrap_err().kind();
        assert_eq!(kind(b"VA 2 f7 t-1 c99\r\na"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"EN"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b""), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"VA 2 f7 t-1 c99\r\nabc\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"ERROR\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"12\r\n"), io::ErrorKind::InvalidData);
    }

    #[test]
    fn counters_and_stores_answer_what_was_asked() {
        let count = Operation::Count { by: 1, initial: None };
        assert_eq!(read(&mut &b"12\r\n"[..], &count).unwrap(), Reply::Number(12, None));
        let reply = read(&mut &b"VA 2 c5\r\n12\r\n"[..], &count).unwrap();
        assert_eq!(reply, Reply::Number(12, Some(5)));
        let delete = Operation::Delete { meta: true };
        assert_eq!(read(&mut &b"HD\r\n"[..], &delete).unwrap(), Reply::Deleted);
        assert_eq!(read(&mut &b"NF\r\n"[..], &delete).unwrap(), Reply::NotFound);
    }
}
