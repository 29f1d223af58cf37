//! Parses HTTP requests. Keys are any bytes, so names of policies and values of parameters are
//! percent-decoded as bytes. An unknown or repeated parameter is an error: a misspelt cost must not
//! become the default.
//!
//! A web page can make a browser send requests to any address. `/v1/limit/` refuses them by their
//! headers: `Origin`, which names the page, or `Sec-Fetch-Site`, which says that a page makes the
//! request. `/v1/forward-auth/` cannot refuse such requests, because proxies pass on the headers of
//! their clients. It takes the key from a header that a page cannot set for another site.
//!
//! With DNS rebinding, a page's own host name resolves to the address of this port, so the browser
//! treats this port as the page's site. Such a name has a dot. So a Host with a dot is refused
//! unless it is an address or is allowed by `--admin-host`. Names without a dot belong to private
//! networks and to the settings of proxies.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use super::call::LimitAction;
use crate::admin::host::is_known;
use crate::settings::Settings;

/// A parsed HTTP request. Its policy is not looked up yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    /// The name of the policy.
    pub(super) policy: Vec<u8>,
    /// The key, without the policy's prefix. Not empty.
    pub(super) key: Vec<u8>,
    /// True if the key is the value of a header that the request names. The client of a proxy may
    /// have sent this header.
    pub(super) key_of_header: bool,
    pub(super) action: LimitAction,
    /// The status of the reply if the limit refuses the request.
    pub(super) refused_as: StatusCode,
}

/// A request that cannot be executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) status: StatusCode,
    pub(super) reason: Cow<'static, str>,
    /// The methods that are allowed, for status 405.
    pub(super) allow: Option<&'static str>,
}

impl Mistake {
    fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Mistake {
        Mistake { status, reason: reason.into(), allow: None }
    }

    fn method(allow: &'static str) -> Mistake {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Mistake { allow: Some(allow), ..Mistake::new(status, format!("only {allow}")) }
    }
}

fn bad(reason: impl Into<Cow<'static, str>>) -> Mistake {
    Mistake::new(StatusCode::BAD_REQUEST, reason)
}

/// Parses a request. `settings` returns the settings in use.
pub(super) fn parse(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    settings: impl FnOnce() -> Arc<Settings>,
) -> Result<HttpRequest, Mistake> {
    if let Some(host) = headers.get(header::HOST) {
        let has_dot = host.as_bytes().contains(&b'.');
        let known = |host| is_known(host, &[]) || is_known(host, &settings().admin_hosts);
        if has_dot && !host.to_str().is_ok_and(known) {
            let reason = "this Host is not known here: allow it with --admin-host";
            // The status is not 403, which nginx would take for a refusal by the limit.
            return Err(Mistake::new(StatusCode::MISDIRECTED_REQUEST, reason));
        }
    }
    let query = uri.query().unwrap_or_default();
    if let Some(policy) = uri.path().strip_prefix("/v1/limit/") {
        return limit(method, policy, query, headers);
    }
    if let Some(policy) = uri.path().strip_prefix("/v1/forward-auth/") {
        return forward_auth(method, policy, query, headers);
    }
    let reason = "there are only /v1/limit/POLICY and /v1/forward-auth/POLICY";
    Err(Mistake::new(StatusCode::NOT_FOUND, reason))
}

fn limit(
    method: &Method,
    policy: &str,
    query: &str,
    headers: &HeaderMap,
) -> Result<HttpRequest, Mistake> {
    let asks_for_itself = |value: &header::HeaderValue| value.as_bytes() == b"none";
    if headers.contains_key(header::ORIGIN)
        || !headers.get("sec-fetch-site").is_none_or(asks_for_itself)
    {
        return Err(Mistake::new(StatusCode::FORBIDDEN, "web pages may not ask"));
    }
    let takes = method == Method::POST;
    if !takes && !matches!(*method, Method::GET | Method::HEAD | Method::DELETE) {
        return Err(Mistake::method("GET, HEAD, POST, DELETE"));
    }
    let [key, cost] = parameters(query, ["key", if takes { "cost" } else { "" }])?;
    let key = key.filter(|key| !key.is_empty());
    Ok(HttpRequest {
        policy: decoded(policy)?,
        key_of_header: false,
        key: key.ok_or_else(|| bad("the parameter key is missing or empty"))?,
        action: match *method {
            Method::POST => LimitAction::Take(cost_of(cost.as_deref())?),
            Method::DELETE => LimitAction::Reset,
            _ => LimitAction::Look,
        },
        refused_as: StatusCode::TOO_MANY_REQUESTS,
    })
}

