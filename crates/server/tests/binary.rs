//! Tests of the binary protocol over TCP. The tests send exact bytes and compare every field of the
//! replies. The expected replies were recorded from memcached 1.6.45 with the same requests. The
//! values of cas ids are not compared, because Larder's differ. Every test runs on both back-ends
//! of the event loop.

#![allow(clippy::duplicate_mod, reason = "the same tests run once per back-end")]

use larder_engine::{Engine, NANOS, Options as EngineOptions};
use larder_server::command::{Hooks, ServerContext, Switches};
use larder_server::connection::Worker;
use larder_server::net::{self, BackendChoice, Control, Endpoint, Listener, Options};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NOW: u32 = 1_800_000_000;
const OPAQUE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];
/// The opaque of the noop that the tests send last, to recognise the end of the replies.
const LAST: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

struct TwoRows;

impl Hooks for TwoRows {
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
        if group.is_empty() {
            row("pid", format_args!("{}", 42));
            row("version", format_args!("1.6.45"));
        }
        group.is_empty()
    }
    fn reset_stats(&self) {}
    fn shutdown(&self, _graceful: bool) {}
}

/// The kernel interface that a test runs on.
trait Backend {
    const CHOICE: BackendChoice;
}

struct Epoll;

impl Backend for Epoll {
    const CHOICE: BackendChoice = BackendChoice::Epoll;
}

struct Uring;

impl Backend for Uring {
    const CHOICE: BackendChoice = BackendChoice::Uring;
}

/// A server with two workers in this process.
struct On<B> {
    address: SocketAddr,
    control: Control,
    threads: Vec<JoinHandle<()>>,
    backend: PhantomData<B>,
}

