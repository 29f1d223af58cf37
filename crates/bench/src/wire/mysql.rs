//! The protocol of MariaDB and MySQL, version 4.1: statements prepared once per connection, then
//! executed with binary parameters and results.
//!
//! A server numbers the statements of a connection from 1, so the numbers are the same on all
//! connections, and a wire needs no state per connection. [`Wire::greet`] checks the numbers.
//! MariaDB may serve a connection by a cached thread, and then continues the numbers of that
//! thread's earlier connection. Therefore MariaDB must run with [`Mysql::SERVER_OPTION`].

use std::io::Write;

use larder_client::{Address, Reply, Stream};

use super::caller::open;
use super::messages::{Messages, cut, cut_array, cut_text, read_message};
use super::{Asker, DATABASE, Replies, Wire, asked};
use crate::workload::Verb;
use crate::{Error, Result};

/// The verbs with their statements. The index of a row plus 1 is the number of the statement.
///
/// With `LAST_INSERT_ID(…)`, the reply to an increment contains the counter's new value. So the
/// client needs no second request to read the value.
const STATEMENTS: [(Verb, &str); 4] = [
    (Verb::Get, "SELECT `value` FROM cache WHERE `key` = ?"),
    (
        Verb::Set,
        // Each set changes the column `writes`. If a set changed no column, InnoDB would write and
        // sync nothing.
        "INSERT INTO cache (`key`, `value`) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE `value` = VALUES(`value`), writes = writes + 1",
    ),
    (
        Verb::Incr,
        "INSERT INTO counters (`key`, `value`) VALUES (?, LAST_INSERT_ID(1)) \
         ON DUPLICATE KEY UPDATE `value` = LAST_INSERT_ID(`value` + 1)",
    ),
    (
        Verb::SetCounter,
        "INSERT INTO counters (`key`, `value`) VALUES (?, 0) ON DUPLICATE KEY UPDATE `value` = 0",
    ),
];

/// The longest value that the column `value` of a table can be created for, in bytes. It is below
/// 65535 bytes, because all columns of a row together must not be longer than that.
const VALUE_MAX: usize = 65_000;
/// The payload length, in bytes, of a packet whose payload continues in the next packet.
const PACKET_MAX: usize = 0xff_ffff;
/// The character set of the connection: utf8_general_ci, which all versions know.
const CHARACTER_SET: u8 = 33;
/// The only authentication plug-in that this client knows. With an empty password it needs no
/// digest.
const PLUGIN: &str = "mysql_native_password";

/// Capabilities of the protocol, by the names that its documentation uses.
const CLIENT_MYSQL: u32 = 1;
const CLIENT_CONNECT_WITH_DB: u32 = 1 << 3;
const CLIENT_PROTOCOL_41: u32 = 1 << 9;
const CLIENT_TRANSACTIONS: u32 = 1 << 13;
const CLIENT_SECURE_CONNECTION: u32 = 1 << 15;
const CLIENT_PLUGIN_AUTH: u32 = 1 << 19;
const CLIENT_DEPRECATE_EOF: u32 = 1 << 24;
const NEEDED: u32 = CLIENT_CONNECT_WITH_DB
    | CLIENT_PROTOCOL_41
    | CLIENT_TRANSACTIONS
    | CLIENT_SECURE_CONNECTION
    | CLIENT_PLUGIN_AUTH
    | CLIENT_DEPRECATE_EOF;
/// The extended capability of MariaDB to leave out the description of columns that have not
/// changed.
const MARIADB_CLIENT_CACHE_METADATA: u32 = 1 << 4;

const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
/// The parameter types of bytes and of text.
const TYPE_BLOB: u8 = 0xfc;
const TYPE_VAR_STRING: u8 = 0xfd;

/// The engine that stores the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableEngine {
    /// Rows in memory, all of the same length. The rows are lost when the server ends.
    Memory,
    /// Durable rows with transactions.
    InnoDb,
}

