//! Tests of what flags mean and how wrong ones are refused.

use super::*;
use crate::StoreMode;
use crate::reply;
use proptest::prelude::*;

fn flags(line: &str) -> Result<Flags, &'static str> {
    let (verb, skip) = match &line[..2] {
        "mg" => (Verb::Get, 2),
        "ms" => (Verb::Set, 3),
        "md" => (Verb::Delete, 2),
        _ => (Verb::Arithmetic, 2),
    };
    Flags::parse(&Meta::parse(verb, line.as_bytes(), skip).ok_or(reply::BAD_FORMAT)?)
}

#[test]
fn every_flag_token_is_read() {
    let flags = flags("ms key 5 F7 T-1 N30 C18446744073709551615 E1 MA I q Oopaque k").unwrap();
    assert_eq!((flags.client_flags, flags.ttl, flags.vivify), (7, Some(-1), Some(30)));
    assert_eq!((flags.compare, flags.cas), (Some(u64::MAX), Some(1)));
    assert_eq!(flags.set_mode, StoreMode::Append);
    assert!(flags.has(b'q') && flags.has(b'I') && !flags.has(b'v'));
}

#[test]
fn arithmetic_flags_have_defaults() {
    let plain = flags("ma key").unwrap();
    assert_eq!((plain.delta, plain.initial, plain.decrement), (1, 0, false));
    let other = flags("ma key D5 J9 M-").unwrap();
    assert_eq!((other.delta, other.initial, other.decrement), (5, 9, true));
}

#[test]
fn the_reply_names_the_same_error_as_memcached() {
    for (line, refusal) in [
        ("mg key z", reply::INVALID_FLAG),
        ("mg key v v", reply::DUPLICATE_FLAG),
        ("mg key Tx z", reply::INVALID_FLAG),
        ("mg key Tx", reply::BAD_TOKEN),
        ("mg key Fx", reply::BAD_FORMAT),
        ("mg key Tx Fx", reply::BAD_TOKEN),
        ("mg key !", reply::BAD_FORMAT),
        ("mg key Jx", reply::BAD_INITIAL_TOKEN),
        ("ma key Jx", reply::INVALID_OR_DUPLICATE_FLAG),
        ("ms key 1 MX O123456789012345678901234567890123", reply::INVALID_SET_MODE),
        ("mg key O12345678901234567890123456789012", reply::OPAQUE_TOO_LONG),
        ("mg ke b", reply::KEY_NOT_DECODED),
        ("ma key MX", reply::INVALID_ARITHMETIC_MODE),
    ] {
        assert_eq!(flags(line), Err(refusal), "{line}");
    }
    assert!(flags("mg key O1234567890123456789012345678901").is_ok());
}

proptest! {
    #[test]
    fn never_panics(line in "m[gsda] [ -~]{0,300}") {
        let _ = flags(&line);
    }
}
