//! Chooses the key of the next request.

use std::fmt;
use std::str::FromStr;

use super::random::Random;
use crate::Error;

/// The popularity of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All keys are equally popular.
    Uniform,
    /// A bell curve around the middle of the key space. Its standard deviation is this fraction of
    /// the key space.
    Gaussian(f64),
    /// The frequency of the k-th most popular key is proportional to k to the power of −theta.
    Zipf(f64),
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        let number = |default: f64, range: std::ops::RangeInclusive<f64>| match parameter {
            None => Ok(default),
            Some(text) => match text.parse::<f64>() {
                Ok(value) if range.contains(&value) => Ok(value),
                _ => Err(Error::usage(format!(
                    "the parameter of {name} must be a number from {} to {}",
                    range.start(),
                    range.end()
                ))),
            },
        };
        match name {
            "uniform" if parameter.is_none() => Ok(Distribution::Uniform),
            "gaussian" => Ok(Distribution::Gaussian(number(1.0 / 6.0, 0.0001..=10.0)?)),
            "zipf" => Ok(Distribution::Zipf(number(0.99, 0.01..=10.0)?)),
            _ => Err(Error::usage(format!(
                "{text:?} is no distribution: uniform, gaussian[:SIGMA] or zipf[:THETA]"
            ))),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Gaussian(sigma) => write!(f, "gaussian:{sigma:.4}"),
            Distribution::Zipf(theta) => write!(f, "zipf:{theta}"),
        }
    }
}

/// Draws key numbers below `keys` with a given distribution.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    keys: u64,
    kind: SamplerKind,
}

#[derive(Clone, Debug)]
enum SamplerKind {
    Uniform,
    Gaussian { sigma: f64 },
    Zipf { zipf: Zipf, stride: u64 },
}

impl Sampler {
    /// Creates a sampler for the numbers below `keys`, which must not be 0.
    pub(crate) fn new(distribution: Distribution, keys: u64) -> Sampler {
        assert!(keys > 0, "a key space without keys");
        let kind = match distribution {
            Distribution::Uniform => SamplerKind::Uniform,
            Distribution::Gaussian(sigma) => SamplerKind::Gaussian { sigma: sigma * keys as f64 },
            Distribution::Zipf(theta) => {
                SamplerKind::Zipf { zipf: Zipf::new(keys, theta), stride: coprime_stride(keys) }
            }
        };
        Sampler { keys, kind }
    }

    #[inline]
    pub(crate) fn sample(&self, random: &mut Random) -> u64 {
        match &self.kind {
            SamplerKind::Uniform => random.below(self.keys),
            SamplerKind::Gaussian { sigma } => loop {
                let value = self.keys as f64 / 2.0 + sigma * normal(random);
                if value >= 0.0 && value < self.keys as f64 {
                    return value as u64;
                }
            },
            SamplerKind::Zipf { zipf, stride } => {
                // Spreads popular keys over the key space. Before a load, the generator stores the
                // keys in the order of their numbers. So popular keys with adjacent numbers would
                // be stored together.
                let rank = zipf.sample(random) - 1;
                (u128::from(rank) * u128::from(*stride) % u128::from(self.keys)) as u64
            }
        }
    }
}

/// Returns a number that is coprime to `n` and near `n` divided by the golden ratio. Its first `n`
/// multiples, modulo `n`, are all the numbers below `n`. Successive multiples lie far apart.
fn coprime_stride(n: u64) -> u64 {
    let mut stride = (n as f64 * 0.618_033_988_749_895) as u64 | 1;
    while gcd(stride, n) != 1 {
        stride += 2;
    }
    stride
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Draws from a normal distribution by the Box-Muller method, which yields two numbers; one is
/// dropped.
fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos()
}

/// Draws ranks from 1..=n by rejection-inversion (Hörmann and Derflinger, 1996). The method is
/// exact for any exponent, needs no table, and takes hardly more than one try per number.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    ranks: f64,
    theta: f64,
    low: f64,
    high: f64,
    squeeze: f64,
}