/// MariaDB or MySQL, with a user whose password is empty.
#[derive(Clone, Debug)]
pub(crate) struct Mysql {
    pub(crate) user: String,
    pub(crate) engine: TableEngine,
    /// The longest value, in bytes. Each row of a MEMORY table takes this space.
    pub(crate) value_max: usize,
}

impl Mysql {
    /// The server's option to give each connection a new thread.
    pub(crate) const SERVER_OPTION: &str = "--thread-cache-size=0";

    /// Returns the statements that create the user and allow it to create the tables. The server
    /// reads them at its start, by `--init-file`.
    pub(crate) fn user_statements(&self) -> String {
        let user = &self.user;
        format!(
            "CREATE USER IF NOT EXISTS '{user}'@'%' IDENTIFIED BY '';\n\
             CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED BY '';\n\
             GRANT ALL ON {DATABASE}.* TO '{user}'@'%';\n\
             GRANT ALL ON {DATABASE}.* TO '{user}'@'localhost';\n"
        )
    }

    /// Logs in. Without `database`, the connection has no current database.
    fn log_in(&self, socket: &Stream, database: Option<&str>) -> Result<()> {
        let (_, greeting) = read_packet(socket)?;
        let greeting = Greeting::parse(&greeting)?;
        if greeting.capabilities & NEEDED != NEEDED {
            return Err(Error::server("the server is older than MariaDB 10.2 and MySQL 5.7.5"));
        }
        // Only MariaDB has extended capabilities. A client that sets one must not set
        // `CLIENT_MYSQL`.
        let extended = greeting.extended & MARIADB_CLIENT_CACHE_METADATA;
        let mut capabilities = NEEDED | if extended == 0 { CLIENT_MYSQL } else { 0 };
        if database.is_none() {
            capabilities &= !CLIENT_CONNECT_WITH_DB;
        }
        let mut message = Vec::new();
        push_packet(&mut message, 1, |payload| {
            payload.extend_from_slice(&capabilities.to_le_bytes());
            payload.extend_from_slice(&(PACKET_MAX as u32).to_le_bytes());
            payload.push(CHARACTER_SET);
            payload.extend_from_slice(&[0; 19]);
            payload.extend_from_slice(&extended.to_le_bytes());
            push_text(payload, &self.user);
            // The length of the password's digest.
            payload.push(0);
            if let Some(database) = database {
                push_text(payload, database);
            }
            push_text(payload, PLUGIN);
        });
        send(socket, &message)?;
        loop {
            let (sequence, payload) = read_packet(socket)?;
            match payload.split_first() {
                Some((0x00, _)) => return Ok(()),
                // A server sends this packet if it has announced another plug-in and switches to
                // `PLUGIN`, or if it wants the digest in a separate packet. The answer is the
                // digest, which is empty for an empty password.
                Some((0xfe, rest)) if cut_text(&mut &*rest) == Some(PLUGIN.as_bytes()) => {
                    let mut message = Vec::new();
                    push_packet(&mut message, sequence.wrapping_add(1), |_| {});
                    send(socket, &message)?;
                }
                Some((0xff, error)) => return Err(refused(error)),
                _ => {
                    return Err(Error::server(format!(
                        "the user {} must log in by {PLUGIN} with an empty password",
                        self.user
                    )));
                }
            }
        }
    }

    /// Returns the statement that creates the table of values.
    fn cache_table(&self) -> Result<String> {
        let Mysql { engine, value_max, .. } = self;
        if !(1..=VALUE_MAX).contains(value_max) {
            return Err(Error::usage(format!(
                "a table of MariaDB can have values of 1 to {VALUE_MAX} bytes, not {value_max}"
            )));
        }
        Ok(format!(
            "CREATE TABLE IF NOT EXISTS {DATABASE}.cache (`key` varbinary(255) NOT NULL, \
             `value` varbinary({value_max}) NOT NULL, writes int NOT NULL DEFAULT 0, {}",
            engine.ending()
        ))
    }

