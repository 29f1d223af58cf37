//! Executes the commands of the text protocol. `meta.rs` executes its meta commands.

use super::count::count;
use super::execution::conclude;
use super::intent::OnRefusal;
use super::properties::Effect;
use super::refusal::refusal_line;
use super::{
    Dialect, Dump, Executed, Execution, FailureReply, LongValue, PartOfKeys, Properties, Unready,
    engine_mode, meta, put_value, stats,
};
use crate::latency::CommandClass;
use larder_engine::{
    Arith, Counted, Delete as EngineDelete, Deleted, Item, Key, Refusal, Store as EngineStore,
    Stored, Value,
};
use larder_protocol::text::{
    self, Admin, Arithmetic, Delete, Device, Get, Grow, Request, Shutdown, Store, Touch,
};
use larder_protocol::{KeySink, StoreMode, reply};

/// The largest number of keys that are prefetched together.
pub(crate) const PREFETCH_WINDOW: usize = 64;

/// The text protocol, classic and meta.
#[derive(Debug)]
pub(crate) struct Text;

impl Dialect for Text {
    type Request<'a> = Request<'a>;
    type Refusal = &'static str;

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
        let executed = match (request, keys) {
            (Request::Get(request), keys) => get(x, request, keys),
            (Request::Store(request), [key]) => store(x, request, key, value),
            (Request::Meta(command), keys) => meta::execute(x, command, keys, value),
            (Request::Delete(request), [key]) => delete(x, request, key),
            (Request::Arithmetic(request), [key]) => arithmetic(x, request, key),
            (Request::Touch(request), [key]) => touch(x, request, key),
            (request, _) => execute_rare(x, request),
        };
        conclude(executed, |refusal| refused(x, request, refusal))
    }

    fn refuse(x: &mut Execution<'_, '_>, refusal: &&'static str) {
        x.output.extend(refusal.as_bytes());
    }

    fn refuse_value(
        x: &mut Execution<'_, '_>,
        request: &Request<'_>,
        keys: &[Key<'_>],
        value_len: usize,
    ) -> Option<Executed> {
        let too_large = match (request, keys) {
            (Request::Store(store), [key]) => x.refuse_large(key, value_len, on_refusal(store)),
            (Request::Meta(command), keys) => match meta::refuse_value(x, command, keys, value_len)
            {
                Ok(None) => Ok(false),
                Ok(Some(reply)) => return Some(x.say(reply)),
                Err(unready) => Err(unready),
            },
            _ => return None,
        };
        match too_large {
            Ok(false) => None,
            Ok(true) => Some(x.say_unless(Self::properties(request).noreply, reply::TOO_LARGE)),
            Err(unready) => Some(conclude(Err(unready), |refusal| refused(x, request, refusal))),
        }
    }

    fn no_memory(x: &mut Execution<'_, '_>, request: &Request<'_>, keys: &[Key<'_>]) -> Executed {
        let refused = match (request, keys) {
            (Request::Store(store), [key]) => x.leave(key, on_refusal(store)),
            (Request::Meta(command), keys) => meta::refuse_for_memory(x, command, keys),
            _ => Ok(()),
        };
        match refused {
            Err(Unready::Again) => Executed::Again,
            _ => x.say_unless(Self::properties(request).noreply, reply::NO_MEMORY_STORING),
        }
    }

    fn bad_trailer(x: &mut Execution<'_, '_>, request: &Request<'_>) {
        if !Self::properties(request).noreply {
            x.output.extend(reply::BAD_CHUNK.as_bytes());
        }
    }

    #[inline(always)]
    fn properties<'r>(request: &'r Request<'_>) -> Properties<'r> {
        let none = Properties::default();
        match request {
            // The property `locks` stays false, because a retrieval seldom takes the lock of its
            // key's stripe.
            Request::Get(get) => {
                let effect = if get.exptime.is_none() { Effect::Reads } else { Effect::Other };
                Properties { effect, ..none }
            }
            Request::Meta(command) => meta::properties(command),
            Request::Store(store) => Properties {
                noreply: store.noreply,
                ..Properties::of_store(store.mode, store.compare)
            },
            Request::Delete(Delete { noreply })
            | Request::Arithmetic(Arithmetic { noreply, .. })
            | Request::Touch(Touch { noreply, .. }) => {
                Properties { noreply: *noreply, ..Properties::CHANGES }
            }
            Request::MetaNoop | Request::Version => none,
            Request::Quit | Request::Stats(_) => Properties { ends_turn: true, ..none },
            Request::Admin(admin) => {
                let noreply = match *admin {
                    Admin::FlushAll { noreply, .. }
                    | Admin::Verbosity { noreply, .. }
                    | Admin::MemoryLimit { noreply, .. }
                    | Admin::Accepted { noreply } => noreply,
                    Admin::Shutdown(_) | Admin::Dump(_) | Admin::Device(_) | Admin::Grow(_) => {
                        false
                    }
                };
                Properties { noreply, ends_turn: true, ..none }
            }
        }
    }

    fn class(request: &Request<'_>) -> CommandClass {
        match request {
            Request::Get(get) if get.exptime.is_none() => CommandClass::Get,
            Request::Get(_) | Request::Touch(_) => CommandClass::Touch,
            Request::Meta(command) => meta::class(command),
            Request::Store(_) => CommandClass::Set,
            Request::Delete(_) => CommandClass::Delete,
            Request::Arithmetic(_) => CommandClass::Incr,
            Request::MetaNoop
            | Request::Version
            | Request::Quit
            | Request::Stats(_)
            | Request::Admin(_) => CommandClass::Other,
        }
    }

    fn encoded_key(request: &Request<'_>) -> Option<Vec<u8>> {
        match request {
            Request::Meta(command) => meta::encoded_key(command),
            Request::Get(_)
            | Request::Store(_)
            | Request::Delete(_)
            | Request::Arithmetic(_)
            | Request::Touch(_)
            | Request::MetaNoop
            | Request::Version
            | Request::Quit
            | Request::Stats(_)
            | Request::Admin(_) => None,
        }
    }

    fn failure_reply(request: &Request<'_>) -> FailureReply {
        if Self::properties(request).noreply { FailureReply::Silent } else { FailureReply::Line }
    }
}

