//! Meta commands. The flags of a command determine the contents and the order of its reply.

mod limit;
mod line;

use super::count::count;
use super::intent::OnRefusal;
use super::properties::Effect;
use super::{Executed, Execution, Properties, Unready, engine_mode, put_value};
use crate::latency::CommandClass;
use larder_engine::{
    Arith, Counted, Create, Delete, Deleted, Expiry, Get, Got, Item, Key, ReadCount, Store, Stored,
    UnixSeconds, Value, Vivify,
};
use larder_protocol::meta::{Flags, Meta, Verb};
use larder_protocol::{KEY_LEN_MAX, StoreMode, base64, reply};
use line::{LINE_MAX, Line, Target, put_line, put_number, put_status};

/// Executes a meta command. `keys` holds the command's key, unless the key is in base64 or too
/// long.
pub(super) fn execute(
    x: &mut Execution<'_, '_>,
    command: &Meta<'_>,
    keys: &[Key<'_>],
    value: Option<Value<'_>>,
) -> Result<Executed, Unready> {
    x.counters.meta_commands.add(1);
    if command.verb == Verb::Debug {
        return debug(x, command);
    }
    let flags = match Flags::parse(command) {
        Ok(flags) => flags,
        Err(refusal) => return Ok(x.say(refusal)),
    };
    let mut decoded = DECODED;
    let Some(key) = key_of(x, command, keys, &mut decoded) else {
        return Ok(x.say(reply::KEY_NOT_DECODED));
    };
    let target = Target { command, flags: &flags, key: &key };
    match command.verb {
        Verb::Set => set(x, &target, value),
        Verb::Delete => delete(x, &target),
        Verb::Arithmetic => arithmetic(x, &target),
        Verb::Get | Verb::Debug => get(x, &target),
    }
}

/// Buffer for a key that was sent in base64.
const DECODED: [u8; base64::DECODED_KEY_MAX] = [0; base64::DECODED_KEY_MAX];

/// Returns the key of a command. If `keys` is empty, decodes the key from base64 into `decoded`.
/// Returns `None` if the key cannot be decoded.
fn key_of<'k>(
    x: &Execution<'_, '_>,
    command: &Meta<'_>,
    keys: &[Key<'k>],
    decoded: &'k mut [u8],
) -> Option<Key<'k>> {
    match keys {
        [key] => Some(*key),
        _ => base64::decode(command.key, decoded).map(|key| x.session.key(key)),
    }
}

/// Returns the key of a command whose key is in base64.
pub(super) fn encoded_key(command: &Meta<'_>) -> Option<Vec<u8>> {
    let mut decoded = DECODED;
    base64::decode(command.key, &mut decoded).filter(|_| command.base64).map(<[u8]>::to_vec)
}

/// Returns the properties of a command that do not depend on its key.
#[inline(always)]
pub(super) fn properties<'r>(command: &'r Meta<'_>) -> Properties<'r> {
    let effect = Effect::Flags(command);
    match command.verb {
        // The property `locks` stays false. A retrieval seldom takes the lock of its key's stripe,
        // and only its flags show whether it does.
        Verb::Get | Verb::Debug => Properties { effect, ..Properties::default() },
        Verb::Set => Properties { effect, stores: true, ..Properties::CHANGES },
        Verb::Delete | Verb::Arithmetic => Properties { effect, ..Properties::CHANGES },
    }
}

pub(super) fn class(command: &Meta<'_>) -> CommandClass {
    match command.verb {
        Verb::Get => CommandClass::Get,
        Verb::Set => CommandClass::Set,
        Verb::Delete => CommandClass::Delete,
        Verb::Arithmetic => {
            let limits = command.tokens().any(|token| matches!(token[0], b'B' | b'Q'));
            if limits { CommandClass::Limit } else { CommandClass::Incr }
        }
        Verb::Debug => CommandClass::Other,
    }
}

/// Returns true if a command only reads.
pub(super) fn only_reads(command: &Meta<'_>) -> bool {
    match command.verb {
        Verb::Debug => true,
        Verb::Get => !command.tokens().any(|token| matches!(token[0], b'N' | b'T')),
        Verb::Set | Verb::Delete | Verb::Arithmetic => false,
    }
}

