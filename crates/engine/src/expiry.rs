//! Times, and expiry times of items. The engine knows only absolute times. The server applies the
//! rules of the protocol (relative times up to 30 days, negative times, …).

use larder_log::format::NANOS;

/// Seconds since the Unix epoch. Unsigned: good until 2106.
pub type UnixSeconds = u32;

/// Converts nanoseconds since the Unix epoch to seconds. Times after 2106 become the largest value.
#[inline]
pub fn second_of(nanos: u64) -> UnixSeconds {
    UnixSeconds::try_from(nanos / NANOS).unwrap_or(UnixSeconds::MAX)
}

/// The time at which an item expires, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry(UnixSeconds);

impl Expiry {
    /// The item does not expire.
    pub const NEVER: Expiry = Expiry(0);
    /// The item has already expired.
    pub const PAST: Expiry = Expiry(1);

    /// Creates an expiry: the item is gone when the clock reaches `seconds`. The time 0 becomes 1,
    /// because 0 stands for never.
    pub fn at(seconds: UnixSeconds) -> Self {
        Expiry(seconds.max(1))
    }

    /// Returns the second at which the item is gone; `None` for never.
    pub fn seconds(self) -> Option<UnixSeconds> {
        (self.0 != 0).then_some(self.0)
    }

    /// Returns true if an item with this expiry is gone at `now`.
    pub fn is_past(self, now: UnixSeconds) -> bool {
        self.0 != 0 && self.0 <= now
    }

    /// Returns the seconds left at `now`; `None` for never.
    pub fn remaining(self, now: UnixSeconds) -> Option<UnixSeconds> {
        self.seconds().map(|at| at.saturating_sub(now))
    }

    /// Returns the form stored in a record, where 0 is never.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    pub(crate) fn from_raw(raw: u32) -> Self {
        Expiry(raw)
    }
}
