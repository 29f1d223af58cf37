//! The protocol of Cassandra and ScyllaDB, CQL version 4, with prepared statements.
//!
//! A server names a prepared statement by a digest of its text, so all connections use the same
//! names. The protocol has no request that changes a counter and returns its value.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;

use larder_client::{Address, Reply, Stream};

use super::messages::{Messages, cut, cut_array, read_message};
use super::{Asker, DATABASE, Replies, Wire, asked};
use crate::workload::Verb;
use crate::{Error, Result};

/// The longest time that a change of the schema may take.
const SCHEMA: Duration = Duration::from_secs(60);
/// Version and flags of a request.
const REQUEST: [u8; 2] = [0x04, 0x00];
/// The flag of a reply that begins with warnings.
const WARNING: u8 = 0x08;

const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0a;

/// The consistency level ONE: one replica answers. The keyspace has only one replica.
const ONE: [u8; 2] = [0x00, 0x01];
/// The flags of a request that has values and whose reply need not describe its columns.
const VALUES_WITHOUT_METADATA: u8 = 0x01 | 0x02;
/// The flag of rows without a description of their columns.
const NO_METADATA: i32 = 0x04;
/// The flag of rows that are followed by a further page.
const HAS_MORE_PAGES: i32 = 0x02;

/// The names that the server gave to the two prepared statements: one gets a value, one sets it.
#[derive(Debug)]
struct Names {
    get: Vec<u8>,
    set: Vec<u8>,
}

/// Cassandra or ScyllaDB without passwords.
///
/// The server answers the requests of a connection in any order. A wire has no state per
/// connection, so it cannot match replies to requests. So a connection may have only one request in
/// flight.
#[derive(Debug)]
pub(crate) struct Cql {
    /// The number of Cassandra's partitions that the table has. With `None`, each key has its own
    /// partition.
    partitions: Option<u32>,
    names: OnceLock<Names>,
}

impl Cql {
    /// Returns a wire for a table with a partition for each key.
    pub(crate) fn new() -> Cql {
        Cql { partitions: None, names: OnceLock::new() }
    }

    /// Returns a wire for a table with `partitions` partitions, each with the rows of many keys.
    pub(crate) fn partitioned(partitions: u32) -> Cql {
        Cql { partitions: Some(partitions.max(1)), names: OnceLock::new() }
    }

    fn table(&self) -> &'static str {
        if self.partitions.is_some() { "grouped" } else { "cache" }
    }

    fn statements(&self) -> [String; 2] {
        let table = self.table();
        match self.partitions {
            None => [
                format!("SELECT value FROM {DATABASE}.{table} WHERE key = ?"),
                format!("INSERT INTO {DATABASE}.{table} (key, value) VALUES (?, ?)"),
            ],
            Some(_) => [
                format!("SELECT value FROM {DATABASE}.{table} WHERE part = ? AND key = ?"),
                format!("INSERT INTO {DATABASE}.{table} (part, key, value) VALUES (?, ?, ?)"),
            ],
        }
    }

    fn schema(&self) -> [String; 2] {
        let columns = match self.partitions {
            None => "key text PRIMARY KEY, value blob",
            Some(_) => "part int, key text, value blob, PRIMARY KEY (part, key)",
        };
        [
            format!(
                "CREATE KEYSPACE IF NOT EXISTS {DATABASE} WITH replication = \
                 {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            ),
            // Reading one row reads its whole compression chunk. Cassandra's documentation advises
            // small chunks for such reads.
            format!(
                "CREATE TABLE IF NOT EXISTS {DATABASE}.{} ({columns}) WITH compression = \
                 {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}",
                self.table()
            ),
        ]
    }
}

impl Wire for Cql {
    fn speaks(&self, verb: Verb) -> bool {
        matches!(verb, Verb::Get | Verb::Set)
    }

    fn keeps_order(&self) -> bool {
        false
    }

    fn prepare(&self, server: &Address) -> Result<()> {
        let socket = Stream::connect(server, Some(SCHEMA))?;
        socket
            .set_timeout(Some(SCHEMA))
            .map_err(|e| Error::io("cannot limit the time of calls", e))?;
        start(&socket)?;
        for text in self.schema() {
            let mut message = Vec::new();
            push_message(&mut message, QUERY, |body| {
                push_long_text(body, &text);
                body.extend_from_slice(&ONE);
                // The flags: no values, and no other options.
                body.push(0);
            });
            call(&socket, &message, RESULT)?;
        }
        Ok(())
    }

