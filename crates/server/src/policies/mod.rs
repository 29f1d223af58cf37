//! Policies: limits that the settings name. A request may name a policy instead of stating a limit.
//! A policy with a prefix also applies to increments of counters whose keys begin with that prefix.
//! The limiters are items in the engine, so a reload that replaces policies loses no state.

mod counters;
mod current;
mod descriptor;
mod table;

use std::sync::Arc;

use larder_engine::limit::{Algorithm, Decision, Limit, Nanos};
use larder_engine::{Durability, Take};

pub(crate) use counters::ProxyCounters;
pub use counters::{DecisionResult, PolicyCounters};
pub use current::{CurrentPolicies, PolicyReader};
pub(crate) use descriptor::Entries;
#[cfg(test)]
pub(crate) use descriptor::tests::pattern;
pub use descriptor::{DescriptorPattern, EntryPattern};
pub use table::Policies;

/// A named limit.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The name, which no other policy has.
    pub name: String,
    /// The prefix of keys that the policy applies to. A policy with a descriptor has a prefix too.
    /// If the prefix is `None`, the policy applies only to requests that name it.
    pub prefix: Option<String>,
    /// The descriptors of proxies that the policy applies to, if any.
    pub descriptor: Option<DescriptorPattern>,
    /// The limit.
    pub limit: Limit,
    /// True if the policy refuses nothing: requests above the limit pass, and the policy only
    /// counts them.
    pub shadow: bool,
    /// The durability of the policy's limiters: `Async` or `Sync`, or that of the store if the
    /// policy does not set one. The settings allow no policy to set `Durability::None`.
    pub durability: Option<Durability>,
    /// Counts of the results of decisions. A policy that replaces another one of the same name
    /// shares the counters of the replaced one.
    pub counters: Arc<PolicyCounters>,
}

impl Policy {
    /// Creates a policy without a prefix that enforces `limit`.
    pub fn new(name: impl Into<String>, limit: Limit) -> Policy {
        Policy {
            name: name.into(),
            prefix: None,
            descriptor: None,
            limit,
            shadow: false,
            durability: None,
            counters: Arc::default(),
        }
    }

    /// Returns a copy of the policy with another budget and another window, but without the
    /// descriptor. `window` is in nanoseconds. Returns `None` if the policy's algorithm needs a
    /// window and `window` is 0.
    pub(crate) fn with_limit(&self, budget: u64, window: Nanos) -> Option<Policy> {
        let limit = match self.limit.algorithm() {
            Algorithm::Fixed => Limit::fixed(budget, window),
            Algorithm::Sliding => Limit::sliding(budget, window)?,
            Algorithm::Gcra => Limit::gcra(budget, window, budget)?,
        };
        let (prefix, counters) = (self.prefix.clone(), Arc::clone(&self.counters));
        let (shadow, durability) = (self.shadow, self.durability);
        let name = self.name.clone();
        Some(Policy { name, prefix, descriptor: None, limit, shadow, durability, counters })
    }

    /// Returns a request for `cost` units.
    pub(crate) fn take(&self, cost: u64) -> Take {
        Take { durability: self.durability, ..Take::of(self.limit, cost) }
    }

    /// Counts the refusal of a request whose key is too long or empty. No worker decides such a
    /// request, so the count goes to the first shard.
    pub(crate) fn count_unfit_key(&self) {
        self.counters.count(0, self.refusal());
    }

    /// Returns the result of a decision that refuses a request.
    fn refusal(&self) -> DecisionResult {
        if self.shadow { DecisionResult::Shadow } else { DecisionResult::Over }
    }

    /// Returns the decision that the client gets, and true if the request passes only because the
    /// policy is a shadow.
    pub(crate) fn seen(&self, decision: &Decision) -> (Decision, bool) {
        match self.shadow && !decision.allowed {
            true => (Decision { allowed: true, retry: Some(0), ..*decision }, true),
            false => (*decision, false),
        }
    }
}
