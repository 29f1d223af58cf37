//! What the mover is asked to do with devices, and how a lane is.

use crate::Health;
use std::fmt;
use std::io;
use std::task::Waker;

/// How a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// Its number in the store.
    pub number: usize,
    /// What its device is called.
    pub name: String,
    /// The partitions that it owns, of 4096.
    pub partitions: usize,
    /// It is being emptied.
    pub draining: bool,
    /// It was emptied: the store does not need its device any more.
    pub drained: bool,
    /// How its device is.
    pub health: Health,
    /// The size of its device, in bytes.
    pub capacity: u64,
    /// Items in its index.
    pub items: u64,
    /// What its lower device is called, if it has one.
    pub lower: Option<String>,
}

/// Why a device cannot be drained.
#[derive(Debug)]
#[non_exhaustive]
pub enum DrainError {
    /// No device of the store is called so.
    Unknown {
        /// What they are called.
        names: Vec<String>,
    },
    /// No other device would be left.
    Last,
    /// The store's devices do not take it down.
    Device(io::Error),
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainError::Unknown { names } => {
                write!(f, "no device of the store is called so; there are {}", names.join(", "))
            }
            DrainError::Last => f.write_str("it is the only device that is left"),
            DrainError::Device(error) => write!(f, "the store cannot be changed: {error}"),
        }
    }
}

impl std::error::Error for DrainError {}

/// A device that is to be emptied, or not any more.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(super) name: String,
    pub(super) draining: bool,
}

impl Drain {
    pub(super) fn is(&self, name: &str, draining: bool) -> bool {
        self.name == name && self.draining == draining
    }
}

/// What sessions ask the mover to do with devices.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    pub(super) asked: Vec<Drain>,
    pub(super) failed: Vec<(Drain, DrainError)>,
    pub(super) waiting: Vec<Waker>,
}
