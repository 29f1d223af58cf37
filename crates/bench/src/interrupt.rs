//! In commands that call [`listen`], SIGINT and SIGTERM end a measurement early. The command still
//! prints the figures so far. A second signal ends the program.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use larder_server::signals::{Signal, Signals};

use crate::{Error, Result, complain};

/// A second signal within this time after the first is ignored. Some programs signal a process and
/// then its process group, so the process gets the same signal twice.
const SAME: Duration = Duration::from_millis(200);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Returns true if the measurement should end.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Handles SIGINT and SIGTERM from now on, in a separate thread. All other threads must block these
/// signals, and a thread inherits this from the thread that starts it. So this function must be
/// called before any other thread is started.
///
/// # Errors
/// Returns an error if the kernel refuses to block the signals or to start a thread.
pub(crate) fn listen() -> Result<()> {
    let signals = Signals::take().map_err(|e| Error::io("cannot take signals", e))?;
    let hear = move || {
        let mut first: Option<Instant> = None;
        loop {
            if let Signal::Stop(name) = signals.wait() {
                match first {
                    Some(first) if first.elapsed() > SAME => end(),
                    Some(_) => continue,
                    None => first = Some(Instant::now()),
                }
                INTERRUPTED.store(true, Relaxed);
                complain!("{name}: the figures up to now follow");
            }
        }
    };
    let spawned = thread::Builder::new().name("signals".to_owned()).spawn(hear);
    spawned.map(drop).map_err(|e| Error::io("cannot start a thread", e))
}

/// Ends the program with the exit code that shells report for SIGINT.
#[expect(clippy::disallowed_methods, reason = "main waits for a server that may not answer")]
fn end() -> ! {
    std::process::exit(130)
}
