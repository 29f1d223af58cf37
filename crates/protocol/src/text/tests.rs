//! Tests of the parser alone. The server's tests compare whole replies with those of memcached.

use super::*;
use crate::StoreMode;
use crate::meta::Verb;
use crate::text::admin::{Admin, Device, Grow};
use proptest::prelude::*;

/// Returns the result of [`parse`] for `input`, and the keys. Checks that [`parse_common`] has the
/// same result if it handles the input.
fn parsed(input: &[u8]) -> (Parsed<'_>, Vec<&[u8]>) {
    let mut keys = Vec::new();
    let parsed = parse(input, &mut keys);
    let (mut common, mut common_keys) = (None, Vec::new());
    let taken = parse_common(input, &mut common_keys, |request, consumed| {
        common = Some(Parse::Request { request, consumed });
    });
    match common {
        Some(common) => assert_eq!((taken, common, &common_keys), (true, parsed, &keys)),
        None => assert!(!taken && common_keys.is_empty()),
    }
    (parsed, keys)
}

/// Returns true if [`parse_common`] handles the input.
fn is_common(input: &[u8]) -> bool {
    parse_common(input, &mut Vec::new(), |_, _| ())
}

#[test]
fn parse_common_takes_only_common_requests() {
    for common in
        ["get key\r\n", "get k\n", "set k 0 0 0\r\n\r\n", "set k 007 999999999 3\r\nabc\r\nget"]
    {
        assert!(is_common(common.as_bytes()), "{common:?}");
        parsed(common.as_bytes());
    }
    for other in [
        "get a b\r\n",
        "get a",
        "set k 0 0 3\r\nabc",
        "set k 0 0 3\r\nabcd\r\n",
        "set k 0 0 3 noreply\r\nabc\r\n",
        "set k 0 0 3\nabc\r\n",
        "set k 0 0 \r\n\r\n",
        "set k 0 -1 0\r\n\r\n",
        "set k 1000000000 0 0\r\n\r\n",
        "set  k 0 0 0\r\n\r\n",
        "set  0 0 0\r\n\r\n",
    ] {
        assert!(!is_common(other.as_bytes()), "{other:?}");
        parsed(other.as_bytes());
    }
    for (len, common) in [(KEY_LEN_MAX, true), (KEY_LEN_MAX + 1, false)] {
        let request = format!("set {} 0 0 1\r\nx\r\n", "k".repeat(len));
        assert_eq!(is_common(request.as_bytes()), common);
        parsed(request.as_bytes());
    }
}

#[test]
fn a_retrieval_delivers_its_keys_in_order() {
    let (get, keys) = parsed(b"get a  bb ccc \r\nget d\r\n");
    let plain = Get { cas: false, exptime: None, keys_follow: false };
    assert_eq!(get, Parse::Request { request: Request::Get(plain), consumed: 16 });
    assert_eq!(keys, [&b"a"[..], b"bb", b"ccc"]);
    let (gats, keys) = parsed(b"gats -5 k\n");
    let touching = Get { cas: true, exptime: Some(-5), keys_follow: false };
    assert_eq!(gats, Parse::Request { request: Request::Get(touching), consumed: 10 });
    assert_eq!(keys, [b"k"]);
}

#[test]
fn a_wrong_key_refuses_all_keys() {
    let mut line = b"get a ".to_vec();
    line.extend_from_slice(&[b'k'; 251]);
    line.extend_from_slice(b" b\r\n");
    let (refused, keys) = parsed(&line);
    assert_eq!(refused, refuse(reply::BAD_FORMAT, line.len()));
    assert!(keys.is_empty());
}

#[test]
fn storage_waits_for_its_value() {
    let request = b"set k 5 60 3\r\nabc\r\n";
    let store = Store {
        mode: StoreMode::Set,
        compare: None,
        flags: 5,
        exptime: 60,
        noreply: false,
        value: b"abc",
    };
    let (whole, keys) = parsed(request);
    let expected = Parse::Request { request: Request::Store(store), consumed: request.len() };
    assert_eq!(whole, expected);
    assert_eq!(keys, [b"k"]);
    for len in 14..request.len() {
        let (part, keys) = parsed(&request[..len]);
        let request = Request::Store(Store { value: &[], ..store });
        assert_eq!(part, Parse::NeedValue { request, header: 14, value: 3, trailer: 2 });
        assert_eq!(keys, [b"k"]);
    }
}

#[test]
fn a_wrong_storage_request_swallows_its_value() {
    for (line, reply) in [
        (&b"set k x 0 3\r\n"[..], reply::BAD_FORMAT),
        (b"set k 18446744073709551616 0 3\r\n", reply::BAD_FORMAT),
        (b"cas k 0 0 3\r\n", reply::BAD_FORMAT),
        (b"add k x 0 3 noreply\r\n", ""),
    ] {
        let then = Then::Swallow(5);
        assert_eq!(parsed(line).0, Parse::Refused { reply, consumed: line.len(), then });
    }
}

