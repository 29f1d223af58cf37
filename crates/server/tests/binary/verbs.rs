//! Tests of every opcode, both with an existing item and without it.

use super::*;

#[test]
fn stores_and_gets() {
    let server = Server::start();
    server.expect(
        &[
            store(0x01, b"k1", 7, b"v"),
            store(0x02, b"k2", 0x1122_3344, b"val"),
            store(0x02, b"k2", 1, b"x"),
            store(0x12, b"k2", 1, b"x"),
            store(0x03, b"k2", 5, b"new"),
            store(0x03, b"missing", 5, b"new"),
            store(0x13, b"missing", 5, b"new"),
            store(0x13, b"k2", 6, b"newer"),
            store(0x11, b"k3", 9, b""),
            store(0x12, b"k4", 0, b"added quietly"),
        ],
        &[
            value(0x01, b""),
            value(0x02, b""),
            exists(0x02),
            exists(0x12),
            value(0x03, b""),
            not_found(0x03),
            not_found(0x13),
        ],
    );
    let miss_with_key = |opcode| Reply { key: b"miss".to_vec(), ..failed(opcode, 1, "") };
    let opcodes = [0x00, 0x09, 0x0c, 0x0d];
    server.expect(
        &opcodes.map(|opcode| get(opcode, b"k2")),
        &[
            item(0x00, 6, b"", b"newer"),
            item(0x09, 6, b"", b"newer"),
            item(0x0c, 6, b"k2", b"newer"),
            item(0x0d, 6, b"k2", b"newer"),
        ],
    );
    server.expect(&[get(0x0c, b"k3")], &[item(0x0c, 9, b"k3", b"")]);
    server.expect(&[get(0x00, b"k4")], &[item(0x00, 0, b"", b"added quietly")]);
    let misses = [not_found(0x00), miss_with_key(0x0c)];
    server.expect(&opcodes.map(|opcode| get(opcode, b"miss")), &misses);
}

#[test]
fn keys_may_hold_any_bytes() {
    let server = Server::start();
    let longest = [0xff; 250];
    for key in [&b" with space \r\n"[..], b"\0", &longest] {
        server.expect(&[store(0x11, key, 1, key), get(0x0c, key)], &[item(0x0c, 1, key, key)]);
    }
}

#[test]
fn a_store_with_a_cas_id_compares_it() {
    let server = Server::start();
    let zeros = [0; 8];
    let stores = [0x01, 0x02, 0x03, 0x11];
    server.expect(
        &stores.map(|opcode| compared(opcode, &zeros, b"missing", b"v", 5)),
        &stores.map(not_found),
    );
    let mut stream = server.connect();
    stream.write_all(&store(0x01, b"k", 3, b"1")).unwrap();
    let (_, _, mut cas) = read_with_cas(&mut stream);
    let others = [
        compared(0x01, &zeros, b"k", b"v", cas + 1),
        compared(0x02, &zeros, b"k", b"v", cas + 1),
        compared(0x13, &zeros, b"k", b"v", cas + 1),
        compared(0x0e, b"", b"k", b"v", cas + 1),
        compared(0x1a, b"", b"k", b"v", cas + 1),
        compared(0x04, b"", b"k", b"", cas + 1),
        compared(0x15, &[0; 20], b"k", b"", cas + 1),
    ];
    server.expect(&others, &[0x01, 0x02, 0x13, 0x0e, 0x1a, 0x04, 0x15].map(exists));
    // With the item's cas id, even an add (0x02) must overwrite the item. Every write returns a new
    // cas id, and the next write sends it.
    let requests: [(u8, &[u8], &[u8]); 7] = [
        (0x01, &zeros, b"2"),
        (0x02, &zeros, b"3"),
        (0x03, &zeros, b"4"),
        (0x0e, b"", b"5"),
        (0x0f, b"", b"1"),
        (0x05, &[0; 20], b""),
        (0x06, &[0; 20], b""),
    ];
    for (opcode, extras, bytes) in requests {
        stream.write_all(&compared(opcode, extras, b"k", bytes, cas)).unwrap();
        let (reply, _, new_cas) = read_with_cas(&mut stream);
        assert_eq!((reply.opcode, reply.status, new_cas != cas), (opcode, 0, true));
        stream.write_all(&get(0x00, b"k")).unwrap();
        assert_eq!(read_with_cas(&mut stream).2, new_cas);
        cas = new_cas;
    }
    server.expect(&[get(0x00, b"k")], &[item(0x00, 0, b"", b"145")]);
    stream.write_all(&gat(0x1d, b"k", 100)).unwrap();
    assert_eq!(read_with_cas(&mut stream).2, cas, "a touch keeps the cas id");
    server.expect(&[compared(0x04, b"", b"k", b"", cas)], &[done(0x04)]);
}

