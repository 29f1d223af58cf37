//! Frames that were taken out of their segments, and segments that were read back.

use crate::format::BLOCK;
use larder_disk::ReadBuffer;
use std::ops::Deref;

/// A segment's bytes, aligned for direct I/O.
#[derive(Debug)]
pub struct Image(pub(super) ReadBuffer);

impl Image {
    pub(super) fn new(bytes: usize) -> Image {
        Image(ReadBuffer::new(0, bytes, BLOCK))
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl Deref for Image {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        let bytes: &[u8] = &self.0;
        // SAFETY: the memory is aligned to blocks and initialised, and any bytes are valid words.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<u64>()) }
    }
}

/// A frame that was taken out of its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped {
    /// The epoch that must pass before the frame is reused.
    pub(super) epoch: u64,
    pub(crate) frame: usize,
    /// The length of a jumbo's mapping in bytes; 0 for a normal frame.
    pub(crate) jumbo: usize,
}

/// A segment that was read so that all its records can be examined.
#[derive(Debug)]
pub struct Loaded {
    /// The segment's bytes.
    pub image: Image,
    /// True if some bytes were damaged. In a normal segment, fillers replace the damaged bytes. The
    /// image of a damaged jumbo is empty.
    pub damaged: bool,
}
