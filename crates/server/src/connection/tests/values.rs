//! Tests of long values that a worker receives from the socket itself, and of a value that loses
//! its memory meanwhile.

use super::{Client, shown, worker};
use crate::connection::arrivals::ArrivalState;
use crate::net::{Incoming, Service};
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
