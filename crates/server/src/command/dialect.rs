//! The trait that hides the differences between the text and the binary protocol. Connections
//! handle batches and long values of both protocols with the same code, compiled once per dialect.
//! `text.rs` and `binary.rs` implement the trait.

use super::{Executed, Execution, Properties, binary};
use crate::latency::CommandClass;
use crate::net::OutputBuffer;
use larder_engine::{Key, Value};
use larder_protocol::binary::Head;
use larder_protocol::{KeySink, Parse, reply};

/// What connections need from a protocol.
pub(crate) trait Dialect: Sized {
    /// A parsed request.
    type Request<'a>: Copy;
    /// The reason why input is not a request.
    type Refusal: Copy + 'static;

    /// Parses the request at the beginning of `input` if it is one of the most common requests. The
    /// most common requests have one key and never [end the turn](Properties::ends_turn). Calls
    /// `take` with the request and its length. Returns false if [`Dialect::parse`] must parse the
    /// input instead.
    fn parse_common<'a>(
        input: &'a [u8],
        keys: &mut impl KeySink<'a>,
        take: impl FnMut(Self::Request<'a>, usize),
    ) -> bool;

    /// Parses the request at the beginning of `input`.
    fn parse<'a>(
        input: &'a [u8],
        keys: &mut impl KeySink<'a>,
    ) -> Parse<Self::Request<'a>, Self::Refusal>;

    /// Executes a request. The caller has prefetched at most the first
    /// [`PREFETCH_WINDOW`](super::text::PREFETCH_WINDOW) of the request's `keys`. If the connection
    /// received the request's value separately (see `connection/receive.rs`), `value` holds it.
    fn execute(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
        value: Option<Value<'_>>,
    ) -> Executed;

    /// Replies to input that is not a request.
    fn refuse(x: &mut Execution<'_, '_>, refusal: &Self::Refusal);

    /// Refuses a storage request before its value is received, if the request is wrong or the value
    /// too large. Returns `None` if the value must be received.
    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed>;

    /// Refuses a storage request because there is no memory to receive its value.
    fn no_memory(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
    ) -> Executed;

    /// Sends the error reply to a request whose value does not end with `\r\n`. Only the text
    /// protocol requires this end.
    fn bad_trailer(x: &mut Execution<'_, '_>, request: &Self::Request<'_>);

    /// Returns the properties of a request that do not depend on its keys. Called for every
    /// request.
    fn properties<'r>(request: &'r Self::Request<'_>) -> Properties<'r>;

    /// Returns the class of commands under which the latency of a request is counted. Called for
    /// every request.
    fn class(request: &Self::Request<'_>) -> CommandClass;

    /// Returns the decoded key of a request whose key is in base64. Such a key is not among the
    /// request's `keys`, because the parser does not decode it.
    fn encoded_key(_request: &Self::Request<'_>) -> Option<Vec<u8>> {
        None
    }

    /// Returns the reply to a request whose commit failed. The request's write, or the data that
    /// the request has read, did not become durable.
    fn failure_reply(request: &Self::Request<'_>) -> FailureReply;
}

/// The reply to a request whose commit failed. The request's write, or the data that the request
/// has read, did not become durable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailureReply {
    /// No reply, because the client wants none.
    Silent,
    /// A line of the text protocol.
    Line,
    /// A packet of the binary protocol.
    Packet(Head),
}

impl FailureReply {
    /// Appends the reply to `output`.
    pub(crate) fn put(self, output: &mut OutputBuffer<'_>) {
        match self {
            FailureReply::Silent => {}
            FailureReply::Line => output.extend(reply::STORE_FAILED.as_bytes()),
            FailureReply::Packet(head) => binary::put_failure_reply(output, head),
        }
    }
}
