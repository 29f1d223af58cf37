//! Tests of sync mode from the socket to the device, on both back-ends. The event loops, the
//! connections, and the engine with its committer run over a device that can be slow and can fail.

use super::commits::store_options;
use super::worker_on;
use crate::net::{BackendChoice, Control, Endpoint, Listener, Options, open};
use larder_disk::{Failure, Fault, Operation, Random, SimDevice};
use larder_engine::Engine;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
    address: SocketAddr,
    control: Control,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start(backend: BackendChoice) -> Option<Server> {
        let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().unwrap());
        let listeners = vec![Listener::bind(&endpoint).unwrap()];
        let address = listeners[0].address().unwrap();
        let options = Options { backend, listeners, ..Options::default() };
        let (control, workers) = match open(options, 2) {
            Err(refusal) if refusal.kind() == ErrorKind::Unsupported => {
                eprintln!("{backend:?} left out: {refusal}");
                return None;
            }
            opened => opened.unwrap(),
        };
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        let engine = Engine::open(store_options(&device)).unwrap();
        let threads = workers.into_iter().map(|worker| {
            let service = worker_on(&engine, worker.waker());
            std::thread::spawn(move || worker.run(service).unwrap())
        });
        Some(Server { threads: threads.collect(), device, engine, address, control })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Makes the device hold back syncs, sends `request`, and waits until the device holds back the
    /// sync of the commit that this request needs.
    fn stall(&self, client: &mut TcpStream, request: &[u8]) {
        self.device.hold(Operation::Sync);
        client.write_all(request).unwrap();
        assert!(self.device.wait_until_held(PATIENCE));
    }

    fn join(mut self) {
        self.control.shut_down(PATIENCE);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        assert_eq!(self.engine.stats().buffer_bytes, 0);
    }
}

fn on_both(test: impl Fn(Server)) {
    for backend in [BackendChoice::Epoll, BackendChoice::Uring] {
        eprintln!("on {backend:?}");
        if let Some(server) = Server::start(backend) {
            test(server);
        }
    }
}

fn read(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

fn ask(stream: &mut TcpStream, request: &[u8], expected: &[u8]) {
    stream.write_all(request).unwrap();
    read(stream, expected);
}

fn has_nothing(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let nothing = matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    nothing
}

#[test]
fn only_replies_that_depend_on_a_slow_commit_wait_for_it() {
    on_both(|server| {
        let (mut writer, mut reader) = (server.connect(), server.connect());
        let (mut other, mut late) = (server.connect(), server.connect());
        ask(&mut other, b"set b 0 0 1\r\ny\r\n", b"STORED\r\n");
        server.stall(&mut writer, b"set a 0 0 1\r\nx\r\n");
        reader.write_all(b"get b\r\nget a\r\nget b\r\n").unwrap();
        read(&mut reader, b"VALUE b 0 1\r\ny\r\nEND\r\n");
        late.write_all(b"set c 0 0 1\r\nz\r\nquit\r\n").unwrap();
        ask(&mut other, b"get b none\r\nmn\r\n", b"VALUE b 0 1\r\ny\r\nEND\r\nMN\r\n");
        // The server still reads connections with withheld replies, but the replies to these `mn`
        // commands must wait too.
        writer.write_all(b"mn\r\n").unwrap();
        reader.write_all(b"mn\r\n").unwrap();
        ask(&mut other, b"mn\r\n", b"MN\r\n");
        assert!([&writer, &reader, &late].into_iter().all(has_nothing));
        server.device.release();
        read(&mut writer, b"STORED\r\nMN\r\n");
        read(&mut reader, b"VALUE a 0 1\r\nx\r\nEND\r\nVALUE b 0 1\r\ny\r\nEND\r\nMN\r\n");
        let mut rest = Vec::new();
        late.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"STORED\r\n");
        server.join();
    });
}

#[test]
fn every_increment_is_acknowledged_once() {
    const CLIENTS: usize = 8;
    const EACH: usize = 2000;
    on_both(|server| {
        ask(&mut server.connect(), b"set n 0 0 1\r\n0\r\n", b"STORED\r\n");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let mut stream = server.connect();
                std::thread::spawn(move || {
                    // The clients send pipelines of different depths. With depth 1, a client waits
                    // for each reply.
                    let depth = [500, 100, 7, 1][client % 4];
                    let each = if depth == 1 { EACH / 20 } else { EACH };
                    let mut numbers = Vec::new();
                    let mut replies = BufReader::new(stream.try_clone().unwrap());
                    for sent in (0..each).step_by(depth) {
                        let now = depth.min(each - sent);
                        stream.write_all(&b"incr n 1\r\n".repeat(now)).unwrap();
                        for _ in 0..now {
                            let mut line = String::new();
                            replies.read_line(&mut line).unwrap();
                            numbers.push(line.trim_end().parse::<usize>().unwrap());
                        }
                    }
                    assert!(numbers.is_sorted());
                    numbers
                })
            })
            .collect();
        let mut all: Vec<usize> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(1..=all.len()));
        assert_eq!(all.len(), CLIENTS / 4 * (3 * EACH + EACH / 20));
        server.join();
    });
}

