//! Reads that run while the thread that requested them does other things.

use crate::spare;
use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

/// The reads of one thread; many can be in flight at once.
pub trait ReadQueue: Send + fmt::Debug {
    /// Adds a read of `len` bytes from `offset`. `token` identifies the read until the read
    /// [ends](ReadQueue::ended). The read starts with the next [`submit`](ReadQueue::submit).
    ///
    /// # Errors
    /// The range does not lie inside the device ([`io::ErrorKind::InvalidInput`]).
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()>;

    /// Passes the added reads to the device.
    fn submit(&mut self);

    /// Returns false if no read has ended since the last call of [`ended`](ReadQueue::ended).
    fn has_ended(&mut self) -> bool;

    /// Calls `each` for every read that has ended since the last call, in any order.
    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>));
}

/// The smallest page size, in bytes.
const PAGE: usize = 4096;
/// With at least this many reads in flight, the next one is expected to end at any moment.
const MANY: usize = 16;
/// The number of polls that each ended read adds to a [`PollBudget`]. A poll takes well below half
/// a microsecond.
const POLLS_PER_READ: u32 = 64;
/// The largest [`PollBudget`]: the number of polls without an ended read after which the thread
/// blocks. It is large enough for the time between two batches of a device that completes reads in
/// batches.
const MAX_POLLS: u32 = 2000;

/// Decides whether a thread without work polls for ended reads instead of blocking in the kernel.
/// The thread polls while many reads are in flight and earlier reads ended fast. Blocking and
/// waking up would take longer than the next read, and the device would idle meanwhile.
#[derive(Debug, Default)]
pub struct PollBudget(u32);

impl PollBudget {
    /// Notes that `reads` reads have ended.
    pub fn ended(&mut self, reads: usize) {
        self.0 = MAX_POLLS.min(self.0.saturating_add(reads as u32 * POLLS_PER_READ));
    }

    /// Returns true if the thread should poll once more. `on_their_way` is the number of reads in
    /// flight.
    #[inline]
    pub fn again(&mut self, on_their_way: usize) -> bool {
        let again = on_their_way >= MANY && self.0 > 0;
        self.0 -= u32::from(again);
        again
    }
}

/// Bytes that were read from a device. Some reads must begin and end at multiples of the device's
/// alignment, so the buffer may have more bytes than were requested. Bytes at a device offset that
/// is a multiple of 8 have an address that is a multiple of 8.
pub struct ReadBuffer {
    memory: NonNull<u8>,
    layout: Layout,
    start: usize,
    len: usize,
}

// SAFETY: this value alone owns the memory, as a `Vec` does.
unsafe impl Send for ReadBuffer {}
// SAFETY: shared access only reads the memory.
unsafe impl Sync for ReadBuffer {}

/// Returns an alignment for `size` bytes that is at least `align`. If `size` is at most a page, the
/// bytes lie in a single page, because each further page costs the kernel a lookup.
fn within_page(size: usize, align: usize) -> usize {
    if size <= PAGE { align.max(size.next_power_of_two()) } else { align }
}

impl ReadBuffer {
    /// Allocates memory for `len` bytes from `offset`, extended on both sides to multiples of
    /// `align`, a power of two that is at least 8. Its content is arbitrary.
    pub fn new(offset: u64, len: usize, align: usize) -> ReadBuffer {
        debug_assert!(align.is_power_of_two() && align >= size_of::<u64>());
        let start = (offset % align as u64) as usize;
        let size = (start + len).max(1).next_multiple_of(align);
        #[expect(clippy::expect_used, reason = "lengths of records are far below isize::MAX")]
        let layout =
            Layout::from_size_align(size, within_page(size, align)).expect("a length that fits");
        ReadBuffer { memory: spare::take(layout), layout, start, len }
    }

    /// Returns the number of bytes of memory that the buffer owns.
    pub fn footprint(&self) -> usize {
        self.layout.size()
    }

    /// Returns the number of bytes before the requested ones.
    pub(crate) fn lead(&self) -> usize {
        self.start
    }

    /// Returns all memory of the buffer, for the device to fill.
    pub(crate) fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.memory, self.layout.size())
    }

    /// Returns the requested bytes, for callers that fill them without a read queue.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start + len` lies inside the memory, which is initialised and mutably borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(self.start), self.len) }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len` lies inside the memory, which is initialised and borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(self.start), self.len) }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from `take` with this layout and has no other owner.
        unsafe { spare::give(self.memory, self.layout) };
    }
}

impl fmt::Debug for ReadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
