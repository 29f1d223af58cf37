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

fn limit(line: &str) -> Result<LimitFlags<'_>, &'static str> {
    let command = Meta::parse(Verb::Arithmetic, line.as_bytes(), 2).expect("a command");
    Flags::parse(&command)?;
    LimitFlags::parse(&command)
}

#[test]
fn a_budget_or_a_policy_makes_a_limit() {
    let own =
        |mode, budget, window_ms, burst| Ok(LimitFlags::Own { mode, budget, window_ms, burst });
    assert_eq!(limit("ma key B5"), own(LimitMode::Fixed, 5, 0, None));
    assert_eq!(limit("ma key B5 N60 MI r t w q k"), own(LimitMode::Fixed, 5, 60_000, None));
    assert_eq!(limit("ma key N250ms MW B5"), own(LimitMode::Sliding, 5, 250, None));
    assert_eq!(limit("ma key MG B5 N2 G9 D3"), own(LimitMode::Gcra, 5, 2000, Some(9)));
    assert_eq!(limit("ma key Qapi r w"), Ok(LimitFlags::Policy(b"api")));
    let most = u64::MAX;
    assert_eq!(
        limit("ma key B18446744073709551615 N2147483647"),
        own(LimitMode::Fixed, most, 2_147_483_647_000, None)
    );
}

#[test]
fn a_limit_that_makes_no_sense_is_refused() {
    for (line, refusal) in [
        ("ma key Qapi B5", reply::POLICY_AND_LIMIT),
        ("ma key Qapi N5", reply::POLICY_AND_LIMIT),
        ("ma key Qapi MG", reply::POLICY_AND_LIMIT),
        ("ma key G5 Qapi", reply::POLICY_AND_LIMIT),
        ("ma key B5 MD", reply::BUDGET_AND_DECREMENT),
        ("ma key B5 MX", reply::INVALID_ARITHMETIC_MODE),
        ("ma key B5 MW", reply::LIMIT_NEEDS_WINDOW),
        ("ma key B5 MG N0", reply::LIMIT_NEEDS_WINDOW),
        ("ma key B5 MW N5 G7", reply::BURST_NEEDS_GCRA),
        ("ma key B5 G7", reply::BURST_NEEDS_GCRA),
        ("ma key B", reply::BAD_TOKEN),
        ("ma key B-1", reply::BAD_TOKEN),
        ("ma key B5 N-1", reply::BAD_TOKEN),
        ("ma key B5 N-", reply::BAD_TOKEN),
        ("ma key B5 N-0", reply::BAD_TOKEN),
        ("ma key B5 N1s", reply::BAD_TOKEN),
        ("ma key B5 Nms", reply::BAD_TOKEN),
        ("ma key B5 N2147483647001ms", reply::BAD_TOKEN),
        ("ma key B5 B6", reply::INVALID_OR_DUPLICATE_FLAG),
    ] {
        assert_eq!(limit(line), Err(refusal), "{line}");
    }
}

#[test]
fn without_a_limit_its_flags_are_refused_as_by_memcached() {
    for line in ["ma key r", "ma key w", "ma key G5", "ma key N250ms"] {
        assert_eq!(flags(line), Err(reply::INVALID_OR_DUPLICATE_FLAG), "{line}");
    }
    for line in ["ma key MG", "ma key MW"] {
        assert_eq!(flags(line), Err(reply::INVALID_ARITHMETIC_MODE), "{line}");
    }
    assert_eq!(flags("mg key B5"), Err(reply::INVALID_FLAG));
}

proptest! {
    #[test]
    fn never_panics(line in "m[gsda] [ -~]{0,300}") {
        let _ = flags(&line);
        let _ = Meta::parse(Verb::Arithmetic, line.as_bytes(), 2)
            .map(|command| LimitFlags::parse(&command).is_ok());
    }
}
