//! What differs between the protocols, so that batches and long values are handled by the same
//! code, compiled once for each.

use super::Worker;
use super::batch::Scratch;
use super::gates::Repair;
use crate::command::text::is_noreply;
use crate::command::{self, Executed, Execution, Properties};
use larder_engine::{Key, Value};
use larder_protocol::text::{self, Request};
use larder_protocol::{KeySink, Parse, binary, reply};

/// A protocol, as connections use it.
pub(super) trait Dialect: Sized {
    /// A parsed request.
    type Request<'a>: Copy;
    /// The reply to something that is no request.
    type Refusal: Copy + 'static;

    /// The worker's memory for batches of this protocol.
    fn scratch(worker: &mut Worker) -> &mut Scratch<Self>;

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

    /// Executes a request on its keys. `value` is there if it came separately.
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
    fn not_kept(request: &Self::Request<'_>) -> Repair;
}

/// The text protocol, classic and meta.
#[derive(Debug)]
pub(super) struct Text;

impl Dialect for Text {
    type Request<'a> = Request<'a>;
    type Refusal = &'static str;

    fn scratch(worker: &mut Worker) -> &mut Scratch<Self> {
        &mut worker.text
    }

    #[inline(always)]
    fn parse_common<'a>(
        input: &'a [u8],
        keys: &mut impl KeySink<'a>,
        take: impl FnMut(Request<'a>, usize),
    ) -> bool {
        text::parse_common(input, keys, take)
    }

    fn parse<'a>(input: &'a [u8], keys: &mut impl KeySink<'a>) -> text::Parsed<'a> {
        text::parse(input, keys)
    }

    #[inline]
    fn execute(
        x: &mut Execution<'_, '_>,
        request: &Request<'_>,
        keys: &[Key<'_>],
        value: Option<Value<'_>>,
    ) -> Executed {
        command::text::execute(x, request, keys, value)
    }

    fn refuse(x: &mut Execution<'_, '_>, refusal: &&'static str) {
        x.counters.malformed.bump();
        x.output.extend(refusal.as_bytes());
    }

    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed> {
        command::text::refuse_value(x, request, keys, value_len)
    }

    fn no_memory(x: &mut Execution<'_, '_>, request: &Request<'_>, keys: &[Key<'_>]) -> Executed {
        command::text::no_memory(x, request, keys)
    }

    fn bad_trailer(x: &mut Execution<'_, '_>, request: &Request<'_>) {
        x.counters.malformed.bump();
        if !is_noreply(request) {
            x.output.extend(reply::BAD_CHUNK.as_bytes());
        }
    }

    #[inline(always)]
    fn properties<'r>(request: &'r Request<'_>) -> Properties<'r> {
        command::text::properties(request)
    }

    fn not_kept(request: &Request<'_>) -> Repair {
        if is_noreply(request) { Repair::Silent } else { Repair::Line }
    }
}

/// The binary protocol.
#[derive(Debug)]
pub(super) struct Binary;

impl Dialect for Binary {
    type Request<'a> = binary::Request<'a>;
    type Refusal = Option<binary::Refusal>;

    fn scratch(worker: &mut Worker) -> &mut Scratch<Self> {
        &mut worker.binary
    }

    /// There is none: all of them have heads of the same form.
    #[inline(always)]
    fn parse_common<'a>(
        _: &'a [u8],
        _: &mut impl KeySink<'a>,
        _: impl FnMut(binary::Request<'a>, usize),
    ) -> bool {
        false
    }

    #[inline]
    fn parse<'a>(input: &'a [u8], keys: &mut impl KeySink<'a>) -> binary::Parsed<'a> {
        binary::parse(input, keys)
    }

    #[inline]
    fn execute(
        x: &mut Execution<'_, '_>,
        request: &binary::Request<'_>,
        keys: &[Key<'_>],
        value: Option<Value<'_>>,
    ) -> Executed {
        command::binary::execute(x, request, keys, value)
    }

    fn refuse(x: &mut Execution<'_, '_>, refusal: &Option<binary::Refusal>) {
        command::binary::refuse(x, refusal);
    }

    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &binary::Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed> {
        command::binary::refuse_value(x, request, keys, value_len)
    }

    fn no_memory(
        x: &mut Execution<'_, '_>,
        request: &binary::Request<'_>,
        keys: &[Key<'_>],
    ) -> Executed {
        command::binary::no_memory(x, request, keys)
    }

    /// Nothing follows a value.
    fn bad_trailer(_: &mut Execution<'_, '_>, _: &binary::Request<'_>) {}

    #[inline(always)]
    fn properties<'r>(request: &'r binary::Request<'_>) -> Properties<'r> {
        command::binary::properties(request)
    }

    /// Errors are answered to quiet requests as well.
    fn not_kept(request: &binary::Request<'_>) -> Repair {
        Repair::Packet(request.head)
    }
}
