//! The generic cell rate algorithm (GCRA) of ITU-T I.371 and the ATM Forum's traffic management
//! specification, in its form as a leaky bucket. It is equivalent to the token bucket.
//!
//! Let B be the budget, N the window in nanoseconds and G the burst. The level of the bucket is
//! stored with `at`, the time of its last change. Each unit that a request takes raises the level
//! by N, and the level falls by B per nanosecond. So all numbers are integers, and no rounding
//! errors add up:
//!
//! ```text
//! level(now) = max(0, level - (now - at) * B)
//! used       = level / N, rounded up
//! ```
//!
//! A request for `cost` units passes if `level + cost * N <= G * N`. Then it adds `cost * N` to the
//! level. So any interval of length L admits at most `G + floor(L * B / N)` units. The theoretical
//! arrival time of the standards is `at + level / B`.

use super::meter::{Limit, Meter, Nanos, WORDS, saturate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gcra {
    /// The limit of the last request that took units or changed it. Its window is not 0.
    limit: Limit,
    at: Nanos,
    /// The used units times the window, in unit-nanoseconds; at most `u64::MAX` times the window.
    level: u128,
}

impl Gcra {
    pub(super) fn new(limit: &Limit, now: Nanos) -> Self {
        Gcra { limit: *limit, at: now, level: 0 }
    }

    pub(super) fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [budget, window, burst, at, low, high] = words;
        let level = u128::from(high) << 64 | u128::from(low);
        let gcra = Gcra { limit: Limit::gcra(budget, window, burst)?, at, level };
        (level <= gcra.weight(u64::MAX)).then_some(gcra)
    }

    /// Returns the level of `units`.
    fn weight(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.limit.window())
    }
}

impl Meter for Gcra {
    fn limit(&self) -> Limit {
        self.limit
    }

    fn since(&self) -> Nanos {
        self.at
    }

    fn advance(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.at);
        let fallen = u128::from(elapsed) * u128::from(self.limit.budget());
        self.level = self.level.saturating_sub(fallen);
        self.at = now;
    }

    fn used(&self, _now: Nanos) -> u64 {
        saturate(self.level.div_ceil(u128::from(self.limit.window())))
    }

    fn until(&self, units: u64, _now: Nanos) -> Option<Nanos> {
        let excess = self.level.saturating_sub(self.weight(units));
        match self.limit.budget() {
            _ if excess == 0 => Some(0),
            0 => None,
            budget => Some(saturate(excess.div_ceil(u128::from(budget)))),
        }
    }

    fn add(&mut self, units: u64) {
        let level = self.level.saturating_add(self.weight(units));
        self.level = level.min(self.weight(u64::MAX));
    }

    fn give_back(&mut self, units: u64) {
        self.level = self.level.saturating_sub(self.weight(units));
    }

    /// Sets the level so that it reaches 0 at `end`. The new level is at most the greater of two
    /// levels: the present one and that of a full burst. Without a budget the level never falls, so
    /// a future `end` changes nothing.
    fn end_at(&mut self, end: Option<Nanos>, now: Nanos) {
        let Some(end) = end else { return };
        if self.limit.budget() == 0 && end > now {
            return;
        }
        let wanted = u128::from(end.saturating_sub(now)) * u128::from(self.limit.budget());
        self.level = wanted.min(self.level.max(self.weight(self.limit.burst())));
    }

    fn adopt(&mut self, limit: &Limit, _now: Nanos) {
        let (from, to) = (u128::from(self.limit.window()), u128::from(limit.window()));
        // Scales the whole units and the rest separately, because level × window may overflow.
        let (units, part) = (self.level / from, self.level % from);
        self.level = units * to + (part * to).div_ceil(from);
        self.limit = *limit;
    }

    fn words(&self) -> [u64; WORDS] {
        let limit = &self.limit;
        let (low, high) = (self.level as u64, (self.level >> 64) as u64);
        [limit.budget(), limit.window(), limit.burst(), self.at, low, high]
    }
}
