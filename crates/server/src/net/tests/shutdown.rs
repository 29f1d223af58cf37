//! Tests of shutdown, and of creating and closing listeners.

use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

#[test]
fn shutdown_finishes_commands_in_flight() {
    on_both(|mut options| {
        options.unfinished_grace = PATIENCE;
        let server = Server::start(options);
        let mut idle = server.connect();
        ping(&mut idle, "idle\n");
        let mut busy = server.connect();
        busy.write_all(b"park me\nand this\n").unwrap();
        let mut half = server.connect();
        ping(&mut half, "hold\n");
        until("it is parked", || server.valve.parked.load(SeqCst) > 0);
        server.control.shut_down(PATIENCE);
        assert_eq!(read_to_end(&mut idle), b"");
        until("new connections are refused", || TcpStream::connect(server.address).is_err());
        server.open_valve();
        assert_eq!(read_to_end(&mut busy), b"park me\nand this\n");
        // A client in the middle of a command must still be able to finish that command.
        half.write_all(b"the rest\n").unwrap();
        assert_eq!(read_to_end(&mut half), b"the rest\n");
        server.join();
    });
}

#[test]
fn shutdown_gives_up_only_clients_with_half_a_command() {
    on_both(|mut options| {
        options.unfinished_grace = Duration::from_millis(100);
        let server = Server::start(options);
        let mut line = server.connect();
        ping(&mut line, "before\n");
        line.write_all(b"half a li").unwrap();
        let mut body = server.connect();
        ping(&mut body, "hold\n");
        let mut reading = server.connect();
        reading.write_all(b"big 20000000\nand half").unwrap();
        let mut parked = server.connect();
        parked.write_all(b"park me\nand half").unwrap();
        until("two are stuck", || {
            server.valve.parked.load(SeqCst) > 0 && server.sum(|c| &c.output_stalls) > 0
        });
        server.control.shut_down(PATIENCE);
        // The server gives up the two clients that have sent half a command after
        // `unfinished_grace`, so both reads must end long before the sockets' read timeout,
        // `PATIENCE`.
        let start = Instant::now();
        assert_eq!(read_to_end(&mut line), b"");
        assert_eq!(read_to_end(&mut body), b"");
        assert!(start.elapsed() < PATIENCE / 2);
        // Clients that wait for a reply must still receive it.
        server.open_valve();
        assert_eq!(read_to_end(&mut parked), b"park me\n");
        assert_eq!(read_to_end(&mut reading).len(), 20_000_000);
        server.join();
    });
}

#[test]
fn shutdown_does_not_wait_beyond_its_grace() {
    on_both(|options| {
        let server = Server::with_workers(options, 2);
        let mut parked = server.connect();
        parked.write_all(b"park for ever\n").unwrap();
        let mut slow = server.connect();
        slow.write_all(b"big 50000000\n").unwrap();
        until("both are stuck", || {
            server.valve.parked.load(SeqCst) > 0 && server.sum(|c| &c.output_stalls) > 0
        });
        let start = Instant::now();
        server.control.shut_down(Duration::from_millis(200));
        server.join();
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn accepting_can_stop_while_connections_continue() {
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        ping(&mut client, "before\n");
        server.control.stop_accepting();
        until("new connections are refused", || TcpStream::connect(server.address).is_err());
        ping(&mut client, "after\n");
        server.stop();
    });
}

#[test]
fn sleeping_workers_take_no_turns() {
    on_both(|mut options| {
        options.idle_timeout = None;
        let server = Server::start(options);
        let mut client = server.connect();
        ping(&mut client, "hello\n");
        until("it sleeps", || {
            let before = server.sum(|c| &c.turns);
            std::thread::sleep(Duration::from_millis(100));
            server.sum(|c| &c.turns) == before
        });
        server.stop();
    });
}

#[test]
fn a_taken_port_is_a_clear_error() {
    let first = Listener::bind(&Endpoint::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let error = Listener::bind(first.endpoint()).unwrap_err();
    assert!(matches!(error, BindError::InUse(_)));
    let text = error.to_string();
    assert!(text.contains(&first.address().unwrap().to_string()) && text.contains("another port"));
    let nowhere = Endpoint::Tcp("192.0.2.1:0".parse().unwrap());
    assert!(matches!(Listener::bind(&nowhere), Err(BindError::NoSuchAddress(_))));
}

#[test]
fn ipv4_and_ipv6_can_share_a_port() {
    let Ok(six) = Listener::bind(&Endpoint::Tcp("[::]:0".parse().unwrap())) else {
        eprintln!("no IPv6 here: left out");
        return;
    };
    let port = six.address().unwrap().port();
    let four = Endpoint::Tcp(SocketAddr::from(([0, 0, 0, 0], port)));
    match Listener::bind(&four) {
        Ok(_) => {}
        // Another process happens to use this port.
        Err(BindError::InUse(_)) => eprintln!("port {port} is in use: left out"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn only_stale_unix_sockets_are_replaced() {
    let directory = std::env::temp_dir().join(format!("larder-bind-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("larder.sock");
    let endpoint = Endpoint::Unix { path: path.clone(), mode: 0o640 };

    // This file looks like the file of a process that has ended, because no process listens on it.
    // It must be replaced.
    drop(UnixListener::bind(&path).unwrap());
    let listener = Listener::bind(&endpoint).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
    assert!(matches!(Listener::bind(&endpoint), Err(BindError::InUse(_))));
    drop(UnixStream::connect(&path).unwrap());
    drop(listener);
    assert!(!path.exists());

    std::fs::write(&path, b"precious").unwrap();
    let error = Listener::bind(&endpoint).unwrap_err();
    assert!(matches!(error, BindError::NotASocket(_)));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_dir_all(&directory).unwrap();
}
