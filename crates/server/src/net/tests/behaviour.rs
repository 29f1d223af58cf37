//! Tests how the event loops pass input to the service and replies to clients.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn single_lines_and_pipelines_are_answered() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        for n in 0..100 {
            ping(&mut client, &format!("line {n}\n"));
        }
        let pipeline: String = (0..1000).map(|n| format!("echo {n}\n")).collect();
        ping(&mut client, &pipeline);
        assert_eq!(server.sum(|c| &c.current_connections), 1);
        drop(client);
        until("the client is gone", || server.sum(|c| &c.current_connections) == 0);
        assert!(server.sum(|c| &c.bytes_read) > 1000);
        assert_eq!(server.sum(|c| &c.bytes_read), server.sum(|c| &c.bytes_written));
        server.stop();
    });
}

#[test]
fn an_exchange_costs_one_read_and_one_write() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        ping(&mut client, "warm\n");
        let before = (server.sum(|c| &c.reads), server.sum(|c| &c.processed));
        for _ in 0..50 {
            ping(&mut client, "one\n");
        }
        assert_eq!(server.sum(|c| &c.reads) - before.0, 50);
        assert_eq!(server.sum(|c| &c.processed) - before.1, 50);
        // The client may have read the bytes before the worker counts the last write.
        until("the writes are counted", || server.sum(|c| &c.writes) == before.0 + 50);
        assert_eq!(server.sum(|c| &c.yields), 0);
        server.stop();
    });
}

#[test]
fn inputs_that_arrive_together_are_foreseen_and_answered() {
    on_both(|options| {
        let server = Server::start(options);
        let mut clients: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| ping(client, "warm\n"));
        let before = server.valve.foreseen.load(SeqCst);
        let mut stalling = server.connect();
        stalling.write_all(b"stall\n").unwrap();
        until("the worker stalls", || server.valve.stalled.load(SeqCst) == 1);
        for (n, client) in clients.iter_mut().enumerate() {
            // A client sends a whole line, half a line, a line that is longer than one receive
            // returns, or a line and then the end of its input.
            let text = match n % 4 {
                1 => format!("half {n}"),
                2 => "x".repeat(40_000) + "\n",
                _ => format!("line {n}\n"),
            };
            client.write_all(text.as_bytes()).unwrap();
            if n % 4 == 3 {
                client.shutdown(Shutdown::Write).unwrap();
            }
        }
        server.open_valve();
        assert_eq!(read_exactly(&mut stalling, 6), b"stall\n");
        for (n, client) in clients.iter_mut().enumerate() {
            match n % 4 {
                1 => {
                    client.write_all(b" line\n").unwrap();
                    let line = format!("half {n} line\n");
                    assert_eq!(read_exactly(client, line.len()), line.as_bytes());
                }
                2 => assert_eq!(read_exactly(client, 40_001)[40_000], b'\n'),
                3 => assert_eq!(read_to_end(client), format!("line {n}\n").as_bytes()),
                _ => {
                    let line = format!("line {n}\n");
                    assert_eq!(read_exactly(client, line.len()), line.as_bytes());
                }
            }
        }
        assert!(server.valve.foreseen.load(SeqCst) >= before + clients.len() / 2);
        server.stop();
    });
}

#[test]
fn a_line_in_pieces_is_assembled() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        client.set_nodelay(true).unwrap();
        for byte in b"one byte at a time\n" {
            let before = server.sum(|c| &c.bytes_read);
            client.write_all(&[*byte]).unwrap();
            until("it has come", || server.sum(|c| &c.bytes_read) > before);
        }
        assert_eq!(read_exactly(&mut client, 19), b"one byte at a time\n");
        // This line is longer than one receive returns, and almost as long as the input that a
        // connection may keep. It must be echoed too.
        let mut long = "x".repeat(MAX_INPUT_HELD - 2);
        long.push('\n');
        ping(&mut client, &long);
        ping(&mut client, "short\n");
        until("nothing is kept", || server.sum(|c| &c.buffer_bytes) == 0);
        server.stop();
    });
}

#[test]
fn a_line_that_never_ends_closes_the_connection() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        let endless = vec![b'x'; 4 * MAX_INPUT_HELD];
        // The server may close the connection before everything is written.
        let _ = client.write_all(&endless);
        let _ = client.shutdown(Shutdown::Write);
        assert_eq!(read_to_end(&mut client), b"");
        until("it is counted", || server.sum(|c| &c.input_overflows) == 1);
        server.stop();
    });
}

