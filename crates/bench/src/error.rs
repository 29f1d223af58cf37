//! The reasons why a run gave no figures.

use std::fmt;
use std::io;

/// A failure of a lab command. A run also fails if the server sends a wrong answer. Such a run
/// prints no figures, so that they are not quoted.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the operating system failed.
    Io {
        /// The operation that failed.
        doing: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// An error of the client crate.
    Client(larder_client::Error),
    /// An option or an input file is wrong, or the machine cannot do what the options ask for.
    Usage(String),
    /// The server could not be started, stopped or measured.
    Server(String),
    /// The results do not count, for example because the server sent a wrong answer.
    Void(String),
}

/// The result type of the lab's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(doing: impl Into<String>, source: io::Error) -> Error {
        Error::Io { doing: doing.into(), source }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Error {
        Error::Usage(text.into())
    }

    pub(crate) fn server(text: impl Into<String>) -> Error {
        Error::Server(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { doing, source } => write!(f, "{doing}: {source}"),
            Error::Client(error) => write!(f, "{error}"),
            Error::Usage(text) | Error::Server(text) => f.write_str(text),
            Error::Void(text) => write!(f, "the run is void: {text}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Client(error) => Some(error),
            _ => None,
        }
    }
}

impl From<larder_client::Error> for Error {
    fn from(error: larder_client::Error) -> Error {
        match error {
            larder_client::Error::Protocol(text) => Error::Void(text),
            error => Error::Client(error),
        }
    }
}