    fn greet(&self, socket: &Stream) -> Result<()> {
        start(socket)?;
        let [get, set] = self.statements();
        let names = Names { get: prepare(socket, &get)?, set: prepare(socket, &set)? };
        let first =
            self.names.get_or_init(|| Names { get: names.get.clone(), set: names.set.clone() });
        match first.get == names.get && first.set == names.set {
            true => Ok(()),
            false => Err(Error::server("the server gave the same statements other names")),
        }
    }

    #[inline]
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>) {
        if !self.speaks(verb) {
            return;
        }
        let set = verb == Verb::Set;
        let name = match self.names.get() {
            Some(names) if set => names.set.as_slice(),
            Some(names) => names.get.as_slice(),
            // `greet` was not called yet, so the statement was not prepared and has no name. The
            // server will answer that the statement is unknown.
            None => b"",
        };
        push_message(buffer, EXECUTE, |body| {
            body.extend_from_slice(&(name.len() as u16).to_be_bytes());
            body.extend_from_slice(name);
            body.extend_from_slice(&ONE);
            body.push(VALUES_WITHOUT_METADATA);
            let values = 1 + u16::from(set) + u16::from(self.partitions.is_some());
            body.extend_from_slice(&values.to_be_bytes());
            if let Some(partitions) = self.partitions {
                push_value(body, &partition(key, partitions).to_be_bytes());
            }
            push_value(body, key);
            if set {
                push_value(body, value);
            }
        });
    }

    fn replies(&self) -> Box<dyn Replies> {
        Box::new(CqlReplies { messages: Messages::new(body_length) })
    }
}

/// Returns the partition of a key, by a hash of its bytes (FNV-1a).
#[inline]
fn partition(key: &[u8], partitions: u32) -> i32 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The lowest bits of an FNV-1a hash are the least random, so the upper half is used.
    ((hash >> 32) % u64::from(partitions)) as i32
}

/// Begins a session of the protocol. Fails if the server asks for a password.
fn start(socket: &Stream) -> Result<()> {
    let mut message = Vec::new();
    push_message(&mut message, STARTUP, |body| {
        body.extend_from_slice(&[0, 1]);
        push_text(body, "CQL_VERSION");
        push_text(body, "3.0.0");
    });
    call(socket, &message, READY).map(drop)
}

/// Prepares a statement and returns its name.
fn prepare(socket: &Stream, text: &str) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    push_message(&mut message, PREPARE, |body| push_long_text(body, text));
    let body = call(socket, &message, RESULT)?;
    let name = prepared_name(&body).map(<[u8]>::to_vec);
    name.ok_or_else(|| Error::server("the server's reply has no prepared statement"))
}

fn prepared_name(mut body: &[u8]) -> Option<&[u8]> {
    let [0, 0, 0, 4] = cut_array(&mut body)? else { return None };
    let length = u16::from_be_bytes(cut_array(&mut body)?);
    cut(&mut body, length.into())
}

/// Sends a request and returns the body of its reply, which must be of the kind `expected`.
fn call(mut socket: &Stream, message: &[u8], expected: u8) -> Result<Vec<u8>> {
    socket.write_all(message).map_err(|e| Error::io("cannot write to Cassandra", e))?;
    let (header, mut body) = read_message(socket, body_length)?;
    let skipped = warnings(&header, &body).ok_or_else(|| Error::server("a reply is cut off"))?;
    body.drain(..skipped);
    match header[4] {
        kind if kind == expected => Ok(body),
        ERROR => Err(Error::server(format!("Cassandra reports: {}", failure(&body)))),
        kind => Err(Error::server(format!("Cassandra answers with a message of kind {kind}"))),
    }
}

