//! Tests that the latency of each command is counted once, in the right class.

use super::{Client, worker};
use crate::connection::Worker;

/// Returns the classes with their counts, as text. Leaves out classes with the count 0.
pub(super) fn counted(worker: &Worker) -> String {
    let totals = worker.context.latencies.totals();
    let counts = totals.classes().map(|(name, latency)| (name, latency.count()));
    let counts = counts.filter(|(_, count)| *count > 0);
    counts.map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_command_counts_once_in_its_class() {
    let binary = |opcode: u8, extras: u8, key: &[u8]| {
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras, 0, 0, 0];
        packet.extend_from_slice(&[0, 0, 0, extras + key.len() as u8]);
        packet.extend_from_slice(&[0; 12]);
        packet.resize(packet.len() + usize::from(extras), 0);
        packet.extend_from_slice(key);
        packet
    };
    let long =
        [b"set long 0 0 100000\r\n".to_vec(), vec![b'x'; 100_000], b"\r\n".to_vec()].concat();
    let requests: [(&[u8], &str); 26] = [
        (b"get a b c\r\n", "get=1"),
        (b"gets a\r\n", "get=1"),
        (b"gat 9 a\r\n", "touch=1"),
        (b"touch a 9\r\n", "touch=1"),
        (b"set a 0 0 1\r\n1\r\n", "set=1"),
        (b"set a 0 0 1 noreply\r\n1\r\n", "set=1"),
        (b"cas a 0 0 1 7\r\n1\r\n", "set=1"),
        (b"incr a 1\r\ndecr a 1\r\n", "incr=2"),
        (b"delete a\r\n", "delete=1"),
        (b"mg a v T9\r\n", "get=1"),
        (b"ms a 1\r\n1\r\n", "set=1"),
        (b"ma a\r\n", "incr=1"),
        (b"md a\r\n", "delete=1"),
        (b"ma l B5 N9\r\n", "limit=1"),
        (b"ma l Qnone\r\n", "limit=1"),
        (b"me a\r\nmn\r\nversion\r\nstats\r\n", "other=4"),
        (b"bogus\r\n", "other=1"),
        (b"lru_crawler metadump all\r\n", "other=1"),
        (&long, "set=1"),
        // This value is longer than the output's limit, so it is sent in parts.
        (b"get long\r\n", "get=1"),
        // This value is too large, so the request is refused before its value arrives.
        (b"set large 0 0 2000000\r\n", "set=1"),
        (&binary(0, 0, b"a"), "get=1"),
        (&binary(1, 8, b"a"), "set=1"),
        (&binary(4, 0, b"a"), "delete=1"),
        (&binary(5, 20, b"n"), "incr=1"),
        (&binary(0x1c, 4, b"a"), "touch=1"),
    ];
    for (request, expected) in requests {
        let mut worker = worker();
        let mut client = Client::new(&mut worker);
        client.send(&long);
        client.send(b"mn\r\n");
        drop(client);
        let before = worker.context.latencies.totals();
        assert_eq!(counted(&worker), "set=1 other=1");
        Client::new(&mut worker).send(request);
        let since = worker.context.latencies.totals().since(&before);
        let counts = since.classes().map(|(name, latency)| (name, latency.count()));
        let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        let counts: Vec<_> = counts.iter().map(|(name, n)| format!("{name}={n}")).collect();
        assert_eq!(counts.join(" "), expected, "{}", super::shown(request));
    }
}

/// The keys of the retrieval arrive in many calls, but the retrieval must count as one command.
#[test]
fn a_retrieval_in_pieces_counts_once() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    client.send(b"get");
    for key in 0..3000 {
        client.send(format!(" k{key}").as_bytes());
    }
    client.send(b"\r\n");
    assert_eq!(client.take(), b"END\r\n");
    drop(client);
    assert_eq!(counted(&worker), "get=1");
}

#[test]
fn a_worker_follows_the_switch_in_its_next_turn() {
    let mut worker = worker();
    worker.context.latencies.set_on(false);
    Client::new(&mut worker).send(b"get a\r\n");
    assert_eq!(counted(&worker), "");
    worker.context.latencies.set_on(true);
    Client::new(&mut worker).send(b"get a\r\n");
    assert_eq!(counted(&worker), "get=1");
}
