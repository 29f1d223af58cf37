//! Tests of the event loops with real sockets. Every test runs over epoll and over io_uring. If the
//! kernel does not allow io_uring, a message says that it was left out.

mod behaviour;
mod limits;
mod shutdown;
mod values;
mod withheld;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::*;

/// The longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A line-oriented service that replies to a line with the line itself, except for these:
/// - `next` is echoed. `next slow` is echoed too, but takes longer than the time limit for all
///   steps of a turn. `next flood` gets no reply. All three postpone the rest of the input.
/// - `park <words>` parks the connection until the [`Valve`] is open. The line is echoed after
///   that.
/// - `big <n>` gets n bytes.
/// - `close` closes the connection.
/// - `hold` leaves the connection in the middle of a command.
/// - `flood` gets no reply.
/// - `stall` blocks the worker until the valve is open.
/// - `value <n>` is followed by n bytes, which are echoed. The service receives most of them
///   itself.
/// - From `late <words>` on, all replies are withheld until the valve is open.
struct Lines {
    valve: Arc<Valve>,
    output_left: HashMap<u64, usize>,
}

/// State that the tests and the service share. The valve is open if `open` is not 0.
#[derive(Default)]
struct Valve {
    open: AtomicUsize,
    connected: AtomicUsize,
    disconnected: AtomicUsize,
    parked: AtomicUsize,
    stalled: AtomicUsize,
    /// Number of inputs that the loops passed to [`Service::foresee`].
    foreseen: AtomicUsize,
    /// Number of lines whose replies were withheld.
    withheld: AtomicUsize,
    longest_output: AtomicUsize,
    /// Number of bytes of values that the service has received itself.
    received: AtomicUsize,
    /// Number of times that the service was asked to receive bytes of a value.
    asked: AtomicUsize,
    peers: Mutex<Vec<Peer>>,
}

#[derive(Default)]
struct Line {
    id: u64,
    /// Number of bytes of a `big` reply still to be written.
    left: usize,
    holding: bool,
    withheld: Vec<u8>,
    /// The bytes of a `value` that have arrived, and the number of those that have not.
    value: Vec<u8>,
    missing: usize,
}

impl Service for Lines {
    type Connection = Line;

    fn turn(&mut self) {}
    fn sleep(&mut self) {}

    fn wakes_within(&self) -> Option<Duration> {
        None
    }

    fn keeps(&self, line: &Line) -> usize {
        line.withheld.len()
    }

    fn can_give_up(&self, _connection: &Line) -> bool {
        false
    }

    fn gives_up(&mut self, _connection: &mut Line) -> bool {
        false
    }

    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Line {
        self.valve.connected.fetch_add(1, SeqCst);
        self.valve.peers.lock().unwrap().push(peer);
        self.output_left.insert(id.get(), 0);
        Line { id: id.get(), left: 0, holding: false, ..Line::default() }
    }

    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>) {
        self.valve.foreseen.fetch_add(inputs.count(), SeqCst);
    }

    fn process(
        &mut self,
        line: &mut Line,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        assert!(output.is_empty(), "a client that does not read is not processed");
        if self.valve.open.load(SeqCst) > 0 {
            output.extend(&std::mem::take(&mut line.withheld));
        }
        let mut flow = self.lines(line, input, output);
        if flow == Flow::Read && !line.withheld.is_empty() {
            flow = Flow::Hold;
        }
        self.valve.longest_output.fetch_max(output.len(), SeqCst);
        flow
    }

    /// Leaves every third receive to the loop, like a service that has no memory for the value.
    fn receive(&mut self, line: &mut Line, incoming: &mut Incoming<'_>) {
        if self.valve.asked.fetch_add(1, SeqCst) % 3 < 2 {
            let received = incoming.append_to(&mut line.value, line.missing);
            line.missing -= received;
            self.valve.received.fetch_add(received, SeqCst);
        }
    }

    fn is_idle(&self, line: &Line) -> bool {
        !line.holding && line.withheld.is_empty() && line.missing == 0
    }

    fn disconnect(&mut self, line: Line) {
        assert!(self.output_left.remove(&line.id).is_some(), "disconnected twice");
        self.valve.disconnected.fetch_add(1, SeqCst);
    }
}

