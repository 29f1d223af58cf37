//! The connections and the last slow commands as JSON, for `/v1/clients`. Rates cover the time
//! since the previous answer. So the server keeps the counts of the previous answer as long as
//! browsers or programs continue to ask for new answers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clients::{ClientProtocol, Registered, Unfinished, address_of};
use crate::net::{ConnectionId, Peer};
use crate::server::Running;
use crate::slow::{SentBy, SlowCommand, SlowCommands};

/// The largest number of connections in an answer. If there are more, the answer has those that
/// received and sent the most bytes since the previous answer.
const CONNECTIONS: usize = 1000;
/// The largest number of addresses in an answer. If there are more, the answer has those whose
/// connections received and sent the most bytes since the previous answer.
const ADDRESSES: usize = 50;
/// A request within this time after an answer receives the same answer.
const FRESH: Duration = Duration::from_millis(900);
/// Time after which [`ClientList`] drops the last answer.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// The last answer to `/v1/clients`.
#[derive(Debug)]
struct LastAnswer {
    at: Instant,
    json: Arc<str>,
    /// The traffic of all connections, in the order of their ids.
    counts: Vec<Traffic>,
}

/// The last answer to `/v1/clients`; `None` if there was none or [`forget`](Self::forget) dropped
/// it.
#[derive(Debug, Default)]
pub(super) struct ClientList(Mutex<Option<LastAnswer>>);

impl ClientList {
    /// Returns the last answer if it is younger than [`FRESH`], or else a new one.
    pub(super) fn answer(&self, running: &Running) -> Arc<str> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        if let Some(last) = &*last
            && at - last.at < FRESH
        {
            return Arc::clone(&last.json);
        }
        let before = last.as_ref().map(|last| (at - last.at, &*last.counts));
        let (answer, counts) = ClientsAnswer::of(running, before);
        let json: Arc<str> = serde_json::to_string(&answer).unwrap_or_default().into();
        *last = Some(LastAnswer { at, json: Arc::clone(&json), counts });
        json
    }

    /// Drops the last answer if it is older than [`FORGOTTEN`].
    pub(super) fn forget(&self) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|last| last.at.elapsed() > FORGOTTEN) {
            *last = None;
        }
    }
}

/// The traffic of a connection since it opened.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    id: u64,
    received: u64,
    sent: u64,
    commands: u64,
}

impl Traffic {
    fn of(id: ConnectionId, entry: &Registered) -> Traffic {
        let (received, sent) = (entry.received(), entry.sent());
        Traffic { id: id.get(), received, sent, commands: entry.commands() }
    }

    fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            id: self.id,
            received: self.received.wrapping_sub(earlier.received),
            sent: self.sent.wrapping_sub(earlier.sent),
            commands: self.commands.wrapping_sub(earlier.commands),
        }
    }

    fn bytes(self) -> u64 {
        self.received + self.sent
    }
}

#[derive(Debug, Serialize)]
struct ClientsAnswer {
    /// The wall clock's time of the answer, in milliseconds since the Unix epoch.
    time: u64,
    /// The length of the time that the rates cover, in seconds; `null` if the answer has no rates,
    /// because the server keeps no previous answer.
    interval: Option<f64>,
    /// Number of open connections, including those that are not listed.
    total: usize,
    /// True if commands are counted. They are counted only while latencies are measured.
    counts_commands: bool,
    received_per_second: Option<f64>,
    sent_per_second: Option<f64>,
    protocols: Vec<ProtocolRow>,
    /// Number of different addresses, including those that are not listed.
    address_count: usize,
    addresses: Vec<AddressRow>,
    connections: Vec<ConnectionRow>,
    slow: SlowPart,
}

#[derive(Debug, Serialize)]
struct ProtocolRow {
    name: &'static str,
    connections: usize,
}

