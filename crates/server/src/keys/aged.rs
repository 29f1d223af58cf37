//! A sketch of the most requested keys. The weights of the keys decrease with a half-life of
//! [`HALF_LIFE`]. A weight divided by `seconds` is the present rate of its key.

use super::sketch::Sketch;

/// Time after which a request has half of its weight, in seconds.
pub(super) const HALF_LIFE: f64 = 30.0;
/// The number of half-lives after which the weight of a request is negligible. A sketch that was
/// not aged for longer than this, for example because the process was suspended, is cleared.
const FORGOTTEN: f64 = 20.0;
/// The smallest number of seconds by which weights are divided to get rates.
pub(super) const LEAST: f64 = 0.1;

/// A sketch, and the number of seconds that its weights are divided by to get rates.
#[derive(Debug)]
pub(super) struct AgedSketch {
    pub(super) sketch: Sketch,
    aged_ms: u64,
    /// Seconds in which the weights were collected. [`age`](Self::age) multiplies them by the same
    /// factors as the weights.
    seconds: f64,
}

impl AgedSketch {
    pub(super) fn new(now_ms: u64) -> AgedSketch {
        AgedSketch { sketch: Sketch::default(), aged_ms: now_ms, seconds: 0.0 }
    }

    /// Ages the weights by the time since the last call, that is, multiplies them by a factor.
    /// Multiplies `seconds` by the same factor, so the rate of a steady load is right at any time.
    /// Returns the factor.
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
