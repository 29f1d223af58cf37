//! When items die. The engine knows only absolute times; the rules by which clients write them
//! down (relative up to 30 days, negative, …) belong to the protocol's translator.

/// Seconds since the Unix epoch. Unsigned: good until 2106.
pub type UnixSeconds = u32;

/// The moment from which an item is gone, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry(UnixSeconds);

impl Expiry {
    /// The item does not expire.
    pub const NEVER: Expiry = Expiry(0);
    /// The item is expired from the beginning.
    pub const PAST: Expiry = Expiry(1);

    /// The item is gone when the clock reaches `seconds`.
    pub fn at(seconds: UnixSeconds) -> Self {
        Expiry(seconds.max(1))
    }

    /// The seconds at which the item is gone; `None` for never.
    pub fn seconds(self) -> Option<UnixSeconds> {
        (self.0 != 0).then_some(self.0)
    }

    /// Whether an item with this expiry is gone at `now`.
    pub fn is_past(self, now: UnixSeconds) -> bool {
        self.0 != 0 && self.0 <= now
    }

    /// Seconds left at `now`; `None` for never.
    pub fn remaining(self, now: UnixSeconds) -> Option<UnixSeconds> {
        self.seconds().map(|at| at.saturating_sub(now))
    }

    /// The form in a record: 0 is never.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    pub(crate) fn from_raw(raw: u32) -> Self {
        Expiry(raw)
    }
}
