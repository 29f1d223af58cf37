//! The tables in these tests were checked against a running memcached 1.6.45, packet by packet.

use super::*;
use proptest::prelude::*;

const HEAD: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Builds a packet whose lengths match its parts.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body_len = extras.len() + key.len() + value.len();
    let mut packet = announced(opcode, extras.len() as u8, key.len() as u16, body_len as u32);
    packet.extend_from_slice(extras);
    packet.extend_from_slice(key);
    packet.extend_from_slice(value);
    packet
}

/// Builds only a header. Its data type and vbucket, which the parser must ignore, are not 0.
fn announced(opcode: u8, extras_len: u8, key_len: u16, body_len: u32) -> Vec<u8> {
    let mut header = vec![0x80, opcode];
    header.extend_from_slice(&key_len.to_be_bytes());
    header.extend_from_slice(&[extras_len, 5, 0, 77]);
    header.extend_from_slice(&body_len.to_be_bytes());
    header.extend_from_slice(&HEAD);
    header.extend_from_slice(&[0; 8]);
    header
}

fn with_cas(mut packet: Vec<u8>, cas: u64) -> Vec<u8> {
    packet[16..24].copy_from_slice(&cas.to_be_bytes());
    packet
}

fn parse_all(input: &[u8]) -> (Parsed<'_>, Vec<&[u8]>) {
    let mut keys = Vec::new();
    (parse(input, &mut keys), keys)
}

#[track_caller]
fn assert_command(packet: &[u8], expected: Command<'_>, keys: &[&[u8]]) {
    let head = Head { opcode: packet[1], opaque: HEAD };
    let request = Request { head, command: expected };
    let consumed = packet.len();
    let expected = (Parse::Request { request, consumed }, keys.to_vec());
    assert_eq!(parse_all(packet), expected);
    let mut followed = packet.to_vec();
    followed.extend_from_slice(&packet[..packet.len().min(30)]);
    assert_eq!(parse_all(&followed), expected, "with another packet behind it");
}

#[track_caller]
fn assert_refused(packet: &[u8], status: Status, then: Then) {
    let reply = Some(Refusal { head: Head { opcode: packet[1], opaque: HEAD }, status });
    let refused = Parse::Refused { reply, consumed: HEADER_LEN, then };
    assert_eq!(parse_all(packet), (refused, Vec::new()));
}

#[test]
fn retrievals_parse() {
    let time = 100u32.to_be_bytes();
    let table = [
        (0x00, false, false, None),
        (0x09, false, true, None),
        (0x0c, true, false, None),
        (0x0d, true, true, None),
        (0x1d, false, false, Some(100)),
        (0x1e, false, true, Some(100)),
        (0x23, true, false, Some(100)),
        (0x24, true, true, Some(100)),
    ];
    for (opcode, with_key, quiet, exptime) in table {
        let extras: &[u8] = if exptime.is_some() { &time } else { &[] };
        let get = Command::Get(Get { exptime, with_key, quiet });
        assert_command(&packet(opcode, extras, b"k y", b""), get, &[b"k y"]);
        let longest = [b'k'; KEY_LEN_MAX];
        assert_command(&packet(opcode, extras, &longest, b""), get, &[&longest]);
    }
    assert_command(&packet(0x1c, &time, b"k", b""), Command::Touch { exptime: 100 }, &[b"k"]);
}

#[test]
fn storage_commands_parse() {
    let extras = [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xfe];
    let table = [
        (0x01, StoreMode::Set, false),
        (0x02, StoreMode::Add, false),
        (0x03, StoreMode::Replace, false),
        (0x11, StoreMode::Set, true),
        (0x12, StoreMode::Add, true),
        (0x13, StoreMode::Replace, true),
        (0x0e, StoreMode::Append, false),
        (0x0f, StoreMode::Prepend, false),
        (0x19, StoreMode::Append, true),
        (0x1a, StoreMode::Prepend, true),
    ];
    for (opcode, mode, quiet) in table {
        let extends = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let extras: &[u8] = if extends { &[] } else { &extras };
        let (flags, exptime) = if extends { (0, 0) } else { (0x0102_0304, 0xffff_fffe) };
        for (cas, compare) in [(0, None), (7, Some(7)), (u64::MAX, Some(u64::MAX))] {
            for value in [&b""[..], b"value"] {
                let packet = with_cas(packet(opcode, extras, b"key", value), cas);
                let store = Store { mode, compare, flags, exptime, quiet, value };
                assert_command(&packet, Command::Store(store), &[b"key"]);
            }
        }
    }
}

