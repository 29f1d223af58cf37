//! Joins a lane's devices to one: the fast device, which has the superblock, and the lower device,
//! if there is one.
//!
//! A start adds a new lower device in three steps, each durable before the next. First, it writes a
//! superblock if there is none yet. Second, it writes a label with the store's id to the lower
//! device. Third, it writes a superblock which says that segments are on the lower device. This is
//! the store's next superblock, which is written before any data. So before the third step the
//! lower device has no data. After a crash between two steps, the next start repeats them all.

use super::open::grown;
use crate::durability::{LowerDevice, StoreDevice};
use crate::error::StoreError;
use larder_disk::{Device, Joined};
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::tier::{LABEL_AREA, LABEL_BYTES};
use larder_log::format::{BLOCK, Geometry, Label, LabelError, Superblock};
use std::io;
use std::sync::Arc;

/// Returns one device with all bytes of the lane that `superblock` describes, and the updated
/// superblock.
pub(super) fn join(
    given: &StoreDevice,
    superblock: Superblock,
) -> Result<(Arc<dyn Device>, Superblock), StoreError> {
    let fast = &given.device;
    let Some(lower) = &given.lower else {
        return match superblock.has_lower() {
            true => Err(StoreError::LowerMissing),
            false => Ok((Arc::clone(fast), grown(superblock, fast.size())?)),
        };
    };
    // A killed server may have written data without a sync. Such data can be read but is not
    // durable before this sync.
    lower.device.sync()?;
    let superblock = match superblock.has_lower() {
        true => known(lower, superblock)?,
        false => joining(lower, fast, superblock)?,
    };
    let border = superblock.fast_part().map_or(0, |part| part.total_bytes());
    if fast.size() < border {
        return Err(StoreError::Shrunk { needed: border });
    }
    let joined = Joined::new(Arc::clone(fast), border, Arc::clone(&lower.device), LABEL_AREA);
    let superblock = grown(superblock, joined.size()).map_err(|error| match error {
        StoreError::Shrunk { needed } => {
            named(lower, StoreError::Shrunk { needed: needed - border + LABEL_AREA })
        }
        error => error,
    })?;
    Ok((Arc::new(joined), superblock))
}

/// Checks the lower device that the superblock names.
fn known(lower: &LowerDevice, superblock: Superblock) -> Result<Superblock, StoreError> {
    let fast = superblock.fast_part().ok_or_else(|| wrong(lower, LabelError::Damaged))?;
    let label = Label::new(superblock.store_id, fast, superblock.lanes.here);
    label.check(&head(lower)?).map_err(|error| wrong(lower, error))?;
    Ok(superblock)
}

/// Adds a new lower device to the store: its segment numbers follow those of the fast device.
fn joining(
    lower: &LowerDevice,
    fast: &Arc<dyn Device>,
    superblock: Superblock,
) -> Result<Superblock, StoreError> {
    let mut superblock = grown(superblock, fast.size())?;
    let geometry = superblock.geometry;
    let label = Label::new(superblock.store_id, geometry, superblock.lanes.here);
    label.may_replace(&head(lower)?).map_err(|error| wrong(lower, error))?;
    let one_more = Geometry::new(geometry.segment_size(), geometry.segment_count() + 1);
    let more = one_more.map_or(u64::MAX, |more| more.total_bytes() - geometry.total_bytes());
    if lower.device.size() - LABEL_AREA < more {
        return Err(too_small(lower, LABEL_AREA.saturating_add(more)));
    }
    if superblock.counter == 0 {
        // A superblock must exist first. Otherwise a crash could leave a label of a store that was
        // never created, and no store could use the device.
        superblock.counter = 1;
        let mut block = [0; BLOCK];
        superblock.encode(&mut block);
        fast.write_at(SUPERBLOCKS[superblock.copy()], &block)?;
        fast.sync()?;
    }
    lower.device.write_at(0, &label.encode())?;
    lower.device.sync()?;
    superblock.fast_segments = geometry.segment_count();
    Ok(superblock)
}

fn head(lower: &LowerDevice) -> Result<[u8; LABEL_BYTES], StoreError> {
    if lower.device.size() < LABEL_AREA {
        return Err(too_small(lower, LABEL_AREA));
    }
    let mut head = [0; LABEL_BYTES];
    let read: io::Result<()> = lower.device.read_at(0, &mut head);
    read.map_err(|error| named(lower, error.into()))?;
    Ok(head)
}

fn too_small(lower: &LowerDevice, minimum: u64) -> StoreError {
    named(lower, StoreError::TooSmall { minimum })
}

fn wrong(lower: &LowerDevice, error: LabelError) -> StoreError {
    StoreError::Lower { name: lower.name.clone(), error }
}

fn named(lower: &LowerDevice, error: StoreError) -> StoreError {
    StoreError::Lane { name: lower.name.clone(), error: Box::new(error) }
}
