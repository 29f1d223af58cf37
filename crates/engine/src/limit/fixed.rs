//! Fixed windows: the oldest way to limit a rate, an expiring counter.
//!
//! A window starts with the first request that takes units and ends `length` later; with a length
//! of 0 it never ends. A request for `cost` units passes if `used + cost <= budget`. So each window
//! admits at most `budget` units, but two adjacent windows may admit twice as many within a moment.

use super::meter::{Limit, Meter, Nanos, WORDS};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FixedWindow {
    limit: Limit,
    start: Nanos,
    /// The length of the current window. The next window has the length in `limit`.
    length: Nanos,
    used: u64,
}

impl FixedWindow {
    pub(super) fn new(limit: &Limit, now: Nanos) -> Self {
        FixedWindow { limit: *limit, start: now, length: limit.window(), used: 0 }
    }

    pub(super) fn from_words([budget, window, start, length, used, _]: [u64; WORDS]) -> Self {
        FixedWindow { limit: Limit::fixed(budget, window), start, length, used }
    }
}

impl Meter for FixedWindow {
    fn limit(&self) -> Limit {
        self.limit
    }

    fn since(&self) -> Nanos {
        self.start
    }

    fn advance(&mut self, now: Nanos) {
        self.start = self.start.min(now);
        let over = self.length != 0 && now - self.start >= self.length;
        if over || self.used == 0 {
            *self = FixedWindow::new(&self.limit, now);
        }
    }

    fn used(&self, _now: Nanos) -> u64 {
        self.used
    }

    fn until(&self, units: u64, now: Nanos) -> Option<Nanos> {
        if self.used <= units {
            return Some(0);
        }
        let elapsed = now.saturating_sub(self.start);
        (self.length != 0).then(|| self.length.saturating_sub(elapsed))
    }

    fn add(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }

    fn give_back(&mut self, units: u64) {
        self.used = self.used.saturating_sub(units);
    }

    fn end_at(&mut self, end: Option<Nanos>, now: Nanos) {
        self.start = now;
        self.length = end.map_or(0, |end| end.saturating_sub(now));
        if end.is_some() && self.length == 0 {
            self.used = 0;
        }
    }

    fn adopt(&mut self, limit: &Limit, _now: Nanos) {
        self.limit = *limit;
    }

    fn words(&self) -> [u64; WORDS] {
        [self.limit.budget(), self.limit.window(), self.start, self.length, self.used, 0]
    }
}
