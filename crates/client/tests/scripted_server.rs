//! Tests the client against a server that expects exact bytes and replies with prepared ones, in
//! pieces of several sizes.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use larder_client::{Address, Client, Code, Error, Flags, Options, Reply, Stored};

/// Serves one connection. For each row of `script`, checks that the client sends exactly the row's
/// request, and sends the row's reply in pieces of `piece` bytes.
fn serve(mut stream: impl Read + Write, script: &[(&str, &str)], piece: usize) {
    for (request, reply) in script {
        let mut got = vec![0; request.len()];
        stream.read_exact(&mut got).expect("the request is complete");
        assert_eq!(String::from_utf8_lossy(&got), *request);
        for bytes in reply.as_bytes().chunks(piece) {
            stream.write_all(bytes).expect("the client reads");
        }
    }
}

fn scripted(script: &'static [(&str, &str)], piece: usize) -> (Client, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        serve(stream, script, piece);
    });
    (Client::connect(&address).unwrap(), server)
}

#[test]
fn every_text_verb() {
    const SCRIPT: &[(&str, &str)] = &[
        ("get a\r\n", "VALUE a 3 5\r\nhe\r\nl\r\nEND\r\n"),
        ("gets a\r\n", "VALUE a 3 1 42\r\nx\r\nEND\r\n"),
        ("get a b\r\n", "VALUE b 0 0\r\n\r\nEND\r\n"),
        ("get none\r\n", "END\r\n"),
        ("gat 60 a\r\n", "VALUE a 0 1\r\ny\r\nEND\r\n"),
        ("set a 7 60 2\r\nhi\r\n", "STORED\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("append a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("prepend a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas a 0 0 1 42\r\nx\r\n", "EXISTS\r\n"),
        ("cas b 0 0 1 42\r\nx\r\n", "NOT_FOUND\r\n"),
        ("delete a\r\n", "DELETED\r\n"),
        ("touch a -1\r\n", "NOT_FOUND\r\n"),
        ("incr n 5\r\n", "18446744073709551615\r\n"),
        ("decr n 1\r\n", "NOT_FOUND\r\n"),
        ("flush_all 10\r\n", "OK\r\n"),
        ("version\r\n", "VERSION 1.6.45\r\n"),
        ("stats settings\r\n", "STAT a 1\r\nSTAT b two words\r\nEND\r\n"),
    ];
    for piece in [1, 3, 4096] {
        let (mut client, server) = scripted(SCRIPT, piece);
        let item = client.get(b"a").unwrap().unwrap();
        assert_eq!((item.value.as_slice(), item.flags, item.cas), (&b"he\r\nl"[..], 3, None));
        assert_eq!(client.gets(b"a").unwrap().unwrap().cas, Some(42));
        let found = client.get_many(&[b"a", b"b"]).unwrap();
        assert_eq!((found.len(), found[0].key.as_slice()), (1, &b"b"[..]));
        assert_eq!(client.get(b"none").unwrap(), None);
        assert_eq!(client.gat(b"a", 60).unwrap().unwrap().value, b"y");
        client.set(b"a", b"hi", 7, 60).unwrap();
        assert_eq!(client.add(b"a", b"x", 0, 0).unwrap(), Stored::NotStored);
        assert_eq!(client.replace(b"a", b"x", 0, 0).unwrap(), Stored::Stored);
        assert_eq!(client.append(b"a", b"x").unwrap(), Stored::Stored);
        assert_eq!(client.prepend(b"a", b"x").unwrap(), Stored::NotStored);
        assert_eq!(client.cas(b"a", b"x", 0, 0, 42).unwrap(), Stored::Exists);
        assert_eq!(client.cas(b"b", b"x", 0, 0, 42).unwrap(), Stored::NotFound);
        assert!(client.delete(b"a").unwrap());
        assert!(!client.touch(b"a", -1).unwrap());
        assert_eq!(client.incr(b"n", 5).unwrap(), Some(u64::MAX));
        assert_eq!(client.decr(b"n", 1).unwrap(), None);
        client.flush_all(Some(10)).unwrap();
        assert_eq!(client.version().unwrap(), "1.6.45");
        let rows = client.stats(Some("settings")).unwrap();
        assert_eq!(rows[1], ("b".to_owned(), "two words".to_owned()));
        server.join().unwrap();
    }
}

#[test]
fn meta_and_pipelines() {
    const PIPELINE: &str =
        "get a b\r\nset a 0 0 1\r\nx\r\ndelete a\r\nincr n 1\r\nmg a\r\nmg b v\r\nget z\r\n";
    let (mut client, server) = scripted(
        &[
            ("mg a v f\r\n", "VA 3 f9\r\na\nb\r\n"),
            ("ms a 2 c\r\nhi\r\n", "HD c7\r\n"),
            (
                PIPELINE,
                "VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\nSERVER_ERROR out of memory\r\n\
                 DELETED\r\n7\r\nEN\r\nVA 1\r\nv\r\nEND\r\n",
            ),
        ],
        2,
    );
    client.send_raw(b"mg a v f\r\n").unwrap();
    let value = (Reply::Meta(Code::Value(3), Flags(b"f9")), &b"a\nb"[..]);
    assert_eq!(client.replies().reply().unwrap(), value);
    client.send_raw(b"ms a 2 c\r\nhi\r\n").unwrap();
    assert_eq!(client.replies().reply().unwrap().0, Reply::Meta(Code::Done, Flags(b"c7")));

    client.send_raw(PIPELINE.as_bytes()).unwrap();
    let item = |key| Reply::Value { key, flags: 0, length: 1, cas: None };
    for expected in [
        (item(b"a"), &b"1"[..]),
        (item(b"b"), b"2"),
        (Reply::End, b""),
        (Reply::Error(b"SERVER_ERROR out of memory"), b""),
        (Reply::Deleted, b""),
        (Reply::Number(7), b""),
        (Reply::Meta(Code::Miss, Flags(b"")), b""),
        (Reply::Meta(Code::Value(1), Flags(b"")), b"v"),
        (Reply::End, b""),
    ] {
        assert_eq!(client.replies().reply().unwrap(), expected);
    }
    server.join().unwrap();
}

#[test]
fn errors_say_whether_the_connection_survives() {
    let (mut client, server) = scripted(
        &[
            ("get a\r\n", "ERROR\r\n"),
            ("set a 0 0 1\r\nx\r\n", "SERVER_ERROR out of memory storing object\r\n"),
            ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            ("get b\r\n", "VALUE b 0 1\r\nxyz\r\n"),
        ],
        4096,
    );
    assert!(matches!(client.get(b"a"), Err(Error::UnknownCommand)));
    let error = client.set(b"a", b"x", 0, 0).unwrap_err();
    assert!(matches!(&error, Error::Server(text) if text == "out of memory storing object"));
    assert!(error.is_recoverable());
    assert!(matches!(client.incr(b"a", 1), Err(Error::Client(_))));
    let error = client.get(b"b").unwrap_err();
    assert!(matches!(error, Error::Protocol(_)) && !error.is_recoverable());
    server.join().unwrap();
    assert!(!client.get(b"gone").unwrap_err().is_recoverable());
}

#[test]
fn bad_keys_are_not_sent() {
    let (mut client, server) = scripted(&[("version\r\n", "VERSION 1\r\n")], 4096);
    let long = [b'k'; 251];
    for key in [&b""[..], b"a b", b"a\r\nflush_all", &long] {
        assert!(matches!(client.get(key), Err(Error::Usage(_))));
    }
    assert_eq!(client.version().unwrap(), "1");
    server.join().unwrap();
}

#[test]
fn unix_sockets() {
    let path = std::env::temp_dir().join(format!("larder-client-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        serve(stream, &[("version\r\n", "VERSION 9\r\n")], 1);
    });
    let mut client = Client::connect_to(&Address::Unix(path.clone()), Options::default()).unwrap();
    assert_eq!(client.version().unwrap(), "9");
    server.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_refused_connection_names_the_address() {
    // This port was free a moment ago, so no process listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = Client::connect(&format!("127.0.0.1:{port}")).unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}