#[derive(Debug, Serialize)]
struct AddressRow {
    address: String,
    connections: usize,
    received: u64,
    sent: u64,
    bytes_per_second: Option<f64>,
    commands_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ConnectionRow {
    id: u64,
    address: String,
    protocol: &'static str,
    age: u32,
    idle: u32,
    received: u64,
    sent: u64,
    commands: Option<u64>,
    bytes_per_second: Option<f64>,
    commands_per_second: Option<f64>,
    /// Memory that is held for the connection, in bytes: buffers of the event loop, and the part of
    /// a value that has arrived.
    kept: u32,
    state: &'static str,
    /// The sort key of the list: the bytes received and sent in the interval, then those since the
    /// connection opened.
    #[serde(skip)]
    rank: (u64, u64),
}

#[derive(Debug, Serialize)]
struct SlowPart {
    /// The reason why slow commands are not recorded; `null` if they are.
    off: Option<&'static str>,
    threshold_us: Option<u64>,
    /// The number of slow commands since the start or the last `stats reset`.
    count: u64,
    commands: Vec<SlowRow>,
}

#[derive(Debug, Serialize)]
struct SlowRow {
    /// The wall clock's time of the reply, in milliseconds since the Unix epoch.
    time: u64,
    took_us: u64,
    connection: Option<u64>,
    address: Option<String>,
    protocol: &'static str,
    class: &'static str,
    command: Option<Box<str>>,
    commands: u32,
    key_hash: Option<String>,
    request_bytes: u64,
    reply_bytes: u64,
    waits: Vec<&'static str>,
}

/// The sums of the connections of one address. `received` and `sent` count from the opening of each
/// connection, `bytes` and `commands` only from the previous answer.
#[derive(Debug, Default)]
struct AddressTally {
    connections: usize,
    received: u64,
    sent: u64,
    /// Number of bytes received and sent since the previous answer.
    bytes: u64,
    commands: u64,
}

/// Collects the connections for an answer. The caller adds them in the order of their ids.
struct ClientsCollector<'b> {
    now: u32,
    /// The counts of the previous answer, in the order of the connections' ids. When `add` adds a
    /// connection, it removes the counts of all connections with smaller ids.
    before: &'b [Traffic],
    seconds: Option<f64>,
    counts_commands: bool,
    counts: Vec<Traffic>,
    /// Numbers of bytes that all connections have received and sent since the previous answer.
    moved: (u64, u64),
    protocols: [usize; ClientProtocol::ALL.len()],
    /// The sums of each address. Clients of Unix sockets have the key `None`.
    addresses: HashMap<Option<IpAddr>, AddressTally>,
    rows: Vec<ConnectionRow>,
}

impl<'b> ClientsCollector<'b> {
    fn new(now: u32, before: &'b [Traffic], seconds: Option<f64>, counts_commands: bool) -> Self {
        ClientsCollector {
            now,
            before,
            seconds,
            counts_commands,
            counts: Vec::new(),
            moved: (0, 0),
            protocols: [0; ClientProtocol::ALL.len()],
            addresses: HashMap::new(),
            rows: Vec::new(),
        }
    }

    fn per_second(&self, count: u64) -> Option<f64> {
        self.seconds.map(|seconds| count as f64 / seconds)
    }

    fn add(&mut self, id: ConnectionId, entry: &Registered) {
        let counts = Traffic::of(id, entry);
        self.counts.push(counts);
        let passed = self.before.partition_point(|earlier| earlier.id < counts.id);
        self.before = &self.before[passed..];
        // A connection that is not in the last answer is new, so all its bytes moved since that
        // answer.
        let moved = match self.before.first() {
            Some(earlier) if earlier.id == counts.id => counts.since(*earlier),
            _ => counts,
        };
        self.moved = (self.moved.0 + moved.received, self.moved.1 + moved.sent);
        self.protocols[entry.protocol() as usize] += 1;
        let address = match &entry.peer {
            Peer::Tcp { from, .. } => Some(from.ip()),
            Peer::Unix => None,
        };
        let tally = self.addresses.entry(address).or_default();
        tally.connections += 1;
        tally.received += counts.received;
        tally.sent += counts.sent;
        tally.bytes += moved.bytes();
        tally.commands += moved.commands;
        self.rows.push(ConnectionRow {
            id: counts.id,
            address: address_of(&entry.peer),
            protocol: entry.protocol().name(),
            age: self.now.saturating_sub(entry.since),
            idle: self.now.saturating_sub(entry.last_command()),
            received: counts.received,
            sent: counts.sent,
            commands: self.counts_commands.then_some(counts.commands),
            bytes_per_second: self.per_second(moved.bytes()),
            commands_per_second: self.per_second(moved.commands).filter(|_| self.counts_commands),
            kept: entry.kept(),
            state: state_of(entry),
            rank: (moved.bytes(), counts.bytes()),
        });
        if self.rows.len() >= 2 * CONNECTIONS {
            self.keep_busiest();
        }
    }

