//! Tests of long values that a worker receives from the socket itself, and of a value that loses
//! its memory meanwhile.

use super::{Client, shown, worker, worker_with};
use crate::connection::arrivals::ArrivalState;
use crate::net::{Incoming, InputBuffer, OutputMemory, Service};
use larder_engine::{Options, Outcome, WhenFull};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::task::Waker;

/// A socket with input for a client's connection.
struct Socket {
    ours: OwnedFd,
    theirs: UnixStream,
}

impl Socket {
    fn new() -> Socket {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Socket { ours: ours.into(), theirs }
    }

    /// Lets the worker receive `input`. Returns the bytes that it has left to the loop; `None` if
    /// it has received nothing.
    fn receive(&mut self, client: &mut Client<'_>, input: &[u8]) -> Option<Vec<u8>> {
        self.theirs.write_all(input).unwrap();
        let mut rest = [0; 100];
        let mut incoming = Incoming::new(&self.ours, &mut rest);
        client.worker.receive(client.connection.as_mut().unwrap(), &mut incoming);
        let rest_len = incoming.received()?.rest;
        Some(rest[..rest_len].to_vec())
    }
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_worker_receives_parts_of_a_value_itself() {
    let mut worker = worker();
    let large = worker.session.engine().large_value_threshold() + 1000;
    for len in [50_000, large] {
        let mut client = Client::new(&mut worker);
        let mut socket = Socket::new();
        let value = value(len);
        let request =
            [format!("set k 0 0 {len}\r\n").as_bytes(), &value, b"\r\nget k\r\n"].concat();
        let (first, parts) = request.split_at(20_000);
        client.send(first);
        for part in parts.chunks(30_011) {
            let rest = socket.receive(&mut client, part).expect("the value has memory");
            client.send(&rest);
        }
        let head = format!("STORED\r\nVALUE k 0 {len}\r\n");
        let replies = client.take();
        assert!(
            replies == [head.as_bytes(), &value, b"\r\nEND\r\n"].concat(),
            "{}",
            shown(&replies)
        );
        let registered = &client.connection.as_ref().unwrap().registered;
        assert_eq!(registered.received(), request.len() as u64);
        // The connection expects no value now, so the worker must leave its input to the loop.
        assert_eq!(socket.receive(&mut client, b"mn\r\n"), None);
    }
}

/// The end of a request may arrive after its value. The worker leaves it to the loop, which must
/// not take the client for one that sends other requests.
#[test]
fn the_end_of_a_request_arrives_apart_from_its_value() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    let mut socket = Socket::new();
    client.send(b"set k 0 0 50000\r\n");
    client.send(&value(10_000));
    assert_eq!(socket.receive(&mut client, &value(40_000)), Some(Vec::new()));
    for end in [&b""[..], b"\r"] {
        let (mut input, mut memory) = (InputBuffer::new(end), OutputMemory::default());
        client.worker.turn();
        let connection = client.connection.as_mut().unwrap();
        client.worker.process(connection, &mut input, &mut memory.buffer(1000));
        assert!(input.expects_value() && input.consumed() == end.len());
        assert_eq!(socket.receive(&mut client, b"next"), None);
    }
    assert_eq!(client.ask(b"\nmn\r\n"), b"STORED\r\nMN\r\n");
}

#[test]
fn a_value_that_loses_its_place_is_refused_and_the_next_request_answered() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    let mut socket = Socket::new();
    client.send(b"set k 0 0 50000\r\n");
    client.send(&value(10_000));
    assert_eq!(socket.receive(&mut client, &value(10_000)), Some(Vec::new()));
    let arrivals = &client.worker.context.arrivals;
    let mut others = Vec::new();
    while !arrivals.is_waited_for() {
        others.push(arrivals.enter(1 << 20, Waker::noop()));
    }
    while others.iter().any(|other| other.state() == ArrivalState::Waiting) {
        arrivals.expel_slow();
        std::thread::yield_now();
    }
    assert_eq!(socket.receive(&mut client, &value(10_000)), None);
    client.send(&[&value(30_000)[..], b"\r\nmn\r\n"].concat());
    let refused = b"SERVER_ERROR out of memory storing object\r\nMN\r\n";
    let replies = client.take();
    assert!(replies == refused, "{}", shown(&replies));
}

/// Memory may run out while the worker receives a value itself. The set then counts as one refused
/// write.
#[test]
fn a_value_without_memory_is_refused_once() {
    let when_full = WhenFull::Refuse;
    let options =
        Options { memory: 64 << 20, max_item_size: 8 << 20, when_full, ..Options::default() };
    let mut worker = worker_with(options);
    let len = worker.session.engine().large_value_threshold() + (1 << 20);
    let mut client = Client::new(&mut worker);
    let mut socket = Socket::new();
    client.send(format!("set k 0 0 {len}\r\n").as_bytes());
    client.send(&value(10_000));
    // Other values take the rest of the memory: first whole ones, then a part of one.
    let mut others = Vec::new();
    let mut last = loop {
        client.worker.turn();
        let session = &client.worker.session;
        let Outcome::Ready(Some(mut other)) = session.large_value(None, len) else {
            panic!("there is address space");
        };
        match session.grow_large(&mut other, len) {
            Outcome::Ready(()) => others.push(other),
            Outcome::Refused(_) => break other,
            _ => std::thread::yield_now(),
        }
    };
    let mut fits = |filled| client.worker.session.try_grow_large(&mut last, filled);
    assert!((0..len).step_by(4096).any(|filled| !fits(filled)), "memory is not full");
    let count = |client: &Client<'_>| client.worker.session.engine().stats().totals.store_no_memory;
    let before = count(&client);
    let mut arrived = 10_000;
    while let Some(rest) = socket.receive(&mut client, &value(50_000)) {
        arrived += 50_000;
        client.send(&rest);
    }
    assert_eq!(count(&client), before);
    client.send(&value(len - arrived));
    client.send(b"\r\nmn\r\n");
    let replies = client.take();
    let refused = b"SERVER_ERROR out of memory storing object\r\nMN\r\n";
    assert!(replies == refused, "{}", shown(&replies));
    assert_eq!(count(&client), before + 1);
}
