//! Replays a trace against a server: gets each key, and sets the keys that were missed. All
//! requests go over one connection, so the server sees the order of the trace, and a run can be
//! repeated. The gets of a batch are sent together, and then the sets of its misses. No key is
//! twice in a batch, so a get comes after the set that an earlier miss of its key caused.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_client::{Address, Client, Options, Reply};
use serde::Serialize;

use crate::trace::{Access, Trace};
use crate::wire::{Answer, Caller, Wire};
use crate::workload::keys::push_number;
use crate::workload::values::Values;
use crate::workload::{Lengths, Verb};
use crate::{Error, Result};

/// The options of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    /// The largest number of keys per batch.
    pub(crate) batch: usize,
    /// Requests per second; with `None`, as many as the server answers. Times to live run in real
    /// time, so a trace that has them gives comparable results only at equal rates.
    pub(crate) rate: Option<f64>,
    /// Values get the sizes in the trace, divided by this.
    pub(crate) shrink: usize,
    /// The largest size of a value in bytes, after the division. Larger sizes are reduced to this.
    pub(crate) size_max: usize,
    /// Number of requests at the beginning of the trace that do not count for the miss ratio.
    pub(crate) skip: u64,
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ReplayOutcome {
    /// Requests in the whole trace.
    pub(crate) requests: u64,
    /// Requests after the first `skip`.
    pub(crate) counted: u64,
    /// Misses among the counted requests.
    pub(crate) misses: u64,
    /// Sets that the server refused, in the whole trace.
    pub(crate) refused: u64,
    /// Duration of the whole trace in seconds.
    pub(crate) seconds: f64,
}

impl ReplayOutcome {
    pub(crate) fn miss_ratio(&self) -> f64 {
        if self.counted == 0 { 0.0 } else { self.misses as f64 / self.counted as f64 }
    }
}