    /// Keeps the rows of the [`CONNECTIONS`] connections that received and sent the most bytes.
    /// Sorts the rows, the busiest connection first.
    fn keep_busiest(&mut self) {
        self.rows.sort_unstable_by_key(|row| Reverse(row.rank));
        self.rows.truncate(CONNECTIONS);
    }

    fn address_rows(&mut self) -> Vec<AddressRow> {
        let mut tallies: Vec<_> = std::mem::take(&mut self.addresses).into_iter().collect();
        tallies.sort_unstable_by_key(|(_, tally)| Reverse((tally.bytes, tally.connections)));
        tallies.truncate(ADDRESSES);
        let rows = tallies.into_iter().map(|(address, tally)| AddressRow {
            address: address.map_or("unix".to_owned(), |address| address.to_string()),
            connections: tally.connections,
            received: tally.received,
            sent: tally.sent,
            bytes_per_second: self.per_second(tally.bytes),
            commands_per_second: self.per_second(tally.commands).filter(|_| self.counts_commands),
        });
        rows.collect()
    }
}

/// Returns what a connection is doing or waiting for.
fn state_of(entry: &Registered) -> &'static str {
    match entry.waits().names().next() {
        Some(wait) => wait,
        None if entry.is_blocked() => "output",
        None => match entry.unfinished() {
            Unfinished::Reply => "output",
            Unfinished::Request => "input",
            Unfinished::Nothing if entry.kept() > 0 => "input",
            Unfinished::Nothing => "idle",
        },
    }
}

impl ClientsAnswer {
    /// Returns a new answer, and the present counts of all connections. For the next answer, the
    /// caller passes these counts in `before`, with the time since they were read.
    fn of(
        running: &Running,
        before: Option<(Duration, &[Traffic])>,
    ) -> (ClientsAnswer, Vec<Traffic>) {
        let seconds = before.map(|(since, _)| since.as_secs_f64());
        let counts_commands = running.latencies_ever().is_some();
        let counts = before.map_or(&[][..], |(_, counts)| counts);
        let now = running.clock.now();
        let mut collector = ClientsCollector::new(now, counts, seconds, counts_commands);
        running.registry.each(|id, entry| collector.add(id, entry));
        collector.keep_busiest();
        let names = ClientProtocol::ALL.into_iter().zip(collector.protocols);
        let protocols = names
            .filter(|(_, connections)| *connections > 0)
            .map(|((_, name), connections)| ProtocolRow { name, connections })
            .collect();
        let answer = ClientsAnswer {
            time: running.clock.wall_ms(running.clock.nanos()),
            interval: seconds,
            total: collector.counts.len(),
            counts_commands,
            received_per_second: collector.per_second(collector.moved.0),
            sent_per_second: collector.per_second(collector.moved.1),
            protocols,
            address_count: collector.addresses.len(),
            addresses: collector.address_rows(),
            connections: collector.rows,
            slow: SlowPart::of(running),
        };
        (answer, collector.counts)
    }
}

impl SlowPart {
    fn of(running: &Running) -> SlowPart {
        let least = running.slow_from();
        let slow = running.context().filter(|_| least.is_ok()).map(|it| Arc::clone(&it.slow));
        let slow = slow.unwrap_or_default();
        let newest_first = slow.newest_first();
        let commands = newest_first.iter().map(|it| SlowRow::of(running, &slow, it));
        SlowPart {
            off: least.err(),
            threshold_us: least.ok().map(|least| least.as_micros() as u64),
            count: running.latencies().map_or(0, |latencies| latencies.slow),
            commands: commands.collect(),
        }
    }
}

