//! Reads of a file through io_uring, around the page cache: that would keep a second copy of what is
//! read, in memory that nobody gave us, and cost more than the read itself once it is full.

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

/// The most reads in the kernel's hands at a time. More wait here.
const ENTRIES: u32 = 256;
/// How long the end of a queue waits for reads that are on their way.
const LAST_READS: Timespec = Timespec::new().sec(5);

/// One thread's ring.
///
/// Invariant: a buffer stays in `flying`, where its memory does not move and is not touched, from
/// the time its operation is in the ring until its completion was taken.
pub(super) struct Ring {
    ring: IoUring,
    file: File,
    /// Made readable by every completion.
    event: File,
    /// Offsets, lengths and memory of reads are multiples of this, bytes.
    align: usize,
    /// How many bytes of the file may be read.
    size: Arc<AtomicU64>,
    waiting: VecDeque<Read>,
    flying: Vec<Option<Read>>,
    /// Places of `flying` that are empty.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Read {
    token: u64,
    /// Where in the file its memory begins.
    from: u64,
    buffer: ReadBuffer,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("flying", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring over the first `size` bytes of `file`, whose reads are aligned to `align`, tried out with
    /// one read.
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
        // Completions do not interrupt the thread while it works (Linux 5.19).
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

    /// Waits until a read has ended.
    fn wait(&self) -> io::Result<()> {
        let args = SubmitArgs::new().timespec(&LAST_READS);
        self.ring.submitter().submit_with_args(1, &args).map(drop)
    }

    /// Puts reads that wait into the ring, which has an entry for each place.
    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(place) = self.free.pop()
            && let Some(mut read) = self.waiting.pop_front()
        {
            let memory = read.buffer.memory();
            let fd = Fd(self.file.as_raw_fd());
            let entry = opcode::Read::new(fd, memory.cast().as_ptr(), memory.len() as u32)
                .offset(read.from)
                .build()
                .user_data(place as u64);
            // SAFETY: the memory stays until the completion, see the invariant.
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

impl ReadQueue for Ring {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        check_range(self.size.load(Ordering::Acquire), offset, len)?;
        let buffer = ReadBuffer::new(offset, len, self.align);
        self.waiting.push_back(Read { token, from: offset - buffer.lead() as u64, buffer });
        Ok(())
    }

    fn submit(&mut self) {
        self.fill();
        if self.ring.submission().is_empty() {
            return;
        }
        if self.ring.submit().is_err() {
            // Out of memory, or interrupted: the next turn tries again, and must come.
            let _ = self.event.write(&1u64.to_ne_bytes());
        }
    }

    fn has_ended(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        for completion in self.ring.completion() {
            let place = completion.user_data() as usize;
            let Some(Read { token, from, buffer }) = self.flying[place].take() else { continue };
            self.free.push(place);
            let wanted = (buffer.lead() + buffer.len()) as i32;
            match completion.result() {
                read if read >= wanted => each(token, Ok(buffer)),
                // Interrupted, or no memory for a moment: it begins anew.
                error if [libc::EINTR, libc::EAGAIN, libc::ENOMEM].contains(&-error) => {
                    self.waiting.push_back(Read { token, from, buffer });
                }
                error if error < 0 => each(token, Err(io::Error::from_raw_os_error(-error))),
                _ => each(token, Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.wait().is_err() {
                // The device hangs, and the kernel may still write there.
                std::mem::take(&mut self.flying).into_iter().for_each(std::mem::forget);
                return;
            }
            self.ended(&mut |_, _| {});
            // What was interrupted needs not begin anew.
            self.waiting.clear();
        }
    }
}
