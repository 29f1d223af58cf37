//! The keys whose requests are refused most often by rate limits. While refusals are few, workers
//! count each of them. At high rates, workers sample one refusal in N.
//!
//! One lock protects the counts. A worker never waits for it: if the lock is taken, the worker
//! drops the refusal and counts it as lost. One sketch serves all policies, so the memory does not
//! grow with their number.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::aged::{AgedSketch, HALF_LIFE};
use super::sampling::interval_for;
use super::sketch::{Sampled, SketchEntry};

/// The largest number of keys in a list.
const LISTED: usize = 50;
/// A list omits keys whose number of refusals has aged to less than this. Ageing reduces a single
/// refusal to this number in 2 minutes.
const LEAST: f64 = 1.0 / 16.0;

/// The number of samples per second that sampling aims at. One refusal in n is a sample, where n is
/// the number of refusals per second divided by `AIM`, rounded down. So with fewer than 2 × `AIM`
/// refusals per second, n is 1.
const AIM: u64 = 4096;
/// The bounds of the sampling interval: the least and the greatest mean number of refusals per
/// sample. The upper bound limits the time until a change of the load takes effect.
const INTERVALS: (u32, u32) = (1, 4096);

/// The refused keys of all workers.
#[derive(Debug, Default)]
pub(crate) struct RefusedKeys {
    /// The mean number of refusals per sample; 0 while counting is off.
    interval: AtomicU32,
    /// Number of refusals since the last ageing that were dropped because the lock was taken.
    lost: AtomicU64,
    state: Mutex<Option<Box<RefusedState>>>,
    /// The time of the last ageing, at which a new `RefusedState` begins. It is 0 before the first
    /// [`beat`](Self::beat). That first `beat` then treats all earlier refusals as very old, and
    /// removes them.
    aged_ms: AtomicU64,
    /// Hashes the name of a policy to the `group` by which the sketch keeps policies apart.
    groups: RandomState,
}

#[derive(Debug)]
struct RefusedState {
    /// Counts the refusals of each key. The sketch has two counts per key. Here its `reads` are
    /// refused requests, and its `writes` are requests that a shadow policy lets pass over its
    /// limit.
    aged: AgedSketch,
    /// Number of refusals that were not counted because the lock was taken, aged like the weights
    /// of the sketch.
    lost: f64,
    /// The number of refusals since the last [`beat`](RefusedKeys::beat) that adapted the interval.
    /// `beat_ms` is the time of that call.
    since_beat: u64,
    beat_ms: u64,
}

impl RefusedState {
    fn new(now_ms: u64) -> Box<RefusedState> {
        let aged = AgedSketch::new(now_ms);
        Box::new(RefusedState { aged, lost: 0.0, since_beat: 0, beat_ms: now_ms })
    }
}

/// The most refused keys, the most refused first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RefusedList {
    pub(crate) half_life_seconds: f64,
    /// Refusals per second that count for no key, because a worker found the lock taken. Another
    /// worker, [`beat`](RefusedKeys::beat), or a request for the list may hold the lock.
    pub(crate) lost_per_second: f64,
    pub(crate) keys: Vec<RefusedKey>,
}

/// A key with the rates of its refusals. Apart from the error of sampling, the true rates are
/// higher by at most `missing` plus the rate of lost refusals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RefusedKey {
    /// The name of the policy; `None` if the limit was part of the requests.
    pub(crate) policy: Option<String>,
    pub(crate) key: Vec<u8>,
    pub(crate) refused_per_second: f64,
    /// Requests per second that exceeded the limit, but that a shadow policy let pass.
    pub(crate) shadow_per_second: f64,
    /// Upper bound of the requests per second that the two rates may lack, because these requests
    /// came before the key entered the sketch.
    pub(crate) missing: f64,
    /// Two standard errors of the sum of the two rates, `refused_per_second` and
    /// `shadow_per_second`; 0 if every refusal was counted.
    pub(crate) error: f64,
}

impl RefusedKeys {
    pub(crate) fn is_on(&self) -> bool {
        self.interval() > 0
    }

