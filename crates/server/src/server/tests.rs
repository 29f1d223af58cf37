use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::command::Switches;
use crate::settings::{ListenAddress, Port, Protocol, StorePath};

/// Returns settings with a free port of the loopback address, and without an admin page.
fn settings() -> Settings {
    Settings {
        listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }],
        admin: None,
        threads: 2,
        ..Settings::default()
    }
}

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client
}

fn ask(client: &mut TcpStream, request: &str, expected: &str) {
    client.write_all(request.as_bytes()).unwrap();
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected, "{request}");
}

/// Reads until the server closes the connection.
fn rest(mut client: TcpStream) -> String {
    let mut text = String::new();
    // A reset of the connection counts as its end too.
    let _ = client.read_to_string(&mut text);
    text
}

#[test]
fn a_server_serves_and_stops() {
    let server = Server::start(settings()).unwrap();
    let mut client = connect(&server);
    ask(&mut client, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    ask(&mut client, "version\r\n", "VERSION 1.6.45\r\n");
    let address = server.addresses()[0];
    server.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(rest(client), "");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn two_servers_in_one_process_share_nothing() {
    let (one, two) = (Server::start(settings()).unwrap(), Server::start(settings()).unwrap());
    ask(&mut connect(&one), "set k 0 0 1\r\n1\r\n", "STORED\r\n");
    ask(&mut connect(&two), "get k\r\n", "END\r\n");
    drop(one);
    ask(&mut connect(&two), "get k\r\n", "END\r\n");
}

#[test]
fn wait_returns_the_first_reason_to_stop() {
    let switches = Switches { shutdown: true, ..Switches::default() };
    let server = Server::start(Settings { switches, ..settings() }).unwrap();
    let mut client = connect(&server);
    client.write_all(b"shutdown graceful\r\n").unwrap();
    assert_eq!(server.wait(), "the shutdown command");
    assert!(!server.stopper().stop("another reason"));
    assert_eq!(server.wait(), "the shutdown command");
    server.shutdown(Duration::from_secs(5)).unwrap();

    let server = Server::start(settings()).unwrap();
    ask(&mut connect(&server), "shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
}

#[test]
fn a_stop_waits_for_a_command_in_flight() {
    let server = Server::start(settings()).unwrap();
    let mut client = connect(&server);
    ask(&mut client, "mn\r\nset k 0 0 3\r\nab", "MN\r\n");
    let ending = std::thread::spawn(move || server.shutdown(Duration::from_secs(20)));
    client.write_all(b"c\r\n").unwrap();
    assert_eq!(rest(client), "STORED\r\n");
    ending.join().unwrap().unwrap();
}

#[test]
fn stop_now_ends_a_wait_for_a_command_in_flight() {
    let server = Server::start(settings()).unwrap();
    let mut client = connect(&server);
    ask(&mut client, "mn\r\nset k 0 0 3\r\nab", "MN\r\n");
    let stopper = server.stopper();
    let ending = std::thread::spawn(move || server.shutdown(Duration::from_secs(3600)));
    stopper.stop_now("impatience");
    ending.join().unwrap().unwrap();
    assert_eq!(rest(client), "");
}

#[test]
fn a_failed_start_names_the_reason() {
    let server = Server::start(settings()).unwrap();
    let taken = server.addresses()[0].port();
    let error = Server::start(Settings {
        listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(taken) }],
        ..settings()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is taken by another process"), "{error}");

    let error = Server::start(Settings { memory: 1 << 20, max_item_size: 1024, ..settings() });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("--memory is too small: give at least 8 MB"), "{error}");

    let listen = vec![ListenAddress { host: "no.such.host.invalid".to_owned(), port: None }];
    let error = Server::start(Settings { listen, ..settings() }).unwrap_err().to_string();
    assert!(error.contains("--listen no.such.host.invalid has no address"), "{error}");

    let socket = Some("/does/not/exist/larder.socket".into());
    let error = Server::start(Settings { socket, ..settings() }).unwrap_err().to_string();
    assert!(error.contains("there is no such directory; create it"), "{error}");

    let pidfile = Some("/does/not/exist/larder.pid".into());
    let error = Server::start(Settings { pidfile, ..settings() }).unwrap_err().to_string();
    assert!(error.contains("cannot write --pidfile /does/not/exist/larder.pid"), "{error}");
}

/// The test binds the addresses first, as if a process that was just killed still held them. The
/// start must wait until the addresses are free.
#[test]
fn a_start_waits_for_an_address_that_becomes_free() {
    let folder = std::env::temp_dir().join(format!("larder-late-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let dying = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(tcp);
        std::thread::sleep(Duration::from_millis(50));
        drop(unix);
    });
    let server = Server::start(Settings {
        listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(port) }],
        socket: Some(path),
        ..settings()
    })
    .unwrap();
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
    dying.join().unwrap();
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_writes_and_removes_its_files() {
    let folder = std::env::temp_dir().join(format!("larder-server-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (pidfile, port_file) = (folder.join("pid"), folder.join("port"));
    let socket = folder.join("socket");
    let server = Server::start(Settings {
        pidfile: Some(pidfile.clone()),
        port_file: Some(port_file.clone()),
        socket: Some(socket.clone()),
        ..settings()
    })
    .unwrap();
    let port = server.addresses()[0].port();
    assert_eq!(std::fs::read_to_string(&port_file).unwrap(), format!("TCP INET: {port}\n"));
    let pid = std::fs::read_to_string(&pidfile).unwrap();
    assert_eq!(pid.trim(), std::process::id().to_string());
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.write_all(b"mn\r\n").unwrap();
    let mut reply = [0; 4];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MN\r\n");
    drop(server);
    assert!(!pidfile.exists() && !socket.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Until the server calls `Host::serving`, the process may simply exit at a signal. After that,
/// only a `Stopper` ends the server without losing acknowledged writes. So the call must come
/// before a client can connect.
#[test]
fn the_host_is_told_before_a_client_can_connect() {
    let folder = std::env::temp_dir().join(format!("larder-serving-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("socket");
    let (path, (heard, answers)) = (socket.clone(), std::sync::mpsc::channel());
    let serving = Box::new(move || {
        heard.send(std::os::unix::net::UnixStream::connect(path).map(drop)).unwrap();
    });
    let host = Host { serving: Some(serving), ..Host::default() };
    let store = vec![StorePath { path: folder.join("store"), size: Some(64 << 20), tier: None }];
    let settings = Settings { socket: Some(socket.clone()), store, ..settings() };
    let server = Server::start_in(settings, host).unwrap();
    assert!(answers.try_recv().expect("the host was told").is_err());
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn all_addresses_share_the_port_that_the_kernel_chose() {
    let listen = vec![ListenAddress { host: "*".to_owned(), port: None }];
    let server = Server::start(Settings { listen, port: Port::Any, ..settings() }).unwrap();
    let addresses = server.addresses();
    assert!(addresses.iter().all(|a| a.port() == addresses[0].port() && a.port() != 0));
    ask(&mut connect_to(addresses[0].port()), "get k\r\n", "END\r\n");
}

fn connect_to(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

#[test]
fn only_the_allowed_protocol_is_served() {
    let binary_noop: [u8; 24] = {
        let mut header = [0; 24];
        header[0] = 0x80;
        header[1] = 0x0a;
        header
    };
    let server = Server::start(Settings { protocol: Protocol::Ascii, ..settings() }).unwrap();
    ask(&mut connect(&server), "mn\r\n", "MN\r\n");
    let mut client = connect(&server);
    client.write_all(&binary_noop).unwrap();
    assert_eq!(rest(client), "");

    let server = Server::start(Settings { protocol: Protocol::Binary, ..settings() }).unwrap();
    let mut client = connect(&server);
    client.write_all(b"mn\r\n").unwrap();
    assert_eq!(rest(client), "");
    let mut client = connect(&server);
    client.write_all(&binary_noop).unwrap();
    let mut reply = [0; 24];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..2], [0x81, 0x0a]);
}
