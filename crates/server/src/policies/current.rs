//! The policies in use. A reload replaces the table as a whole. Each worker holds the table that it
//! found at the beginning of its turn, so look-ups take no lock.

use std::ops::Deref;
use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, PoisonError};

use larder_engine::limit::Decision;

use super::{DecisionResult, Policies, Policy, ProxyCounters};
use crate::clock::random_seed;
use crate::keys::{RefusedKeys, Sampling};

/// The policies in use, shared by all workers.
#[derive(Debug, Default)]
pub struct CurrentPolicies {
    table: Mutex<Arc<Policies>>,
    /// Number of replacements of the table.
    version: AtomicU64,
    /// Number of readers ever created. It is the worker number of the next reader.
    readers: AtomicUsize,
    refused: RefusedKeys,
    proxies: ProxyCounters,
}

impl CurrentPolicies {
    /// Replaces all policies. A new policy takes over the counters of the old one with the same
    /// name.
    pub fn replace(&self, policies: &[Policy]) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        *table = Arc::new(table.replaced_by(policies.to_vec()));
        self.version.fetch_add(1, Release);
    }

    /// Returns the present table.
    pub fn table(&self) -> Arc<Policies> {
        Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the counts of refused requests, by key.
    pub(crate) fn refused(&self) -> &RefusedKeys {
        &self.refused
    }

    /// Returns the counters for what proxies send and no policy counts.
    pub(crate) fn proxies(&self) -> &ProxyCounters {
        &self.proxies
    }

    /// Sets the counters of all policies and of proxies to zero, and forgets the refused keys.
    pub fn reset_counters(&self) {
        self.table().iter().for_each(|policy| policy.counters.reset());
        self.refused.forget();
        self.proxies.reset();
    }

    /// Creates the handle of a new worker.
    pub fn reader(self: &Arc<Self>) -> PolicyReader {
        let version = self.version.load(Acquire);
        let worker = self.readers.fetch_add(1, Relaxed);
        let sampling = Sampling::new(random_seed());
        sampling.begin_turn(self.refused.interval());
        PolicyReader { table: self.table(), current: Arc::clone(self), version, worker, sampling }
    }
}

/// A worker's handle of the policies: the table at the beginning of its turn.
#[derive(Debug)]
pub struct PolicyReader {
    table: Arc<Policies>,
    current: Arc<CurrentPolicies>,
    /// The version of `table`, or an earlier one. This number is read before the table, so a reload
    /// in between makes it too small. The next `refresh` then fetches the table again.
    version: u64,
    /// The number of the worker.
    worker: usize,
    /// The sampling of refusals.
    sampling: Sampling,
}

impl Deref for PolicyReader {
    type Target = Policies;

    #[inline]
    fn deref(&self) -> &Policies {
        &self.table
    }
}

impl PolicyReader {
    /// Fetches the present table if a reload has replaced it. Called once per turn.
    #[inline]
    pub fn refresh(&mut self) {
        self.sampling.begin_turn(self.current.refused.interval());
        let version = self.current.version.load(Acquire);
        if version != self.version {
            self.version = version;
            self.table = self.current.table();
        }
    }

    /// Counts a decision about a request of `key`. The caller does not count requests for 0 units.
    /// `policy` is `None` if the limit was part of the request.
    #[inline]
    pub fn count(&self, policy: Option<&Policy>, key: &[u8], decision: &Decision) {
        if !decision.allowed && self.sampling.counts(1) {
            self.sample(policy, key);
        }
        let Some(policy) = policy else { return };
        let capacity = policy.limit.capacity();
        let result = match decision.allowed {
            true => DecisionResult::of(capacity.saturating_sub(decision.remaining), capacity),
            false => policy.refusal(),
        };
        policy.counters.count(self.worker, result);
    }

