//! Measures the cost of a request outside the kernel. A worker of Larder, and the responder, which
//! stores nothing, process batches of requests without a socket. The time is measured per block of
//! batches. Other work on the machine slows some blocks down. So the measured cost, by which builds
//! can be compared, is the 10th percentile of the blocks' costs.
//!
//! `cargo test --release -p larder-bench --lib -- --ignored --nocapture cost`

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use larder_engine::{Engine, NANOS, Options};
use larder_server::command::{Hooks, ServerContext};
use larder_server::connection::Worker;
use larder_server::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};

use super::service::NullService;
use crate::say;
use crate::workload::random::Random;

const KEYS: u64 = 1_000_000;
const BATCHES: usize = 2000;
const BATCHES_PER_BLOCK: usize = 50;
const TIME: Duration = Duration::from_secs(2);

const NOW: u32 = 1_800_000_000;

struct NoHooks;

impl Hooks for NoHooks {
    fn stats(&self, _group: &[u8], _row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
        false
    }

    fn reset_stats(&self) {}

    fn shutdown(&self, _graceful: bool) {}
}

/// Returns a worker with its own engine.
fn worker() -> Worker {
    let engine = Engine::open(Options { memory: 1 << 30, ..Options::default() }).unwrap();
    let session = engine.session(Waker::noop().clone());
    let context = ServerContext::new(engine, NOW - 100, Box::new(NoHooks));
    Worker::new(Arc::new(context), session, Box::new(|| u64::from(NOW) * NANOS))
}

/// Processes all requests of `batch`. Leaves their replies in `memory`.
fn process<S: Service>(
    service: &mut S,
    connection: &mut S::Connection,
    memory: &mut OutputMemory,
    batch: &[u8],
) {
    memory.clear();
    service.turn();
    let mut input = InputBuffer::new(batch);
    while {
        let mut output = memory.buffer(64 << 10);
        service.process(connection, &mut input, &mut output) != Flow::Read
    } {
        // Lets the cleaner free memory.
        thread::yield_now();
        service.turn();
    }
    assert_eq!(input.consumed(), batch.len());
}

/// Returns the cost per key in nanoseconds: the 10th percentile of the costs of all blocks.
fn cost<S: Service>(service: &mut S, batches: &[Vec<u8>], keys: usize) -> f64 {
    let mut connection = service.connect(Peer::Unix, ConnectionId::new(1));
    let mut memory = OutputMemory::with_capacity(80 << 10);
    let mut costs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TIME {
        for block in batches.chunks(BATCHES_PER_BLOCK) {
            let start = Instant::now();
            for batch in block {
                process(service, &mut connection, &mut memory, batch);
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
    let mut random = Random::new(1);
    let mut worker = worker();
    let set = |key: u64| format!("set key-{key:011} 0 0 50\r\n{}\r\n", "v".repeat(50));
    let mut connection = worker.connect(Peer::Unix, ConnectionId::new(1));
    let mut memory = OutputMemory::default();
    for key in 0..KEYS {
        process(&mut worker, &mut connection, &mut memory, set(key).as_bytes());
        assert_eq!(memory.bytes(), b"STORED\r\n");
    }
    worker.disconnect(connection);
    let mut many = |keys: usize, write: &dyn Fn(&[u64]) -> String| -> Vec<Vec<u8>> {
        let batch =
            |_| write(&(0..keys).map(|_| random.below(KEYS)).collect::<Vec<_>>()).into_bytes();
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
    let mut responder = NullService::new(50);
    for (name, keys, batches) in &loads {
        let (own, floor) =
            (cost(&mut worker, batches, *keys), cost(&mut responder, batches, *keys));
        say!("{name}: {own:.1} ns per key; a server that does nothing {floor:.1}");
    }
}
