//! Decides when requests are due.

use std::fmt;

use crate::workload::random::Random;

/// How a run times its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pacing {
    /// Closed loop: a connection sends its next batch once the previous batch is answered. While a
    /// server stalls, it gets fewer requests. So few requests see the stall, and the server's
    /// percentiles look better than they are.
    Closed,
    /// Open loop with evenly spaced requests: this many per second over all connections. Latency
    /// counts from the moment a request was due, even if it was sent later.
    Constant(f64),
    /// Open loop with exponentially distributed gaps, like requests of independent users; the rate
    /// is as for `Constant`.
    Poisson(f64),
}

impl Pacing {
    /// Returns the requests per second over all connections; `None` for the closed loop.
    pub(crate) fn rate(&self) -> Option<f64> {
        match self {
            Pacing::Closed => None,
            Pacing::Constant(rate) | Pacing::Poisson(rate) => Some(*rate),
        }
    }
}

impl fmt::Display for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pacing::Closed => f.write_str("closed loop"),
            Pacing::Constant(rate) => write!(f, "open loop, constant {rate:.0}/s"),
            Pacing::Poisson(rate) => write!(f, "open loop, poisson {rate:.0}/s"),
        }
    }
}

/// The due times of one generator thread, in nanoseconds since the start of the run.
#[derive(Debug)]
pub(crate) struct Schedule {
    gap: f64,
    exponential: bool,
    next: f64,
    random: Random,
}

impl Schedule {
    /// Returns the schedule of thread `index`. The `threads` schedules together have the given
    /// rate. Returns `None` for the closed loop.
    pub(crate) fn new(pacing: Pacing, seed: u64, index: u64, threads: u64) -> Option<Schedule> {
        let gap = 1e9 * threads as f64 / pacing.rate()?;
        let exponential = matches!(pacing, Pacing::Poisson(_));
        let mut random = Random::new(!seed ^ index);
        // With a constant rate, the first requests of the threads are evenly spaced, so their
        // requests alternate. With Poisson arrivals, a random gap comes before each thread's first
        // request.
        let next = match exponential {
            true => -gap * random.unit().ln(),
            false => gap * index as f64 / threads as f64,
        };
        Some(Schedule { gap, exponential, next, random })
    }

    /// Returns the time at which the next request is due.
    pub(crate) fn due(&self) -> u64 {
        self.next as u64
    }

    pub(crate) fn advance(&mut self) {
        self.next += match self.exponential {
            true => -self.gap * self.random.unit().ln(),
            false => self.gap,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_times(pacing: Pacing, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(pacing, 1, 0, 1).unwrap();
        (0..count)
            .map(|_| {
                let due = schedule.due();
                schedule.advance();
                due
            })
            .collect()
    }

    #[test]
    fn constant_is_even() {
        assert_eq!(due_times(Pacing::Constant(1000.0), 4), [0, 1_000_000, 2_000_000, 3_000_000]);
        let second = Schedule::new(Pacing::Constant(1000.0), 1, 1, 2).unwrap();
        assert_eq!((second.due(), second.gap), (1_000_000, 2_000_000.0));
    }

    #[test]
    fn poisson_has_the_rate_and_the_variance() {
        let times = due_times(Pacing::Poisson(1000.0), 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "{mean}");
        // The standard deviation of an exponential distribution is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
    }
}
