//! Tests which slow commands are recorded, and with which reasons for their waits.

use super::long::store_with_a_on_the_device;
use super::timed::{MS, clock, timed};
use super::{Client, Flow, LOST, Store};
use crate::clients::{ClientProtocol, Unfinished};
use crate::connection::Worker;
use crate::net::Service;
use crate::slow::{SentBy, SlowCommand};
use larder_engine::{Engine, Options, SecretHash};
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use std::time::Duration;

/// Returns a client whose commands count as slow from 10 ms on.
fn watched(store: &Store) -> Client {
    let client = store.client();
    client.worker.context.latencies.set_slow_from(Some(Duration::from_millis(10)));
    client
}

fn recorded(client: &Client) -> Vec<SlowCommand> {
    client.worker.context.slow.newest_first()
}

/// Returns the only recorded command. Panics if there are none or several.
#[track_caller]
fn only(client: &Client) -> SlowCommand {
    let recorded = recorded(client);
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    recorded.into_iter().next().unwrap()
}

fn hash(worker: &Worker, key: &str) -> Option<SecretHash> {
    Some(worker.session.key(key.as_bytes()).secret_hash())
}

fn waits(command: &SlowCommand) -> String {
    command.waits.names().collect::<Vec<_>>().join(" ")
}

fn now(client: &Client) -> String {
    let connection = client.connection.as_ref().unwrap();
    connection.registered.waits().names().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_write_waits_for_its_commit() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let request = b"set a 0 0 1\r\nx\r\n";
    client.sends(request, b"");
    assert_eq!(now(&client), "commit");
    clock.fetch_add(12 * MS, Relaxed);
    store.commit();
    client.gets(b"STORED\r\n");
    assert_eq!(now(&client), "");
    let slow = only(&client);
    assert_eq!((waits(&slow).as_str(), slow.class.name(), slow.commands), ("commit", "set", 1));
    assert_eq!((slow.took_ns, slow.key), (12 * MS, hash(&client.worker, "a")));
    assert_eq!((slow.request_bytes, slow.reply_bytes), (request.len() as u64, 8));
    assert!(matches!(slow.sent_by, SentBy::Connection { protocol: ClientProtocol::Text, .. }));
    assert_eq!(client.worker.context.latencies.totals().slow, 1);
    // A write of 9 ms must not be recorded, and neither must the get whose reply waits behind the
    // write.
    client.sends(b"set b 0 0 1\r\nx\r\nget none\r\n", b"");
    clock.fetch_add(9 * MS, Relaxed);
    store.commit();
    client.gets(b"STORED\r\nEND\r\n");
    assert_eq!(recorded(&client).len(), 1);
}

/// The recorded hash must be the hash of the decoded key, both for a short and for a long value.
/// `YQ==` is `a` in base64.
#[test]
fn a_key_in_base64_has_the_hash_of_the_key() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let long = [&b"ms YQ== 20000 b\r\n"[..], &[b'x'; 20_000], b"\r\n"].concat();
    for request in [&b"ms YQ== 1 b\r\nx\r\n"[..], &long] {
        client.sends(request, b"");
        clock.fetch_add(12 * MS, Relaxed);
        store.commit();
        client.gets(b"HD\r\n");
        let slow = only(&client);
        assert_eq!((slow.key, waits(&slow).as_str()), (hash(&client.worker, "a"), "commit"));
        client.worker.context.slow.clear();
    }
    // `Y` is not valid base64, so the command has no key. It is refused at once and not slow.
    client.sends(b"ms Y 1 b\r\nx\r\n", b"CLIENT_ERROR error decoding key\r\n");
    assert!(recorded(&client).is_empty());
}

