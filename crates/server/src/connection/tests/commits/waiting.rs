//! Tests which replies wait for a commit, and which do not.

use super::{Flow, LOST, Store, shown};
use crate::net::Service;

#[test]
fn a_write_is_acknowledged_when_it_is_durable() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    assert_eq!(client.flow, Flow::Hold);
    assert!(!client.worker.is_idle(client.connection.as_ref().unwrap()));
    assert!(store.buffers() > 0);
    // A wake-up before the commit must not release the reply.
    assert_eq!(client.more(), b"");
    store.commit();
    client.gets(b"STORED\r\n");
    assert_eq!((client.flow, store.buffers()), (Flow::Read, 0));
    client.sends(b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    assert!(client.worker.is_idle(client.connection.as_ref().unwrap()));
}

#[test]
fn replies_before_a_withheld_one_are_sent_and_later_ones_wait() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"mn\r\nget none\r\nset n 0 0 1\r\n1\r\nmn\r\nincr n 4\r\n", b"MN\r\nEND\r\n");
    client.sends(b"get n none\r\nset q 0 0 1 noreply\r\nx\r\nversion\r\n", b"");
    let binary_is_late = b"mg q v\r\nms q 1 q\r\ny\r\nmn\r\n";
    client.sends(binary_is_late, b"");
    store.commit();
    client.gets(
        b"STORED\r\nMN\r\n5\r\nVALUE n 0 1\r\n5\r\nEND\r\nVERSION 1.6.45\r\n\
          VA 1\r\nx\r\nMN\r\n",
    );
    assert_eq!(client.flow, Flow::Read);
}

#[test]
fn other_clients_wait_for_changes_that_they_see() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set old 0 0 1\r\nx\r\nset n 0 0 1\r\n5\r\n", b"");
    store.commit();
    writer.gets(b"STORED\r\nSTORED\r\n");
    let mut reader = store.client();
    reader.sends(b"get old\r\n", b"VALUE old 0 1\r\nx\r\nEND\r\n");
    writer.sends(b"delete old\r\nset new 0 0 1\r\ny\r\nincr n 1\r\n", b"");
    let mut readers = [
        (&b"get old\r\n"[..], &b"END\r\n"[..]),
        (b"get new\r\n", b"VALUE new 0 1\r\ny\r\nEND\r\n"),
        (b"mg old v\r\n", b"EN\r\n"),
        (b"add new 0 0 1\r\nz\r\n", b"NOT_STORED\r\n"),
        (b"replace old 0 0 1\r\nz\r\n", b"NOT_STORED\r\n"),
        (b"cas new 0 0 1 987654321\r\nz\r\n", b"EXISTS\r\n"),
        (b"delete old\r\n", b"NOT_FOUND\r\n"),
        (b"get n\r\n", b"VALUE n 0 1\r\n6\r\nEND\r\n"),
    ]
    .map(|(request, reply)| {
        let mut reader = store.client();
        reader.sends(request, b"");
        assert_eq!(reader.flow, Flow::Hold);
        (reader, reply)
    });
    store.commit();
    for (reader, reply) in &mut readers {
        reader.gets(reply);
    }
    writer.gets(b"DELETED\r\nSTORED\r\n6\r\n");
}

#[test]
fn closing_a_connection_waits_for_withheld_replies() {
    let store = Store::new();
    for end in [&b"quit\r\n"[..], b"GET / HTTP/1.1\r\n"] {
        let mut client = store.client();
        client.sends(&[b"set a 0 0 1\r\nx\r\n", end, b"mn\r\n"].concat(), b"");
        assert_eq!(client.flow, Flow::Park);
        assert_eq!(client.more(), b"");
        store.commit();
        client.gets(b"STORED\r\n<EOF>");
    }
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    assert!(store.buffers() > 0);
    client.hang_up();
    assert_eq!(store.buffers(), 0);
    store.commit();
}

