//! Tests of dumps that stall because their clients do not read them.

use super::{NOW, NoHooks};
use crate::command::ServerContext;
use crate::connection::{Connection, ConnectionId, Worker};
use crate::net::{Flow, InputBuffer, OutputMemory, Peer, Service};
use larder_engine::{Engine, Expiry, NANOS, Options, Outcome, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

const ITEMS: usize = 5000;
/// The output limit of a connection, in bytes.
const LIMIT: usize = 4096;
/// Seconds without progress after which a new dump may replace a running one. The server waits 10 s
/// after the time by which the client could have read all sent bytes. Here a client could read them
/// in less than a second.
const STALLED: u32 = 11;

/// A worker with a clock that the test advances.
struct World {
    worker: Worker,
    clock: Arc<AtomicU32>,
    clients: u64,
}

struct Dumping {
    connection: Connection,
    received: Vec<u8>,
}

impl World {
    fn new() -> World {
        let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() }).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(NOW);
        for key in 0..ITEMS {
            let key = format!("key{key}");
            let set = Store::set(b"value", 0, Expiry::NEVER);
            let stored = session.store(&session.key(key.as_bytes()), set);
            assert!(matches!(stored, Outcome::Ready(_)));
        }
        let context = ServerContext::new(Arc::clone(&engine), NOW - 100, Box::new(NoHooks));
        let clock = Arc::new(AtomicU32::new(NOW));
        let time = Arc::clone(&clock);
        let worker = Worker::new(
            Arc::new(context),
            session,
            Box::new(move || u64::from(time.load(Ordering::Relaxed)) * NANOS),
        );
        World { worker, clock, clients: 0 }
    }

    fn pass(&self, seconds: u32) {
        self.clock.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Creates a client that requests a dump and takes the first output.
    fn ask(&mut self) -> Dumping {
        self.clients += 1;
        let connection = self.worker.connect(Peer::Unix, ConnectionId::new(self.clients));
        let mut dumping = Dumping { connection, received: Vec::new() };
        self.process(&mut dumping, b"lru_crawler metadump all\r\n");
        dumping
    }

    /// Continues the dump of a client that has read all output.
    fn read(&mut self, dumping: &mut Dumping) -> Flow {
        self.process(dumping, b"")
    }

    fn read_all(&mut self, dumping: &mut Dumping) -> Flow {
        for _ in 0..ITEMS {
            match self.read(dumping) {
                Flow::Drain => {}
                flow => return flow,
            }
        }
        panic!("the dump never ends");
    }

    fn process(&mut self, dumping: &mut Dumping, request: &[u8]) -> Flow {
        self.worker.turn();
        let mut memory = OutputMemory::default();
        let mut input = InputBuffer::new(request);
        let mut output = memory.buffer(LIMIT);
        let flow = self.worker.process(&mut dumping.connection, &mut input, &mut output);
        dumping.received.extend_from_slice(memory.bytes());
        flow
    }
}

impl Dumping {
    fn has_begun(&self) -> bool {
        self.received.starts_with(b"OK\r\n")
    }

    fn is_whole(&self) -> bool {
        let lines = self.received.split(|&byte| byte == b'\n');
        self.received.ends_with(b"END\r\n")
            && lines.filter(|line| line.starts_with(b"key=")).count() == ITEMS
    }
}

#[test]
fn a_stalled_dump_gives_its_place_to_another() {
    let mut world = World::new();
    let mut idle: Vec<Dumping> = (0..4).map(|_| world.ask()).collect();
    assert!(idle.iter().all(Dumping::has_begun));
    let busy = b"BUSY currently processing crawler request\r\n";
    assert_eq!(world.ask().received, busy);
    world.pass(STALLED - 1);
    assert_eq!(world.ask().received, busy, "they may still go on");
    // Two of the four dumps continue, so only the other two are stalled.
    for reading in [0, 2] {
        assert_eq!(world.read(&mut idle[reading]), Flow::Drain);
    }
    world.pass(1);
    let mut fifth = world.ask();
    assert!(fifth.has_begun());
    assert_eq!(world.read_all(&mut fifth), Flow::Read);
    assert!(fifth.is_whole());

    // The fifth dump has replaced one of the two stalled dumps. The connection of the replaced dump
    // must be closed, and all other dumps must be complete.
    let ends: Vec<Flow> = idle.iter_mut().map(|dumping| world.read_all(dumping)).collect();
    assert_eq!((ends[0], ends[2]), (Flow::Read, Flow::Read), "a client that reads loses its dump");
    let closed = [1, 3].into_iter().filter(|&at| ends[at] == Flow::Close);
    assert_eq!(closed.count(), 1, "{ends:?}");
    for (dumping, end) in idle.iter().zip(&ends) {
        assert_eq!(dumping.is_whole(), *end == Flow::Read);
    }
    // All dumps have ended, so four new ones must be able to run at the same time.
    assert!((0..4).all(|_| world.ask().has_begun()));
}

#[test]
fn every_new_dump_gets_a_place_although_all_others_stall() {
    let mut world = World::new();
    let mut all = Vec::new();
    for client in 0..20 {
        if client >= 4 {
            world.pass(STALLED);
        }
        all.push(world.ask());
    }
    assert!(all.iter().all(Dumping::has_begun));
    let ends: Vec<Flow> = all.iter_mut().map(|dumping| world.read_all(dumping)).collect();
    assert_eq!(ends.iter().filter(|&&end| end == Flow::Read).count(), 4, "{ends:?}");
}
