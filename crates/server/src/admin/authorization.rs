//! Extractors that decide which requests are allowed. A request that changes the server or sees
//! values needs the [token](super::token). A request that sees only names of keys may come from
//! this machine instead.
//!
//! The token travels only in the header `Authorization`. A browser never adds that header by
//! itself, and a page from elsewhere cannot add it without a preflight request, which is refused
//! (see [`origin`](super::origin)). A token in a cookie would be sent with every request, from any
//! page. A token in a URL would end up in logs and in the browser's history.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::connection_limit::{ActionGuard, AdminClient};
use super::headers::HARDENED;
use super::host::is_this_machine;
use super::state::AdminState;
use super::token::Checked;

/// Returns true for a client on this machine.
fn is_local(client: SocketAddr) -> bool {
    let ip: IpAddr = client.ip().to_canonical();
    ip.is_loopback()
}

/// Returns the token of a request's header; `None` if there is none, `Err` if there are several
/// headers or another scheme.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, ()> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len()).ok_or(())?;
    match values.next() {
        None if scheme.eq_ignore_ascii_case(b"Bearer ") => Ok(Some(token.trim_ascii())),
        _ => Err(()),
    }
}

fn visitor_of(parts: &Parts) -> Option<&AdminClient> {
    parts.extensions.get::<ConnectInfo<AdminClient>>().map(|visitor| &visitor.0)
}

/// Returns true if the client is on this machine and sends none of the headers with which a proxy
/// forwards requests of other clients.
fn is_from_here(parts: &Parts) -> bool {
    /// Headers in which a proxy names its client or itself.
    const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    let is_forwarded = FORWARDED.iter().any(|name| parts.headers.contains_key(*name));
    !is_forwarded && visitor_of(parts).is_some_and(|visitor| is_local(visitor.address))
}

fn refuse(code: StatusCode, reason: &'static str) -> Response {
    let scheme = [(header::WWW_AUTHENTICATE, "Bearer realm=\"larder\"")];
    (code, HARDENED, scheme, reason).into_response()
}

/// Extractor for requests that carry the token. While this value lives, the listener closes other
/// connections before the client's, if it needs room for a new connection.
#[derive(Debug)]
pub(super) struct Authorized {
    /// The address of the client.
    pub(super) client: Option<SocketAddr>,
    _guard: Option<ActionGuard>,
}

impl FromRequestParts<Arc<AdminState>> for Authorized {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<AdminState>,
    ) -> Result<Self, Response> {
        let client = visitor_of(parts).map(|visitor| visitor.address);
        let given = match bearer(&parts.headers) {
            Ok(Some(given)) => given,
            Ok(None) => return Err(refuse(StatusCode::UNAUTHORIZED, "this needs the token\n")),
            Err(()) => {
                let reason = "the token is one header: Authorization: Bearer TOKEN\n";
                return Err(refuse(StatusCode::UNAUTHORIZED, reason));
            }
        };
        match state.token.check(given, client, is_from_here(parts), Instant::now()) {
            Checked::Right => {
                Ok(Authorized { client, _guard: visitor_of(parts).map(AdminClient::begin_action) })
            }
            Checked::Wrong => Err(refuse(StatusCode::UNAUTHORIZED, "the token is wrong\n")),
            Checked::TooMany => {
                let reason = "the token is wrong, as too many before: wait some seconds\n";
                Err(refuse(StatusCode::TOO_MANY_REQUESTS, reason))
            }
        }
    }
}

/// Extractor for requests whose replies may name keys: requests that come from this machine or
/// carry the token. A request that a proxy on this machine has forwarded needs the token too. It is
/// recognized by a header that the proxy adds, or by the host in its header `Host`, which is not
/// this machine. If a proxy adds no header and replaces the host, its requests cannot be told from
/// those of a local client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trusted;

