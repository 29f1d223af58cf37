//! The headers of the page's files, of JSON and of refusals. Health checks and plain errors do not
//! have them. The lab's report has its own (`lab.rs`).

use axum::http::{HeaderName, header};

/// Headers that keep browsers from storing a reply, from guessing its type, and from running
/// anything that is not from the page itself.
pub(super) const HARDENED: [(HeaderName, &str); 4] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
];