impl Zipf {
    pub(crate) fn new(ranks: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { ranks: ranks as f64, theta, low: 0.0, high: 0.0, squeeze: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.ranks + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    #[inline]
    pub(crate) fn sample(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.squeeze || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// Returns the integral of `density` from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let exponent = (1.0 - self.theta) * log;
        // The ratio is (eᵗ − 1) / t with t = `exponent`. At t = 0 its limit is 1, so theta = 1
        // needs no separate formula.
        let ratio = if exponent.abs() > 1e-8 { exponent.exp_m1() / exponent } else { 1.0 };
        log * ratio
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.theta)).max(-1.0);
        let ratio = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 };
        (area * ratio).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 400_000;

    fn counts(distribution: Distribution, keys: u64) -> Vec<u64> {
        let sampler = Sampler::new(distribution, keys);
        let mut random = Random::new(7);
        let mut counts = vec![0; keys as usize];
        for _ in 0..DRAWS {
            counts[sampler.sample(&mut random) as usize] += 1;
        }
        counts
    }

    /// Checks that a key of this probability was drawn about as often as expected. A difference of
    /// five standard deviations of a binomial count is allowed. With a correct sampler, the count
    /// of about one key in a million differs by more.
    fn assert_probability(count: u64, probability: f64, what: &str) {
        let expected = probability * DRAWS as f64;
        let tolerance = 5.0 * (expected * (1.0 - probability)).sqrt() + 1.0;
        assert!((count as f64 - expected).abs() <= tolerance, "{what}: {count}, not {expected:.1}");
    }

    #[test]
    fn zipf_has_the_exact_probabilities() {
        for (theta, keys) in
            [(0.6, 1000), (0.99, 1000), (1.0, 50), (1.2, 10), (2.0, 1000), (0.8, 1)]
        {
            let mut seen = counts(Distribution::Zipf(theta), keys);
            let total: f64 = (1..=keys).map(|rank| (rank as f64).powf(-theta)).sum();
            let stride = coprime_stride(keys);
            let by_rank: Vec<u64> = (0..keys)
                .map(|rank| std::mem::take(&mut seen[(rank * stride % keys) as usize]))
                .collect();
            for (index, &count) in by_rank.iter().enumerate() {
                let probability = ((index + 1) as f64).powf(-theta) / total;
                assert_probability(
                    count,
                    probability,
                    &format!("theta {theta} rank {}", index + 1),
                );
            }
            assert_eq!(seen.iter().sum::<u64>(), 0, "the stride must reach every key");
        }
    }

    #[test]
    fn uniform_is_flat() {
        for (index, &count) in counts(Distribution::Uniform, 100).iter().enumerate() {
            assert_probability(count, 0.01, &format!("key {index}"));
        }
    }

    #[test]
    fn gaussian_is_a_bell_in_the_middle() {
        let counts = counts(Distribution::Gaussian(0.1), 1000);
        let within = |low: usize, high: usize| counts[low..high].iter().sum::<u64>();
        assert_probability(within(400, 600), 0.682_689, "one standard deviation");
        assert_probability(within(300, 700), 0.954_500, "two standard deviations");
        assert_probability(within(0, 500), 0.5, "the lower half");
    }

    #[test]
    fn spelling() {
        assert_eq!("zipf:1.2".parse::<Distribution>().unwrap(), Distribution::Zipf(1.2));
        assert_eq!("zipf".parse::<Distribution>().unwrap(), Distribution::Zipf(0.99));
        assert_eq!("uniform".parse::<Distribution>().unwrap(), Distribution::Uniform);
        assert_eq!("gaussian:0.25".parse::<Distribution>().unwrap(), Distribution::Gaussian(0.25));
        for text in ["", "zip", "zipf:x", "zipf:-1", "uniform:3", "gaussian:0"] {
            assert!(text.parse::<Distribution>().is_err(), "{text:?}");
        }
    }
}