/// The recorded hash must be the hash of the decoded key, also if a call is slow because of a read
/// from the device. `YQ==` is `a` in base64.
#[test]
fn a_slow_read_of_a_key_in_base64_has_the_hash_of_the_key() {
    let (store, _) = store_with_a_on_the_device(|_| {});
    let mut client = watched(&store);
    let clock = clock(&mut client);
    assert_eq!(client.send(b"mg YQ== b v\r\n"), b"");
    clock.fetch_add(20 * MS, Relaxed);
    assert!(store.engine.serve_reads());
    assert!(client.woken().starts_with(b"VA "));
    let slow = only(&client);
    assert_eq!((slow.key, slow.name.as_deref()), (hash(&client.worker, "a"), Some("mg")));
}

#[test]
fn a_failed_write_is_slow_too() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let long = [&b"set a 0 0 20000\r\n"[..], &[b'x'; 20_000], b"\r\n"].concat();
    client.sends(&long, b"");
    clock.fetch_add(10 * MS, Relaxed);
    store.fail();
    client.gets(LOST);
    let slow = only(&client);
    assert_eq!((slow.key, waits(&slow).as_str()), (hash(&client.worker, "a"), "commit"));
    assert_eq!((slow.request_bytes, slow.reply_bytes), (long.len() as u64, LOST.len() as u64));
}

#[test]
fn a_read_waits_for_the_device() {
    let (store, _) = store_with_a_on_the_device(|_| {});
    let mut client = watched(&store);
    let clock = clock(&mut client);
    assert_eq!(client.send(b"mn\r\nget a\r\nmn\r\n"), b"MN\r\n");
    assert_eq!((client.flow, now(&client).as_str()), (Flow::Park, "read"));
    clock.fetch_add(20 * MS, Relaxed);
    assert!(store.engine.serve_reads());
    let reply = client.woken();
    assert!(reply.ends_with(b"\r\nEND\r\nMN\r\n"));
    assert_eq!(now(&client), "");
    let slow = only(&client);
    assert_eq!((waits(&slow).as_str(), slow.name.as_deref()), ("read", Some("get")));
    assert_eq!((slow.took_ns, slow.key), (20 * MS, hash(&client.worker, "a")));
    // The same call also answered the `mn` after the get, so the recorded call must have two
    // commands.
    assert_eq!((slow.commands, slow.reply_bytes), (2, reply.len() as u64));
    // The time of this wait for the device must not be added to later requests of the connection.
    client.sends(b"mn\r\n", b"MN\r\n");
    clock.fetch_add(20 * MS, Relaxed);
    client.sends(b"mn\r\n", b"MN\r\n");
    assert_eq!(recorded(&client).len(), 1);
}

#[test]
fn a_long_value_waits_for_its_place() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let arrivals = &client.worker.context.arrivals;
    let mut others = Vec::new();
    while !arrivals.is_waited_for() {
        others.push(arrivals.enter(1 << 20, Waker::noop()));
    }
    client.sends(&[&b"set a 0 0 20000\r\n"[..], &[b'x'; 9_000]].concat(), b"");
    assert_eq!((client.flow, now(&client).as_str()), (Flow::Park, "place"));
    clock.fetch_add(15 * MS, Relaxed);
    drop(others);
    client.sends(b"xxx", b"");
    assert_eq!((client.flow, now(&client).as_str()), (Flow::Read, ""));
    // From now on, the server waits for the rest of the value. The set's latency must not include
    // this time.
    clock.fetch_add(100 * MS, Relaxed);
    client.sends(&[&[b'x'; 10_997][..], b"\r\nmn\r\n"].concat(), b"");
    clock.fetch_add(5 * MS, Relaxed);
    store.commit();
    client.gets(b"STORED\r\nMN\r\n");
    let set = only(&client);
    assert_eq!((set.took_ns, waits(&set).as_str()), (20 * MS, "place commit"));
    assert_eq!((set.key, set.request_bytes), (hash(&client.worker, "a"), 20_019));
    // The latency of the `mn` after the set must not include the waits of the set.
    assert_eq!((timed(&client, "set"), timed(&client, "other")), ((1, 20), (1, 0)));
}

