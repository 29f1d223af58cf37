//! Tests decoders with byte streams that are cut anywhere, and the implementations of `Wire` with
//! real servers.

mod cql;
mod mongo;
mod mysql;
mod postgres;
mod resp;
mod servers;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::caller::Asking;
use super::*;

const VERBS: [Verb; 4] = [Verb::Get, Verb::Set, Verb::Incr, Verb::SetCounter];

fn wires() -> [Box<dyn Wire>; 3] {
    [Box::new(Resp), Box::new(postgres::wire()), Box::new(mysql::wire())]
}

/// Returns the answers to `verbs` that arrive as `pieces`.
fn answers(
    wire: &dyn Wire,
    verbs: &[Verb],
    pieces: &[&[u8]],
) -> std::result::Result<Vec<Answer>, String> {
    let mut asking = Asking::new(verbs.iter().copied());
    let mut replies = wire.replies();
    for piece in pieces {
        replies.feed(piece, &mut asking)?;
    }
    assert_eq!(asking.verbs, VecDeque::new(), "requests without a reply");
    Ok(asking.answers)
}

/// Checks a stream of replies as a whole, in pieces of every length, and cut in two at every
/// position.
fn check_stream(wire: &dyn Wire, verbs: &[Verb], stream: &[u8], expected: &[Answer]) {
    assert_eq!(answers(wire, verbs, &[stream]).unwrap(), expected);
    for length in 1..stream.len() {
        let pieces: Vec<&[u8]> = stream.chunks(length).collect();
        assert_eq!(answers(wire, verbs, &pieces).unwrap(), expected, "pieces of {length}");
        let (left, right) = stream.split_at(length);
        assert_eq!(answers(wire, verbs, &[left, right]).unwrap(), expected, "cut at {length}");
    }
}

/// Checks that a decoder refuses `stream` as the reply to `verb`, both if it gets `stream` as a
/// whole and byte by byte. If `verb` is `None`, the decoder expects no reply.
fn check_broken(wire: &dyn Wire, verb: Option<Verb>, stream: &[u8]) {
    for pieces in [vec![stream], stream.chunks(1).collect()] {
        let mut asking = Asking::new(verb);
        let mut replies = wire.replies();
        let fed = pieces.iter().try_for_each(|piece| replies.feed(piece, &mut asking));
        assert!(fed.is_err(), "{stream:02x?} as the reply to {verb:?}: {:?}", asking.answers);
    }
}

fn value(bytes: &[u8]) -> Answer {
    Answer::Value(Some(bytes.to_vec()))
}

fn failed(text: &str) -> Answer {
    Answer::Failed(text.to_owned())
}

#[test]
fn a_verb_that_a_wire_does_not_speak_sends_nothing() {
    for wire in wires() {
        let mut buffer = Vec::new();
        wire.push(Verb::Touch, b"key", b"", &mut buffer);
        assert!(buffer.is_empty() && !wire.speaks(Verb::Touch), "{wire:?}");
        for verb in VERBS {
            buffer.clear();
            wire.push(verb, b"key", b"", &mut buffer);
            assert!(!buffer.is_empty() && wire.speaks(verb), "{wire:?} {verb:?}");
        }
    }
}

/// Feeds noise to a decoder of each of [`wires`] until the decoder refuses it. The decoder must not
/// panic.
fn feed_noise(verbs: &[Verb], pieces: &[&[u8]]) {
    for wire in wires() {
        let mut asking = Asking::new(verbs.iter().copied());
        let mut replies = wire.replies();
        let _ = pieces.iter().try_for_each(|piece| replies.feed(piece, &mut asking));
    }
}

fn any_verbs() -> impl Strategy<Value = Vec<Verb>> {
    proptest::collection::vec(proptest::sample::select(&VERBS[..]), 0..6)
}

proptest! {
    #[test]
    fn noise_never_panics(bytes: Vec<u8>, cut in 0usize..64, verbs in any_verbs()) {
        let (left, right) = bytes.split_at(cut.min(bytes.len()));
        feed_noise(&verbs, &[left, right]);
    }

    /// Uses bytes that are likely in real replies, because they get further into the decoders.
    #[test]
    fn likely_noise_never_panics(
        bytes in proptest::collection::vec(
            prop_oneof![
                3 => 0u8..12,
                3 => proptest::sample::select(&b"DCEZ2NS$+:-\r\n0189OK"[..]),
                1 => 0xf9u8..=0xff,
                1 => proptest::num::u8::ANY,
            ],
            0..200,
        ),
        cut in 0usize..64,
        verbs in any_verbs(),
    ) {
        let (left, right) = bytes.split_at(cut.min(bytes.len()));
        feed_noise(&verbs, &[left, right]);
    }
}