/// Sends an error reply with the reason why the engine refused the request, unless the client wants
/// no reply.
#[cold]
fn refused(x: &mut Execution<'_, '_>, request: &Request<'_>, refusal: Refusal) -> Executed {
    let properties = Text::properties(request);
    x.say_unless(properties.noreply, refusal_line(refusal, properties.stores))
}

fn execute_rare(x: &mut Execution<'_, '_>, request: &Request<'_>) -> Result<Executed, Unready> {
    Ok(match request {
        Request::MetaNoop => x.say(reply::META_NOOP),
        Request::Version => {
            x.output.extend(b"VERSION ");
            x.output.extend(x.context.version.as_bytes());
            x.output.extend(b"\r\n");
            Executed::Done
        }
        Request::Quit => Executed::Close,
        Request::Stats(arguments) => stats::execute(x, arguments),
        Request::Admin(admin) => return execute_admin(x, admin),
        // `execute` handles these requests if they have a key, and the parser refuses them without
        // a key. So this arm is never reached.
        Request::Get(_)
        | Request::Meta(_)
        | Request::Store(_)
        | Request::Delete(_)
        | Request::Arithmetic(_)
        | Request::Touch(_) => x.say(reply::ERROR),
    })
}

/// How far a retrieval was answered.
pub(crate) struct Progress {
    /// Number of answered keys. The answer to the last of these keys may be incomplete, see
    /// `value`.
    pub(crate) answered: usize,
    /// The rest of the last answered key's value, if the value exceeds the output's limit.
    pub(crate) value: Option<Box<LongValue>>,
    /// The reason why the engine did not answer the next key. `None` if all keys are answered, if
    /// the output is full, or if the rest of `value` must be sent first.
    pub(crate) unready: Option<Unready>,
}