/// Returns true if a command sets its key unconditionally.
pub(super) fn overwrites(command: &Meta<'_>) -> bool {
    let compares = |token: &[u8]| token[0] == b'C';
    let has_mode = |token: &[u8]| token[0] == b'M' && !matches!(token.get(1), Some(b'S' | b's'));
    match command.verb {
        Verb::Set => !command.tokens().any(|token| compares(token) || has_mode(token)),
        Verb::Get | Verb::Delete | Verb::Arithmetic | Verb::Debug => false,
    }
}

fn get(x: &mut Execution<'_, '_>, target: &Target<'_, '_>) -> Result<Executed, Unready> {
    let flags = target.flags;
    let touches = flags.ttl.is_some();
    let get = Get {
        counted_as: if touches { ReadCount::TouchIfFound } else { ReadCount::Get },
        no_bump: flags.has(b'u'),
        touch: flags.ttl.map(|ttl| x.expiry(ttl)),
        vivify: flags
            .vivify
            .map(|vivify| Vivify { expiry: target.expiry_of_new(x, vivify), cas: flags.cas }),
        recache: Some(target.recache(x)),
    };
    let Some(got) = x.settle(x.session.get_with(target.key, &get))? else {
        if target.quiet() {
            return Ok(Executed::Done);
        }
        return Ok(put_status(x, b"EN", target));
    };
    let item = got.item;
    let with_value = flags.has(b'v') && flags.compare != Some(item.cas());
    put_hit(x, target, &got, with_value);
    if !with_value {
        return Ok(Executed::Done);
    }
    Ok(match put_value(x.output, item, b"\r\n") {
        None => Executed::Done,
        Some(value) => Executed::Value(value),
    })
}

fn put_hit(x: &mut Execution<'_, '_>, target: &Target<'_, '_>, got: &Got<'_>, with_value: bool) {
    let (item, now) = (&got.item, x.session.now());
    let (ttl, vivify) = target.expiries_given(x, got.created);
    let mut line = Line { room: x.output.room(LINE_MAX), len: 0 };
    if with_value {
        line.text(b"VA ");
        line.number(item.value().len() as u64);
    } else {
        line.text(b"HD");
    }
    // Flags take effect in the order of the request. If `t` precedes `T`, then `t` shows the old
    // expiry.
    let mut expiry = if got.created { Expiry::NEVER } else { got.old_expiry };
    for token in target.command.tokens() {
        match token[0] {
            b'T' => expiry = ttl.unwrap_or(expiry),
            b'N' => expiry = vivify.unwrap_or(expiry),
            b't' => line.time_to_live(expiry, now),
            letter => put_item_flag(&mut line, letter, item, now),
        }
        line.echo(target, token);
    }
    if got.won_before {
        line.text(b" Z");
    }
    if item.is_stale() {
        line.text(b" X");
    }
    if got.won {
        line.text(b" W");
    }
    let len = line.finish();
    x.output.advance(len);
}

fn put_item_flag(line: &mut Line<'_>, letter: u8, item: &Item<'_>, now: UnixSeconds) {
    match letter {
        b's' => line.flag(b's', item.value().len() as u64),
        b'c' => line.flag(b'c', item.cas()),
        b'f' => line.flag(b'f', item.flags().into()),
        b'l' => line.flag(b'l', now.saturating_sub(item.last_access()).into()),
        b'h' => line.flag(b'h', item.hit_before().into()),
        _ => {}
    }
}

