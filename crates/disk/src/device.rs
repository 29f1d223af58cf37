//! The one interface between the store and what keeps its bytes.
//!
//! Its promises are deliberately few, because they are all that a disk keeps: a range of bytes, and
//! a call after which what was written before is still there when the power fails.

use crate::ReadQueue;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes that outlive the process, a fixed number unless it [grows](Device::grow). All methods block the calling thread and may
/// be called by several at once; only a [read queue](Device::read_queue), where there is one, does not.
///
/// What may be relied on:
///
/// - A read answers what was last written there, by whichever thread, if that write had returned
///   before the read began. Of a write that overlaps the read in time, any part may be seen.
/// - Once [`sync`](Device::sync) has answered `Ok`, every write that had *returned* when `sync` was
///   called is durable.
/// - Until then a power loss may keep any part of it, in any order, in pieces of a sector or less.
///   The end of the process (`kill -9`) keeps it, still without making it durable: what a restart
///   reads may yet be lost, until a sync of the restarted process has covered it.
/// - After a write that failed, any part of its range may hold its bytes.
/// - After a sync that failed, every write that it would have covered may be lost, now or later,
///   and **although a later sync succeeds**: the operating system drops pages that it could not
///   write. Only writing the bytes again, elsewhere, and syncing that helps.
pub trait Device: Send + Sync + fmt::Debug {
    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// The device could not be read (contents of `buffer` are then unspecified), or the range does
    /// not lie inside of the device ([`io::ErrorKind::InvalidInput`]).
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// As [`read_at`](Device::read_at), for multiples of 4096: what the device itself holds, and not what the
    /// operating system remembers of it. Where there is no way around that, as in a file system in memory, it
    /// is the same as `read_at`.
    ///
    /// # Errors
    /// As [`read_at`](Device::read_at).
    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buffer)
    }

    /// Writes all of `bytes` at `offset`; they are not durable before a [`sync`](Device::sync).
    ///
    /// # Errors
    /// The device could not be written, or is full: any part may have been written. A range that
    /// does not lie inside of the device ([`io::ErrorKind::InvalidInput`]): nothing was.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// As [`write_at`](Device::write_at), for a caller that can wait for the device: bytes that are many and aligned
    /// are not copied into the operating system's memory before.
    ///
    /// # Errors
    /// As [`write_at`](Device::write_at).
    fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }

    /// Makes everything durable that was written before this call.
    ///
    /// # Errors
    /// Some of it may not be durable, and never become so: see above. Reads answer what is there from now on,
    /// not what was lost: a restart would read, and believe, what the operating system has dropped but still
    /// remembers. Of a loss one sync tells, whoever called it: threads that share a device must tell
    /// each other.
    fn sync(&self) -> io::Result<()>;

    /// Has later writes to these bytes, which nobody needs any more, cost a [`sync`](Device::sync) as little as
    /// possible: a file system notes the first write of a block in structures of its own, and a sync
    /// waits for these too. Afterwards the bytes are zeros, or as they were; no sync is needed before
    /// they are written. The answer is how many bytes were written.
    ///
    /// # Errors
    /// As [`write_at`](Device::write_at).
    fn prepare(&self, _offset: u64, _length: usize) -> io::Result<usize> {
        Ok(0)
    }

    /// Makes it `size` bytes, all that it had and others behind that; with as many as it has nothing
    /// happens. They may be read and written as soon as this has returned, by queues that were made before,
    /// too. The new size is durable with the next [`sync`](Device::sync).
    ///
    /// # Errors
    /// It cannot grow, or not so much: it is as it was.
    fn grow(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes back a growth: makes it `size` bytes, as many as it had. Nobody has used the bytes behind that.
    /// After a [`sync`](Device::sync) that failed, a growth may be lost although [`size`](Device::size) tells
    /// nothing of it; taken back and made again, it is durable with the next sync.
    ///
    /// # Errors
    /// It may be as large as it was: ask again before it grows. Or it had fewer bytes ([`io::ErrorKind::InvalidInput`]).
    fn shrink(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A queue for reads that go on while their thread does other things. Each that ends makes
    /// `event`, an eventfd, readable.
    ///
    /// # Errors
    /// There is no such way to read this device here ([`io::ErrorKind::Unsupported`], or what the
    /// kernel refused); the blocking one always works.
    fn read_queue(&self, _event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The error for a range that does not lie inside of `size` bytes.
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
    fn a_range_must_lie_inside() {
        assert!(check_range(4096, 0, 4096).is_ok());
        assert!(check_range(4096, 4096, 0).is_ok());
        assert!(check_range(4096, 1, 4096).is_err());
        assert!(check_range(4096, u64::MAX, 2).is_err());
    }
}
