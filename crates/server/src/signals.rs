//! Receives signals without signal handlers. Every thread blocks the signals, and one thread waits
//! for them. So no code of the server runs inside a signal handler.

use std::io;
use std::mem::MaybeUninit;

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, SIGINT or SIGUSR1: stop the server gracefully. A second such signal means to stop
    /// at once. The value is the name of the signal.
    Stop(&'static str),
    /// Read the settings again: SIGHUP.
    Reload,
}

const STOP: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1];

/// The signals that [`wait`](Self::wait) receives.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts afterwards. Must be
    /// called before any other thread exists.
    ///
    /// # Errors
    /// Returns the kernel's error. Linux does not fail here.
    pub fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initializes the set; the other calls get an initialized set and
        // known signal numbers. SIGPIPE is ignored, so that writing to a closed connection returns
        // an error code.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in STOP.into_iter().chain([libc::SIGHUP]) {
                libc::sigaddset(&mut set, signal);
            }
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            (set, libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))
        };
        match result {
            0 => Ok(Signals { set }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> Signal {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers point to initialized memory that outlives the call.
            let result = unsafe { libc::sigwait(&self.set, &mut signal) };
            if result == 0 {
                return match signal {
                    libc::SIGHUP => Signal::Reload,
                    libc::SIGINT => Signal::Stop("SIGINT"),
                    libc::SIGUSR1 => Signal::Stop("SIGUSR1"),
                    _ => Signal::Stop("SIGTERM"),
                };
            }
        }
    }
}