    #[cold]
    fn sample(&self, policy: Option<&Policy>, key: &[u8]) {
        let name = policy.map(|policy| &*policy.name);
        let shadow = policy.is_some_and(|policy| policy.shadow);
        self.current.refused.count(name, key, shadow, self.sampling.weight());
        self.sampling.draw(self.current.refused.interval());
    }

    /// Counts an increment, such as `incr`, that has set a counter to `value`. A policy never
    /// refuses an increment.
    #[inline]
    pub fn count_plain(&self, policy: &Policy, value: u64) {
        policy.counters.count(self.worker, DecisionResult::of(value, policy.limit.capacity()));
    }
}

#[cfg(test)]
mod tests {
    use larder_engine::limit::Limit;

    use super::*;

    fn counted(policies: &Policies, name: &str) -> [u64; 4] {
        policies.named(name.as_bytes()).unwrap().counters.totals().map(|(_, count)| count)
    }

    #[test]
    fn decisions_are_counted_by_their_result() {
        let current = Arc::<CurrentPolicies>::default();
        let shadow = |shadow| Policy { shadow, ..Policy::new("p", Limit::fixed(10, 0)) };
        current.replace(&[shadow(false)]);
        let mut reader = current.reader();
        let count = |reader: &PolicyReader, allowed, remaining| {
            let decision = Decision { allowed, remaining, retry: Some(0), reset: None };
            reader.count(reader.named(b"p"), b"k", &decision);
        };
        count(&reader, true, 2);
        count(&reader, true, 1);
        count(&reader, true, 0);
        count(&reader, false, 3);
        assert_eq!(counted(&reader, "p"), [1, 2, 1, 0]);
        for value in [8, 9, 11] {
            reader.count_plain(reader.named(b"p").unwrap(), value);
        }
        assert_eq!(counted(&reader, "p"), [2, 3, 2, 0]);
        current.replace(&[shadow(true)]);
        reader.refresh();
        count(&reader, false, 3);
        assert_eq!(counted(&reader, "p"), [2, 3, 2, 1]);
        current.reset_counters();
        assert_eq!(counted(&reader, "p"), [0; 4]);
    }

    /// The capacity of a GCRA limit is its burst, not its rate.
    #[test]
    fn decisions_of_gcra_are_compared_with_the_burst() {
        let current = Arc::<CurrentPolicies>::default();
        current.replace(&[Policy::new("p", Limit::gcra(1000, 1, 10).unwrap())]);
        let reader = current.reader();
        let decision = Decision { allowed: true, remaining: 1, retry: Some(0), reset: None };
        reader.count(reader.named(b"p"), b"k", &decision);
        assert_eq!(counted(&reader, "p"), [0, 1, 0, 0]);
    }

    #[test]
    fn a_replaced_policy_keeps_its_counters_if_its_name_stays() {
        let current = Arc::<CurrentPolicies>::default();
        let policy = |name: &str, budget| Policy::new(name, Limit::fixed(budget, 0));
        current.replace(&[policy("stays", 10), policy("goes", 10)]);
        let mut reader = current.reader();
        for name in [&b"stays"[..], b"goes"] {
            reader.count_plain(reader.named(name).unwrap(), 1);
        }
        current.replace(&[policy("stays", 20), policy("comes", 20)]);
        assert_eq!(reader.named(b"stays").unwrap().limit.budget(), 10, "until the next turn");
        // A worker that has not noticed the reload still uses the old policy. The new policy's
        // counters must include what this worker counts.
        reader.count_plain(reader.named(b"stays").unwrap(), 1);
        reader.refresh();
        assert_eq!(reader.named(b"stays").unwrap().limit.budget(), 20);
        assert!(reader.named(b"goes").is_none());
        assert_eq!(counted(&reader, "stays"), [2, 0, 0, 0]);
        assert_eq!(counted(&reader, "comes"), [0; 4]);
        current.replace(&[policy("goes", 10)]);
        reader.refresh();
        assert_eq!(counted(&reader, "goes"), [0; 4], "it is another policy now");
    }
}
