//! Dumps of a store several times larger than memory. While other clients read and write, each dump
//! must list every key that no client deletes, and the server must not exceed the memory limit that
//! `--memory` promises. Runs the real binary.

mod harness;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Folder, Process, ask, connect, serve};

const KEYS: u32 = 150_000;
/// Each key whose number is a multiple of `LARGE` has a large value.
const LARGE: u32 = 30_000;
const MEMORY_MIB: u64 = 16;

struct Server {
    process: Process,
    address: String,
    _folder: Folder,
}

impl Server {
    fn start(io: &str) -> Server {
        let folder = Folder::new(&format!("dump-{io}"));
        let mut command = serve();
        let store = format!("{}:128MB", folder.0.join("store").display());
        command.args(["-m", &MEMORY_MIB.to_string(), "--io", io, "--store", &store]);
        let mut process = Process::spawn(&mut command);
        let listening = process.event("listening");
        let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
        process.event("serving");
        Server { process, address, _folder: folder }
    }

    fn assert_within_budget(&self) {
        harness::assert_within_budget(&self.process.child, MEMORY_MIB);
    }

    fn fill(&self) {
        let mut client = connect(&self.address);
        let small = "v".repeat(300);
        for first in (0..KEYS).step_by(100) {
            let mut request = String::new();
            for n in first..first + 100 {
                request += &format!("set key:{n} 0 0 {}\r\n{small}\r\n", small.len());
            }
            ask(&mut client, &request, &"STORED\r\n".repeat(100));
        }
        let large = "v".repeat(200_000);
        for n in (0..KEYS).step_by(LARGE as usize) {
            let request = format!("set key:{n} 0 0 {}\r\n{large}\r\n", large.len());
            ask(&mut client, &request, "STORED\r\n");
        }
    }

    /// Returns the lines of a dump between `OK` and the line `end`.
    fn dump(&self, command: &str, end: &str) -> Vec<String> {
        let mut client = connect(&self.address);
        client.write_all(command.as_bytes()).expect("it reads");
        let mut lines = BufReader::new(client).lines().map(|line| line.expect("it is text"));
        assert_eq!(lines.next().expect("it answers"), "OK");
        lines.by_ref().take_while(|line| line != end).collect()
    }
}

/// Returns everything that the server sends, up to and including `end`.
fn until(client: &mut TcpStream, end: &str) -> String {
    let mut reply = Vec::new();
    while !reply.ends_with(end.as_bytes()) {
        let mut some = [0; 4096];
        let n = client.read(&mut some).expect("it answers");
        assert!(n > 0, "it has closed");
        reply.extend(&some[..n]);
    }
    String::from_utf8(reply).expect("it is text")
}

fn stat(client: &mut TcpStream, name: &str) -> u64 {
    client.write_all(b"stats\r\n").expect("it reads");
    let row = format!("STAT {name} ");
    let text = until(client, "END\r\n");
    let value = text.lines().find_map(|line| line.strip_prefix(&row)).expect("it is there");
    value.parse().expect("a number")
}

/// Checks the limit of concurrent dumps: at the limit, the server must refuse further dumps. A dump
/// counts until the server has sent all of it, or until its client disconnects. Each client here
/// reads only the first line, so its dump does not end.
fn assert_few_at_once(server: &Server) {
    let begin = || {
        let mut client = connect(&server.address);
        client.write_all(b"lru_crawler metadump all\r\n").expect("it reads");
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("it answers");
            line.extend(byte);
        }
        (client, String::from_utf8(line).expect("it is text"))
    };
    let mut idle: Vec<TcpStream> = Vec::new();
    let refused = loop {
        let (client, line) = begin();
        if line != "OK\r\n" {
            break line;
        }
        idle.push(client);
    };
    assert_eq!(refused, "BUSY currently processing crawler request\r\n");
    assert_eq!(idle.len(), 4);
    server.assert_within_budget();
    idle.pop();
    let again = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(20));
        begin().1 == "OK\r\n"
    });
    assert!(again, "a disconnected client keeps its place");
}

/// Returns the number of the key at the start of a metadump line.
fn number(line: &str) -> u32 {
    let key = line.strip_prefix("key=key%3A").and_then(|rest| rest.split(' ').next());
    key.and_then(|key| key.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

#[test]
fn a_dump_lists_every_key_of_a_store_that_is_larger_than_memory() {
    for io in ["auto", "epoll"] {
        let server = Server::start(io);
        server.fill();
        let mut client = connect(&server.address);
        // Without concurrent changes, a dump must list every key exactly once.
        let lines = server.dump("lru_crawler metadump all\r\n", "END");
        let listed: HashSet<u32> = lines.iter().map(|line| number(line)).collect();
        assert_eq!((lines.len(), listed.len()), (KEYS as usize, KEYS as usize), "{io}");
        let large = lines.iter().find(|line| number(line) == LARGE).expect("it is listed");
        assert!(large.contains(" fetch=no cls=1 size=2000"), "{large}");
        assert_eq!(stat(&mut client, "larder_copies"), 0, "a dump leaves nothing in memory");

        // During three dumps, two clients set keys with numbers below `KEYS / 2`, and delete some
        // of them again. Each dump must list all keys that no client deletes.
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 1..3 {
                let (done, server) = (&done, &server);
                scope.spawn(move || {
                    let mut client = connect(&server.address);
                    let mut next = seed;
                    while !done.load(Ordering::Relaxed) {
                        next = (next * 1_103_515_245 + 12_345) % (1u64 << 31);
                        let n = (next >> 4) as u32 % (KEYS / 2);
                        ask(&mut client, &format!("set key:{n} 0 0 1\r\nx\r\n"), "STORED\r\n");
                        ask(&mut client, &format!("get key:{}\r\n", KEYS + n), "END\r\n");
                        if n % 100 == 1 {
                            client
                                .write_all(format!("delete key:{n}\r\nmn\r\n").as_bytes())
                                .unwrap();
                            until(&mut client, "MN\r\n");
                        }
                        server.assert_within_budget();
                    }
                });
            }
            let server = &server;
            let dumps: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| server.dump("lru_crawler mgdump all\r\n", "EN")))
                .collect();
            let dumps: Vec<_> = dumps.into_iter().map(|dump| dump.join()).collect();
            done.store(true, Ordering::Relaxed);
            for lines in dumps {
                let lines = lines.expect("a dump that ends");
                let listed: HashSet<&str> = lines.iter().map(|line| &line[..]).collect();
                let missing = (0..KEYS)
                    .filter(|n| *n >= KEYS / 2 || n % 100 != 1)
                    .find(|n| !listed.contains(&format!("mg key:{n}")[..]));
                assert_eq!(missing, None, "{io}");
            }
        });
        assert_eq!(stat(&mut client, "evictions"), 0, "there is room in the store");
        assert_few_at_once(&server);
    }
}
