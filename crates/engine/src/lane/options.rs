//! The options that a lane is opened with.

use crate::durability::{StoreDevice, StoreOptions};
use crate::options::Options;
use larder_log::format::{Lanes, Superblock};

/// The options that a lane is opened with.
#[derive(Clone, Debug)]
pub(crate) struct LaneOptions {
    /// The lane's position among the engine's lanes.
    pub(crate) position: u8,
    /// The lane's share of the engine's memory, in bytes.
    pub(crate) memory: u64,
    /// The memory of all lanes, in bytes. All lanes have the same number of stripes, and each uses
    /// those of its keys.
    pub(crate) memory_of_all: u64,
    /// The engine's options, with the largest memory that the lane may have.
    pub(crate) engine: Options,
    /// The seed of the key hash, the same in all lanes.
    pub(crate) hash_seed: u64,
}

/// The device of a lane, and its options.
#[derive(Clone, Debug)]
pub(crate) struct LaneStore {
    pub(crate) device: StoreDevice,
    /// The options that all lanes share.
    pub(crate) common: StoreOptions,
    /// The superblock on the device, if it already has a store.
    pub(crate) found: Option<Superblock>,
    /// The time at which the store goes on, in nanoseconds since the Unix epoch.
    pub(crate) opened_at: u64,
    /// Size of a segment in bytes, if there is no store yet.
    pub(crate) segment_size: usize,
    /// The table of lanes for its superblock, with the partitions that the lane has owned so far.
    pub(crate) lanes: Lanes,
    /// True if the log is read in spite of an index image, because records that the image does not
    /// show matter.
    pub(crate) read_all: bool,
    /// Number of threads that read the log at a start.
    pub(crate) threads: usize,
}
