//! Reads the server's replies, and interprets each as the answer to its request.

use std::io::{self, Read};

use larder_client::{Code, Reply as Line, ReplyReader};

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

/// Reads the answer to `operation`.
///
/// # Errors
/// Returns the error of a broken connection, or [`io::ErrorKind::InvalidData`] for a malformed
/// reply.
pub(crate) fn read(from: &mut ReplyReader<impl Read>, operation: &Operation) -> io::Result<Reply> {
    let (line, value) = from.reply()?;
    let reply = interpret(line, value, operation);
    // The client accepts a reply with spaces at its end, because other servers send such replies.
    // Larder must not send them.
    let reply = match from.last_line() {
        [.., b' '] => Err("a reply with spaces at its end"),
        _ => reply,
    };
    reply.map_err(|what| {
        let line = String::from_utf8_lossy(from.last_line());
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {line:?}"))
    })
}

fn interpret(line: Line<'_>, value: &[u8], operation: &Operation) -> Result<Reply, &'static str> {
    const MISSING: &str = "a flag is missing";
    let counts = matches!(operation, Operation::Count { .. });
    Ok(match line {
        Line::Stored => Reply::Stored(None),
        Line::NotStored | Line::Meta(Code::NotStored, _) => Reply::NotStored,
        Line::Exists | Line::Meta(Code::Exists, _) => Reply::Exists,
        Line::NotFound | Line::Meta(Code::NotFound, _) => Reply::NotFound,
        Line::Deleted => Reply::Deleted,
        Line::Touched => Reply::Touched,
        Line::Number(number) if counts => Reply::Number(number, None),
        Line::Meta(Code::Miss, flags) if flags.0.is_empty() => Reply::Miss,
        Line::Meta(Code::Done, flags) => match operation {
            Operation::Delete { .. } => Reply::Deleted,
            Operation::Store { .. } => Reply::Stored(flags.number(b'c')),
            _ => return Err("an unexpected answer"),
        },
        Line::Meta(Code::Value(_), flags) => {
            let print = Print::of(value);
            let cas = flags.number(b'c');
            if counts {
                Reply::Number(print.number.ok_or("a counter that is no number")?, cas)
            } else {
                let number = |letter| flags.number(letter).ok_or(MISSING);
                Reply::Item(Seen {
                    print,
                    flags: number(b'f')?.try_into().map_err(|_| MISSING)?,
                    ttl: match flags.get(b't') {
                        Some(b"-1") => None,
                        _ => Some(number(b't')?),
                    },
                    cas: cas.ok_or(MISSING)?,
                })
            }
        }
        Line::Error(line) => match line.strip_prefix(b"SERVER_ERROR ") {
            Some(reason) => Reply::Failed(String::from_utf8_lossy(reason).into_owned()),
            None => return Err("an unexpected answer"),
        },
        _ => return Err("an unexpected answer"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(bytes: &[u8]) -> io::Result<Reply> {
        read(&mut ReplyReader::new(bytes), &Operation::Get)
    }

    #[test]
    fn items_are_read_with_all_requested_fields() {
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
        for bytes in
            [&b"EN x\r\n"[..], b"EN \r\n", b"HD\r\n", b"EXCESS\r\n", b"OK\r\n", b"STORED\n"]
        {
            assert_eq!(kind(bytes), io::ErrorKind::InvalidData);
        }
        let count = Operation::Count { by: 1, initial: None };
        let padded = read(&mut ReplyReader::new(&b"12 \r\n"[..]), &count);
        assert_eq!(padded.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn replies_to_counts_and_deletes_are_read() {
        let read = |bytes: &[u8], operation| read(&mut ReplyReader::new(bytes), operation);
        let count = Operation::Count { by: 1, initial: None };
        assert_eq!(read(b"12\r\n", &count).unwrap(), Reply::Number(12, None));
        let reply = read(b"VA 2 c5\r\n12\r\n", &count).unwrap();
        assert_eq!(reply, Reply::Number(12, Some(5)));
        let delete = Operation::Delete { meta: true };
        assert_eq!(read(b"HD\r\n", &delete).unwrap(), Reply::Deleted);
        assert_eq!(read(b"NF\r\n", &delete).unwrap(), Reply::NotFound);
    }
}
