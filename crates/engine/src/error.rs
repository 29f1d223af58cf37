//! Why an engine or its store cannot be opened.

use larder_log::format::superblock::SuperblockError;
use larder_log::format::{LabelError, LaneNumber, MAX_LANES};
use std::fmt;
use std::io;

/// The reason why an engine could not be opened, or why its memory limit could not be changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The memory limit is too small, even for an engine without items.
    MemoryTooSmall {
        /// The smallest sufficient memory, in bytes.
        minimum: u64,
    },
    /// The requested memory limit is more than four times the limit at the start of the engine.
    MemoryTooLarge {
        /// The largest possible memory, in bytes.
        maximum: u64,
    },
    /// The option for the largest item is out of range for this memory.
    MaxItemSize {
        /// The smallest allowed value, in bytes.
        minimum: u64,
        /// The largest allowed value, in bytes.
        maximum: u64,
    },
    /// The operating system provided no memory or no thread.
    Map(std::io::Error),
    /// The store cannot be used.
    Store(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::MemoryTooSmall { minimum } => {
                write!(f, "memory is too small: give at least {minimum} bytes")
            }
            OpenError::MemoryTooLarge { maximum } => {
                write!(f, "memory can be raised to at most {maximum} bytes without a restart")
            }
            OpenError::MaxItemSize { minimum, maximum } => write!(
                f,
                "the largest item must be between {minimum} and {maximum} bytes (half of memory, \
                 at most 1 GiB)"
            ),
            OpenError::Map(error) => {
                write!(f, "the operating system gave no memory ({error}): ask for less")
            }
            OpenError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a store cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The device failed.
    Device(io::Error),
    /// The device holds no store that this program can use.
    Superblock(SuperblockError),
    /// The device is too small for a store, or for use as a lower device.
    TooSmall {
        /// The smallest sufficient size, in bytes.
        minimum: u64,
    },
    /// The device is smaller than the store on it.
    Shrunk {
        /// The size of the store, in bytes.
        needed: u64,
    },
    /// Durable records are damaged, and the options do not accept damage.
    Damaged {
        /// A lower bound of the number of damaged records.
        records: u64,
    },
    /// Nearly all seqs are used up. A start after a crash skips the rest of the lease, so this
    /// needs millions of crashes.
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
    /// The device belongs to a different store than the devices before it, or is given twice.
    Foreign {
        /// The device's name.
        name: String,
    },
    /// The store was used without this device, so the contents of the device are out of date.
    LeftBehind {
        /// The device's name.
        name: String,
    },
    /// Devices of the store are missing.
    Missing {
        /// The numbers of the missing lanes.
        lanes: Vec<LaneNumber>,
        /// The given devices, each with the number of its lane.
        given: Vec<(String, LaneNumber)>,
    },
    /// The options give up a lane as lost, but its device is present.
    NotMissing {
        /// The number of the lane.
        lane: LaneNumber,
    },
    /// The store has a lower device, and none was given.
    LowerMissing,
    /// The given lower device neither belongs to the lane for which it was given nor can be added
    /// to this lane.
    Lower {
        /// The device's name.
        name: String,
        /// The error.
        error: LabelError,
    },
    /// There are more devices than a store can have.
    TooManyLanes,
    /// No device is left in use: all were drained or are given up as lost.
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
                "the store has gone on without {name}, so its data is out of date: take it out of \
                 --store"
            ),
            StoreError::Missing { lanes, given } => {
                let numbers: Vec<String> = lanes.iter().map(LaneNumber::to_string).collect();
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
                write!(f, "lane {lane} is not missing: forget only lanes that are lost for good")
            }
            StoreError::LowerMissing => f.write_str(
                "the store has a lower device, and a part of its data is there: give that \
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
