//! Compares the worst second of a run with its median second.

use serde::Serialize;

use super::super::output::Spread;
use crate::generator::Second;

/// The second with the fewest answers must have at least this fraction of the median second's
/// answers.
pub(super) const DELIVERED_MIN: f64 = 0.9;
/// The highest p99.9 of any second may be at most this many times the median second's.
pub(super) const LATENCY_MAX: f64 = 5.0;

/// The median and the worst second of a run. The second with the fewest answers and the second with
/// the highest latency may differ. For example, the requests of a second in which the server stands
/// still are answered, late, in the next second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Steadiness {
    /// Requests answered in the median second.
    pub(super) median_delivered: f64,
    /// Requests answered in the second with the fewest answers.
    pub(super) worst_delivered: f64,
    /// The number of the second with the fewest answers, counted from 1.
    pub(super) worst_delivered_at: usize,
    /// `worst_delivered` divided by `median_delivered`.
    pub(super) delivered_ratio: f64,
    /// The p99.9 of the median second, in microseconds.
    pub(super) median_p999_us: f64,
    /// The highest p99.9 of any second, in microseconds.
    pub(super) worst_p999_us: f64,
    /// The number of the second with the highest p99.9, counted from 1.
    pub(super) worst_p999_at: usize,
    /// `worst_p999_us` divided by `median_p999_us`.
    pub(super) p999_ratio: f64,
}

impl Steadiness {
    pub(super) fn of(seconds: &[Second]) -> Steadiness {
        let delivered: Vec<f64> = seconds.iter().map(|second| second.requests_per_second).collect();
        let p999: Vec<f64> = seconds.iter().map(|second| second.p999_us).collect();
        let (least, late) = (Spread::of(&delivered), Spread::of(&p999));
        let at = |values: &[f64], value: f64| {
            values.iter().position(|other| *other == value).map_or(0, |index| index + 1)
        };
        Steadiness {
            median_delivered: least.median,
            worst_delivered: least.min,
            worst_delivered_at: at(&delivered, least.min),
            delivered_ratio: ratio(least.min, least.median),
            median_p999_us: late.median,
            worst_p999_us: late.max,
            worst_p999_at: at(&p999, late.max),
            p999_ratio: ratio(late.max, late.median),
        }
    }
}

fn ratio(worst: f64, median: f64) -> f64 {
    if median > 0.0 { worst / median } else { 0.0 }
}

/// The result of all rounds of one server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Verdict {
    /// [`Steadiness::delivered_ratio`] over the rounds.
    pub(super) delivered_ratio: Spread,
    /// [`Steadiness::p999_ratio`] over the rounds.
    pub(super) p999_ratio: Spread,
    /// True if the median of `delivered_ratio` is at least [`DELIVERED_MIN`] and the median of
    /// `p999_ratio` is at most [`LATENCY_MAX`].
    pub(super) holds: bool,
}

impl Verdict {
    pub(super) fn of(rounds: &[Steadiness]) -> Verdict {
        let spread = |value: fn(&Steadiness) -> f64| {
            Spread::of(&rounds.iter().map(value).collect::<Vec<_>>())
        };
        let delivered_ratio = spread(|round| round.delivered_ratio);
        let p999_ratio = spread(|round| round.p999_ratio);
        let holds = delivered_ratio.median >= DELIVERED_MIN
            && (0.0..=LATENCY_MAX).contains(&p999_ratio.median);
        Verdict { delivered_ratio, p999_ratio, holds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rows: &[(f64, f64)]) -> Vec<Second> {
        let second = |&(requests_per_second, p999_us): &(f64, f64)| Second {
            requests_per_second,
            keys_per_second: requests_per_second,
            p50_us: p999_us / 10.0,
            p99_us: p999_us / 2.0,
            p999_us,
            max_us: p999_us,
            generator_lag_us: 0.0,
            server: None,
        };
        rows.iter().map(second).collect()
    }

    #[test]
    fn the_worst_second_is_found() {
        let steady = series(&[(1000.0, 200.0), (950.0, 300.0), (1050.0, 800.0), (1000.0, 200.0)]);
        let found = Steadiness::of(&steady);
        assert_eq!((found.worst_delivered_at, found.worst_p999_at), (2, 3));
        assert_eq!((found.delivered_ratio, found.p999_ratio), (0.95, 3.2));
        assert!(Verdict::of(&[found]).holds);
    }

    #[test]
    fn each_limit_counts_and_the_median_round_decides() {
        let fine = Steadiness::of(&series(&[(1000.0, 200.0); 3]));
        let fewer = Steadiness::of(&series(&[(1000.0, 200.0), (1000.0, 200.0), (899.0, 200.0)]));
        let later = Steadiness::of(&series(&[(1000.0, 200.0), (1000.0, 200.0), (1000.0, 1001.0)]));
        assert!(!Verdict::of(&[fewer]).holds);
        assert!(!Verdict::of(&[later]).holds);
        assert!(Verdict::of(&[fine, fewer, fine]).holds);
        assert!(!Verdict::of(&[later, later, fine]).holds);
    }

    #[test]
    fn a_run_without_answers_does_not_hold() {
        assert!(!Verdict::of(&[Steadiness::of(&series(&[(0.0, 0.0); 3]))]).holds);
        assert!(!Verdict::of(&[]).holds);
    }
}
