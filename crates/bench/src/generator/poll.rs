//! Waits for ready sockets with epoll, and wraps system calls about a thread's timers and time.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The events of a socket for which the generator waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn bits(self) -> u32 {
        (match self {
            Interest::Read => libc::EPOLLIN,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
        }) as u32
    }
}

/// A level-triggered epoll instance. It identifies each socket by a number.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    nanoseconds: bool,
}

/// A ready socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) number: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Poll {
    pub(crate) fn new(capacity: usize) -> io::Result<Poll> {
        // SAFETY: no pointer is passed. The result is checked before it is used as a descriptor.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; capacity.clamp(16, 1024)];
        Ok(Poll { epoll, events, nanoseconds: true })
    }

    pub(crate) fn add(&self, socket: BorrowedFd<'_>, number: usize) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, number, Interest::Read)
    }

    pub(crate) fn modify(
        &self,
        socket: BorrowedFd<'_>,
        number: usize,
        interest: Interest,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, number, interest)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: BorrowedFd<'_>,
        number: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: number as u64 };
        // SAFETY: both descriptors are open, and the event lives until the call returns.
        let answer = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), operation, socket.as_raw_fd(), &mut event)
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for at most `timeout`. Returns the number of ready sockets. [`Poll::ready`] takes each
    /// index below this number.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        loop {
            let count =
                if self.nanoseconds { self.wait_exact(timeout) } else { self.wait_coarse(timeout) };
            if count >= 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOSYS) if self.nanoseconds => self.nanoseconds = false,
                Some(libc::EINTR) => return Ok(0),
                _ => return Err(error),
            }
        }
    }

    fn wait_exact(&mut self, timeout: Duration) -> libc::c_long {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the kernel writes at most the given number of events into the vector, which has
        // that length. The time-out lives until the call returns. No signal mask is passed.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                &timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        }
    }

    /// The fallback for kernels before 5.11, which count in whole milliseconds. Rounds the time-out
    /// down, because waking up early is better than late.
    fn wait_coarse(&mut self, timeout: Duration) -> libc::c_long {
        let milliseconds = timeout.as_millis().min(1000) as libc::c_int;
        // SAFETY: as in `wait_exact`.
        unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                milliseconds,
            )
            .into()
        }
    }

    /// Returns the `index`-th ready socket of the last wait.
    pub(crate) fn ready(&self, index: usize) -> Ready {
        let event = self.events[index];
        let bits = event.events as i32;
        Ready {
            number: event.u64 as usize,
            // An error or a hang-up counts as readable: the read will report it.
            readable: bits & !libc::EPOLLOUT != 0,
            writable: bits & libc::EPOLLOUT != 0,
        }
    }
}

/// Makes the calling thread's timers as exact as the kernel can. A failure costs only exactness.
pub(crate) fn exact_timers() {
    // SAFETY: this call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Returns the nanoseconds that the calling thread has spent on a processor.
pub(crate) fn thread_cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes into the local variable.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if answer == 0 { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}
