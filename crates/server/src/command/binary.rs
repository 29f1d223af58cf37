//! The binary protocol. A request has at most one key: clients send a multi-get as a batch of quiet
//! requests. So no reply has the values of several items, and a reply is sent in parts only if its
//! value is long. A quiet request still receives error replies. A miss counts as an error, except
//! for a quiet get, which then receives no reply.

use super::count::count;
use super::execution::conclude;
use super::intent::OnRefusal;
use super::properties::Effect;
use super::{
    Dialect, Executed, Execution, FailureReply, Properties, Unready, engine_mode, put_value,
};
use crate::latency::CommandClass;
use crate::net::OutputBuffer;
use larder_engine::{
    Arith, Counted, Create, Delete as EngineDelete, Deleted, Item, Key, Refusal as EngineRefusal,
    Store as EngineStore, Stored, Value,
};
use larder_protocol::binary::{
    self, Arithmetic, Command, Delete, Get, HEADER_LEN, Head, Refusal, Request, Response, Status,
    Store,
};
use larder_protocol::{KeySink, StoreMode};
use std::fmt::Write;

/// Length of the flags in front of a value, in bytes.
const FLAGS_LEN: usize = 4;

// Texts of error replies. Each says more than the default text of the reply's status.
const NO_MEMORY_STORING: &str = "Out of memory allocating item";
const NO_MEMORY_COUNTING: &str = "Out of memory incrementing value";
const STORE_FAILED: &str = "Store failed: write not kept";
const STORE_FULL: &str = "Store is full";

/// The binary protocol.
#[derive(Debug)]
pub(crate) struct Binary;

impl Dialect for Binary {
    type Request<'a> = Request<'a>;
    type Refusal = Option<Refusal>;

    /// Always returns false: all requests have heads of the same form, so no fast path exists.
    #[inline(always)]
    fn parse_common<'a>(
        _: &'a [u8],
        _: &mut impl KeySink<'a>,
        _: impl FnMut(Request<'a>, usize),
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
        request: &Request<'_>,
        keys: &[Key<'_>],
        value: Option<Value<'_>>,
    ) -> Executed {
        let head = request.head;
        let executed = match (&request.command, keys) {
            (Command::Get(request), [key]) => get(x, head, request, key),
            (Command::Store(request), [key]) => store(x, head, request, key, value),
            (Command::Touch { exptime }, [key]) => touch(x, head, *exptime, key),
            (Command::Delete(request), [key]) => delete(x, head, request, key),
            (Command::Arithmetic(request), [key]) => arithmetic(x, head, request, key),
            (command, _) => execute_rare(x, head, command),
        };
        conclude(executed, |refusal| refused(x, request, refusal))
    }

    fn refuse(x: &mut Execution<'_, '_>, refusal: &Option<Refusal>) {
        if let Some(refusal) = refusal {
            x.output.extend(&refusal.header());
            x.output.extend(refusal.text().as_bytes());
        }
    }

    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed> {
        let (Command::Store(store), [key]) = (&request.command, keys) else { return None };
        match x.refuse_large(key, value_len, on_refusal(store)) {
            Ok(false) => None,
            Ok(true) => Some(error(x, request.head, Status::TooLarge)),
            Err(unready) => Some(conclude(Err(unready), |refusal| refused(x, request, refusal))),
        }
    }

    fn no_memory(x: &mut Execution<'_, '_>, request: &Request<'_>, keys: &[Key<'_>]) -> Executed {
        if let (Command::Store(store), [key]) = (&request.command, keys)
            && let Err(Unready::Again) = x.leave(key, on_refusal(store))
        {
            return Executed::Again;
        }
        error_text(x, request.head, Status::OutOfMemory, NO_MEMORY_STORING)
    }

