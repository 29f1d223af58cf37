//! Output for the person who runs the program. Unlike the macros of the standard library, these
//! functions do not panic if the output cannot be written (full disk, pipe without a reader). A
//! panic would replace the exit code, which tells the result of the run.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static LOST: AtomicBool = AtomicBool::new(false);

/// Writes to the standard output. [`lost`] reports a failure later.
pub fn say(text: fmt::Arguments<'_>) {
    let written = io::stdout().lock().write_fmt(text).and_then(|()| io::stdout().flush());
    // A closed pipe is no failure: its reader wants no more output.
    if written.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        LOST.store(true, Relaxed);
    }
}

/// Writes to the standard error output. Ignores failures.
pub fn complain(text: fmt::Arguments<'_>) {
    // There is nowhere else to report a failure.
    let _ = io::stderr().lock().write_fmt(text);
}

/// Returns true if some result could not be written to the standard output.
pub fn lost() -> bool {
    LOST.load(Relaxed)
}

/// Writes a line to the standard output.
#[macro_export]
macro_rules! say {
    () => { $crate::terminal::say(format_args!("\n")) };
    ($($text:tt)*) => { $crate::terminal::say(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes a line to the standard error output.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => { $crate::terminal::complain(format_args!("{}\n", format_args!($($text)*))) };
}