#[test]
fn a_meta_command_is_split_into_key_flags_and_value() {
    let (request, keys) = parsed(b"mg key v  k Oq\r\n");
    let Parse::Request { request: Request::Meta(meta), consumed: 16 } = request else {
        panic!("{request:?}");
    };
    assert_eq!((meta.verb, meta.key, meta.base64), (Verb::Get, &b"key"[..], false));
    assert_eq!(meta.tokens().collect::<Vec<_>>(), [&b"v"[..], b"k", b"Oq"]);
    assert_eq!(keys, [b"key"]);
    let (request, keys) = parsed(b"ms Zm9v 2 b\r\nhi\r\n");
    let Parse::Request { request: Request::Meta(meta), .. } = request else {
        panic!("{request:?}");
    };
    assert_eq!((meta.base64, meta.value, keys.len()), (true, &b"hi"[..], 0));
}

#[test]
fn a_device_is_named_by_the_rest_of_the_line() {
    let told = |line: &'static [u8]| match parsed(line).0 {
        Parse::Request { request: Request::Admin(admin), .. } => Some(admin),
        _ => None,
    };
    let grow = |bytes, name| Some(Admin::Grow(Grow { bytes, name }));
    assert_eq!(told(b"store grow 4096\r\n"), grow(4096, b""));
    assert_eq!(told(b"store grow 4096 /mnt/a b\r\n"), grow(4096, b"/mnt/a b"));
    let device = |name, drain| Some(Admin::Device(Device { name, drain }));
    assert_eq!(told(b"store drain /mnt/a b\r\n"), device(b"/mnt/a b", true));
    assert_eq!(told(b"store keep 4096\r\n"), device(b"4096", false));
    for wrong in
        ["", " drain", " drain ", " grow", " grow ", " grow x", " grow 1x", " grow -1", " shrink 5"]
    {
        let line = format!("store{wrong}\r\n");
        assert!(matches!(parsed(line.as_bytes()).0, Parse::Refused { .. }), "{wrong}");
    }
}

#[test]
fn a_long_line_closes_unless_it_is_a_retrieval() {
    let close = |consumed| Parse::Refused { reply: "", consumed, then: Then::Close };
    assert_eq!(parsed(&[b'x'; 2048]).0, Parse::NeedMore { total: 2049 });
    assert_eq!(parsed(&[b'x'; 2049]).0, close(2049));
    let mut gats = b"gats 7 ".to_vec();
    gats.resize(2049, b'k');
    let request = Get { cas: true, exptime: Some(7), keys_follow: true };
    assert_eq!(parsed(&gats).0, Parse::Request { request: Request::Get(request), consumed: 6 });
}

#[test]
fn a_long_retrieval_parses_the_same_with_and_without_its_line_end() {
    let get = |cas, exptime, consumed| {
        let request = Request::Get(Get { cas, exptime, keys_follow: true });
        Parse::Request { request, consumed }
    };
    let refused = |reply, consumed| Parse::Refused { reply, consumed, then: Then::SkipLine };
    for (start, fill, expected) in [
        ("get ", b'k', get(false, None, 3)),
        ("gets ", b' ', get(true, None, 4)),
        ("gats 7 ", b'k', get(true, Some(7), 6)),
        ("gat -1 ", b' ', get(false, Some(-1), 6)),
        ("gat soon ", b' ', refused(reply::INVALID_EXPTIME, 8)),
        ("gat ", b'1', refused(reply::BAD_FORMAT, 2048)),
        ("gats ", b' ', refused(reply::BAD_FORMAT, 2048)),
    ] {
        let mut line = start.as_bytes().to_vec();
        line.resize(2049, fill);
        assert_eq!(parsed(&line).0, expected, "{start}");
        line.extend_from_slice(b"\r\n");
        assert_eq!(parsed(&line).0, expected, "{start}");
    }
}

#[test]
fn parse_keys_stops_at_its_limit_and_at_the_line_end() {
    let mut keys: Vec<&[u8]> = Vec::new();
    let found = parse_keys(b"  a bb ccc d", 2, &mut keys);
    assert_eq!(found, Keys { consumed: 7, end: KeysEnd::More });
    assert_eq!(keys, [&b"a"[..], b"bb"]);
    let found = parse_keys(b"ccc d", 2, &mut keys);
    assert_eq!(found, Keys { consumed: 4, end: KeysEnd::NeedMore });
    let found = parse_keys(b"d\r\nmn\r\n", 2, &mut keys);
    assert_eq!(found, Keys { consumed: 3, end: KeysEnd::Line });
    assert_eq!(keys[2..], [&b"ccc"[..], b"d"]);
    assert_eq!(parse_keys(b"\n", 0, &mut keys), Keys { consumed: 1, end: KeysEnd::Line });
}

