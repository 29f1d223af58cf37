//! Requests to drain or keep devices, and the states of lanes.

use crate::Health;
use larder_log::format::LaneNumber;
use std::fmt;
use std::io;
use std::task::Waker;

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The lane's number in the store.
    pub number: LaneNumber,
    /// The name of its device.
    pub name: String,
    /// The number of partitions that it owns, of 4096.
    pub partitions: usize,
    /// The lane is being emptied.
    pub draining: bool,
    /// The lane was emptied. The store no longer needs its device.
    pub drained: bool,
    /// The health of its device.
    pub health: Health,
    /// The size of its device, in bytes.
    pub capacity: u64,
    /// Items in its index.
    pub items: u64,
    /// The name of its lower device, if it has one.
    pub lower: Option<String>,
}

/// The reason why a device cannot be drained.
#[derive(Debug)]
#[non_exhaustive]
pub enum DrainError {
    /// The store has no device of this name.
    Unknown {
        /// The names of the store's devices.
        names: Vec<String>,
    },
    /// The device is the only one left.
    Last,
    /// The store's devices could not record the change.
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

/// A request to drain a device, or to cancel its drain.
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

/// Requests of sessions to drain devices or to cancel drains.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    pub(super) asked: Vec<Drain>,
    pub(super) failed: Vec<(Drain, DrainError)>,
    pub(super) waiting: Vec<Waker>,
}
