//! The io_uring ring of a worker. This module creates the ring with the best setup that the kernel
//! offers, checks that the kernel has the newest needed operation, queues operations, and returns
//! completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::buffers::BufferRing;

const ENTRIES: u32 = 512;
/// Number of entries of the completion queue. It is large, because one receive may report many
/// buffers at once.
const COMPLETIONS: u32 = 8 << 10;
/// `IORING_ENTER_GETEVENTS`: makes the kernel do its deferred work in the call that has this flag.
const GET_EVENTS: u32 = 1;

/// The kind of an operation. The kernel copies an operation's user data to its completions. The low
/// byte of the user data is the kind, and the connection's key is in the bits above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Receive,
    Send,
    WaitForOutput,
    Cancel,
    Accept,
    Alarm,
    Timer,
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) op: Op,
    pub(super) key: u32,
    pub(super) result: i32,
    pub(super) flags: u32,
}

impl Completion {
    /// Returns true if the operation continues and will complete again.
    pub(super) fn more(&self) -> bool {
        cqueue::more(self.flags)
    }

    /// Returns the shared buffer that the kernel has filled, if any.
    pub(super) fn buffer(&self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }
}

fn user_data(op: Op, key: u32) -> u64 {
    u64::from(key) << 8 | op as u64
}

/// The ring of one thread.
pub(super) struct Ring {
    ring: IoUring,
}

/// Checks the result of a call that enters the ring. Returns an error only if the loop cannot
/// continue.
fn entered(result: io::Result<usize>) -> io::Result<()> {
    // With these codes the loop can continue. The time limit of the wait has passed (`ETIME`), or
    // the call was interrupted (`EINTR`), or the kernel accepts no operations until completions are
    // taken. The callers take them next.
    let passing = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
    match result {
        Err(error) if !error.raw_os_error().is_some_and(|code| passing.contains(&code)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

impl Ring {
    /// Creates a ring for the calling thread with the best setup that the kernel offers.
    pub(super) fn new() -> io::Result<Ring> {
        let base = || {
            let mut builder = IoUring::builder();
            builder.setup_clamp().setup_cqsize(COMPLETIONS);
            builder
        };
        // Deferred work (Linux 6.1) runs in one batch when this thread asks for completions. Such
        // work does not interrupt user code, and needs no lock against other submitters.
        let deferred = || {
            let mut builder = base();
            builder.setup_single_issuer().setup_defer_taskrun();
            builder
        };
        let ring = deferred()
            .setup_no_sqarray()
            .build(ENTRIES)
            .or_else(|_| deferred().build(ENTRIES))
            .or_else(|_| base().setup_coop_taskrun().build(ENTRIES))?;
        Ok(Ring { ring })
    }

    pub(super) fn raw(&self) -> &IoUring {
        &self.ring
    }

    /// Submits queued operations. With `wait`, also waits until an operation completes.
    ///
    /// Sends complete while they are submitted. So after a turn that has queued a send, the wait
    /// ends at once, and the thread sleeps only if the next turn finds nothing to do. A measured
    /// alternative waits for one more completion than the sends produce. It saves one system call,
    /// but then the thread sleeps more often, and sleeping and waking cost more than the call.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        let want = u32::from(wait);
        // SAFETY: the call passes no argument. The memory of queued operations is alive, as `push`
        // requires.
        let result = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(queued, want, GET_EVENTS, None)
        };
        entered(result)
    }

    /// Does the same as [`Ring::enter`], but waits for at most `time`. Does not wait if `time` is
    /// zero.
    pub(super) fn enter_for(&mut self, time: Duration) -> io::Result<()> {
        if time.is_zero() {
            return self.enter(false);
        }
        let time = Timespec::from(time);
        let arguments = SubmitArgs::new().timespec(&time);
        entered(self.ring.submitter().submit_with_args(1, &arguments))
    }

    /// Moves all completions from the ring to `into`.
    pub(super) fn harvest(&mut self, into: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let data = entry.user_data();
            let op = op_of(data);
            let (result, flags) = (entry.result(), entry.flags());
            into.push(Completion { op, key: (data >> 8) as u32, result, flags });
        }
    }

    /// Returns true if there are completions to harvest.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// The memory to which the operation points must live as long as the kernel uses it: until the
    /// operation's last completion, or until the submission if the kernel copies it then.
    unsafe fn push(&mut self, entry: squeue::Entry, op: Op, key: u32) -> io::Result<()> {
        let entry = entry.user_data(user_data(op, key));
        loop {
            // SAFETY: the caller keeps the memory alive as long as the kernel uses it.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.enter(false)?;
        }
    }

    pub(super) fn receive(&mut self, socket: RawFd, key: u32) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(socket), BufferRing::GROUP).build();
        // SAFETY: the operation points to no memory. The buffers of the group are registered for as
        // long as the ring lives.
        unsafe { self.push(entry, Op::Receive, key) }
    }

    /// Queues a receive that fills one buffer with at most `len` bytes.
    pub(super) fn receive_once(&mut self, socket: RawFd, len: u32, key: u32) -> io::Result<()> {
        let entry = opcode::Recv::new(Fd(socket), std::ptr::null_mut(), len)
            .buf_group(BufferRing::GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT);
        // SAFETY: the operation points to no memory. The buffers of the group are registered for as
        // long as the ring lives.
        unsafe { self.push(entry, Op::Receive, key) }
    }

    /// Queues a send that does not wait: it completes while it is submitted.
    ///
    /// # Safety
    /// `bytes` must stay in place until the send has completed.
    pub(super) unsafe fn send(
        &mut self,
        socket: RawFd,
        bytes: (*const u8, u32),
        key: u32,
    ) -> io::Result<()> {
        let entry = opcode::Send::new(Fd(socket), bytes.0, bytes.1)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            .build();
        // SAFETY: the caller keeps `bytes` in place until the completion.
        unsafe { self.push(entry, Op::Send, key) }
    }

    pub(super) fn wait_for_output(&mut self, socket: RawFd, key: u32) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(socket), libc::POLLOUT as u32).build();
        // SAFETY: the operation points to no memory.
        unsafe { self.push(entry, Op::WaitForOutput, key) }
    }

    /// Queues the cancellation of an operation. The cancelled operation still completes.
    pub(super) fn cancel(&mut self, op: Op, key: u32) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(user_data(op, key)).build();
        // SAFETY: the operation points to no memory.
        unsafe { self.push(entry, Op::Cancel, key) }
    }

    pub(super) fn accept(&mut self, listener: RawFd, index: u32) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(listener)).flags(libc::SOCK_CLOEXEC).build();
        // SAFETY: the operation points to no memory.
        unsafe { self.push(entry, Op::Accept, index) }
    }

    /// Queues an operation that completes each time `event` becomes readable.
    pub(super) fn watch(&mut self, event: RawFd) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(event), libc::POLLIN as u32).multi(true).build();
        // SAFETY: the operation points to no memory.
        unsafe { self.push(entry, Op::Alarm, 0) }
    }

    /// Queues a timeout that completes after `time`.
    ///
    /// # Safety
    /// `time` must stay in place until the operation has been submitted.
    pub(super) unsafe fn start_timer(
        &mut self,
        time: *const io_uring::types::Timespec,
    ) -> io::Result<()> {
        let entry = opcode::Timeout::new(time).build();
        // SAFETY: the caller keeps `time` in place until the submission, when the kernel copies it.
        unsafe { self.push(entry, Op::Timer, 0) }
    }
}

