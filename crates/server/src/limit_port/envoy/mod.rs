//! Envoy's rate limit service: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` over
//! gRPC, that is, over HTTP/2 without TLS.
//!
//! The service has one method, and each call is one message in each direction. So `grpc.rs`
//! implements gRPC's framing in a few lines. gRPC calls arrive on ordinary connections of the limit
//! port, so the port's limits apply to these connections.
//!
//! By default, Envoy lets a request pass if the service answers with an error. The clients of Envoy
//! can choose values of descriptors. So no value that a client chooses may lead to an error. A
//! request with a value that is too long is refused as over the limit. The exception is a value
//! whose key holds an item that is neither a limiter nor a number.

mod grpc;
mod messages;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use hyper::body::Incoming;
use larder_engine::NANOS;
use larder_engine::limit::{Decision, Nanos};
use prost::Message;
use tokio::time::Instant;

use super::call::{Callee, LimitAction, LimitReply, LimitRequest, PATIENCE, Undecided};
use super::reply::{limit_field, policy_field, seconds_until_change};
use crate::policies::{Entries, Policies, Policy, ProxyCounters};
use grpc::{GrpcError, Status};
use messages::{
    Code, DescriptorStatus, Duration, HeaderValue, RateLimit, RateLimitDescriptor,
    RateLimitOverride, RateLimitRequest, RateLimitResponse,
};

/// The largest length of a request's body, in bytes.
pub(super) const BODY: usize = 8 << 10;
/// The largest number of descriptors of a request, and of entries of a descriptor.
const DESCRIPTORS: usize = 16;
const ENTRIES: usize = 16;
/// The largest number of descriptors of a request that are decided at the same time.
const AT_ONCE: usize = 4;

pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The units of time of `envoy.type.v3.RateLimitUnit`: the number of each unit there, and its
/// length in seconds. A month has 30 days and a year 365, as in Envoy's own rate limit service.
const UNITS: [(i32, u64); 7] = [
    (1, 1),
    (2, 60),
    (3, 60 * 60),
    (4, 24 * 60 * 60),
    (5, 30 * 24 * 60 * 60),
    (6, 365 * 24 * 60 * 60),
    (7, 7 * 24 * 60 * 60),
];

/// A policy, and the decision that the client gets.
type Decided = (Arc<Policy>, Decision);

/// The limit that applies to one descriptor.
#[derive(Debug)]
enum Rule {
    /// No policy limits this descriptor.
    Unlimited,
    /// The policy has no limiter for the key that is made from the descriptor. The configuration
    /// keeps policies apart, so only the length of the key can be the reason.
    UnfitKey(Arc<Policy>),
    Limited(LimitRequest),
}

/// Answers an HTTP/2 request. Drops its head before the first wait. Calls `begin` once the whole
/// request has arrived. The guard that `begin` returns lives until the reply, and counts the
/// request as being executed.
pub(super) async fn answer<G>(
    head: Parts,
    body: &mut Incoming,
    server: &Callee,
    begin: impl FnOnce() -> G,
) -> Response {
    let refusal = refusal(&head);
    drop(head);
    if let Some(refusal) = refusal {
        return refusal;
    }
    let message = match grpc::receive(body).await {
        Ok(Some(message)) => message,
        Ok(None) => {
            count(server, ProxyCounters::count_too_large);
            return grpc::success(&over_limit());
        }
        Err(error) => return grpc::failure(&error),
    };
    let _executing = begin();
    let rules = rules(&message, &server.running.policies());
    match rules {
        Ok(rules) => match decide(rules, server, Instant::now() + PATIENCE).await {
            Ok(response) => grpc::success(&response),
            Err(error) => grpc::failure(&error),
        },
        Err(error) => grpc::failure(&error),
    }
}

/// Returns the reply to a request that is not a call of [`PATH`].
fn refusal(head: &Parts) -> Option<Response> {
    if !grpc::is_call(head) {
        // gRPC prescribes this status for other content types. With another status, a proxy that
        // asks `/v1/forward-auth` over HTTP/2 would take the reply for a decision.
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Some((status, "HTTP/2 is for gRPC here").into_response());
    }
    let unknown = || GrpcError::new(Status::Unimplemented, format!("there is only {PATH}"));
    (head.uri.path() != PATH).then(|| grpc::failure(&unknown()))
}

