//! The journals of client processes, one line per event. Each call of [`Journal::note`] writes its
//! events to the file with one system call. So the parent process sees everything that was sent and
//! answered before a client process ended, however it ended.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::operation::{Key, Operation, Store};
use crate::reply::{Reply, Seen};
use crate::value::{Chunk, Content, Print};

/// One event. Times are microseconds of [`crate::clock::now`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request is about to be sent. The requests of each connection are numbered from 0.
    Sent { number: u64, time: u64, key: Key, operation: Operation },
    /// The answer has arrived.
    Answered { number: u64, time: u64, reply: Reply },
    /// A reader has read a key.
    Read { key: Key, asked: u64, answered: u64, seen: Option<Seen> },
    /// The connection ended. `fault` is `None` if it ended as connections to a killed server do.
    Ended { time: u64, fault: Option<String> },
}

/// Writes a journal. The threads of a connection share it.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
}

impl Journal {
    pub(crate) fn create(path: &Path) -> io::Result<Journal> {
        Ok(Journal { file: Mutex::new(File::create(path)?) })
    }

    /// Appends events in this order, with one write.
    pub(crate) fn note(&self, events: &[Event]) -> io::Result<()> {
        let lines: String = events.iter().map(|event| line(event) + "\n").collect();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(lines.as_bytes())
    }
}

/// Reads a journal. Ignores an incomplete last line, which a process leaves if it ends during a
/// write.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            parse(line).ok_or_else(|| {
                let text = format!("{}: cannot read {line:?}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })
        })
        .collect()
}

fn line(event: &Event) -> String {
    match event {
        Event::Sent { number, time, key, operation } => {
            format!("S {number} {time} {} {} {}", key.writer, key.index, operation_text(operation))
        }
        Event::Answered { number, time, reply } => {
            format!("A {number} {time} {}", reply_text(reply))
        }
        Event::Read { key, asked, answered, seen } => {
            let seen = seen.as_ref().map_or("-".into(), seen_text);
            format!("R {} {} {asked} {answered} {seen}", key.writer, key.index)
        }
        Event::Ended { time, fault } => format!("E {time} {}", fault.as_deref().unwrap_or("")),
    }
}

fn operation_text(operation: &Operation) -> String {
    match operation {
        Operation::Get => "get".into(),
        Operation::Delete { meta } => format!("delete {}", u8::from(*meta)),
        Operation::Touch { expires, get } => format!("touch {expires} {}", u8::from(*get)),
        Operation::Count { by, initial } => format!("count {by} {}", optional(*initial)),
        Operation::Store { how, content, flags, expires, quiet, meta } => {
            let (how, cas) = match how {
                Store::Set => ("set", 0),
                Store::Add => ("add", 0),
                Store::Replace => ("replace", 0),
                Store::Append => ("append", 0),
                Store::Cas(cas) => ("cas", *cas),
            };
            let (quiet, meta) = (u8::from(*quiet), u8::from(*meta));
            let content = match content {
                Content::Number(number) => format!("n {number}"),
                Content::Chunks(chunks) => chunks
                    .iter()
                    .map(|chunk| format!("{} {}", chunk.seed, chunk.length))
                    .collect::<Vec<_>>()
                    .join(" "),
            };
            format!("{how} {cas} {flags} {expires} {quiet} {meta} {content}")
        }
    }
}

fn reply_text(reply: &Reply) -> String {
    match reply {
        Reply::Stored(cas) => format!("stored {}", optional(*cas)),
        Reply::NotStored => "notstored".into(),
        Reply::Exists => "exists".into(),
        Reply::NotFound => "notfound".into(),
        Reply::Number(number, cas) => format!("number {number} {}", optional(*cas)),
        Reply::Deleted => "deleted".into(),
        Reply::Touched => "touched".into(),
        Reply::Item(seen) => format!("item {}", seen_text(seen)),
        Reply::Miss => "miss".into(),
        Reply::Failed(reason) => format!("failed {reason}"),
    }
}

fn seen_text(seen: &Seen) -> String {
    let Print { length, hash, number } = seen.print;
    let (number, ttl) = (optional(number), optional(seen.ttl));
    format!("{length} {hash} {number} {} {ttl} {}", seen.flags, seen.cas)
}

fn optional(number: Option<u64>) -> String {
    number.map_or("-".into(), |number| number.to_string())
}

