//! Text for whoever started the program. The macros of the standard library panic when nobody can take
//! it (a full disk, a pipe whose reader is gone), and a panic would replace the exit code that says
//! what happened.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static LOST: AtomicBool = AtomicBool::new(false);

/// Writes to the standard output; what cannot be written is [`lost`].
pub fn say(text: fmt::Arguments<'_>) {
    let written = io::stdout().lock().write_fmt(text).and_then(|()| io::stdout().flush());
    // A reader that is gone wants no more.
    if written.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        LOST.store(true, Relaxed);
    }
}

/// Writes to the standard error output, if that takes it.
pub fn complain(text: fmt::Arguments<'_>) {
    // Nobody is left to be told.
    let _ = io::stderr().lock().write_fmt(text);
}

/// Whether some result could not be written to the standard output.
pub fn lost() -> bool {
    LOST.load(Relaxed)
}

/// A line on the standard output.
#[macro_export]
macro_rules! say {
    () => { $crate::terminal::say(format_args!("\n")) };
    ($($text:tt)*) => { $crate::terminal::say(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line on the standard error output.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => { $crate::terminal::complain(format_args!("{}\n", format_args!($($text)*))) };
}
