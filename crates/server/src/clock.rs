//! The only place that reads the clock. Invariant: time never goes back. The wall clock is read
//! once, at the start, and a monotonic clock counts from then on. So an administrator or a time
//! daemon that turns the wall clock back cannot bring expired items back to life. A restart with a
//! clock that is behind cannot either, because a store remembers its time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_engine::{NANOS, UnixSeconds, second_of};

/// The clock of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The wall clock at the start, since the Unix epoch.
    wall: Duration,
    /// The same moment on the monotonic clock.
    start: Instant,
}

impl Clock {
    /// Creates a clock that starts now.
    pub(crate) fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { wall, start: Instant::now() }
    }

    /// Returns the nanoseconds since the Unix epoch. They are at least two seconds, so that
    /// [`Expiry::PAST`](larder_engine::Expiry) lies in the past even on a machine without a
    /// real-time clock.
    pub(crate) fn nanos(&self) -> u64 {
        Self::at_least_two_seconds(self.wall + self.start.elapsed())
    }

    /// Returns the second of [`nanos`](Self::nanos).
    pub(crate) fn now(&self) -> UnixSeconds {
        second_of(self.nanos())
    }

    /// Sets this clock forward to `second` if it is behind that.
    pub(crate) fn not_before(self, second: UnixSeconds) -> Clock {
        Clock { wall: self.wall.max(Duration::from_secs(second.into())), ..self }
    }

    /// Returns the wall clock at the start, in seconds since the Unix epoch.
    pub(crate) fn wall_seconds(&self) -> u64 {
        self.wall.as_secs()
    }

    /// Returns the value of [`now`](Self::now) at the start.
    pub(crate) fn started(&self) -> UnixSeconds {
        second_of(Self::at_least_two_seconds(self.wall))
    }

    /// Returns the time since the start of the server.
    pub(crate) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    fn at_least_two_seconds(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(2 * NANOS)
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
    }

    #[test]
    fn past_lies_before_now_on_a_machine_without_a_clock() {
        let clock = Clock { wall: Duration::ZERO, start: Instant::now() };
        assert!(larder_engine::Expiry::PAST.is_past(clock.now()));
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