#[test]
fn a_store_waits_for_its_value() {
    let packet = packet(0x01, &[0; 8], b"key", b"value");
    let header = HEADER_LEN + 8 + 3;
    let store = Store {
        mode: StoreMode::Set,
        compare: None,
        flags: 0,
        exptime: 0,
        quiet: false,
        value: &[],
    };
    let head = Head { opcode: 0x01, opaque: HEAD };
    let request = Request { head, command: Command::Store(store) };
    let expected = Parse::NeedValue { request, header, value: 5, trailer: 0 };
    for arrived in header..packet.len() {
        assert_eq!(parse_all(&packet[..arrived]), (expected, vec![&b"key"[..]]));
    }
    for arrived in 0..header {
        let total = if arrived < HEADER_LEN { HEADER_LEN } else { header };
        assert_eq!(parse_all(&packet[..arrived]), (Parse::NeedMore { total }, Vec::new()));
    }
}

#[test]
fn arithmetic_commands_parse() {
    let mut extras = Vec::new();
    extras.extend_from_slice(&u64::MAX.to_be_bytes());
    extras.extend_from_slice(&10u64.to_be_bytes());
    extras.extend_from_slice(&60u32.to_be_bytes());
    for (opcode, decrement, quiet) in
        [(0x05, false, false), (0x06, true, false), (0x15, false, true), (0x16, true, true)]
    {
        let create = Some(Create { initial: 10, exptime: 60 });
        let expected = Arithmetic { decrement, delta: u64::MAX, create, compare: None, quiet };
        let counting = packet(opcode, &extras, b"n", b"");
        assert_command(&counting, Command::Arithmetic(expected), &[b"n"]);
        let compared = Arithmetic { compare: Some(3), ..expected };
        let counting = with_cas(counting, 3);
        assert_command(&counting, Command::Arithmetic(compared), &[b"n"]);
        let mut never = counting.clone();
        never[HEADER_LEN + 16..HEADER_LEN + 20].copy_from_slice(&[0xff; 4]);
        let never_created = Arithmetic { create: None, ..compared };
        assert_command(&never, Command::Arithmetic(never_created), &[b"n"]);
    }
}

#[test]
fn other_commands_parse() {
    let deleting = packet(0x04, b"", b"k", b"");
    assert_command(&deleting, Command::Delete(Delete { compare: None, quiet: false }), &[b"k"]);
    let quiet = with_cas(packet(0x14, b"", b"k", b""), 9);
    assert_command(&quiet, Command::Delete(Delete { compare: Some(9), quiet: true }), &[b"k"]);
    let later = 300u32.to_be_bytes();
    let flush = |exptime, quiet| Command::Flush { exptime, quiet };
    assert_command(&packet(0x08, b"", b"", b""), flush(0, false), &[]);
    assert_command(&packet(0x08, &later, b"", b""), flush(300, false), &[]);
    assert_command(&packet(0x18, &later, b"", b""), flush(300, true), &[]);
    assert_command(&packet(0x0a, b"", b"", b""), Command::Noop, &[]);
    assert_command(&packet(0x0b, b"", b"", b""), Command::Version, &[]);
    assert_command(&packet(0x07, b"", b"", b""), Command::Quit { quiet: false }, &[]);
    assert_command(&packet(0x17, b"", b"", b""), Command::Quit { quiet: true }, &[]);
    assert_command(&packet(0x10, b"", b"", b""), Command::Stat(b""), &[]);
    let detail = packet(0x10, b"", b"detail on", b"");
    assert_command(&detail, Command::Stat(b"detail on"), &[]);
}