impl SlowRow {
    fn of(running: &Running, slow: &SlowCommands, command: &SlowCommand) -> SlowRow {
        let (connection, address, protocol) = match &command.sent_by {
            SentBy::Connection { id, peer, protocol } => {
                (Some(id.get()), Some(address_of(peer)), protocol.name())
            }
            SentBy::LimitPort => (None, None, "http"),
        };
        SlowRow {
            time: running.clock.wall_ms(command.time_ns),
            took_us: command.took_ns / 1000,
            connection,
            address,
            protocol,
            class: command.class.name(),
            command: command.name.clone(),
            commands: command.commands,
            key_hash: command.key.map(|key| slow.name_of(key)),
            request_bytes: command.request_bytes,
            reply_bytes: command.reply_bytes,
            waits: command.waits.names().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Peer;

    fn collector(before: &[Traffic], seconds: Option<f64>) -> ClientsCollector<'_> {
        ClientsCollector::new(1000, before, seconds, true)
    }

    fn entry(address: &str, received: usize) -> Registered {
        let to = "127.0.0.1:11211".parse().unwrap();
        let entry = Registered::new(Peer::Tcp { from: address.parse().unwrap(), to }, 900);
        entry.called(990, received, 1);
        entry
    }

    #[test]
    fn rates_are_those_since_the_last_answer() {
        let first = Traffic { id: 3, received: 100, sent: 1, commands: 0 };
        // Connection 4 has closed since the last answer, so it is not added below.
        let before = [first, Traffic { id: 4, ..first }, Traffic { id: 6, received: 7, ..first }];
        let mut collector = collector(&before, Some(2.0));
        collector.add(ConnectionId::new(3), &entry("10.0.0.1:5", 300));
        collector.add(ConnectionId::new(6), &entry("10.0.0.2:5", 7));
        collector.add(ConnectionId::new(9), &entry("[2001:db8::1]:5", 9));
        let rates: Vec<_> = collector.rows.iter().map(|row| row.bytes_per_second).collect();
        assert_eq!(rates, [Some(100.0), Some(0.0), Some(5.0)]);
        assert_eq!(collector.moved, (209, 1));
        let row = &collector.rows[2];
        assert_eq!((&*row.address, row.age, row.idle), ("[2001:db8::1]:5", 100, 10));
        let addresses = collector.address_rows();
        assert_eq!((&*addresses[0].address, addresses[0].received), ("10.0.0.1", 300));
    }

    #[test]
    fn the_busiest_of_many_connections_and_addresses_are_shown() {
        let mut collector = collector(&[], None);
        for number in 1..=5 * CONNECTIONS {
            let address = format!("10.0.{}.{}:5", number % 7, number % 250);
            // A connection with a larger number has received more bytes.
            collector.add(ConnectionId::new(number as u64), &entry(&address, number));
        }
        assert!(collector.rows.len() < 2 * CONNECTIONS);
        collector.keep_busiest();
        let ids: Vec<_> = collector.rows.iter().map(|row| row.id as usize).collect();
        assert_eq!(ids, (4 * CONNECTIONS + 1..=5 * CONNECTIONS).rev().collect::<Vec<_>>());
        assert_eq!(collector.counts.len(), 5 * CONNECTIONS);
        assert_eq!(collector.address_rows().len(), ADDRESSES);
        assert_eq!(collector.rows[0].bytes_per_second, None);
    }

    #[test]
    fn the_state_names_the_reason_for_waiting() {
        use crate::waits::{Wait, Waits};
        let entry = entry("10.0.0.1:5", 1);
        assert_eq!(state_of(&entry), "idle");
        entry.set_kept(5);
        assert_eq!(state_of(&entry), "input");
        entry.set_kept(0);
        entry.set_unfinished(Unfinished::Request);
        assert_eq!(state_of(&entry), "input");
        entry.set_unfinished(Unfinished::Reply);
        assert_eq!(state_of(&entry), "output");
        entry.set_unfinished(Unfinished::Request);
        entry.set_blocked(true);
        assert_eq!(state_of(&entry), "output");
        entry.set_waits(Waits::NONE.with(Wait::Read));
        assert_eq!(state_of(&entry), "read");
    }
}
