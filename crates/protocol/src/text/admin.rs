//! Admin commands. They are rare, so this code is written for clarity, not for speed. Commands that
//! tune memcached's slabs, queues and crawlers have no effect, because Larder has nothing that they
//! could tune. The parser checks them as memcached does, then [accepts](Admin::Accepted) them. So
//! existing scripts keep working.

use super::{Frame, Parsed, Request, last_token, refuse, refuse_unless, request};
use crate::scan::{Tokens, abbreviates, parse_i32, parse_u32, parse_u64};
use crate::{Parse, Then, reply};

/// An admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin<'a> {
    /// flush_all.
    FlushAll {
        /// The time as the client wrote it; 0 or less means now.
        exptime: i32,
        /// True to send no reply.
        noreply: bool,
    },
    /// verbosity.
    Verbosity {
        /// The new level.
        level: u32,
        /// True to send no reply.
        noreply: bool,
    },
    /// cache_memlimit.
    MemoryLimit {
        /// The new limit, in MiB.
        megabytes: u32,
        /// True to send no reply.
        noreply: bool,
    },
    /// shutdown.
    Shutdown(Shutdown),
    /// lru_crawler metadump, lru_crawler mgdump.
    Dump(Dump<'a>),
    /// store drain, store keep; only in Larder.
    Device(Device<'a>),
    /// store grow; only in Larder.
    Grow(Grow<'a>),
    /// A valid tuning command that has no effect.
    Accepted {
        /// True to send no reply.
        noreply: bool,
    },
}

/// How to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Stop now.
    Now,
    /// Stop after running requests have ended.
    Graceful,
    /// The request names no known mode. The server stays up and replies with an error.
    Unknown,
}

/// A request to drain a device of the store, or to cancel its drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device<'a> {
    /// The name of the device: the rest of the line.
    pub name: &'a [u8],
    /// True for `store drain`, false for `store keep`, which cancels a drain.
    pub drain: bool,
}

/// A request to grow a device of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grow<'a> {
    /// The new size of the device, in bytes.
    pub bytes: u64,
    /// The name of the device or the number of its lane: the rest of the line. It may be empty if
    /// the store has a single device.
    pub name: &'a [u8],
}

/// A dump of all items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump<'a> {
    /// The format of each line.
    pub format: DumpFormat,
    /// Selects the items to list, by slab class: numbers of classes separated by commas, or `all`
    /// or `hash` for all items. To these commands, all items of Larder are in one class.
    pub classes: &'a [u8],
}

/// The format of each line of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpFormat {
    /// `key=... exp=...`: the metadata of each item.
    Metadump,
    /// `mg key`: a command that can be sent to a server.
    Mgdump,
}

/// The highest slab class in memcached's default configuration.
const SLAB_CLASS_MAX: i32 = 39;

/// The largest number of arguments of an admin command that are kept. Further arguments are only
/// counted.
const TOKENS_MAX: usize = 8;

struct Arguments<'a> {
    tokens: [&'a [u8]; TOKENS_MAX],
    len: usize,
}

impl<'a> Arguments<'a> {
    fn new(tokens: Tokens<'a>) -> Self {
        let mut arguments = Arguments { tokens: [&[]; TOKENS_MAX], len: 0 };
        for token in tokens {
            if let Some(slot) = arguments.tokens.get_mut(arguments.len) {
                *slot = token;
            }
            arguments.len += 1;
        }
        arguments
    }

    /// Returns the token at `at`, or an empty one.
    fn get(&self, at: usize) -> &'a [u8] {
        self.tokens.get(at).copied().unwrap_or(&[])
    }

    /// Returns true if the first token is the sub-command `name` or a prefix of it.
    fn begins(&self, name: &[u8]) -> bool {
        abbreviates(self.get(0), name)
    }
}

