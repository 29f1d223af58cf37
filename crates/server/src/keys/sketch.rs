//! A sketch of the most requested keys in a bounded amount of memory: Space-Saving, from "Efficient
//! Computation of Frequent and Top-k Elements in Data Streams" by A. Metwally, D. Agrawal and A. El
//! Abbadi (ICDT 2005), with weights and ageing.
//!
//! When the sketch is full, a new key replaces the key with the least weight, and inherits this
//! weight as an error. Invariant: the true weight of a key in the sketch is at most its `weight`
//! and at least `weight - error`. The true weight of any other key is at most the least weight in
//! the sketch. This least weight is at most the total weight divided by [`KEYS`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use larder_protocol::KEY_LEN_MAX;

/// The largest number of keys.
pub(super) const KEYS: usize = 512;

/// A request that was sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampled {
    /// The number of requests that this sample stands for.
    pub(super) weight: f64,
    /// The variance of `weight` as an estimate of the number of requests.
    pub(super) variance: f64,
    pub(super) writes: bool,
    /// Bytes of the found item in the reply, plus the bytes of the request if it writes.
    pub(super) bytes: usize,
}

/// A key of the sketch. Its weight, error, reads, writes, bytes and variance are sums over
/// requests. Ageing lowers these sums.
#[derive(Clone, Debug)]
pub(super) struct SketchEntry {
    hash: u64,
    /// A number by which the caller of [`Sketch::count`] keeps keys apart, for example the keys of
    /// different policies. The same key in two groups counts as two keys.
    pub(super) group: u64,
    /// Number of requests of the key, plus the weight that the key inherited from the key that it
    /// replaced.
    pub(super) weight: f64,
    /// The part of `weight` that the key inherited. So `weight` is too high by at most this much.
    pub(super) error: f64,
    /// Estimated reads of the key since it entered the sketch.
    pub(super) reads: f64,
    pub(super) writes: f64,
    /// Estimated sum of [`Sampled::bytes`] over the reads and writes of the key since it entered
    /// the sketch.
    pub(super) bytes: f64,
    /// The variance of `reads + writes`, which is an estimate because requests are sampled.
    pub(super) variance: f64,
    /// The index of the entry in `heap`.
    at: u16,
    len: u8,
    key: [u8; KEY_LEN_MAX],
}

impl SketchEntry {
    pub(super) fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.len)]
    }

    fn is_of(&self, group: u64, key: &[u8]) -> bool {
        self.group == group && self.key() == key
    }

    fn count(&mut self, sampled: Sampled) {
        self.weight += sampled.weight;
        match sampled.writes {
            true => self.writes += sampled.weight,
            false => self.reads += sampled.weight,
        }
        self.bytes += sampled.weight * sampled.bytes as f64;
        self.variance += sampled.variance;
    }
}

/// The sketch.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    entries: Vec<SketchEntry>,
    /// Indices of `entries`, as a binary heap with the least weight first.
    heap: Vec<u16>,
    /// Indices of `entries` by the hash of group and key.
    by_hash: HashMap<u64, u16>,
    hasher: RandomState,
}

// The entries, the heap and the hash table of a sketch together must take at most 200 KB.
const _: () = assert!(KEYS * (size_of::<SketchEntry>() + 2 + 2 * 18) <= 200_000);

impl Sketch {
    /// Counts a request of `key`, which has at most [`KEY_LEN_MAX`] bytes. The same key in two
    /// groups counts as two keys.
    pub(super) fn count(&mut self, group: u64, key: &[u8], sampled: Sampled) {
        let Some(len) = u8::try_from(key.len()).ok().filter(|_| key.len() <= KEY_LEN_MAX) else {
            return;
        };
        let hash = self.hasher.hash_one((group, key));
        let number = match self.by_hash.get(&hash) {
            // Two keys practically never have the same 64-bit hash. If they do, only requests of
            // the first key count.
            Some(&number) if !self.entries[usize::from(number)].is_of(group, key) => return,
            Some(&number) => number,
            None => self.enter(hash, group, key, len),
        };
        self.entries[usize::from(number)].count(sampled);
        self.sink(usize::from(self.entries[usize::from(number)].at));
    }

    /// Makes an entry for a new key. Returns the entry's index.
    fn enter(&mut self, hash: u64, group: u64, key: &[u8], len: u8) -> u16 {
        let number = if self.entries.len() < KEYS {
            let number = self.entries.len() as u16;
            let (weight, error, reads, writes, bytes, variance) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
            let (at, key) = (number, [0; KEY_LEN_MAX]);
            self.entries.push(SketchEntry {
                hash,
                group,
                weight,
                error,
                reads,
                writes,
                bytes,
                variance,
                at,
                len,
                key,
            });
            self.heap.push(number);
            self.rise(usize::from(number));
            number
        } else {
            let number = self.heap[0];
            let entry = &mut self.entries[usize::from(number)];
            self.by_hash.remove(&entry.hash);
            (entry.hash, entry.group) = (hash, group);
            (entry.len, entry.error) = (len, entry.weight);
            (entry.reads, entry.writes, entry.bytes, entry.variance) = (0.0, 0.0, 0.0, 0.0);
            number
        };
        self.entries[usize::from(number)].key[..key.len()].copy_from_slice(key);
        self.by_hash.insert(hash, number);
        number
    }

