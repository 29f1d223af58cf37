//! Opens the store on a device, or creates one there.

use super::report::Recovered;
use super::tiers::join;
use crate::error::StoreError;
use crate::lane::options::LaneStore;
use larder_log::Store;
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::{Geometry, NANOS, Superblock, superblock};
use std::time::Duration;

/// An open store, and the state that its recovery begins with.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) recovery: Recovery,
}

/// The state that recovery begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) report: Recovered,
    pub(crate) began: Duration,
}

/// The smallest number of segments of a store, which includes the two open segments and the
/// reserved ones.
const MIN_SEGMENTS: u32 = 16;

/// Opens the store whose superblock was found on a device, or creates one there.
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
    // The table of lanes is set before anything is written. So even the first superblock of a new
    // lane names the set of devices that the lane belongs to.
    let superblock = Superblock { lanes: options.lanes, ..superblock };
    let (device, superblock) = join(&options.device, superblock)?;
    let store = Store::new(device, superblock);
    Ok(Opened { store, recovery: Recovery { report, began } })
}

/// Creates the superblock of a new store.
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
    let created = created(options);
    let superblock = Superblock::new(store_id, hash_seed, checksum_seed, geometry, created);
    let first = Superblock { counter: superblock.counter + 1, ..superblock };
    options.device.device.write_at(SUPERBLOCKS[first.copy()], &superblock::mark())?;
    options.device.device.sync()?;
    Ok(superblock)
}

/// Returns the Unix second at which a store is created.
fn created(options: &LaneStore) -> u64 {
    options.common.opened.wall / NANOS
}

/// Returns the superblock of a store whose contents are discarded. Its identity stays, so that the
/// store's other devices accept it. Its new checksum seed makes all old data on the device invalid.
fn discarded(options: &LaneStore, superblock: Superblock) -> Superblock {
    let Superblock { counter, compatible, store_id, hash_seed, geometry, .. } = superblock;
    let [.., checksum_seed] = options.device.seeds;
    Superblock {
        counter,
        compatible,
        fast_segments: superblock.fast_segments,
        renewed: true,
        ..Superblock::new(store_id, hash_seed, checksum_seed, geometry, created(options))
    }
}

/// Returns the superblock with its geometry grown to a device of `bytes` bytes.
pub(super) fn grown(superblock: Superblock, bytes: u64) -> Result<Superblock, StoreError> {
    let geometry = superblock.geometry;
    if bytes < geometry.total_bytes() {
        return Err(StoreError::Shrunk { needed: geometry.total_bytes() });
    }
    let fit = Geometry::fit(bytes, geometry.segment_size()).unwrap_or(geometry);
    let more = fit.segment_count() > geometry.segment_count();
    Ok(Superblock { geometry: if more { fit } else { geometry }, ..superblock })
}
