//! Reads of a file through io_uring. They bypass the page cache if the file system supports that.
//! The cache would keep a second copy of the data in memory that the budget does not count. Once
//! the cache is full, each read must also evict cached pages, which takes the processor longer than
//! the read itself.

use crate::device::check_range;
use crate::{ReadBuffer, ReadQueue};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of reads in flight in the kernel. Further reads wait in the queue.
const ENTRIES: u32 = 256;
/// Time after which [`Ring::wait`] gives up waiting for a read in flight.
const LAST_READS: Timespec = Timespec::new().sec(5);

/// The ring of one thread.
///
/// Invariant: from the time a read's operation is in the ring until its completion is taken, the
/// read's buffer stays in `flying`. Meanwhile the buffer's memory does not move, and no thread
/// touches it.
pub(super) struct Ring {
    ring: IoUring,
    file: File,
    /// An eventfd that every completion makes readable.
    event: File,
    /// Alignment of offsets, lengths and memory of reads, in bytes.
    align: usize,
    /// The number of bytes of the file that may be read.
    size: Arc<AtomicU64>,
    waiting: VecDeque<Read>,
    flying: Vec<Option<Read>>,
    /// Empty places of `flying`.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Read {
    token: u64,
    /// Offset in the file of the first byte of the buffer's memory.
    from: u64,
    /// The number of filled bytes at the front of that memory, rounded down to the alignment.
    done: usize,
    buffer: ReadBuffer,
}

/// The state of a read after one completion.
enum Progress {
    /// All requested bytes have arrived.
    Complete,
    /// More bytes must be read, or the read must be repeated.
    Part,
    /// The file ends after the bytes that were read.
    Ended,
    /// This completion has brought too few bytes to reach the next multiple of the alignment. An
    /// aligned read would begin at the same offset again.
    Stuck,
    Failed(io::Error),
}

impl Read {
    /// Applies a completion. Some file systems, such as FUSE and NFS, may return fewer bytes than
    /// requested before the end of the file. Then another operation reads the rest, starting at a
    /// multiple of `align`.
    fn advance(&mut self, result: i32, align: usize) -> Progress {
        let Ok(read) = usize::try_from(result) else {
            return match [libc::EINTR, libc::EAGAIN, libc::ENOMEM].contains(&-result) {
                // Interrupted, or temporarily out of memory.
                true => Progress::Part,
                false => Progress::Failed(io::Error::from_raw_os_error(-result)),
            };
        };
        let filled = self.done + read;
        if filled >= self.buffer.lead() + self.buffer.len() {
            return Progress::Complete;
        }
        let done = filled / align * align;
        if read == 0 {
            Progress::Ended
        } else if done == self.done {
            Progress::Stuck
        } else {
            self.done = done;
            Progress::Part
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("flying", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Ring {
    /// Creates a ring over the first `size` bytes of `file`, whose reads are aligned to `align`,
    /// and tests it with one read.
    pub(super) fn new(
        file: &File,
        align: usize,
        size: &Arc<AtomicU64>,
        event: BorrowedFd<'_>,
    ) -> io::Result<Ring> {
        let builder = || {
            let mut builder = IoUring::builder();
            builder.setup_clamp();
            builder
        };
        // With this flag, completions do not interrupt the thread while it works (Linux 5.19).
        let ring = builder().setup_coop_taskrun().build(ENTRIES);
        let ring = ring.or_else(|_| builder().build(ENTRIES))?;
        let mut ring = Ring {
            ring,
            file: file.try_clone()?,
            event: event.try_clone_to_owned()?.into(),
            align,
            size: Arc::clone(size),
            waiting: VecDeque::new(),
            flying: (0..ENTRIES).map(|_| None).collect(),
            free: (0..ENTRIES as usize).collect(),
        };
        ring.try_out()?;
        ring.ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(ring)
    }

    fn try_out(&mut self) -> io::Result<()> {
        self.push(0, 0, self.align)?;
        self.submit();
        self.wait()?;
        let mut result = Err(io::ErrorKind::TimedOut.into());
        self.ended(&mut |_, ended| result = ended.map(drop));
        result
    }

    fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// Waits until a read has completed. Returns an error after [`LAST_READS`].
    fn wait(&self) -> io::Result<()> {
        let args = SubmitArgs::new().timespec(&LAST_READS);
        self.ring.submitter().submit_with_args(1, &args).map(drop)
    }

    /// Moves waiting reads into the ring. `flying` has as many places as the ring has entries, so
    /// the ring normally has room for each read that gets a place.
    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(place) = self.free.pop()
            && let Some(mut read) = self.waiting.pop_front()
        {
            let memory = read.buffer.memory();
            let fd = Fd(self.file.as_raw_fd());
            let rest = memory.cast::<u8>().as_ptr().wrapping_add(read.done);
            let entry = opcode::Read::new(fd, rest, (memory.len() - read.done) as u32)
                .offset(read.from + read.done as u64)
                .build()
                .user_data(place as u64);
            // SAFETY: the memory stays in `flying`, untouched, until its completion is taken; see
            // the invariant of `Ring`.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                self.free.push(place);
                self.waiting.push_front(read);
                return;
            }
            self.flying[place] = Some(read);
        }
    }
}

/// Returns the error of a read that made the progress [`Progress::Stuck`]: either the file has
/// ended, or the file system returned a part of a block.
fn stuck(file: &File, read: &Read) -> io::Error {
    let next = read.from + (read.done + 1) as u64;
    if file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= next) {
        return io::ErrorKind::UnexpectedEof.into();
    }
    let from = read.from + read.done as u64;
    io::Error::other(format!(
        "the file system answers a read at {from} around the page cache with a part of a block"
    ))
}

impl ReadQueue for Ring {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        check_range(self.size.load(Ordering::Acquire), offset, len)?;
        let buffer = ReadBuffer::new(offset, len, self.align);
        let from = offset - buffer.lead() as u64;
        self.waiting.push_back(Read { token, from, done: 0, buffer });
        Ok(())
    }

