//! Tests of the limits of the event loops, and of the number of connections that they can serve.

use super::*;

#[test]
fn clients_above_the_limit_get_an_error() {
    on_both(|mut options| {
        options.max_connections = 3;
        let server = Server::with_workers(options, 2);
        let mut clients: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
        for client in &mut clients {
            ping(client, "hello\n");
        }
        for _ in 0..100 {
            let mut rejected = server.connect();
            rejected.write_all(b"get a\r\n").unwrap();
            assert_eq!(read_to_end(&mut rejected), b"ERROR Too many open connections\r\n");
        }
        assert_eq!(server.sum(|c| &c.rejected_connections), 100);
        drop(clients.pop());
        until("there is room", || server.sum(|c| &c.current_connections) == 2);
        ping(&mut server.connect(), "welcome\n");
        server.stop();
    });
}

#[test]
fn connections_are_spread_over_the_workers() {
    on_both(|options| {
        let server = Server::with_workers(options, 3);
        let mut clients: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
        for client in &mut clients {
            ping(client, "hello\n");
        }
        for counters in server.control.counters() {
            let n = counters.current_connections.get();
            assert!((18..=22).contains(&n), "{n} of 60 on one of three workers");
        }
        server.stop();
    });
}

#[test]
fn idle_connections_are_closed() {
    on_both(|mut options| {
        // The timeout is long enough that the active client keeps its connection on a busy machine.
        options.idle_timeout = Some(Duration::from_secs(1));
        let server = Server::start(options);
        let mut busy = server.connect();
        let mut idle = server.connect();
        let start = Instant::now();
        ping(&mut idle, "hello\n");
        let closed = std::thread::spawn(move || {
            assert_eq!(read_to_end(&mut idle), b"");
            start.elapsed()
        });
        while !closed.is_finished() {
            ping(&mut busy, "still here\n");
        }
        let waited = closed.join().unwrap();
        assert!(waited >= Duration::from_millis(900), "closed after {waited:?}");
        ping(&mut busy, "still here\n");
        until("it is counted", || server.sum(|c| &c.idle_closed) == 1);
        server.stop();
    });
}

#[test]
fn limits_change_while_the_workers_run() {
    on_both(|mut options| {
        options.max_connections = 1;
        let server = Server::start(options);
        let mut first = server.connect();
        ping(&mut first, "hello\n");
        let refused = b"ERROR Too many open connections\r\n";
        assert_eq!(read_to_end(&mut server.connect()), refused);
        server.control.set_limits(2, None);
        let mut second = server.connect();
        ping(&mut second, "hello\n");
        server.control.set_limits(1, None);
        ping(&mut second, "still here\n");
        assert_eq!(read_to_end(&mut server.connect()), refused);
        // Without an idle timeout the worker sleeps and does not read the clock. A timeout that is
        // set during this sleep must not close the connection early, although the worker's last
        // reading of the clock is old.
        let begun = Instant::now();
        ping(&mut first, "hello again\n");
        std::thread::sleep(Duration::from_millis(200));
        server.control.set_limits(1, Some(Duration::from_secs(1)));
        assert_eq!(read_to_end(&mut first), b"");
        let silent = begun.elapsed();
        assert!(silent >= Duration::from_millis(900), "closed after {silent:?}");
        assert_eq!(read_to_end(&mut second), b"");
        server.control.set_limits(1, None);
        until("both are closed", || server.sum(|c| &c.current_connections) == 0);
        ping(&mut server.connect(), "welcome\n");
        server.stop();
    });
}

struct Meter {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Meter {
    fn new(limit: usize) -> Arc<Meter> {
        Arc::new(Meter { used: AtomicUsize::new(0), limit: AtomicUsize::new(limit) })
    }
}

impl Budget for Meter {
    fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }
    fn release(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, SeqCst);
        assert!(before >= bytes, "released more than was charged");
    }
    fn held(&self) -> (u64, u64) {
        (self.used.load(SeqCst) as u64, self.limit.load(SeqCst) as u64)
    }
}

#[test]
fn connection_buffers_are_charged_to_the_budget() {
    on_both(|mut options| {
        let budget = Meter::new(1 << 20);
        options.budget = Arc::<Meter>::clone(&budget);
        let server = Server::start(options);
        let mut client = server.connect();
        client.write_all(b"half a line").unwrap();
        until("it is charged", || budget.used.load(SeqCst) > 0);
        assert!(budget.used.load(SeqCst) <= 64);
        client.write_all(b"\n").unwrap();
        read_exactly(&mut client, 12);
        until("it is released", || budget.used.load(SeqCst) == 0);
        budget.limit.store(1000, SeqCst);
        let mut greedy = server.connect();
        greedy.write_all(b"big 30000000\n").unwrap();
        until("it keeps too much", || server.sum(|c| &c.refused_buffers) == 1);
        drop(greedy);
        server.stop();
        assert_eq!(budget.used.load(SeqCst), 0);
    });
}

