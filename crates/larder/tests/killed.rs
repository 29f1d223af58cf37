//! In async mode, a kill of the process without a power loss loses only some milliseconds of
//! writes, even if syncs are rare. Kills the real binary.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Folder, Server, connect};

/// The sync interval is longer than the test, so no commit makes a write durable. Only early writes
/// can save acknowledged writes.
const FLAGS: [&str; 4] = ["--durability", "async", "--sync-interval", "60s"];
/// Time during which each server receives writes.
const LIFE: Duration = Duration::from_millis(300);
/// The largest median of the results of [`lost`], in milliseconds. A single kill may lose older
/// writes, because on a busy machine the thread that makes early writes may not run in time.
const PROMISE: u128 = 10;
const KILLS: usize = 7;

/// Writes for a while and kills the server. Returns how many milliseconds before the kill the
/// oldest lost write was acknowledged; 0 if no write is lost.
fn lost(store: &Path, round: usize) -> u128 {
    let server = Server::start(store, &FLAGS);
    let mut client = connect(&server.address);
    client.set_nodelay(true).expect("a socket option");
    let mut acknowledged = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < LIFE {
        let number = acknowledged.len();
        // Sets a new key, and overwrites one key that is the same in each pass. After the kill,
        // that key must have the newest of its values that was not lost.
        let set = format!(
            "set r{round}-{number} 0 0 100\r\n{number:0100}\r\nset last{round} 0 0 8\r\n{number:08}\r\n"
        );
        client.write_all(set.as_bytes()).expect("it reads");
        let mut reply = [0; 16];
        client.read_exact(&mut reply).expect("it answers");
        assert_eq!(&reply, b"STORED\r\nSTORED\r\n");
        acknowledged.push(Instant::now());
    }
    let end = Instant::now();
    server.kill();
    let server = Server::start(store, &FLAGS);
    let mut client = BufReader::new(connect(&server.address));
    let mut has = |key: &str| {
        client.get_mut().write_all(format!("mg {key} v\r\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        client.read_line(&mut line).expect("it answers");
        let mut value = String::new();
        if line.starts_with("VA") {
            client.read_line(&mut value).expect("it answers");
        }
        value.trim_end().parse::<usize>().ok()
    };
    let kept = (0..acknowledged.len())
        .find(|number| has(&format!("r{round}-{number}")).is_none())
        .unwrap_or(acknowledged.len());
    assert!((kept..acknowledged.len()).all(|number| has(&format!("r{round}-{number}")).is_none()));
    let last = has(&format!("last{round}")).map_or(0, |last| last + 1);
    assert!(
        last == kept || last + 1 == kept,
        "{last} of the key that is overwritten, {kept} of the others"
    );
    server.kill();
    acknowledged.get(kept).map_or(0, |first| (end - *first).as_millis() + 1)
}

#[test]
fn a_kill_loses_at_most_some_milliseconds_of_writes() {
    let folder = Folder::new("killed");
    let store = folder.0.join("store");
    let mut lost: Vec<u128> = (0..KILLS).map(|round| lost(&store, round)).collect();
    lost.sort_unstable();
    println!("milliseconds of acknowledged writes that a kill took back: {lost:?}");
    assert!(lost[KILLS / 2] <= PROMISE, "{lost:?} ms");
}
