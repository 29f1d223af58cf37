//! From a device to a store: its superblock is read, or one is made.

use super::report::{Recovered, StoreError};
use super::tiers::join;
use crate::lane::LaneStore;
use larder_log::Store;
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::superblock;
use larder_log::format::{Geometry, Superblock};
use std::time::Duration;

/// A store that is open, and what that says about its recovery.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) recovery: Recovery,
}

/// What recovery begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) report: Recovered,
    pub(crate) began: Duration,
}

/// The fewest segments that a store works with: both open ones, and what is reserved.
const MIN_SEGMENTS: u32 = 16;

/// Opens the store whose superblock was found on a device, or makes one there.
pub(crate) fn open_store(options: &LaneStore, hash_seed: u64) -> Result<Opened, StoreError> {
    let began = (options.common.clock.0)();
    let mut report = Recovered::default();
    let superblock = match options.found {
        Some(superblock) if superblock.volatile => {
            report.discarded = true;
            discarded(options, superblock)
        }
        Some(superblock) => {
            report.clean = superblock.clean;
            superblock
        }
        None => {
            report.created = true;
            create(options, options.segment_size, hash_seed)?
        }
    };
    // Before anything is written: a lane that is new is known as one of the set from its first superblock on.
    let superblock = Superblock { lanes: options.lanes, ..superblock };
    let (device, superblock) = join(&options.device, superblock)?;
    let store = Store::new(device, superblock);
    Ok(Opened { store, recovery: Recovery { report, began } })
}

/// The superblock of a new store.
fn create(
    options: &LaneStore,
    segment_size: usize,
    hash_seed: u64,
) -> Result<Superblock, StoreError> {
    let [id_high, id_low, checksum_seed] = options.device.seeds;
    let minimum = |size: usize| {
        Geometry::new(size as u32, MIN_SEGMENTS).map_or(u64::MAX, |least| least.total_bytes())
    };
    let bytes = options.device.device.size();
    let mut size = segment_size;
    while bytes < minimum(size) && size > 64 << 10 {
        size /= 2;
    }
    let too_small = StoreError::TooSmall { minimum: minimum(64 << 10) };
    let geometry = match Geometry::fit(bytes, size as u32) {
        Some(geometry) if geometry.segment_count() >= MIN_SEGMENTS => geometry,
        _ => return Err(too_small),
    };
    let store_id = u128::from(id_high) << 64 | u128::from(id_low);
    let created = options.common.created;
    let superblock = Superblock::new(store_id, hash_seed, checksum_seed, geometry, created);
    let first = Superblock { counter: superblock.counter + 1, ..superblock };
    options.device.device.write_at(SUPERBLOCKS[first.copy()], &superblock::mark())?;
    options.device.device.sync()?;
    Ok(superblock)
}

/// The superblock of a store whose contents are discarded. It is the same store to its other devices, and
/// with another secret nothing of what lies there passes for its own.
fn discarded(options: &LaneStore, superblock: Superblock) -> Superblock {
    let Superblock { counter, compatible, store_id, hash_seed, geometry, .. } = superblock;
    let [.., checksum_seed] = options.device.seeds;
    Superblock {
        counter,
        compatible,
        fast_segments: superblock.fast_segments,
        renewed: true,
        ..Superblock::new(store_id, hash_seed, checksum_seed, geometry, options.common.created)
    }
}

/// The superblock of a store which has so many bytes now.
pub(super) fn grown(superblock: Superblock, bytes: u64) -> Result<Superblock, StoreError> {
    let geometry = superblock.geometry;
    if bytes < geometry.total_bytes() {
        return Err(StoreError::Shrunk { needed: geometry.total_bytes() });
    }
    let fit = Geometry::fit(bytes, geometry.segment_size()).unwrap_or(geometry);
    let more = fit.segment_count() > geometry.segment_count();
    Ok(Superblock { geometry: if more { fit } else { geometry }, ..superblock })
}
