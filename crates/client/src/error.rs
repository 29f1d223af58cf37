//! The errors of client calls.

use std::fmt;
use std::io;

/// The reason why a call failed. After [`Error::Io`], [`Error::Closed`] and [`Error::Protocol`] the
/// caller must drop the connection: it is broken, or its next reply may belong to an earlier
/// request. After all other errors the connection can still be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The connection could not be made, or broke.
    Io {
        /// The operation that failed, such as "cannot send the request".
        doing: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server closed the connection.
    Closed,
    /// The server reported `SERVER_ERROR`, or `ERROR` with a text. This is the text after it.
    Server(String),
    /// The server reported `CLIENT_ERROR`, with this text after it.
    Client(String),
    /// The server reported a bare `ERROR`: it does not know the command.
    UnknownCommand,
    /// The reply is malformed or is no reply to this request. The text says why.
    Protocol(String),
    /// The caller passed a malformed address, key or command, so nothing was sent.
    Usage(String),
}

impl Error {
    /// Returns true if the connection may be used again.
    pub fn is_recoverable(&self) -> bool {
        !matches!(self, Error::Io { .. } | Error::Closed | Error::Protocol(_))
    }

    pub(crate) fn io(doing: impl Into<String>, source: io::Error) -> Error {
        Error::Io { doing: doing.into(), source }
    }

    pub(crate) fn unexpected(request: &str, line: &[u8]) -> Error {
        let line = String::from_utf8_lossy(line);
        Error::Protocol(format!("{request} was answered with {line:?}"))
    }

    /// Returns the error that the line of a [`Reply::Error`](crate::Reply::Error) stands for.
    pub(crate) fn answered(line: &[u8]) -> Error {
        let text = |from: usize| {
            String::from_utf8_lossy(line.get(from..).unwrap_or_default()).trim().to_owned()
        };
        match line {
            b"ERROR" => Error::UnknownCommand,
            line if line.starts_with(b"CLIENT_ERROR") => Error::Client(text(12)),
            line if line.starts_with(b"SERVER_ERROR") => Error::Server(text(12)),
            _ => Error::Server(text(6)),
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind of [`Error::Io`]. [`Error::Closed`] becomes an unexpected end of file, and
    /// [`Error::Protocol`] becomes invalid data.
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Closed => io::ErrorKind::UnexpectedEof,
            Error::Protocol(_) => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { doing, source } => write!(f, "{doing}: {source}"),
            Error::Closed => f.write_str("the server closed the connection"),
            Error::Server(text) => write!(f, "the server reports: {text}"),
            Error::Client(text) => write!(f, "the server refused the request: {text}"),
            Error::UnknownCommand => f.write_str("the server does not know this command"),
            Error::Protocol(text) => write!(f, "the answer makes no sense: {text}"),
            Error::Usage(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
