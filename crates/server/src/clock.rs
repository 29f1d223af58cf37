//! The only place that reads the clock. Invariant: time never goes back. The wall clock is read
//! once, at the start, and a monotonic clock counts from then on. So an administrator or a time
//! daemon that turns the wall clock back cannot bring expired items back to life. A restart with a
//! clock that is behind cannot either, because a store remembers its time. Absolute times of clients
//! are times of the wall clock as it was at the start.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_engine::{NANOS, UnixSeconds, second_of};

/// The clock of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The wall clock at the start, in nanoseconds since the Unix epoch.
    wall: u64,
    /// The server's time at the start, in nanoseconds since the Unix epoch.
    began: u64,
    /// The same moment on the monotonic clock.
    start: Instant,
}

impl Clock {
    /// Creates a clock that starts now.
    pub(crate) fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::at(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX))
    }

    fn at(wall: u64) -> Clock {
        // So that [`Expiry::PAST`](larder_engine::Expiry) lies in the past even on a machine
        // without a real-time clock.
        Clock { wall, began: wall.max(2 * NANOS), start: Instant::now() }
    }

    /// Returns the nanoseconds since the Unix epoch.
    pub(crate) fn nanos(&self) -> u64 {
        self.began.saturating_add(self.uptime().as_nanos() as u64)
    }

    /// Returns the second of [`nanos`](Self::nanos).
    pub(crate) fn now(&self) -> UnixSeconds {
        second_of(self.nanos())
    }

    /// Sets this clock forward to `second` if it is behind that.
    pub(crate) fn not_before(self, second: UnixSeconds) -> Clock {
        Clock { began: self.began.max(u64::from(second) * NANOS), ..self }
    }

    /// Returns the wall clock at the start, in seconds since the Unix epoch.
    pub(crate) fn wall_seconds(&self) -> u64 {
        self.wall / NANOS
    }

    /// Returns the value of [`now`](Self::now) at the start.
    pub(crate) fn started(&self) -> UnixSeconds {
        second_of(self.began)
    }

    /// Returns the seconds by which the wall clock was ahead of this clock at the start; negative
    /// if it was behind.
    pub(crate) fn wall_ahead(&self) -> i64 {
        let nanos = i128::from(self.wall) - i128::from(self.began);
        (nanos + i128::from(NANOS / 2)).div_euclid(NANOS.into()) as i64
    }

    /// Returns the seconds since the Unix epoch by the wall clock as it was at the start.
    pub(crate) fn wall(&self) -> u64 {
        u64::from(self.now()).saturating_add_signed(self.wall_ahead())
    }

    /// Returns the time since the start of the server.
    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Returns an unpredictable number that differs at every start, as the seed of the key hash. A
/// client that chooses keys must not be able to choose their buckets.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library keys this with the kernel's random numbers, once per process and thread.
    // The time distinguishes two servers in one process.
    RandomState::new().hash_one(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_at_the_wall_clock_and_never_goes_back() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let clock = Clock::start();
        assert!(u64::from(clock.started()).abs_diff(wall) <= 1);
        assert!(clock.now() >= clock.started());
    }

    #[test]
    fn the_clock_never_starts_behind_the_time_of_a_store() {
        let clock = Clock::start();
        assert_eq!(clock.not_before(7).started(), clock.started());
        let ahead = clock.not_before(clock.started() + 1000);
        assert_eq!(ahead.started(), clock.started() + 1000);
        assert!(ahead.now() >= ahead.started() && ahead.uptime() < Duration::from_secs(60));
        assert!((-1000..=-999).contains(&ahead.wall_ahead()), "{ahead:?}");
        assert!(ahead.wall().abs_diff(ahead.wall_seconds()) < 60);
    }

    #[test]
    fn past_lies_before_now_on_a_machine_without_a_clock() {
        let clock = Clock::at(0);
        assert!(larder_engine::Expiry::PAST.is_past(clock.now()));
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
