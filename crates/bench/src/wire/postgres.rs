//! The protocol of PostgreSQL, version 3.0: prepared statements with binary parameters and results.
//!
//! Each request is a Bind, an Execute and a Sync, so each request is a separate transaction. The
//! three messages are sent together and cost one round trip.

use std::io::Write;

use larder_client::{Address, Reply, Stream};

use super::caller::open;
use super::messages::{Messages, cut, cut_array, cut_text, read_message};
use super::{Asker, DATABASE, Replies, Wire, asked};
use crate::workload::Verb;
use crate::{Error, Result};

/// The verbs with their statements. The name of a prepared statement is that of its verb.
const STATEMENTS: [(Verb, &str); 5] = [
    (Verb::Get, "SELECT value FROM cache WHERE key = $1"),
    (
        Verb::Set,
        "INSERT INTO cache (key, value) VALUES ($1, $2) \
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    ),
    (
        Verb::Incr,
        "INSERT INTO counters (key, value) VALUES ($1, 1) \
         ON CONFLICT (key) DO UPDATE SET value = counters.value + 1 RETURNING value",
    ),
    (
        Verb::SetCounter,
        "INSERT INTO counters (key, value) VALUES ($1, 0) \
         ON CONFLICT (key) DO UPDATE SET value = 0",
    ),
    // If the budget is used up, this statement changes no row and returns none.
    (
        Verb::Limit,
        "INSERT INTO counters (key, value) VALUES ($1, 1) \
         ON CONFLICT (key) DO UPDATE SET value = counters.value + 1 \
         WHERE counters.value < $2 RETURNING value",
    ),
];

/// The type ids of the parameters of every verb except `Limit`: text and bytea.
const PARAMETER_TYPES: [u32; 2] = [25, 17];
/// The type ids of the parameters of the verb `Limit`: text and bigint.
const LIMIT_TYPES: [u32; 2] = [25, 20];
/// An Execute of the unnamed portal without a limit of rows, and a Sync.
const EXECUTE_AND_SYNC: &[u8] = b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";
/// The error code of a `CREATE DATABASE` for a database that exists already.
const DUPLICATE_DATABASE: &str = "42P04";

/// PostgreSQL with trust authentication.
#[derive(Clone, Debug)]
pub(crate) struct Postgres {
    /// The role to log in as. It must be allowed to create a database.
    pub(crate) user: String,
    /// If true, [`Wire::prepare`] creates unlogged tables, which a crash empties.
    pub(crate) unlogged: bool,
}

impl Postgres {
    fn log_in(&self, server: &Address, database: &str) -> Result<Stream> {
        let socket = open(server)?;
        self.start(&socket, database)?;
        Ok(socket)
    }

    fn start(&self, socket: &Stream, database: &str) -> Result<()> {
        let mut body = 196_608u32.to_be_bytes().to_vec();
        for text in ["user", &self.user, "database", database, "application_name", "larder"] {
            push_text(&mut body, text);
        }
        body.push(0);
        // The first message has no type.
        let mut message = (body.len() as u32 + 4).to_be_bytes().to_vec();
        message.extend_from_slice(&body);
        send(socket, &message)?;
        settle(socket)?.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl Wire for Postgres {
    fn speaks(&self, verb: Verb) -> bool {
        STATEMENTS.iter().any(|(known, _)| *known == verb)
    }

    fn prepare(&self, server: &Address) -> Result<()> {
        let socket = self.log_in(server, "postgres")?;
        match query(&socket, &format!("CREATE DATABASE {DATABASE}"))? {
            Some(failure) if failure.code != DUPLICATE_DATABASE => return Err(failure.into()),
            _ => {}
        }
        let socket = self.log_in(server, DATABASE)?;
        let kind = if self.unlogged { "UNLOGGED TABLE" } else { "TABLE" };
        // Keys compare by bytes. Inserts leave a tenth of each page free. So an update usually
        // finds room for the new row beside the old one, and then need not change the index. Values
        // are not compressed, because compression does not make the lab's values smaller.
        for text in [
            format!(
                "CREATE {kind} IF NOT EXISTS cache \
                 (key text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 90)"
            ),
            "ALTER TABLE cache ALTER COLUMN value SET STORAGE EXTERNAL".to_owned(),
            format!(
                "CREATE {kind} IF NOT EXISTS counters \
                 (key text COLLATE \"C\" PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 90)"
            ),
        ] {
            query(&socket, &text)?.map_or(Ok(()), |failure| Err(Error::from(failure)))?;
        }
        Ok(())
    }

    fn greet(&self, socket: &Stream) -> Result<()> {
        self.start(socket, DATABASE)?;
        let mut messages = Vec::new();
        for (verb, text) in STATEMENTS {
            push_message(&mut messages, b'P', |body| {
                push_text(body, verb.name());
                push_text(body, text);
                let types = if verb == Verb::Limit { &LIMIT_TYPES } else { &PARAMETER_TYPES };
                let types = &types[..parameters(verb)];
                body.extend_from_slice(&(types.len() as u16).to_be_bytes());
                body.extend(types.iter().flat_map(|kind| kind.to_be_bytes()));
            });
        }
        push_message(&mut messages, b'S', |_| {});
        send(socket, &messages)?;
        settle(socket)?.map_or(Ok(()), |failure| Err(failure.into()))
    }

    #[inline]
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>) {
        if !self.speaks(verb) {
            return;
        }
        let units;
        let value = if verb == Verb::Limit {
            units = budget(value).to_be_bytes();
            &units[..]
        } else {
            value
        };
        push_message(buffer, b'B', |body| {
            // A Bind names the portal, here the unnamed one, and the statement. Then it gives one
            // format for all parameters, binary, and the parameters.
            body.push(0);
            push_text(body, verb.name());
            body.extend_from_slice(&[0, 1, 0, 1]);
            body.extend_from_slice(&[0, parameters(verb) as u8]);
            for parameter in [key, value].into_iter().take(parameters(verb)) {
                body.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
                body.extend_from_slice(parameter);
            }
            // All results have the same format: binary.
            body.extend_from_slice(&[0, 1, 0, 1]);
        });
        buffer.extend_from_slice(EXECUTE_AND_SYNC);
    }

    fn replies(&self) -> Box<dyn Replies> {
        Box::new(PostgresReplies {
            messages: Messages::new(body_length),
            reply: Gathered::default(),
        })
    }
}

/// Returns the number of parameters of a verb's statement.
fn parameters(verb: Verb) -> usize {
    if matches!(verb, Verb::Set | Verb::Limit) { 2 } else { 1 }
}

/// Returns the budget of a limit, which is the first word of `limit`.
fn budget(limit: &[u8]) -> i64 {
    let word = limit.split(|&byte| byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn push_text(buffer: &mut Vec<u8>, text: &str) {
    buffer.extend_from_slice(text.as_bytes());
    buffer.push(0);
}

/// Appends a message with the body that `push_body` appends.
#[inline]
fn push_message(buffer: &mut Vec<u8>, kind: u8, push_body: impl FnOnce(&mut Vec<u8>)) {
    buffer.push(kind);
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    push_body(buffer);
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Reads the length of a message's body. The length in the header includes itself.
fn body_length(&[_, a, b, c, d]: &[u8; 5]) -> Option<usize> {
    u32::from_be_bytes([a, b, c, d]).checked_sub(4).map(|length| length as usize)
}

fn send(mut socket: &Stream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).map_err(|e| Error::io("cannot write to PostgreSQL", e))
}

/// Runs a statement without results. Returns the server's error, if there is one.
fn query(socket: &Stream, text: &str) -> Result<Option<Failure>> {
    let mut message = Vec::new();
    push_message(&mut message, b'Q', |body| push_text(body, text));
    send(socket, &message)?;
    settle(socket)
}

/// Reads messages until the server is ready for a request. Returns the server's last error, if it
/// sent one.
fn settle(socket: &Stream) -> Result<Option<Failure>> {
    let mut failure = None;
    loop {
        let (header, body) = read_message(socket, body_length)?;
        match header[0] {
            b'Z' => return Ok(failure),
            b'E' => {
                let latest = Failure::parse(&body);
                if latest.fatal {
                    return Ok(Some(latest));
                }
                failure = Some(latest);
            }
            b'R' if body != [0; 4] => {
                return Err(Error::server("PostgreSQL asks for a password: it must use trust"));
            }
            _ => {}
        }
    }
}

/// An error that the server sent.
#[derive(Debug)]
struct Failure {
    text: String,
    code: String,
    /// True if the server closes the connection after this error.
    fatal: bool,
}

impl Failure {
    fn parse(mut fields: &[u8]) -> Failure {
        let (mut message, mut code, mut fatal) = (String::new(), String::new(), false);
        while let Some([kind]) = cut_array(&mut fields)
            && kind != 0
            && let Some(text) = cut_text(&mut fields)
        {
            match kind {
                b'M' => message = String::from_utf8_lossy(text).into_owned(),
                b'C' => code = String::from_utf8_lossy(text).into_owned(),
                b'V' => fatal = matches!(text, b"FATAL" | b"PANIC"),
                _ => {}
            }
        }
        Failure { text: format!("{code} {message}"), code, fatal }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::server(format!("PostgreSQL reports: {}", failure.text))
    }
}

#[derive(Debug)]
struct PostgresReplies {
    messages: Messages<5>,
    reply: Gathered,
}

impl Replies for PostgresReplies {
    fn feed(&mut self, bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        let reply = &mut self.reply;
        self.messages.feed(bytes, |header, body| reply.message(header[0], body, asker))
    }
}

/// What has arrived of a reply: the number of values of a get, a counter's number, the end of the
/// statement (`complete`), or an error. The server's ReadyForQuery ends the reply.
#[derive(Debug, Default)]
struct Gathered {
    values: u32,
    number: Option<u64>,
    complete: bool,
    failure: Option<Failure>,
}

impl Gathered {
    fn message(
        &mut self,
        kind: u8,
        body: &[u8],
        asker: &mut dyn Asker,
    ) -> std::result::Result<(), String> {
        match kind {
            b'D' => self.row(body, asker),
            b'C' => {
                self.complete = true;
                Ok(())
            }
            b'E' => {
                let failure = Failure::parse(body);
                let fatal = failure.fatal;
                self.failure = Some(failure);
                // After a fatal error no ReadyForQuery follows.
                if fatal { self.end(asker) } else { Ok(()) }
            }
            b'Z' => self.end(asker),
            // Ignores BindComplete, notices, changed settings and notifications.
            b'2' | b'N' | b'S' | b'A' => Ok(()),
            kind => Err(format!("a message of the type {:?}", char::from(kind))),
        }
    }

    fn row(&mut self, body: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        let column = only_column(body).ok_or("a row without exactly one value")?;
        match asked(asker)? {
            Verb::Get if self.values == 0 => {
                asker.value(b"", column.len());
                asker.body(0, column);
                self.values = 1;
            }
            Verb::Incr | Verb::Limit => {
                let bytes = column.try_into().map_err(|_| "a number that is no bigint")?;
                let number = i64::from_be_bytes(bytes);
                self.number = Some(number.try_into().map_err(|_| "a negative counter")?);
            }
            verb => return Err(format!("a row as the reply to {}", verb.name())),
        }
        Ok(())
    }

    fn end(&mut self, asker: &mut dyn Asker) -> std::result::Result<(), String> {
        let Gathered { values, number, complete, failure } = std::mem::take(self);
        let verb = asker.verb();
        if let Some(failure) = failure {
            // A server that shuts down may send an error although no request is pending. This
            // function then fails with the text of that error.
            verb.ok_or_else(|| failure.text.clone())?;
            asker.reply(Reply::Error(failure.text.as_bytes()), values);
            return Ok(());
        }
        match (asked(asker)?, number) {
            (Verb::Get, None) if complete => asker.reply(Reply::End, values),
            (Verb::Set | Verb::SetCounter, None) if complete => asker.reply(Reply::Stored, 0),
            (Verb::Incr, Some(number)) if complete => asker.reply(Reply::Number(number), 0),
            (Verb::Limit, Some(_)) if complete => asker.reply(Reply::Stored, 0),
            (Verb::Limit, None) if complete => asker.reply(Reply::NotStored, 0),
            (verb, _) => return Err(format!("no whole reply to {}", verb.name())),
        }
        Ok(())
    }
}

/// Returns the only column of a row. Returns `None` if the row has another number of columns or the
/// column is NULL.
fn only_column(mut row: &[u8]) -> Option<&[u8]> {
    let [0, 1] = cut_array(&mut row)? else { return None };
    let length = i32::from_be_bytes(cut_array(&mut row)?);
    let column = cut(&mut row, usize::try_from(length).ok()?)?;
    row.is_empty().then_some(column)
}