pub(super) fn parse<'a>(frame: Frame<'a>) -> Parsed<'a> {
    let mut tokens = Tokens::new(frame.line);
    let command = tokens.next().unwrap_or(&[]);
    let arguments = Arguments::new(tokens);
    let noreply = last_token(frame.line) == b"noreply";
    let refused = |reply| refuse_unless(noreply, reply, frame.consumed);
    let checked = |result: Result<(), &'static str>| match result {
        Ok(()) => admin(frame, Admin::Accepted { noreply }),
        Err(reply) => refused(reply),
    };
    match command {
        b"flush_all" => flush_all(frame, &arguments, noreply),
        b"verbosity" => match parse_u32(arguments.get(0)) {
            Some(level) => admin(frame, Admin::Verbosity { level, noreply }),
            None => refused(reply::BAD_FORMAT),
        },
        b"cache_memlimit" => match parse_u32(arguments.get(0)) {
            Some(megabytes) => admin(frame, Admin::MemoryLimit { megabytes, noreply }),
            None => refused(reply::ERROR),
        },
        b"shutdown" => {
            let mode = match (arguments.len, arguments.get(0)) {
                (0, _) => Shutdown::Now,
                (1, word) if abbreviates(word, b"graceful") => Shutdown::Graceful,
                _ => Shutdown::Unknown,
            };
            admin(frame, Admin::Shutdown(mode))
        }
        b"store" => match store(frame.line) {
            Some(command) => admin(frame, command),
            None => refused(reply::ERROR),
        },
        b"slabs" => checked(slabs(&arguments)),
        b"lru" => checked(lru(&arguments)),
        b"extstore" => checked(extstore(&arguments)),
        b"lru_crawler" => match dump(&arguments) {
            Some(dump) => admin(frame, Admin::Dump(dump)),
            None => checked(lru_crawler(&arguments)),
        },
        // A memcached built with TLS replies this while TLS is off, regardless of the arguments.
        b"refresh_certs" => refuse(reply::TLS_NOT_ENABLED, frame.consumed),
        _ if arguments.len > 0 && last_token(frame.line).starts_with(b"HTTP/") => {
            // An HTTP request: someone tricked a browser into connecting to this port.
            Parse::Refused { reply: "", consumed: frame.consumed, then: Then::Close }
        }
        _ => refused(reply::ERROR),
    }
}

fn admin<'a>(frame: Frame<'a>, admin: Admin<'a>) -> Parsed<'a> {
    request(frame, Request::Admin(admin))
}

fn flush_all<'a>(frame: Frame<'a>, arguments: &Arguments<'a>, noreply: bool) -> Parsed<'a> {
    if arguments.len == usize::from(noreply) {
        return admin(frame, Admin::FlushAll { exptime: 0, noreply });
    }
    match parse_i32(arguments.get(0)) {
        Some(exptime) => admin(frame, Admin::FlushAll { exptime, noreply }),
        None if noreply => refuse("", frame.consumed),
        None => refuse(reply::INVALID_EXPTIME, frame.consumed),
    }
}

fn dump<'a>(arguments: &Arguments<'a>) -> Option<Dump<'a>> {
    if arguments.len != 2 {
        return None;
    }
    let format = if arguments.begins(b"metadump") {
        DumpFormat::Metadump
    } else if arguments.begins(b"mgdump") {
        DumpFormat::Mgdump
    } else {
        return None;
    };
    Some(Dump { format, classes: arguments.get(1) })
}

/// Parses the `store` commands. The name of a device may contain spaces.
fn store(line: &[u8]) -> Option<Admin<'_>> {
    let rest = line.strip_prefix(b"store ")?;
    if let Some(rest) = rest.strip_prefix(b"grow ") {
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (bytes, name) = rest.split_at(end);
        let bytes = parse_u64(bytes)?;
        return Some(Admin::Grow(Grow { bytes, name: name.strip_prefix(b" ").unwrap_or(name) }));
    }
    let (name, drain) = match rest.strip_prefix(b"drain ") {
        Some(name) => (name, true),
        None => (rest.strip_prefix(b"keep ")?, false),
    };
    (!name.is_empty()).then_some(Admin::Device(Device { name, drain }))
}

/// Returns `Err(reply)` unless `condition` holds.
fn require(condition: bool, reply: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(reply) }
}

fn is_number(token: &[u8]) -> bool {
    parse_f64(token).is_some()
}

fn parse_f64(token: &[u8]) -> Option<f64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

fn slabs(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    if arguments.len == 3 && arguments.begins(b"reassign") {
        reassign(arguments)
    } else if arguments.len >= 2 && arguments.begins(b"automove") {
        automove(arguments)
    } else {
        Err(reply::ERROR)
    }
}

/// Checks `slabs reassign`, and returns an error reply in every case. Larder has no slab pages, so
/// a correct request gets the reply that the class has no page to spare.
fn reassign(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    let (Some(from), Some(to)) = (parse_i32(arguments.get(1)), parse_i32(arguments.get(2))) else {
        return Err(reply::BAD_FORMAT);
    };
    let exists = |class| (0..=SLAB_CLASS_MAX).contains(&class);
    Err(match (from == to, exists(from) && exists(to)) {
        (true, _) => reply::REASSIGN_SAME,
        (false, true) => reply::REASSIGN_NOSPARE,
        (false, false) => reply::REASSIGN_BADCLASS,
    })
}

