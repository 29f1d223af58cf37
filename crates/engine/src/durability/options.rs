//! The options of a store: its devices, and which failures an acknowledged write survives.

use larder_disk::{Device, MonotonicClock};
use larder_log::format::{LaneNumber, MachineTime};
use std::sync::Arc;
use std::time::Duration;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledges a write at once, without a promise: the store only holds what does not fit into
    /// memory.
    None,
    /// Acknowledges a write at once. A crash of the machine loses at most the writes of the last
    /// sync interval. A crash of only the process loses at most those of the last milliseconds.
    Async,
    /// Acknowledges a write when it is durable.
    Sync,
}

/// The store that an engine keeps its items in.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The store's devices. Each is a lane with a share of the keys.
    pub devices: Vec<StoreDevice>,
    /// Lanes whose devices are missing, to be given up with everything in them.
    pub forget: Vec<LaneNumber>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// In async mode, a crash of the machine loses at most the writes acknowledged during the last
    /// interval of this length.
    pub sync_interval: Duration,
    /// True if a damaged store is opened even with [`WhenFull::Refuse`](crate::WhenFull::Refuse).
    /// The damaged records are lost.
    pub accept_damage: bool,
    /// The clock that measures `sync_interval`, commits and device calls.
    pub clock: MonotonicClock,
    /// What the machine's clocks show when the engine is opened. The store keeps its own time.
    /// [`Engine::opened_at`](crate::Engine::opened_at) returns that time at the moment of `opened`.
    pub opened: MachineTime,
}

/// A device of a store.
#[derive(Clone, Debug)]
pub struct StoreDevice {
    /// The device's name for users.
    pub name: String,
    /// The device itself.
    pub device: Arc<dyn Device>,
    /// A slower and larger device below this one, to which the lane moves cold records. A store may
    /// get a lower device at a later start, and needs it from then on.
    pub lower: Option<LowerDevice>,
    /// Random numbers for a store that is created on this device. They become its identity and the
    /// secret of its checksums.
    pub seeds: [u64; 3],
}

/// The lower device of a lane.
#[derive(Clone, Debug)]
pub struct LowerDevice {
    /// The lower device's name for users.
    pub name: String,
    /// The device itself.
    pub device: Arc<dyn Device>,
}

impl StoreDevice {
    /// Returns the size of the device and of its lower device together, in bytes.
    pub fn capacity(&self) -> u64 {
        self.device.size() + self.lower.as_ref().map_or(0, |lower| lower.device.size())
    }
}