#[test]
fn withheld_replies_are_bounded() {
    let store = Store::new();
    let mut client = store.client();
    client.limit = 10_000;
    let requests = 5000;
    let mut input = Vec::new();
    for n in 0..requests {
        input.extend_from_slice(format!("ms k{} 1 q\r\nx\r\nincr n 1\r\n", n % 10).as_bytes());
    }
    client.send(b"set n 0 0 1\r\n0\r\n");
    let mut reply = client.send(&input);
    let mut commits = 0;
    while !client.input.is_empty() {
        assert_eq!(client.flow, Flow::Park);
        assert!((5_000..50_000).contains(&store.buffers()), "{}", store.buffers());
        store.commit();
        reply.extend(client.woken());
        commits += 1;
    }
    store.commit();
    reply.extend(client.woken());
    assert!((50..500).contains(&commits), "{commits}");
    let mut expected = b"STORED\r\n".to_vec();
    (1..=requests).for_each(|n| expected.extend_from_slice(format!("{n}\r\n").as_bytes()));
    assert!(reply == expected, "{}", shown(&reply));
    assert_eq!(store.buffers(), 0);
}

/// A dump must wait for the commits of the items that it shows, like any other read. It must not
/// show deleted keys.
#[test]
fn a_dump_waits_until_its_items_are_durable() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 1\r\nx\r\nset gone 0 0 1\r\nx\r\n", b"");
    store.commit();
    writer.gets(b"STORED\r\nSTORED\r\n");
    let dump = b"lru_crawler mgdump all\r\n";
    writer.sends(b"delete gone\r\n", b"");
    store.commit();
    writer.gets(b"DELETED\r\n");
    let mut reader = store.client();
    reader.sends(dump, b"OK\r\nmg a\r\nEN\r\n");
    writer.sends(b"set a 0 0 1\r\ny\r\nset b 0 0 1\r\nx\r\n", b"");
    let received = reader.send(&[&dump[..], b"mn\r\n"].concat());
    assert!(received == b"OK\r\n", "{}", shown(&received));
    store.commit();
    let mut lines: Vec<_> = reader.woken().split(|&byte| byte == b'\n').map(shown).collect();
    lines[..2].sort_unstable();
    assert_eq!(lines, ["mg a\\r", "mg b\\r", "EN\\r", "MN\\r", ""]);
    // If a commit fails, the connection must close before `EN`, so that the client knows that the
    // dump is incomplete.
    writer.send(b"set c 0 0 1\r\nx\r\n");
    let mut received = reader.send(dump);
    store.fail();
    received.extend(reader.woken());
    // The connection may send lines of durable items before it closes.
    let received = shown(&received);
    assert!(received.starts_with("OK") && received.ends_with("<EOF>"), "{received}");
    assert!(!received.contains("mg c") && !received.contains("EN\\r"), "{received}");
}

/// A flush takes effect at once. The reply to the flush, and all replies to requests that find the
/// cache empty because of it, wait until the flush is durable.
#[test]
fn a_flush_takes_effect_at_once_and_its_reply_waits() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
    client.sends(b"set b 0 0 1\r\nx\r\nget b\r\nflush_all\r\nget a b\r\n", b"");
    let mut other = store.client();
    other.sends(b"mn\r\nget a b\r\n", b"MN\r\n");
    store.commit();
    client.gets(b"STORED\r\nVALUE b 0 1\r\nx\r\nEND\r\nOK\r\nEND\r\n");
    other.gets(b"END\r\n");
}

/// The client gets an error if the commit of its flush fails. The flush stays in effect. Replies to
/// other clients that depend on the flush wait until a later commit makes it durable.
#[test]
fn a_failed_flush_is_an_error() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
    client.sends(b"flush_all\r\n", b"");
    let mut other = store.client();
    other.sends(b"get a\r\n", b"");
    store.break_down();
    client.gets(LOST);
    assert_eq!(other.woken(), b"");
    store.device.mend();
    store.commit();
    other.gets(b"END\r\n");
    client.sends(b"get a\r\n", b"END\r\n");
}
