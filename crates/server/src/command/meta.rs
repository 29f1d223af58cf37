//! Meta commands. The flags of a command determine the contents and the order of its reply.

use super::expiry::recache_below;
use super::intent::OnRefusal;
use super::properties::Effect;
use super::{Executed, Execution, Properties, Unready, engine_mode, limit, put_value};
use crate::net::OutputBuffer;
use larder_engine::{
    Arith, Counted, Create, Delete, Deleted, Expiry, Get, Got, Item, Key, ReadCount, Recache,
    Store, Stored, UnixSeconds, Value, Vivify,
};
use larder_protocol::meta::{Flags, Meta, Verb};
use larder_protocol::{KEY_LEN_MAX, StoreMode, base64, reply};

/// Executes a meta command. `keys` holds its key unless the key is in base64 or too long.
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

/// Returns the key of a command. If `keys` does not have it, decodes it from base64.
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

/// Returns the properties of a command that do not depend on its key.
#[inline(always)]
pub(super) fn properties<'r>(command: &'r Meta<'_>) -> Properties<'r> {
    let effect = Effect::Flags(command);
    match command.verb {
        // `locks` stays false: a retrieval seldom locks, and only its flags show whether it does.
        Verb::Get | Verb::Debug => Properties { effect, ..Properties::default() },
        Verb::Set => Properties { effect, stores: true, ..Properties::CHANGES },
        Verb::Delete | Verb::Arithmetic => Properties { effect, ..Properties::CHANGES },
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

/// A command with its key.
pub(super) struct Target<'t, 'a> {
    pub(super) command: &'t Meta<'a>,
    pub(super) flags: &'t Flags,
    pub(super) key: &'t Key<'t>,
}

impl Target<'_, '_> {
    pub(super) fn quiet(&self) -> bool {
        self.flags.has(b'q')
    }

    /// Returns the expiries that `T` and, if the item was created, `N` set.
    fn expiries_given(
        &self,
        x: &Execution<'_, '_>,
        created: bool,
    ) -> (Option<Expiry>, Option<Expiry>) {
        let vivify = self.flags.vivify.filter(|_| created);
        (self.flags.ttl.map(|ttl| x.expiry(ttl)), vivify.map(|vivify| x.expiry(vivify)))
    }

    /// Returns the rule by which a client is told to recache. Flags take effect in their order: `R`
    /// looks at the expiry that a `T` in front of it has set.
    fn recache(&self, x: &Execution<'_, '_>) -> Recache {
        let first = self.command.tokens().find(|token| matches!(token[0], b'R' | b'T'));
        let now = x.context.wall(x.session.now());
        let below = self.flags.recache.map_or(0, |recache| recache_below(recache, now));
        Recache { below, touched: first.is_some_and(|token| token[0] == b'T') }
    }

    /// Returns the expiry of an item that this command creates. The last `N` or `T` counts.
    fn expiry_of_new(&self, x: &Execution<'_, '_>, vivify: i32) -> Expiry {
        let last = self.command.tokens().filter(|token| matches!(token[0], b'N' | b'T')).last();
        match (last.map(|token| token[0]), self.flags.ttl) {
            (Some(b'T'), Some(ttl)) => x.expiry(ttl),
            _ => x.expiry(vivify),
        }
    }
}

/// Length that no reply line exceeds, in bytes: the key in base64, and 18 flags of which none is
/// longer than an opaque token.
const LINE_MAX: usize = 1024;

/// A reply line that is being written. It becomes part of the output when it is finished.
pub(super) struct Line<'l> {
    room: &'l mut [u8],
    len: usize,
}

impl Line<'_> {
    pub(super) fn text(&mut self, text: &[u8]) {
        self.room[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    fn number(&mut self, number: u64) {
        self.len += reply::write_u64(&mut self.room[self.len..], number);
    }

    /// Writes a flag with a number.
    pub(super) fn flag(&mut self, letter: u8, number: u64) {
        self.text(&[b' ', letter]);
        self.number(number);
    }

    /// Writes a flag with a time; -1 for never.
    pub(super) fn time(&mut self, letter: u8, time: Option<u64>) {
        match time {
            None => self.text(&[b' ', letter, b'-', b'1']),
            Some(time) => self.flag(letter, time),
        }
    }

    fn time_to_live(&mut self, expiry: Expiry, now: UnixSeconds) {
        self.time(b't', expiry.remaining(now).map(u64::from));
    }

    fn key(&mut self, target: &Target<'_, '_>) {
        self.text(b" k");
        self.plain_or_base64(target.key.bytes(), target.command.base64);
        if target.command.base64 {
            self.text(b" b");
        }
    }

    fn plain_or_base64(&mut self, key: &[u8], base64: bool) {
        if base64 {
            self.len += base64::encode(key, &mut self.room[self.len..]);
        } else {
            self.text(key);
        }
    }

    /// Writes the tokens that every command echoes, whatever its result.
    pub(super) fn echo(&mut self, target: &Target<'_, '_>, token: &[u8]) {
        match token[0] {
            b'O' => {
                self.text(b" ");
                self.text(token);
            }
            b'k' => self.key(target),
            _ => {}
        }
    }

    fn finish(mut self) -> usize {
        self.text(b"\r\n");
        self.len
    }
}

/// Replies with a line that begins with `status`. Calls `flag` to write the reply to each flag.
pub(super) fn put_line(
    output: &mut OutputBuffer<'_>,
    status: &[u8],
    target: &Target<'_, '_>,
    mut flag: impl FnMut(&mut Line<'_>, &[u8]),
) {
    let mut line = Line { room: output.room(LINE_MAX), len: 0 };
    line.text(status);
    for token in target.command.tokens() {
        flag(&mut line, token);
    }
    let len = line.finish();
    output.advance(len);
}

/// Replies with a status and the tokens that every command echoes.
pub(super) fn put_status(
    x: &mut Execution<'_, '_>,
    status: &[u8],
    target: &Target<'_, '_>,
) -> Executed {
    put_line(x.output, status, target, |line, token| line.echo(target, token));
    Executed::Done
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
    // Flags take effect in their order: `t` shows the expiry before a later `T` changes it.
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
        // With a cas id to compare, the reply for a missing item is that of cas.
        mode: engine_mode(match flags.compare {
            Some(_) if overwrites => StoreMode::Set,
            _ => mode,
        }),
        value,
        flags: flags.client_flags,
        expiry: flags.ttl.map_or(Expiry::NEVER, |ttl| x.expiry(ttl)),
        compare: flags.compare.filter(|&cas| overwrites || grows && cas != 0),
        // 0 requests no particular cas id.
        cas: flags.cas.filter(|&cas| cas != 0),
        // No item has cas id 0, so 0 names no older version.
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
    let (number, cas, expiry, created) = match x.settle(x.session.arith(target.key, &arith))? {
        Counted::Value { .. } if target.quiet() => return Ok(Executed::Done),
        Counted::Value { value, cas, expiry, created } => (value, cas, expiry, created),
        Counted::NotFound => return Ok(put_status(x, b"NF", target)),
        Counted::Exists => return Ok(put_status(x, b"EX", target)),
        Counted::NonNumeric => return Ok(x.say(reply::NON_NUMERIC)),
    };
    let now = x.session.now();
    let (ttl, vivify) = target.expiries_given(x, created);
    let mut shown = old_expiry.unwrap_or(if created { Expiry::NEVER } else { expiry });
    put_number(x, target, number, |line, token| match token[0] {
        b'c' => line.flag(b'c', cas),
        b't' => line.time_to_live(shown, now),
        b'T' => shown = ttl.unwrap_or(shown),
        b'N' => shown = vivify.unwrap_or(shown),
        _ => line.echo(target, token),
    });
    Ok(Executed::Done)
}

/// Replies with success, and with the number as the value if the client wants it.
pub(super) fn put_number(
    x: &mut Execution<'_, '_>,
    target: &Target<'_, '_>,
    number: u64,
    flag: impl FnMut(&mut Line<'_>, &[u8]),
) {
    if !target.flags.has(b'v') {
        return put_line(x.output, b"HD", target, flag);
    }
    let mut digits = [0; reply::NUMBER_LEN_MAX];
    let len = reply::write_u64(&mut digits, number);
    let mut status = *b"VA 12";
    let status_len = 3 + reply::write_u64(&mut status[3..], len as u64);
    put_line(x.output, &status[..status_len], target, flag);
    x.output.extend(&digits[..len]);
    x.output.extend(b"\r\n");
}

/// Returns the expiry before the command changes it, if the reply shows it (`t` before `T`).
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

/// Executes `me`: describes an item for people.
fn debug(x: &mut Execution<'_, '_>, command: &Meta<'_>) -> Result<Executed, Unready> {
    if command.key.len() > KEY_LEN_MAX {
        return Ok(x.say(reply::BAD_FORMAT));
    }
    let mut decoded = DECODED;
    let key = if command.base64 { base64::decode(command.key, &mut decoded) } else { None };
    // memcached obeys `b` only if another flag follows it. Here that matters only for a key that is
    // not valid base64.
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
