//! SIGINT and SIGTERM end a measurement, not its report: what was measured so far is printed. A second
//! signal ends the program.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use larder_server::signals::{Signal, Signals};

use crate::{Error, Result, complain};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether the measurement is to end.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Takes signals from here on. To be called before any thread exists.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn listen() -> Result<()> {
    let signals = Signals::take().map_err(|e| Error::io("cannot take signals", e))?;
    let hear = move || {
        loop {
            if let Signal::Stop(name) = signals.wait() {
                if INTERRUPTED.swap(true, Relaxed) {
                    end();
                }
                complain!("{name}: this is what was measured so far");
            }
        }
    };
    let spawned = thread::Builder::new().name("signals".to_owned()).spawn(hear);
    spawned.map(drop).map_err(|e| Error::io("cannot start a thread", e))
}

/// What shells report for a program that SIGINT has ended.
#[expect(clippy::disallowed_methods, reason = "main waits for a server that may not answer")]
fn end() -> ! {
    std::process::exit(130)
}
