//! The requests of clients, encoded for memcached's text and meta protocols.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::value::Content;

/// A key, named by the writer that owns it and its number among that writer's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) writer: u16,
    pub(crate) index: u16,
}

impl Key {
    /// Returns the key's name in the protocol. Every seventh name has the maximum length.
    pub(crate) fn name(self) -> String {
        let name = format!("w{:03}k{:04}", self.writer, self.index);
        if self.index % 7 == 6 { format!("{name:-<250}") } else { name }
    }

    /// Returns true for counters. Counters only count up, so that readers notice a lost step.
    pub(crate) fn is_counter(self) -> bool {
        self.index.is_multiple_of(4)
    }
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Store {
    Set,
    Add,
    Replace,
    Append,
    /// Stores only if the item's cas id is this one.
    Cas(u64),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    Store {
        how: Store,
        content: Content,
        flags: u32,
        /// Unix seconds at which the item expires; 0 is never.
        expires: u64,
        quiet: bool,
        /// Uses a meta command, whose answer contains the cas id.
        meta: bool,
    },
    Count {
        by: u64,
        /// The value with which a missing counter is created; `None` if it is not created.
        initial: Option<u64>,
    },
    Delete {
        meta: bool,
    },
    Touch {
        expires: u64,
        /// Also requests the item.
        get: bool,
    },
    Get,
}

impl Operation {
    /// Returns true if the server sends no answer.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Operation::Store { quiet: true, .. })
    }

    /// Appends the bytes of the request for `key`.
    pub(crate) fn encode(&self, key: &str, into: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        let mut line = |text: std::fmt::Arguments<'_>| drop(into.write_fmt(text));
        match self {
            Operation::Get => line(format_args!("mg {key} v f t c\r\n")),
            Operation::Delete { meta: true } => line(format_args!("md {key}\r\n")),
            Operation::Delete { meta: false } => line(format_args!("delete {key}\r\n")),
            Operation::Touch { expires, get: false } => {
                line(format_args!("touch {key} {expires}\r\n"));
            }
            Operation::Touch { expires, get: true } => {
                line(format_args!("mg {key} v f t c T{expires}\r\n"));
            }
            Operation::Count { by, initial: None } => line(format_args!("incr {key} {by}\r\n")),
            // If `by` is even, the request takes units of a limiter with the largest possible
            // limit. It creates the limiter, or turns the key's counter into one. Such a limiter
            // refuses nothing, and its value is the number of used units. So the model can treat it
            // as a counter. Later requests for the key count in the limiter.
            Operation::Count { by, initial: Some(initial) } if by == initial && by % 2 == 0 => {
                line(format_args!("ma {key} B{} D{by} v c\r\n", u64::MAX));
            }
            Operation::Count { by, initial: Some(initial) } => {
                line(format_args!("ma {key} N0 J{initial} D{by} v c\r\n"));
            }
            Operation::Store { how, content, flags, expires, quiet, meta } => {
                let bytes = content.bytes();
                let (length, quiet) = (bytes.len(), if *quiet { " noreply" } else { "" });
                let (verb, mode) = match how {
                    Store::Set => ("set", "S"),
                    Store::Add => ("add", "E"),
                    Store::Replace => ("replace", "R"),
                    Store::Append => ("append", "A"),
                    Store::Cas(_) => ("cas", "S"),
                };
                let cas = match how {
                    Store::Cas(cas) if *meta => format!(" C{cas}"),
                    Store::Cas(cas) => format!(" {cas}"),
                    _ => String::new(),
                };
                if *meta {
                    line(format_args!("ms {key} {length} c F{flags} T{expires} M{mode}{cas}\r\n"));
                } else {
                    let head = format_args!("{verb} {key} {flags} {expires} {length}");
                    line(format_args!("{head}{cas}{quiet}\r\n"));
                }
                into.extend_from_slice(&bytes);
                into.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Describes the request in a few words, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Operation::Store { how, content, expires, quiet, .. } => {
                let what = match content {
                    Content::Number(number) => format!("number {number}"),
                    Content::Chunks(chunks) => {
                        let length: u32 = chunks.iter().map(|chunk| chunk.length).sum();
                        format!("{length} bytes")
                    }
                };
                let end = if *expires == 0 { String::new() } else { format!(" until {expires}") };
                format!("{how:?} {what}{end}{}", if *quiet { " noreply" } else { "" })
            }
            other => format!("{other:?}"),
        }
    }
}

/// Returns a store operation without expiry and flags.
#[cfg(test)]
pub(crate) fn store(how: Store, content: Content) -> Operation {
    Operation::Store { how, content, flags: 0, expires: 0, quiet: false, meta: false }
}

/// Returns a value of one chunk.
#[cfg(test)]
pub(crate) fn chunk(seed: u64, length: u32) -> Content {
    Content::Chunks(vec![crate::value::Chunk { seed, length }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(operation: Operation) -> String {
        let mut bytes = Vec::new();
        operation.encode("k", &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn requests_have_the_format_of_memcached() {
        let number = Content::Number(12);
        assert_eq!(encoded(store(Store::Set, number.clone())), "set k 0 0 2\r\n12\r\n");
        let mut cas = store(Store::Cas(9), number.clone());
        assert_eq!(encoded(cas.clone()), "cas k 0 0 2 9\r\n12\r\n");
        if let Operation::Store { meta, flags, expires, .. } = &mut cas {
            (*meta, *flags, *expires) = (true, 3, 77);
        }
        assert_eq!(encoded(cas), "ms k 2 c F3 T77 MS C9\r\n12\r\n");
        let mut quiet = store(Store::Add, number);
        if let Operation::Store { quiet, .. } = &mut quiet {
            *quiet = true;
        }
        assert!(quiet.is_quiet());
        assert_eq!(encoded(quiet), "add k 0 0 2 noreply\r\n12\r\n");
        assert_eq!(encoded(Operation::Count { by: 2, initial: None }), "incr k 2\r\n");
        let create = |by| encoded(Operation::Count { by, initial: Some(by) });
        assert_eq!(create(3), "ma k N0 J3 D3 v c\r\n");
        assert_eq!(create(4), "ma k B18446744073709551615 D4 v c\r\n");
        assert_eq!(encoded(Operation::Touch { expires: 5, get: false }), "touch k 5\r\n");
    }

    #[test]
    fn names_are_distinct_and_at_most_as_long_as_allowed() {
        let names: std::collections::HashSet<String> = (0..100)
            .flat_map(|writer| (0..100).map(move |index| Key { writer, index }.name()))
            .collect();
        assert_eq!(names.len(), 10_000);
        assert!(names.iter().all(|name| name.len() <= 250));
        assert!(names.iter().any(|name| name.len() == 250));
    }
}
