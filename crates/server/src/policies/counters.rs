//! Counters of the results of a policy's decisions. Several workers may use one policy at the same
//! time. So the counts of up to `SHARDS` workers lie on separate cache lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The result of a decision, with Envoy's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The request passed, and at most `NEAR_PERCENT` of the capacity are used.
    Within,
    /// The request passed, and more than `NEAR_PERCENT` of the capacity are used.
    Near,
    /// The policy refused the request. Or an increment such as `incr`, which a policy never
    /// refuses, has set a counter to a value above the policy's capacity.
    Over,
    /// The policy would have refused the request, but is a shadow policy, which refuses nothing and
    /// only counts.
    Shadow,
}

/// The share of the capacity above which a decision counts as near, in percent.
const NEAR_PERCENT: u64 = 80;

impl DecisionResult {
    const ALL: [(DecisionResult, &str); 4] = [
        (DecisionResult::Within, "within"),
        (DecisionResult::Near, "near"),
        (DecisionResult::Over, "over"),
        (DecisionResult::Shadow, "shadow"),
    ];

    /// Returns the result of a request after which `used` of the `capacity` units are used.
    pub(super) fn of(used: u64, capacity: u64) -> DecisionResult {
        if used > capacity {
            DecisionResult::Over
        } else if u128::from(used) * 100 > u128::from(capacity) * u128::from(NEAR_PERCENT) {
            DecisionResult::Near
        } else {
            DecisionResult::Within
        }
    }
}

/// The number of shards of a policy's counters. If there are more workers, several share a shard.
const SHARDS: usize = 16;

/// The counters of one policy.
#[derive(Debug, Default)]
pub struct PolicyCounters([Shard; SHARDS]);

/// The counts of the workers that share a shard. Processors fetch cache lines in pairs, so the
/// alignment keeps any two shards in different pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU64; DecisionResult::ALL.len()]);

impl PolicyCounters {
    /// Counts one decision of the worker with this number.
    #[inline]
    pub(super) fn count(&self, worker: usize, result: DecisionResult) {
        self.0[worker % SHARDS].0[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns the name of each result, and how often it was counted.
    pub fn totals(&self) -> [(&'static str, u64); DecisionResult::ALL.len()] {
        DecisionResult::ALL.map(|(result, name)| (name, self.total(result)))
    }

    /// Returns how often `result` was counted.
    pub(crate) fn total(&self, result: DecisionResult) -> u64 {
        self.0.iter().map(|shard| shard.0[result as usize].load(Relaxed)).sum()
    }

    /// Sets all counters to zero.
    pub(super) fn reset(&self) {
        self.0.iter().flat_map(|shard| &shard.0).for_each(|count| count.store(0, Relaxed));
    }
}

/// Counters for what proxies send and no policy counts: descriptors without a policy, and requests
/// that are too large.
#[derive(Debug, Default)]
pub(crate) struct ProxyCounters {
    /// Descriptors that no policy limits.
    unlimited: AtomicU64,
    /// Requests that were refused unread, because they are too large.
    too_large: AtomicU64,
}

impl ProxyCounters {
    /// Counts descriptors that no policy limits.
    pub(crate) fn count_unlimited(&self, descriptors: usize) {
        self.unlimited.fetch_add(descriptors as u64, Relaxed);
    }

    /// Counts a request that is too large.
    pub(crate) fn count_too_large(&self) {
        self.too_large.fetch_add(1, Relaxed);
    }

    pub(crate) fn unlimited(&self) -> u64 {
        self.unlimited.load(Relaxed)
    }

    pub(crate) fn too_large(&self) -> u64 {
        self.too_large.load(Relaxed)
    }

    /// Sets all counters to zero.
    pub(super) fn reset(&self) {
        [&self.unlimited, &self.too_large].into_iter().for_each(|count| count.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_depend_on_the_used_share() {
        use DecisionResult::{Near, Over, Within};
        let cases = [
            (0, 0, Within),
            (1, 0, Over),
            (80, 100, Within),
            (81, 100, Near),
            (100, 100, Near),
            (101, 100, Over),
            (u64::MAX, u64::MAX, Near),
        ];
        for (used, capacity, expected) in cases {
            assert_eq!(DecisionResult::of(used, capacity), expected, "{used} of {capacity}");
        }
    }

    #[test]
    fn totals_are_sums_over_all_workers() {
        let counters = PolicyCounters::default();
        for worker in 0..3 * SHARDS {
            counters.count(worker, DecisionResult::Near);
        }
        counters.count(5, DecisionResult::Shadow);
        let near = 3 * SHARDS as u64;
        assert_eq!(counters.totals(), [("within", 0), ("near", near), ("over", 0), ("shadow", 1)]);
        counters.reset();
        assert_eq!(counters.totals().map(|(_, count)| count), [0; 4]);
    }
}