    /// Returns the statement that creates the table of counters.
    fn counters_table(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {DATABASE}.counters (`key` varchar(255) NOT NULL, \
             `value` bigint NOT NULL, {} DEFAULT CHARSET=utf8 COLLATE=utf8_bin",
            self.engine.ending()
        )
    }
}

impl TableEngine {
    /// Returns the end of the statement that creates a table: its primary key and its engine.
    fn ending(self) -> &'static str {
        match self {
            TableEngine::Memory => "PRIMARY KEY (`key`) USING HASH) ENGINE=MEMORY",
            TableEngine::InnoDb => "PRIMARY KEY (`key`)) ENGINE=InnoDB",
        }
    }
}

impl Wire for Mysql {
    fn prepare(&self, server: &Address) -> Result<()> {
        let table = self.cache_table()?;
        let socket = open(server)?;
        self.log_in(&socket, None)?;
        query(&socket, &format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))?;
        query(&socket, &table)?;
        query(&socket, &self.counters_table())
    }

    fn greet(&self, socket: &Stream) -> Result<()> {
        self.log_in(socket, Some(DATABASE))?;
        for (wanted, (_, text)) in (1..).zip(STATEMENTS) {
            let number = prepare_statement(socket, text)?;
            if number != wanted {
                return Err(Error::server(format!(
                    "statement {wanted} of a connection has the number {number}: start the server \
                     with {}",
                    Mysql::SERVER_OPTION
                )));
            }
        }
        Ok(())
    }

    #[inline]
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>) {
        let Some(index) = STATEMENTS.iter().position(|row| row.0 == verb) else { return };
        push_packet(buffer, 0, |payload| {
            payload.push(COM_STMT_EXECUTE);
            payload.extend_from_slice(&(index as u32 + 1).to_le_bytes());
            // No cursor, one execution, no parameter is null, and types follow.
            payload.extend_from_slice(&[0, 1, 0, 0, 0, 0, 1]);
            let key_type = if verb.counts() { TYPE_VAR_STRING } else { TYPE_BLOB };
            payload.extend_from_slice(&[key_type, 0]);
            if verb == Verb::Set {
                payload.extend_from_slice(&[TYPE_BLOB, 0]);
            }
            push_bytes(payload, key);
            if verb == Verb::Set {
                // A value that no table can hold is cut. It is still too long, so the server
                // refuses it.
                push_bytes(payload, &value[..value.len().min(VALUE_MAX + 1)]);
            }
        });
    }

    fn replies(&self) -> Box<dyn Replies> {
        Box::new(MysqlReplies { packets: Messages::new(body_length), reply: Stage::default() })
    }
}

/// The greeting that a server sends first.
#[derive(Debug)]
struct Greeting {
    capabilities: u32,
    /// MariaDB's extended capabilities; 0 in other servers.
    extended: u32,
}

impl Greeting {
    fn parse(payload: &[u8]) -> Result<Greeting> {
        match payload.split_first() {
            Some((10, rest)) => Greeting::fields(rest)
                .ok_or_else(|| Error::server("the greeting of the database server is incomplete")),
            Some((0xff, error)) => Err(refused(error)),
            _ => Err(Error::server("the server does not speak the protocol of MariaDB")),
        }
    }

    fn fields(mut rest: &[u8]) -> Option<Greeting> {
        cut_text(&mut rest)?;
        // Skips the connection's number, the first part of the nonce, and a zero.
        cut(&mut rest, 4 + 8 + 1)?;
        let [a, b] = cut_array(&mut rest)?;
        // Skips the character set and the status.
        cut(&mut rest, 1 + 2)?;
        let [c, d] = cut_array(&mut rest)?;
        let capabilities = u32::from_le_bytes([a, b, c, d]);
        // Skips the length of the nonce, and unused bytes.
        cut(&mut rest, 1 + 6)?;
        let extended = u32::from_le_bytes(cut_array(&mut rest)?);
        let is_mariadb = capabilities & CLIENT_MYSQL == 0;
        Some(Greeting { capabilities, extended: if is_mariadb { extended } else { 0 } })
    }
}