#[test]
fn a_slow_reader_is_not_read_from_and_loses_nothing() {
    on_both(|options| {
        let limit = options.output_limit;
        let server = Server::start(options);
        let mut client = server.connect();
        let total = 40 << 20;
        let ask = format!("big {total}\necho after\n");
        client.write_all(ask.as_bytes()).unwrap();
        until("the output stalls", || server.sum(|c| &c.output_stalls) > 0);
        // While this client's output stalls, other clients must be served.
        ping(&mut server.connect(), "other\n");
        // At some point the loop must stop receiving this client's input, so that a write would
        // block.
        client.set_nonblocking(true).unwrap();
        let more = "flood\n".repeat(10_000);
        let mut sent = Vec::new();
        while sent.len() < 64 << 20 {
            match client.write(&more.as_bytes()[sent.len() % more.len()..]) {
                Ok(n) => sent.resize(sent.len() + n, 0),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        client.set_nonblocking(false).unwrap();
        let mut got = 0;
        let mut buffer = vec![0; 1 << 20];
        while got < total {
            let n = match client.read(&mut buffer[..(total - got).min(1 << 20)]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(n > 0 && buffer[..n].iter().all(|byte| *byte == b'b'));
            got += n;
        }
        assert_eq!(read_exactly(&mut client, 11), b"echo after\n");
        assert!(server.valve.longest_output.load(SeqCst) < limit + 2000);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut client).iter().filter(|b| **b == b'\n').count(), {
            // The service never replies to a `flood` line. This includes the last one, of which the
            // client may have sent only a part.
            0
        });
        server.stop();
    });
}

#[test]
fn an_endless_pipeline_does_not_starve_others() {
    on_both(|options| {
        let server = Server::start(options);
        let stop = Arc::new(AtomicUsize::new(0));
        let mut writer = server.connect();
        let mut reader = writer.try_clone().unwrap();
        let stopped = Arc::clone(&stop);
        let flood = std::thread::spawn(move || {
            let lines = "an endless pipeline\n".repeat(5_000);
            while stopped.load(SeqCst) == 0 {
                writer.write_all(lines.as_bytes()).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let drain = std::thread::spawn(move || read_to_end(&mut reader).len());
        until("the flood is on", || server.sum(|c| &c.bytes_read) > 1 << 20);
        let mut client = server.connect();
        for n in 0..20 {
            ping(&mut client, &format!("among others {n}\n"));
        }
        stop.store(1, SeqCst);
        flood.join().unwrap();
        let drained = drain.join().unwrap();
        assert!(drained > 0 && drained % 20 == 0);
        server.stop();
    });
}

#[test]
fn a_large_backlog_is_read_in_small_parts() {
    const MUCH: usize = 3 << 20;
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        let mut sink = server.connect();
        ping(&mut client, "it is connected\n");
        sink.write_all(b"stall\n").unwrap();
        until("the worker stands still", || server.valve.stalled.load(SeqCst) == 1);
        sink.set_nonblocking(true).unwrap();
        let (part, mut sent) = ("flood with lines\n".repeat(1 << 10), 0);
        while sent < MUCH
            && let Ok(n) = sink.write(part.as_bytes())
        {
            sent += n;
        }
        let (turns, read) = (server.sum(|c| &c.turns), server.sum(|c| &c.bytes_read));
        server.open_valve();
        until("all is read", || server.sum(|c| &c.bytes_read) - read >= sent as u64);
        // In one turn, the loop reads at most 2 × 32 KiB from a connection. With io_uring, the
        // first turn may also fill all 64 buffers of 8 KiB.
        let turns = (server.sum(|c| &c.turns) - turns) as usize;
        assert!(sent >= 1 << 20, "the socket took only {sent} bytes");
        assert!(turns >= (sent - (512 << 10)) / (64 << 10), "{sent} bytes in {turns} turns");
        ping(&mut client, "it is served\n");
        server.stop();
    });
}

#[test]
fn postponed_input_continues_in_the_next_turn() {
    const LINES: usize = 20_000;
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        let lines: String = (0..LINES).map(|n| format!("next {n}\n")).collect();
        let mut writer = client.try_clone().unwrap();
        let sent = lines.clone();
        let turns = server.sum(|c| &c.turns);
        let writer = std::thread::spawn(move || {
            writer.write_all(sent.as_bytes()).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        ping(&mut server.connect(), "others are served\n");
        assert_eq!(read_to_end(&mut client), lines.as_bytes());
        writer.join().unwrap();
        assert!(server.sum(|c| &c.turns) - turns >= LINES as u64 / 2);
        server.stop();
    });
}

#[test]
fn slow_steps_do_not_add_up_in_a_turn() {
    const CLIENTS: usize = 6;
    const LINES: usize = 50;
    on_both(|options| {
        let server = Server::start(options);
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
        let lines: String = (0..LINES).map(|n| format!("next slow {n}\n")).collect();
        let turns = server.sum(|c| &c.turns);
        for client in &mut clients {
            client.write_all(lines.as_bytes()).unwrap();
        }
        for client in &mut clients {
            assert_eq!(read_exactly(client, lines.len()), lines.as_bytes());
        }
        // The loop serves a client's first line when the line arrives, and each further line in a
        // separate step. One step takes longer than the time limit for all steps of a turn, so a
        // turn serves only one further line. Without the limit, one turn would serve a line of
        // every client.
        let turns = (server.sum(|c| &c.turns) - turns) as usize;
        assert!(turns >= CLIENTS * LINES / 2, "{turns} turns");
        server.stop();
    });
}

#[test]
fn parked_connections_wait_for_the_waker() {
    on_both(|options| {
        let server = Server::start(options);
        let mut clients: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(b"before\npark here\nafter\n").unwrap();
            assert_eq!(read_exactly(client, 7), b"before\n");
        }
        until("all are parked", || server.valve.parked.load(SeqCst) >= 10);
        // Input that arrives while the connection is parked must be answered after the parked line.
        clients[0].write_all(b"later\n").unwrap();
        // One client shuts down its sending side, and another client disconnects. Neither may
        // disturb the others.
        clients[1].shutdown(Shutdown::Write).unwrap();
        drop(clients.pop());
        ping(&mut server.connect(), "others go on\n");
        // The service parks `park` lines until the test opens the valve. So after a wake-up before
        // that, all connections must park again.
        server.wakers[0].wake_by_ref();
        until("they are parked again", || server.valve.parked.load(SeqCst) >= 20);
        server.open_valve();
        for client in &mut clients {
            assert_eq!(read_exactly(client, 16), b"park here\nafter\n");
        }
        assert_eq!(read_exactly(&mut clients[0], 6), b"later\n");
        assert_eq!(read_to_end(&mut clients[1]), b"");
        server.stop();
    });
}

#[test]
fn a_half_closed_client_gets_all_its_answers() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        client.write_all(b"one\nbig 3000000\ntwo\npart").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let got = read_to_end(&mut client);
        assert_eq!(got.len(), 3_000_008);
        assert!(got.starts_with(b"one\nbbb") && got.ends_with(b"btwo\n"));
        server.stop();
    });
}

