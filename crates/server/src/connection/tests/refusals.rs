//! Tests whether an item keeps its old value when a write to it is refused. A refused set removes
//! the old value, so that no client reads a value that the writer assumes to be replaced. A store
//! that never evicts is the exception: there the old value stays.

use super::commits::store_options;
use super::{Client, shown, worker_with};
use crate::connection::Worker;
use larder_disk::SimDevice;
use larder_engine::{Durability, Options, WhenFull};
use std::sync::Arc;

/// Lengths of values, one for each way to receive a value: the server parses the first with its
/// request, receives the second into a buffer, and receives the third into the memory of the item.
const LENGTHS: [usize; 3] = [3_000, 20_000, 700_000];

/// Number of items with a short value, which the tests try to overwrite.
const ITEMS: usize = 400;

/// The largest number of items that a check overwrites until the server refuses a write.
const TRIES: usize = 30;

const REFUSALS: [&str; 2] = ["out of memory", "store is full"];

fn text(command: &str, key: &str, len: usize) -> Vec<u8> {
    let line = match command {
        "set" | "add" | "replace" | "append" => format!("{command} {key} 0 0 {len}"),
        "cas" => format!("cas {key} 0 0 {len} 7"),
        meta => format!("ms {key} {len} {meta}"),
    };
    [line.as_bytes(), b"\r\n", &vec![b'n'; len], b"\r\n"].concat()
}

fn binary(opcode: u8, key: &str, len: usize) -> Vec<u8> {
    let body = 8 + key.len() + len;
    let mut packet = vec![0x80, opcode, 0, key.len() as u8, 8, 0, 0, 0];
    packet.extend_from_slice(&(body as u32).to_be_bytes());
    packet.extend_from_slice(&[0; 12 + 8]);
    packet.extend_from_slice(key.as_bytes());
    packet.resize(packet.len() + len, b'n');
    packet
}

/// Fills the server until it takes no more values of any length.
fn fill(worker: &mut Worker) {
    let mut client = Client::new(worker);
    for len in [700_000, 30_000, 3_000, 200, 1] {
        for n in 0.. {
            let reply = client.ask(&text("add", &format!("{len}:{n}"), len));
            match &reply[..] {
                b"STORED\r\n" | b"NOT_STORED\r\n" => {}
                _ => break,
            }
        }
    }
}

fn is_refused(reply: &[u8]) -> bool {
    let reply = String::from_utf8_lossy(reply).to_lowercase();
    REFUSALS.iter().any(|refusal| reply.contains(refusal))
}

/// Overwrites one item after another until a write is refused. Then checks that the old value of
/// this item is still there if `kept` is true, and gone otherwise.
fn check(worker: &mut Worker, next: &mut usize, kept: bool, request: impl Fn(&str) -> Vec<u8>) {
    for _ in 0..TRIES {
        let key = format!("item:{next}");
        *next += 1;
        let reply = Client::new(worker).ask(&request(&key));
        if !is_refused(&reply) {
            fill(worker);
            continue;
        }
        let found = Client::new(worker).ask(format!("get {key}\r\n").as_bytes());
        let expected =
            if kept { format!("VALUE {key} 0 3\r\nold\r\nEND\r\n") } else { "END\r\n".into() };
        assert_eq!(
            shown(&found),
            shown(expected.as_bytes()),
            "after {}",
            shown(&request(&key)[..60])
        );
        return;
    }
    panic!("{} was never refused: it is answered otherwise", shown(&request("item:0")[..60]));
}

fn check_all(options: Options, removes: bool) {
    let mut worker = worker_with(options);
    for n in 0..ITEMS {
        let stored =
            Client::new(&mut worker).ask(format!("ms item:{n} 3 E7\r\nold\r\n").as_bytes());
        assert_eq!(stored, b"HD\r\n");
    }
    fill(&mut worker);
    let mut next = 0;
    for len in LENGTHS {
        // A refused `set` removes the old value, and so does a refused meta set in any mode. A
        // refused `replace`, `append` or `cas` keeps the old value.
        for command in ["set", "", "MR", "MA"] {
            check(&mut worker, &mut next, !removes, |key| text(command, key, len));
        }
        check(&mut worker, &mut next, !removes, |key| binary(1, key, len));
        for command in ["replace", "append", "cas"] {
            check(&mut worker, &mut next, true, |key| text(command, key, len));
        }
        check(&mut worker, &mut next, true, |key| binary(3, key, len));
    }
}

#[test]
fn a_set_refused_by_a_full_cache_removes_the_old_value() {
    let when_full = WhenFull::Refuse;
    check_all(Options { memory: 24 << 20, when_full, ..Options::default() }, true);
}

#[test]
fn a_set_refused_by_a_store_that_never_evicts_keeps_the_old_value() {
    let device = Arc::new(SimDevice::new(48 << 20, 1));
    let mut options = Options { when_full: WhenFull::Refuse, ..store_options(&device) };
    if let Some(store) = &mut options.store {
        store.durability = Durability::Async;
    }
    check_all(options, false);
}

#[test]
fn a_too_large_value_removes_the_old_one_unless_the_store_never_evicts() {
    let store = |when_full| {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        Options { when_full, ..store_options(&device) }
    };
    let cache = |when_full| Options { when_full, ..Options::default() };
    for (options, removes) in [
        (cache(WhenFull::Evict), true),
        (cache(WhenFull::Refuse), true),
        (store(WhenFull::Evict), true),
        (store(WhenFull::Refuse), false),
    ] {
        let mut worker = worker_with(options);
        let mut client = Client::new(&mut worker);
        assert_eq!(client.ask(&text("set", "k", 3)), b"STORED\r\n");
        let refused = b"SERVER_ERROR object too large for cache\r\n";
        assert_eq!(client.ask(&text("set", "k", 2_000_000)), refused);
        let found = client.ask(b"mg k s\r\n");
        assert_eq!(shown(&found), if removes { "EN\\r\\n" } else { "HD s3\\r\\n" });
    }
}
