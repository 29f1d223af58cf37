//! Dumps of all items (metadump, mgdump and stats cachedump), and of the counters of stats detail.
//! A dump sends its next part only after its client has read the earlier parts. So the output of a
//! dump never takes much more memory than the output's limit, and the worker serves other
//! connections between the parts. An item that is written or moved during the dump may be present
//! twice. An item that is created or deleted meanwhile may be absent.

use super::context::DumpPlace;
use super::refusal::refusal_line;
use super::{Execution, Sent, ServerContext, Unready};
use crate::net::OutputBuffer;
use larder_engine::Listed;
use larder_protocol::text::DumpFormat;
use larder_protocol::{base64, reply};
use std::sync::{Arc, PoisonError};

/// The slab class that all items appear in. Larder has no slab classes, but tools ask for one.
pub(super) const SHOWN_CLASS: u32 = 1;

/// The largest number of scan steps per call of [`Dump::send`]. After these steps, the worker
/// serves other connections before the dump continues.
const CALLS: usize = 4;

/// The largest size of a cachedump, in bytes, as in memcached.
const CACHEDUMP_MAX: usize = 2 << 20;

/// A dump that is being sent.
#[derive(Debug)]
pub(crate) struct Dump {
    format: Format,
    /// The dump's place among the running dumps, with the cursor of its scan; `None` for a dump
    /// that scans no items.
    place: Option<Arc<DumpPlace>>,
}

#[derive(Debug)]
enum Format {
    Metadump,
    Mgdump,
    Cachedump {
        items: usize,
        bytes: usize,
    },
    /// The counters of `stats detail`. Holds the last prefix that was sent.
    Prefixes(Option<Box<[u8]>>),
    /// Every item was sent, or the dump has no items. Holds the last line of the reply, which is
    /// still to be sent.
    Empty(&'static str),
}

impl Dump {
    /// Creates a metadump or mgdump, or returns `None` if too many dumps are running. `all` is true
    /// if the client requested the class [`SHOWN_CLASS`], in which all items are shown. If `all` is
    /// false, the dump is empty.
    pub(super) fn new(x: &Execution<'_, '_>, format: DumpFormat, all: bool) -> Option<Self> {
        let format = match format {
            DumpFormat::Metadump if all => Format::Metadump,
            DumpFormat::Mgdump if all => Format::Mgdump,
            DumpFormat::Metadump => Format::Empty(reply::END),
            DumpFormat::Mgdump => Format::Empty(reply::META_MISS),
        };
        Dump::of(x, format)
    }

    /// Creates a cachedump of at most `items` items, or returns `None` if too many dumps are
    /// running. If `items` is 0, only [`CACHEDUMP_MAX`] limits the dump.
    pub(super) fn cachedump(x: &Execution<'_, '_>, class: u32, items: u32) -> Option<Self> {
        let format = if class != SHOWN_CLASS {
            Format::Empty(reply::END)
        } else {
            let items = if items == 0 { usize::MAX } else { items as usize };
            Format::Cachedump { items, bytes: CACHEDUMP_MAX }
        };
        Dump::of(x, format)
    }

    /// Creates a dump of the counters of `stats detail`.
    pub(super) fn prefixes() -> Self {
        Dump { format: Format::Prefixes(None), place: None }
    }

    fn of(x: &Execution<'_, '_>, format: Format) -> Option<Self> {
        let place = match format {
            Format::Empty(_) => None,
            _ => Some(x.context.begin_dump(x.session.now())?),
        };
        Some(Dump { format, place })
    }

