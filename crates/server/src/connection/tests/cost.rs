//! The cost of requests without the kernel. A worker and the lab's responder process batches
//! without a socket. Other work on the machine only disturbs the slower blocks, so the fastest
//! tenth is what distinguishes builds.
//!
//! `cargo test --release -p larder-server --lib -- --ignored --nocapture cost`

use super::*;
use crate::net::responder::Responder;
use std::thread;
use std::time::{Duration, Instant};

const KEYS: u64 = 1_000_000;
const BATCHES: usize = 2000;
const BATCHES_PER_BLOCK: usize = 50;
const TIME: Duration = Duration::from_secs(2);

/// Returns the nanoseconds per key that a tenth of the blocks stay below.
fn cost<S: Service>(service: &mut S, batches: &[Vec<u8>], keys: usize) -> f64 {
    let mut connection = service.connect(Peer::Unix, ConnectionId::new(1));
    let mut memory = OutputMemory::with_capacity(80 << 10);
    let mut costs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TIME {
        for block in batches.chunks(BATCHES_PER_BLOCK) {
            let start = Instant::now();
            for batch in block {
                service.turn();
                let mut input = InputBuffer::new(batch);
                while {
                    let mut output = memory.buffer(64 << 10);
                    service.process(&mut connection, &mut input, &mut output) != Flow::Read
                } {
                    // Meanwhile the cleaner makes room.
                    thread::yield_now();
                    service.turn();
                }
                assert_eq!(input.consumed(), batch.len());
                memory.clear();
            }
            costs.push(start.elapsed().as_nanos() as f64 / (block.len() * keys) as f64);
        }
    }
    service.disconnect(connection);
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 10]
}

#[test]
#[ignore = "a measurement"]
fn costs_of_common_requests() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % KEYS
    };
    let mut worker = worker_with(Options { memory: 1 << 30, ..Options::default() });
    let set = |key: u64| format!("set key-{key:011} 0 0 50\r\n{}\r\n", "v".repeat(50));
    {
        let mut client = Client::new(&mut worker);
        (0..KEYS).for_each(|key| assert_eq!(client.ask(set(key).as_bytes()), b"STORED\r\n"));
    }
    let mut many = |keys: usize, write: &dyn Fn(&[u64]) -> String| -> Vec<Vec<u8>> {
        let batch = |_| write(&(0..keys).map(|_| random()).collect::<Vec<_>>()).into_bytes();
        (0..BATCHES).map(batch).collect()
    };
    let each = |write: fn(u64) -> String| {
        move |keys: &[u64]| keys.iter().map(|&key| write(key)).collect::<String>()
    };
    let loads = [
        (
            "get of 50 keys",
            50,
            many(50, &|keys| format!("get{}\r\n", each(|key| format!(" key-{key:011}"))(keys))),
        ),
        ("get, pipelines of 16", 16, many(16, &each(|key| format!("get key-{key:011}\r\n")))),
        ("mg, pipelines of 16", 16, many(16, &each(|key| format!("mg key-{key:011} v\r\n")))),
        ("set, pipelines of 16", 16, many(16, &|keys| keys.iter().map(|&key| set(key)).collect())),
    ];
    let mut responder = Responder::new(50);
    for (name, keys, batches) in &loads {
        let (own, floor) =
            (cost(&mut worker, batches, *keys), cost(&mut responder, batches, *keys));
        println!("{name}: {own:.1} ns per key; a server that does nothing {floor:.1}");
    }
}
