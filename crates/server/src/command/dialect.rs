//! What differs between the protocols, so that connections handle batches and long values by the same
//! code, compiled once for each. A dialect stands beside its commands.

use super::{Executed, Execution, Properties, binary};
use crate::net::OutputBuffer;
use larder_engine::{Key, Value};
use larder_protocol::binary::Head;
use larder_protocol::{KeySink, Parse, reply};

/// A protocol, as connections use it.
pub(crate) trait Dialect: Sized {
    /// A parsed request.
    type Request<'a>: Copy;
    /// The reply to something that is no request.
    type Refusal: Copy + 'static;

    /// Parses the request at the beginning of `input` if it is one of the most common ones, which never end the
    /// turn and have one key. `take` gets it and its length; false leaves it to [`Dialect::parse`].
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

    /// Executes a request on its keys, of which the first
    /// [`PREFETCH_WINDOW`](super::text::PREFETCH_WINDOW) are prefetched. `value` is there if it came separately.
    fn execute(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
        value: Option<Value<'_>>,
    ) -> Executed;

    /// Replies to something that is no request.
    fn refuse(x: &mut Execution<'_, '_>, refusal: &Self::Refusal);

    /// Refuses a storage request whose value need not be received: the request is wrong or the
    /// value too large. `None` if it is to be received.
    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed>;

    /// Refuses a storage request whose value there is no memory to receive.
    fn no_memory(
        x: &mut Execution<'_, '_>,
        request: &Self::Request<'_>,
        keys: &[Key<'_>],
    ) -> Executed;

    /// Replies that what follows a value is not what must follow it.
    fn bad_trailer(x: &mut Execution<'_, '_>, request: &Self::Request<'_>);

    /// What holds for a request whatever its keys. Asked of every request.
    fn properties<'r>(request: &'r Self::Request<'_>) -> Properties<'r>;

    /// What is said to the client when what a request did, or what it found, was not kept.
    fn not_kept(request: &Self::Request<'_>) -> NotKept;
}

/// What a client is told when what its request did, or what it found, was not kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotKept {
    /// Nothing: the client wants to hear nothing.
    Silent,
    /// A line of the text protocol.
    Line,
    /// A packet of the binary protocol.
    Packet(Head),
}

impl NotKept {
    /// Says it.
    pub(crate) fn put(self, output: &mut OutputBuffer<'_>) {
        match self {
            NotKept::Silent => {}
            NotKept::Line => output.extend(reply::STORE_FAILED.as_bytes()),
            NotKept::Packet(head) => binary::not_kept(output, head),
        }
    }
}