#[test]
fn requests_behind_a_value_have_not_waited_for_its_place() {
    let options = Options { memory: 64 << 20, ..Options::default() };
    let mut client = Client::new(&Engine::open_without_threads(options).unwrap());
    client.worker.context.latencies.set_slow_from(Some(Duration::from_millis(10)));
    let clock = clock(&mut client);
    let arrivals = &client.worker.context.arrivals;
    let mut others = Vec::new();
    while !arrivals.is_waited_for() {
        others.push(arrivals.enter(1 << 20, Waker::noop()));
    }
    client.sends(&[&b"set a 0 0 20000\r\n"[..], &[b'x'; 9_000]].concat(), b"");
    assert_eq!((client.flow, now(&client).as_str()), (Flow::Park, "place"));
    clock.fetch_add(15 * MS, Relaxed);
    drop(others);
    client.sends(b"xxx", b"");
    let rest = [&[b'x'; 10_997][..], b"\r\nmn\r\nget none\r\n"].concat();
    client.sends(&rest, b"STORED\r\nMN\r\nEND\r\n");
    let set = only(&client);
    assert_eq!((set.took_ns, waits(&set).as_str(), set.commands), (15 * MS, "place", 1));
    assert_eq!((set.class.name(), set.key), ("set", hash(&client.worker, "a")));
    assert_eq!((set.request_bytes, set.reply_bytes), (20_019, 8));
    assert_eq!((timed(&client, "set"), timed(&client, "get")), ((1, 15), (1, 0)));
    assert_eq!(client.connection.as_ref().unwrap().registered.commands(), 3);
}

/// A call receives the rest of a value, and executes the set and another command. The bytes of the
/// value that earlier calls have received count too.
#[test]
fn a_slow_call_counts_all_bytes_of_its_requests() {
    let options = Options { memory: 64 << 20, ..Options::default() };
    let mut client = Client::new(&Engine::open_without_threads(options).unwrap());
    client.worker.context.latencies.set_slow_from(Some(Duration::from_millis(10)));
    client.sends(&[&b"set a 0 0 20000\r\n"[..], &[b'x'; 9_000]].concat(), b"");
    let clock = clock(&mut client);
    client.worker.clock = Box::new(move || clock.fetch_add(12 * MS, Relaxed) + 12 * MS);
    client.sends(&[&[b'x'; 11_000][..], b"\r\nmn\r\n"].concat(), b"STORED\r\nMN\r\n");
    let slow = only(&client);
    assert_eq!((slow.commands, slow.request_bytes, slow.reply_bytes), (2, 20_023, 12));
}

/// A call executes a set, whose reply waits for its commit, and two other commands. The recorded
/// call must not show the name and the key of the set, because the set is recorded separately.
#[test]
fn a_slow_call_names_only_answered_commands() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let shown = std::sync::Arc::clone(&clock);
    // The clock advances by 12 ms whenever it is read. `send` reads it at the beginning of the turn
    // and at the end of the call.
    client.worker.clock = Box::new(move || shown.fetch_add(12 * MS, Relaxed) + 12 * MS);
    client.sends(b"set a 0 0 1\r\nx\r\nmg nothing v\r\nmn\r\n", b"");
    let slow = only(&client);
    assert_eq!((slow.class.name(), slow.name.as_deref(), slow.key), ("get", None, None));
    assert_eq!(slow.commands, 2);
    store.commit();
    client.gets(b"STORED\r\nEN\r\nMN\r\n");
    let recorded = recorded(&client);
    let of_a = recorded.iter().filter(|slow| slow.key == hash(&client.worker, "a"));
    let of_a: Vec<_> = of_a.map(|slow| (slow.class.name(), slow.commands, waits(slow))).collect();
    assert_eq!(of_a, [("set", 1, "commit".to_owned())]);
}

