//! Random sampling of one event in N. The distances between samples are random, so that periodic
//! events are neither missed nor preferred. An event that is not sampled costs a subtraction.

use std::cell::Cell;

/// Number of events before the next sample while sampling is off. No worker ever counts so many
/// events.
pub(super) const NEVER: u64 = u64::MAX / 2;

/// Returns the sampling interval, from `least` to `most` events per sample, that gives about `aim`
/// samples per second. This assumes that the load stays at `events` events per `elapsed_ms`.
/// Returns `None` if no time has passed.
pub(super) fn interval_for(
    events: u64,
    elapsed_ms: u64,
    aim: u64,
    (least, most): (u32, u32),
) -> Option<u32> {
    let per_second = events.saturating_mul(1000).checked_div(elapsed_ms)?;
    Some((per_second / aim).clamp(least.into(), most.into()) as u32)
}

/// The sampling of one worker.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// Number of events before the next sample.
    left: Cell<u64>,
    /// Number of events that the next sample stands for; 0 while sampling is off.
    weight: Cell<u32>,
    random: Cell<u64>,
}

impl Sampling {
    /// Creates a sampling that is off. `seed` must be random.
    pub(crate) fn new(seed: u64) -> Sampling {
        Sampling { left: Cell::new(NEVER), weight: Cell::new(0), random: Cell::new(seed | 1) }
    }

    /// Begins a turn of the worker. Draws a new distance if sampling was turned on or off, or if
    /// `interval` has fallen. After a fall, the old distance would be too long for the lower load.
    #[inline]
    pub(crate) fn begin_turn(&self, interval: u32) {
        let weight = self.weight.get();
        if interval < weight || (interval > 0 && weight == 0) {
            self.draw(interval);
        }
    }

    /// Returns true if one of the next `events` events must be sampled. The caller must then
    /// [draw](Self::draw) the next distance. Otherwise this function subtracts `events` from the
    /// distance and returns false.
    #[inline(always)]
    pub(crate) fn counts(&self, events: u64) -> bool {
        let left = self.left.get();
        let samples = left < events;
        if !samples {
            self.left.set(left - events);
        }
        samples
    }

    /// Returns the number of events before the next sample.
    pub(super) fn left(&self) -> u64 {
        self.left.get()
    }

    pub(super) fn set_left(&self, left: u64) {
        self.left.set(left);
    }

    /// Returns the number of events that the next sample stands for.
    pub(crate) fn weight(&self) -> u32 {
        self.weight.get()
    }

    /// Draws the distance to the next sample: 1 to 2N - 1 events, whose mean is the `interval` N.
    /// An interval of 0 turns sampling off.
    pub(crate) fn draw(&self, interval: u32) {
        self.weight.set(interval);
        let Some(choices) = (2 * u64::from(interval)).checked_sub(1) else {
            self.left.set(NEVER);
            return;
        };
        // Xorshift64* (S. Vigna, "An experimental exploration of Marsaglia's xorshift generators,
        // scrambled", 2016).
        let mut random = self.random.get();
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        self.random.set(random);
        let high = random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        self.left.set((high * choices) >> 32);
    }
}
