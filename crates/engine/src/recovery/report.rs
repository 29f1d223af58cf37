//! What a recovery tells: how far it has come, what it found, why it could not begin.

use crate::OpenError;
use larder_log::format::superblock::SuperblockError;
use std::fmt;
use std::io;
use std::time::Duration;

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Segments are being read.
    Reading {
        /// Segments that were read, those that were read twice counted twice.
        segments: u64,
        /// Segments to be read, as far as is known. All are read several times if memory cannot hold
        /// a decision about every key at once.
        of: u64,
    },
}

/// What a recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Items that were found alive.
    pub items: u64,
    /// Segments that hold records.
    pub segments: u32,
    /// The store was new.
    pub created: bool,
    /// The server before had ended properly.
    pub clean: bool,
    /// The server before had left an index image: the log was not read.
    pub from_image: bool,
    /// The store was in use without durability when its server died: its contents were discarded.
    pub discarded: bool,
    /// Bytes of commits that had not completed, which nobody was told of.
    pub dropped_bytes: u64,
    /// Runs of damaged bytes: at least as many records are lost, unless a run is none of a record.
    pub damaged_records: u64,
    /// Segments of which nothing could be read.
    pub damaged_segments: u32,
    /// How long it took.
    pub took: Duration,
}

/// Why a store cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The device failed.
    Device(io::Error),
    /// What is on the device is no store that this program can use.
    Superblock(SuperblockError),
    /// The device is too small.
    TooSmall {
        /// The least that would do, in bytes.
        minimum: u64,
    },
    /// The device is smaller than the store on it.
    Shrunk {
        /// What the store takes, in bytes.
        needed: u64,
    },
    /// Records that were durable are damaged, and nothing may be lost without being told so.
    Damaged {
        /// Damaged places, at least.
        records: u64,
    },
    /// Memory cannot hold the index of the store.
    IndexTooLarge,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Device(error) => write!(f, "the store cannot be used: {error}"),
            StoreError::Superblock(error) => write!(f, "the store cannot be used: {error}"),
            StoreError::TooSmall { minimum } => {
                write!(f, "the store is too small: give it at least {minimum} bytes")
            }
            StoreError::Shrunk { needed } => {
                write!(f, "the store takes {needed} bytes and its device has fewer")
            }
            StoreError::Damaged { records } => write!(
                f,
                "at least {records} records of the store are damaged; start with \
                 --accept-damage to go on without them"
            ),
            StoreError::IndexTooLarge => {
                f.write_str("the index of the store needs more memory: raise --memory")
            }
        }
    }
}

impl std::error::Error for StoreError {}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        StoreError::Device(error)
    }
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        OpenError::Store(error)
    }
}