impl FromRequestParts<Arc<AdminState>> for Trusted {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<AdminState>,
    ) -> Result<Self, Response> {
        let has_token = parts.headers.contains_key(header::AUTHORIZATION);
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !has_token && is_from_here(parts) && host.is_some_and(is_this_machine) {
            return Ok(Trusted);
        }
        Authorized::from_request_parts(parts, state).await.map(|_| Trusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::AdminToken;
    use crate::settings::Settings;

    const TOKEN: &str = "0123456789abcdef0123";

    #[test]
    fn the_token_is_one_bearer_header() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(|token| token.map(<[u8]>::to_vec))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["Bearer abc"]), Ok(Some(b"abc".to_vec())));
        assert_eq!(of(&["bearer abc"]), Ok(Some(b"abc".to_vec())));
        for wrong in [&["Bearer"][..], &["Basic abc"], &["abc"], &[""], &["Bearer a", "Bearer a"]] {
            assert_eq!(of(wrong), Err(()), "{wrong:?}");
        }
    }

    fn parts(client: &str, headers: &[(&str, &str)]) -> Parts {
        let visitor = AdminClient::at(client.parse().unwrap());
        let mut request = axum::http::Request::builder().extension(ConnectInfo(visitor));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn state() -> Arc<AdminState> {
        let token = AdminToken::new(TOKEN.to_owned(), false);
        Arc::new(AdminState::new(Settings::default(), token, "127.0.0.1:1".parse().unwrap()))
    }

    fn status<T: FromRequestParts<Arc<AdminState>, Rejection = Response>>(
        state: &Arc<AdminState>,
        client: &str,
        headers: &[(&str, &str)],
    ) -> u16 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut parts = parts(client, headers);
        let extracted = runtime.block_on(T::from_request_parts(&mut parts, state));
        extracted.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
    }

    /// Clients on this machine see names of keys without the token. Others need the token.
    #[test]
    fn this_machine_is_trusted_unless_a_proxy_asks() {
        let state = state();
        let status =
            |client: &str, headers: &[(&str, &str)]| status::<Trusted>(&state, client, headers);
        let right = format!("Bearer {TOKEN}");
        let host = ("host", "127.0.0.1:11212");
        for here in ["127.0.0.1:9", "[::1]:9"] {
            assert_eq!(status(here, &[host]), 200);
            assert_eq!(status(here, &[("host", "localhost")]), 200);
            assert_eq!(status(here, &[host, ("authorization", &right)]), 200);
            assert_eq!(
                status(here, &[host, ("authorization", "Bearer 00000000000000000000")]),
                401
            );
            for name in ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"] {
                assert_eq!(status(here, &[host, (name, "10.0.0.5")]), 401, "{name}");
            }
            // A proxy that adds none of these headers is recognized by the host that its client
            // named.
            for name in ["cache.example", "10.0.0.5:11212", "[::1].evil.example"] {
                assert_eq!(status(here, &[("host", name)]), 401, "{name}");
                let with_token = [("host", name), ("authorization", &right)];
                assert_eq!(status(here, &with_token), 200, "{name}");
            }
            assert_eq!(status(here, &[]), 401);
        }
        assert_eq!(status("10.0.0.5:9", &[host]), 401);
        assert_eq!(status("10.0.0.5:9", &[host, ("x-forwarded-for", "127.0.0.1")]), 401);
        assert_eq!(status("10.0.0.5:9", &[host, ("authorization", &right)]), 200);
    }

    /// Wrong tokens that a proxy on this machine forwards count toward the rate of other machines.
    #[test]
    fn forwarded_tokens_count_as_from_elsewhere() {
        let state = state();
        let here = "127.0.0.1:9";
        let wrong = ("authorization", "Bearer 00000000000000000000");
        let forwarded = [wrong, ("x-forwarded-for", "203.0.113.9")];
        let codes: Vec<u16> =
            (0..50).map(|_| status::<Authorized>(&state, here, &forwarded)).collect();
        assert!(codes.contains(&429), "{codes:?}");
        assert_eq!(status::<Authorized>(&state, here, &[wrong]), 401);
        let right = format!("Bearer {TOKEN}");
        for other in ["x-forwarded-for", "x-other"] {
            let headers = [("authorization", &*right), (other, "203.0.113.9")];
            assert_eq!(status::<Authorized>(&state, here, &headers), 200);
        }
    }

    #[test]
    fn only_loopback_addresses_are_local() {
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for other in ["10.0.0.5:1", "0.0.0.0:1", "[::]:1", "[fe80::1]:1", "[::ffff:10.0.0.5]:1"] {
            assert!(!is_local(other.parse().unwrap()), "{other}");
        }
    }
}