#[test]
fn lengths_that_do_not_fit_the_opcode_close() {
    let e = [0u8; 255];
    let table: &[(u8, &[usize], bool, bool)] = &[
        // Columns: the opcode, wrong lengths of extras, true if a packet without a key is wrong,
        // true if a packet with a key is wrong.
        (0x00, &[4, 8], true, false),
        (0x0d, &[1], true, false),
        (0x01, &[0, 4, 7, 9, 20], true, false),
        (0x13, &[0, 255], true, false),
        (0x04, &[4], true, false),
        (0x14, &[8], true, false),
        (0x05, &[0, 8, 19, 21], true, false),
        (0x16, &[0, 24], true, false),
        (0x07, &[1], false, true),
        (0x17, &[1], false, true),
        (0x08, &[1, 3, 5, 8], false, true),
        (0x0a, &[4], false, true),
        (0x0b, &[4], false, true),
        (0x0e, &[4, 8], true, false),
        (0x1a, &[8], true, false),
        (0x10, &[4], false, false),
        (0x1c, &[0, 3, 8], true, false),
        (0x1d, &[0, 8], true, false),
        (0x24, &[0, 8], true, false),
        (0x20, &[4], false, true),
        (0x21, &[4], true, false),
        (0x22, &[4], true, false),
    ];
    for &(opcode, extras, wrong_without_key, wrong_with_key) in table {
        let refused = |packet: &[u8]| assert_refused(packet, Status::InvalidArguments, Then::Close);
        for &len in extras {
            let key: &[u8] = if wrong_with_key { b"" } else { b"k" };
            refused(&packet(opcode, &e[..len], key, b""));
        }
        if wrong_without_key {
            let len = match opcode {
                0x01 | 0x13 => 8,
                0x05 | 0x16 => 20,
                0x1c..=0x1e | 0x23..=0x24 => 4,
                _ => 0,
            };
            refused(&packet(opcode, &e[..len], b"", b""));
        }
        if wrong_with_key {
            refused(&packet(opcode, b"", b"k", b""));
        }
    }
    for opcode in [0x00, 0x04, 0x05, 0x07, 0x0a, 0x0b, 0x0c, 0x08, 0x10, 0x1c, 0x1d, 0x24] {
        let (extras, key): (&[u8], &[u8]) = match opcode {
            0x05 => (&e[..20], b"k"),
            0x1c..=0x24 => (&e[..4], b"k"),
            0x07..=0x0b => (b"", b""),
            _ => (b"", b"k"),
        };
        let surplus = packet(opcode, extras, key, b"v");
        assert_refused(&surplus, Status::InvalidArguments, Then::Close);
    }
}

#[test]
fn lengths_that_are_wrong_for_any_opcode_close() {
    use Status::{InvalidArguments, UnknownCommand};
    for opcode in [0x00, 0x01, 0x0a, 0x21, 0x99] {
        assert_refused(&announced(opcode, 0, 4, 2), UnknownCommand, Then::Close);
        assert_refused(&announced(opcode, 8, 4, 11), UnknownCommand, Then::Close);
        assert_refused(&announced(opcode, 8, 4, 0), UnknownCommand, Then::Close);
        assert_refused(&announced(opcode, 0, 251, 251), InvalidArguments, Then::Close);
        assert_refused(&announced(opcode, 0, u16::MAX, 1 << 20), InvalidArguments, Then::Close);
        let over = BODY_LEN_MAX as u32 + 1;
        assert_refused(&announced(opcode, 8, 1, over), InvalidArguments, Then::Close);
        assert_refused(&announced(opcode, 8, 1, u32::MAX), InvalidArguments, Then::Close);
    }
    let mut largest = announced(0x01, 8, 1, BODY_LEN_MAX as u32);
    largest.extend_from_slice(&[0; 9]);
    assert!(matches!(
        parse_all(&largest).0,
        Parse::NeedValue { value, .. } if value == BODY_LEN_MAX - 9
    ));
}

#[test]
fn unserved_opcodes_are_skipped() {
    use Status::UnknownCommand;
    for opcode in [0x1b, 0x1f, 0x20, 0x25, 0x30, 0x7f, 0xff] {
        assert_refused(&packet(opcode, b"", b"", b""), UnknownCommand, Then::Continue);
    }
    let verbosity = packet(0x1b, &[0, 0, 0, 1], b"", b"");
    assert_refused(&verbosity, UnknownCommand, Then::Swallow(4));
    assert_refused(&packet(0x99, b"", b"kk", b"vvvv"), UnknownCommand, Then::Swallow(6));
    let auth = packet(0x21, b"", b"PLAIN", b"\0user\0word");
    assert_refused(&auth, UnknownCommand, Then::Swallow(15));
    let step = packet(0x22, b"", b"PLAIN", b"");
    assert_refused(&step, UnknownCommand, Then::Swallow(5));
}

#[test]
fn a_wrong_magic_number_closes_without_a_reply() {
    for input in [&b"get k\r\n"[..], b"\0", b"\x81", &[0x81; HEADER_LEN]] {
        let refused = Parse::Refused { reply: None, consumed: input.len(), then: Then::Close };
        assert_eq!(parse_all(input), (refused, Vec::new()));
    }
    assert_eq!(parse_all(b"").0, Parse::NeedMore { total: HEADER_LEN });
}