/// Reads the words of a line one by one.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn optional(&mut self) -> Option<Option<u64>> {
        match self.word()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn truth(&mut self) -> Option<bool> {
        Some(self.word()? == "1")
    }

    fn key(&mut self) -> Option<Key> {
        Some(Key { writer: self.number()?, index: self.number()? })
    }

    fn seen(&mut self) -> Option<Seen> {
        let print =
            Print { length: self.number()?, hash: self.number()?, number: self.optional()? };
        Some(Seen { print, flags: self.number()?, ttl: self.optional()?, cas: self.number()? })
    }

    fn operation(&mut self) -> Option<Operation> {
        Some(match self.word()? {
            "get" => Operation::Get,
            "delete" => Operation::Delete { meta: self.truth()? },
            "touch" => Operation::Touch { expires: self.number()?, get: self.truth()? },
            "count" => Operation::Count { by: self.number()?, initial: self.optional()? },
            verb => {
                let cas = self.number()?;
                let how = match verb {
                    "set" => Store::Set,
                    "add" => Store::Add,
                    "replace" => Store::Replace,
                    "append" => Store::Append,
                    "cas" => Store::Cas(cas),
                    _ => return None,
                };
                let (flags, expires) = (self.number()?, self.number()?);
                let (quiet, meta) = (self.truth()?, self.truth()?);
                Operation::Store { how, content: self.content()?, flags, expires, quiet, meta }
            }
        })
    }

    fn content(&mut self) -> Option<Content> {
        if let Some(number) = self.0.strip_prefix("n ") {
            return Some(Content::Number(number.parse().ok()?));
        }
        let mut chunks = Vec::new();
        while let Some(seed) = self.word() {
            chunks.push(Chunk { seed: seed.parse().ok()?, length: self.number()? });
        }
        Some(Content::Chunks(chunks))
    }

    fn reply(&mut self) -> Option<Reply> {
        Some(match self.word()? {
            "stored" => Reply::Stored(self.optional()?),
            "notstored" => Reply::NotStored,
            "exists" => Reply::Exists,
            "notfound" => Reply::NotFound,
            "number" => Reply::Number(self.number()?, self.optional()?),
            "deleted" => Reply::Deleted,
            "touched" => Reply::Touched,
            "item" => Reply::Item(self.seen()?),
            "miss" => Reply::Miss,
            "failed" => Reply::Failed(self.0.to_owned()),
            _ => return None,
        })
    }
}

fn parse(line: &str) -> Option<Event> {
    let mut words = Words(line);
    Some(match words.word()? {
        "S" => Event::Sent {
            number: words.number()?,
            time: words.number()?,
            key: words.key()?,
            operation: words.operation()?,
        },
        "A" => Event::Answered {
            number: words.number()?,
            time: words.number()?,
            reply: words.reply()?,
        },
        "R" => {
            let key = words.key()?;
            let (asked, answered) = (words.number()?, words.number()?);
            let seen = if words.0 == "-" { None } else { Some(words.seen()?) };
            Event::Read { key, asked, answered, seen }
        }
        "E" => {
            let time = words.number()?;
            Event::Ended { time, fault: (!words.0.is_empty()).then(|| words.0.to_owned()) }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{chunk, store};

    #[test]
    fn what_was_noted_is_read_again() {
        let seen = Seen { print: Print::of(b"12"), flags: 3, ttl: Some(4), cas: 5 };
        let operations = [
            Operation::Get,
            Operation::Delete { meta: true },
            Operation::Touch { expires: 9, get: true },
            Operation::Count { by: 3, initial: Some(1) },
            Operation::Count { by: 3, initial: None },
            store(Store::Cas(7), chunk(1, 2)),
            store(Store::Append, Content::Number(8)),
        ];
        let replies = [
            Reply::Stored(Some(4)),
            Reply::NotStored,
            Reply::Exists,
            Reply::NotFound,
            Reply::Number(7, None),
            Reply::Deleted,
            Reply::Touched,
            Reply::Item(seen),
            Reply::Item(Seen { print: Print::of(b"ab"), ttl: None, ..seen }),
            Reply::Miss,
            Reply::Failed("out of memory storing object".into()),
        ];
        let key = Key { writer: 1, index: 2 };
        let mut events = vec![
            Event::Read { key, asked: 1, answered: 2, seen: None },
            Event::Read { key, asked: 1, answered: 2, seen: Some(seen) },
            Event::Ended { time: 3, fault: None },
            Event::Ended { time: 3, fault: Some("half an answer".into()) },
        ];
        let sent = |operation| Event::Sent { number: 1, time: 2, key, operation };
        events.extend(operations.into_iter().map(sent));
        events.extend(replies.map(|reply| Event::Answered { number: 1, time: 2, reply }));
        let path = std::env::temp_dir().join(format!("larder-journal-{}", std::process::id()));
        Journal::create(&path).unwrap().note(&events).unwrap();
        assert_eq!(read(&path).unwrap(), events);
        // Cuts off the end of the last line.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        assert_eq!(read(&path).unwrap(), events[..events.len() - 1]);
        std::fs::remove_file(&path).unwrap();
    }
}
