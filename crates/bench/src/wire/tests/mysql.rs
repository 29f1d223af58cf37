use super::*;

pub(super) fn wire() -> Mysql {
    Mysql { user: "bench".into(), engine: TableEngine::Memory, value_max: 1000 }
}

/// Returns a packet of the server.
fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

/// Returns the packets of the reply to a get: `count`, which begins with the number of columns, the
/// description `column` of the column (absent from some replies), the `rows`, and their end.
fn result(count: &[u8], column: Option<&[u8]>, rows: &[&[u8]]) -> Vec<u8> {
    let mut packets: Vec<Vec<u8>> = vec![count.to_vec()];
    packets.extend(column.map(<[u8]>::to_vec));
    packets.extend(rows.iter().map(|row| [b"\0\0", *row].concat()));
    packets.push(b"\xfe\0\0\x02\0\0\0".to_vec());
    (1..).zip(packets).flat_map(|(sequence, payload)| packet(sequence, &payload)).collect()
}

const COLUMN: &[u8] =
    b"\x03def\x05bench\x05cache\x05cache\x05value\x05value\x0c\x3f\0\xe8\x03\0\0\xfd\x81\x10\0\0\0";

#[test]
fn requests() {
    let mut buffer = Vec::new();
    wire().push(Verb::Incr, b"n", b"", &mut buffer);
    let expected: &[u8] = b"\x10\0\0\0\x17\x03\0\0\0\0\x01\0\0\0\0\x01\xfd\0\x01n";
    assert_eq!(buffer, expected);
    buffer.clear();
    wire().push(Verb::Set, b"fig", b"sweet", &mut buffer);
    let expected: &[u8] = b"\x1a\0\0\0\x17\x02\0\0\0\0\x01\0\0\0\0\x01\xfc\0\xfc\0\x03fig\x05sweet";
    assert_eq!(buffer, expected);
    for (length, opening) in [(250, &b"\xfa"[..]), (251, b"\xfc\xfb\0"), (65_000, b"\xfc\xe8\xfd")]
    {
        buffer.clear();
        wire().push(Verb::Set, b"fig", &vec![b'x'; length], &mut buffer);
        assert!(buffer[24..].starts_with(opening), "{length}");
        assert_eq!(buffer.len(), 24 + opening.len() + length);
    }
    buffer.clear();
    wire().push(Verb::Set, b"fig", &vec![b'x'; 20 << 20], &mut buffer);
    assert_eq!(buffer.len(), 24 + 3 + 65_001, "enough for the server to refuse it");
}

#[test]
fn replies_cut_anywhere() {
    use Verb::{Get, Incr, Set, SetCounter};
    let stream = [
        result(b"\x01", Some(COLUMN), &[]),
        result(b"\x01", Some(COLUMN), &[b"\x05sweet"]),
        result(b"\x01\x01", Some(COLUMN), &[b"\0"]),
        result(b"\x01\0", None, &[b"\x02\xff\xfe"]),
        result(b"\x01\0", None, &[]),
        packet(1, b"\0\x01\0\x02\0\0\0"),
        packet(1, b"\0\x02\x07\x02\0\0\0"),
        packet(1, b"\0\x02\xfe\x01\0\0\0\0\0\0\x80\x02\0\0\0"),
        packet(1, b"\xff\x7e\x05#22001Data too long"),
        packet(1, b"\xff\x10\x04Too many connections"),
        [packet(1, b"\x01\0"), packet(2, b"\xff\x25\x05#70100interrupted")].concat(),
        packet(1, b"\0\0\0\x02\0\0\0"),
    ]
    .concat();
    let verbs = [Get, Get, Get, Get, Get, Set, Incr, Incr, Set, Incr, Get, SetCounter];
    let expected = [
        Answer::Value(None),
        value(b"sweet"),
        value(b""),
        value(b"\xff\xfe"),
        Answer::Value(None),
        Answer::Stored,
        Answer::Number(7),
        Answer::Number((1 << 63) + 1),
        failed("1406 22001 Data too long"),
        failed("1040  Too many connections"),
        failed("1317 70100 interrupted"),
        Answer::Stored,
    ];
    check_stream(&wire(), &verbs, &stream, &expected);
}

#[test]
fn broken_replies() {
    for stream in [
        // A packet that continues in the next one.
        b"\xff\xff\xff\x01".to_vec(),
        packet(1, b""),
        packet(1, b"\x02"),
        packet(1, b"\x01\0\0"),
        packet(1, b"\0\0\0\x02\0\0\0"),
        packet(1, b"\xfb/etc/passwd"),
        packet(1, b"\xfe\0\0\x02\0\0\0"),
        // Rows that are NULL, cut off, longer than their length field says, or too many.
        result(b"\x01\0", None, &[b""]),
        result(b"\x01\0", None, &[b"\xfb"]),
        result(b"\x01\0", None, &[b"\x02a"]),
        result(b"\x01\0", None, &[b"\x01ab"]),
        result(b"\x01\0", None, &[b"\xfe\xff\xff\xff\xff\xff\xff\xff\xffab"]),
        result(b"\x01\0", None, &[b"\x01a", b"\x01b"]),
        [packet(1, b"\x01\0"), packet(2, b"\0\x04\x01a")].concat(),
    ] {
        check_broken(&wire(), Some(Verb::Get), &stream);
    }
    for payload in [&b"\0"[..], b"\0\x01", b"\0\x01\xfc\x01", b"\0\x01\xfb", b"\x01\0"] {
        check_broken(&wire(), Some(Verb::Incr), &packet(1, payload));
    }
    check_broken(&wire(), None, &packet(1, b"\0\x01\0\x02\0\0\0"));
    check_broken(&wire(), None, &packet(1, b"\xff\x1d\x04#08S01shutdown in progress"));
}

#[test]
fn a_table_has_a_limit_of_values() {
    let server = Address::Tcp("127.0.0.1:1".into());
    for value_max in [0, 65_001] {
        let error = Mysql { value_max, ..wire() }.prepare(&server).unwrap_err();
        assert!(matches!(error, crate::Error::Usage(_)), "{error}");
    }
}