#[test]
fn parse_keys_refuses_keys_that_are_too_long() {
    for (len, ends) in [(250, true), (251, false)] {
        for end in [" ", "\n", "\r\n"] {
            let key = [&vec![b'k'; len], end.as_bytes()].concat();
            let mut keys: Vec<&[u8]> = Vec::new();
            let refused = Keys { consumed: 0, end: KeysEnd::Refused(reply::BAD_FORMAT) };
            assert_eq!(parse_keys(&key, 9, &mut keys) != refused, ends, "{len} {end:?}");
        }
        let unfinished = [&vec![b'k'; len - 1][..], b"\r"].concat();
        let waits = Keys { consumed: 0, end: KeysEnd::NeedMore };
        assert_eq!(parse_keys(&unfinished, 9, &mut Vec::new()), waits);
    }
    let endless = vec![b'k'; 252];
    let refused = Keys { consumed: 0, end: KeysEnd::Refused(reply::BAD_FORMAT) };
    assert_eq!(parse_keys(&endless, 9, &mut Vec::new()), refused);
}

/// Parses `stream` to its end, or until a refusal ends the parsing. Returns three values: the
/// requests with their keys and the refusals, as text; the number of bytes parsed; and false if a
/// refusal ended the parsing.
fn parse_all(stream: &[u8]) -> (Vec<String>, usize, bool) {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        let input = &stream[at..];
        let (parsed, keys) = parsed(input);
        assert!(keys.iter().all(|key| (1..=KEY_LEN_MAX).contains(&key.len())));
        match parsed {
            Parse::NeedMore { total } => {
                assert!(total > input.len());
                break;
            }
            Parse::NeedValue { header, value, trailer, .. } => {
                assert!(header + value + trailer > input.len());
                break;
            }
            Parse::Request { request, consumed } => {
                assert!((1..=input.len()).contains(&consumed));
                all.push(format!("{request:?} {keys:?}"));
                at += consumed;
            }
            Parse::Refused { reply, consumed, then } => {
                assert!(keys.is_empty() && (1..=input.len()).contains(&consumed));
                all.push(format!("{reply} {then:?}"));
                at += consumed;
                match then {
                    Then::Continue => {}
                    Then::Swallow(n) if n <= stream.len() - at => at += n,
                    _ => return (all, at, false),
                }
            }
        }
    }
    (all, at, true)
}

/// Generates streams that are nearly correct.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("get"),
        Just("gets"),
        Just("gat"),
        Just("set"),
        Just("cas"),
        Just("append"),
        Just("delete"),
        Just("incr"),
        Just("touch"),
        Just("mg"),
        Just("ms"),
        Just("ma"),
        Just("md"),
        Just("me"),
        Just("mn"),
        Just("flush_all"),
        Just("stats"),
        Just("lru_crawler"),
        Just("quit"),
        Just("0"),
        Just("1"),
        Just("3"),
        Just("-1"),
        Just("k"),
        Just("key"),
        Just("noreply"),
        Just("v"),
        Just("T9"),
        Just("Oab"),
        Just("b"),
        Just("Zm9v"),
        Just("abc"),
        Just("HTTP/1.1"),
    ];
    let separator =
        prop_oneof![8 => Just(" "), 3 => Just("\r\n"), 1 => Just("\n"), 1 => Just("  ")];
    proptest::collection::vec((word, separator), 0..30).prop_map(|words| {
        words.into_iter().flat_map(|(word, separator)| [word, separator]).collect::<String>().into()
    })
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
        let _ = parse_keys(&bytes, 3, &mut Vec::new());
    }

    #[test]
    fn a_prefix_is_parsed_to_a_prefix(stream in stream(), cut in any::<prop::sample::Index>()) {
        let (all, ..) = parse_all(&stream);
        let (some, consumed, goes_on) = parse_all(&stream[..cut.index(stream.len() + 1)]);
        prop_assert_eq!(&some[..], &all[..some.len()]);
        if goes_on {
            let (rest, ..) = parse_all(&stream[consumed..]);
            prop_assert_eq!([some, rest].concat(), all);
        }
    }

    #[test]
    fn parse_keys_does_not_depend_on_packet_boundaries(
        line in "[a-c ]{0,60}", cut in any::<prop::sample::Index>(), limit in 1usize..9,
    ) {
        let line = format!("{line}\r\n").into_bytes();
        let mut whole: Vec<&[u8]> = Vec::new();
        let end = parse_keys(&line, usize::MAX / 2, &mut whole);
        prop_assert_eq!(end, Keys { consumed: line.len(), end: KeysEnd::Line });
        let mut pieces: Vec<&[u8]> = Vec::new();
        let (mut at, mut until) = (0, cut.index(line.len()));
        loop {
            let found = parse_keys(&line[at..until], limit, &mut pieces);
            at += found.consumed;
            match found.end {
                KeysEnd::More => {}
                KeysEnd::NeedMore => until = line.len(),
                KeysEnd::Line => break,
                KeysEnd::Refused(_) => prop_assert!(false),
            }
        }
        prop_assert_eq!(pieces, whole);
    }
}
