//! Tests of refused requests, of requests that close a connection, of large values, and of requests
//! that arrive in pieces or in great number.

use super::*;

#[test]
fn wrong_lengths_close_the_connection() {
    let server = Server::start();
    let refused = [
        packet(0x00, b"1234", b"k", b""),
        packet(0x0d, b"", b"", b""),
        packet(0x00, b"", b"k", b"v"),
        packet(0x01, b"1234", b"k", b"v"),
        packet(0x11, &[0; 8], b"", b"v"),
        packet(0x04, b"1234", b"k", b""),
        packet(0x05, &[0; 8], b"k", b""),
        packet(0x15, &[0; 20], b"k", b"v"),
        packet(0x07, b"", b"k", b""),
        packet(0x08, b"abc", b"", b""),
        packet(0x18, b"", b"k", b""),
        packet(0x0a, b"", b"k", b""),
        packet(0x0b, b"", b"", b"v"),
        packet(0x0e, b"1234", b"k", b"v"),
        packet(0x10, b"1234", b"", b""),
        packet(0x1c, b"", b"k", b""),
        packet(0x1d, &[0; 8], b"k", b""),
        packet(0x20, b"", b"k", b""),
        packet(0x21, b"", b"", b""),
        get(0x00, &[b'k'; 251]),
        store(0x01, &[b'k'; 251], 0, b"v"),
        get(0x99, &[b'k'; 251]),
    ];
    for request in refused {
        server.expect_closed(&request, &[invalid(request[1])]);
    }
    let body_len = |mut packet: Vec<u8>, len: u32| {
        packet[8..12].copy_from_slice(&len.to_be_bytes());
        packet
    };
    server.expect_closed(&body_len(get(0x00, b"kkkk"), 2), &[unknown(0x00)]);
    server.expect_closed(&body_len(store(0x01, b"kkkk", 0, b""), 11), &[unknown(0x01)]);
    let over = body_len(store(0x01, b"k", 0, b""), (1 << 30) + 1);
    server.expect_closed(&over, &[invalid(0x01)]);
}

#[test]
fn bytes_that_are_no_packet_close_the_connection() {
    let server = Server::start();
    for garbage in [&b"get k\r\n"[..], &[0x81; 24], &[0; 24]] {
        let mut stream = server.connect();
        stream.write_all(&[&noop(), garbage].concat()).unwrap();
        assert_eq!(read_reply(&mut stream), (done(0x0a), LAST));
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
}

#[test]
fn unknown_opcodes_keep_the_connection() {
    let server = Server::start();
    let opcodes = [0x1b, 0x1f, 0x20, 0x25, 0x30, 0x7f, 0xff];
    server.expect(&opcodes.map(|opcode| packet(opcode, b"", b"", b"")), &opcodes.map(unknown));
    server.expect(
        &[
            packet(0x1b, &[0, 0, 0, 1], b"", b""),
            packet(0x99, b"ext", b"key", b"value"),
            packet(0x99, b"", b"", &vec![0x80; 1 << 20]),
            packet(0x21, b"", b"PLAIN", b"\0user\0word"),
            packet(0x22, b"", b"PLAIN", b""),
        ],
        &[0x1b, 0x99, 0x99, 0x21, 0x22].map(unknown),
    );
}

#[test]
fn values_that_are_too_large_are_refused() {
    let server = Server::start();
    let large = vec![0x80; 1 << 20];
    let old = item(0x00, 0, b"", b"old");
    server.expect(
        &[
            store(0x11, b"k", 0, b"old"),
            store(0x02, b"k", 0, &large),
            get(0x00, b"k"),
            store(0x13, b"k", 0, &large),
            get(0x00, b"k"),
            packet(0x0e, b"", b"k", &large),
            get(0x00, b"k"),
            store(0x01, b"k", 0, &large),
            get(0x00, b"k"),
        ],
        &[
            too_large(0x02),
            old.clone(),
            too_large(0x13),
            old.clone(),
            too_large(0x0e),
            old,
            too_large(0x01),
            not_found(0x00),
        ],
    );
    // A set whose value is too large must remove the old item, even if the set has a cas id.
    server.expect(
        &[store(0x11, b"k", 0, b"old"), compared(0x11, &[0; 8], b"k", &large, 3), get(0x00, b"k")],
        &[too_large(0x11), not_found(0x00)],
    );
    let half = &large[..600_000];
    server.expect(
        &[
            store(0x11, b"sum", 0, half),
            packet(0x0e, b"", b"sum", half),
            packet(0x1a, b"", b"sum", half),
            get(0x00, b"sum"),
        ],
        &[not_stored(0x0e), not_stored(0x1a), item(0x00, 0, b"", half)],
    );
}

#[test]
fn long_values_and_replies_beyond_the_output_limit_arrive() {
    let server = Server::start();
    let mut requests = Vec::new();
    let mut replies = Vec::new();
    for (n, len) in
        [0, 1, 4_000, 16_000, 20_000, 70_000, 300_000, 700_000, 1_000_000].into_iter().enumerate()
    {
        let key = format!("key{n}").into_bytes();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
        requests.push(store(0x11, &key, n as u32, &bytes));
        for _ in 0..3 {
            requests.push(get(0x0d, &key));
            requests.push(get(0x09, b"missing"));
            replies.push(item(0x0d, n as u32, &key, &bytes));
        }
    }
    server.expect(&requests, &replies);
}

#[test]
fn requests_in_single_bytes_are_answered() {
    let server = Server::start();
    let requests = [
        store(0x01, b"k", 1, b"value"),
        get(0x0d, b"missing"),
        get(0x0c, b"k"),
        packet(0x99, b"ext", b"key", b"value"),
        count(0x05, b"c", 1, 10, 0),
    ];
    let mut stream = server.connect();
    for byte in requests.concat() {
        stream.write_all(&[byte]).unwrap();
    }
    let number = value(0x05, &10u64.to_be_bytes());
    assert_eq!(
        answers(&mut stream),
        [value(0x01, b""), item(0x0c, 1, b"k", b"value"), unknown(0x99), number]
    );
}

#[test]
fn a_thousand_quiet_requests_are_executed() {
    let server = Server::start();
    let keys: Vec<Vec<u8>> = (0..1000).map(|n| format!("key:{n}").into_bytes()).collect();
    let stores: Vec<_> = keys.iter().map(|key| store(0x11, key, 0, &key.repeat(2))).collect();
    server.expect(&stores, &[]);
    let gets: Vec<_> = keys.iter().map(|key| get(0x0d, key)).collect();
    let items: Vec<_> = keys.iter().map(|key| item(0x0d, 0, key, &key.repeat(2))).collect();
    server.expect(&gets, &items);
}

#[test]
fn both_protocols_see_the_same_items() {
    let server = Server::start();
    server.expect(&[store(0x11, b"k", 5, b"binary")], &[]);
    let mut text = server.connect();
    text.write_all(b"get k\r\nset k 6 0 4\r\ntext\r\nquit\r\n").unwrap();
    let mut said = String::new();
    text.read_to_string(&mut said).unwrap();
    assert_eq!(said, "VALUE k 5 6\r\nbinary\r\nEND\r\nSTORED\r\n");
    server.expect(&[get(0x00, b"k")], &[item(0x00, 6, b"", b"text")]);
}
