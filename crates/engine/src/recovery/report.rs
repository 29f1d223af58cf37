//! Reports of a recovery: its progress, its findings, and why a store cannot be opened.

use crate::OpenError;
use larder_log::format::superblock::SuperblockError;
use larder_log::format::{LabelError, MAX_LANES};
use std::fmt;
use std::io;
use std::time::Duration;

/// Progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Segments are being read.
    Reading {
        /// Segments read so far. Segments read twice count twice.
        segments: u64,
        /// Segments to be read, as far as is known. All are read several times if memory cannot
        /// hold a decision about every key at once.
        of: u64,
    },
}

/// The findings of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Live items.
    pub items: u64,
    /// Segments that hold records.
    pub segments: u32,
    /// The store was new.
    pub created: bool,
    /// The previous server stopped cleanly.
    pub clean: bool,
    /// The previous server left an index image, so the log was not read.
    pub from_image: bool,
    /// The store was in use without durability when its server died, so its contents were
    /// discarded.
    pub discarded: bool,
    /// Bytes of incomplete commits, which were never acknowledged.
    pub dropped_bytes: u64,
    /// Runs of damaged bytes. At least as many records are lost, unless a run contained no record.
    pub damaged_records: u64,
    /// Runs of damaged bytes that an earlier start reported and accepted.
    pub accepted_records: u64,
    /// The store has no room to remember some of the damage, so the next start that reads the log
    /// will find it again.
    pub unremembered: bool,
    /// Segments that could not be read at all.
    pub damaged_segments: u32,
    /// Duration of the recovery.
    pub took: Duration,
}

impl Recovered {
    /// Combines the findings of this lane and another one.
    pub(crate) fn and(self, other: &Recovered) -> Recovered {
        Recovered {
            items: self.items + other.items,
            segments: self.segments + other.segments,
            created: self.created && other.created,
            clean: self.clean && other.clean,
            from_image: self.from_image && other.from_image,
            discarded: self.discarded || other.discarded,
            dropped_bytes: self.dropped_bytes + other.dropped_bytes,
            damaged_records: self.damaged_records + other.damaged_records,
            accepted_records: self.accepted_records + other.accepted_records,
            unremembered: self.unremembered || other.unremembered,
            damaged_segments: self.damaged_segments + other.damaged_segments,
            took: self.took.max(other.took),
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The device failed.
    Device(io::Error),
    /// The device holds no store that this program can use.
    Superblock(SuperblockError),
    /// The device is too small.
    TooSmall {
        /// The smallest sufficient size, in bytes.
        minimum: u64,
    },
    /// The device is smaller than the store on it.
    Shrunk {
        /// The size of the store, in bytes.
        needed: u64,
    },
    /// Durable records are damaged, and the settings do not allow silent loss.
    Damaged {
        /// The smallest possible number of damaged records.
        records: u64,
    },
    /// Nearly all version numbers are used up, after millions of crashes.
    VersionsUsedUp,
    /// Memory cannot hold the index of the store.
    IndexTooLarge {
        /// The smallest sufficient memory, in bytes.
        minimum: u64,
    },
    /// One of several devices cannot be used.
    Lane {
        /// The device's name.
        name: String,
        /// The error.
        error: Box<StoreError>,
    },
    /// The device belongs to another store than the previous devices, or is given twice.
    Foreign {
        /// The device's name.
        name: String,
    },
    /// The store was used without this device, so its contents are out of date.
    LeftBehind {
        /// The device's name.
        name: String,
    },
    /// Devices of the store are missing.
    Missing {
        /// The numbers of the missing lanes.
        lanes: Vec<usize>,
        /// The given devices, each with the number of its lane.
        given: Vec<(String, usize)>,
    },
    /// A lane that should be forgotten is present.
    NotMissing {
        /// Its number.
        lane: usize,
    },
    /// The store has a lower device, and none was given.
    LowerMissing,
    /// The given lower device is not the store's, or cannot become it.
    Lower {
        /// The device's name.
        name: String,
        /// The error.
        error: LabelError,
    },
    /// There are more devices than a store can have.
    TooManyLanes,
    /// No device is left: all were drained or are to be forgotten.
    NoLanes,
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
                write!(
                    f,
                    "the store has {needed} bytes and its device fewer, so a part of it is missing and \
                     nothing was changed: was it copied whole?"
                )
            }
            StoreError::Damaged { records } => write!(
                f,
                "at least {records} records of the store are damaged; start with \
                 --accept-damage to go on without them"
            ),
            StoreError::Lane { name, error } => write!(f, "{name}: {error}"),
            StoreError::Foreign { name } => write!(
                f,
                "{name} belongs to another store, or is given twice: take it out of --store"
            ),
            StoreError::LeftBehind { name } => write!(
                f,
                "the store has gone on without {name}, so what is on it is out of date: take it out \
                 of --store"
            ),
            StoreError::Missing { lanes, given } => {
                let numbers: Vec<String> = lanes.iter().map(usize::to_string).collect();
                let numbers = numbers.join(",");
                let given: Vec<String> =
                    given.iter().map(|(name, lane)| format!("{name} is lane {lane}")).collect();
                write!(
                    f,
                    "lane {numbers} of the store is missing ({}): give its device with --store, too; \
                     if that device is lost for good, --forget {numbers} starts without everything \
                     that was on it",
                    given.join(", ")
                )
            }
            StoreError::NotMissing { lane } => {
                write!(f, "lane {lane} is not missing: forget only what is gone for good")
            }
            StoreError::LowerMissing => f.write_str(
                "the store has a lower device, and a part of what it holds is there: give that \
                 device, too, as in --store FAST@fast --store LOWER@big",
            ),
            StoreError::Lower { name, error } => {
                write!(f, "{name} cannot be the lower device here: {error}")
            }
            StoreError::TooManyLanes => {
                write!(f, "a store has at most {MAX_LANES} devices")
            }
            StoreError::NoLanes => f.write_str("no device of the store is left in use"),
            StoreError::VersionsUsedUp => f.write_str(
                "the store has used its version numbers up, after millions of unclean stops: create another",
            ),
            StoreError::IndexTooLarge { minimum } => {
                write!(f, "the index of the store needs more memory: give at least {minimum} bytes")
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
