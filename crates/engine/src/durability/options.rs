//! The options of a store: its devices, and what an acknowledged write survives.

use larder_disk::Device;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once, and nothing is promised: the store only holds what does not fit into memory.
    None,
    /// At once; a crash of the machine takes back at most what was acknowledged within the sync interval, one
    /// of the process some milliseconds.
    Async,
    /// When it is durable.
    Sync,
}

/// Time that only moves forward, from any beginning.
#[derive(Clone)]
pub struct MonotonicClock(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MonotonicClock")
    }
}

/// The store that an engine keeps its items in.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Where the bytes go. Each device is a lane of its own, with a share of the keys.
    pub devices: Vec<StoreDevice>,
    /// Lanes whose devices are missing and that are to be given up, with all that was in them.
    pub forget: Vec<usize>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// In async mode: the most time whose acknowledged writes a crash may take back.
    pub sync_interval: Duration,
    /// Open a damaged store in refuse mode too, without the records that are lost.
    pub accept_damage: bool,
    /// Measures `sync_interval`.
    pub clock: MonotonicClock,
    /// Unix seconds, for a store that is created.
    pub created: u64,
}

/// A device of a store.
#[derive(Clone, Debug)]
pub struct StoreDevice {
    /// What people call it.
    pub name: String,
    /// Where the bytes go.
    pub device: Arc<dyn Device>,
    /// Where the lane goes on behind them: slower and larger. What has cooled is moved there. A store
    /// may get one at a later start, and needs it from then on.
    pub lower: Option<LowerDevice>,
    /// Random numbers for a store that is created there: its identity, and the secret of its checksums.
    pub seeds: [u64; 3],
}

/// The lower device of a lane.
#[derive(Clone, Debug)]
pub struct LowerDevice {
    /// What people call it.
    pub name: String,
    /// Where the bytes go.
    pub device: Arc<dyn Device>,
}

impl StoreDevice {
    /// The bytes of all its devices.
    pub fn capacity(&self) -> u64 {
        self.device.size() + self.lower.as_ref().map_or(0, |lower| lower.device.size())
    }
}
