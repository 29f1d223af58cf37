//! What the algorithms of rate limiters share: the limit that a request states, and the operations
//! that each algorithm implements.

/// A time on the engine's clock, in nanoseconds since the Unix epoch, or a duration in nanoseconds.
pub type Nanos = u64;

/// How a limiter counts used units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows that start with the first request that takes units. Each window has the whole
    /// budget.
    Fixed,
    /// Windows whose units fade out evenly during the window that follows.
    Sliding,
    /// A bucket that refills evenly (token bucket).
    Gcra,
}

/// A limit as a request states it: `budget` units per `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    budget: u64,
    window: Nanos,
    burst: u64,
}

impl Limit {
    /// Allows `budget` units per fixed window; a window of 0 never ends.
    pub fn fixed(budget: u64, window: Nanos) -> Limit {
        Limit { algorithm: Algorithm::Fixed, budget, window, burst: budget }
    }

    /// Allows about `budget` units in any `window`. Returns `None` for a window of 0.
    pub fn sliding(budget: u64, window: Nanos) -> Option<Limit> {
        let limit = Limit { algorithm: Algorithm::Sliding, budget, window, burst: budget };
        (window != 0).then_some(limit)
    }

    /// Allows `burst` units at once, and refills `budget` units per `window`. Returns `None` for a
    /// window of 0.
    pub fn gcra(budget: u64, window: Nanos, burst: u64) -> Option<Limit> {
        let limit = Limit { algorithm: Algorithm::Gcra, budget, window, burst };
        (window != 0).then_some(limit)
    }

    /// Returns the algorithm that counts the units.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the units per window.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the length of the window; 0 for one that never ends, which only
    /// [`Algorithm::Fixed`] has.
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// Returns the size of the bucket. It is the budget for all algorithms except
    /// [`Algorithm::Gcra`].
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the number of units that may be used at once. A budget of 0 allows none, regardless
    /// of the burst.
    pub fn capacity(&self) -> u64 {
        if self.budget == 0 { 0 } else { self.burst }
    }
}

/// The number of words that a meter is encoded in, at most.
pub(super) const WORDS: usize = 6;

/// The state of one algorithm, together with the limit that the last request stored.
///
/// All methods but `advance`, `since`, `limit` and `words` need a meter that `advance` has brought
/// to `now`.
pub(super) trait Meter {
    fn limit(&self) -> Limit;

    /// Returns the start of the window; for GCRA, the time of the last change.
    fn since(&self) -> Nanos;

    /// Brings the state to `now`. If `now` is before `since`, no time has passed, and `since`
    /// becomes `now`. A meter without used units starts afresh at `now`.
    fn advance(&mut self, now: Nanos);

    /// Returns the number of used units, rounded up.
    fn used(&self, now: Nanos) -> u64;

    /// Returns the exact time from `now` until at most `units` are used; `None` for never.
    fn until(&self, units: u64, now: Nanos) -> Option<Nanos>;

    /// Returns the number of units at which [`until`](Meter::until) bends: below and above this
    /// number it is linear in `units`, up to rounding.
    fn bend(&self) -> u64 {
        0
    }

    fn add(&mut self, units: u64);

    /// Subtracts `units`, but at most the used ones.
    fn give_back(&mut self, units: u64);

    /// Changes the time at which no units are used any more, as
    /// [`Limiter::end_at`](super::Limiter::end_at) says.
    fn end_at(&mut self, end: Option<Nanos>, now: Nanos);

    /// Continues under `limit`, which has the same algorithm, with the same number of used units.
    fn adopt(&mut self, limit: &Limit, now: Nanos);

    /// Returns all fields except the algorithm; words that the algorithm does not need are 0.
    fn words(&self) -> [u64; WORDS];
}

/// Converts to 64 bits; a number that is too large becomes `u64::MAX`.
pub(super) fn saturate(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
