//! The index image: a clean stop writes the index and the segment table into free segments of the
//! store. The next start loads them instead of reading the log. Later, while clients are served,
//! the cleaner reads back the segments that were in memory.
//!
//! An image is good for one start: the start removes it from the superblock before anything else is
//! written to the store.

use crate::error::StoreError;
use crate::lane::DurableLane;
use crate::lock::lock;
use crate::recovery::{Recovered, Recovery};
use larder_log::SegmentNumber;
use larder_log::recover::index_image::unusable;
use std::io::{self, Read, Write};

/// 1/`FRAMES_LEFT` of the frames are left to writers while segments are read back into memory.
const FRAMES_LEFT: usize = 16;

impl DurableLane<'_> {
    /// Writes the image. The caller ensures that everything is durable and that no thread writes or
    /// cleans. Returns the image's first place and its length in bytes; `None` if the store has no
    /// room for it.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn save_image(self) -> io::Result<Option<(SegmentNumber, u64)>> {
        let Some(mut image) = self.log.write_image() else { return Ok(None) };
        let written = self.index.save(&mut image, |image| {
            self.log.save_table(image)?;
            self.older.save(image)
        });
        match written.and_then(|()| image.finish()) {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads the index and the segment table from the image of the last stop. Returns `None` if
    /// there is no image that can be used. The caller must then build the lane again and recover it
    /// from the log.
    ///
    /// # Errors
    /// Those of the device. Also if the items need more memory than the lane has, or if the
    /// versions are used up.
    pub(crate) fn load_image(self, recovery: &Recovery) -> Result<Option<Recovered>, StoreError> {
        let Some(mut image) = self.log.read_image() else { return Ok(None) };
        let resident = match self.restore_image(&mut image) {
            Ok(resident) => resident,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.check_index(self.index.items() as usize)?;
        self.begin_life(self.log.store.superblock().seq_limit)?;
        self.warm_later(resident.into_iter());
        let mut report = recovery.report.clone();
        report.from_image = true;
        report.items = self.index.items();
        report.segments = self.log.segments_in_use();
        report.took = (self.state.store.common.clock.0)().saturating_sub(recovery.began);
        Ok(Some(report))
    }

    fn restore_image(self, image: &mut impl Read) -> io::Result<Vec<SegmentNumber>> {
        let mut resident = Vec::new();
        self.index.restore(image, |image| {
            resident = self.log.restore_table(image)?;
            self.older.restore(&self.log, image)
        })?;
        Ok(resident)
    }

    /// Reads one of the segments in `cold` into memory. Returns false if none is left or memory has
    /// no room for more.
    pub(crate) fn warm_one(self) -> bool {
        let mut cold = lock(&self.cold);
        let frames = self.budget.limit() as usize / self.log.segment_size();
        if self.log.available_frames() <= frames / FRAMES_LEFT + crate::cleaner::READY_FRAMES {
            cold.clear();
        }
        let Some(number) = cold.pop() else { return false };
        // An unreadable segment stays on the device only. Readers of its records get the error.
        let _ = self.log.warm(number);
        true
    }
}

impl crate::index::Index {
    /// Writes the number of stripes and then the tables. `between` writes other data between these
    /// two.
    pub(crate) fn save<W: Write>(
        &self,
        image: &mut W,
        between: impl FnOnce(&mut W) -> io::Result<()>,
    ) -> io::Result<()> {
        image.write_all(&(self.stripe_count() as u32).to_le_bytes())?;
        between(image)?;
        let mut bytes = Vec::new();
        for number in 0..self.stripe_count() {
            let (pages, items) = self.copy_table(number, &mut bytes);
            image.write_all(&pages.to_le_bytes())?;
            image.write_all(&items.to_le_bytes())?;
            image.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Reads what [`Self::save`] wrote into an empty index with the same number of stripes.
    /// `between` reads the data between the number of stripes and the tables.
    pub(crate) fn restore<R: Read>(
        &self,
        image: &mut R,
        between: impl FnOnce(&mut R) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut word = [0; 4];
        image.read_exact(&mut word)?;
        if u32::from_le_bytes(word) as usize != self.stripe_count() {
            return Err(unusable("memory was of another size"));
        }
        between(image)?;
        for number in 0..self.stripe_count() {
            image.read_exact(&mut word)?;
            let pages = u32::from_le_bytes(word) as usize;
            image.read_exact(&mut word)?;
            self.fill_table(number, pages, u32::from_le_bytes(word), image)?;
        }
        Ok(())
    }
}
