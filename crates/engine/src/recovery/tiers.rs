//! A lane's devices become one: the fast one, which its superblock is on, and the lower one, if it has one.
//!
//! A lower device joins in three steps, each durable before the next: there is a superblock, the lower
//! device has a label with that store's id, the superblock says that segments lie there. The last one is
//! the first of the store's life, so nothing is written to the lower device before. After a crash in
//! between, the next start begins again.

use super::open::grown;
use super::report::StoreError;
use crate::durability::{LowerDevice, StoreDevice};
use larder_disk::{Device, Joined};
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::tier::{LABEL_AREA, LABEL_BYTES};
use larder_log::format::{BLOCK, Geometry, Label, LabelError, Superblock};
use std::io;
use std::sync::Arc;

/// All the bytes of the lane that `superblock` describes, and what that says with them.
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
    // What a killed server wrote and did not sync is not durable merely because it can be read.
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

/// The lower device that the superblock speaks of.
fn known(lower: &LowerDevice, superblock: Superblock) -> Result<Superblock, StoreError> {
    let fast = superblock.fast_part().ok_or_else(|| wrong(lower, LabelError::Damaged))?;
    let label = Label::new(superblock.store_id, fast, superblock.lanes.here);
    label.check(&head(lower)?).map_err(|error| wrong(lower, error))?;
    Ok(superblock)
}

/// A lower device that the store gets now: its segments go on there.
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
        // Nobody could use the lower device of a store that never came to be.
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
