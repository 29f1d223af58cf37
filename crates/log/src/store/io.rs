//! Reads, writes and syncs of a store's device. Places that cannot be read are retired. A sync
//! fails if another sync has failed since its writes began.

use crate::address::SegmentNumber;
use crate::format::geometry::SUPERBLOCKS;
use crate::format::{BLOCK, Use};
use crate::store::Store;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use std::io;

impl Store {
    /// Writes to the device. All writes of data go through this function or
    /// [`Store::write_directly`].
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.io.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_at(offset, bytes)
    }

    /// Writes like [`Store::write`], but may wait for the device. Large aligned writes are not
    /// copied into the operating system's memory first.
    pub(crate) fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.io.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_directly(offset, bytes)
    }

    /// Reads a part of a place. Returns false if the part cannot be read although the device
    /// answers elsewhere. In that case, sets `bytes` to zero and retires the place.
    ///
    /// # Errors
    /// If the device does not answer.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        let first = self.device.read_at(offset, bytes);
        // Tries once more, because some errors do not last.
        let Err(error) = first.or_else(|_| self.device.read_at(offset, bytes)) else {
            return Ok(true);
        };
        self.answers(offset).then(|| bytes.fill(0)).ok_or(error)?;
        if let Some(number) = self.geometry.segment_at(offset) {
            self.retire(number);
        }
        Ok(false)
    }

    /// Like [`Store::read`], but sets only those blocks to zero that cannot be read. Returns false
    /// if there are such blocks.
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

    /// Returns true if the device that `offset` lies on can be read at all. Tries the copies of the
    /// superblock or, on the lower device, three blocks. One readable block suffices.
    fn answers(&self, offset: u64) -> bool {
        // Bypasses the page cache, which could answer for a dead device.
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

    /// Notes that a part of a place, or a copy of its meta, cannot be read. So the place is not
    /// used again.
    pub(crate) fn retire(&self, number: SegmentNumber) {
        lock(&self.io.bad).insert(number);
    }

    /// Returns the use to write into the meta of a place that holds no segment any more.
    pub(crate) fn unused(&self, number: SegmentNumber) -> Use {
        if self.is_bad(number) { Use::Retired } else { Use::Free }
    }

    /// Returns true if the place is [retired](Store::retire).
    pub(crate) fn is_bad(&self, number: SegmentNumber) -> bool {
        lock(&self.io.bad).contains(&number)
    }

    /// Returns the number of retired places.
    pub fn bad_places(&self) -> usize {
        lock(&self.io.bad).len()
    }

    /// Returns the number of failed syncs. A caller of [`Store::sync`] reads this number before it
    /// begins the writes to be synced.
    pub fn failed_syncs(&self) -> u64 {
        self.io.failed_syncs.load(Ordering::Acquire)
    }

    /// Syncs the device. `failed_syncs` is the number of [failed syncs](Store::failed_syncs) that
    /// the caller read before it began its writes.
    ///
    /// # Errors
    /// Those of the device. Also fails if another sync has failed since the writes began. That sync
    /// may have lost these writes, and the device reports a loss only once.
    pub fn sync(&self, failed_syncs: u64) -> io::Result<()> {
        // Syncs do not overlap, so a failed sync is counted before the next one can succeed.
        let _syncing = lock(&self.io.syncing);
        let synced = self.device.sync();
        if synced.is_err() {
            self.io.failed_syncs.fetch_add(1, Ordering::Release);
        } else if self.failed_syncs() != failed_syncs {
            return Err(io::Error::other("the device has lost writes in another sync"));
        }
        synced
    }

    /// Prepares the place of a segment, so that later writes to it are cheap to sync: see
    /// `Device::prepare`. A failure is ignored, because the segment's own writes will report it.
    pub(crate) fn prepare(&self, number: SegmentNumber) {
        let place = self.geometry.segment(number);
        if let Ok(written) = self.device.prepare(place, self.segment_size()) {
            self.io.written.fetch_add(written as u64, Ordering::Relaxed);
        }
    }
}