fn op_of(data: u64) -> Op {
    match data as u8 {
        0 => Op::Receive,
        1 => Op::Send,
        2 => Op::WaitForOutput,
        4 => Op::Accept,
        5 => Op::Alarm,
        6 => Op::Timer,
        _ => Op::Cancel,
    }
}

/// Tries a repeated receive into shared buffers on a socket pair. This is the newest operation that
/// the event loop needs. The error names the operation that the kernel refused.
pub(in crate::net) fn probe() -> Result<(), String> {
    let refused = |what: &str, error: io::Error| format!("{what}: {error}");
    let mut ring = Ring::new().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("the system or a container profile forbids it ({error})")
        }
        Some(libc::ENOSYS) => "the kernel has none".to_owned(),
        _ => refused("setting up a ring", error),
    })?;
    let mut buffers =
        BufferRing::new(ring.raw(), 2, 64).map_err(|e| refused("registering a buffer ring", e))?;
    let (ours, theirs) = UnixStream::pair().map_err(|e| refused("making a socket pair", e))?;
    ring.receive(ours.as_raw_fd(), 0).map_err(|e| refused("queueing a receive", e))?;
    let mut completions = Vec::new();
    for byte in [b'a', b'b'] {
        io::Write::write_all(&mut &theirs, &[byte]).map_err(|e| refused("writing", e))?;
        completions.clear();
        ring.enter(true).map_err(|e| refused("waiting for a receive", e))?;
        ring.harvest(&mut completions);
        // Receiving a second byte shows that the receive continues by itself, which needs Linux
        // 6.0.
        let Some((1, true, Some(buffer))) =
            completions.first().map(|c| (c.result, c.more(), c.buffer()))
        else {
            return Err("receives that repeat into provided buffers do not work".to_owned());
        };
        if buffers.bytes(buffer, 1) != [byte] {
            return Err("a provided buffer holds something else than was sent".to_owned());
        }
        buffers.give_back(buffer);
    }
    // Closing the other end completes the receive before its buffers are freed.
    drop(theirs);
    ring.enter(true).map_err(|e| refused("waiting for the end", e))?;
    drop(ring);
    drop(buffers);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_round_trips() {
        for op in
            [Op::Receive, Op::Send, Op::WaitForOutput, Op::Cancel, Op::Accept, Op::Alarm, Op::Timer]
        {
            let data = user_data(op, 0xfedc_ba98);
            assert_eq!((op_of(data), (data >> 8) as u32), (op, 0xfedc_ba98));
        }
    }
}