impl Replay {
    /// Replays the whole trace. The server speaks `wire`, or memcached's protocol.
    ///
    /// # Errors
    /// Returns [`Error::Void`] for a reply that no get or set has, for a value that was not asked
    /// for, and for a value with bytes that the replay does not store under its key. Also returns
    /// the errors of the trace and of the connection.
    pub(crate) fn run(
        &self,
        trace: &mut dyn Trace,
        server: &Address,
        wire: Option<Arc<dyn Wire>>,
    ) -> Result<ReplayOutcome> {
        let client = match wire {
            None => {
                Peer::Memcached(Client::connect_to(server, Options { timeout: Some(PATIENCE) })?)
            }
            Some(wire) => Peer::Other(Caller::connect(server, Arc::clone(&wire))?, wire),
        };
        let values = Values::new(Lengths { min: 0, max: self.size_max });
        let contents = Contents { values, fixed_sizes: trace.has_fixed_sizes() };
        let mut session = Session { client, contents, output: Vec::new() };
        let mut outcome = ReplayOutcome::default();
        let mut batch: Vec<Access> = Vec::new();
        let mut keys = HashSet::new();
        let started = Instant::now();
        let mut access = Access::default();
        loop {
            let more = trace.next(&mut access)?;
            // The second request for a key must see the effect of the first, so it begins a new
            // batch.
            if !more || batch.len() >= self.batch || keys.contains(&access.key) {
                session.exchange(&batch, self, &mut outcome)?;
                batch.clear();
                keys.clear();
                self.wait(started, outcome.requests);
            }
            if !more {
                break;
            }
            access.size = (access.size / self.shrink.max(1)).min(self.size_max);
            keys.insert(access.key.clone());
            batch.push(access.clone());
        }
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    fn wait(&self, started: Instant, requests: u64) {
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(requests as f64 / rate);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
}

/// A connection to the server.
enum Peer {
    Memcached(Client),
    Other(Caller, Arc<dyn Wire>),
}

/// The values that a replay stores.
struct Contents {
    values: Values,
    /// True if all requests of the trace for a key have the same size.
    fixed_sizes: bool,
}

impl Contents {
    /// Returns true if the replay may have stored `value` under the key of `access`. If sizes are
    /// not fixed, any length is right, because the replay does not remember which request has
    /// stored the value.
    fn fits(&self, access: &Access, value: &[u8]) -> bool {
        let size = if self.fixed_sizes { access.size } else { value.len() };
        let expected = self.values.expected_with(&access.key, |_| size);
        expected.length == value.len() && self.values.matches(&expected, 0, value)
    }
}

/// Describes a value that the replay did not store under the key of `access`.
fn foreign(access: &Access, value: &[u8]) -> String {
    let key = String::from_utf8_lossy(&access.key);
    let (piece, length) = (String::from_utf8_lossy(&value[..value.len().min(60)]), value.len());
    format!(
        "{length} bytes under {key:?}, which begin with {piece:?}, differ from the stored value"
    )
}

struct Session {
    client: Peer,
    contents: Contents,
    output: Vec<u8>,
}

impl Session {
    fn exchange(
        &mut self,
        batch: &[Access],
        replay: &Replay,
        outcome: &mut ReplayOutcome,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let found = self.get(batch)?;
        self.output.clear();
        let mut missed = Vec::new();
        for (index, access) in batch.iter().enumerate() {
            let counts = outcome.requests >= replay.skip;
            outcome.requests += 1;
            outcome.counted += u64::from(counts);
            if found[index] {
                continue;
            }
            outcome.misses += u64::from(counts);
            missed.push(access);
        }
        if !missed.is_empty() {
            outcome.refused += self.set(&missed)?;
        }
        Ok(())
    }

    /// Gets the keys of a batch. Returns which of them were found.
    fn get(&mut self, batch: &[Access]) -> Result<Vec<bool>> {
        self.output.clear();
        match &mut self.client {
            Peer::Memcached(client) => {
                for piece in batch.chunks(KEYS_PER_GET) {
                    self.output.extend_from_slice(b"get");
                    for access in piece {
                        self.output.push(b' ');
                        self.output.extend_from_slice(&access.key);
                    }
                    self.output.extend_from_slice(b"\r\n");
                }
                let mut answers = Answers::new(batch, &self.contents);
                let replies = batch.len().div_ceil(KEYS_PER_GET);
                round_trip(client, &self.output, replies, &mut answers)?;
                answers.finish()
            }
            Peer::Other(caller, wire) => {
                for access in batch {
                    wire.push(Verb::Get, &access.key, b"", &mut self.output);
                }
                let answers = caller.exchange(&self.output, batch.iter().map(|_| Verb::Get))?;
                let found = answers.into_iter().zip(batch).map(|(answer, access)| match answer {
                    Answer::Value(None) => Ok(false),
                    Answer::Value(Some(value)) if self.contents.fits(access, &value) => Ok(true),
                    Answer::Value(Some(value)) => Err(Error::Void(foreign(access, &value))),
                    other => Err(Error::Void(format!("{other:?} in a replay"))),
                });
                found.collect()
            }
        }
    }

    /// Sets the keys that were missed. Returns how many sets the server refused.
    fn set(&mut self, missed: &[&Access]) -> Result<u64> {
        self.output.clear();
        for access in missed {
            self.push_set(access);
        }
        match &mut self.client {
            Peer::Memcached(client) => {
                let mut answers = Answers::new(&[], &self.contents);
                round_trip(client, &self.output, missed.len(), &mut answers)?;
                let refused = answers.refused;
                answers.finish().map(|_| refused)
            }
            Peer::Other(caller, _) => {
                let answers = caller.exchange(&self.output, missed.iter().map(|_| Verb::Set))?;
                let stored = answers.iter().filter(|answer| **answer == Answer::Stored).count();
                Ok((missed.len() - stored) as u64)
            }
        }
    }

    fn push_set(&mut self, access: &Access) {
        let values = &self.contents.values;
        let expected = values.expected_with(&access.key, |_| access.size);
        if let Peer::Other(_, wire) = &self.client {
            let mut value = Vec::with_capacity(expected.length);
            values.push(&mut value, &expected);
            if access.ttl == 0
                || !wire.push_expiring(&access.key, &value, access.ttl, &mut self.output)
            {
                wire.push(Verb::Set, &access.key, &value, &mut self.output);
            }
            return;
        }
        self.output.extend_from_slice(b"set ");
        self.output.extend_from_slice(&access.key);
        self.output.extend_from_slice(b" 0 ");
        push_number(&mut self.output, u64::from(access.ttl));
        self.output.push(b' ');
        push_number(&mut self.output, expected.length as u64);
        self.output.extend_from_slice(b"\r\n");
        values.push(&mut self.output, &expected);
        self.output.extend_from_slice(b"\r\n");
    }
}

/// Sends all of `requests`, then reads `replies` replies. Batches have a bounded size, so servers
/// can usually take a whole batch before this function reads a reply. If a server stops reading
/// earlier, this function times out instead of hanging.
fn round_trip(
    client: &mut Client,
    requests: &[u8],
    replies: usize,
    answers: &mut Answers<'_>,
) -> Result<()> {
    client.send_raw(requests)?;
    while answers.replies < replies {
        let (reply, value) = client.replies().reply()?;
        answers.note(reply, value);
    }
    Ok(())
}

/// The longest time for which the replay waits for a server with memcached's protocol.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest number of keys per get. Some servers refuse long request lines.
const KEYS_PER_GET: usize = 50;

/// Collects the answers to a batch and marks the keys that were found. Servers answer in the order
/// of the request.
struct Answers<'a> {
    batch: &'a [Access],
    contents: &'a Contents,
    found: Vec<bool>,
    next: usize,
    replies: usize,
    refused: u64,
    wrong: Option<String>,
}

impl<'a> Answers<'a> {
    fn new(batch: &'a [Access], contents: &'a Contents) -> Answers<'a> {
        let found = vec![false; batch.len()];
        Answers { batch, contents, found, next: 0, replies: 0, refused: 0, wrong: None }
    }

