//! The server's time of day, for expiry times and statistics. In this crate, only this module reads
//! the wall clock. Invariant: the server's time never goes back. The server's time begins at the
//! start of the server and then advances with the time since the machine's boot, not with the wall
//! clock. So an administrator or a time daemon that turns the wall clock back cannot bring expired
//! items back to life.
//!
//! A restart after the wall clock was changed revives no expired items either, and expires none
//! early. Within one boot of the machine, a server continues the time of its store exactly. After a
//! reboot, the server begins with the time of the wall clock or with the time that the store
//! remembers, whichever is later. So the server's time may differ from the wall clock. Clients send
//! absolute times of the wall clock. The server converts them to its own time with the difference
//! that the two had at the start of the server.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_engine::{MachineTime, NANOS, UnixSeconds, second_of};

/// The clock of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The machine's clocks at the start.
    start: MachineTime,
    /// The server's time at the start, in nanoseconds since the Unix epoch.
    began: u64,
}

impl Clock {
    /// Creates a clock that starts now, with the time of the wall clock.
    pub(crate) fn start() -> Clock {
        let start = machine_time();
        Clock { start, began: start.wall }
    }

    /// Returns a clock whose time at the start was `time`, in nanoseconds since the Unix epoch.
    pub(crate) fn continuing(self, time: u64) -> Clock {
        Clock { began: time, ..self }
    }

    /// Returns the server's time, in nanoseconds since the Unix epoch.
    pub(crate) fn nanos(&self) -> u64 {
        self.began.saturating_add(self.nanos_up())
    }

    /// Returns the server's time, in milliseconds since the Unix epoch.
    pub(crate) fn millis(&self) -> u64 {
        self.nanos() / 1_000_000
    }

    /// Returns the server's time, in whole seconds since the Unix epoch.
    pub(crate) fn now(&self) -> UnixSeconds {
        second_of(self.nanos())
    }

    /// Returns the machine's clocks at the start.
    pub(crate) fn at_start(&self) -> &MachineTime {
        &self.start
    }

    /// Returns the value of [`now`](Self::now) at the start.
    pub(crate) fn started(&self) -> UnixSeconds {
        second_of(self.began)
    }

    /// Returns the seconds by which the wall clock was ahead of this clock at the start; negative
    /// if it was behind.
    pub(crate) fn wall_ahead(&self) -> i64 {
        let nanos = i128::from(self.start.wall) - i128::from(self.began);
        (nanos + i128::from(NANOS / 2)).div_euclid(NANOS.into()) as i64
    }

    /// Returns the seconds since the Unix epoch that the wall clock would show if it had not been
    /// set since the start.
    pub(crate) fn wall(&self) -> u64 {
        u64::from(self.now()).saturating_add_signed(self.wall_ahead())
    }

    /// Returns by how much the wall clock was stepped since the start, in either direction.
    pub(crate) fn stepped(&self) -> Duration {
        let expected = self.start.wall.saturating_add(self.nanos_up());
        Duration::from_nanos(wall(SystemTime::now()).abs_diff(expected))
    }

    /// Converts `nanos`, a server's time that [`nanos`](Self::nanos) returned, to the time of the
    /// wall clock, in milliseconds since the Unix epoch. Ignores steps of the wall clock since the
    /// start.
    pub(crate) fn wall_ms(&self, nanos: u64) -> u64 {
        (nanos / 1_000_000).saturating_add_signed(self.wall_ahead().saturating_mul(1000))
    }

    /// Returns the time since the start of the server.
    pub(crate) fn uptime(&self) -> Duration {
        Duration::from_nanos(self.nanos_up())
    }

    fn nanos_up(&self) -> u64 {
        since_boot().saturating_sub(self.start.since_boot)
    }
}

/// Returns what the machine's clocks show now.
pub fn machine_time() -> MachineTime {
    MachineTime {
        wall: wall(SystemTime::now()),
        boot_id: boot_id().unwrap_or(0),
        since_boot: since_boot(),
    }
}

