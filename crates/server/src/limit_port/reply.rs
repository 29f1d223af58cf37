//! Writes HTTP replies: JSON, and the fields RateLimit-Policy and RateLimit of the Internet-Draft
//! draft-ietf-httpapi-ratelimit-headers, revisions 10 (27 September 2025) and 11 (23 May 2026).
//!
//! The draft counts whole seconds and has no numbers above [`INTEGER_MAX`]. Times are rounded up,
//! so a client that follows them is never early. Parameters that the draft lacks begin with
//! `larder-`.

use std::fmt::Write;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use larder_engine::NANOS;
use larder_engine::limit::{Decision, Nanos};
use larder_protocol::KEY_LEN_MAX;
use serde::Serialize;

use super::call::{LimitAction, LimitReply, Undecided, UnfitKey};
use super::request::{HttpRequest, Mistake};
use crate::policies::Policy;

/// Nanoseconds in a millisecond.
const MILLI: u64 = 1_000_000;

/// The largest integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// The body of a reply about a limiter. A time of `None` means never.
#[derive(Serialize)]
struct LimitBody<'a> {
    /// True if the request passes; absent in the reply to a request that only looks at the limiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<bool>,
    /// True if the request exceeds the limit and passes only because the policy is a shadow policy;
    /// otherwise absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
    policy: &'a str,
    /// The largest number of units that may be used at once.
    limit: u64,
    remaining: u64,
    reset_ms: Option<u64>,
    /// Time until the request may pass; absent in the reply to a request that only looks at the
    /// limiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<Option<u64>>,
}

/// Returns the reply to a request that names `policy`.
pub(super) fn of(request: &HttpRequest, policy: &Policy, reply: &LimitReply) -> Response {
    match reply {
        LimitReply::Decided(decision) => decided(request, policy, decision),
        LimitReply::Reset => hardened(StatusCode::NO_CONTENT),
        LimitReply::Undecided(why) => {
            let status = match why {
                Undecided::NotALimiter => StatusCode::CONFLICT,
                Undecided::Refused(_) | Undecided::Late => StatusCode::SERVICE_UNAVAILABLE,
            };
            error(status, &why.to_string())
        }
    }
}

/// Returns the reply to a request for units, or to a look at the limiter.
fn decided(request: &HttpRequest, policy: &Policy, decision: &Decision) -> Response {
    let looks = request.action == LimitAction::Look;
    let (decision, shadow) = policy.seen(decision);
    let millis = |time: Option<Nanos>| time.map(|time| time.div_ceil(MILLI));
    let body = LimitBody {
        allowed: (!looks).then_some(decision.allowed),
        shadow,
        policy: &policy.name,
        limit: policy.limit.capacity(),
        remaining: decision.remaining,
        reset_ms: millis(decision.reset),
        retry_after_ms: (!looks).then_some(millis(decision.retry)),
    };
    let mut response = hardened(Json(body));
    let headers = response.headers_mut();
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("ratelimit-policy", policy_field(policy));
    put("ratelimit", limit_field(policy, &decision));
    if let (false, Some(retry)) = (decision.allowed, decision.retry) {
        put("retry-after", retry.div_ceil(NANOS).to_string());
    }
    if !decision.allowed {
        *response.status_mut() = request.refused_as;
    }
    response
}

/// Returns the value of RateLimit-Policy.
pub(super) fn policy_field(policy: &Policy) -> String {
    let limit = &policy.limit;
    let mut field = format!("\"{}\";q={}", policy.name, limit.budget().min(INTEGER_MAX));
    // Writing to a string cannot fail, here and below.
    if limit.window() != 0 {
        let _ = write!(field, ";w={}", limit.window().div_ceil(NANOS));
    }
    if policy.limit.capacity() != limit.budget() {
        let _ = write!(field, ";larder-burst={}", policy.limit.capacity().min(INTEGER_MAX));
    }
    field
}

