//! A sketch of the most requested keys whose weights age with time. The weights divided by
//! `seconds` are the present rates.

use super::sketch::Sketch;

/// Time after which a request has half of its weight, in seconds.
pub(super) const HALF_LIFE: f64 = 30.0;
/// The number of half-lives after which a request counts nothing. A sketch that was not aged for
/// longer than this, for example because the process was suspended, is cleared.
const FORGOTTEN: f64 = 20.0;
/// The smallest number of seconds by which weights are divided to get rates.
pub(super) const LEAST: f64 = 0.1;

/// A sketch, and the length of the time in which its weights were collected.
#[derive(Debug)]
pub(super) struct AgedSketch {
    pub(super) sketch: Sketch,
    aged_ms: u64,
    /// The time in which the weights were collected, in seconds. It ages like the weights.
    seconds: f64,
}

impl AgedSketch {
    pub(super) fn new(now_ms: u64) -> AgedSketch {
        AgedSketch { sketch: Sketch::default(), aged_ms: now_ms, seconds: 0.0 }
    }

    /// Ages the weights by the time since the last call. `seconds` ages like the weights, so the
    /// rate of a steady load is right at any time. Returns the factor by which the weights were
    /// multiplied.
    pub(super) fn age(&mut self, now_ms: u64) -> f64 {
        let elapsed = now_ms.saturating_sub(self.aged_ms) as f64 / 1000.0;
        if elapsed > FORGOTTEN * HALF_LIFE {
            *self = AgedSketch::new(now_ms);
            return 0.0;
        }
        if elapsed == 0.0 {
            return 1.0;
        }
        self.aged_ms = now_ms;
        let factor = (-elapsed / HALF_LIFE).exp2();
        self.sketch.age(factor);
        self.seconds = (self.seconds + elapsed) * factor;
        factor
    }

    /// Returns the seconds by which the weights must be divided to get rates; at least [`LEAST`].
    pub(super) fn seconds(&self) -> f64 {
        self.seconds.max(LEAST)
    }
}