    fn submit(&mut self) {
        self.fill();
        if self.ring.submission().is_empty() {
            return;
        }
        if self.ring.submit().is_err() {
            // The kernel is out of memory, or a signal interrupted the call. The event makes the
            // thread call this function again.
            let _ = self.event.write(&1u64.to_ne_bytes());
        }
    }

    fn has_ended(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        for completion in self.ring.completion() {
            let place = completion.user_data() as usize;
            let Some(mut read) = self.flying[place].take() else { continue };
            self.free.push(place);
            match read.advance(completion.result(), self.align) {
                Progress::Complete => each(read.token, Ok(read.buffer)),
                Progress::Part => self.waiting.push_back(read),
                Progress::Ended => each(read.token, Err(io::ErrorKind::UnexpectedEof.into())),
                Progress::Stuck => each(read.token, Err(stuck(&self.file, &read))),
                Progress::Failed(error) => each(read.token, Err(error)),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.wait().is_err() {
                // The device hangs, or the wait failed. The kernel may still write to the buffers,
                // so they are leaked.
                std::mem::take(&mut self.flying).into_iter().for_each(std::mem::forget);
                return;
            }
            self.ended(&mut |_, _| {});
            // Drops reads that `ended` wants to repeat.
            self.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_read_continues_after_its_last_aligned_byte() {
        let mut read =
            Read { token: 1, from: 4096, done: 0, buffer: ReadBuffer::new(4100, 9000, 512) };
        assert!(matches!(read.advance(3000, 512), Progress::Part));
        assert_eq!(read.done, 2560);
        assert!(matches!(read.advance(-libc::EINTR, 512), Progress::Part));
        assert!(matches!(read.advance(300, 512), Progress::Stuck));
        assert!(matches!(read.advance(0, 512), Progress::Ended));
        assert!(matches!(read.advance(-libc::EIO, 512), Progress::Failed(_)));
        assert!(matches!(read.advance(512, 512), Progress::Part));
        assert_eq!(read.done, 3072);
        // The bytes that were added at the end for alignment are missing. The read is complete
        // without them.
        assert!(matches!(read.advance(4 + 9000 - 3072, 512), Progress::Complete));
    }

    /// The kernel returns only a part of `/proc/kallsyms` per read, however much is requested. The
    /// ring must read the rest by itself.
    #[test]
    fn a_file_that_arrives_in_parts_is_read_completely() {
        let Ok(file) = File::open("/proc/kallsyms") else { return };
        let Ok(all) = std::fs::read("/proc/kallsyms") else { return };
        if all.len() < 256 << 10 {
            return;
        }
        // SAFETY: the call takes only numbers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(event >= 0);
        // SAFETY: the descriptor is new and has no other owner.
        let event = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(event) };
        let event = std::os::fd::AsFd::as_fd(&event);
        let mut ring = Ring::new(&file, 8, &Arc::new(AtomicU64::new(all.len() as u64)), event)
            .expect("a ring");
        ring.push(7, 1000, 200_000).expect("inside");
        let mut found = None;
        for _ in 0..10_000 {
            ring.submit();
            ring.wait().expect("it ends");
            ring.ended(&mut |token, ended| found = Some((token, ended)));
            if found.is_some() {
                break;
            }
        }
        let (token, bytes) = found.expect("it ends");
        assert_eq!(token, 7);
        assert!(*bytes.expect("it reads") == all[1000..201_000]);
    }
}