#[test]
fn replies_are_encoded() {
    let head = Head { opcode: 0x0c, opaque: HEAD };
    let response = Response {
        extras_len: 4,
        key_len: 3,
        value_len: 0x0102_0300,
        cas: 0x1122_3344_5566_7788,
        ..Response::new(head, Status::Ok)
    };
    let expected = b"\x81\x0c\0\x03\x04\0\0\0\x01\x02\x03\x07\xde\xad\xbe\xef\
        \x11\x22\x33\x44\x55\x66\x77\x88";
    assert_eq!(&response.to_bytes(), expected);
    let refusal = Refusal { head, status: Status::UnknownCommand };
    let expected = b"\x81\x0c\0\0\0\0\0\x81\0\0\0\x0f\xde\xad\xbe\xef\0\0\0\0\0\0\0\0";
    assert_eq!((&refusal.header(), refusal.text()), (expected, "Unknown command"));
}

/// Generates packets that are correct, nearly correct and wrong.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![4 => 0u8..=0x24, 1 => any::<u8>()];
    let extras = prop_oneof![Just(0usize), Just(4), Just(8), Just(20), 0usize..30];
    let lengths = (extras, 0usize..260, 0usize..40);
    let value = proptest::collection::vec(any::<u8>(), 0..600);
    (opcode, lengths, value, any::<u64>(), 0u8..10).prop_map(
        |(opcode, (extras, key, value), bytes, cas, lie)| {
            let extras = extras.min(bytes.len());
            let key = if key < 230 { key % 20 } else { key }.min(bytes.len() - extras);
            let value = value.min(bytes.len() - extras - key);
            let (extras, rest) = bytes.split_at(extras);
            let mut packet =
                with_cas(packet(opcode, extras, &rest[..key], &rest[key..key + value]), cas % 3);
            if lie == 0 {
                packet[2 + (cas % 10) as usize] = cas as u8;
            }
            packet
        },
    )
}

/// Returns the complete requests of a stream with their keys, as text.
fn meaning(stream: &[u8]) -> Vec<String> {
    let (mut at, mut said) = (0, Vec::new());
    loop {
        let (parsed, keys) = parse_all(&stream[at..]);
        match parsed {
            Parse::Request { request, consumed } => {
                said.push(format!("{request:?} {keys:?}"));
                at += consumed;
            }
            Parse::Refused { reply, consumed, then } => {
                said.push(format!("{reply:?} {then:?}"));
                at += consumed;
                match then {
                    Then::Continue => {}
                    Then::Swallow(len) if at + len <= stream.len() => at += len,
                    _ => return said,
                }
            }
            Parse::NeedMore { .. } | Parse::NeedValue { .. } => return said,
        }
    }
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = parse_all(&bytes);
        let mut packet = bytes;
        packet.insert(0, BINARY_MAGIC);
        let _ = parse_all(&packet);
    }

    /// A prefix of a packet parses either to "more bytes are needed" or to the same result as the
    /// whole packet.
    #[test]
    fn where_the_input_is_cut_does_not_matter(packet in any_packet()) {
        let (whole, keys) = parse_all(&packet);
        for cut in 0..packet.len() {
            let (parsed, part_keys) = parse_all(&packet[..cut]);
            match parsed {
                Parse::NeedMore { total } => {
                    prop_assert!(total > cut);
                    prop_assert!(part_keys.is_empty());
                }
                Parse::NeedValue { header, value, trailer, .. } => {
                    prop_assert!(header <= cut && cut < header + value + trailer);
                    prop_assert_eq!(part_keys, keys.clone());
                    let staged = parse_all(&packet[..header]).0;
                    prop_assert_eq!(staged, parsed);
                }
                parsed => prop_assert_eq!(parsed, whole),
            }
        }
    }

    /// A stream parses to the same requests whether its packets arrive together or one by one.
    #[test]
    fn packets_do_not_disturb_each_other(
        packets in proptest::collection::vec(any_packet(), 1..6)
    ) {
        let together = meaning(&packets.concat());
        let mut stream = Vec::new();
        for packet in &packets {
            stream.extend_from_slice(packet);
            let so_far = meaning(&stream);
            prop_assert!(together.starts_with(&so_far), "{so_far:?} {together:?}");
        }
    }
}