/// Returns the nanoseconds of `now` since the Unix epoch. The result is at least two seconds, so
/// that [`Expiry::PAST`](larder_engine::Expiry) lies in the past even on a machine without a
/// real-time clock.
fn wall(now: SystemTime) -> u64 {
    let wall = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX).max(2 * NANOS)
}

/// Returns the id of the machine's boot. Returns `None` if the kernel does not show it, or if this
/// process is in a time namespace that shifts the time since the boot. Shifted times cannot be
/// compared with the times of other processes.
fn boot_id() -> Option<u128> {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if !is_without_offset(&offsets) {
        return None;
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&id.trim_end().replace('-', ""), 16).ok()
}

/// Returns true if these offsets of a time namespace do not change the time since the boot.
fn is_without_offset(offsets: &str) -> bool {
    let boot = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"));
    boot.is_none_or(|numbers| numbers.split_whitespace().all(|number| number == "0"))
}

/// Returns the nanoseconds since the machine's boot. Includes the time in which the machine was
/// suspended. Makes no system call.
fn since_boot() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a whole `timespec`. The call cannot fail with this clock, which every
    // kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as u64 * NANOS + time.tv_nsec as u64
}

/// Returns an unpredictable number that differs in every call. It is the seed of random samples and
/// of the key hash: a client that chooses keys must not be able to choose their buckets.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds `RandomState` with the kernel's random numbers, once per thread.
    // The time distinguishes two servers in one process.
    RandomState::new().hash_one(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * NANOS;

    #[test]
    fn the_offset_of_a_time_namespace_is_seen() {
        assert!(is_without_offset("") && is_without_offset("monotonic 7 0\nboottime 0 0\n"));
        assert!(!is_without_offset(
            "monotonic           0         0\nboottime       200000         0\n"
        ));
    }

    #[test]
    fn the_clock_starts_at_the_wall_clock_and_never_goes_back() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let clock = Clock::start();
        assert!(clock.wall().abs_diff(wall) <= 1);
        assert_eq!(clock.wall_ahead(), 0);
        let first = clock.nanos();
        assert!(clock.nanos() >= first && first >= clock.began);
        assert!(clock.now() >= clock.started());
        assert!(clock.uptime() < Duration::from_secs(60));
    }

    #[test]
    fn a_clock_continues_the_time_of_a_store_despite_another_wall_clock_time() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let own = Clock::start();
        for (time, ahead) in [(own.began + HOUR, -3600), (own.began - HOUR, 3600)] {
            // The wall clock may have been slewed by some microseconds since the store was opened.
            // `wall_ahead` must round this away.
            for slewed in [time, time - 1000, time + 1000] {
                let clock = own.continuing(slewed);
                assert_eq!((clock.began, clock.wall_ahead()), (slewed, ahead));
                assert!(clock.nanos() >= slewed && clock.nanos() - slewed < HOUR / 60);
                assert!(clock.wall().abs_diff(wall) <= 60);
            }
        }
    }

    #[test]
    fn a_step_of_the_wall_clock_is_seen() {
        let clock = Clock::start();
        assert!(clock.stepped() < Duration::from_secs(1));
        // `stepped` must not depend on the time from which the store makes the clock continue.
        assert!(clock.continuing(clock.began - HOUR).stepped() < Duration::from_secs(1));
        for wall in [clock.start.wall - HOUR, clock.start.wall + HOUR] {
            let stepped = Clock { start: MachineTime { wall, ..clock.start }, ..clock }.stepped();
            assert!(stepped.abs_diff(Duration::from_secs(3600)) < Duration::from_secs(1));
        }
    }

    #[test]
    fn the_boot_stays_the_same_while_this_runs() {
        let (first, second) = (machine_time(), machine_time());
        assert_eq!(first.boot_id, second.boot_id);
        assert!(first.since_boot > 0 && first.since_boot <= second.since_boot);
    }

    #[test]
    fn past_lies_before_now_on_a_machine_without_a_clock() {
        for now in [UNIX_EPOCH, UNIX_EPOCH - Duration::from_secs(9)] {
            assert!(larder_engine::Expiry::PAST.is_past(second_of(wall(now)) - 1));
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