fn automove(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    let (what, value) = (arguments.get(1), arguments.get(2));
    if abbreviates(what, b"ratio") || abbreviates(what, b"freeratio") {
        require(is_number(value), reply::ERROR)
    } else if abbreviates(what, b"window") {
        let window = parse_u32(value).ok_or(reply::BAD_FORMAT)?;
        require((3..=1800).contains(&window), reply::AUTOMOVE_WINDOW)
    } else {
        let level = parse_u32(what).ok_or(reply::BAD_FORMAT)?;
        require(level <= 2, reply::ERROR)
    }
}

fn lru(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    let value = arguments.get(1);
    if arguments.len >= 5 && arguments.begins(b"tune") {
        let (Some(hot), Some(warm), Some(hot_factor), Some(warm_factor)) = (
            parse_u32(value),
            parse_u32(arguments.get(2)),
            parse_f64(arguments.get(3)),
            parse_f64(arguments.get(4)),
        ) else {
            return Err(reply::ERROR);
        };
        require(u64::from(hot) + u64::from(warm) <= 80, reply::LRU_PERCENTAGES)?;
        require(hot_factor > 0.0 && warm_factor > 0.0, reply::LRU_FACTORS)
    } else if arguments.len >= 2 && arguments.begins(b"mode") {
        let known = abbreviates(value, b"flat") || abbreviates(value, b"segmented");
        require(known, reply::ERROR)
    } else if arguments.len >= 2 && arguments.begins(b"temp_ttl") {
        require(parse_i32(value).is_some(), reply::ERROR)
    } else {
        Err(reply::ERROR)
    }
}

fn lru_crawler(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    let value = arguments.get(1);
    match arguments.len {
        1 => require(arguments.begins(b"enable") || arguments.begins(b"disable"), reply::ERROR),
        2 if arguments.begins(b"crawl") => require(are_classes(value), reply::BAD_CLASS),
        2 if arguments.begins(b"tocrawl") => require(parse_u32(value).is_some(), reply::BAD_FORMAT),
        2 if arguments.begins(b"sleep") => {
            let microseconds = parse_u32(value).ok_or(reply::BAD_FORMAT)?;
            require(microseconds <= 1_000_000, reply::CRAWLER_SLEEP)
        }
        _ => Err(reply::ERROR),
    }
}

/// Returns true if `classes` is an argument that memcached's crawler accepts: `all`, `hash`, or
/// numbers of slab classes, from 1 to 62, separated by commas.
pub(super) fn are_classes(classes: &[u8]) -> bool {
    classes == b"all"
        || classes == b"hash"
        || classes
            .split(|&byte| byte == b',')
            .all(|class| parse_u64(class).is_some_and(|class| (1..63).contains(&class)))
}

impl Dump<'_> {
    /// Returns true if memcached would accept the argument `classes`.
    pub fn has_valid_classes(&self) -> bool {
        are_classes(self.classes)
    }

    /// Returns true if the dump lists the items of `class`.
    pub fn includes(&self, class: u32) -> bool {
        matches!(self.classes, b"all" | b"hash")
            || self.classes.split(|&byte| byte == b',').any(|one| parse_u32(one) == Some(class))
    }
}

/// The settings of extstore. As in memcached, an abbreviation stands for the first setting in this
/// order that begins with it.
const EXTSTORE: [&[u8]; 9] = [
    b"item_size",
    b"item_age",
    b"low_ttl",
    b"recache_rate",
    b"compact_under",
    b"drop_under",
    b"max_sleep",
    MAX_FRAG,
    b"drop_unread",
];
/// The only setting of extstore whose value need not be an integer.
const MAX_FRAG: &[u8] = b"max_frag";

fn extstore(arguments: &Arguments<'_>) -> Result<(), &'static str> {
    let value = arguments.get(1);
    let is_u32 = |token| parse_u32(token).is_some();
    let valid = if arguments.len >= 3 && arguments.begins(b"free_memchunks") {
        parse_u32(value).is_some_and(|class| class < 64) && is_u32(arguments.get(2))
    } else {
        match EXTSTORE.into_iter().find(|name| arguments.begins(name)) {
            _ if arguments.len < 2 => false,
            Some(MAX_FRAG) => is_number(value),
            setting => setting.is_some() && is_u32(value),
        }
    };
    require(valid, reply::ERROR)
}
