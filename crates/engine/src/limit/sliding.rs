//! The sliding window counter: an estimate of the units used in the last window, from the units
//! that were taken in the previous and in the current window. Cloudflare described it in 2017 ("How
//! we built rate limiting capable of scaling to millions of domains").
//!
//! Windows of length N follow each other; the first starts with the first request that takes units.
//! The estimate assumes that the units of the previous window were taken evenly. `elapsed` is the
//! time since the start of the current window:
//!
//! ```text
//! used = ceil(previous * (N - elapsed) / N) + current
//! ```
//!
//! A request for `cost` units passes if `used + cost <= budget`, and adds `cost` to `current`. The
//! units of the previous window may all have been taken at its end. So any interval of length N
//! admits less than twice the budget.

use super::meter::{Limit, Meter, Nanos, WORDS, saturate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlidingWindow {
    /// The limit of the last request that took units or changed it. Its window is not 0.
    limit: Limit,
    /// The start of the current window.
    start: Nanos,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    pub(super) fn new(limit: &Limit, now: Nanos) -> Self {
        SlidingWindow { limit: *limit, start: now, previous: 0, current: 0 }
    }

    pub(super) fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [budget, window, start, previous, current, _] = words;
        let limit = Limit::sliding(budget, window)?;
        Some(SlidingWindow { limit, start, previous, current })
    }

    /// Returns the time until the current window ends.
    fn rest(&self, now: Nanos) -> Nanos {
        self.limit.window().saturating_sub(now.saturating_sub(self.start))
    }

    /// Returns how much time is left of a window when the `count` units of the previous window have
    /// faded to `units`. `count` is not 0.
    fn rest_for(&self, count: u64, units: u64) -> Nanos {
        let window = self.limit.window();
        let rest = u128::from(units) * u128::from(window) / u128::from(count);
        saturate(rest).min(window)
    }
}

impl Meter for SlidingWindow {
    fn limit(&self) -> Limit {
        self.limit
    }

    fn since(&self) -> Nanos {
        self.start
    }

    fn advance(&mut self, now: Nanos) {
        self.start = self.start.min(now);
        let window = self.limit.window();
        match (now - self.start) / window {
            0 => {}
            1 => {
                self.previous = self.current;
                self.current = 0;
                self.start += window;
            }
            _ => {
                self.previous = 0;
                self.current = 0;
            }
        }
        if self.previous == 0 && self.current == 0 {
            self.start = now;
        }
    }

    fn used(&self, now: Nanos) -> u64 {
        let spread = u128::from(self.previous) * u128::from(self.rest(now));
        let previous = saturate(spread.div_ceil(u128::from(self.limit.window())));
        previous.saturating_add(self.current)
    }

    fn until(&self, units: u64, now: Nanos) -> Option<Nanos> {
        if self.used(now) <= units {
            return Some(0);
        }
        let rest = self.rest(now);
        Some(match units.checked_sub(self.current) {
            // The units of the previous window fade during the current window. The units of the
            // current window fade during the next one.
            Some(left) => rest.saturating_sub(self.rest_for(self.previous, left)),
            None => {
                let faded = self.limit.window() - self.rest_for(self.current, units);
                rest.saturating_add(faded)
            }
        })
    }

    fn bend(&self) -> u64 {
        self.current
    }

    fn add(&mut self, units: u64) {
        self.current = self.current.saturating_add(units);
    }

    fn give_back(&mut self, units: u64) {
        let from_current = units.min(self.current);
        self.current -= from_current;
        self.previous = self.previous.saturating_sub(units - from_current);
    }

    fn end_at(&mut self, end: Option<Nanos>, now: Nanos) {
        match end {
            Some(end) if end <= now => *self = SlidingWindow::new(&self.limit, now),
            // The window starts now at the latest, so it ends one window length from now at the
            // latest.
            Some(end) => self.start = end.saturating_sub(self.limit.window()).min(now),
            None => {}
        }
    }

    fn adopt(&mut self, limit: &Limit, now: Nanos) {
        if limit.window() != self.limit.window() {
            *self = SlidingWindow { current: self.used(now), ..SlidingWindow::new(limit, now) };
        }
        self.limit = *limit;
    }

    fn words(&self) -> [u64; WORDS] {
        let (budget, window) = (self.limit.budget(), self.limit.window());
        [budget, window, self.start, self.previous, self.current, 0]
    }
}