#[test]
fn waiting_clients_get_an_error_and_a_failed_device_is_retried() {
    on_both(|server| {
        let mut client = server.connect();
        ask(&mut client, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
        server.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        let lost = b"SERVER_ERROR store failed: write not kept\r\n";
        ask(&mut client, b"set a 0 0 1\r\ny\r\n", lost);
        ask(&mut client, b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
        ask(&mut client, b"set a 0 0 1\r\nz\r\n", lost);
        server.device.mend();
        let mut replies = BufReader::new(client.try_clone().unwrap());
        let mut line = String::new();
        // Sets succeed only after the server has tried the device again. It does so a few times per
        // second, without being asked.
        for _ in 0..100_000 {
            client.write_all(b"set a 0 0 1\r\nw\r\n").unwrap();
            line.clear();
            replies.read_line(&mut line).unwrap();
            if line == "STORED\r\n" {
                break;
            }
        }
        assert_eq!(line, "STORED\r\n");
        server.join();
    });
}

/// A connection may wait for the commit under way and for the next commit. The next commit must be
/// requested too, otherwise the second reply would never be sent.
#[test]
fn a_connection_that_waits_for_two_commits_gets_both_replies() {
    on_both(|server| {
        let mut client = server.connect();
        server.stall(&mut client, b"set a 0 0 1\r\nx\r\n");
        client.write_all(b"set b 0 0 1\r\ny\r\n").unwrap();
        while server.engine.stats().totals.cmd_set < 2 {
            std::thread::yield_now();
        }
        assert!(has_nothing(&client));
        server.device.release();
        read(&mut client, b"STORED\r\nSTORED\r\n");
        server.join();
    });
}

/// No client waits for the commit of a change with `noreply`, but this commit must be requested all
/// the same.
#[test]
fn a_change_without_a_reply_is_committed_too() {
    on_both(|server| {
        let mut client = server.connect();
        server.stall(&mut client, b"set a 0 0 1 noreply\r\nx\r\n");
        ask(&mut client, b"mn\r\n", b"MN\r\n");
        server.device.release();
        server.join();
    });
}

#[test]
fn shutdown_waits_for_withheld_replies() {
    on_both(|server| {
        let (mut writer, mut ended) = (server.connect(), server.connect());
        server.stall(&mut writer, b"set a 0 0 1\r\nx\r\n");
        ended.write_all(b"set b 0 0 1\r\ny\r\n").unwrap();
        ended.shutdown(Shutdown::Write).unwrap();
        let mut idle = server.connect();
        ask(&mut idle, b"mn\r\n", b"MN\r\n");
        server.control.shut_down(PATIENCE);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        assert!(has_nothing(&writer));
        server.device.release();
        for client in [&mut writer, &mut ended] {
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"STORED\r\n");
        }
        server.join();
    });
}

/// However the input is split, each long value must be stored whole, and the requests behind it
/// must be answered.
#[test]
fn long_values_are_stored_whole_however_they_are_split() {
    on_both(|server| {
        let clients = (1..=4_u64).map(|seed| {
            let mut stream = server.connect();
            std::thread::spawn(move || {
                let random = &mut Random::new(seed);
                for round in 0..8_u64 {
                    let len = random.pick(&[16_350, 20_000, 40_000, 100_000, 700_000]);
                    let len = len + random.below(9) as usize;
                    let value: Vec<u8> =
                        (0..len as u64).map(|n| ((n + round) * (n >> 7 | seed)) as u8).collect();
                    let head = format!("set {seed} 0 0 {len}\r\n");
                    let set = [head.as_bytes(), &value, b"\r\n"].concat();
                    let get = format!("get {seed}\r\nmn\r\n");
                    let requests = [&set, get.as_bytes()].concat().repeat(3);
                    let head = format!("STORED\r\nVALUE {seed} 0 {len}\r\n");
                    let replies =
                        [head.as_bytes(), &value, b"\r\nEND\r\nMN\r\n"].concat().repeat(3);
                    let mut writer = stream.try_clone().unwrap();
                    let pieces = random.between(1, 5) * 20_000;
                    let mut random = Random::new(random.bits());
                    let writer = std::thread::spawn(move || {
                        let mut left = &requests[..];
                        while !left.is_empty() {
                            let n = left.len().min(random.between(1, pieces) as usize);
                            writer.write_all(&left[..n]).unwrap();
                            left = &left[n..];
                        }
                    });
                    let mut got = vec![0; replies.len()];
                    stream.read_exact(&mut got).unwrap();
                    assert!(got == replies, "client {seed}, round {round}");
                    writer.join().unwrap();
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        server.join();
    });
}
