//! Checks whether a started server is ready: whether it answers in its protocol.
//!
//! A port that accepts connections is not enough. Redis opens its port before it loads its file,
//! and PostgreSQL refuses clients while it recovers.

use std::io::{Read, Write};
use std::time::Duration;

use larder_client::{Address, Client, Options, Stream};

use crate::{Error, Result};

/// The protocol of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Memcached,
    Redis,
    Postgres,
    Mysql,
    Cql,
    Mongo,
}

/// The longest time for each connect, write or read of an attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// PostgreSQL's startup message. Its role and its database need not exist: a ready server refuses
/// them, and this refusal counts as an answer.
const POSTGRES: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0x\0\0";
/// An OPTIONS request of CQL version 4.
const CQL: &[u8] = b"\x04\0\0\0\x05\0\0\0\0";
/// An OP_QUERY of MongoDB with `isMaster`, the handshake that servers of all versions answer.
const MONGO: &[u8] = b"\x3a\0\0\0\x01\0\0\0\0\0\0\0\xd4\x07\0\0\
    \0\0\0\0admin.$cmd\0\0\0\0\0\xff\xff\xff\xff\
    \x13\0\0\0\x10isMaster\0\x01\0\0\0\0";

/// Sends one request and checks its answer.
///
/// # Errors
/// Returns an error if the server does not answer, or answers that it is not ready.
pub(super) fn ask(protocol: Protocol, address: &Address) -> Result<()> {
    let options = Options { timeout: Some(ATTEMPT) };
    if protocol == Protocol::Memcached {
        return Client::connect_to(address, options)?.version().map(drop).map_err(Error::from);
    }
    let socket = Stream::connect(address, Some(ATTEMPT))?;
    let failed = |error| Error::io(format!("{address} does not answer"), error);
    socket.set_timeout(Some(ATTEMPT)).map_err(failed)?;
    let request: &[u8] = match protocol {
        Protocol::Redis => b"PING\r\n",
        Protocol::Postgres => POSTGRES,
        // MariaDB sends its greeting without a request.
        Protocol::Mysql | Protocol::Memcached => b"",
        Protocol::Cql => CQL,
        Protocol::Mongo => MONGO,
    };
    (&socket).write_all(request).map_err(failed)?;
    let mut reply = [0; 512];
    let read = (&socket).read(&mut reply).map_err(failed)?;
    match is_ready(protocol, &reply[..read]) {
        true => Ok(()),
        false => {
            let reply = String::from_utf8_lossy(&reply[..read]).into_owned();
            Err(Error::server(format!("{address} is not ready: {reply:?}")))
        }
    }
}

/// Returns true if `reply` begins like the answer of a ready server.
fn is_ready(protocol: Protocol, reply: &[u8]) -> bool {
    match protocol {
        Protocol::Redis => reply.starts_with(b"+PONG"),
        Protocol::Postgres => match reply.first() {
            // The server accepts the login, or asks for a password.
            Some(b'R') => true,
            // 57P03 is "cannot connect now", 53300 "too many connections".
            Some(b'E') => !contains(reply, b"C57P03\0") && !contains(reply, b"C53300\0"),
            _ => false,
        },
        // Bytes 0 to 3 are the length and the number of the packet. Byte 4 is the version of the
        // greeting, 10, or ff in a refusal.
        Protocol::Mysql => reply.get(4) == Some(&10),
        // A reply of version 4 with the opcode SUPPORTED.
        Protocol::Cql => reply.first() == Some(&0x84) && reply.get(4) == Some(&0x06),
        // A reply with the opcode OP_REPLY.
        Protocol::Mongo => reply.get(12..16) == Some(b"\x01\0\0\0"),
        Protocol::Memcached => false,
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_that_is_not_ready_is_told_from_one_that_is() {
        let ready = |protocol, reply: &[u8]| is_ready(protocol, reply);
        assert!(ready(Protocol::Redis, b"+PONG\r\n"));
        assert!(!ready(Protocol::Redis, b"-LOADING Redis is loading the dataset in memory\r\n"));
        assert!(ready(Protocol::Postgres, b"R\0\0\0\x08\0\0\0\0"));
        assert!(ready(Protocol::Postgres, b"E\0\0\0\x20SFATAL\0C28000\0Mno role\0\0"));
        assert!(!ready(Protocol::Postgres, b"E\0\0\0\x20SFATAL\0C57P03\0Mstarting up\0\0"));
        assert!(ready(Protocol::Mysql, b"\x4a\0\0\0\x0a10.11"));
        assert!(!ready(Protocol::Mysql, b"\x10\0\0\0\xff\x69\x04Too many"));
        assert!(ready(Protocol::Cql, b"\x84\0\0\0\x06\0\0\0\0"));
        assert!(!ready(Protocol::Cql, b"\x84\0\0\0\0\0\0\0\0"));
        assert!(ready(Protocol::Mongo, b"\x20\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0"));
        for protocol in [Protocol::Redis, Protocol::Postgres, Protocol::Mysql, Protocol::Mongo] {
            assert!(!ready(protocol, b""));
        }
    }

    #[test]
    fn the_fixed_requests_have_their_own_lengths() {
        assert_eq!(POSTGRES[..4], (POSTGRES.len() as u32).to_be_bytes());
        assert_eq!(MONGO[..4], (MONGO.len() as u32).to_le_bytes());
        let document = &MONGO[39..];
        assert_eq!(document[..4], (document.len() as u32).to_le_bytes());
    }

    #[test]
    fn a_closed_port_is_an_error() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = Address::Tcp(format!("127.0.0.1:{port}"));
        assert!(ask(Protocol::Redis, &address).is_err());
        assert!(ask(Protocol::Memcached, &address).is_err());
    }
}