    /// Sends more of the dump. Like any reply, a part that shows items waits until these items are
    /// durable. If the engine refuses the scan, an error replaces the last line. Returns
    /// [`Sent::Gone`] if a new dump has taken the place of this one, because this dump was stalled.
    pub(crate) fn send(&mut self, x: &mut Execution<'_, '_>) -> Sent {
        for _ in 0..CALLS {
            if x.output.is_full() {
                break;
            }
            match (&mut self.format, &self.place) {
                (Format::Empty(end), _) => {
                    x.output.extend(end.as_bytes());
                    return Sent::All;
                }
                (Format::Prefixes(last), _) => {
                    let (prefixes, output) = (&x.context.prefixes, &mut *x.output);
                    *last = prefixes.dump_behind(last.as_deref(), |line| {
                        output.extend(line);
                        !output.is_full()
                    });
                    if last.is_none() {
                        self.format = Format::Empty(reply::END);
                    }
                }
                (format, Some(place)) => {
                    if let Some(sent) = walk(place, format, x) {
                        return sent;
                    }
                }
                (_, None) => return Sent::Gone,
            }
        }
        Sent::Part
    }
}

/// Sends the items of one step of the scan. Returns a value if [`Dump::send`] must return that
/// value now, and `None` if it may take another step.
fn walk(place: &DumpPlace, format: &mut Format, x: &mut Execution<'_, '_>) -> Option<Sent> {
    place.note(x.session.now(), 0);
    let mut cursor = place.cursor.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cursor) = &mut *cursor else { return Some(Sent::Gone) };
    let before = x.output.len();
    let visited = x.session.scan(cursor, &mut |item| format.put(&item, x.context, x.output));
    place.note(x.session.now(), x.output.len() - before);
    let done = match x.settle(visited) {
        Ok(more) => !more || matches!(format, Format::Cachedump { items: 0, .. }),
        Err(Unready::Again) => return Some(Sent::Wait),
        Err(Unready::Refused(refusal)) => {
            x.output.extend(refusal_line(refusal, false).as_bytes());
            return Some(Sent::All);
        }
    };
    if done {
        *format = Format::Empty(format.end());
    }
    None
}

impl Format {
    fn end(&self) -> &'static str {
        match self {
            Format::Mgdump => reply::META_MISS,
            Format::Metadump | Format::Cachedump { .. } | Format::Prefixes(_) => reply::END,
            Format::Empty(end) => end,
        }
    }

    fn put(&mut self, item: &Listed<'_>, context: &ServerContext, output: &mut OutputBuffer<'_>) {
        match self {
            Format::Metadump => metadump_line(item, context, output),
            Format::Mgdump => mgdump_line(item.key(), output),
            Format::Cachedump { items, bytes } => {
                if *items == 0 || !is_text(item.key()) {
                    return;
                }
                let before = output.len();
                cachedump_line(item, context, output);
                let len = output.len() - before;
                if len > *bytes {
                    output.truncate(before);
                    *items = 0;
                } else {
                    *bytes -= len;
                    *items -= 1;
                }
            }
            Format::Prefixes(_) | Format::Empty(_) => {}
        }
    }
}

fn number(output: &mut OutputBuffer<'_>, number: u64) {
    let len = reply::write_u64(output.room(reply::NUMBER_LEN_MAX), number);
    output.advance(len);
}

fn metadump_line(item: &Listed<'_>, context: &ServerContext, output: &mut OutputBuffer<'_>) {
    output.extend(b"key=");
    for &byte in item.key() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => output.push(byte),
            _ if byte.is_ascii_alphanumeric() => output.push(byte),
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                output.extend(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    }
    output.extend(b" exp=");
    match item.expiry().seconds() {
        None => output.extend(b"-1"),
        Some(seconds) => number(output, context.wall(seconds)),
    }
    output.extend(b" la=");
    number(output, context.wall(item.last_access()));
    output.extend(b" cas=");
    number(output, item.cas());
    let fetched: &[u8] = if item.hit_before() { b" fetch=yes cls=" } else { b" fetch=no cls=" };
    output.extend(fetched);
    number(output, SHOWN_CLASS.into());
    output.extend(b" size=");
    number(output, item.record_size() as u64);
    output.extend(b" flags=");
    number(output, item.flags().into());
    // memcached ends these lines with a space and without a carriage return.
    output.extend(b" \n");
}

fn mgdump_line(key: &[u8], output: &mut OutputBuffer<'_>) {
    output.extend(b"mg ");
    if is_text(key) {
        output.extend(key);
        output.extend(b"\r\n");
    } else {
        let room = output.room(base64::encoded_len(key.len()));
        let len = base64::encode(key, room);
        output.advance(len);
        output.extend(b" b\r\n");
    }
}

fn cachedump_line(item: &Listed<'_>, context: &ServerContext, output: &mut OutputBuffer<'_>) {
    output.extend(b"ITEM ");
    output.extend(item.key());
    output.extend(b" [");
    number(output, item.value_len() as u64);
    output.extend(b" b; ");
    number(output, item.expiry().seconds().map_or(0, |seconds| context.wall(seconds)));
    output.extend(b" s]\r\n");
}

/// Returns true if a key can be part of a text line without being encoded.
fn is_text(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}
