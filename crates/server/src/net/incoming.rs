//! Input that is still in the socket of its connection. If the service knows where the next bytes
//! of the input belong, it lets the kernel write them there, which saves a copy through the loop's
//! own memory.
//!
//! Invariant: the loop offers an [`Incoming`] only if every byte that it has taken out of the
//! socket so far was consumed by the service. So the bytes that the service receives directly are
//! the next bytes of the input.

use std::os::fd::OwnedFd;

use super::transport::{self, Moved};

/// The next input of a connection. The service can receive from it once.
#[derive(Debug)]
pub struct Incoming<'a> {
    socket: &'a OwnedFd,
    /// Memory of the loop. It gets the input that follows the bytes for the service.
    rest: &'a mut [u8],
    received: Option<Receipt>,
}

/// The result of a receive. If the service receives, it fills the memory of the service first, and
/// that of the loop next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    pub(super) moved: Moved,
    /// Number of bytes in the loop's memory.
    pub(crate) rest: usize,
    /// True if the receive filled all memory, so that the socket most probably has more bytes.
    pub(super) full: bool,
}

impl<'a> Incoming<'a> {
    /// The largest number of bytes that the service can receive at once. Receiving 64 KiB takes
    /// about as long as receiving 32 KiB and copying them.
    pub const MAX: usize = 64 << 10;

    pub(crate) fn new(socket: &'a OwnedFd, rest: &'a mut [u8]) -> Self {
        Incoming { socket, rest, received: None }
    }

    /// Receives up to `most` bytes, and appends them to `bytes` without a new allocation. Returns
    /// the number of bytes received.
    pub fn append_to(&mut self, bytes: &mut Vec<u8>, most: usize) -> usize {
        let (len, room) = (bytes.len(), bytes.spare_capacity_mut());
        let most = most.min(room.len());
        // SAFETY: the first `most` bytes of `room` lie in the allocation of `bytes`.
        let received = unsafe { self.receive(room.as_mut_ptr().cast(), most) };
        // SAFETY: the kernel has written `received` bytes behind the first `len` ones.
        unsafe { bytes.set_len(len + received) };
        received
    }

    /// Receives into `memory`. Returns the number of bytes received.
    pub fn fill(&mut self, memory: &mut [u8]) -> usize {
        // SAFETY: pointer and length are those of one mutable slice.
        unsafe { self.receive(memory.as_mut_ptr(), memory.len()) }
    }

    /// Receives up to `len` bytes. Returns the number of bytes written to `memory`.
    ///
    /// # Safety
    /// `memory` must be valid for writes of `len` bytes.
    unsafe fn receive(&mut self, memory: *mut u8, len: usize) -> usize {
        if self.received.is_some() {
            return 0;
        }
        let len = len.min(Self::MAX);
        // SAFETY: the caller ensures that `memory` is valid for writes of `len` bytes.
        let moved = unsafe { transport::receive_split(self.socket, (memory, len), self.rest) };
        let n = if let Moved::Bytes(n) = moved { n } else { 0 };
        let full = n == len + self.rest.len();
        self.received = Some(Receipt { moved, rest: n.saturating_sub(len), full });
        n.min(len)
    }

    /// Returns what was received, or `None` if the service has not received.
    pub(crate) fn received(&self) -> Option<Receipt> {
        self.received
    }
}
