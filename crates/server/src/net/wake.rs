//! Wakes a worker from other threads. Invariant: the thread that changes `woken` from false to true
//! writes to the eventfd. The worker clears `woken` before it looks for the reasons of the wake-up,
//! such as new sockets, orders, or parked connections that can continue. So no wake-up is lost.
//! Until the worker clears `woken`, further wake-ups cost no write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// The handle with which other threads wake a worker.
#[derive(Debug)]
pub(super) struct Alarm {
    event: OwnedFd,
    woken: AtomicBool,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Arc<Alarm>> {
        // SAFETY: the call takes no pointers. A non-negative result is a new descriptor without
        // another owner.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above, `fd` is open and has no other owner.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Alarm { event, woken: AtomicBool::new(false) }))
    }

    /// Returns the descriptor that becomes readable when the worker is woken.
    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn ring(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: the buffer is 8 bytes long, as an eventfd requires. The write can only fail
            // if the count would overflow, and then the descriptor is readable anyway.
            unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Makes the descriptor unreadable until the next [`ring`](Self::ring). The worker must look
    /// for the reasons of the wake-up after this call, not before it.
    pub(super) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is 8 bytes long, as an eventfd requires. The read does not block, and
        // a failure means that the descriptor was not readable.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        self.woken.swap(false, Ordering::AcqRel);
    }

    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(alarm: &Alarm) -> bool {
        let mut poll = libc::pollfd { fd: alarm.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` points to one pollfd, as the count says. The call does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_alarm_is_readable_until_cleared() {
        let alarm = Alarm::new().unwrap();
        assert!(!readable(&alarm));
        alarm.waker().wake_by_ref();
        alarm.waker().wake();
        assert!(readable(&alarm));
        alarm.clear();
        assert!(!readable(&alarm));
        alarm.ring();
        assert!(readable(&alarm));
    }
}
