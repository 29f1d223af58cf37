//! Envoy's rate limit service: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` over
//! gRPC, that is, over HTTP/2 without TLS.
//!
//! The service has one method, and each call is one message in each direction. So gRPC's framing is
//! a few lines here (`grpc.rs`), and the limits of this port apply below them.
//!
//! Envoy lets a request pass if the service answers with an error, unless it is configured
//! otherwise. The clients of Envoy can choose values of descriptors. So no such value leads to an
//! error: if it is too long, the request is over the limit.

#[cfg(test)]
pub(super) mod calls;
mod grpc;
mod messages;

use std::sync::Arc;

use axum::http::{Request, StatusCode};
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

/// Units of time by their numbers in `envoy.type.v3.RateLimitUnit`, in seconds. A month has 30 days
/// and a year 365, as in Envoy's own rate limit service.
const UNITS: [(i32, u64); 7] = [
    (1, 1),
    (2, 60),
    (3, 60 * 60),
    (4, 24 * 60 * 60),
    (5, 30 * 24 * 60 * 60),
    (6, 365 * 24 * 60 * 60),
    (7, 7 * 24 * 60 * 60),
];

/// A policy, and what the client is told about its decision.
type Decided = (Arc<Policy>, Decision);

/// The limit that applies to one descriptor.
#[derive(Debug)]
enum Rule {
    /// No policy has this descriptor.
    Unlimited,
    /// The descriptor's key is too long, or empty.
    UnfitKey(Arc<Policy>),
    Limited(Arc<Policy>, LimitRequest),
}

/// Answers a request of HTTP/2. Calls `begin` when it has arrived, and keeps the guard until the
/// reply.
pub(super) async fn answer<G>(
    request: Request<Incoming>,
    server: &Callee,
    begin: impl FnOnce() -> G,
) -> Response {
    if !grpc::is_call(&request) {
        // As gRPC asks for. With another status, a proxy that asks `/v1/forward-auth` over HTTP/2
        // would take the reply for a decision.
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "HTTP/2 is for gRPC here").into_response();
    }
    if request.uri().path() != PATH {
        let reason = format!("there is only {PATH}");
        return grpc::failure(&GrpcError::new(Status::Unimplemented, reason));
    }
    let message = match grpc::receive(request).await {
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

/// Counts a request, or a part of it, that no policy counts.
fn count(server: &Callee, count: impl FnOnce(&ProxyCounters)) {
    if let Some(context) = server.running.context() {
        count(context.policies().proxies());
    }
}

/// Returns the reply to a request that is too large.
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
        // Units cannot be given back here, so a refund only shows the limiter.
        let units = match descriptor.is_negative_hits {
            true => 0,
            false => descriptor.hits_addend.unwrap_or(units),
        };
        rule(policies, &request.domain, &entries, descriptor.limit, units)
            .ok_or_else(|| invalid("the unit of a limit is unknown"))
    };
    request.descriptors.iter().map(rule).collect()
}

