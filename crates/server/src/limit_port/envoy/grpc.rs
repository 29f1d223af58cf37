//! gRPC's framing of calls with one message in each direction. A frame consists of a byte that says
//! whether the message is compressed, the length of the message in four bytes, and the message. The
//! status of a call is in the trailers of the reply, or in its headers if the reply has no message.

use std::future::ready;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use prost::Message;
use tokio::time::timeout;

use super::BODY;
use crate::limit_port::call::PATIENCE;

/// The length of what precedes the message in a gRPC frame, in bytes.
const HEAD: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The statuses of failed calls, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Unavailable = 14,
}

/// A call that failed.
#[derive(Debug)]
pub(super) struct GrpcError {
    status: Status,
    reason: String,
}

impl GrpcError {
    pub(super) fn new(status: Status, reason: impl Into<String>) -> GrpcError {
        GrpcError { status, reason: reason.into() }
    }

    #[cfg(test)]
    pub(super) fn into_parts(self) -> (Status, String) {
        (self.status, self.reason)
    }
}

/// Returns true if a request with this head is a gRPC call.
pub(super) fn is_call(head: &Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE);
    let format = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    let is_known = |format: &[u8]| matches!(format.first(), None | Some(b'+' | b';'));
    head.method == Method::POST && format.is_some_and(is_known)
}

/// Receives the body of a call and returns its message; `None` if the body is longer than [`BODY`].
pub(super) async fn receive(body: &mut Incoming) -> Result<Option<Vec<u8>>, GrpcError> {
    let late = |_| GrpcError::new(Status::DeadlineExceeded, "the request did not end in time");
    match timeout(PATIENCE, collect(body)).await.map_err(late)?? {
        Some(frame) => message(&frame).map(|message| Some(message.to_vec())),
        None => Ok(None),
    }
}

/// Returns the bytes of a body; `None` if there are more than [`BODY`]. Copies the bytes, because a
/// piece of a body keeps the whole buffer in memory that it was received in.
async fn collect(body: &mut Incoming) -> Result<Option<Vec<u8>>, GrpcError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| GrpcError::new(Status::InvalidArgument, error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        if data.len() > BODY - bytes.len() {
            return Ok(None);
        }
        bytes.extend_from_slice(data);
    }
    Ok(Some(bytes))
}

/// Returns the message in a frame.
fn message(frame: &[u8]) -> Result<&[u8], GrpcError> {
    let invalid = |reason: &str| GrpcError::new(Status::InvalidArgument, reason);
    let Some(([compressed, length @ ..], message)) = frame.split_first_chunk::<HEAD>() else {
        return Err(invalid("the message has no head"));
    };
    if *compressed != 0 {
        return Err(GrpcError::new(Status::Unimplemented, "messages must not be compressed"));
    }
    if u32::from_be_bytes(*length) as usize != message.len() {
        return Err(invalid("the message has not the length that its head says"));
    }
    Ok(message)
}

/// Returns the reply of a call that succeeded.
pub(super) fn success(message: &impl Message) -> Response {
    let mut frame = vec![0; HEAD];
    // Encoding into a vector cannot fail: it grows.
    let _ = message.encode(&mut frame);
    let length = u32::try_from(frame.len() - HEAD).unwrap_or(u32::MAX);
    frame[1..HEAD].copy_from_slice(&length.to_be_bytes());
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(ready(Some(Ok(trailers))));
    grpc(Body::new(body))
}

/// Returns the reply of a call that failed.
pub(super) fn failure(error: &GrpcError) -> Response {
    let mut response = grpc(Body::empty());
    let headers = response.headers_mut();
    headers.insert(GRPC_STATUS, HeaderValue::from(error.status as u16));
    // Larder's own reasons are ASCII text without control characters. The reasons of the Protocol
    // Buffers decoder may have other characters; such a reason is left out.
    if let Ok(reason) = HeaderValue::from_str(&error.reason.replace('%', "%25")) {
        headers.insert(HeaderName::from_static("grpc-message"), reason);
    }
    response
}

fn grpc(body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_a_head_and_a_message() {
        assert_eq!(message(b"\0\0\0\0\x02ab").unwrap(), b"ab");
        assert_eq!(message(b"\0\0\0\0\0").unwrap(), b"");
        let status = |frame: &[u8]| message(frame).unwrap_err().status;
        for frame in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\x02abc"] {
            assert_eq!(status(frame), Status::InvalidArgument);
        }
        assert_eq!(status(b"\x01\0\0\0\x02ab"), Status::Unimplemented);
    }
}
