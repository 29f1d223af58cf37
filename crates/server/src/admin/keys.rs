//! `/v1/keys`: the report of hot keys, prefixes and large items, as JSON. It contains names of
//! keys, so only [`Trusted`] clients get it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::authorization::Trusted;
use super::headers::HARDENED;
use super::state::Serving;
use crate::keys::report;

pub(super) async fn show(_: Trusted, Serving(running): Serving) -> Response {
    let Some(context) = running.context() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let now_ms = running.clock.millis();
    let report = report(&context.hot_keys, &context.sampling, &running.engine, now_ms);
    (HARDENED, axum::Json(report)).into_response()
}
