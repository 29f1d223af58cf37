//! The arithmetic of rate limiters, as pure functions of a limiter's state, a request and the time.
//!
//! A request asks for `cost` units under a [`Limit`] and passes if that many are free. The files of
//! this folder have the equations of the three algorithms. All algorithms follow these rules:
//!
//! - A request passes if `used + cost <= capacity`. The capacity is the budget, or for GCRA the
//!   burst.
//! - All rounding is against the client, so no limiter admits too much.
//! - A limiter keeps the parameters of the last request that took units or replaced them. They
//!   determine when its units become free. A request with other parameters, even with another
//!   algorithm, replaces them and keeps the number of used units.
//! - A refused request takes no units. It replaces the parameters only if it can pass sooner by its
//!   own, and no other request has to wait longer by them. Otherwise clients with the old and with
//!   new parameters, for example while a new version of an application replaces the old one, could
//!   start new windows by turns, and no unit would become free.
//! - A limiter without used units counts as missing and starts afresh.
//! - If the clock is before a limiter's own time, it was set back between two boots. Then no time
//!   counts as passed, and the limiter's time becomes the clock's. So no wait exceeds the window's
//!   length.
//!
//! No function panics, overflows, allocates or uses floating point, for any arguments. Numbers too
//! large for their type saturate.

pub(crate) mod expiry;
mod fixed;
mod gcra;
mod meter;
mod sliding;
#[cfg(test)]
mod tests;

use fixed::FixedWindow;
use gcra::Gcra;
pub use meter::{Algorithm, Limit, Nanos};
use meter::{Meter, WORDS};
use sliding::SlidingWindow;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the request passes.
    pub allowed: bool,
    /// The number of units that are free after the decision.
    pub remaining: u64,
    /// The time until the same request passes if no other request takes units: `Some(0)` if it
    /// passed, `None` for never.
    pub retry: Option<Nanos>,
    /// The time until no units are used: `Some(0)` if none are used now, `None` for never.
    pub reset: Option<Nanos>,
}

/// The used units of one key, and the limit of the last request that took units or replaced the
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limiter(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fixed(FixedWindow),
    Sliding(SlidingWindow),
    Gcra(Gcra),
}

impl Limiter {
    /// The largest number of bytes of an encoded limiter.
    pub const ENCODED_MAX: usize = 1 + 8 * WORDS;

    /// Decides about a request for `cost` units at `now`. `limiter` is `None` for a missing key.
    ///
    /// Returns the decision, and the limiter that the caller must store; `None` if the limiter has
    /// not changed. A request for 0 units always passes and stores nothing. A refused request
    /// stores a limiter only if it can pass sooner by `limit` than by the limiter's own limit, or
    /// if the clock was set back. In the second case, the limiter's time is set back, too.
    pub fn decide(
        limiter: Option<&Limiter>,
        limit: &Limit,
        cost: u64,
        now: Nanos,
    ) -> (Decision, Option<Limiter>) {
        let room = limit.capacity().checked_sub(cost);
        let mut next = limiter.map_or_else(|| Limiter::new(limit, now), |old| old.advanced(now));
        let used = next.meter().used(now);
        let allowed = cost == 0 || room.is_some_and(|room| used <= room);
        let mut stored = allowed && cost != 0;
        let mut retry = allowed.then_some(0);
        if stored {
            next.adopt(limit, now);
            next.meter_mut().add(cost);
        } else if !allowed {
            stored = limiter.is_some_and(|old| old.since() > now);
            if let Some(room) = room {
                stored |= next.adopt_if_sooner(limit, room, now);
                retry = next.meter().until(room, now);
            }
        }
        let remaining = limit.capacity().saturating_sub(next.meter().used(now));
        let reset = next.meter().until(0, now);
        (Decision { allowed, remaining, retry, reset }, stored.then_some(next))
    }

    /// Creates a limiter in which `used` units are used. Called when an item with a number as its
    /// value becomes a limiter.
    ///
    /// The limiter's window ends at `end`, within the bounds of [`Limiter::end_at`]. With `None`, a
    /// window of `limit` starts now. GCRA has no windows: it ignores a future `end`. With a past
    /// `end`, no units are used.
    pub fn with_used(limit: &Limit, used: u64, end: Option<Nanos>, now: Nanos) -> Limiter {
        let mut limiter = Limiter::new(limit, now);
        limiter.meter_mut().add(used);
        let counts = |end: Nanos| limit.algorithm() != Algorithm::Gcra || end <= now;
        if end.is_some_and(counts) {
            limiter.meter_mut().end_at(end, now);
        }
        limiter
    }

    /// Takes `units`, even beyond the limit.
    pub fn add(&mut self, units: u64, now: Nanos) {
        *self = self.advanced(now);
        self.meter_mut().add(units);
    }

    /// Gives back `units`, but not more than are in use.
    pub fn give_back(&mut self, units: u64, now: Nanos) {
        *self = self.advanced(now);
        self.meter_mut().give_back(units);
    }

    /// Changes the time at which no units are used any more. If `end` is not after `now`, no units
    /// are used from now on.
    ///
    /// - A fixed window ends at `end`, or never with `None`.
    /// - A sliding window ends at `end`, but at most one window length from now. `None` changes
    ///   nothing.
    /// - The level of GCRA changes so that it reaches 0 at `end`. The new level is at most the
    ///   greater of two levels: the present one and that of a full burst. `None` changes nothing.
    ///   With a budget of 0 the level never falls, so a future `end` changes nothing either.
    pub fn end_at(&mut self, end: Option<Nanos>, now: Nanos) {
        *self = self.advanced(now);
        self.meter_mut().end_at(end, now);
    }

