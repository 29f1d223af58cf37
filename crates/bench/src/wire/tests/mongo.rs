//! Tests the decoder of MongoDB's protocol.

use super::*;
use crate::wire::Mongo;
use crate::wire::bson::{
    push_binary, push_document, push_inner, push_int32, push_int64, push_list, push_text,
};

/// Returns an OP_MSG whose document has the elements that `push_elements` appends, and then `ok`.
fn reply(ok: i32, push_elements: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend_from_slice(&2013u32.to_le_bytes());
    bytes.extend_from_slice(&[0; 5]);
    push_document(&mut bytes, |document| {
        push_elements(document);
        push_int32(document, "ok", ok);
    });
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn cursor(push_batch: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    reply(1, |document| {
        push_inner(document, "cursor", |cursor| {
            push_batch(cursor);
            push_int64(cursor, "id", 0);
        });
    })
}

fn hit(stored: &[u8]) -> Vec<u8> {
    cursor(|cursor| {
        push_list(cursor, "firstBatch", |document| {
            push_text(document, "_id", b"key");
            push_binary(document, "value", stored);
        });
    })
}

fn miss() -> Vec<u8> {
    cursor(|cursor| {
        // An empty array.
        cursor.extend_from_slice(b"\x04firstBatch\0\x05\0\0\0\0");
    })
}

fn counter(number: i64) -> Vec<u8> {
    reply(1, |document| {
        push_inner(document, "value", |counter| push_int64(counter, "value", number));
    })
}

fn changed(number: i32) -> Vec<u8> {
    reply(1, |document| push_int32(document, "n", number))
}

#[test]
fn replies_are_those_of_memcached() {
    let mut stream = changed(1);
    stream.extend(hit(b"fig"));
    stream.extend(miss());
    stream.extend(hit(b""));
    stream.extend(counter(42));
    stream.extend(reply(0, |document| push_text(document, "errmsg", b"no")));
    stream.extend(reply(1, |document| {
        push_int32(document, "n", 0);
        push_list(document, "writeErrors", |error| push_text(error, "errmsg", b"twice"));
    }));
    stream.extend(changed(1));
    let verbs = [
        Verb::Set,
        Verb::Get,
        Verb::Get,
        Verb::Get,
        Verb::Incr,
        Verb::Incr,
        Verb::Set,
        Verb::SetCounter,
    ];
    let expected = [
        Answer::Stored,
        value(b"fig"),
        Answer::Value(None),
        value(b""),
        Answer::Number(42),
        failed("no"),
        failed("twice"),
        Answer::Stored,
    ];
    check_stream(&Mongo, &verbs, &stream, &expected);
}

#[test]
fn other_bytes_are_refused() {
    check_broken(&Mongo, None, &changed(1));
    check_broken(&Mongo, Some(Verb::Get), &changed(1));
    check_broken(&Mongo, Some(Verb::Set), &changed(0));
    check_broken(&Mongo, Some(Verb::Set), &miss());
    check_broken(&Mongo, Some(Verb::Incr), &counter(-1));
    check_broken(&Mongo, Some(Verb::Incr), &changed(1));
    let mut other = changed(1);
    other[12] = 1;
    check_broken(&Mongo, Some(Verb::Set), &other);
    let mut short = changed(1);
    short[..4].copy_from_slice(&15u32.to_le_bytes());
    check_broken(&Mongo, Some(Verb::Set), &short);
    let mut cut_off = changed(1);
    cut_off[21] += 1;
    check_broken(&Mongo, Some(Verb::Set), &cut_off);
}

#[test]
fn requests_are_commands() {
    for (verb, name, collection) in [
        (Verb::Get, "find", "cache"),
        (Verb::Set, "update", "cache"),
        (Verb::SetCounter, "update", "counters"),
        (Verb::Incr, "findAndModify", "counters"),
    ] {
        let mut buffer = b"before".to_vec();
        Mongo.push(verb, b"key", b"value", &mut buffer);
        let message = &buffer[6..];
        assert_eq!(message[..4], (message.len() as u32).to_le_bytes());
        let text = String::from_utf8_lossy(message).into_owned();
        assert!(text.contains(&format!("{name}\0")) && text.contains(collection), "{text:?}");
        assert_eq!(text.contains("value\0\x05"), verb == Verb::Set, "{text:?}");
    }
}