    /// Returns the mean number of refusals per sample; 0 while counting is off.
    pub(crate) fn interval(&self) -> u32 {
        self.interval.load(Relaxed)
    }

    /// Turns counting on or off.
    pub(crate) fn set_on(&self, on: bool) {
        // The interval is changed under the lock. Otherwise a `beat` that began earlier could store
        // its interval afterwards, and so turn counting on again.
        let mut state = self.lock();
        if on != self.is_on() {
            self.interval.store(on.into(), Relaxed);
            self.aged_ms.store(0, Relaxed);
            self.clear(&mut state);
        }
    }

    /// Forgets all refusals.
    pub(crate) fn forget(&self) {
        self.clear(&mut self.lock());
    }

    fn clear(&self, state: &mut Option<Box<RefusedState>>) {
        *state = None;
        self.lost.store(0, Relaxed);
    }

    /// Counts a request for `key` that exceeds the limit of `policy`, or a limit in the request
    /// itself. The request is a sample that stands for `weight` requests. `shadow` is true if the
    /// policy lets the request pass. If the lock is taken, adds `weight` to the lost refusals
    /// instead.
    #[cold]
    pub(crate) fn count(&self, policy: Option<&str>, key: &[u8], shadow: bool, weight: u32) {
        let Ok(mut state) = self.state.try_lock() else {
            self.lost.fetch_add(weight.into(), Relaxed);
            return;
        };
        // The switch is checked under the lock. Otherwise a refusal could still be counted after
        // counting was turned off and `forget` was called.
        if !self.is_on() {
            return;
        }
        let state = state.get_or_insert_with(|| RefusedState::new(self.aged_ms.load(Relaxed)));
        state.since_beat = state.since_beat.saturating_add(weight.into());
        let weight = f64::from(weight);
        // Each refusal is sampled with probability 1/`weight`. So one sample is an estimate of
        // `weight` refusals, with the variance below. If every refusal is sampled, `weight` is 1
        // and the variance is 0.
        let variance = weight * (weight - 1.0);
        let sampled = Sampled { weight, variance, writes: shadow, bytes: 0 };
        state.aged.sketch.count(self.group_of(policy), key, sampled);
    }

    /// Ages the counts, and adapts the interval to the load. Called about once a second.
    pub(crate) fn beat(&self, now_ms: u64) {
        let mut state = self.lock();
        if !self.is_on() {
            return;
        }
        let state = self.age(&mut state, now_ms);
        let elapsed_ms = now_ms.saturating_sub(state.beat_ms);
        if let Some(interval) = interval_for(state.since_beat, elapsed_ms, AIM, INTERVALS) {
            (state.beat_ms, state.since_beat) = (now_ms, 0);
            self.interval.store(interval, Relaxed);
        }
    }