fn set(
    x: &mut Execution<'_, '_>,
    target: &Target<'_, '_>,
    value: Option<Value<'_>>,
) -> Result<Executed, Unready> {
    let flags = target.flags;
    let value = value.unwrap_or(Value::Bytes(target.command.value));
    let given = value.len();
    let mode = flags.set_mode;
    let grows = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    let overwrites = matches!(mode, StoreMode::Set | StoreMode::Replace);
    let store = Store {
        // With a cas id to compare (`C`), the modes set and replace both act as `cas`: for a
        // missing item the reply is `NF`, not `NS`.
        mode: engine_mode(match flags.compare {
            Some(_) if overwrites => StoreMode::Set,
            _ => mode,
        }),
        value,
        flags: flags.client_flags,
        expiry: flags.ttl.map_or(Expiry::NEVER, |ttl| x.expiry(ttl)),
        compare: flags.compare.filter(|&cas| overwrites || grows && cas != 0),
        // `E0` has no effect: the item gets a new cas id, as without `E`.
        cas: flags.cas.filter(|&cas| cas != 0),
        // With `I`, a client may store a value although the cas id that it sends (`C`) is lower
        // than the item's. The new item is then stale. As in memcached, `C0` is the exception: set
        // and replace then store nothing, even with `I`.
        invalidate: flags.has(b'I') && overwrites && flags.compare.is_some_and(|cas| cas != 0),
        vivify: flags.vivify.filter(|_| grows).map(|vivify| x.expiry(vivify)),
    };
    let (status, cas, size): (&[u8], _, _) = match x.put(target.key, store, OnRefusal::Remove)? {
        Stored::Stored { .. } if target.quiet() => return Ok(Executed::Done),
        Stored::Stored { cas, size } => (b"HD", cas, size),
        Stored::Exists => (b"EX", 0, given),
        Stored::NotFound if overwrites => (b"NF", 0, given),
        Stored::NotStored | Stored::NotFound => (b"NS", 0, given),
        Stored::TooLarge => return Ok(x.say(reply::TOO_LARGE)),
    };
    put_line(x.output, status, target, |line, token| match token[0] {
        b'c' => line.flag(b'c', cas),
        b's' => line.flag(b's', size as u64),
        _ => line.echo(target, token),
    });
    Ok(Executed::Done)
}

/// Refuses an `ms` before its value has arrived, if its flags are wrong or the value is too large.
/// Returns `None` if nothing is wrong.
pub(super) fn refuse_value(
    x: &mut Execution<'_, '_>,
    command: &Meta<'_>,
    keys: &[Key<'_>],
    value_len: usize,
) -> Result<Option<&'static str>, Unready> {
    if let Err(refusal) = Flags::parse(command) {
        return Ok(Some(refusal));
    }
    let mut decoded = DECODED;
    let Some(key) = key_of(x, command, keys, &mut decoded) else { return Ok(None) };
    let too_large = x.refuse_large(&key, value_len, OnRefusal::Remove)?;
    Ok(too_large.then_some(reply::TOO_LARGE))
}

/// Refuses an `ms` because there is no memory to receive its value.
pub(super) fn refuse_for_memory(
    x: &mut Execution<'_, '_>,
    command: &Meta<'_>,
    keys: &[Key<'_>],
) -> Result<(), Unready> {
    let mut decoded = DECODED;
    match key_of(x, command, keys, &mut decoded) {
        Some(key) => x.leave(&key, OnRefusal::Remove),
        None => Ok(()),
    }
}

fn delete(x: &mut Execution<'_, '_>, target: &Target<'_, '_>) -> Result<Executed, Unready> {
    let flags = target.flags;
    let keeps = flags.has(b'I') || flags.has(b'x');
    let delete = Delete {
        compare: flags.compare,
        invalidate: flags.has(b'I'),
        expiry: flags.ttl.filter(|_| keeps).map(|ttl| x.expiry(ttl)),
        clear_value: flags.has(b'x'),
        cas: flags.cas,
        uncounted: false,
    };
    Ok(match x.settle(x.session.delete(target.key, &delete))? {
        Deleted::Deleted if target.quiet() => Executed::Done,
        Deleted::Deleted => put_status(x, b"HD", target),
        Deleted::NotFound => put_status(x, b"NF", target),
        Deleted::Exists => put_status(x, b"EX", target),
    })
}

fn arithmetic(x: &mut Execution<'_, '_>, target: &Target<'_, '_>) -> Result<Executed, Unready> {
    let flags = target.flags;
    if flags.limits() {
        return limit::take(x, target);
    }
    let arith = Arith {
        decrement: flags.decrement,
        delta: flags.delta,
        compare: flags.compare.filter(|&cas| cas != 0),
        cas: flags.cas,
        expiry: flags.ttl.map(|ttl| x.expiry(ttl)),
        create: flags.vivify.map(|vivify| Create {
            initial: flags.initial,
            expiry: target.expiry_of_new(x, vivify),
        }),
    };
    let old_expiry = old_expiry(x, target)?;
    let (number, cas, expiry, created) = match count(x, target.key, arith)? {
        Counted::Value { .. } if target.quiet() => return Ok(Executed::Done),
        Counted::Value { value, cas, expiry, created } => (value, cas, expiry, created),
        Counted::NotFound => return Ok(put_status(x, b"NF", target)),
        Counted::Exists => return Ok(put_status(x, b"EX", target)),
        Counted::NonNumeric => return Ok(x.say(reply::NON_NUMERIC)),
    };
    let now = x.session.now();
    let (ttl, vivify) = target.expiries_given(x, created);
    let asked = created && flags.vivify.is_some();
    let mut shown = old_expiry.unwrap_or(if asked { Expiry::NEVER } else { expiry });
    let flag = |line: &mut Line<'_>, token: &[u8]| match token[0] {
        b'c' => line.flag(b'c', cas),
        b't' => line.time_to_live(shown, now),
        b'T' => shown = ttl.unwrap_or(shown),
        b'N' => shown = vivify.unwrap_or(shown),
        _ => line.echo(target, token),
    };
    put_number(x, target, number, flag, |_| ());
    Ok(Executed::Done)
}

