//! Tests of the rules and replies, and of calls (`calls.rs`).

pub(in crate::limit_port) mod calls;

use larder_engine::limit::Limit;

use super::messages::DescriptorEntry;
use super::*;
use crate::policies::pattern;

fn policies() -> Policies {
    let users = Some(pattern("edge user"));
    let descriptor = Some(pattern("edge route=login remote_address"));
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
            Rule::Limited(request) => {
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
    assert!(matches!(&rules[0], Rule::Limited(request) if request.action == LimitAction::Take(5)));
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

/// Descriptors are decided [`AT_ONCE`] at a time. After the deadline, no request must reach the
/// worker.
#[test]
fn all_descriptors_share_one_deadline() {
    let server = crate::limit_port::tests::server(Vec::new());
    let (calls, mut called) = tokio::sync::mpsc::channel(DESCRIPTORS);
    let callee = Callee { running: Arc::clone(&server.running), calls };
    let rules = rules_of(&request(vec![login("a"); DESCRIPTORS])).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let end = Instant::now() + std::time::Duration::from_secs(2);
    let late = runtime.block_on(decide(rules, &callee, end)).unwrap_err();
    assert_eq!(late.into_parts().0, Status::Unavailable);
    assert_eq!(std::iter::from_fn(|| called.try_recv().ok()).count(), AT_ONCE);
}

#[test]
fn a_refund_takes_nothing() {
    let refund = RateLimitDescriptor { hits_addend: Some(5), is_negative_hits: true, ..login("a") };
    let rules = rules_of(&request(vec![refund])).unwrap();
    assert!(matches!(&rules[0], Rule::Limited(request) if request.action == LimitAction::Look));
}

/// A value of a descriptor must not lead to an error, because Envoy lets a request pass on an
/// error.
#[test]
fn no_value_is_an_error() {
    let key = |value: &[u8]| {
        let entries = vec![DescriptorEntry { key: b"user".to_vec(), value: value.to_vec() }];
        let one = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
        match rules_of(&request(vec![one])).unwrap().remove(0) {
            Rule::Limited(request) => Some(request.key),
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
    let Rule::Limited(asked) = &rules[0] else { panic!("{rules:?}") };
    assert_eq!(asked.policy.limit, Limit::fixed(9, 3600 * NANOS));
    assert_eq!((&*asked.policy.name, &*asked.key), ("logins", &b"login/a"[..]));
    assert_eq!(unit_of(asked.policy.limit.window()), 3);
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
    let (status, _) = rules(b"\x0a\x05", &policies()).map_err(GrpcError::into_parts).unwrap_err();
    assert_eq!(status, Status::InvalidArgument);
}

/// A client has to wait until every limit lets it pass, so the longest wait must be in the header.
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