/// Calls `count` with the counters of requests and descriptors that no policy counts.
fn count(server: &Callee, count: impl FnOnce(&ProxyCounters)) {
    if let Some(context) = server.running.context() {
        count(context.policies().proxies());
    }
}

/// Returns the reply to a request whose message has too many bytes: over the limit.
fn over_limit() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() }
}

/// Returns one rule for each descriptor of a request.
fn rules(message: &[u8], policies: &Policies) -> Result<Vec<Rule>, GrpcError> {
    let invalid = |reason: &str| GrpcError::new(Status::InvalidArgument, reason.to_owned());
    let request = RateLimitRequest::decode(message)
        .map_err(|error| GrpcError::new(Status::InvalidArgument, error.to_string()))?;
    if request.domain.is_empty() {
        return Err(invalid("the domain is empty"));
    }
    if request.descriptors.is_empty() || request.descriptors.len() > DESCRIPTORS {
        return Err(invalid(&format!("a request has 1 to {DESCRIPTORS} descriptors")));
    }
    let units = u64::from(request.hits_addend.max(1));
    let rule = |descriptor: &RateLimitDescriptor| {
        let entries: Vec<_> =
            descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
        if entries.is_empty() || entries.len() > ENTRIES {
            return Err(invalid(&format!("a descriptor has 1 to {ENTRIES} entries")));
        }
        if entries.iter().any(|(key, _)| key.is_empty()) {
            return Err(invalid("a key of a descriptor is empty"));
        }
        // Larder cannot give units back. So a descriptor that asks for that takes no units, and the
        // reply only shows the limiter.
        let units = match descriptor.is_negative_hits {
            true => 0,
            false => descriptor.hits_addend.unwrap_or(units),
        };
        rule(policies, &request.domain, &entries, descriptor.limit, units)
            .ok_or_else(|| invalid("the unit of a limit is unknown"))
    };
    request.descriptors.iter().map(rule).collect()
}

/// Returns the rule for a descriptor that takes `units`. `limit` replaces the limit of the policy.
/// Returns `None` if `limit` is invalid.
fn rule(
    policies: &Policies,
    domain: &str,
    entries: &Entries<'_>,
    limit: Option<RateLimitOverride>,
    units: u64,
) -> Option<Rule> {
    let Some((pattern, policy)) = policies.describing(domain, entries) else {
        return Some(Rule::Unlimited);
    };
    let policy = match limit {
        None => Arc::clone(policy),
        Some(limit) => {
            let (_, seconds) = UNITS.into_iter().find(|(unit, _)| *unit == limit.unit)?;
            Arc::new(policy.with_limit(limit.requests_per_unit.into(), seconds * NANOS)?)
        }
    };
    let action = if units == 0 { LimitAction::Look } else { LimitAction::Take(units) };
    let request =
        LimitRequest::new(policies, Arc::clone(&policy), &pattern.key_of(entries), action);
    Some(match request {
        Ok(request) => Rule::Limited(request),
        Err(_) => Rule::UnfitKey(policy),
    })
}

impl Rule {
    /// Decides about the descriptor of this rule. Returns the policy and the decision that the
    /// client gets, or `None` if no policy limits the descriptor.
    async fn decide(self, server: &Callee, end: Instant) -> Result<Option<Decided>, GrpcError> {
        let (policy, decision) = match self {
            Rule::Unlimited => return Ok(None),
            Rule::UnfitKey(policy) => {
                policy.count_unfit_key();
                (policy, Decision { allowed: false, remaining: 0, retry: None, reset: None })
            }
            Rule::Limited(request) => {
                let policy = Arc::clone(&request.policy);
                match server.call(request, end).await {
                    LimitReply::Decided(decision) => (policy, decision),
                    LimitReply::Undecided(why) => return Err(undecided(why)),
                    LimitReply::Reset => return Ok(None),
                }
            }
        };
        let seen = policy.seen(&decision).0;
        Ok(Some((policy, seen)))
    }
}

