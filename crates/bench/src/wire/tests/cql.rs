//! Tests the decoder of CQL.

use super::*;
use crate::wire::Cql;

fn reply(flags: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x84, flags, 0, 0, kind];
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn rows(values: &[&[u8]]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1];
    body.extend_from_slice(&(values.len() as u32).to_be_bytes());
    for value in values {
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    reply(0, 8, &body)
}

const VOID: [u8; 4] = [0, 0, 0, 1];

#[test]
fn replies_are_those_of_memcached() {
    let mut stream = reply(0, 8, &VOID);
    stream.extend(rows(&[b"fig"]));
    stream.extend(rows(&[]));
    stream.extend(rows(&[b""]));
    // A warning stands in front of the result.
    stream.extend(reply(8, 8, b"\0\x01\0\x04slow\0\0\0\x01"));
    stream.extend(reply(0, 0, b"\0\0\x11\0\0\x07timeout\0\x01"));
    let verbs = [Verb::Set, Verb::Get, Verb::Get, Verb::Get, Verb::Set, Verb::Get];
    let expected = [
        Answer::Stored,
        value(b"fig"),
        Answer::Value(None),
        value(b""),
        Answer::Stored,
        failed("1100 timeout"),
    ];
    check_stream(&Cql::new(), &verbs, &stream, &expected);
}

#[test]
fn other_bytes_are_refused() {
    let wire = Cql::new();
    check_broken(&wire, None, &reply(0, 8, &VOID));
    check_broken(&wire, Some(Verb::Get), &reply(0, 8, &VOID));
    check_broken(&wire, Some(Verb::Set), &rows(&[b"fig"]));
    check_broken(&wire, Some(Verb::Get), &rows(&[b"fig", b"sweet"]));
    check_broken(&wire, Some(Verb::Get), &reply(0, 2, b""));
    check_broken(&wire, Some(Verb::Get), &reply(8, 8, b"\0\x01\0\x04slo"));
    check_broken(&wire, Some(Verb::Get), &reply(0, 8, b"\0\0\0\x02\0\0\0\x04\0\0\0\x02\0\0\0\0"));
    check_broken(&wire, Some(Verb::Get), b"\x04\0\0\0\x08\0\0\0\0");
    check_broken(&wire, Some(Verb::Get), b"\x84\0\0\0\x08\xff\0\0\0");
}

#[test]
fn requests_name_the_key_and_its_partition() {
    let mut buffer = Vec::new();
    Cql::new().push(Verb::Set, b"key", b"value", &mut buffer);
    let expected = b"\x04\0\0\0\x0a\0\0\0\x17\0\0\0\x01\x03\0\x02\0\0\0\x03key\0\0\0\x05value";
    assert_eq!(buffer, expected);
    buffer.clear();
    let grouped = Cql::partitioned(1);
    grouped.push(Verb::Get, b"key", b"", &mut buffer);
    let expected = b"\x04\0\0\0\x0a\0\0\0\x16\0\0\0\x01\x03\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x03key";
    assert_eq!(buffer, expected);
    buffer.clear();
    for verb in [Verb::Incr, Verb::SetCounter, Verb::Touch] {
        grouped.push(verb, b"key", b"", &mut buffer);
        assert!(buffer.is_empty() && !grouped.speaks(verb));
    }
}