impl Lines {
    fn lines(
        &mut self,
        line: &mut Line,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        loop {
            while line.left > 0 {
                if output.is_full() {
                    return Flow::Drain;
                }
                let n = line.left.min(1000);
                output.room(n).fill(b'b');
                output.advance(n);
                line.left -= n;
            }
            if output.is_full() {
                return Flow::Drain;
            }
            let n = input.bytes().len().min(line.missing);
            line.value.extend_from_slice(&input.bytes()[..n]);
            input.consume(n);
            line.missing -= n;
            if line.missing > 0 {
                input.expect_value();
                return Flow::Read;
            }
            output.extend(&std::mem::take(&mut line.value));
            let bytes = input.bytes();
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                return Flow::Read;
            };
            let text = &bytes[..end + 1];
            if text.starts_with(b"park") && self.valve.open.load(SeqCst) == 0 {
                self.valve.parked.fetch_add(1, SeqCst);
                return Flow::Park;
            }
            if text.starts_with(b"stall") {
                self.valve.stalled.fetch_add(1, SeqCst);
                until("the valve is open", || self.valve.open.load(SeqCst) > 0);
            }
            input.consume(end + 1);
            line.holding = text.starts_with(b"hold");
            if let Some(size) = text.strip_prefix(b"value ") {
                line.missing = std::str::from_utf8(size).unwrap().trim().parse().unwrap();
                line.value.reserve_exact(line.missing);
            } else if let Some(size) = text.strip_prefix(b"big ") {
                line.left = std::str::from_utf8(size).unwrap().trim().parse().unwrap();
            } else if text.starts_with(b"close") {
                output.extend(b"bye\n");
                return Flow::Close;
            } else if !line.withheld.is_empty()
                || text.starts_with(b"late") && self.valve.open.load(SeqCst) == 0
            {
                line.withheld.extend_from_slice(text);
                self.valve.withheld.fetch_add(1, SeqCst);
            } else if !text.starts_with(b"flood") && !text.starts_with(b"next flood") {
                output.extend(text);
            }
            if text.starts_with(b"next flood") {
                // The pause stands for a command that takes 50 µs.
                std::thread::sleep(Duration::from_micros(50));
            }
            if text.starts_with(b"next slow") {
                std::thread::sleep(2 * super::connection::STEPS_TIME);
            }
            if text.starts_with(b"next") {
                input.postpone();
                return Flow::Read;
            }
        }
    }
}

/// A running group of workers.
struct Server {
    control: Control,
    address: SocketAddr,
    valve: Arc<Valve>,
    wakers: Vec<std::task::Waker>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Server {
    fn start(options: Options) -> Server {
        Server::with_workers(options, 1)
    }

    fn with_workers(mut options: Options, workers: usize) -> Server {
        if options.listeners.is_empty() {
            let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().unwrap());
            options.listeners.push(Listener::bind(&endpoint).unwrap());
        }
        let address =
            options.listeners[0].address().unwrap_or_else(|| "0.0.0.0:0".parse().unwrap());
        let (control, workers) = open(options, workers).unwrap();
        let valve = Arc::new(Valve::default());
        let wakers = workers.iter().map(EventLoop::waker).collect();
        let threads = workers
            .into_iter()
            .map(|worker| {
                let valve = Arc::clone(&valve);
                std::thread::spawn(move || worker.run(Lines { valve, output_left: HashMap::new() }))
            })
            .collect();
        Server { control, address, valve, wakers, threads }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn open_valve(&self) {
        self.valve.open.store(1, SeqCst);
        for waker in &self.wakers {
            waker.wake_by_ref();
        }
    }

    fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.control.counters().map(|counters| counter(counters).get()).sum()
    }

    fn until_withheld(&self, n: usize) {
        until("answers are withheld", || self.valve.withheld.load(SeqCst) >= n);
    }

    /// Waits until all workers have ended. The workers must have been told to stop before.
    fn join(mut self) {
        for thread in self.threads.drain(..) {
            thread.join().unwrap().unwrap();
        }
        let valve = &self.valve;
        assert_eq!(valve.connected.load(SeqCst), valve.disconnected.load(SeqCst));
        assert_eq!(self.sum(|c| &c.current_connections), 0);
        assert_eq!(self.sum(|c| &c.buffer_bytes), 0);
    }

    fn stop(self) {
        self.control.shut_down(PATIENCE);
        self.join();
    }
}

/// Runs a test on every available back-end.
fn on_both(test: impl Fn(Options)) {
    for backend in [BackendChoice::Epoll, BackendChoice::Uring] {
        if backend == BackendChoice::Uring
            && let Err(refusal) = super::uring::probe()
        {
            eprintln!("io_uring left out: {refusal}");
            continue;
        }
        eprintln!("on {backend:?}");
        test(Options { backend, ..Options::default() });
    }
}

/// Polls until `condition` is true. Tests use this function when no event tells them that the
/// condition is true.
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}

fn read_exactly(stream: &mut impl Read, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Writes a line and reads it back.
fn ping(stream: &mut (impl Read + Write), line: &str) {
    stream.write_all(line.as_bytes()).unwrap();
    assert_eq!(read_exactly(stream, line.len()), line.as_bytes());
}
