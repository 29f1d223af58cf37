use super::*;

pub(super) fn wire() -> Postgres {
    Postgres { user: "postgres".into(), unlogged: false }
}

/// Returns a message of the server.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[kind], &length[..], body].concat()
}

fn row(column: &[u8]) -> Vec<u8> {
    message(b'D', &[&[0, 1], &(column.len() as u32).to_be_bytes()[..], column].concat())
}

/// Returns the messages that follow the rows in the reply to a successful request.
fn complete(tag: &[u8]) -> Vec<u8> {
    [message(b'C', &[tag, b"\0"].concat()), ready()].concat()
}

fn bound() -> Vec<u8> {
    message(b'2', b"")
}

fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

fn error(severity: &str, code: &str, text: &str) -> Vec<u8> {
    let fields = format!("S{severity}\0V{severity}\0C{code}\0M{text}\0Fxact.c\0L1\0Rf\0\0");
    message(b'E', fields.as_bytes())
}

#[test]
fn requests() {
    let mut buffer = Vec::new();
    wire().push(Verb::Set, b"fig", b"sweet", &mut buffer);
    let expected: &[u8] =
        b"B\0\0\0\x23\0set\0\0\x01\0\x01\0\x02\0\0\0\x03fig\0\0\0\x05sweet\0\x01\0\x01\
        E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";
    assert_eq!(buffer, expected);
    buffer.clear();
    wire().push(Verb::SetCounter, b"n", b"0", &mut buffer);
    let expected: &[u8] = b"B\0\0\0\x1f\0setcounter\0\0\x01\0\x01\0\x01\0\0\0\x01n\0\x01\0\x01\
        E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";
    assert_eq!(buffer, expected);
}

#[test]
fn replies_cut_anywhere() {
    use Verb::{Get, Incr, Set, SetCounter};
    let stream = [
        [bound(), complete(b"SELECT 0")].concat(),
        [bound(), row(b"sweet\0\xff"), complete(b"SELECT 1")].concat(),
        [bound(), row(b""), message(b'N', b"SNOTICE\0\0"), complete(b"SELECT 1")].concat(),
        [bound(), complete(b"INSERT 0 1")].concat(),
        [message(b'S', b"TimeZone\0UTC\0"), bound()].concat(),
        [row(&7i64.to_be_bytes()), complete(b"INSERT 0 1")].concat(),
        [error("ERROR", "53100", "no space left"), ready()].concat(),
        [bound(), error("ERROR", "40P01", "deadlock detected"), ready()].concat(),
        [bound(), complete(b"INSERT 0 1")].concat(),
        error("FATAL", "57P01", "terminating connection"),
    ]
    .concat();
    let verbs = [Get, Get, Get, Set, Incr, Set, Incr, SetCounter, Get];
    let expected = [
        Answer::Value(None),
        value(b"sweet\0\xff"),
        value(b""),
        Answer::Stored,
        Answer::Number(7),
        failed("53100 no space left"),
        failed("40P01 deadlock detected"),
        Answer::Stored,
        failed("57P01 terminating connection"),
    ];
    check_stream(&wire(), &verbs, &stream, &expected);
}

#[test]
fn broken_replies() {
    for stream in [
        // The length field is smaller than the header, or larger than the longest allowed message.
        b"Z\0\0\0\x03".to_vec(),
        b"D\x7f\xff\xff\xff".to_vec(),
        b"D\xff\xff\xff\xff".to_vec(),
        // Rows that are cut off, NULL, longer than their length field says, or of two columns.
        message(b'D', b""),
        message(b'D', b"\0\x01\0\0\0\x02a"),
        message(b'D', b"\0\x01\xff\xff\xff\xff"),
        message(b'D', b"\0\x01\0\0\0\x01ab"),
        message(b'D', b"\0\x02\0\0\0\x01a\0\0\0\x01b"),
        [row(b"a"), row(b"b")].concat(),
        ready(),
        message(b'G', b""),
    ] {
        check_broken(&wire(), Some(Verb::Get), &stream);
    }
    for stream in [row(b"7"), row(&(-1i64).to_be_bytes()), complete(b"INSERT 0 1")] {
        check_broken(&wire(), Some(Verb::Incr), &stream);
    }
    check_broken(&wire(), Some(Verb::Set), &row(b"a"));
    check_broken(&wire(), None, &complete(b"SELECT 0"));
    check_broken(&wire(), None, &error("FATAL", "57P01", "terminating connection"));
}
