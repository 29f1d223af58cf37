//! Checks that a request does not come from a foreign web page. A page in a browser can send
//! requests to the loopback address. With DNS rebinding, the page's own host name resolves to that
//! address, and the page can also read the replies. Requests whose replies a foreign page could
//! read carry its host name as Host or Origin. The checks refuse both.
//!
//! A POST must be for an action, and its body must be JSON. The action's handler also asks for the
//! token. A form cannot send JSON. Before a script of another origin may send JSON or the header
//! `Authorization`, the browser asks with OPTIONS, which is refused. So actions need no additional
//! header that only scripts can set. Three checks keep a page of another origin from executing an
//! action, and each would suffice alone: those of Origin, of `Sec-Fetch-Site` and of the token.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::actions::ACTIONS;
use super::headers::HARDENED;
use super::host::is_known;
use super::state::AdminState;

/// Refuses requests other than GET, HEAD and actions, and requests that a foreign page could have
/// sent.
pub(super) async fn check(
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_action = ACTIONS.iter().any(|action| action.path == path);
    let allowed = match *request.method() {
        Method::GET | Method::HEAD => !is_action,
        Method::POST => is_action,
        _ => false,
    };
    if !allowed {
        let (allowed, reason) = match is_action {
            true => ("POST", "only POST\n"),
            false => ("GET, HEAD", "only GET\n"),
        };
        let allowed = [(header::ALLOW, allowed)];
        return (StatusCode::METHOD_NOT_ALLOWED, HARDENED, allowed, reason).into_response();
    }
    let (uri, headers) = (request.uri(), request.headers());
    let judged = judge(uri.authority(), headers, &state.settings().admin_hosts);
    let judged = judged.map_err(|reason| (StatusCode::FORBIDDEN, reason));
    match judged.and_then(|()| if is_action { judge_action(headers) } else { Ok(()) }) {
        Ok(()) => next.run(request).await,
        Err((code, reason)) => (code, HARDENED, reason).into_response(),
    }
}

/// Checks `Sec-Fetch-Site` and the content type of an action that [`judge`] has accepted.
fn judge_action(headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => {}
        Some(_) => return Err((StatusCode::FORBIDDEN, "pages from elsewhere may not ask\n")),
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    match kind.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type: application/json\n")),
    }
}

/// Checks the host and the origin of a request. `authority` is the host in the request line; `None`
/// if the request line has only a path.
fn judge(
    authority: Option<&Authority>,
    headers: &HeaderMap,
    names: &[String],
) -> Result<(), &'static str> {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str());
    let host = match text(header::HOST) {
        Some(Ok(host)) if headers.get_all(header::HOST).iter().count() == 1 => host,
        _ => return Err("one Host header is needed\n"),
    };
    if !is_known(host, names) {
        return Err("this Host is not known here: allow it with --admin-host\n");
    }
    if authority.is_some_and(|authority| authority.as_str() != host) {
        return Err("the address and Host differ\n");
    }
    match text(header::ORIGIN) {
        None => {}
        Some(Ok(origin)) if is_origin_of(origin, host) => {}
        Some(_) => return Err("pages from elsewhere may not ask\n"),
    }
    match headers.get("sec-fetch-site").map(|value| value.as_bytes()) {
        Some(b"cross-site") => Err("pages from elsewhere may not ask\n"),
        _ => Ok(()),
    }
}

/// Returns true if `origin` is the origin of a page on `host`. A proxy with TLS may serve the page,
/// so https is accepted too. A foreign page has another host, regardless of its scheme.
fn is_origin_of(origin: &str, host: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(headers: &[(&'static str, &str)]) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<Vec<(header::HeaderName, header::HeaderValue)>>()
            .into_iter()
            .collect();
        judge(None, &headers, &["cache.example".to_owned()]).is_ok()
    }

    #[test]
    fn only_addresses_and_allowed_names_are_accepted_as_host() {
        for host in
            ["127.0.0.1:11212", "127.0.0.1", "[::1]:11212", "[::1]", "localhost:1", "10.0.0.5:1"]
        {
            assert!(judged(&[("host", host)]), "{host}");
        }
        assert!(judged(&[("host", "Cache.Example:11212")]));
        for host in [
            "evil.example",
            "evil.example:11212",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil.example:1",
            "[::1].evil.example",
            "[::1]evil.example:1",
            "[::1]:1.evil.example",
            "[::1",
            "127.0.0.1:evil.example",
            "localhost:1:evil.example",
        ] {
            assert!(!judged(&[("host", host)]), "{host}");
        }
        assert!(!judged(&[]));
    }

    #[test]
    fn requests_from_foreign_origins_are_refused() {
        let host = ("host", "127.0.0.1:11212");
        assert!(judged(&[host, ("origin", "http://127.0.0.1:11212")]));
        for origin in [
            "http://evil.example",
            "https://evil.example",
            "null",
            "http://127.0.0.1:80",
            "https://127.0.0.1",
            "ftp://127.0.0.1:11212",
            "https://https://127.0.0.1:11212",
            "127.0.0.1:11212",
        ] {
            assert!(!judged(&[host, ("origin", origin)]), "{origin}");
        }
        // A proxy with TLS passes on the host, so the origin is https. Its host must be the Host of
        // the request, and a known name.
        let (host, evil) = (("host", "cache.example"), ("host", "evil.example"));
        assert!(judged(&[host, ("origin", "https://cache.example")]));
        assert!(!judged(&[host, ("origin", "https://evil.example")]));
        assert!(!judged(&[evil, ("origin", "https://evil.example")]));
        assert!(!judged(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(judged(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(judged(&[host, ("sec-fetch-site", "none")]));
    }
}
