//! Reads, writes and syncs of a store's device, and what becomes of places that cannot be read.

use crate::address::SegmentNumber;
use crate::format::geometry::SUPERBLOCKS;
use crate::format::{BLOCK, Use};
use crate::store::Store;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use std::io;

impl Store {
    /// Writes to the device. All writes go through here, or [`Store::write_directly`].
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.io.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_at(offset, bytes)
    }

    /// Writes many bytes, and may wait for the device.
    pub(crate) fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.io.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_directly(offset, bytes)
    }

    /// Reads a part of a place; false if that cannot be read although the device answers elsewhere: then the
    /// bytes are zero, and the place is not used again.
    ///
    /// # Errors
    /// The device does not answer.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        let first = self.device.read_at(offset, bytes);
        // Once more: some errors do not last.
        let Err(error) = first.or_else(|_| self.device.read_at(offset, bytes)) else {
            return Ok(true);
        };
        self.answers(offset).then(|| bytes.fill(0)).ok_or(error)?;
        self.note_bad(offset);
        Ok(false)
    }

    /// As [`Store::read`], of blocks: those that can be read are, and the others are zero. False if there
    /// are such.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) fn read_blocks(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        if bytes.len() <= BLOCK {
            return self.read(offset, bytes);
        }
        let Err(error) = self.device.read_at(offset, bytes) else { return Ok(true) };
        if !self.answers(offset) {
            return Err(error);
        }
        let half = (bytes.len() / 2).next_multiple_of(BLOCK);
        let (front, back) = bytes.split_at_mut(half);
        let front = self.read_blocks(offset, front)?;
        Ok(self.read_blocks(offset + half as u64, back)? & front)
    }

    /// Whether the device that `offset` lies on can be read at all: one copy of the superblock at least, or of
    /// the lower device a block of three.
    fn answers(&self, offset: u64) -> bool {
        // Not what the page cache holds of it.
        let can_read = |at| self.device.read_stored(at, &mut [0; BLOCK]).is_ok();
        match self.lower_from {
            Some(lower) if offset >= lower => {
                let last = self.device.size() - BLOCK as u64;
                let middle = lower + (last - lower) / 2 / BLOCK as u64 * BLOCK as u64;
                [lower, middle, last].into_iter().any(can_read)
            }
            _ => SUPERBLOCKS.into_iter().any(can_read),
        }
    }

    fn note_bad(&self, offset: u64) {
        if let Some(number) = self.geometry.segment_at(offset) {
            self.retire(number);
        }
    }

    /// A part of the place cannot be read: it is not used again.
    pub(crate) fn retire(&self, number: SegmentNumber) {
        lock(&self.io.bad).insert(number);
    }

    /// How the meta of a place marks that its last use is over.
    pub(crate) fn unused(&self, number: SegmentNumber) -> Use {
        if self.is_bad(number) { Use::Retired } else { Use::Free }
    }

    /// Whether a part of the place cannot be read.
    pub(crate) fn is_bad(&self, number: SegmentNumber) -> bool {
        lock(&self.io.bad).contains(&number)
    }

    /// Places of which a part could not be read.
    pub fn bad_places(&self) -> usize {
        lock(&self.io.bad).len()
    }

    /// How many syncs have failed: what [`Store::sync`] has to know from before the writes that it is for.
    pub fn failed_syncs(&self) -> u64 {
        self.io.failed_syncs.load(Ordering::Acquire)
    }

    /// Syncs the device, for writes that began when so many syncs had [failed](Store::failed_syncs).
    ///
    /// # Errors
    /// Those of the device; also if another sync has failed since, which may have lost these writes: the device
    /// tells of a loss only once.
    pub fn sync(&self, failed_syncs: u64) -> io::Result<()> {
        // One after the other: one that failed is counted before the next can succeed.
        let _syncing = lock(&self.io.syncing);
        let synced = self.device.sync();
        if synced.is_err() {
            self.io.failed_syncs.fetch_add(1, Ordering::Release);
        } else if self.failed_syncs() != failed_syncs {
            return Err(io::Error::other("the device has lost writes in another sync"));
        }
        synced
    }

    /// Has the device prepared for a segment. If it cannot, the segment's own writes will tell.
    pub(crate) fn prepare(&self, number: SegmentNumber) {
        let place = self.geometry.segment(number);
        if let Ok(written) = self.device.prepare(place, self.segment_size()) {
            self.io.written.fetch_add(written as u64, Ordering::Relaxed);
        }
    }
}