/// Runs a statement without results.
fn query(socket: &Stream, text: &str) -> Result<()> {
    let reply = command(socket, COM_QUERY, text)?;
    match reply.split_first() {
        Some((0x00, _)) => Ok(()),
        Some((0xff, error)) => Err(refused(error)),
        _ => Err(Error::server(format!("an unexpected result of {text}"))),
    }
}

/// Prepares a statement and returns its number.
fn prepare_statement(socket: &Stream, text: &str) -> Result<u32> {
    let reply = command(socket, COM_STMT_PREPARE, text)?;
    let (number, definitions) = match reply.split_first() {
        Some((0x00, mut rest)) => prepared(&mut rest)
            .ok_or_else(|| Error::server("the reply to a prepare is incomplete"))?,
        Some((0xff, error)) => return Err(refused(error)),
        _ => return Err(Error::server(format!("an unexpected reply to the prepare of {text}"))),
    };
    for _ in 0..definitions {
        read_packet(socket)?;
    }
    Ok(number)
}

/// Reads a statement's number, and the number of packets that follow: one for each column and each
/// parameter.
fn prepared(rest: &mut &[u8]) -> Option<(u32, usize)> {
    let number = u32::from_le_bytes(cut_array(rest)?);
    let columns = u16::from_le_bytes(cut_array(rest)?);
    let parameters = u16::from_le_bytes(cut_array(rest)?);
    Some((number, usize::from(columns) + usize::from(parameters)))
}

/// Sends a command and returns the first packet of its reply.
fn command(socket: &Stream, command: u8, text: &str) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    push_packet(&mut message, 0, |payload| {
        payload.push(command);
        payload.extend_from_slice(text.as_bytes());
    });
    send(socket, &message)?;
    Ok(read_packet(socket)?.1)
}

fn send(mut socket: &Stream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).map_err(|e| Error::io("cannot write to the database server", e))
}

/// Reads a packet: its sequence number and its payload.
fn read_packet(socket: &Stream) -> Result<(u8, Vec<u8>)> {
    let (header, payload) = read_message(socket, body_length)?;
    Ok((header[3], payload))
}

/// Reads the length of a packet's payload. Returns `None`, as for a bad header, if the payload
/// continues in the next packet. No reply in the lab is so long.
fn body_length(&[a, b, c, _sequence]: &[u8; 4]) -> Option<usize> {
    Some(u32::from_le_bytes([a, b, c, 0]) as usize).filter(|&length| length < PACKET_MAX)
}

/// Appends a packet with the payload that `push_payload` appends.
#[inline]
fn push_packet(buffer: &mut Vec<u8>, sequence: u8, push_payload: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0, 0, 0, sequence]);
    push_payload(buffer);
    let length = buffer.len() - start - 4;
    debug_assert!(length < PACKET_MAX, "a request fits into a packet");
    buffer[start..start + 3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
}

fn push_text(payload: &mut Vec<u8>, text: &str) {
    payload.extend_from_slice(text.as_bytes());
    payload.push(0);
}

/// Appends length-prefixed bytes. The length takes one, three or four bytes.
fn push_bytes(payload: &mut Vec<u8>, bytes: &[u8]) {
    let length = (bytes.len() as u32).to_le_bytes();
    match bytes.len() {
        0..=250 => payload.push(length[0]),
        251..=0xffff => payload.extend_from_slice(&[0xfc, length[0], length[1]]),
        _ => payload.extend_from_slice(&[0xfd, length[0], length[1], length[2]]),
    }
    payload.extend_from_slice(bytes);
}

