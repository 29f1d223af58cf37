//! The `stats` command. The groups `reset`, `detail` and `cachedump` are implemented here. The
//! server provides all other groups through [`Hooks::stats`](super::Hooks::stats).

use super::{Dump, Executed, Execution};
use crate::net::OutputBuffer;
use larder_protocol::reply;
use larder_protocol::scan::{Tokens, abbreviates, parse_u32};
use std::fmt::{self, Write};

/// Number of slab classes in memcached. They are numbered from 0, so `cachedump` refuses this
/// number and all greater numbers.
const SLAB_CLASSES: u32 = 64;

/// Lets [`write!`] append to the output. Writing never fails.
struct Formatter<'b, 'o>(&'b mut OutputBuffer<'o>);

impl Write for Formatter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.as_bytes());
        Ok(())
    }
}

/// The groups of statistics whose names clients may abbreviate, as in memcached. If an abbreviation
/// fits several groups, the first of them is used. All other groups need their full name.
const ABBREVIATED: [&[u8]; 6] =
    [b"reset", b"detail", b"settings", b"cachedump", b"conns", b"extstore"];

/// Executes `stats arguments`.
pub(super) fn execute(x: &mut Execution<'_, '_>, arguments: &[u8]) -> Executed {
    let mut tokens = Tokens::new(arguments);
    let group = tokens.next().unwrap_or(b"");
    let group = ABBREVIATED.into_iter().find(|name| abbreviates(group, name)).unwrap_or(group);
    match group {
        b"reset" => {
            x.context.reset_stats();
            x.output.extend(reply::RESET.as_bytes());
        }
        b"detail" => return detail(x, tokens.next().unwrap_or(b"")),
        b"cachedump" => return cachedump(x, tokens),
        _ => {
            let mut out = Formatter(x.output);
            let known = x.context.hooks().stats(group, &mut |name, value| {
                let _ = write!(out, "STAT {name} {value}\r\n");
            });
            x.output.extend(if known { reply::END } else { reply::ERROR }.as_bytes());
            // Statistics cost as much as hundreds of gets. Marking the output as full makes the
            // connection yield to other connections before its next request.
            x.output.count_against_limit(x.output.limit());
        }
    }
    Executed::Done
}

fn detail(x: &mut Execution<'_, '_>, argument: &[u8]) -> Executed {
    let (on, off) = (abbreviates(argument, b"on"), abbreviates(argument, b"off"));
    let line = if !x.context.switches().dump {
        reply::DETAIL_NOT_ALLOWED
    } else if on || off {
        x.context.prefixes.enable(on);
        reply::OK
    } else if abbreviates(argument, b"dump") {
        return Executed::Dump(Box::new(Dump::prefixes()));
    } else {
        reply::DETAIL_USAGE
    };
    x.say(line)
}

fn cachedump(x: &mut Execution<'_, '_>, mut tokens: Tokens<'_>) -> Executed {
    let refusal = if !x.context.switches().dump {
        reply::CACHEDUMP_NOT_ALLOWED
    } else {
        match (tokens.next(), tokens.next()) {
            (Some(class), Some(items)) => match (parse_u32(class), parse_u32(items)) {
                (Some(class), Some(items)) if class < SLAB_CLASSES => {
                    match Dump::cachedump(x, class, items) {
                        Some(dump) => return Executed::Dump(Box::new(dump)),
                        None => reply::CRAWLER_BUSY,
                    }
                }
                (Some(_), Some(_)) => reply::ILLEGAL_SLAB,
                _ => reply::BAD_FORMAT,
            },
            _ => reply::BAD_LINE,
        }
    };
    x.output.extend(refusal.as_bytes());
    Executed::Done
}