/// Returns the value of the header field RateLimit: the remaining units (`r`) and a time (`t`). If
/// the request was refused and may pass later, `t` is the time until it may pass. Otherwise `t` is
/// the time until all units are free again.
pub(super) fn limit_field(policy: &Policy, decision: &Decision) -> String {
    let mut field = format!("\"{}\";r={}", policy.name, decision.remaining.min(INTEGER_MAX));
    if let Some(seconds) = seconds_until_change(decision) {
        let _ = write!(field, ";t={seconds}");
    }
    field
}

/// Returns the seconds, rounded up, until a refused request may pass. If the request was not
/// refused or may never pass, returns the seconds until all units are free again. Returns `None` if
/// they never are.
pub(super) fn seconds_until_change(decision: &Decision) -> Option<u64> {
    let time = if decision.allowed { decision.reset } else { decision.retry.or(decision.reset) };
    time.map(|time| time.div_ceil(NANOS))
}

/// Returns the reply to a request that names a policy that does not exist.
pub(super) fn unknown_policy() -> Response {
    error(StatusCode::NOT_FOUND, "there is no policy of this name")
}

/// Returns the reply to a request whose policy has no limiter for its key.
pub(super) fn unfit_key(why: &UnfitKey) -> Response {
    let reason = match why {
        UnfitKey::Length(prefix) => {
            format!("the key and the policy's prefix of {prefix} bytes exceed {KEY_LEN_MAX} bytes")
        }
        UnfitKey::OfPolicy(name) => {
            format!("the key begins with the prefix of the policy {name:?}")
        }
    };
    error(StatusCode::BAD_REQUEST, &reason)
}

/// Returns the reply to a request of a proxy whose policy has no prefix, although the client of the
/// proxy may choose the key.
pub(super) fn no_prefix() -> Response {
    let reason = "the policy has no prefix, so this header could name any item: give it a prefix";
    error(StatusCode::BAD_REQUEST, reason)
}

/// Returns the reply to a request that cannot be executed.
pub(super) fn mistake(mistake: &Mistake) -> Response {
    let mut response = error(mistake.status, &mistake.reason);
    if let Some(allow) = mistake.allow {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    response
}

fn error(status: StatusCode, reason: &str) -> Response {
    #[derive(Serialize)]
    struct ErrorBody<'a> {
        error: &'a str,
    }
    hardened((status, Json(ErrorBody { error: reason })))
}

/// Adds headers to a reply: caches must not keep it, and browsers must not guess its type.
fn hardened(reply: impl IntoResponse) -> Response {
    const HEADERS: [(HeaderName, &str); 2] =
        [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (HEADERS, reply).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_engine::limit::Limit;

    fn fields(policy: &Policy, decision: Decision) -> [String; 2] {
        [policy_field(policy), limit_field(policy, &decision)]
    }

    fn decision(allowed: bool, retry: Option<Nanos>, reset: Option<Nanos>) -> Decision {
        Decision { allowed, remaining: 3, retry, reset }
    }

    #[test]
    fn fields_have_the_form_of_the_draft() {
        let minute = 60 * NANOS;
        let policy = Policy::new("api/v1", Limit::fixed(100, minute));
        let passed = decision(true, Some(0), Some(NANOS + 1));
        assert_eq!(fields(&policy, passed), [r#""api/v1";q=100;w=60"#, r#""api/v1";r=3;t=2"#]);
        let refused = decision(false, Some(4 * NANOS), Some(9 * NANOS));
        assert_eq!(fields(&policy, refused)[1], r#""api/v1";r=3;t=4"#);
        // A request that costs more than the budget never passes.
        let never = decision(false, None, Some(9 * NANOS));
        assert_eq!(fields(&policy, never)[1], r#""api/v1";r=3;t=9"#);
    }

    #[test]
    fn fields_omit_values_that_the_draft_cannot_express() {
        let policy = Policy::new("p", Limit::fixed(u64::MAX, 0));
        let for_ever = Decision { remaining: u64::MAX, ..decision(true, Some(0), None) };
        let expected = [r#""p";q=999999999999999"#, r#""p";r=999999999999999"#];
        assert_eq!(fields(&policy, for_ever), expected);
        let policy = Policy::new("p", Limit::gcra(100, 250 * MILLI, 20).unwrap());
        assert_eq!(policy_field(&policy), r#""p";q=100;w=1;larder-burst=20"#);
    }
}
