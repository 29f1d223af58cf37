//! Tests replies against the table `replies.txt`. In the table, `>` is the input of a client on a
//! new connection to an empty cache, and `<` is the reply of memcached 1.6.45. Where Larder's reply
//! differs on purpose, `=` is Larder's reply and `#` gives the reason. `{x*3}` means `xxx`, and
//! `<EOF>` is the end of the connection.

use super::{Client, shown, worker};
use std::fmt::Write;

const TABLE: &str = include_str!("replies.txt");

struct Case {
    request: Vec<u8>,
    reply: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in TABLE.lines() {
        match line.split_at(line.len().min(2)) {
            ("> ", request) => cases.push(Case { request: bytes(request), reply: Vec::new() }),
            ("< " | "= ", reply) => cases.last_mut().unwrap().reply = bytes(reply),
            ("# ", _) | ("", _) => {}
            _ => panic!("not a line of the table: {line}"),
        }
    }
    cases
}

/// Decodes the escapes in a line of a table, such as `\r` and `{x*3}`.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if let [b'{', tail @ ..] = rest {
            let (byte, tail) = unescape(tail);
            let end = tail.iter().position(|&byte| byte == b'}').unwrap();
            let times = std::str::from_utf8(&tail[1..end]).unwrap().parse().unwrap();
            out.extend(std::iter::repeat_n(byte, times));
            rest = &tail[end + 1..];
        } else {
            let (byte, tail) = unescape(rest);
            out.push(byte);
            rest = tail;
        }
    }
    out
}

fn unescape(text: &[u8]) -> (u8, &[u8]) {
    match text {
        [b'\\', b'r', tail @ ..] => (b'\r', tail),
        [b'\\', b'n', tail @ ..] => (b'\n', tail),
        [b'\\', b'\\', tail @ ..] => (b'\\', tail),
        [b'\\', b'x', high, low, tail @ ..] => {
            let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
            (digit(*high) << 4 | digit(*low), tail)
        }
        [byte, tail @ ..] => (*byte, tail),
        [] => panic!("an escape without an end"),
    }
}

/// Runs the table with an output limit of `limit` bytes, and with inputs cut into pieces of `piece`
/// bytes.
fn run(limit: usize, piece: usize) {
    let mut worker = worker();
    let mut wrong = String::new();
    for case in cases() {
        if case.request.len() / piece > 100_000 {
            continue;
        }
        assert_eq!(Client::new(&mut worker).ask(b"flush_all\r\n"), b"OK\r\n");
        let mut client = Client::new(&mut worker);
        client.limit = limit;
        for piece in case.request.chunks(piece) {
            client.send(piece);
        }
        let reply = client.take();
        if reply != case.reply {
            let _ = write!(
                wrong,
                "> {}\n< {}\nbut {}\n",
                shown(&case.request),
                shown(&case.reply),
                shown(&reply)
            );
        }
    }
    assert!(wrong.is_empty(), "limit {limit}, pieces of {piece}:\n{wrong}");
}

#[test]
fn replies_match_memcached() {
    run(64 << 10, usize::MAX);
}

#[test]
fn replies_do_not_depend_on_how_requests_arrive() {
    for piece in [1, 2, 7, 1000] {
        run(64 << 10, piece);
    }
}

#[test]
fn replies_do_not_depend_on_the_output_limit() {
    for limit in [1, 10] {
        run(limit, usize::MAX);
        run(limit, 3);
    }
}