/// Returns the item's expiry before the command changes it. The reply shows this old expiry only if
/// the flag `t` precedes `T`. Otherwise returns `None`.
fn old_expiry(
    x: &mut Execution<'_, '_>,
    target: &Target<'_, '_>,
) -> Result<Option<Expiry>, Unready> {
    let first = target.command.tokens().find(|token| matches!(token[0], b't' | b'T'));
    if target.flags.ttl.is_none() || first.is_none_or(|token| token[0] != b't') {
        return Ok(None);
    }
    let get = Get { no_bump: true, counted_as: ReadCount::Nothing, ..Get::default() };
    Ok(x.settle(x.session.get_with(target.key, &get))?.map(|got| got.item.expiry()))
}

/// Executes `me`, which describes an item for debugging.
fn debug(x: &mut Execution<'_, '_>, command: &Meta<'_>) -> Result<Executed, Unready> {
    if command.key.len() > KEY_LEN_MAX {
        return Ok(x.say(reply::BAD_FORMAT));
    }
    let mut decoded = DECODED;
    let key = if command.base64 { base64::decode(command.key, &mut decoded) } else { None };
    // `b` says that the key is in base64. memcached obeys `b` only if the command has another flag
    // too. Larder always decodes such a key if it is valid base64. If it is not, Larder does as
    // memcached: it refuses the key if there is another flag, and otherwise uses the key undecoded.
    let base64 = key.is_some();
    let bytes = match key {
        None if command.base64 && command.tokens().count() > 1 => {
            return Ok(x.say(reply::BAD_FORMAT));
        }
        key => key.unwrap_or(command.key),
    };
    let key = x.session.key(bytes);
    let get = Get { no_bump: true, counted_as: ReadCount::Nothing, ..Get::default() };
    let Some(got) = x.settle(x.session.get_with(&key, &get))? else {
        return Ok(x.say(reply::META_MISS));
    };
    let (item, now) = (got.item, x.session.now());
    let mut line = Line { room: x.output.room(LINE_MAX), len: 0 };
    line.text(b"ME ");
    line.plain_or_base64(bytes, base64);
    line.text(b" exp=");
    match item.expiry().remaining(now) {
        None => line.text(b"-1"),
        Some(seconds) => line.number(seconds.into()),
    }
    line.text(b" la=");
    line.number(now.saturating_sub(item.last_access()).into());
    line.text(b" cas=");
    line.number(item.cas());
    line.text(b" fetch=");
    line.text(if item.hit_before() { b"yes" } else { b"no" });
    line.text(b" cls=");
    line.number(super::dump::SHOWN_CLASS.into());
    line.text(b" size=");
    line.number(item.record_size() as u64);
    let len = line.finish();
    x.output.advance(len);
    Ok(Executed::Done)
}
