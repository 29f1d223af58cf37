//! Growing a store while it is used.
//!
//! A segment's number alone determines its place, so growing adds numbers behind the last one and
//! moves nothing. Growing has two steps. The first is durable before the second begins:
//!
//! 1. the device has its new size;
//! 2. both copies of the superblock say how many places there are.
//!
//! The new places may be used after both steps. A crash between the steps leaves a device that is
//! larger than its store. To the next start, this looks like a device that was enlarged while no
//! server ran. In the other order, a crash would leave a superblock with places that the device
//! lacks, and the next start would refuse the store.

use crate::address::SegmentNumber;
use crate::format::geometry::SUPERBLOCKS;
use crate::format::{Geometry, Superblock};
use crate::log::{DurableLog, bytes_per_segment, most_places};
use crate::rule::Rule;
use crate::segment::Segment;
use crate::store::{SegmentEntry, Store};
use crate::sync::atomic::AtomicU8;
use crate::sync::lock;
use std::fmt;
use std::io;

/// The reason why a store has not grown. After a failure of [`DurableLog::grow`], the log uses the
/// same places as before.
#[derive(Debug)]
#[non_exhaustive]
pub enum GrowError {
    /// There is no store. [`DurableLog::grow`] does not return this error.
    NoStore,
    /// The store is larger than the requested size.
    Smaller {
        /// The store's size, in bytes.
        size: u64,
    },
    /// The requested size has no room for another segment.
    TooLittle {
        /// The least size that has room, in bytes.
        least: u64,
    },
    /// The tables of a running store cannot grow that far.
    TooLarge {
        /// The largest size possible without a restart and with the present memory limit, in bytes.
        most: u64,
    },
    /// The store is closed.
    Closed,
    /// The device has failed, or has refused to grow.
    Device(io::Error),
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrowError::NoStore => f.write_str("there is no store"),
            GrowError::Smaller { size } => {
                write!(f, "it has {size} bytes, and a store does not shrink: ask for more")
            }
            GrowError::TooLittle { least } => {
                write!(f, "that is too little for another segment: ask for {least} bytes or more")
            }
            GrowError::TooLarge { most } => write!(
                f,
                "it can grow to {most} bytes while it runs, for its tables may take at most a quarter of memory: give \
                 it more memory, or restart with --store PATH:SIZE"
            ),
            GrowError::Closed => f.write_str("the store is closed"),
            GrowError::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GrowError {}

impl DurableLog<'_> {
    /// Grows the store while it is used. `bytes` is the new total size of its devices. Succeeds if
    /// the store already has that size. Waits for the device.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow(self, bytes: u64) -> Result<(), GrowError> {
        let mut unsure = lock(&self.store.growing);
        if *lock(&self.store.closed_to_growth) {
            return Err(GrowError::Closed);
        }
        undo_growth(self.store, &mut unsure).map_err(GrowError::Device)?;
        let now = self.store.superblock().geometry;
        let next = self.next_geometry(now, bytes)?;
        grow_device(self.store, bytes, &mut unsure).map_err(GrowError::Device)?;
        // `close_to_growth` may have been called while the device was growing. In that case the
        // device stays larger than its store.
        let closed = lock(&self.store.closed_to_growth);
        if *closed {
            return Err(GrowError::Closed);
        }
        // Writes both copies. Otherwise the older copy would describe the store without its new
        // places.
        for _ in SUPERBLOCKS {
            let change = |superblock: &mut Superblock| superblock.geometry = next;
            self.store.change_superblock_now(change).map_err(GrowError::Device)?;
        }
        self.use_places(next.segment_count());
        Ok(())
    }

    /// Refuses every growth from now on, including one that still waits for its device. Does not
    /// wait for that growth.
    pub fn close_to_growth(self) {
        *lock(&self.store.closed_to_growth) = true;
    }

    fn next_geometry(self, now: Geometry, bytes: u64) -> Result<Geometry, GrowError> {
        let size = self.store.device.size();
        let next = Geometry::fit(bytes, now.segment_size()).unwrap_or(now);
        if bytes < size || next.segment_count() < now.segment_count() {
            return Err(GrowError::Smaller { size });
        }
        let with = |count| Geometry::new(now.segment_size(), count).unwrap_or(now);
        if next == now && bytes > size {
            return Err(GrowError::TooLittle {
                least: with(now.segment_count() + 1).total_bytes(),
            });
        }
        let limit = most_places(self.budget.limit()).min(self.store.most_segments() as u32);
        if next != now && next.segment_count() > limit {
            let most = with(limit.max(now.segment_count())).total_bytes().max(size);
            return Err(GrowError::TooLarge { most });
        }
        Ok(next)
    }

    /// Makes the places up to `last` available.
    fn use_places(self, last: SegmentNumber) {
        let (first, len) = (self.numbers().end, last as usize + 1);
        let Some(more) = (last + 1).checked_sub(first) else { return };
        // The next generation of a new place must be at least the floor, as for a place that was
        // free at the last start.
        let generation = self.store.superblock().generation_floor.saturating_sub(1);
        self.budget.charge(u64::from(more) * bytes_per_segment(true) as u64);
        let segment = |_| {
            let segment = Segment::default();
            segment.set_generation(generation);
            segment
        };
        // The memory of the tables is prepared before the lock is taken, because writers wait for
        // this lock.
        self.store.entries.prepare(len, |_| SegmentEntry::default());
        self.listed.prepare(len, |_| AtomicU8::new(0));
        self.segments.prepare(len, segment);
        // Each claim leaves some free places to more urgent claims. How many it leaves depends on
        // the number of all places. So the new places are added to the store and to the free list
        // under one lock.
        let mut free = lock(&self.free_places);
        self.store.entries.grow(len, |_| SegmentEntry::default());
        self.listed.grow(len, |_| AtomicU8::new(0));
        self.segments.grow(len, segment);
        free.found_free((first..=last).rev());
    }
}

