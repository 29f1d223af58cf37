//! With `--durability sync`, no limit admits more than its budget, however often the server is
//! killed. Kills the real binary while several clients share a limit of each algorithm.

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use harness::{Folder, PATIENCE, Server, connect};

const BUDGET: u64 = 300;
const CLIENTS: u64 = 4;
/// The number of admitted requests after which the server is killed.
const LIFE: u64 = 60;
/// Number of further admitted requests after which the clients stop by themselves. So a late kill
/// does not take the requests of later lives.
const LATE: u64 = 20;
/// The limits, all with a window in which hardly any unit becomes free while the test runs.
const LIMITS: [&str; 3] = ["B300 N86400", "B300 N86400 MW", "B1 N86400 MG G300"];

/// Takes units one by one until a request is refused or the server dies. Counts the admitted
/// requests, and stops once `last` are admitted. Returns true if a request was refused.
fn take(client: TcpStream, limit: &str, admitted: &AtomicU64, last: u64) -> bool {
    client.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    let mut client = BufReader::new(client);
    let request = format!("ma limit {limit}\r\n");
    while admitted.load(SeqCst) < last {
        let mut reply = String::new();
        let sent = client.get_mut().write_all(request.as_bytes());
        match sent.and_then(|()| client.read_line(&mut reply)) {
            Ok(_) if reply == "HD\r\n" => admitted.fetch_add(1, SeqCst),
            Ok(_) if reply == "NS\r\n" => return true,
            // A kill may cut a reply, too.
            Ok(_) if !reply.ends_with('\n') => return false,
            Err(_) => return false,
            other => panic!("{other:?}: {reply:?}"),
        };
    }
    false
}

/// Lets the clients take units until the limit is used up, or until enough requests were admitted
/// that the server is killed. Returns true if the limit is used up.
fn live(store: &Path, limit: &str, admitted: &AtomicU64) -> bool {
    let server = Server::start(store, &["--durability", "sync"]);
    let end = admitted.load(SeqCst) + LIFE;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| connect(&server.address))
            .map(|client| scope.spawn(move || take(client, limit, admitted, end + LATE)))
            .collect();
        while admitted.load(SeqCst) < end && !clients.iter().all(|client| client.is_finished()) {
            std::thread::yield_now();
        }
        server.kill();
        let ended: Vec<bool> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        ended.contains(&true)
    })
}

#[test]
fn kills_admit_no_more_than_the_budget() {
    for limit in LIMITS {
        let folder = Folder::new("limit-kills");
        let store = folder.0.join("store");
        let (admitted, mut kills) = (AtomicU64::new(0), 0);
        while !live(&store, limit, &admitted) {
            kills += 1;
        }
        let admitted = admitted.load(SeqCst);
        // A kill loses the replies that the clients wait for, but not the units.
        let least = BUDGET - CLIENTS * kills;
        assert!((least..=BUDGET).contains(&admitted), "{admitted} of {BUDGET}: {limit}");
        assert!(kills >= 3, "{kills} kills");
    }
}
