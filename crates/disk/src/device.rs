//! The interface between the store and the device that keeps its bytes.
//!
//! The trait promises deliberately little, because a disk promises no more: a range of bytes, and a
//! call that makes earlier writes survive a power loss.

use crate::ReadQueue;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes that outlive the process. Their number is fixed unless the device [grows](Device::grow).
/// All methods block the calling thread, and several threads may call them at once. Only reads
/// through a [read queue](Device::read_queue) do not block.
///
/// The promises:
///
/// - A read returns, for each byte, what the last write of any thread left there, if that write had
///   returned before the read began. A read may see any part of a write that overlaps it in time.
/// - Once [`sync`](Device::sync) has returned `Ok`, every write that had *returned* when `sync` was
///   called is durable.
/// - Until then a power loss may lose any part of a write and keep the rest, in pieces of a sector
///   or less. It may lose an earlier write and keep a later one. The end of the process (`kill -9`)
///   loses no write, but makes none durable. A restarted process may read the write, but a power
///   loss may still take it until a sync by that process covers it.
/// - A failed write may have written any part of its bytes.
/// - After a failed sync, every write that it would have covered may be lost, now or later, **even
///   if a later sync succeeds**: the operating system drops pages that it could not write. The only
///   remedy is to write the bytes again, elsewhere, and sync that.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the number of bytes.
    fn size(&self) -> u64;

    /// Reads into `buffer` from `offset`.
    ///
    /// # Errors
    /// The device could not be read (the contents of `buffer` are then unspecified), or the range
    /// does not lie inside the device ([`io::ErrorKind::InvalidInput`]).
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Reads like [`read_at`](Device::read_at), but from the device itself and not from the
    /// operating system's cache. Offset and length must be multiples of 4096. Where the cache
    /// cannot be bypassed, as in a file system in memory, this is the same as `read_at`.
    ///
    /// # Errors
    /// As [`read_at`](Device::read_at).
    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buffer)
    }

    /// Writes all of `bytes` at `offset`; they are not durable before a [`sync`](Device::sync).
    ///
    /// # Errors
    /// The device could not be written, or is full: any part may have been written. The range does
    /// not lie inside the device ([`io::ErrorKind::InvalidInput`]): nothing was written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes like [`write_at`](Device::write_at), for a caller that can wait for the device: large
    /// aligned writes are not copied into the operating system's memory first.
    ///
    /// # Errors
    /// As [`write_at`](Device::write_at).
    fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }

    /// Makes durable everything that was written before this call.
    ///
    /// # Errors
    /// Some of these writes may not be durable and may never become so; see the promises above.
    /// After the error, reads return the bytes that the device holds, not the lost writes. If they
    /// returned the operating system's cached copy, a restart would trust data that is never
    /// written. A loss is reported by a single call of `sync`: calls by other threads, and later
    /// calls, may return `Ok`. So threads that share a device must tell each other about a failed
    /// sync.
    fn sync(&self) -> io::Result<()>;

    /// Prepares a range so that later writes to it are as cheap as possible to
    /// [`sync`](Device::sync). A file system records the first write of a block in its metadata,
    /// and a sync waits for that record too. The caller must not need the old bytes of the range:
    /// afterwards they are zeros or unchanged. The caller may write to the range at once, without a
    /// sync after this call. Returns the number of bytes that this call wrote.
    ///
    /// # Errors
    /// As [`write_at`](Device::write_at).
    fn prepare(&self, _offset: u64, _length: usize) -> io::Result<usize> {
        Ok(0)
    }

    /// Grows the device to `size` bytes by adding bytes at its end; does nothing if it has that
    /// size. When this returns, the new bytes can be used, also by existing read queues. The new
    /// size is durable after the next [`sync`](Device::sync).
    ///
    /// # Errors
    /// The device cannot grow, or not to `size`. Its size is then unchanged.
    fn grow(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Undoes a growth: shrinks the device to `size` bytes, a size that it had before. The bytes
    /// beyond `size` must be unused so far. This method exists for a failed [`sync`](Device::sync)
    /// after a growth. A power loss may then take the growth back, although [`size`](Device::size)
    /// includes it. So the caller undoes the growth and repeats it, and the next sync makes it
    /// durable.
    ///
    /// # Errors
    /// The device may still have its old size; the caller must shrink it again before growing it.
    /// If the device has fewer than `size` bytes: [`io::ErrorKind::InvalidInput`].
    fn shrink(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Creates a queue for reads that run while the calling thread does other things. Each read
    /// that ends makes `event`, an eventfd, readable.
    ///
    /// # Errors
    /// The device cannot be read through a queue here ([`io::ErrorKind::Unsupported`], or the error
    /// of the kernel). Blocking reads always work.
    fn read_queue(&self, _event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Returns an error if the range does not lie inside `size` bytes.
pub(crate) fn check_range(size: u64, offset: u64, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{length} bytes at {offset} are not inside of a device of {size} bytes"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_inside_the_device() {
        assert!(check_range(4096, 0, 4096).is_ok());
        assert!(check_range(4096, 4096, 0).is_ok());
        assert!(check_range(4096, 1, 4096).is_err());
        assert!(check_range(4096, u64::MAX, 2).is_err());
    }
}
