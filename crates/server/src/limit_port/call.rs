//! Requests on their way from a connection to the worker of the limit port.

use axum::http::StatusCode;
use axum::response::Response;
use tokio::sync::oneshot;

/// A request about one limiter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LimitRequest {
    /// The name of the policy.
    pub(super) policy: Vec<u8>,
    /// The key, without the policy's prefix. Not empty.
    pub(super) key: Vec<u8>,
    pub(super) action: LimitAction,
    /// The status of the reply if the limit refuses the request.
    pub(super) refused_as: StatusCode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitAction {
    /// Take units, all or none.
    Take(u64),
    /// Show the limiter.
    Look,
    /// Remove the limiter, so that all its units are free again.
    Reset,
}

/// A request, and where its reply goes.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: LimitRequest,
    pub(super) reply: oneshot::Sender<Response>,
}