#[test]
fn append_and_prepend_extend_a_value() {
    let server = Server::start();
    server.expect(
        &[
            store(0x11, b"k", 9, b"zz"),
            packet(0x0e, b"", b"k", b"-a"),
            packet(0x0f, b"", b"k", b"p-"),
            packet(0x19, b"", b"k", b"-b"),
            packet(0x1a, b"", b"k", b"q-"),
            get(0x00, b"k"),
        ],
        &[value(0x0e, b""), value(0x0f, b""), item(0x00, 9, b"", b"q-p-zz-a-b")],
    );
    let opcodes = [0x0e, 0x0f, 0x19, 0x1a];
    let requests = opcodes.map(|opcode| compared(opcode, b"", b"missing", b"v", 0));
    server.expect(&requests, &opcodes.map(not_stored));
    let requests = opcodes.map(|opcode| compared(opcode, b"", b"missing", b"v", 9));
    server.expect(&requests, &opcodes.map(not_stored));
}

#[test]
fn a_delete_removes_the_item() {
    let server = Server::start();
    server.expect(
        &[
            store(0x11, b"k", 0, b"v"),
            packet(0x04, b"", b"k", b""),
            packet(0x04, b"", b"k", b""),
            packet(0x14, b"", b"k", b""),
            store(0x11, b"k", 0, b"v"),
            packet(0x14, b"", b"k", b""),
            get(0x00, b"k"),
        ],
        &[done(0x04), not_found(0x04), not_found(0x14), not_found(0x00)],
    );
}

#[test]
fn counters_are_created_and_changed() {
    let server = Server::start();
    let number = |opcode, number: u64| value(opcode, &number.to_be_bytes());
    let non_numeric = "Non-numeric server-side value for incr or decr";
    server.expect(
        &[
            count(0x05, b"c", 5, 10, 0),
            count(0x05, b"c", 5, 10, 0),
            count(0x06, b"c", 3, 10, 0),
            count(0x06, b"c", 100, 0, 0),
            count(0x15, b"c", 17, 0, 0),
            count(0x16, b"c", 8, 0, 0),
            get(0x00, b"c"),
            count(0x05, b"never", 5, 10, u32::MAX),
            count(0x16, b"never", 5, 10, u32::MAX),
            count(0x15, b"quiet", 5, 10, 0),
            get(0x00, b"quiet"),
        ],
        &[
            number(0x05, 10),
            number(0x05, 15),
            number(0x06, 12),
            number(0x06, 0),
            item(0x00, 0, b"", b"9 "),
            not_found(0x05),
            not_found(0x16),
            item(0x00, 0, b"", b"10"),
        ],
    );
    server.expect(
        &[
            count(0x05, b"wrap", 0, u64::MAX, 0),
            count(0x05, b"wrap", 1, 0, 0),
            get(0x00, b"wrap"),
            store(0x11, b"text", 0, b"abc"),
            count(0x05, b"text", 1, 1, 0),
            count(0x16, b"text", 1, 1, 0),
        ],
        &[
            number(0x05, u64::MAX),
            number(0x05, 0),
            item(0x00, 0, b"", b"0                   "),
            failed(0x05, 0x06, non_numeric),
            failed(0x16, 0x06, non_numeric),
        ],
    );
    let mut compared = count(0x05, b"compared", 1, 4, 0);
    compared[23] = 77;
    server.expect(&[compared], &[number(0x05, 4)]);
}

/// When several clients create the same counter at once, memcached 1.6.45 refuses some of them with
/// status 0x05. Larder must refuse none of them, and must give every client a different number.
#[test]
fn many_clients_create_the_same_counters() {
    const CLIENTS: u64 = 8;
    const COUNTERS: u64 = 300;
    let server = Server::start();
    let client = |server: &Server| {
        let mut stream = server.connect();
        let counters = (0..COUNTERS).map(|n| count(0x05, &n.to_be_bytes(), 1, 0, 0));
        stream.write_all(&counters.collect::<Vec<_>>().concat()).unwrap();
        answers(&mut stream)
    };
    let seen: Vec<Vec<Reply>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| client(&server))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for n in 0..COUNTERS as usize {
        let numbers: BTreeSet<u64> = seen
            .iter()
            .map(|replies| u64::from_be_bytes(replies[n].value[..].try_into().unwrap()))
            .collect();
        assert_eq!(numbers, (0..CLIENTS).collect(), "counter {n}");
    }
}

