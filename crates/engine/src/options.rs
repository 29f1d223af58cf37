//! The options that an engine is opened with.

use crate::durability::StoreOptions;

/// What happens to a write when memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The least valuable items are evicted.
    #[default]
    Evict,
    /// The write is refused.
    Refuse,
}

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// RAM for data, index and connection buffers together, in bytes.
    pub memory: u64,
    /// The largest size of an item (header, key and value together), in bytes.
    pub max_item_size: u64,
    /// What happens to a write when memory is full.
    pub when_full: WhenFull,
    /// Seed of the key hash; random in a server, fixed in a simulation.
    pub hash_seed: u64,
    /// The number of lanes, from 1 to [`MAX_LANES`](crate::MAX_LANES), if there is no store. Each
    /// lane has a share of the keys and of the memory, and its own cleaner. With a store, there is
    /// one lane for each device.
    pub lanes: usize,
    /// The store that keeps items beyond memory and across restarts; `None` for memory only. An
    /// existing store keeps the hash seed that it was created with, and `hash_seed` is ignored.
    pub store: Option<StoreOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory: 64 << 20,
            max_item_size: 1 << 20,
            when_full: WhenFull::Evict,
            hash_seed: 0,
            lanes: 1,
            store: None,
        }
    }
}