/// Takes a number of variable length off `bytes`.
fn cut_number(bytes: &mut &[u8]) -> Option<u64> {
    let [first] = cut_array(bytes)?;
    let length = match first {
        0..=250 => return Some(u64::from(first)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let mut number = [0; 8];
    number[..length].copy_from_slice(cut(bytes, length)?);
    Some(u64::from_le_bytes(number))
}

/// Returns the text of an error packet, given without its first byte. Such a packet has a code,
/// usually an SQL state, and a message.
fn error_text(mut error: &[u8]) -> String {
    let code = cut_array(&mut error).map_or(0, u16::from_le_bytes);
    let (state, message) = match error {
        [b'#', rest @ ..] if rest.len() >= 5 => rest.split_at(5),
        message => (&b""[..], message),
    };
    let (state, message) = (String::from_utf8_lossy(state), String::from_utf8_lossy(message));
    format!("{code} {state} {message}")
}

fn refused(error: &[u8]) -> Error {
    Error::server(format!("the database server reports: {}", error_text(error)))
}

#[derive(Debug)]
struct MysqlReplies {
    packets: Messages<4>,
    reply: Stage,
}

/// The packet that comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// The first packet of a reply.
    #[default]
    First,
    /// The description of the only column.
    Column,
    /// A row, or the end of the rows. The number counts the rows that have arrived: 0 or 1.
    Row(u32),
}

impl Replies for MysqlReplies {
    fn feed(&mut self, bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        let reply = &mut self.reply;
        self.packets.feed(bytes, |_, payload| {
            *reply = reply.packet(payload, asker)?;
            Ok(())
        })
    }
}

impl Stage {
    /// Processes a packet, and returns which packet comes next.
    fn packet(self, payload: &[u8], asker: &mut dyn Asker) -> std::result::Result<Stage, String> {
        let values = if let Stage::Row(values) = self { values } else { 0 };
        if let [0xff, error @ ..] = payload {
            let text = error_text(error);
            // A server that shuts down may send an error although no request is pending. This
            // function then returns the error's text.
            asker.verb().ok_or_else(|| text.clone())?;
            asker.reply(Reply::Error(text.as_bytes()), values);
            return Ok(Stage::First);
        }
        let verb = asked(asker)?;
        let wrong = || format!("no reply to {} begins with {:02x?}", verb.name(), payload.first());
        match (self, verb, payload) {
            (Stage::First, Verb::Get, [1]) => return Ok(Stage::Column),
            (Stage::First, Verb::Get, &[1, described]) => {
                return Ok(if described == 0 { Stage::Row(0) } else { Stage::Column });
            }
            (Stage::First, Verb::Set | Verb::SetCounter, [0x00, ..]) => {
                asker.reply(Reply::Stored, 0);
            }
            (Stage::First, Verb::Incr, [0x00, rest @ ..]) => {
                let number = last_insert_id(rest).ok_or_else(wrong)?;
                asker.reply(Reply::Number(number), 0);
            }
            (Stage::Column, ..) => return Ok(Stage::Row(0)),
            (Stage::Row(values), _, [0xfe, ..]) => asker.reply(Reply::End, values),
            // A row begins with a zero byte and the bitmap of its NULLs, which is zero here.
            (Stage::Row(0), _, [0x00, 0x00, rest @ ..]) => {
                let value = only_value(rest).ok_or_else(wrong)?;
                asker.value(b"", value.len());
                asker.body(0, value);
                return Ok(Stage::Row(1));
            }
            _ => return Err(wrong()),
        }
        Ok(Stage::First)
    }
}

/// Reads the second field of an OK packet. The first is the number of changed rows.
fn last_insert_id(mut rest: &[u8]) -> Option<u64> {
    cut_number(&mut rest)?;
    cut_number(&mut rest)
}

/// Reads a length-prefixed value that must end where `rest` ends.
fn only_value(mut rest: &[u8]) -> Option<&[u8]> {
    let length = cut_number(&mut rest)?;
    (rest.len() as u64 == length).then_some(rest)
}
