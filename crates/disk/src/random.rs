//! The seeded random generator of the simulated device, of the simulation and of the tests. Its
//! numbers never change, because recorded seeds would become invalid.

/// SplitMix64 (G. Steele et al., "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that `seed` fully determines.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Creates a generator for one part of a run with the seed `seed`. The numbers of `path`
    /// identify the part. Each part has its own generator, so if one part draws more numbers than
    /// before, the numbers of the other parts stay the same.
    pub fn part(seed: u64, path: &[u64]) -> Random {
        let mut random = Random(seed);
        for step in path {
            random = Random(random.bits() ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        random.bits();
        random
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// Returns a number in `low..=high`.
    ///
    /// # Panics
    /// If `high` is less than `low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns true with the probability 1/`n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true with a probability of `percent` per cent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        // These are the numbers of the reference implementation by S. Vigna.
        let numbers =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        let mut random = Random::new(1_234_567);
        assert_eq!(numbers.map(|_| random.bits()), numbers);
        let mut random = Random::new(1_234_567);
        assert_eq!(numbers.map(|_| random.below(1000)), numbers.map(|number| number % 1000));
    }

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
    }
}