#[test]
fn the_connection_that_keeps_most_is_closed() {
    on_both(|mut options| {
        let budget = Meter::new(100 << 20);
        options.budget = Arc::<Meter>::clone(&budget);
        let server = Server::with_workers(options, 2);
        let mut deaf: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
        for client in &mut deaf {
            client.write_all(b"big 30000000\n").unwrap();
        }
        until("both outputs stall", || server.sum(|c| &c.output_stalls) >= 2);
        let mut polite: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
        for client in &mut polite {
            client.write_all(b"half a line").unwrap();
        }
        until("all are kept", || budget.used.load(SeqCst) >= 20 * 64 + 5000);
        budget.limit.store(4000, SeqCst);
        // The `deaf` clients do not read their long replies. When one of the other clients sends
        // more input, its worker notices that the connections exceed the budget. Both deaf clients
        // must then be closed, even if another worker serves them.
        polite[0]
            .write_all(b", and more of it, which needs more memory than there is for it")
            .unwrap();
        until("both are gone", || server.sum(|c| &c.refused_buffers) == 2);
        for client in &mut polite[1..] {
            client.write_all(b"\n").unwrap();
            assert_eq!(read_exactly(client, 12), b"half a line\n");
        }
        drop(deaf);
        server.stop();
        assert_eq!(budget.used.load(SeqCst), 0);
    });
}

#[test]
fn clients_that_flood_slow_commands_are_closed() {
    const CLIENTS: usize = 60;
    on_both(|mut options| {
        let budget = Meter::new(256 << 10);
        options.budget = Arc::<Meter>::clone(&budget);
        let server = Server::start(options);
        let mut polite = server.connect();
        polite.write_all(b"half a line").unwrap();
        let mut greedy: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
        let (part, stop) = ("next flood\n".repeat(10_000), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for client in &mut greedy {
                    client.set_nonblocking(true).unwrap();
                }
                let start = Instant::now();
                while stop.load(SeqCst) == 0 && start.elapsed() < 2 * PATIENCE {
                    for client in &mut greedy {
                        let _ = client.write(part.as_bytes());
                    }
                    std::thread::yield_now();
                }
            });
            until("some have gone", || server.sum(|c| &c.refused_buffers) >= 40);
            stop.store(1, SeqCst);
        });
        drop(greedy);
        polite.write_all(b"\n").unwrap();
        assert_eq!(read_exactly(&mut polite, 12), b"half a line\n");
        server.stop();
        assert_eq!(budget.used.load(SeqCst), 0);
    });
}

#[test]
fn two_workers_carry_ten_thousand_connections() {
    let limit = socket_limit();
    on_both(|mut options| {
        // A connection needs two descriptors, because this process holds both ends. 2000
        // descriptors are left for other tests that run at the same time.
        let n = 10_000.min((limit - 2_000) / 2);
        options.max_connections = n;
        let server = Server::with_workers(options, 2);
        let mut clients: Vec<TcpStream> = (0..n).map(|_| server.connect()).collect();
        until("all are taken", || server.sum(|c| &c.current_connections) == n as u64);
        for round in 0..2 {
            let line = format!("round {round}\n");
            for client in &mut clients {
                client.write_all(line.as_bytes()).unwrap();
            }
            for client in &mut clients {
                assert_eq!(read_exactly(client, line.len()), line.as_bytes());
            }
        }
        assert_eq!(server.sum(|c| &c.buffer_bytes), 0);
        drop(clients);
        until("all are gone", || server.sum(|c| &c.current_connections) == 0);
        server.stop();
    });
}

fn socket_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local rlimit. The first call fills it, and the second one reads it.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

#[test]
fn idle_connections_are_small() {
    // The sizes of a connection in the two loops, without the service's state. Each array stands
    // for the additional state that one loop keeps for a connection.
    let epoll = size_of::<super::super::connection::ConnectedSocket<(), [u8; 4]>>();
    let uring = size_of::<super::super::connection::ConnectedSocket<(), [u8; 24]>>();
    assert!(epoll <= 128 && uring <= 160, "{epoll} and {uring} bytes");
}
