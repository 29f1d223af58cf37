//! Protocols other than memcached's. The generator speaks memcached's itself.
//!
//! A [`Wire`] is one protocol. It writes requests, and its [`Replies`] translate the server's
//! replies into memcached's replies with the same meaning. So the generator checks and counts the
//! answers of all systems alike. All connections share a wire, which has no state per connection.
//! `Replies` have the state of one connection, and use neither a socket nor a clock.

mod bson;
mod caller;
mod cql;
mod messages;
mod mongo;
mod mysql;
mod postgres;
mod resp;

use std::fmt;

use larder_client::{Address, Sink, Stream};

use crate::Result;
use crate::workload::Verb;

pub(crate) use caller::{Answer, Caller};
pub(crate) use cql::Cql;
pub(crate) use mongo::Mongo;
pub(crate) use mysql::{Mysql, TableEngine};
pub(crate) use postgres::Postgres;
pub(crate) use resp::Resp;

/// The database or keyspace of servers that have several.
const DATABASE: &str = "bench";

/// A protocol other than memcached's.
pub(crate) trait Wire: fmt::Debug + Send + Sync {
    /// Returns true if the protocol has a request for `verb`.
    fn speaks(&self, verb: Verb) -> bool {
        matches!(verb, Verb::Get | Verb::Set | Verb::Incr | Verb::SetCounter)
    }

    /// Returns true if a server answers the requests of a connection in their order. If not, a
    /// connection may have only one request in flight.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Creates the tables on a server, unless they exist.
    ///
    /// # Errors
    /// Returns an error if the server refuses or cannot be reached.
    fn prepare(&self, _server: &Address) -> Result<()> {
        Ok(())
    }

    /// Prepares a new connection: handshake, login, prepared statements. The socket is in blocking
    /// mode. An implementation reads only the replies to its own requests, because [`Replies`] must
    /// get all bytes after them.
    ///
    /// # Errors
    /// Returns an error if the server refuses or the connection breaks.
    fn greet(&self, socket: &Stream) -> Result<()>;

    /// Appends one request. Appends nothing for a verb that the wire does not speak. For `Set`,
    /// `value` is the value. For `Limit`, `value` holds budget, window and burst as decimal words.
    /// For other verbs, it is empty.
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>);

    /// Appends a set of a value that lives for `seconds`. Returns false if the wire has no such
    /// request.
    fn push_expiring(&self, _key: &[u8], _value: &[u8], _seconds: u32, _: &mut Vec<u8>) -> bool {
        false
    }

    /// Returns a new reader for the replies of one connection.
    fn replies(&self) -> Box<dyn Replies>;
}

/// Splits the bytes that a server sent into replies. Keeps an incomplete reply until its rest
/// arrives.
pub(crate) trait Replies: fmt::Debug + Send {
    /// Reads the next bytes. The reader must not be used after an error.
    ///
    /// # Errors
    /// Returns a description of bytes that break the protocol.
    fn feed(&mut self, bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String>;
}

/// Knows the requests whose replies have not arrived yet, and receives these replies in order.
pub(crate) trait Asker: Sink {
    /// Returns the verb of the oldest such request, or `None` if there is none.
    fn verb(&self) -> Option<Verb>;
}

/// Returns the verb of the request that the next reply answers.
fn asked(asker: &dyn Asker) -> std::result::Result<Verb, String> {
    asker.verb().ok_or_else(|| "a reply that answers no request".to_owned())
}

#[cfg(test)]
mod tests;