    /// Does nothing, because the binary protocol has no terminator after a value.
    fn bad_trailer(_: &mut Execution<'_, '_>, _: &Request<'_>) {}

    /// Never sets `noreply`, because quiet requests receive error replies too.
    #[inline(always)]
    fn properties<'r>(request: &'r Request<'_>) -> Properties<'r> {
        let none = Properties::default();
        match &request.command {
            Command::Get(Get { exptime: None, .. }) => Properties { effect: Effect::Reads, ..none },
            Command::Store(store) => Properties::of_store(store.mode, store.compare),
            Command::Get(_)
            | Command::Touch { .. }
            | Command::Delete(_)
            | Command::Arithmetic(_) => Properties::CHANGES,
            Command::Noop | Command::Version => none,
            Command::Flush { .. } | Command::Stat(_) | Command::Quit { .. } => {
                Properties { ends_turn: true, ..none }
            }
        }
    }

    fn class(request: &Request<'_>) -> CommandClass {
        match &request.command {
            Command::Get(Get { exptime: None, .. }) => CommandClass::Get,
            Command::Get(_) | Command::Touch { .. } => CommandClass::Touch,
            Command::Store(_) => CommandClass::Set,
            Command::Delete(_) => CommandClass::Delete,
            Command::Arithmetic(_) => CommandClass::Incr,
            Command::Noop
            | Command::Version
            | Command::Flush { .. }
            | Command::Stat(_)
            | Command::Quit { .. } => CommandClass::Other,
        }
    }

    /// Always returns a packet, because quiet requests receive error replies too.
    fn failure_reply(request: &Request<'_>) -> FailureReply {
        FailureReply::Packet(request.head)
    }
}

/// Sends an error reply with the reason why the engine refused the request.
#[cold]
fn refused(x: &mut Execution<'_, '_>, request: &Request<'_>, why: EngineRefusal) -> Executed {
    let (status, text) = match (why, &request.command) {
        (EngineRefusal::OutOfMemory, Command::Store(_)) => (Status::OutOfMemory, NO_MEMORY_STORING),
        (EngineRefusal::OutOfMemory, Command::Arithmetic(_)) => {
            (Status::OutOfMemory, NO_MEMORY_COUNTING)
        }
        (EngineRefusal::OutOfMemory, _) => (Status::OutOfMemory, Status::OutOfMemory.text()),
        (EngineRefusal::StoreFailed, _) => (Status::InternalError, STORE_FAILED),
        // The protocol has no status for a full store. Clients treat `OutOfMemory` as "no room".
        (EngineRefusal::StoreFull, _) => (Status::OutOfMemory, STORE_FULL),
    };
    error_text(x, request.head, status, text)
}

fn execute_rare(
    x: &mut Execution<'_, '_>,
    head: Head,
    command: &Command<'_>,
) -> Result<Executed, Unready> {
    Ok(match *command {
        Command::Noop => ok(x, head, false, 0),
        Command::Quit { quiet } => {
            ok(x, head, quiet, 0);
            Executed::Close
        }
        Command::Version => {
            let version = x.context.version.as_bytes();
            let value_len = version.len() as u32;
            let response = Response { value_len, ..Response::new(head, Status::Ok) };
            x.output.extend(&response.to_bytes());
            x.output.extend(version);
            Executed::Done
        }
        Command::Flush { .. } if !x.context.switches().flush => error(x, head, Status::AuthError),
        Command::Flush { exptime, quiet } => {
            x.flush(exptime.into())?;
            ok(x, head, quiet, 0)
        }
        Command::Stat(arguments) => stat(x, head, arguments),
        // The parser always finds the key of these commands, so this arm is never reached.
        Command::Get(_)
        | Command::Touch { .. }
        | Command::Store(_)
        | Command::Delete(_)
        | Command::Arithmetic(_) => error(x, head, Status::InvalidArguments),
    })
}

/// Decides if a refused write removes the old value. As in memcached, only a refused set does, with
/// or without a cas id.
fn on_refusal(request: &Store<'_>) -> OnRefusal {
    match request.mode {
        StoreMode::Set => OnRefusal::Remove,
        StoreMode::Add | StoreMode::Replace | StoreMode::Append | StoreMode::Prepend => {
            OnRefusal::Keep
        }
    }
}

/// Writes the error reply to a request whose commit failed. The request wrote or read a record of
/// this commit, which was then undone.
pub(crate) fn put_failure_reply(output: &mut OutputBuffer<'_>, head: Head) {
    put_error(output, head, Status::InternalError, STORE_FAILED);
}

/// Sends a success without a body, unless the request is quiet. `cas` is the item's cas id, or 0 if
/// there is no item.
#[inline]
fn ok(x: &mut Execution<'_, '_>, head: Head, quiet: bool, cas: u64) -> Executed {
    if !quiet {
        x.output.extend(&Response { cas, ..Response::new(head, Status::Ok) }.to_bytes());
    }
    Executed::Done
}

fn error(x: &mut Execution<'_, '_>, head: Head, status: Status) -> Executed {
    error_text(x, head, status, status.text())
}

fn error_text(x: &mut Execution<'_, '_>, head: Head, status: Status, text: &str) -> Executed {
    put_error(x.output, head, status, text);
    Executed::Done
}

fn put_error(output: &mut OutputBuffer<'_>, head: Head, status: Status, text: &str) {
    let response = Response { value_len: text.len() as u32, ..Response::new(head, status) };
    output.extend(&response.to_bytes());
    output.extend(text.as_bytes());
}

#[inline]
fn get(
    x: &mut Execution<'_, '_>,
    head: Head,
    get: &Get,
    key: &Key<'_>,
) -> Result<Executed, Unready> {
    let found = x.read(key, get.exptime)?;
    x.context.prefixes.get(key.bytes(), found.is_some());
    let shown_key = if get.with_key { key.bytes() } else { &[] };
    let Some(item) = found else { return Ok(miss(x, head, get, shown_key)) };
    put_head(x, head, &item, shown_key, item.value().len());
    Ok(match put_value(x.output, item, b"") {
        None => Executed::Done,
        Some(rest) => Executed::Value(rest),
    })
}

/// Sends the part of a retrieval's reply that precedes the value. `value_len` is the length of the
/// value in bytes.
#[inline]
fn put_head(x: &mut Execution<'_, '_>, head: Head, item: &Item<'_>, key: &[u8], value_len: usize) {
    let response = Response {
        extras_len: FLAGS_LEN as u8,
        key_len: key.len() as u8,
        value_len: value_len as u32,
        cas: item.cas(),
        ..Response::new(head, Status::Ok)
    };
    let room = x.output.room(HEADER_LEN + FLAGS_LEN + key.len());
    let (header, body) = room.split_at_mut(HEADER_LEN);
    let (flags, shown_key) = body.split_at_mut(FLAGS_LEN);
    header.copy_from_slice(&response.to_bytes());
    flags.copy_from_slice(&item.flags().to_be_bytes());
    shown_key.copy_from_slice(key);
    x.output.advance(HEADER_LEN + FLAGS_LEN + key.len());
}

/// Sends the reply to a miss, unless the request is quiet. If the reply must contain the key, `key`
/// is that key, and it is the body of the reply. Otherwise `key` is empty, and the body is an error
/// text.
fn miss(x: &mut Execution<'_, '_>, head: Head, get: &Get, key: &[u8]) -> Executed {
    if get.quiet {
        return Executed::Done;
    }
    if key.is_empty() {
        return error(x, head, Status::NotFound);
    }
    let response = Response { key_len: key.len() as u8, ..Response::new(head, Status::NotFound) };
    x.output.extend(&response.to_bytes());
    x.output.extend(key);
    Executed::Done
}

fn touch(
    x: &mut Execution<'_, '_>,
    head: Head,
    exptime: u32,
    key: &Key<'_>,
) -> Result<Executed, Unready> {
    let found = x.touch(key, x.expiry(exptime))?;
    x.context.prefixes.get(key.bytes(), found.is_some());
    Ok(match found {
        Some(item) => {
            put_head(x, head, &item, &[], 0);
            Executed::Done
        }
        None => error(x, head, Status::NotFound),
    })
}

fn store(
    x: &mut Execution<'_, '_>,
    head: Head,
    request: &Store<'_>,
    key: &Key<'_>,
    value: Option<Value<'_>>,
) -> Result<Executed, Unready> {
    x.context.prefixes.set(key.bytes());
    let grows = matches!(request.mode, StoreMode::Append | StoreMode::Prepend);
    // As in memcached, a cas id turns every mode except append and prepend into cas.
    let is_cas = request.compare.is_some() && !grows;
    let mode = if is_cas { StoreMode::Set } else { request.mode };
    let store = EngineStore {
        mode: engine_mode(mode),
        compare: request.compare,
        value: value.unwrap_or(Value::Bytes(request.value)),
        ..EngineStore::set(&[], request.flags, x.expiry(request.exptime))
    };
    let status = match x.put(key, store, on_refusal(request))? {
        Stored::Stored { cas, .. } => return Ok(ok(x, head, request.quiet, cas)),
        Stored::Exists => Status::Exists,
        Stored::NotFound => Status::NotFound,
        Stored::NotStored => match request.mode {
            StoreMode::Add => Status::Exists,
            StoreMode::Replace => Status::NotFound,
            _ => Status::NotStored,
        },
        Stored::TooLarge => Status::TooLarge,
    };
    Ok(error(x, head, status))
}

fn delete(
    x: &mut Execution<'_, '_>,
    head: Head,
    request: &Delete,
    key: &Key<'_>,
) -> Result<Executed, Unready> {
    x.context.prefixes.delete(key.bytes());
    let delete = EngineDelete { compare: request.compare, ..EngineDelete::default() };
    let status = match x.settle(x.session.delete(key, &delete))? {
        Deleted::Deleted => return Ok(ok(x, head, request.quiet, 0)),
        Deleted::NotFound => Status::NotFound,
        Deleted::Exists => Status::Exists,
    };
    Ok(error(x, head, status))
}

/// Executes an increment or decrement. The engine looks up and creates a missing counter under one
/// lock. So when several clients create the same counter at once, none of them is refused.
fn arithmetic(
    x: &mut Execution<'_, '_>,
    head: Head,
    request: &Arithmetic,
    key: &Key<'_>,
) -> Result<Executed, Unready> {
    let create = request
        .create
        .map(|create| Create { initial: create.initial, expiry: x.expiry(create.exptime) });
    let arith = Arith {
        decrement: request.decrement,
        delta: request.delta,
        compare: request.compare,
        create,
        ..Arith::default()
    };
    let status = match count(x, key, arith)? {
        Counted::Value { .. } if request.quiet => return Ok(Executed::Done),
        Counted::Value { value, cas, .. } => {
            let value_len = size_of_val(&value) as u32;
            let response = Response { value_len, cas, ..Response::new(head, Status::Ok) };
            x.output.extend(&response.to_bytes());
            x.output.extend(&value.to_be_bytes());
            return Ok(Executed::Done);
        }
        Counted::NotFound => Status::NotFound,
        Counted::NonNumeric => Status::NonNumeric,
        Counted::Exists => Status::Exists,
    };
    Ok(error(x, head, status))
}

/// Executes `stat`. Each row is a separate packet; an empty packet ends the rows.
fn stat(x: &mut Execution<'_, '_>, head: Head, arguments: &[u8]) -> Executed {
    let mut tokens = arguments.split(|&byte| byte == b' ').filter(|token| !token.is_empty());
    match tokens.next().unwrap_or(b"") {
        b"reset" => x.context.reset_stats(),
        b"detail" if x.context.switches().dump => match tokens.next() {
            Some(switch @ (b"on" | b"off")) => x.context.prefixes.enable(switch == b"on"),
            Some(b"dump") => {
                let dump = x.context.prefixes.dump();
                put_row(x, head, b"detailed", &dump);
            }
            _ => return error(x, head, Status::NotFound),
        },
        b"detail" => return error(x, head, Status::NotFound),
        group => {
            let context = x.context;
            let mut text = String::new();
            let known = context.hooks().stats(group, &mut |name, value| {
                text.clear();
                // Writing to a string cannot fail.
                let _ = write!(text, "{value}");
                put_row(x, head, name.as_bytes(), text.as_bytes());
            });
            // Marks the output as full, so that the connection yields to other connections before
            // its next request, as in the text protocol.
            x.output.count_against_limit(x.output.limit());
            if !known {
                return error(x, head, Status::NotFound);
            }
        }
    }
    ok(x, head, false, 0)
}

/// Sends one row. Cuts the name to 255 bytes.
fn put_row(x: &mut Execution<'_, '_>, head: Head, name: &[u8], value: &[u8]) {
    let name = &name[..name.len().min(usize::from(u8::MAX))];
    let response = Response {
        key_len: name.len() as u8,
        value_len: value.len() as u32,
        ..Response::new(head, Status::Ok)
    };
    x.output.extend(&response.to_bytes());
    x.output.extend(name);
    x.output.extend(value);
}