#[inline]
fn get(x: &mut Execution<'_, '_>, get: &Get, keys: &[Key<'_>]) -> Result<Executed, Unready> {
    if get.keys_follow {
        return Ok(part_of_keys(*get, 0, None));
    }
    let Progress { answered, value, unready } = answer_keys(x, get, keys);
    match unready {
        // If the engine refuses a key, an error line replaces `END`, even if the values of earlier
        // keys were already written.
        Some(unready @ Unready::Refused(_)) => return Err(unready),
        Some(unready @ Unready::Again) if answered == 0 => return Err(unready),
        _ => {}
    }
    if answered < keys.len() || value.is_some() {
        return Ok(part_of_keys(Get { keys_follow: true, ..*get }, answered, value));
    }
    Ok(x.say(reply::END))
}

#[cold]
fn part_of_keys(get: Get, answered: usize, value: Option<Box<LongValue>>) -> Executed {
    Executed::Keys(Box::new(PartOfKeys { get, answered, value }))
}

/// Answers as many keys of a retrieval as the output has room for.
#[inline]
pub(crate) fn answer_keys(x: &mut Execution<'_, '_>, get: &Get, keys: &[Key<'_>]) -> Progress {
    let detail = x.context.prefixes.is_enabled();
    for (at, key) in keys.iter().enumerate() {
        if at > 0 {
            if x.output.is_full() {
                return Progress { answered: at, value: None, unready: None };
            }
            if at % PREFETCH_WINDOW == 0 {
                prefetch(x, &keys[at..]);
            }
        }
        let found = match x.read(key, get.exptime) {
            Ok(found) => found,
            Err(unready) => {
                return Progress { answered: at, value: None, unready: Some(unready) };
            }
        };
        if detail {
            x.context.prefixes.get(key.bytes(), found.is_some());
        }
        let Some(item) = found else { continue };
        if let Some(value) = put_item(x, item, get.cas) {
            return Progress { answered: at + 1, value: Some(value), unready: None };
        }
    }
    Progress { answered: keys.len(), value: None, unready: None }
}

fn prefetch(x: &Execution<'_, '_>, keys: &[Key<'_>]) {
    let window = &keys[..keys.len().min(PREFETCH_WINDOW)];
    for key in window {
        x.session.prefetch_buckets(key);
    }
    for mut key in window.iter().copied() {
        x.session.fetch_record(&mut key);
    }
}

#[inline]
fn put_item(x: &mut Execution<'_, '_>, item: Item<'_>, with_cas: bool) -> Option<Box<LongValue>> {
    let value = item.value();
    let cas = with_cas.then(|| item.cas());
    let room = x.output.room(reply::VALUE_LINE_MAX);
    let line = reply::value_line(room, item.key(), item.flags(), value.len(), cas);
    x.output.advance(line);
    put_value(x.output, item, b"\r\n")
}

#[inline]
fn store(
    x: &mut Execution<'_, '_>,
    request: &Store<'_>,
    key: &Key<'_>,
    value: Option<Value<'_>>,
) -> Result<Executed, Unready> {
    x.context.prefixes.set(key.bytes());
    let (mode, compare) = (engine_mode(request.mode), request.compare);
    let value = value.unwrap_or(Value::Bytes(request.value));
    let plain = EngineStore::set(&[], request.flags, x.expiry(request.exptime));
    let store = EngineStore { mode, compare, value, ..plain };
    let line = match x.put(key, store, on_refusal(request))? {
        Stored::Stored { .. } => reply::STORED,
        Stored::NotStored => reply::NOT_STORED,
        Stored::Exists => reply::EXISTS,
        Stored::NotFound => reply::NOT_FOUND,
        Stored::TooLarge => reply::TOO_LARGE,
    };
    Ok(x.say_unless(request.noreply, line))
}

/// Decides if a refused write removes the old value. As in memcached, only a refused set without a
/// cas id does.
fn on_refusal(request: &Store<'_>) -> OnRefusal {
    match request.mode {
        StoreMode::Set if request.compare.is_none() => OnRefusal::Remove,
        StoreMode::Set
        | StoreMode::Add
        | StoreMode::Replace
        | StoreMode::Append
        | StoreMode::Prepend => OnRefusal::Keep,
    }
}

fn delete(x: &mut Execution<'_, '_>, request: &Delete, key: &Key<'_>) -> Result<Executed, Unready> {
    x.context.prefixes.delete(key.bytes());
    let line = match x.settle(x.session.delete(key, &EngineDelete::default()))? {
        Deleted::Deleted => reply::DELETED,
        // The request compares no cas id, so `Exists` cannot occur.
        Deleted::NotFound | Deleted::Exists => reply::NOT_FOUND,
    };
    Ok(x.say_unless(request.noreply, line))
}

fn arithmetic(
    x: &mut Execution<'_, '_>,
    request: &Arithmetic,
    key: &Key<'_>,
) -> Result<Executed, Unready> {
    let arith = Arith { decrement: request.decrement, ..Arith::add(request.delta) };
    let line = match count(x, key, arith)? {
        Counted::Value { value, .. } if !request.noreply => {
            let room = x.output.room(reply::NUMBER_LEN_MAX + 2);
            let len = reply::write_u64(room, value);
            room[len..len + 2].copy_from_slice(b"\r\n");
            x.output.advance(len + 2);
            return Ok(Executed::Done);
        }
        Counted::Value { .. } => return Ok(Executed::Done),
        Counted::NotFound | Counted::Exists => reply::NOT_FOUND,
        Counted::NonNumeric => reply::NON_NUMERIC,
    };
    Ok(x.say_unless(request.noreply, line))
}

fn touch(x: &mut Execution<'_, '_>, request: &Touch, key: &Key<'_>) -> Result<Executed, Unready> {
    let touched = x.touch(key, x.expiry(request.exptime))?.is_some();
    let line = if touched { reply::TOUCHED } else { reply::NOT_FOUND };
    Ok(x.say_unless(request.noreply, line))
}

fn execute_admin(x: &mut Execution<'_, '_>, admin: &Admin<'_>) -> Result<Executed, Unready> {
    Ok(match *admin {
        Admin::FlushAll { noreply, .. } if !x.context.switches().flush => {
            x.say_unless(noreply, reply::FLUSH_NOT_ALLOWED)
        }
        Admin::FlushAll { exptime, noreply } => {
            x.flush(exptime.into())?;
            x.say_unless(noreply, reply::OK)
        }
        Admin::Verbosity { level, noreply } => {
            x.context.set_verbosity(level);
            x.say_unless(noreply, reply::OK)
        }
        Admin::MemoryLimit { noreply, .. } if !x.context.switches().control => {
            x.say_unless(noreply, reply::MEMLIMIT_NOT_ALLOWED)
        }
        Admin::MemoryLimit { megabytes, noreply } => {
            let line = set_memory_limit(x, megabytes);
            x.say_unless(noreply, line)
        }
        Admin::Shutdown(mode) => shutdown(x, mode),
        Admin::Dump(dump) if !x.context.switches().dump => x.say(match dump.format {
            larder_protocol::text::DumpFormat::Metadump => reply::METADUMP_NOT_ALLOWED,
            larder_protocol::text::DumpFormat::Mgdump => reply::MGDUMP_NOT_ALLOWED,
        }),
        Admin::Dump(dump) if !dump.has_valid_classes() => x.say(reply::BAD_CLASS),
        Admin::Dump(dump) => {
            let all = dump.includes(super::dump::SHOWN_CLASS);
            let Some(dump) = Dump::new(x, dump.format, all) else {
                return Ok(x.say(reply::CRAWLER_BUSY));
            };
            x.say(reply::OK);
            Executed::Dump(Box::new(dump))
        }
        Admin::Device(_) | Admin::Grow(_) if !x.context.switches().control => {
            x.say(reply::STORE_NOT_ALLOWED)
        }
        Admin::Device(device) => return drain(x, device),
        Admin::Grow(device) => return grow(x, device),
        Admin::Accepted { noreply } => x.say_unless(noreply, reply::OK),
    })
}

/// Changes the memory limit and returns the reply. Accepts the same range as memcached, in MiB.
fn set_memory_limit(x: &Execution<'_, '_>, megabytes: u32) -> &'static str {
    match megabytes {
        ..8 => reply::MEMLIMIT_TOO_SMALL,
        8..=1_000_000_000 => match x.context.set_memory_limit(u64::from(megabytes) << 20) {
            Ok(()) => reply::OK,
            Err(_) => reply::MEMLIMIT_FAILED,
        },
        _ => reply::MEMLIMIT_NOT_MEGABYTES,
    }
}

fn drain(x: &mut Execution<'_, '_>, device: Device<'_>) -> Result<Executed, Unready> {
    let name = String::from_utf8_lossy(device.name);
    let drained = x.session.drain(&name, device.drain);
    Ok(match x.settle(drained)? {
        Ok(()) => x.say(reply::OK),
        Err(error) => x.say(&format!("SERVER_ERROR {error}\r\n")),
    })
}

fn grow(x: &mut Execution<'_, '_>, device: Grow<'_>) -> Result<Executed, Unready> {
    let name = String::from_utf8_lossy(device.name);
    let grown = x.session.grow((!name.is_empty()).then_some(&*name), device.bytes);
    Ok(match x.settle(grown)? {
        Ok(()) => x.say(reply::OK),
        Err(error) => x.say(&format!("SERVER_ERROR {error}\r\n")),
    })
}

fn shutdown(x: &mut Execution<'_, '_>, mode: Shutdown) -> Executed {
    match mode {
        _ if !x.context.switches().shutdown => x.say(reply::SHUTDOWN_NOT_ENABLED),
        Shutdown::Unknown => x.say(reply::INVALID_SHUTDOWN),
        Shutdown::Now | Shutdown::Graceful => {
            x.context.hooks().shutdown(mode == Shutdown::Graceful);
            Executed::Close
        }
    }
}