fn undecided(why: Undecided) -> GrpcError {
    let status = match why {
        Undecided::NotALimiter => Status::FailedPrecondition,
        Undecided::Refused(_) | Undecided::Late => Status::Unavailable,
    };
    GrpcError::new(status, why.to_string())
}

/// Executes the rules of all descriptors of a request until the deadline `end`. Each descriptor
/// takes its units even if another descriptor is refused.
async fn decide(
    rules: Vec<Rule>,
    server: &Callee,
    end: Instant,
) -> Result<RateLimitResponse, GrpcError> {
    let unlimited = rules.iter().filter(|rule| matches!(rule, Rule::Unlimited)).count();
    count(server, |proxies| proxies.count_unlimited(unlimited));
    let (mut rules, mut decisions) = (rules.into_iter(), Vec::new());
    while rules.len() > 0 {
        let some = rules.by_ref().take(AT_ONCE).map(|rule| rule.decide(server, end));
        decisions.extend(join_all(some).await);
    }
    answered(decisions)
}

/// Returns the reply with these decisions. If a descriptor is refused, the reply is a refusal, even
/// if another descriptor has no decision: Envoy would let the request pass if the reply were an
/// error.
fn answered(
    decisions: Vec<Result<Option<Decided>, GrpcError>>,
) -> Result<RateLimitResponse, GrpcError> {
    let decided = || decisions.iter().flatten().flatten();
    let refusals = || decided().filter(|(_, decision)| !decision.allowed);
    let is_refused = refusals().next().is_some();
    if !is_refused && decisions.iter().any(Result::is_err) {
        return Err(decisions
            .into_iter()
            .find_map(Result::err)
            .unwrap_or_else(|| GrpcError::new(Status::Unavailable, "no decision")));
    }
    let overall = if is_refused { Code::OverLimit } else { Code::Ok };
    Ok(RateLimitResponse {
        overall_code: overall.into(),
        response_headers_to_add: headers(
            refusals().map(|(policy, decision)| (&**policy, decision)),
        ),
        statuses: decisions
            .iter()
            .map(|decided| match decided {
                Ok(decided) => status(decided.as_ref()),
                Err(_) => DescriptorStatus::default(),
            })
            .collect(),
    })
}

fn status(decided: Option<&Decided>) -> DescriptorStatus {
    let Some((policy, decision)) = decided else {
        return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    };
    let narrow = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
    let code = if decision.allowed { Code::Ok } else { Code::OverLimit };
    let seconds = seconds_until_change(decision).map(|time| time.try_into().unwrap_or(i64::MAX));
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: narrow(policy.limit.budget()),
            unit: unit_of(policy.limit.window()),
            name: policy.name.clone(),
        }),
        limit_remaining: narrow(decision.remaining),
        duration_until_reset: seconds.map(|seconds| Duration { seconds }),
    }
}

/// Returns the number of the unit that has the length of `window`; 0, which stands for an unknown
/// unit, if there is none.
fn unit_of(window: Nanos) -> i32 {
    let found = UNITS.iter().find(|(_, seconds)| seconds * NANOS == window);
    found.map_or(0, |(unit, _)| *unit)
}

/// Returns the headers that the proxy adds to its response when a request is refused. A refusal by
/// the HTTP part of the limit port has the same headers.
fn headers<'r>(refusals: impl Iterator<Item = (&'r Policy, &'r Decision)>) -> Vec<HeaderValue> {
    let (mut policies, mut limits, mut retries) = (Vec::new(), Vec::new(), Vec::new());
    for (policy, decision) in refusals {
        policies.push(policy_field(policy));
        limits.push(limit_field(policy, decision));
        retries.push(decision.retry);
    }
    let header = |key: &str, value| HeaderValue { key: key.to_owned(), value };
    let mut headers = Vec::new();
    if !policies.is_empty() {
        headers.push(header("ratelimit-policy", policies.join(", ")));
        headers.push(header("ratelimit", limits.join(", ")));
    }
    // A refusal without a time means that the request may never pass. If there is such a refusal,
    // the reply has no `retry-after`.
    let retry = retries.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default();
    if let Some(retry) = retry.into_iter().max() {
        headers.push(header("retry-after", retry.div_ceil(NANOS).to_string()));
    }
    headers
}
