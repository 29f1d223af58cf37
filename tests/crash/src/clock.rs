//! The clock that all processes of a run share. It lets the test order the events of all journals.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the monotonic clock's time in microseconds. All processes of a machine share this clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it gets, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Returns the wall clock's time in microseconds since 1970.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns the wall clock's time in seconds since 1970.
pub(crate) fn wall() -> u64 {
    wall_micros() / 1_000_000
}
