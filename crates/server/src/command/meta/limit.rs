//! Rate limits: an `ma` with a budget (`B`) or a policy (`Q`).

use super::line::{Line, Target, put_line_and, put_number, put_status};
use crate::command::{Executed, Execution, Unready};
use larder_engine::limit::Limit;
use larder_engine::{NANOS, Take, Taken};
use larder_protocol::meta::{LimitFlags, LimitMode};
use larder_protocol::reply;

/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;

/// Takes all units that the request asks for if the limit allows it, otherwise none. The reply says
/// which.
pub(super) fn take(
    x: &mut Execution<'_, '_>,
    target: &Target<'_, '_>,
) -> Result<Executed, Unready> {
    let policies = x.policies;
    let (take, policy) = match LimitFlags::parse(target.command) {
        Ok(LimitFlags::Policy(name)) => match policies.named(name) {
            Some(policy) => (policy.take(target.flags.delta), Some(policy)),
            None => return Ok(x.say(reply::UNKNOWN_POLICY)),
        },
        Ok(LimitFlags::Own { mode, budget, window_ms, burst }) => {
            match limit_of(mode, budget, window_ms, burst) {
                Some(limit) => (Take::of(limit, target.flags.delta), None),
                None => return Ok(x.say(reply::LIMIT_NEEDS_WINDOW)),
            }
        }
        Err(refusal) => return Ok(x.say(refusal)),
    };
    let flags = target.flags;
    let take = Take {
        compare: flags.compare.filter(|&cas| cas != 0),
        cas: flags.cas,
        expiry: flags.ttl.map(|ttl| x.expiry(ttl)),
        ..take
    };
    let (decision, limiter, cas) = match x.settle(x.session.take(target.key, &take))? {
        Taken::Decided { decision, limiter, cas } => (decision, limiter, cas),
        Taken::NotFound => return Ok(put_status(x, b"NF", target)),
        Taken::Exists => return Ok(put_status(x, b"EX", target)),
        Taken::NonNumeric => return Ok(x.say(reply::NON_NUMERIC)),
    };
    if flags.delta != 0 {
        policies.count(policy, target.key.bytes(), &decision);
    }
    let (decision, shadowed) = policy.map_or((decision, false), |policy| policy.seen(&decision));
    let flag = |line: &mut Line<'_>, token: &[u8]| match token[0] {
        b'r' => line.flag(b'r', decision.remaining),
        b'w' => line.time(b'w', decision.retry.map(|left| left.div_ceil(MILLI))),
        b't' => line.time(b't', decision.reset.map(|left| left.div_ceil(NANOS))),
        b'c' => line.flag(b'c', cas),
        _ => line.echo(target, token),
    };
    let tail = |line: &mut Line<'_>| {
        if let Some(policy) = policy {
            line.flag(b'B', policy.limit.budget());
        }
        if shadowed {
            line.flag(b'x', 1);
        }
    };
    if !decision.allowed {
        put_line_and(x.output, b"NS", target, flag, tail);
    } else if !target.quiet() {
        let used = limiter.map_or(0, |limiter| limiter.used(x.session.nanos()));
        put_number(x, target, used, flag, tail);
    }
    Ok(Executed::Done)
}

/// Returns the limit that the flags describe. Returns `None` if the mode needs a window and the
/// window is 0.
fn limit_of(mode: LimitMode, budget: u64, window_ms: u64, burst: Option<u64>) -> Option<Limit> {
    let window = window_ms * MILLI;
    match mode {
        LimitMode::Fixed => Some(Limit::fixed(budget, window)),
        LimitMode::Sliding => Limit::sliding(budget, window),
        LimitMode::Gcra => Limit::gcra(budget, window, burst.unwrap_or(budget)),
    }
}