impl<B: Backend> On<B> {
    fn start() -> Self {
        Self::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut ServerContext)) -> Self {
        let engine = Engine::open(EngineOptions::default()).unwrap();
        let mut context = ServerContext::new(Arc::clone(&engine), NOW - 100, Box::new(TwoRows));
        change(&mut context);
        let context = Arc::new(context);
        let listener = Listener::bind(&Endpoint::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = listener.address().unwrap();
        let listeners = vec![listener];
        let options = Options { listeners, backend: B::CHOICE, ..Options::default() };
        let (control, workers) = net::open(options.clone(), 2).unwrap_or_else(|refusal| {
            eprintln!("left out, on epoll instead: {refusal}");
            net::open(Options { backend: BackendChoice::Epoll, ..options }, 2).unwrap()
        });
        let threads = workers.into_iter().map(|worker| {
            let (engine, context) = (Arc::clone(&engine), Arc::clone(&context));
            thread::spawn(move || {
                let session = engine.session(worker.waker());
                worker
                    .run(Worker::new(context, session, Box::new(|| u64::from(NOW) * NANOS)))
                    .unwrap();
            })
        });
        let threads = threads.collect();
        On { address, control, threads, backend: PhantomData }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Sends requests and a noop on a new connection. Expects exactly `replies`, and then the reply
    /// to the noop.
    #[track_caller]
    fn expect(&self, requests: &[Vec<u8>], replies: &[Reply]) {
        let mut stream = self.connect();
        stream.write_all(&requests.concat()).unwrap();
        assert_eq!(answers(&mut stream), replies);
    }

    /// Sends a request and a noop on a new connection. Expects exactly `replies`, and then the end
    /// of the connection.
    #[track_caller]
    fn expect_closed(&self, request: &[u8], replies: &[Reply]) {
        let mut stream = self.connect();
        // The request and the noop are sent in one piece, because bytes that arrive after the close
        // would cause a reset.
        stream.write_all(&[request, &noop()].concat()).unwrap();
        for expected in replies {
            let (reply, opaque) = read_reply(&mut stream);
            assert_eq!((&reply, opaque), (expected, OPAQUE));
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "the connection ends");
    }
}

impl<B> Drop for On<B> {
    fn drop(&mut self) {
        self.control.shut_down(Duration::from_secs(1));
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    compared(opcode, extras, key, value, 0)
}

fn compared(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![0x80, opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    packet.extend_from_slice(&body_len.to_be_bytes());
    packet.extend_from_slice(&OPAQUE);
    packet.extend_from_slice(&cas.to_be_bytes());
    [&packet, extras, key, value].concat()
}

fn noop() -> Vec<u8> {
    let mut noop = packet(0x0a, b"", b"", b"");
    noop[12..16].copy_from_slice(&LAST);
    noop
}

fn store(opcode: u8, key: &[u8], flags: u32, value: &[u8]) -> Vec<u8> {
    packet(opcode, &[flags.to_be_bytes(), [0; 4]].concat(), key, value)
}

fn get(opcode: u8, key: &[u8]) -> Vec<u8> {
    packet(opcode, b"", key, b"")
}

fn gat(opcode: u8, key: &[u8], exptime: u32) -> Vec<u8> {
    packet(opcode, &exptime.to_be_bytes(), key, b"")
}

fn count(opcode: u8, key: &[u8], delta: u64, initial: u64, exptime: u32) -> Vec<u8> {
    let numbers = [delta.to_be_bytes(), initial.to_be_bytes()].concat();
    packet(opcode, &[&numbers[..], &exptime.to_be_bytes()].concat(), key, b"")
}

/// A reply, with the fact whether it has a cas id in place of the cas id. So replies with different
/// cas ids can be equal.
#[derive(Clone, PartialEq, Eq)]
struct Reply {
    opcode: u8,
    status: u16,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    has_cas: bool,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reply { opcode, status, extras, key, value, has_cas } = self;
        let (key, value) = (key.escape_ascii(), value[..value.len().min(80)].escape_ascii());
        write!(f, "{opcode:02x}/{status:02x} {extras:?} {key} {value} cas {has_cas}")
    }
}

/// Returns the expected reply for a success without a cas id.
fn done(opcode: u8) -> Reply {
    failed(opcode, 0, "")
}

/// Returns the expected reply for a success with a cas id and a value.
fn value(opcode: u8, value: &[u8]) -> Reply {
    Reply { value: value.to_vec(), has_cas: true, ..done(opcode) }
}

/// Returns the expected reply for a success with an item.
fn item(opcode: u8, flags: u32, key: &[u8], bytes: &[u8]) -> Reply {
    Reply { extras: flags.to_be_bytes().to_vec(), key: key.to_vec(), ..value(opcode, bytes) }
}

fn failed(opcode: u8, status: u16, text: &str) -> Reply {
    let value = text.as_bytes().to_vec();
    Reply { opcode, status, extras: Vec::new(), key: Vec::new(), value, has_cas: false }
}

fn not_found(opcode: u8) -> Reply {
    failed(opcode, 0x01, "Not found")
}

fn exists(opcode: u8) -> Reply {
    failed(opcode, 0x02, "Data exists for key.")
}

fn too_large(opcode: u8) -> Reply {
    failed(opcode, 0x03, "Too large.")
}

fn invalid(opcode: u8) -> Reply {
    failed(opcode, 0x04, "Invalid arguments")
}

fn not_stored(opcode: u8) -> Reply {
    failed(opcode, 0x05, "Not stored.")
}

fn unknown(opcode: u8) -> Reply {
    failed(opcode, 0x81, "Unknown command")
}

#[track_caller]
fn read_reply(stream: &mut TcpStream) -> (Reply, [u8; 4]) {
    let (reply, opaque, _) = read_with_cas(stream);
    (reply, opaque)
}

#[track_caller]
fn read_with_cas(stream: &mut TcpStream) -> (Reply, [u8; 4], u64) {
    let mut header = [0; 24];
    stream.read_exact(&mut header).unwrap();
    let [magic, opcode, k0, k1, extras_len, data_type, s0, s1, b0, b1, b2, b3, tail @ ..] = header;
    assert_eq!((magic, data_type), (0x81, 0));
    let mut body = vec![0; u32::from_be_bytes([b0, b1, b2, b3]) as usize];
    stream.read_exact(&mut body).unwrap();
    let value = body.split_off(usize::from(extras_len) + usize::from(u16::from_be_bytes([k0, k1])));
    let key = body.split_off(usize::from(extras_len));
    let status = u16::from_be_bytes([s0, s1]);
    let cas = u64::from_be_bytes(tail[4..].try_into().unwrap());
    let reply = Reply { opcode, status, extras: body, key, value, has_cas: cas != 0 };
    (reply, tail[..4].try_into().unwrap(), cas)
}

/// Sends the noop with the opaque [`LAST`]. Returns the replies that arrive before its reply.
#[track_caller]
fn answers(stream: &mut TcpStream) -> Vec<Reply> {
    stream.write_all(&noop()).unwrap();
    let mut replies = Vec::new();
    loop {
        let (reply, opaque) = read_reply(stream);
        if opaque == LAST {
            assert_eq!(reply, done(0x0a));
            return replies;
        }
        assert_eq!(opaque, OPAQUE);
        replies.push(reply);
    }
}

#[path = "binary"]
mod epoll {
    use crate::*;

    type Server = On<Epoll>;

    mod limits;
    mod verbs;
}

#[path = "binary"]
mod uring {
    use crate::*;

    type Server = On<Uring>;

    mod limits;
    mod verbs;
}