fn forward_auth(
    method: &Method,
    policy: &str,
    query: &str,
    headers: &HeaderMap,
) -> Result<HttpRequest, Mistake> {
    if method != Method::GET {
        return Err(Mistake::method("GET"));
    }
    let [by, cost, status] = parameters(query, ["by", "cost", "status"])?;
    Ok(HttpRequest {
        policy: decoded(policy)?,
        key_of_header: by.is_some(),
        key: match by {
            None => last_address(headers)?,
            Some(by) => header_named(headers, &by)?,
        },
        action: LimitAction::Take(cost_of(cost.as_deref())?),
        refused_as: match status {
            None => StatusCode::TOO_MANY_REQUESTS,
            Some(status) => StatusCode::from_bytes(&status)
                .ok()
                .filter(StatusCode::is_client_error)
                .ok_or_else(|| bad("status must be a number from 400 to 499"))?,
        },
    })
}

/// Returns the last address of X-Forwarded-For. The proxy that sent this request has appended this
/// address, which is the address of the proxy's client. Clients can forge all addresses before it
/// in the list.
fn last_address(headers: &HeaderMap) -> Result<Vec<u8>, Mistake> {
    let list = headers.get_all("x-forwarded-for").iter().next_back();
    let last = list.and_then(|list| list.as_bytes().rsplit(|byte| *byte == b',').next());
    match last.map(<[u8]>::trim_ascii) {
        Some(address) if !address.is_empty() => Ok(address.to_vec()),
        _ => Err(bad("X-Forwarded-For is missing or has no last address")),
    }
}

/// Returns the value of the header that `by` names.
fn header_named(headers: &HeaderMap, by: &[u8]) -> Result<Vec<u8>, Mistake> {
    let name = by.strip_prefix(b"header:").and_then(|name| HeaderName::from_bytes(name).ok());
    let name = name.ok_or_else(|| bad("by must be header: and the name of a header"))?;
    if PAGES_SET.contains(&name) {
        return Err(bad(format!("a web page can choose the header {name}: name another one")));
    }
    let mut values = headers.get_all(&name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value.as_bytes().to_vec()),
        (_, None) => Err(bad(format!("the header {name} is missing or empty"))),
        _ => Err(bad(format!("the header {name} is there more than once"))),
    }
}

/// The headers that a web page can set in a request to any address.
const PAGES_SET: [HeaderName; 5] = [
    header::ACCEPT,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::RANGE,
];

fn cost_of(text: Option<&[u8]>) -> Result<u64, Mistake> {
    let Some(text) = text else { return Ok(1) };
    let digits = str::from_utf8(text).ok().filter(|_| text.iter().all(u8::is_ascii_digit));
    let cost = digits.and_then(|digits| digits.parse().ok());
    cost.ok_or_else(|| bad(format!("cost must be a whole number from 0 to {}", u64::MAX)))
}