/// Returns the rule for a descriptor that takes `units`; `None` if the limit that the request
/// brings is invalid.
fn rule(
    policies: &Policies,
    domain: &str,
    entries: &Entries<'_>,
    limit: Option<RateLimitOverride>,
    units: u64,
) -> Option<Rule> {
    let found = policies.describing(domain, entries);
    let Some((policy, pattern)) = found.and_then(|it| Some((it, it.descriptor.as_ref()?))) else {
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
    let request = LimitRequest::new(Arc::clone(&policy), &pattern.key_of(entries), action);
    Some(match request {
        Ok(request) => Rule::Limited(policy, request),
        Err(_) => Rule::UnfitKey(policy),
    })
}

impl Rule {
    /// Executes the rule. Returns the policy and what the client is told about its decision; `None`
    /// without a limit.
    async fn decide(self, server: &Callee, end: Instant) -> Result<Option<Decided>, GrpcError> {
        let (policy, decision) = match self {
            Rule::Unlimited => return Ok(None),
            Rule::UnfitKey(policy) => {
                policy.count_unfit_key();
                (policy, Decision { allowed: false, remaining: 0, retry: None, reset: None })
            }
            Rule::Limited(policy, request) => match server.call(request, end).await {
                LimitReply::Decided(decision) => (policy, decision),
                LimitReply::Undecided(why) => return Err(undecided(why)),
                LimitReply::Reset => return Ok(None),
            },
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

/// Executes the rules of a request, all of them until `end`. Each descriptor takes its units even if
/// another one is refused.
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

/// Returns the reply with these decisions. A refusal counts although another descriptor has no
/// decision: as an error, it would let the request pass.
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

/// Returns the number of the unit that has the length of `window`; 0, for an unknown unit, if none
/// has.
fn unit_of(window: Nanos) -> i32 {
    let found = UNITS.iter().find(|(_, seconds)| seconds * NANOS == window);
    found.map_or(0, |(unit, _)| *unit)
}

/// Returns the fields that a refusal adds to the response of the proxy: those of a refusal over
/// HTTP.
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
    // If one of the refusals is for ever, no time helps.
    let retry = retries.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default();
    if let Some(retry) = retry.into_iter().max() {
        headers.push(header("retry-after", retry.div_ceil(NANOS).to_string()));
    }
    headers
}

#[cfg(test)]
mod tests {
    use larder_engine::limit::Limit;

    use super::messages::DescriptorEntry;
    use super::*;
    use crate::policies::{DescriptorPattern, EntryPattern};

    fn entry(key: &str, value: Option<&str>) -> EntryPattern {
        EntryPattern { key: key.to_owned(), value: value.map(str::to_owned) }
    }

    fn policies() -> Policies {
        let entries = vec![entry("user", None)];
        let users = Some(DescriptorPattern { domain: "edge".to_owned(), entries });
        let entries = vec![entry("route", Some("login")), entry("remote_address", None)];
        let descriptor = Some(DescriptorPattern { domain: "edge".to_owned(), entries });
        let prefix = Some("login/".to_owned());
        let limit = Limit::fixed(5, 60 * NANOS);
        Policies::new(vec![
            Policy { prefix, descriptor, ..Policy::new("logins", limit) },
            Policy { descriptor: users, ..Policy::new("users", limit) },
        ])
    }

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entries = entries.iter().map(|(key, value)| DescriptorEntry {
            key: key.as_bytes().to_vec(),
            value: value.as_bytes().to_vec(),
        });
        RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
    }

    fn login(address: &str) -> RateLimitDescriptor {
        descriptor(&[("route", "login"), ("remote_address", address)])
    }

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
    }

    fn rules_of(request: &RateLimitRequest) -> Result<Vec<Rule>, (Status, String)> {
        rules(&request.encode_to_vec(), &policies()).map_err(GrpcError::into_parts)
    }

    #[test]
    fn descriptors_take_units_of_their_policies() {
        let many = RateLimitDescriptor { hits_addend: Some(7), ..login("10.0.0.2") };
        let none = RateLimitDescriptor { hits_addend: Some(0), ..login("10.0.0.3") };
        let other = descriptor(&[("route", "search"), ("remote_address", "10.0.0.1")]);
        let all = request(vec![login("10.0.0.1"), many, none, other, login(&"1".repeat(245))]);
        let rules = rules_of(&all).unwrap();
        let shown: Vec<_> = rules
            .iter()
            .map(|rule| match rule {
                Rule::Unlimited => "unlimited".to_owned(),
                Rule::UnfitKey(policy) => format!("{}: too long", policy.name),
                Rule::Limited(_, request) => {
                    format!("{} {:?}", String::from_utf8_lossy(&request.key), request.action)
                }
            })
            .collect();
        let expected = [
            "login/10.0.0.1 Take(1)",
            "login/10.0.0.2 Take(7)",
            "login/10.0.0.3 Look",
            "unlimited",
            "logins: too long",
        ];
        assert_eq!(shown, expected);
        let five = RateLimitRequest { hits_addend: 5, ..request(vec![login("a")]) };
        let rules = rules_of(&five).unwrap();
        assert!(
            matches!(&rules[0], Rule::Limited(_, request) if request.action == LimitAction::Take(5))
        );
    }

    #[test]
    fn a_refusal_counts_more_than_an_error() {
        let policy = || Arc::new(Policy::new("p", Limit::fixed(1, NANOS)));
        let decided = |allowed| {
            let decision = Decision { allowed, remaining: 0, retry: Some(1), reset: Some(1) };
            Ok(Some((policy(), decision)))
        };
        let failed = || Err(undecided(Undecided::NotALimiter));
        let reply = answered(vec![failed(), decided(true), decided(false)]).unwrap();
        assert_eq!(reply.overall_code(), Code::OverLimit);
        let codes: Vec<_> = reply.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::Unknown, Code::Ok, Code::OverLimit]);
        assert!(answered(vec![decided(true), failed()]).is_err());
    }

    /// Rounds that begin after the deadline ask the worker for nothing.
    #[test]
    fn all_descriptors_share_one_deadline() {
        let server = crate::limit_port::tests::server(Vec::new());
        let (calls, mut called) = tokio::sync::mpsc::channel(DESCRIPTORS);
        let callee = Callee { running: Arc::clone(&server.running), calls };
        let rules = rules_of(&request(vec![login("a"); DESCRIPTORS])).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let end = Instant::now() + std::time::Duration::from_millis(50);
        let late = runtime.block_on(decide(rules, &callee, end)).unwrap_err();
        assert_eq!(late.into_parts().0, Status::Unavailable);
        assert_eq!(std::iter::from_fn(|| called.try_recv().ok()).count(), AT_ONCE);
    }

    #[test]
    fn a_refund_takes_nothing() {
        let refund =
            RateLimitDescriptor { hits_addend: Some(5), is_negative_hits: true, ..login("a") };
        let rules = rules_of(&request(vec![refund])).unwrap();
        assert!(
            matches!(&rules[0], Rule::Limited(_, request) if request.action == LimitAction::Look)
        );
    }

    /// An error would let requests pass: see the head of this file.
    #[test]
    fn no_value_is_an_error() {
        let key = |value: &[u8]| {
            let entries = vec![DescriptorEntry { key: b"user".to_vec(), value: value.to_vec() }];
            let one = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
            match rules_of(&request(vec![one])).unwrap().remove(0) {
                Rule::Limited(_, request) => Some(request.key),
                Rule::UnfitKey(_) => None,
                Rule::Unlimited => panic!("{value:?} is not limited"),
            }
        };
        assert_eq!(key(b"a b\0\xff").unwrap(), b"a b\0\xff");
        assert_eq!(key(&[b'a'; 250]).unwrap().len(), 250);
        assert_eq!(key(&[b'a'; 251]), None);
        assert_eq!(key(b""), None);
    }

    #[test]
    fn a_request_may_bring_a_limit() {
        let with = |unit| {
            let limit = Some(RateLimitOverride { requests_per_unit: 9, unit });
            rules_of(&request(vec![RateLimitDescriptor { limit, ..login("a") }]))
        };
        let rules = with(3).unwrap();
        let Rule::Limited(policy, asked) = &rules[0] else { panic!("{rules:?}") };
        assert_eq!(policy.limit, Limit::fixed(9, 3600 * NANOS));
        assert_eq!(asked.policy.limit, policy.limit);
        assert_eq!(unit_of(policy.limit.window()), 3);
        assert_eq!([unit_of(7 * 24 * 3600 * NANOS), unit_of(0), unit_of(1)], [7, 0, 0]);
        assert_eq!(with(0).unwrap_err().0, Status::InvalidArgument);
        assert_eq!(with(8).unwrap_err().0, Status::InvalidArgument);
    }

    #[test]
    fn requests_that_say_nothing_are_errors() {
        let reason = |request: &RateLimitRequest| rules_of(request).unwrap_err().1;
        assert_eq!(reason(&RateLimitRequest::default()), "the domain is empty");
        let number = "a request has 1 to 16 descriptors";
        assert_eq!(reason(&request(vec![])), number);
        assert_eq!(reason(&request(vec![login("a"); 17])), number);
        assert!(rules_of(&request(vec![login("a"); 16])).is_ok());
        assert_eq!(reason(&request(vec![descriptor(&[])])), "a descriptor has 1 to 16 entries");
        let empty = descriptor(&[("", "a")]);
        assert_eq!(reason(&request(vec![empty])), "a key of a descriptor is empty");
        let (status, _) =
            rules(b"\x0a\x05", &policies()).map_err(GrpcError::into_parts).unwrap_err();
        assert_eq!(status, Status::InvalidArgument);
    }

    /// A client has to wait until every limit lets it pass.
    #[test]
    fn the_longest_wait_counts() {
        let policy = |name: &str| Policy::new(name, Limit::fixed(1, 60 * NANOS));
        let (a, b) = (policy("a"), policy("b"));
        let refused = |retry| Decision { allowed: false, remaining: 0, retry, reset: retry };
        let values = |decisions: &[(&Policy, &Decision)]| -> Vec<String> {
            let headers = headers(decisions.iter().copied());
            headers.into_iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
        };
        let (short, long) = (refused(Some(NANOS)), refused(Some(9 * NANOS + 1)));
        let expected = [
            r#"ratelimit-policy: "a";q=1;w=60, "b";q=1;w=60"#,
            r#"ratelimit: "a";r=0;t=10, "b";r=0;t=1"#,
            "retry-after: 10",
        ];
        assert_eq!(values(&[(&a, &long), (&b, &short)]), expected);
        assert_eq!(values(&[(&a, &refused(None)), (&b, &short)]).len(), 2);
        assert!(values(&[]).is_empty());
    }
}