#[test]
fn touch_and_gat_change_the_expiry() {
    let server = Server::start();
    server.expect(
        &[
            store(0x11, b"s", 8, b"abc"),
            gat(0x1c, b"s", 100),
            gat(0x1c, b"missing", 100),
            gat(0x1d, b"s", 100),
            gat(0x1e, b"s", 100),
            gat(0x23, b"s", 100),
            gat(0x24, b"s", 0),
            gat(0x1d, b"missing", 100),
            gat(0x1e, b"missing", 100),
            gat(0x23, b"missing", 100),
            gat(0x24, b"missing", 100),
        ],
        &[
            item(0x1c, 8, b"", b""),
            not_found(0x1c),
            item(0x1d, 8, b"", b"abc"),
            item(0x1e, 8, b"", b"abc"),
            item(0x23, 8, b"s", b"abc"),
            item(0x24, 8, b"s", b"abc"),
            not_found(0x1d),
            Reply { key: b"missing".to_vec(), ..failed(0x23, 1, "") },
        ],
    );
    // Expiry times are unsigned, so the greatest one is in the year 2106. Values above 30 days are
    // absolute times. So 30 days and one second is a time in 1970, and the item has expired.
    let expiring =
        |exptime: u32| packet(0x11, &[[0; 4], exptime.to_be_bytes()].concat(), b"e", b"v");
    server.expect(&[expiring(u32::MAX), get(0x00, b"e")], &[item(0x00, 0, b"", b"v")]);
    server.expect(&[expiring(2_592_001), get(0x00, b"e")], &[not_found(0x00)]);
    server.expect(
        &[store(0x11, b"e", 0, b"v"), gat(0x1d, b"e", 2_592_001), get(0x00, b"e")],
        &[item(0x1d, 0, b"", b"v"), not_found(0x00)],
    );
}

#[test]
fn a_flush_removes_all_items() {
    let server = Server::start();
    let flush = |opcode, extras: &[u8]| packet(opcode, extras, b"", b"");
    for (opcode, extras, replies) in [
        (0x08, &b""[..], vec![done(0x08)]),
        (0x08, &[0; 4], vec![done(0x08)]),
        (0x18, b"", vec![]),
        (0x18, &[0; 4], vec![]),
    ] {
        let requests = [store(0x11, b"k", 0, b"v"), flush(opcode, extras), get(0x09, b"k")];
        server.expect(&requests, &replies);
    }
    // Neither flush may remove the item. The first one is due in 100 s, and the second one names a
    // time before the server's start.
    for exptime in [100u32, 2_592_001] {
        server.expect(
            &[store(0x11, b"k", 0, b"v"), flush(0x08, &exptime.to_be_bytes()), get(0x00, b"k")],
            &[done(0x08), item(0x00, 0, b"", b"v")],
        );
    }
    let server = Server::start_with(|context| {
        context.set_switches(Switches { flush: false, ..Switches::default() });
    });
    let refused = |opcode| failed(opcode, 0x20, "Auth failure.");
    server.expect(
        &[store(0x11, b"k", 0, b"v"), flush(0x08, b""), flush(0x18, b""), get(0x00, b"k")],
        &[refused(0x08), refused(0x18), item(0x00, 0, b"", b"v")],
    );
}

#[test]
fn noop_version_quit() {
    let server = Server::start();
    let version = Reply { has_cas: false, ..value(0x0b, b"1.6.45") };
    server.expect(
        &[packet(0x0a, b"", b"", b""), packet(0x0b, b"", b"", b"")],
        &[done(0x0a), version],
    );
    server.expect_closed(&packet(0x07, b"", b"", b""), &[done(0x07)]);
    server.expect_closed(&packet(0x17, b"", b"", b""), &[]);
}

#[test]
fn stat_sends_one_packet_per_row() {
    let server = Server::start();
    let stat = |group: &[u8]| packet(0x10, b"", group, b"");
    let row = |name: &[u8], text: &[u8]| Reply {
        key: name.to_vec(),
        has_cas: false,
        ..value(0x10, text)
    };
    server.expect(&[stat(b"")], &[row(b"pid", b"42"), row(b"version", b"1.6.45"), done(0x10)]);
    server.expect(&[stat(b"reset")], &[done(0x10)]);
    for group in [&b"nope"[..], b"cachedump 1 1", b"detail", b"detail x"] {
        server.expect(&[stat(group)], &[not_found(0x10)]);
    }
    let dump = b"PREFIX p get 2 hit 1 set 1 del 1\r\nEND\r\n";
    server.expect(
        &[
            stat(b"detail on"),
            store(0x11, b"p:k", 0, b"v"),
            get(0x00, b"p:k"),
            packet(0x04, b"", b"p:k", b""),
            gat(0x1c, b"p:k", 0),
            stat(b"detail dump"),
            stat(b"detail off"),
        ],
        &[
            done(0x10),
            item(0x00, 0, b"", b"v"),
            done(0x04),
            not_found(0x1c),
            row(b"detailed", dump),
            done(0x10),
            done(0x10),
        ],
    );
    let server = Server::start_with(|context| {
        context.set_switches(Switches { dump: false, ..Switches::default() });
    });
    server.expect(&[stat(b"detail on")], &[not_found(0x10)]);
}
