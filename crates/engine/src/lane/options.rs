//! What a lane is opened with.

use crate::durability::{StoreDevice, StoreOptions};
use crate::options::Options;
use larder_log::format::{Lanes, Superblock};

/// What a lane is opened with.
#[derive(Clone, Debug)]
pub(crate) struct LaneOptions {
    /// Its place among the engine's lanes.
    pub(crate) position: u8,
    /// Its share of the engine's memory, in bytes.
    pub(crate) memory: u64,
    /// The memory of all lanes, in bytes: all have as many stripes, and each uses those of its keys.
    pub(crate) memory_of_all: u64,
    /// What the engine was opened with, with the most memory that the lane may have.
    pub(crate) engine: Options,
    /// The seed of the key hash, the same in all lanes.
    pub(crate) hash_seed: u64,
}

/// The device of a lane, and what it is used for.
#[derive(Clone, Debug)]
pub(crate) struct LaneStore {
    pub(crate) device: StoreDevice,
    /// What all lanes have in common.
    pub(crate) common: StoreOptions,
    /// The superblock on it, if it has a store already.
    pub(crate) found: Option<Superblock>,
    /// Bytes of a segment, if there is no store yet.
    pub(crate) segment_size: usize,
    /// What its superblock is to say, and which partitions it has owned so far.
    pub(crate) lanes: Lanes,
    /// Its log is read although there is an index image: what the image does not show counts.
    pub(crate) read_all: bool,
    /// Threads that a start reads it in.
    pub(crate) threads: usize,
}