    /// Returns the most refused keys of `policies` and of limits that requests contain. Returns
    /// `None` while counting is off.
    pub(crate) fn list<'p>(
        &self,
        policies: impl Iterator<Item = &'p str>,
        now_ms: u64,
    ) -> Option<RefusedList> {
        let mut state = self.lock();
        if !self.is_on() {
            return None;
        }
        let state = self.age(&mut state, now_ms);
        let seconds = state.aged.seconds();
        let requests = |entry: &SketchEntry| entry.reads + entry.writes;
        let listed = |entry: &&SketchEntry| requests(entry) >= LEAST;
        let mut entries: Vec<_> = state.aged.sketch.entries().iter().filter(listed).collect();
        entries.sort_by(|one, other| requests(other).total_cmp(&requests(one)));
        let names: Vec<_> = [None].into_iter().chain(policies.map(Some)).collect();
        let names = names.into_iter().map(|name| (self.group_of(name), name)).collect::<Vec<_>>();
        let name_of = |entry: &SketchEntry| {
            names.iter().find(|(group, _)| *group == entry.group).map(|(_, name)| *name)
        };
        // The keys of policies that a reload removed are not shown.
        let known = entries.into_iter().filter_map(|entry| Some((name_of(entry)?, entry)));
        let keys = known.take(LISTED).map(|(policy, entry)| RefusedKey {
            policy: policy.map(str::to_owned),
            key: entry.key().to_vec(),
            refused_per_second: entry.reads / seconds,
            shadow_per_second: entry.writes / seconds,
            missing: entry.error / seconds,
            error: 2.0 * entry.variance.sqrt() / seconds,
        });
        Some(RefusedList {
            half_life_seconds: HALF_LIFE,
            lost_per_second: state.lost / seconds,
            keys: keys.collect(),
        })
    }

    fn age<'s>(
        &self,
        state: &'s mut Option<Box<RefusedState>>,
        now_ms: u64,
    ) -> &'s mut RefusedState {
        self.aged_ms.store(now_ms, Relaxed);
        let state = state.get_or_insert_with(|| RefusedState::new(now_ms));
        let lost = self.lost.swap(0, Relaxed);
        state.since_beat = state.since_beat.saturating_add(lost);
        state.lost = (state.lost + lost as f64) * state.aged.age(now_ms);
        state
    }

    /// Returns the `group` under which the sketch counts the keys of a policy. Different policies
    /// practically never have the same group.
    fn group_of(&self, policy: Option<&str>) -> u64 {
        self.groups.hash_one(policy)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<RefusedState>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Sampling;
    use crate::keys::sketch::KEYS;
    use std::sync::atomic::AtomicBool;

    fn on() -> RefusedKeys {
        let refused = RefusedKeys::default();
        refused.set_on(true);
        refused.beat(0);
        refused
    }

    fn list(refused: &RefusedKeys, now_ms: u64) -> RefusedList {
        refused.list(["a", "b"].into_iter(), now_ms).unwrap()
    }

    fn names(list: &RefusedList) -> Vec<(Option<&str>, &[u8])> {
        list.keys.iter().map(|key| (key.policy.as_deref(), &*key.key)).collect()
    }

    #[test]
    fn policies_and_shadows_are_told_apart() {
        let refused = on();
        for _ in 0..4 {
            refused.count(Some("a"), b"k", false, 1);
        }
        for _ in 0..3 {
            refused.count(Some("b"), b"k", true, 1);
        }
        refused.count(None, b"k", false, 1);
        refused.count(None, b"k", false, 1);
        refused.count(Some("gone"), b"k", false, 1);
        let seen = list(&refused, 1000);
        assert_eq!(names(&seen), [(Some("a"), &b"k"[..]), (Some("b"), b"k"), (None, b"k")]);
        let rates = |at: usize| (seen.keys[at].refused_per_second, seen.keys[at].shadow_per_second);
        for (at, wanted) in [(4.0, 0.0), (0.0, 3.0), (2.0, 0.0)].into_iter().enumerate() {
            let got = rates(at);
            assert!((got.0 - wanted.0).abs() + (got.1 - wanted.1).abs() < 1e-9, "{got:?}");
        }
        refused.forget();
        assert!(list(&refused, 1000).keys.is_empty());
    }

    #[test]
    fn rates_follow_the_load_and_fade() {
        let refused = on();
        for second in 1..=300 {
            for _ in 0..10 {
                refused.count(Some("a"), b"k", false, 1);
            }
            refused.beat(second * 1000);
        }
        let rate = list(&refused, 300_000).keys[0].refused_per_second;
        assert!((rate - 10.0).abs() < 1e-6, "{rate}");
        (301..330).for_each(|second| refused.beat(second * 1000));
        let rate = list(&refused, 330_000).keys[0].refused_per_second;
        assert!((rate - 5.0).abs() < 0.1, "{rate}");
        assert!(list(&refused, 900_000).keys.is_empty());
    }

    #[test]
    fn a_flood_of_keys_leaves_the_true_rate_within_the_error() {
        let refused = on();
        for number in 0..20_000 {
            refused.count(Some("a"), format!("flood:{number}").as_bytes(), false, 1);
            if number % 50 == 0 {
                refused.count(Some("a"), b"heavy", false, 1);
            }
        }
        let seen = list(&refused, 1000);
        assert_eq!(seen.keys.len(), LISTED);
        let heavy = seen.keys.iter().find(|key| key.key == b"heavy").unwrap();
        assert!(heavy.refused_per_second <= 400.0 + 1e-6, "{heavy:?}");
        assert!(heavy.refused_per_second + heavy.missing >= 400.0 - 1e-6, "{heavy:?}");
        // Space-Saving bounds the error by the total weight divided by the number of keys in the
        // sketch.
        assert!(heavy.missing <= 20_400.0 / KEYS as f64 + 1e-6, "{heavy:?}");
    }

    #[test]
    fn many_refusals_are_sampled_within_the_error() {
        let (refused, sampling) = (on(), Sampling::new(7));
        let mut samples = 0;
        for second in 1..=20 {
            for number in 0..200_000 {
                // A worker calls `begin_turn` once per turn.
                sampling.begin_turn(refused.interval());
                let key = if number % 10 == 0 { "heavy" } else { "other" };
                if sampling.counts(1) {
                    samples += 1;
                    refused.count(Some("a"), key.as_bytes(), false, sampling.weight());
                    sampling.draw(refused.interval());
                }
            }
            refused.beat(second * 1000);
        }
        // All 200,000 refusals of the first second must be samples, and about `AIM` of each later
        // second.
        assert!((270_000..290_000).contains(&samples), "{samples}");
        let seen = list(&refused, 20_000);
        for (key, rate) in [(&b"other"[..], 180_000.0), (b"heavy", 20_000.0)] {
            let found = seen.keys.iter().find(|found| found.key == key).unwrap();
            let off = (found.refused_per_second - rate).abs();
            assert!(off <= 1.5 * found.error && found.error < rate / 20.0, "{found:?}");
        }
        (21..=22).for_each(|second| refused.beat(second * 1000));
        assert_eq!(refused.interval(), 1, "few refusals are all counted");
    }

    /// Ageing lowers the variance more than the rate. So the error must be computed from the aged
    /// variance, not from the rate.
    #[test]
    fn the_error_of_old_samples_is_stated() {
        let refused = on();
        (0..100).for_each(|_| refused.count(Some("a"), b"k", false, 2));
        let seen = list(&refused, 30_000);
        // 100 samples of weight 2 have a variance of 200. One half-life divides the variance by 4,
        // and the 30 s count as 15 s.
        let error = 2.0 * 50.0_f64.sqrt() / 15.0;
        assert!((seen.keys[0].error - error).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn a_refusal_that_would_wait_is_lost_and_counted() {
        let refused = on();
        let held = refused.lock();
        refused.count(None, b"k", false, 1);
        drop(held);
        let seen = list(&refused, 1000);
        assert!(seen.keys.is_empty() && (seen.lost_per_second - 1.0).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn nothing_is_kept_while_it_is_off() {
        let refused = RefusedKeys::default();
        refused.beat(0);
        refused.count(None, b"k", false, 1);
        assert!(refused.list([].into_iter(), 0).is_none() && refused.lock().is_none());
        refused.set_on(true);
        refused.beat(0);
        refused.count(None, b"k", false, 1);
        assert_eq!(list(&refused, 1000).keys.len(), 1);
        refused.set_on(false);
        assert!(refused.list([].into_iter(), 0).is_none() && refused.lock().is_none());
    }

    #[test]
    fn a_beat_that_meets_the_end_of_counting_does_not_begin_it_again() {
        let (refused, done) = (on(), AtomicBool::new(false));
        let again = std::thread::scope(|scope| {
            let beats = scope.spawn(|| {
                let mut now_ms = 0;
                while !done.load(Relaxed) {
                    now_ms += 1000;
                    refused.beat(now_ms);
                }
            });
            let again = (0..100_000).any(|_| {
                refused.set_on(true);
                // `beat` stores an interval only if the state was created before the time of the
                // call. This refusal creates such a state.
                refused.count(None, b"k", false, 1);
                refused.set_on(false);
                // Taking the lock waits until a beat that began earlier has ended.
                drop(refused.lock());
                refused.is_on()
            });
            done.store(true, Relaxed);
            beats.join().unwrap();
            again
        });
        assert!(!again);
    }
}
