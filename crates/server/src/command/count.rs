//! Increments and decrements, in the form that the text, meta and binary protocols share.

use super::{Execution, Unready};
use larder_engine::{Arith, Counted, Create, Expiry, Key, NANOS, UnixSeconds};

/// Increments or decrements a counter. If the key's prefix has a policy, the policy's statistics
/// count each increment of the key, but the policy never refuses one. An increment of a key with a
/// policy also creates the counter if it is missing. The new counter expires after the policy's
/// window.
#[inline(always)]
pub(super) fn count(
    x: &mut Execution<'_, '_>,
    key: &Key<'_>,
    arith: Arith,
) -> Result<Counted, Unready> {
    let policy = if arith.decrement { None } else { x.policies.of(key.bytes()) };
    let Some(policy) = policy else { return x.settle(x.session.arith(key, &arith)) };
    let window = policy.limit.window();
    let expiry = match UnixSeconds::try_from(window.div_ceil(NANOS)) {
        Ok(0) => Expiry::NEVER,
        Ok(seconds) => Expiry::at(x.session.now().saturating_add(seconds)),
        Err(_) => Expiry::at(UnixSeconds::MAX),
    };
    // A client that sends a cas id expects an existing item, so the policy creates no counter for
    // it. The request itself may still ask for a new counter (`arith.create`).
    let new = arith.compare.is_none().then_some(Create { initial: arith.delta, expiry });
    let create = arith.create.or(new);
    let counted = x.settle(x.session.arith(key, &Arith { create, ..arith }))?;
    if let Counted::Value { value, .. } = counted {
        x.policies.count_plain(policy, value);
    }
    Ok(counted)
}