/// Appends a request of this kind, with the body that `push_body` appends. The request has the
/// stream id 0, because only one is in flight per connection.
#[inline]
fn push_message(buffer: &mut Vec<u8>, kind: u8, push_body: impl FnOnce(&mut Vec<u8>)) {
    buffer.extend_from_slice(&REQUEST);
    buffer.extend_from_slice(&[0, 0, kind]);
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    push_body(buffer);
    let length = (buffer.len() - start - 4) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn push_text(buffer: &mut Vec<u8>, text: &str) {
    buffer.extend_from_slice(&(text.len() as u16).to_be_bytes());
    buffer.extend_from_slice(text.as_bytes());
}

fn push_long_text(buffer: &mut Vec<u8>, text: &str) {
    push_value(buffer, text.as_bytes());
}

#[inline]
fn push_value(buffer: &mut Vec<u8>, value: &[u8]) {
    buffer.extend_from_slice(&(value.len() as u32).to_be_bytes());
    buffer.extend_from_slice(value);
}

/// Reads the length of a reply's body. Returns `None` if the header does not begin with the byte
/// 0x84, which marks replies of protocol version 4.
fn body_length(header: &[u8; 9]) -> Option<usize> {
    let &[0x84, _, _, _, _, a, b, c, d] = header else { return None };
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}

/// Returns the length of the warnings that begin a reply's body.
fn warnings(header: &[u8; 9], body: &[u8]) -> Option<usize> {
    if header[1] & WARNING == 0 {
        return Some(0);
    }
    let mut rest = body;
    for _ in 0..u16::from_be_bytes(cut_array(&mut rest)?) {
        let length = u16::from_be_bytes(cut_array(&mut rest)?);
        cut(&mut rest, length.into())?;
    }
    Some(body.len() - rest.len())
}

/// Returns the text of an error.
fn failure(mut body: &[u8]) -> String {
    let mut parts = || {
        let code = u32::from_be_bytes(cut_array(&mut body)?);
        let length = u16::from_be_bytes(cut_array(&mut body)?);
        Some((code, cut(&mut body, length.into())?))
    };
    match parts() {
        Some((code, text)) => format!("{code:04x} {}", String::from_utf8_lossy(text)),
        None => "an error without a text".to_owned(),
    }
}

#[derive(Debug)]
struct CqlReplies {
    messages: Messages<9>,
}

impl Replies for CqlReplies {
    fn feed(&mut self, bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        self.messages.feed(bytes, |header, body| {
            let verb = asked(asker)?;
            let skipped = warnings(header, body).ok_or("warnings without an end")?;
            let body = &body[skipped..];
            match header[4] {
                RESULT => result(verb, body, asker),
                ERROR => {
                    asker.reply(Reply::Error(failure(body).as_bytes()), 0);
                    Ok(())
                }
                kind => Err(format!("a message of kind {kind}")),
            }
        })
    }
}

fn result(verb: Verb, mut body: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
    let kind = cut_array(&mut body).map(i32::from_be_bytes);
    match (verb, kind) {
        // The result kind Void.
        (Verb::Set, Some(1)) => asker.reply(Reply::Stored, 0),
        // The result kind Rows.
        (Verb::Get, Some(2)) => match rows(body).ok_or("a row without exactly one value")? {
            None => asker.reply(Reply::End, 0),
            Some(value) => {
                asker.value(b"", value.len());
                asker.body(0, value);
                asker.reply(Reply::End, 1);
            }
        },
        (verb, kind) => return Err(format!("a result {kind:?} as the reply to {}", verb.name())),
    }
    Ok(())
}

/// Returns the only value of the only row, or `Some(None)` if there is no row. Returns `None` if
/// the result has any other form.
fn rows(mut body: &[u8]) -> Option<Option<&[u8]>> {
    let flags = i32::from_be_bytes(cut_array(&mut body)?);
    let [0, 0, 0, 1] = cut_array(&mut body)? else { return None };
    if flags & (NO_METADATA | HAS_MORE_PAGES) != NO_METADATA {
        return None;
    }
    match i32::from_be_bytes(cut_array(&mut body)?) {
        0 if body.is_empty() => Some(None),
        1 => {
            let length = i32::from_be_bytes(cut_array(&mut body)?);
            let value = cut(&mut body, usize::try_from(length).ok()?)?;
            body.is_empty().then_some(Some(value))
        }
        _ => None,
    }
}
