//! The only source of randomness. `--seed` determines a run, except how the kernel schedules
//! processes.

/// A splitmix64 generator: small, fast, and good enough to choose scenarios and fill values.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a separate generator for one part of a run, so that parts do not shift each other's
    /// numbers.
    pub(crate) fn part(seed: u64, path: &[u64]) -> Random {
        let mut random = Random(seed);
        for step in path {
            random = Random(random.next() ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true in `percent` of 100 calls.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `choices`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_bounds_and_repeat_with_the_seed() {
        let (mut one, mut two) = (Random::part(7, &[1, 2]), Random::part(7, &[1, 2]));
        let mut other = Random::part(7, &[2, 1]);
        let mut differ = false;
        for _ in 0..1000 {
            let number = one.between(3, 9);
            assert!((3..=9).contains(&number));
            assert_eq!(number, two.between(3, 9));
            differ |= number != other.between(3, 9);
        }
        assert!(differ, "parts of a run must not share their numbers");
        assert_eq!(one.below(0), 0);
    }
}
