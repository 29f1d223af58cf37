//! Tests of the latencies of commands whose replies wait for commits or for reads.

use super::long::store_with_a_on_the_device;
use super::{Client, Flow, LOST, NOW, Store};
use larder_engine::NANOS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) const MS: u64 = 1_000_000;

/// Gives the client's worker a clock that the test advances, in nanoseconds.
pub(super) fn clock(client: &mut Client) -> Arc<AtomicU64> {
    let clock = Arc::new(AtomicU64::new(u64::from(NOW) * NANOS));
    let shown = Arc::clone(&clock);
    client.worker.clock = Box::new(move || shown.load(Relaxed));
    clock
}

/// Returns the number of the latencies of a class, and their sum in milliseconds.
pub(super) fn timed(client: &Client, class: &str) -> (u64, u64) {
    let totals = client.worker.context.latencies.totals();
    let (_, latency) = totals.classes().find(|(name, _)| *name == class).unwrap();
    (latency.count(), latency.sum / MS)
}

/// Returns how many replies have waited for a commit, and the sum of their waits in milliseconds.
fn waits(client: &Client) -> (u64, u64) {
    let waits = client.worker.context.latencies.totals().commit_waits;
    (waits.count(), waits.sum / MS)
}

#[test]
fn a_write_takes_until_its_commit() {
    let store = Store::new();
    let mut client = store.client();
    let clock = clock(&mut client);
    // The get saw no change, so its reply waits for no commit, only for the reply to the set before
    // it. So the get must be counted at once.
    client.sends(b"set a 0 0 1\r\nx\r\nget none\r\nset q 0 0 1 noreply\r\nx\r\n", b"");
    assert_eq!((timed(&client, "set"), timed(&client, "get")), ((1, 0), (1, 0)));
    clock.fetch_add(3 * MS, Relaxed);
    client.sends(b"delete a\r\n", b"");
    clock.fetch_add(4 * MS, Relaxed);
    store.commit();
    client.gets(b"STORED\r\nEND\r\nDELETED\r\n");
    assert_eq!((timed(&client, "set"), timed(&client, "delete")), ((2, 7), (1, 4)));
    assert_eq!(waits(&client), (2, 7 + 4), "the retrieval and the silent set did not wait");
    clock.fetch_add(MS, Relaxed);
    assert_eq!(client.more(), b"");
    assert_eq!(timed(&client, "set"), (2, 7));
}

#[test]
fn a_failed_write_takes_until_its_error() {
    let store = Store::new();
    let mut client = store.client();
    let mut reader = store.client();
    let (clock, readers) = (clock(&mut client), clock(&mut reader));
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    reader.sends(b"get a\r\n", b"");
    clock.fetch_add(5 * MS, Relaxed);
    readers.fetch_add(6 * MS, Relaxed);
    store.fail();
    client.gets(LOST);
    reader.gets(b"END\r\n");
    assert_eq!(timed(&client, "set"), (1, 5));
    assert_eq!((waits(&client), waits(&reader)), ((1, 5), (1, 6)));
    // The get was executed twice, but must count once.
    assert_eq!(timed(&reader, "get"), (1, 6));
}

#[test]
fn a_read_of_the_store_is_part_of_the_latency() {
    let (store, _) = store_with_a_on_the_device(|_| {});
    let mut client = store.client();
    let clock = clock(&mut client);
    assert_eq!(client.send(b"mn\r\nget a\r\nmn\r\n"), b"MN\r\n");
    assert_eq!(client.flow, Flow::Park);
    assert_eq!((timed(&client, "get"), timed(&client, "other")), ((0, 0), (1, 0)));
    clock.fetch_add(2 * MS, Relaxed);
    // A wake-up before the read has ended must have no effect.
    assert_eq!(client.more(), b"");
    clock.fetch_add(MS, Relaxed);
    assert!(store.engine.serve_reads());
    assert!(client.woken().ends_with(b"\r\nEND\r\nMN\r\n"));
    // The `mn` after the get has waited as long as the get, so the class `other` must show 3 ms.
    assert_eq!((timed(&client, "get"), timed(&client, "other")), ((1, 3), (2, 3)));
}