/// Returns the value of the parameter of each name in `names`, or `None` if `query` does not have
/// it. An empty name stands for a parameter that this kind of request does not have.
fn parameters<const N: usize>(
    query: &str,
    names: [&str; N],
) -> Result<[Option<Vec<u8>>; N], Mistake> {
    let mut values = [const { None }; N];
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let is_it = |known: &&str| !known.is_empty() && *known == name;
        let Some(at) = names.iter().position(is_it) else {
            let known = names.iter().filter(|known| !known.is_empty());
            let known = known.copied().collect::<Vec<_>>().join(", ");
            return Err(bad(format!("unknown parameter; known here: {known}")));
        };
        if values[at].replace(decoded(&value.replace('+', " "))?).is_some() {
            return Err(bad(format!("the parameter {name} is there more than once")));
        }
    }
    Ok(values)
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Result<Vec<u8>, Mistake> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(bad("a % must be followed by two hexadecimal digits"));
        };
        bytes.push((high << 4 | low) as u8);
        rest = rest.get(2..).unwrap_or_default();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(
        method: &str,
        uri: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<HttpRequest, Mistake> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let settings =
            || Settings { admin_hosts: vec!["larder.example".to_owned()], ..Settings::default() };
        parse(&method.parse().unwrap(), &uri.parse().unwrap(), &map, || Arc::new(settings()))
    }

    fn key(uri: &str, headers: &[(&'static str, &str)]) -> Vec<u8> {
        parsed("GET", uri, headers).unwrap().key
    }

    /// Returns the status and the reason of a request that is refused.
    fn mistake(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> (u16, String) {
        let mistake = parsed(method, uri, headers).unwrap_err();
        (mistake.status.as_u16(), mistake.reason.into_owned())
    }

    #[test]
    fn methods_are_actions() {
        let uri = "/v1/limit/api%2Fv1?key=a";
        let actions = [
            ("POST", LimitAction::Take(1)),
            ("GET", LimitAction::Look),
            ("HEAD", LimitAction::Look),
            ("DELETE", LimitAction::Reset),
        ];
        for (method, action) in actions {
            let request = parsed(method, uri, &[]).unwrap();
            assert_eq!((request.action, &*request.policy), (action, &b"api/v1"[..]), "{method}");
        }
        assert_eq!(parsed("PUT", uri, &[]).unwrap_err().allow, Some("GET, HEAD, POST, DELETE"));
        let forwarded = [("x-forwarded-for", "::1")];
        let mistake = parsed("POST", "/v1/forward-auth/a", &forwarded).unwrap_err();
        assert_eq!((mistake.status.as_u16(), mistake.allow), (405, Some("GET")));
        assert_eq!(self::mistake("GET", "/v1/limits/a?key=a", &[]).0, 404);
        assert_eq!(self::mistake("GET", "/", &[]).0, 404);
    }

    #[test]
    fn keys_are_any_bytes() {
        let key = |query: &str| key(&format!("/v1/limit/p?{query}"), &[]);
        assert_eq!(key("key=a%20b+c%2B"), b"a b c+");
        assert_eq!(key("key=%00%ff%fFx=y"), b"\0\xff\xffx=y");
        assert_eq!(key("&&key=1&"), b"1");
        for query in ["", "key", "key=", "kee=1"] {
            assert_eq!(mistake("GET", &format!("/v1/limit/p?{query}"), &[]).0, 400, "{query}");
        }
        for query in ["key=%", "key=%1", "key=%zz", "key=%+1", "key=1%2"] {
            let (status, reason) = mistake("POST", &format!("/v1/limit/p?{query}"), &[]);
            assert!(status == 400 && reason.contains("two hexadecimal digits"), "{reason}");
        }
    }

    #[test]
    fn costs_are_whole_numbers() {
        let parse = |query: &str| parsed("POST", &format!("/v1/limit/p?key=a{query}"), &[]);
        for (query, cost) in
            [("", 1), ("&cost=0", 0), ("&cost=007", 7), ("&cost=18446744073709551615", u64::MAX)]
        {
            assert_eq!(parse(query).unwrap().action, LimitAction::Take(cost), "{query}");
        }
        for cost in ["", "-1", "%2B1", "1.5", "18446744073709551616", "0x1", "1+", "%D9%A1"] {
            let reason = parse(&format!("&cost={cost}")).unwrap_err().reason;
            assert!(reason.contains("cost must be a whole number"), "{cost}: {reason}");
        }
        let (_, reason) = mistake("POST", "/v1/limit/p?key=a&costt=5", &[]);
        assert_eq!(reason, "unknown parameter; known here: key, cost");
        let (_, reason) = mistake("GET", "/v1/limit/p?key=a&cost=5", &[]);
        assert_eq!(reason, "unknown parameter; known here: key");
        for query in ["key=a&=5", "key=a&=", "=5&key=a"] {
            let (_, reason) = mistake("DELETE", &format!("/v1/limit/p?{query}"), &[]);
            assert_eq!(reason, "unknown parameter; known here: key", "{query}");
        }
        let (_, reason) = mistake("POST", "/v1/limit/p?key=a&key=b", &[]);
        assert_eq!(reason, "the parameter key is there more than once");
    }

    #[test]
    fn the_key_of_forward_auth_is_the_nearest_proxys_client() {
        let key = |headers: &[(&'static str, &str)]| key("/v1/forward-auth/p", headers);
        let name = "x-forwarded-for";
        assert_eq!(key(&[(name, "203.0.113.9")]), b"203.0.113.9");
        assert_eq!(key(&[(name, "1.1.1.1, 2.2.2.2,2001:db8::1 ")]), b"2001:db8::1");
        assert_eq!(key(&[(name, "1.1.1.1"), (name, "2.2.2.2")]), b"2.2.2.2");
        for headers in [&[][..], &[(name, "")], &[(name, "1.1.1.1,")], &[(name, " ")]] {
            assert_eq!(mistake("GET", "/v1/forward-auth/p", headers).0, 400, "{headers:?}");
        }
    }

    #[test]
    fn the_key_of_forward_auth_can_be_any_header() {
        let uri = "/v1/forward-auth/p?by=header:X-Api-Key&status=403&cost=3";
        let request = parsed("GET", uri, &[("x-api-key", "s e c")]).unwrap();
        assert_eq!((&*request.key, request.key_of_header), (&b"s e c"[..], true));
        assert_eq!(request.action, LimitAction::Take(3));
        assert_eq!(request.refused_as, StatusCode::FORBIDDEN);
        for headers in [&[][..], &[("x-api-key", "")], &[("x-api-key", "a"), ("x-api-key", "a")]] {
            assert_eq!(mistake("GET", uri, headers).0, 400, "{headers:?}");
        }
        for name in ["accept", "Accept-Language", "content-language", "content-type", "range"] {
            let uri = format!("/v1/forward-auth/p?by=header:{name}");
            let (status, reason) = mistake("GET", &uri, &[("accept", "a"), ("range", "a")]);
            assert!(status == 400 && reason.contains("a web page can choose"), "{name}: {reason}");
        }
        let forwarded = [("x-forwarded-for", "::1")];
        for query in [
            "by=",
            "by=X-Real-IP",
            "by=header:",
            "by=header:a%20b",
            "key=a",
            "status=200",
            "status=4",
        ] {
            let uri = format!("/v1/forward-auth/p?{query}");
            assert_eq!(mistake("GET", &uri, &forwarded).0, 400, "{query}");
        }
    }

    #[test]
    fn web_pages_may_not_ask() {
        let uri = "/v1/limit/p?key=a";
        for headers in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-origin"),
        ] {
            for method in ["GET", "POST", "DELETE"] {
                assert_eq!(mistake(method, uri, &[headers]).0, 403, "{headers:?}");
            }
            let proxied = [headers, ("x-forwarded-for", "::1")];
            assert!(parsed("GET", "/v1/forward-auth/p", &proxied).is_ok());
        }
        assert!(parsed("GET", uri, &[("sec-fetch-site", "none")]).is_ok());
    }

    #[test]
    fn names_that_a_page_can_have_are_refused_as_host() {
        for uri in ["/v1/limit/p?key=a", "/v1/forward-auth/p"] {
            let asked = |host| parsed("GET", uri, &[("host", host), ("x-forwarded-for", "::1")]);
            for host in ["127.0.0.1:1", "[::1]:1", "localhost:1", "larder", "Larder.example:1"] {
                assert!(asked(host).is_ok(), "{host}");
            }
            for host in ["evil.example", "evil.example:1", "127.0.0.1.evil.example:1", "larder."] {
                let refused = asked(host).unwrap_err().status;
                assert_eq!(refused, StatusCode::MISDIRECTED_REQUEST, "{host}");
            }
        }
    }
}
