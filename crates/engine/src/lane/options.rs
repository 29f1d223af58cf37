//! The options that a lane is opened with.

use crate::durability::{StoreDevice, StoreOptions, TierTimes};
use crate::options::WhenFull;
use larder_log::format::{Lanes, Superblock};

/// The options that a lane is opened with.
#[derive(Clone, Debug)]
pub(crate) struct LaneOptions {
    /// The lane's position among the engine's lanes.
    pub(crate) position: u8,
    /// The lane's share of the engine's memory, in bytes.
    pub(crate) memory: u64,
    /// The memory of all lanes, in bytes. It determines the number of stripes, which is the same in
    /// all lanes. A lane uses only the stripes of its own keys.
    pub(crate) memory_of_all: u64,
    /// The largest share of the memory that the lane can get, in bytes, unless the engine's memory
    /// limit is raised. With a store, this is the memory of all lanes, because a lane whose
    /// partitions increase gets memory of other lanes. Without a store no partition moves, so this
    /// is the lane's own share.
    pub(crate) most_memory: u64,
    pub(crate) max_item_size: u64,
    pub(crate) when_full: WhenFull,
    /// The seed of the key hash, the same in all lanes.
    pub(crate) hash_seed: u64,
}

/// The device of a lane, and its options.
#[derive(Clone, Debug)]
pub(crate) struct LaneStore {
    pub(crate) device: StoreDevice,
    /// The durations of the calls of the device and of its lower device.
    pub(crate) times: TierTimes,
    /// The options that all lanes share.
    pub(crate) common: StoreOptions,
    /// The superblock that was found on the device; `None` if the device has no store yet.
    pub(crate) found: Option<Superblock>,
    /// The engine's time at this start, in nanoseconds since the Unix epoch: see
    /// [`of_store`](larder_log::format::MachineTime::of_store).
    pub(crate) opened_at: u64,
    /// The segment size of a new store, in bytes. Not used if the device has a store.
    pub(crate) segment_size: usize,
    /// The table of lanes for the lane's superblock, with the owners that the partitions had before
    /// this start.
    pub(crate) lanes: Lanes,
    /// True if recovery must read the log even if there is an index image.
    pub(crate) read_all: bool,
    /// Number of threads that fill the index at a start. It also limits the number of threads that
    /// read the log.
    pub(crate) threads: usize,
}
