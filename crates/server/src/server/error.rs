//! The reasons why a server does not start.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use larder_engine::{OpenError, StoreError};

use crate::net::BindError;

/// The reason why a server could not start. The message says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A listener could not be created.
    Bind(BindError),
    /// A host name has no address.
    Resolve {
        /// The `--listen` value with the host name, as configured.
        address: String,
        /// Why the host name has no address.
        error: io::Error,
    },
    /// The address given for the admin page cannot be used.
    Admin {
        /// The address.
        address: SocketAddr,
        /// Why the admin page cannot use it.
        error: io::Error,
    },
    /// The token of the admin port cannot be read or created.
    AdminToken {
        /// The token's file, if the settings name one.
        file: Option<PathBuf>,
        /// Why there is no token.
        reason: String,
    },
    /// A device of the store is given in the wrong role.
    Misplaced {
        /// What is wrong.
        what: String,
        /// The command line that would be right, if it is known.
        instead: Option<String>,
    },
    /// The file or device of a store cannot be opened.
    Store(larder_disk::OpenError),
    /// The content of a store cannot be used.
    Recovery {
        /// The store as `--store` names it.
        store: String,
        /// Why the store cannot be used.
        error: StoreError,
    },
    /// The engine cannot be opened.
    Engine(OpenError),
    /// The kernel refused an operation that no other variant describes.
    System {
        /// The operation that failed.
        doing: String,
        /// The error that the kernel returned.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => error.fmt(f),
            StartError::Resolve { address, error } => {
                write!(f, "--listen {address} has no address ({error}): check the name")
            }
            StartError::Admin { address, error } => write!(
                f,
                "the admin page cannot listen on {address} ({error}): choose another address with \
                 --admin, or --admin off"
            ),
            StartError::AdminToken { file: Some(file), reason } => {
                write!(f, "--admin-token-file {}: {reason}", file.display())
            }
            StartError::AdminToken { file: None, reason } => {
                write!(f, "cannot create the admin page's token: {reason}")
            }
            StartError::Misplaced { what, instead: None } => f.write_str(what),
            StartError::Misplaced { what, instead: Some(instead) } => {
                write!(f, "{what}; start with {instead}")
            }
            StartError::Store(error) => write!(f, "--store {error}"),
            StartError::Recovery { store, error } => write!(f, "--store {store}: {error}"),
            StartError::Engine(OpenError::MemoryTooSmall { minimum }) => {
                write!(f, "--memory is too small: give at least {} MB", minimum.div_ceil(1 << 20))
            }
            StartError::Engine(error) => error.fmt(f),
            StartError::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

pub(super) fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let doing = doing.into();
    move |error| StartError::System { doing, error }
}
