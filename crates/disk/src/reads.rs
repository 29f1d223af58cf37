//! Reads that go on while their thread does other things.

use crate::spare;
use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

/// Reads of one thread, many of which are on their way at once.
pub trait ReadQueue: Send + fmt::Debug {
    /// Notes a read of `len` bytes from `offset`, for which `token` stands until it
    /// [ends](ReadQueue::ended). It begins with the next [`submit`](ReadQueue::submit).
    ///
    /// # Errors
    /// The range does not lie inside of the device ([`io::ErrorKind::InvalidInput`]).
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()>;

    /// Hands what was noted to the device.
    fn submit(&mut self);

    /// Whether reads have ended since the last call of [`ended`](ReadQueue::ended).
    fn has_ended(&mut self) -> bool;

    /// Calls `each` for every read that has ended since the last call, in any order.
    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>));
}

/// A page of memory, at least.
const PAGE: usize = 4096;
/// From so many reads on their way on the next one is expected to end at any moment.
const MANY: usize = 16;
/// How often a thread looks for the next end of a read for each that has ended; a look takes well below half a
/// microsecond.
const LOOKS_PER_READ: u32 = 64;
/// How often it looks in a row: a device may answer in batches.
const MOST_LOOKS: u32 = 2000;

/// Whether a thread without work should look for reads that end instead of blocking in the kernel: while many are
/// on their way, and those before them came fast. To fall asleep and to be woken takes longer than the next one,
/// and the device has nothing to do meanwhile.
#[derive(Debug, Default)]
pub struct Looks(u32);

impl Looks {
    /// So many reads have ended.
    pub fn ended(&mut self, reads: usize) {
        self.0 = MOST_LOOKS.min(self.0.saturating_add(reads as u32 * LOOKS_PER_READ));
    }

    /// Whether to look once more, with so many reads on their way.
    #[inline]
    pub fn again(&mut self, on_their_way: usize) -> bool {
        let again = on_their_way >= MANY && self.0 > 0;
        self.0 -= u32::from(again);
        again
    }
}

/// Bytes that were read. They begin where the device wanted, so only a part of the memory is what
/// was asked for: an offset of the device that is a multiple of 8 lies in memory that is, too.
pub struct ReadBuffer {
    memory: NonNull<u8>,
    layout: Layout,
    start: usize,
    len: usize,
}

// SAFETY: the memory is this value's own, like a vector's.
unsafe impl Send for ReadBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for ReadBuffer {}

/// How memory of `size` bytes is aligned so that it lies in as few pages as it can: each costs the kernel a look.
fn within_page(size: usize, align: usize) -> usize {
    if size <= PAGE { align.max(size.next_power_of_two()) } else { align }
}

impl ReadBuffer {
    /// Memory for `len` bytes from `offset`, widened on both sides to multiples of `align`,
    /// a power of two that is at least 8. It holds anything.
    pub fn new(offset: u64, len: usize, align: usize) -> ReadBuffer {
        debug_assert!(align.is_power_of_two() && align >= size_of::<u64>());
        let start = (offset % align as u64) as usize;
        let size = (start + len).max(1).next_multiple_of(align);
        #[expect(clippy::expect_used, reason = "lengths of records are far below isize::MAX")]
        let layout =
            Layout::from_size_align(size, within_page(size, align)).expect("a length that fits");
        ReadBuffer { memory: spare::take(layout), layout, start, len }
    }

    /// Bytes of memory that it owns.
    pub fn footprint(&self) -> usize {
        self.layout.size()
    }

    /// How many of the bytes are in front of those that were asked for.
    pub(crate) fn lead(&self) -> usize {
        self.start
    }

    /// All of its memory, for the device to fill.
    pub(crate) fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.memory, self.layout.size())
    }

    /// What was asked for, for whoever reads it in another way.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start + len` is inside of the memory, which is initialised and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(self.start), self.len) }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len` is inside of the memory, which is initialised and borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(self.start), self.len) }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        // SAFETY: it was taken with this layout, and nobody else owns it.
        unsafe { spare::give(self.memory, self.layout) };
    }
}

impl fmt::Debug for ReadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
