//! Two devices as one: the first bytes lie on one device, the rest on the other.
//!
//! The joined device keeps the promises of [`Device`]. A sync reaches only the parts that may have
//! un-synced writes. It skips a part if a successful sync of that part *began* after the last write
//! to the part had ended. A part whose state is unknown counts as written to. The state is unknown
//! if the part was just opened, because a killed process may have written there, or if its last
//! sync failed.

use crate::device::check_range;
use crate::{Device, ReadBuffer, ReadQueue};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two devices that act as one.
#[derive(Debug)]
pub struct Joined {
    parts: [Part; 2],
    /// Offset at which the second part begins.
    border: u64,
}

/// A device, and the range of it that is used.
#[derive(Debug)]
struct Part {
    device: Arc<dyn Device>,
    /// Offset on the device at which the range begins.
    start: u64,
    /// The number of writes and other changes of the part that have ended. A failed sync counts as
    /// a change, because it may have lost writes.
    changes: AtomicU64,
    /// The number of `changes` that a successful sync has covered.
    covered: AtomicU64,
}

impl Part {
    fn new(device: Arc<dyn Device>, start: u64) -> Self {
        Part { device, start, changes: AtomicU64::new(1), covered: AtomicU64::new(0) }
    }

    fn write(&self, offset: u64, bytes: &[u8], directly: bool) -> io::Result<()> {
        let written = match directly {
            true => self.device.write_directly(offset, bytes),
            false => self.device.write_at(offset, bytes),
        };
        // The write is counted before this function returns, so a sync that the caller then begins
        // is not skipped. A failed write is counted too, because it may have written a part of its
        // bytes.
        self.changes.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        let grown = self.device.grow(size);
        self.changes.fetch_add(1, Ordering::AcqRel);
        grown
    }

    fn shrink(&self, size: u64) -> io::Result<()> {
        let shrunk = self.device.shrink(size);
        self.changes.fetch_add(1, Ordering::AcqRel);
        shrunk
    }

    fn prepare(&self, offset: u64, length: usize) -> io::Result<usize> {
        let written = self.device.prepare(offset, length);
        self.changes.fetch_add(1, Ordering::AcqRel);
        written
    }

    fn sync(&self) -> io::Result<()> {
        // The changes counted here have ended, so the device's sync covers them. The sync may also
        // cover later changes, but that is not certain.
        let changes = self.changes.load(Ordering::Acquire);
        if self.covered.load(Ordering::Acquire) >= changes {
            return Ok(());
        }
        match self.device.sync() {
            Ok(()) => {
                self.covered.fetch_max(changes, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                self.changes.fetch_add(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }
}

/// The piece of a range that lies on one part.
#[derive(Debug)]
struct Piece {
    part: usize,
    /// Offset on the part's device at which the piece begins.
    offset: u64,
    /// The piece's bytes, counted from the beginning of the range.
    bytes: Range<usize>,
}

impl Joined {
    /// Joins the first `border` bytes of `first` and all bytes of `second` from `start` on.
    ///
    /// # Panics
    /// If `first` is smaller than `border`, or `second` smaller than `start`.
    pub fn new(first: Arc<dyn Device>, border: u64, second: Arc<dyn Device>, start: u64) -> Joined {
        assert!(border <= first.size() && start <= second.size(), "parts are inside of devices");
        Joined { parts: [Part::new(first, 0), Part::new(second, start)], border }
    }

    /// Returns the size that the second part's device has when the joined device has `size` bytes.
    fn second_size(&self, size: u64) -> io::Result<u64> {
        let behind = size.checked_sub(self.border);
        let size = behind.and_then(|behind| behind.checked_add(self.parts[1].start));
        size.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Splits a range into its pieces on one or both devices.
    fn pieces(&self, offset: u64, length: usize) -> io::Result<impl Iterator<Item = Piece>> {
        check_range(self.size(), offset, length)?;
        let first = self.border.saturating_sub(offset).min(length as u64) as usize;
        let behind = self.parts[1].start + (offset + first as u64).saturating_sub(self.border);
        let pieces = [
            Piece { part: 0, offset, bytes: 0..first },
            Piece { part: 1, offset: behind, bytes: first..length },
        ];
        Ok(pieces.into_iter().filter(|piece| !piece.bytes.is_empty()))
    }

    fn write(&self, offset: u64, bytes: &[u8], directly: bool) -> io::Result<()> {
        let mut pieces = self.pieces(offset, bytes.len())?;
        pieces.try_for_each(|piece| {
            self.parts[piece.part].write(piece.offset, &bytes[piece.bytes], directly)
        })
    }
}

impl Device for Joined {
    fn size(&self) -> u64 {
        self.border + self.parts[1].device.size() - self.parts[1].start
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut pieces = self.pieces(offset, buffer.len())?;
        pieces.try_for_each(|Piece { part, offset, bytes }| {
            self.parts[part].device.read_at(offset, &mut buffer[bytes])
        })
    }

    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut pieces = self.pieces(offset, buffer.len())?;
        pieces.try_for_each(|Piece { part, offset, bytes }| {
            self.parts[part].device.read_stored(offset, &mut buffer[bytes])
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes, false)
    }

    fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes, true)
    }

    fn sync(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(Part::sync)
    }

    fn prepare(&self, offset: u64, length: usize) -> io::Result<usize> {
        let mut pieces = self.pieces(offset, length)?;
        pieces.try_fold(0, |written, piece| {
            Ok(written + self.parts[piece.part].prepare(piece.offset, piece.bytes.len())?)
        })
    }

    /// Grows the second part.
    fn grow(&self, size: u64) -> io::Result<()> {
        self.parts[1].grow(self.second_size(size)?)
    }

    /// Shrinks the second part.
    fn shrink(&self, size: u64) -> io::Result<()> {
        self.parts[1].shrink(self.second_size(size)?)
    }

    /// Creates a queue that refuses reads across the border between the two devices.
    fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let [first, second] = &self.parts;
        let queues = [first.device.read_queue(event)?, second.device.read_queue(event)?];
        let (border, start) = (self.border, second.start);
        Ok(Box::new(JoinedReads { queues, border, start }))
    }
}

/// The read queues of both parts.
#[derive(Debug)]
struct JoinedReads {
    queues: [Box<dyn ReadQueue>; 2],
    border: u64,
    /// Offset on the second part's device at which this part begins.
    start: u64,
}

impl ReadQueue for JoinedReads {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        // Whether the read ends beyond the second device is not checked here: its queue checks it.
        match offset.checked_sub(self.border) {
            Some(behind) => self.queues[1].push(token, self.start.saturating_add(behind), len),
            None if offset + len as u64 <= self.border => self.queues[0].push(token, offset, len),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {offset} lie on two devices"),
            )),
        }
    }

    fn submit(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.submit());
    }

    fn has_ended(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.has_ended())
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        self.queues.iter_mut().for_each(|queue| queue.ended(each));
    }
}

#[cfg(test)]
mod tests;