/// Enlarges the device and makes its new size durable.
fn grow_device(store: &Store, bytes: u64, unsure: &mut Option<u64>) -> io::Result<()> {
    let failed_syncs = store.failed_syncs();
    *unsure = Some(store.device.size());
    let grown =
        store.device.grow(bytes).and_then(|()| match Rule::SizeBeforeSuperblock.is_broken() {
            true => Ok(()),
            false => store.sync(failed_syncs),
        });
    match grown {
        Ok(()) => *unsure = None,
        // If setting the size back fails, too, the next growth begins by setting it back.
        Err(_) => drop(undo_growth(store, unsure)),
    }
    grown
}

/// Undoes a growth of the device that may not be durable: sets the device back to its earlier size.
/// If the device kept the larger size, the operating system would report that size, and the next
/// growth would seem to be done already.
fn undo_growth(store: &Store, unsure: &mut Option<u64>) -> io::Result<()> {
    if let Some(size) = *unsure {
        store.device.shrink(size)?;
        *unsure = None;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::log::Config;
    use crate::{Budget, Epochs, Log};
    use larder_disk::SimDevice;
    use std::sync::Arc;

    fn log(size: u64) -> Log {
        let geometry = Geometry::fit(size, 64 << 10).unwrap();
        let superblock = Superblock::new(1, 2, 3, geometry, 4);
        let store = Store::new(Arc::new(SimDevice::new(size, 1)), superblock);
        let (segment_size, max_frame_bytes) = (64 << 10, 8 << 20);
        let config = Config { segment_size, max_frame_bytes, keeps_all: false };
        let budget = Arc::new(Budget::new(max_frame_bytes));
        Log::new(config, Some(store), budget, Arc::new(Epochs::default())).unwrap()
    }

    #[test]
    fn a_store_that_has_grown_is_charged_as_one_that_starts_so_large() {
        let grown = log(4 << 20);
        let before = grown.budget.used();
        grown.durable().unwrap().grow(16 << 20).unwrap();
        assert!(grown.budget.used() > before);
        assert_eq!(grown.budget.used(), log(16 << 20).budget.used());
    }
}