#[test]
fn closing_sends_all_replies_without_a_reset() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        // Many unread bytes follow the line that closes the connection. The client must still
        // receive the replies to all earlier lines.
        let mut lines = b"big 500000\nclose\n".to_vec();
        lines.extend_from_slice("never answered\n".repeat(20_000).as_bytes());
        let mut writer = client.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            let _ = writer.write_all(&lines);
        });
        let got = read_to_end(&mut client);
        assert_eq!(got.len(), 500_004);
        assert!(got.ends_with(b"bye\n"));
        writing.join().unwrap();
        drop(client);
        server.stop();
    });
}

#[test]
fn unix_sockets_are_served_like_tcp() {
    on_both(|mut options| {
        let directory = std::env::temp_dir().join(format!("larder-net-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{:?}.sock", options.backend));
        let endpoint = Endpoint::Unix { path: path.clone(), mode: 0o600 };
        options.listeners.push(Listener::bind(&endpoint).unwrap());
        let server = Server::start(options);
        let mut client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        ping(&mut client, "over the file system\n");
        client.write_all(b"big 2000000\n").unwrap();
        assert_eq!(read_exactly(&mut client, 2_000_000).len(), 2_000_000);
        assert!(matches!(server.valve.peers.lock().unwrap()[..], [Peer::Unix]));
        server.stop();
        assert!(!path.exists(), "the file goes with the listener");
        let _ = std::fs::remove_dir(&directory);
    });
}

#[test]
fn accepted_sockets_have_tcp_nodelay() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        ping(&mut client, "hello\n");
        let local = client.local_addr().unwrap();
        let reached = client.peer_addr().unwrap();
        assert!(matches!(
            server.valve.peers.lock().unwrap()[..],
            [Peer::Tcp { from, to }] if from == local && to == reached
        ));
        // Accepted sockets inherit the listener's options, so the test checks those.
        let listener = &server.control.options().listeners[0];
        // SAFETY: the listener owns the descriptor and outlives `borrowed`.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(listener.fd()) };
        let socket = socket2::SockRef::from(&borrowed);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        server.stop();
    });
}