    fn finish(self) -> Result<Vec<bool>> {
        match self.wrong {
            Some(wrong) => Err(Error::Void(wrong)),
            None => Ok(self.found),
        }
    }

    /// Takes a reply; `value` is empty unless the reply has a value.
    fn note(&mut self, reply: Reply<'_>, value: &[u8]) {
        match reply {
            Reply::Value { key, .. } => return self.value(key, value),
            Reply::End | Reply::Stored => {}
            Reply::Error(_) | Reply::NotStored => self.refused += 1,
            other => {
                self.wrong.get_or_insert_with(|| format!("{other:?} in a replay"));
            }
        }
        self.replies += 1;
    }

    /// Marks the key of a received value as found, and checks the value.
    fn value(&mut self, key: &[u8], value: &[u8]) {
        let rest = &self.batch[self.next..];
        match rest.iter().position(|access| access.key == key) {
            Some(offset) => {
                let access = &rest[offset];
                self.found[self.next + offset] = true;
                self.next += offset + 1;
                if !self.contents.fits(access, value) {
                    self.wrong.get_or_insert_with(|| foreign(access, value));
                }
            }
            None => {
                let key = String::from_utf8_lossy(key).into_owned();
                self.wrong
                    .get_or_insert_with(|| format!("a value of {key:?}, which was not asked for"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Requests, and whether the trace says that its sizes are fixed.
    struct List(std::vec::IntoIter<Access>, bool);

    impl Trace for List {
        fn next(&mut self, access: &mut Access) -> Result<bool> {
            match self.0.next() {
                Some(next) => *access = next,
                None => return Ok(false),
            }
            Ok(true)
        }

        fn has_fixed_sizes(&self) -> bool {
            self.1
        }
    }

    /// Starts a server that stores all values up to 100 bytes and refuses longer ones. It calls
    /// `spoil` with each value before it stores the value.
    fn tiny_server(spoil: fn(&mut Vec<u8>)) -> (Address, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut output = stream.try_clone().unwrap();
            let mut input = BufReader::new(stream);
            let mut items: HashMap<String, Vec<u8>> = HashMap::new();
            let mut line = String::new();
            while input.read_line(&mut line).unwrap_or(0) > 0 {
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                if words[0] == "get" {
                    for key in &words[1..] {
                        if let Some(value) = items.get(*key) {
                            write!(output, "VALUE {key} 0 {}\r\n", value.len()).unwrap();
                            output.write_all(value).unwrap();
                            output.write_all(b"\r\n").unwrap();
                        }
                    }
                    output.write_all(b"END\r\n").unwrap();
                } else {
                    let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                    input.read_exact(&mut value).unwrap();
                    value.truncate(value.len() - 2);
                    if value.len() > 100 {
                        output.write_all(b"SERVER_ERROR object too large for cache\r\n").unwrap();
                    } else {
                        spoil(&mut value);
                        items.insert(words[1].to_owned(), value);
                        output.write_all(b"STORED\r\n").unwrap();
                    }
                }
                line.clear();
            }
        });
        (address, server)
    }

    fn replay(batch: usize, skip: u64) -> ReplayOutcome {
        let keys = ["a", "b", "a", "c", "c", "big", "big", "a", "d"];
        let accesses: Vec<Access> = keys
            .iter()
            .map(|key| Access {
                key: (*key).into(),
                size: if *key == "big" { 400 } else { 40 },
                ttl: 0,
            })
            .collect();
        let (address, server) = tiny_server(|_| {});
        let replay = Replay { batch, rate: None, shrink: 2, size_max: 1000, skip };
        let mut list = List(accesses.into_iter(), true);
        let outcome = replay.run(&mut list, &address, None).unwrap();
        server.join().unwrap();
        ReplayOutcome { seconds: 0.0, ..outcome }
    }

    #[test]
    fn batches_miss_as_often_as_single_requests() {
        let expected =
            ReplayOutcome { requests: 9, counted: 9, misses: 6, refused: 2, seconds: 0.0 };
        for batch in [1, 2, 3, 64] {
            assert_eq!(replay(batch, 0), expected, "batches of {batch}");
        }
        let late = ReplayOutcome { counted: 4, misses: 3, ..expected };
        assert_eq!(replay(1, 5), late);
    }

    #[test]
    fn a_value_that_was_not_stored_voids_the_replay() {
        let run = |sizes: [usize; 2], fixed: bool, spoil: fn(&mut Vec<u8>)| {
            let accesses = sizes.map(|size| Access { key: "a".into(), size, ttl: 0 });
            let (address, server) = tiny_server(spoil);
            let replay = Replay { batch: 1, rate: None, shrink: 1, size_max: 1000, skip: 0 };
            let mut list = List(Vec::from(accesses).into_iter(), fixed);
            let outcome = replay.run(&mut list, &address, None);
            server.join().unwrap();
            outcome.map(|outcome| outcome.misses).map_err(|error| error.to_string())
        };
        assert_eq!(run([40, 40], true, |_| {}), Ok(1));
        assert_eq!(run([40, 30], false, |_| {}), Ok(1), "the first request stored 40 bytes");
        let spoils: [fn(&mut Vec<u8>); 3] =
            [|value| value[3] ^= 1, |value| value[39] ^= 1, |value| value.push(0)];
        for spoil in spoils {
            let error = run([40, 40], false, spoil).unwrap_err();
            assert!(error.contains("under \"a\"") && error.contains("differ from"), "{error}");
        }
        let cut = run([40, 40], true, |value| value.truncate(39)).unwrap_err();
        assert!(cut.contains("39 bytes under"), "{cut}");
    }
}