    /// Multiplies all weights by `factor`, which is between 0 and 1.
    pub(super) fn age(&mut self, factor: f64) {
        for entry in &mut self.entries {
            entry.weight *= factor;
            entry.error *= factor;
            entry.reads *= factor;
            entry.writes *= factor;
            entry.bytes *= factor;
            entry.variance *= factor * factor;
        }
    }

    pub(super) fn entries(&self) -> &[SketchEntry] {
        &self.entries
    }

    fn weight_at(&self, at: usize) -> f64 {
        self.entries[usize::from(self.heap[at])].weight
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for at in [one, other] {
            self.entries[usize::from(self.heap[at])].at = at as u16;
        }
    }

    /// Restores the order of the heap by moving the entry at heap index `at` towards the front.
    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.weight_at(at) < self.weight_at((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Restores the order of the heap by moving the entry at heap index `at` towards the end.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(self.heap.len());
            let Some(least) = children
                .min_by(|one, other| self.weight_at(*one).total_cmp(&self.weight_at(*other)))
            else {
                return;
            };
            if self.weight_at(at) <= self.weight_at(least) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_disk::Random;
    use proptest::prelude::*;

    fn sampled(weight: f64) -> Sampled {
        Sampled { weight, variance: weight * weight, writes: false, bytes: 10 }
    }

    /// Counts requests of numbered keys with the sketch and exactly. Checks that the sketch keeps
    /// the bounds that the head of this file promises.
    fn check(requests: impl IntoIterator<Item = (u64, f64)>, ages: &[usize]) {
        let (mut sketch, mut exact) = (Sketch::default(), HashMap::<String, f64>::new());
        for (at, (key, weight)) in requests.into_iter().enumerate() {
            let key = format!("key{key}");
            sketch.count(0, key.as_bytes(), sampled(weight));
            *exact.entry(key).or_default() += weight;
            if ages.contains(&at) {
                sketch.age(0.25);
                exact.values_mut().for_each(|weight| *weight *= 0.25);
            }
        }
        let total: f64 = exact.values().sum();
        let close = 1e-9 * total;
        assert!(sketch.entries().len() <= KEYS && sketch.by_hash.len() == sketch.entries().len());
        let least = sketch.entries().iter().map(|entry| entry.weight).fold(f64::MAX, f64::min);
        for entry in sketch.entries() {
            let key = String::from_utf8(entry.key().to_vec()).unwrap();
            let weight = exact.remove(&key).unwrap();
            assert!(weight <= entry.weight + close, "{key}: {weight} of {entry:?}");
            assert!(weight >= entry.weight - entry.error - close, "{key}: {weight} of {entry:?}");
            assert!(entry.error <= total / KEYS as f64 + close, "{key}: {entry:?} of {total}");
            assert!((entry.reads - (entry.weight - entry.error)).abs() <= close, "{entry:?}");
        }
        for (key, weight) in exact {
            assert!(weight <= least + close && weight <= total / KEYS as f64 + close, "{key}");
        }
    }

    #[test]
    fn skewed_requests_of_many_keys_stay_within_the_bounds() {
        let mut random = Random::new(7);
        let requests: Vec<(u64, f64)> = (0..200_000)
            .map(|_| {
                let rank =
                    (1.0 / ((random.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64)) as u64;
                (rank.min(50_000), [8.0, 16.0, 700.0][random.below(3) as usize])
            })
            .collect();
        check(requests, &[30_000, 90_000, 199_999]);
    }

    #[test]
    fn requests_of_ever_new_keys_stay_within_the_bounds() {
        check((0..5000).map(|key| (key, 1.0)), &[4000]);
        check((0..5000).map(|at| (if at % 2 == 0 { 0 } else { at }, 1.0)), &[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn any_requests_stay_within_the_bounds(
            requests in prop::collection::vec((0_u64..2000, 1_u32..100), 0..4000),
            hot in 0_u64..2000,
            ages in prop::collection::vec(0_usize..4000, 0..4),
        ) {
            let requests = requests.into_iter().map(|(key, weight)| {
                (if weight % 3 == 0 { hot } else { key }, f64::from(weight))
            });
            check(requests, &ages);
        }
    }

    #[test]
    fn an_entry_knows_reads_writes_and_bytes_since_it_entered() {
        let mut sketch = Sketch::default();
        for key in 0..KEYS {
            sketch.count(0, format!("old{key}").as_bytes(), sampled(2.0));
        }
        let key = [0xff; KEY_LEN_MAX];
        sketch.count(0, &key, Sampled { writes: true, bytes: 100, ..sampled(3.0) });
        sketch.count(0, &key, sampled(5.0));
        let entry = sketch.entries().iter().find(|entry| entry.key() == key).unwrap();
        assert_eq!((entry.weight, entry.error), (10.0, 2.0));
        assert_eq!(
            (entry.reads, entry.writes, entry.bytes, entry.variance),
            (5.0, 3.0, 350.0, 34.0)
        );
        assert_eq!(sketch.entries().len(), KEYS);
        sketch.count(0, &[0; KEY_LEN_MAX + 1], sampled(1000.0));
        assert!(sketch.entries().iter().all(|entry| entry.weight <= 10.0));
    }
}
