//! The journals of client processes, one line of JSON per event. Each call of [`Journal::note`]
//! writes its events to the file with one system call. So however a client process ends, its
//! journal holds everything that it sent and received before its end.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::operation::{Key, Operation};
use crate::reply::{Reply, Seen};

/// One event. Times are microseconds of [`crate::clock::now`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A request is about to be sent. The requests of each connection are numbered from 0.
    Sent { number: u64, time: u64, key: Key, operation: Operation },
    /// The answer has arrived.
    Answered { number: u64, time: u64, reply: Reply },
    /// A reader has read a key.
    Read { key: Key, asked: u64, answered: u64, seen: Option<Seen> },
    /// The connection ended. `fault` is `None` if its work was done, or if it ended in a way that
    /// the death of the server explains.
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

    /// Appends `events` in the given order, with one write.
    pub(crate) fn note(&self, events: &[Event]) -> io::Result<()> {
        let mut lines = Vec::new();
        for event in events {
            serde_json::to_writer(&mut lines, event)?;
            lines.push(b'\n');
        }
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&lines)
    }
}

/// Reads a journal. Ignores an incomplete last line, which a process leaves if it ends during a
/// write.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        serde_json::from_str(line).map_err(|error| {
            let text = format!("{}: cannot read {line:?}: {error}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    };
    whole.lines().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Store, chunk, store};
    use crate::value::{Content, Print};

    #[test]
    fn noted_events_are_read_back() {
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
