//! Converts expiry times of requests. 0 means never. A negative time has already passed. A time of
//! up to 30 days counts from now. A larger number is an absolute time of the wall clock. If the
//! wall clock is set while the server runs, this has no effect until a restart.
//!
//! In text and meta commands, times are signed 32-bit numbers, as in memcached. In the binary
//! protocol they are unsigned and reach to 2106.

use larder_engine::{Expiry, UnixSeconds};

/// The longest relative time, in seconds.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// Returns the expiry that `exptime` means at `now`. `started` is the time at which the server
/// started. At that time, the wall clock was `wall_ahead` seconds ahead of the engine's time.
#[inline]
pub(crate) fn expiry(
    exptime: i64,
    now: UnixSeconds,
    started: UnixSeconds,
    wall_ahead: i64,
) -> Expiry {
    match exptime {
        0 => Expiry::NEVER,
        ..0 => Expiry::PAST,
        1..=RELATIVE_MAX => Expiry::at(now.saturating_add(exptime as UnixSeconds)),
        _ => match exptime.saturating_sub(wall_ahead) {
            at if at <= i64::from(started) => Expiry::PAST,
            at => Expiry::at(UnixSeconds::try_from(at).unwrap_or(UnixSeconds::MAX)),
        },
    }
}

/// Converts `exptime`, the time in a meta `R` token, to a time to live in seconds. If an item has
/// less time left than this, the reply asks the client to recache the item. `now` is the wall
/// clock's time in seconds.
pub(crate) fn recache_below(exptime: i32, now: u64) -> u32 {
    match i64::from(exptime) {
        ..=0 => 0,
        1..=RELATIVE_MAX => exptime as u32,
        exptime => u32::try_from(exptime.saturating_sub_unsigned(now)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = 1_800_000_000;
    const STARTED: UnixSeconds = NOW - 100;

    #[test]
    fn expiry_times_are_relative_up_to_30_days_and_absolute_beyond() {
        let expiry = |exptime| expiry(exptime, NOW, STARTED, 0);
        assert_eq!(expiry(0), Expiry::NEVER);
        assert_eq!(expiry(-1), Expiry::PAST);
        assert_eq!(expiry(i64::MIN), Expiry::PAST);
        assert_eq!(expiry(1), Expiry::at(NOW + 1));
        assert_eq!(expiry(2_592_000), Expiry::at(NOW + 2_592_000));
        assert_eq!(expiry(2_592_001), Expiry::PAST);
        assert_eq!(expiry(i64::from(STARTED)), Expiry::PAST);
        assert_eq!(expiry(i64::from(STARTED) + 1), Expiry::at(STARTED + 1));
        assert_eq!(expiry(4_102_444_800), Expiry::at(4_102_444_800));
        assert_eq!(expiry(i64::MAX), Expiry::at(u32::MAX));
    }

    #[test]
    fn absolute_times_follow_the_wall_clock() {
        const HOUR: u32 = 3600;
        for (ahead, engine) in [(3600, NOW - HOUR), (-3600, NOW + HOUR)] {
            let expiry = |exptime| expiry(exptime, engine, engine - 100, ahead);
            assert_eq!(expiry(i64::from(NOW) + 50), Expiry::at(engine + 50));
            assert_eq!(expiry(i64::from(NOW) - 100), Expiry::PAST);
            assert_eq!(expiry(i64::from(NOW) - 99), Expiry::at(engine - 99));
            assert_eq!(expiry(50), Expiry::at(engine + 50));
            assert_eq!(expiry(2_592_001), Expiry::PAST);
            assert_eq!(expiry(i64::MAX), Expiry::at(u32::MAX));
            assert_eq!((expiry(0), expiry(-1)), (Expiry::NEVER, Expiry::PAST));
        }
    }

    #[test]
    fn a_recache_token_gives_the_seconds_left_to_live() {
        assert_eq!(recache_below(-1, NOW.into()), 0);
        assert_eq!(recache_below(0, NOW.into()), 0);
        assert_eq!(recache_below(30, NOW.into()), 30);
        assert_eq!(recache_below(2_592_001, NOW.into()), 0);
        assert_eq!(recache_below(NOW as i32 + 5, NOW.into()), 5);
        assert_eq!(recache_below(i32::MAX, NOW.into()), i32::MAX as u32 - NOW);
    }
}