    /// Returns the number of used units, rounded up.
    pub fn used(&self, now: Nanos) -> u64 {
        self.advanced(now).meter().used(now)
    }

    /// Returns the time until no units are used, as [`Decision::reset`].
    pub fn reset(&self, now: Nanos) -> Option<Nanos> {
        self.advanced(now).meter().until(0, now)
    }

    /// Returns true if the limiter has no used units, so that it counts as missing.
    pub fn is_new(&self, now: Nanos) -> bool {
        self.used(now) == 0
    }

    /// Returns the start of the window; for GCRA, the time of the last change.
    pub(crate) fn since(&self) -> Nanos {
        self.meter().since()
    }

    /// Returns the limit of the last request that took units or changed it.
    pub fn limit(&self) -> Limit {
        self.meter().limit()
    }

    /// Writes the limiter to `out`: a byte for the algorithm, then words in little-endian order.
    /// Returns the bytes, whose number depends only on the algorithm.
    pub fn encode<'b>(&self, out: &'b mut [u8; Self::ENCODED_MAX]) -> &'b [u8] {
        out[0] = match self.0 {
            State::Fixed(_) => FIXED,
            State::Sliding(_) => SLIDING,
            State::Gcra(_) => GCRA,
        };
        for (bytes, word) in out[1..].as_chunks_mut().0.iter_mut().zip(self.meter().words()) {
            *bytes = word.to_le_bytes();
        }
        &out[..1 + 8 * words_of(out[0])]
    }

    /// Reads what [`Limiter::encode`] wrote. Returns `None` for bytes that `encode` cannot have
    /// written, for example those of a newer program.
    pub fn decode(bytes: &[u8]) -> Option<Limiter> {
        let (&algorithm, rest) = bytes.split_first()?;
        if rest.len() != 8 * words_of(algorithm) {
            return None;
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(rest.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(Limiter(match algorithm {
            FIXED => State::Fixed(FixedWindow::from_words(words)),
            SLIDING => State::Sliding(SlidingWindow::from_words(words)?),
            GCRA => State::Gcra(Gcra::from_words(words)?),
            _ => return None,
        }))
    }

    fn new(limit: &Limit, now: Nanos) -> Limiter {
        Limiter(match limit.algorithm() {
            Algorithm::Fixed => State::Fixed(FixedWindow::new(limit, now)),
            Algorithm::Sliding => State::Sliding(SlidingWindow::new(limit, now)),
            Algorithm::Gcra => State::Gcra(Gcra::new(limit, now)),
        })
    }

    fn advanced(&self, now: Nanos) -> Limiter {
        let mut limiter = *self;
        limiter.meter_mut().advance(now);
        limiter
    }

    /// Continues under `limit` with the same number of used units. The limiter must be advanced to
    /// `now`.
    fn adopt(&mut self, limit: &Limit, now: Nanos) {
        let used = self.meter().used(now);
        if used != 0 && self.limit().algorithm() == limit.algorithm() {
            self.meter_mut().adopt(limit, now);
        } else {
            *self = Limiter::new(limit, now);
            self.meter_mut().add(used);
        }
    }

    /// Continues under `limit` if then at most `room` units are used sooner, and no smaller or
    /// greater number of units is reached later. Returns true if so. The limiter must be advanced
    /// to `now`, and more than `room` units must be used.
    ///
    /// So no request has to wait longer because another one was refused. Without this, two clients
    /// with different limits and costs could adopt their limits by turns, each time with a new
    /// window.
    fn adopt_if_sooner(&mut self, limit: &Limit, room: u64, now: Nanos) -> bool {
        if self.limit() == *limit {
            return false;
        }
        let mut changed = *self;
        changed.adopt(limit, now);
        let waits = |units| {
            let [new, old] = [&changed, &*self].map(|limiter| limiter.meter().until(units, now));
            (new.unwrap_or(Nanos::MAX), old.unwrap_or(Nanos::MAX))
        };
        let is_sooner = |(new, old)| new < old;
        let is_no_later = |(new, old)| new <= old;
        // The wait of the new limiter is linear in the number of units, and that of the old one has
        // at most one bend. So these numbers of units decide for all.
        let last = self.meter().used(now).saturating_sub(1);
        let units = [0, self.meter().bend().min(last), last];
        let adopts = is_sooner(waits(room)) && units.map(waits).into_iter().all(is_no_later);
        if adopts {
            *self = changed;
        }
        adopts
    }

    fn meter(&self) -> &dyn Meter {
        match &self.0 {
            State::Fixed(meter) => meter,
            State::Sliding(meter) => meter,
            State::Gcra(meter) => meter,
        }
    }

    fn meter_mut(&mut self) -> &mut dyn Meter {
        match &mut self.0 {
            State::Fixed(meter) => meter,
            State::Sliding(meter) => meter,
            State::Gcra(meter) => meter,
        }
    }
}

/// First bytes of encoded limiters. Stores contain these bytes, so they never change.
const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const GCRA: u8 = 3;

/// Returns the number of words that follow the first byte.
fn words_of(algorithm: u8) -> usize {
    if algorithm == GCRA { WORDS } else { WORDS - 1 }
}