#[test]
fn the_registry_shows_unfinished_requests_and_replies() {
    let options = Options { memory: 64 << 20, ..Options::default() };
    let mut client = Client::new(&Engine::open_without_threads(options).unwrap());
    let shown = |client: &Client| {
        let entry = &client.connection.as_ref().unwrap().registered;
        (entry.unfinished(), entry.kept())
    };
    client.sends(&[&b"set a 0 0 100000\r\n"[..], &[b'x'; 60_000]].concat(), b"");
    assert_eq!(shown(&client), (Unfinished::Request, 60_000));
    // The number of bytes that a connection keeps must include the event loop's buffers, here 300
    // bytes of input and 20 bytes of output.
    let connection = client.connection.as_mut().unwrap();
    client.worker.notes_buffers(connection, 300, 20);
    assert_eq!(shown(&client), (Unfinished::Request, 60_320));
    client.sends(&[&[b'x'; 40_000][..], b"\r\n"].concat(), b"STORED\r\n");
    assert_eq!(shown(&client), (Unfinished::Nothing, 320));
    client.sends(b"set b 0 0 2000000\r\nxxx", b"SERVER_ERROR object too large for cache\r\n");
    assert_eq!(shown(&client), (Unfinished::Request, 320));
    client.sends(&[&[b'x'; 1_999_997][..], b"\r\n"].concat(), b"");
    assert_eq!(shown(&client), (Unfinished::Nothing, 320));
    // The value is longer than the output's limit, so one call sends only a part of it.
    client.input.extend_from_slice(b"get a\r\n");
    client.call();
    assert_eq!((client.flow, shown(&client).0), (Flow::Drain, Unfinished::Reply));
    client.more();
    assert_eq!(shown(&client), (Unfinished::Nothing, 320));
}

/// If a command is slow only because its worker was busy in the same turn, the recorded command
/// must not show a reason for a wait.
#[test]
fn a_busy_worker_is_no_reason_to_wait() {
    let store = Store::new();
    let mut client = watched(&store);
    let clock = clock(&mut client);
    let shown = std::sync::Arc::clone(&clock);
    // The clock advances by 6 ms whenever it is read. `send` reads it at the beginning of the turn
    // and at the end of the call.
    client.worker.clock = Box::new(move || shown.fetch_add(6 * MS, Relaxed) + 6 * MS);
    let fast = client.worker.context.latencies.totals().slow;
    client.sends(b"mg nothing v\r\n", b"EN\r\n");
    assert_eq!(client.worker.context.latencies.totals().slow, fast);
    client.worker.context.latencies.set_slow_from(Some(Duration::from_millis(6)));
    client.sends(b"mg nothing v\r\nmn\r\n", b"EN\r\nMN\r\n");
    let slow = only(&client);
    assert_eq!((waits(&slow).as_str(), slow.name.as_deref(), slow.commands), ("", Some("mg"), 2));
    assert_eq!(slow.key, hash(&client.worker, "nothing"));
    // A new threshold must take effect in the worker's next turn.
    client.worker.context.latencies.set_slow_from(None);
    client.sends(b"mn\r\n", b"MN\r\n");
    assert_eq!(client.worker.context.latencies.totals().slow, 2);
    // While latencies are not measured, no command may count as slow.
    client.worker.context.latencies.set_slow_from(Some(Duration::ZERO));
    client.worker.context.latencies.set_on(false);
    client.sends(b"mn\r\nset a 0 0 1 noreply\r\nx\r\n", b"MN\r\n");
    assert_eq!(client.worker.context.latencies.totals().slow, 2);
}

#[test]
fn input_that_is_no_command_has_no_name() {
    let store = Store::new();
    let mut client = watched(&store);
    client.worker.context.latencies.set_slow_from(Some(Duration::ZERO));
    client.sends(b"<script>alert(1)</script>\r\n", b"ERROR\r\n");
    let slow = only(&client);
    assert_eq!((slow.class.name(), slow.name, slow.key), ("other", None, None));
    let mut binary = watched(&store);
    binary.worker.context.latencies.set_slow_from(Some(Duration::ZERO));
    binary.send(&[&[0x80, 0x0a][..], &[0; 22]].concat());
    assert_eq!(only(&binary).name.as_deref(), Some("0x0a"));
}
