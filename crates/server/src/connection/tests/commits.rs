//! Tests of replies in sync mode. The tests control the device and decide when commits happen.

mod failing;
mod long;
mod slow;
mod timed;
mod waiting;

use super::{NOW, shown, worker_on};
use crate::connection::{Connection, Worker};
use crate::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{
    Durability, Engine, MachineTime, MonotonicClock, NANOS, Options, StoreDevice, StoreOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;

pub(super) fn store_options(device: &Arc<SimDevice>) -> Options {
    let store = StoreOptions {
        devices: vec![StoreDevice {
            name: "store".to_owned(),
            device: Arc::<SimDevice>::clone(device),
            lower: None,
            seeds: [1, 2, 3],
        }],
        forget: Vec::new(),
        durability: Durability::Sync,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        opened: MachineTime { wall: u64::from(NOW) * NANOS, ..MachineTime::default() },
    };
    Options { memory: 64 << 20, store: Some(store), ..Options::default() }
}

/// A store in which the test makes every commit.
struct Store {
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
}

impl Store {
    fn new() -> Store {
        Store::with_memory(64 << 20)
    }

    fn with_memory(memory: u64) -> Store {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        let options = Options { memory, ..store_options(&device) };
        let engine = Engine::open_without_threads(options).unwrap();
        Store { device, engine }
    }

    fn client(&self) -> Client {
        Client::new(&self.engine)
    }

    fn commit(&self) {
        assert!(self.engine.commit());
    }

    /// Makes a commit that fails, and then a commit that succeeds.
    fn fail(&self) {
        self.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        // The result is not checked. A commit that has nothing to write succeeds in spite of the
        // fault.
        self.engine.commit();
        self.device.mend();
        self.commit();
    }

    fn break_down(&self) {
        self.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        assert!(!self.engine.commit());
    }

    fn buffers(&self) -> u64 {
        self.engine.stats().buffer_bytes
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A client with its own worker.
struct Client {
    worker: Worker,
    connection: Option<Connection>,
    input: Vec<u8>,
    received: Vec<u8>,
    limit: usize,
    flow: Flow,
    postponed: bool,
    bell: Arc<Bell>,
}

impl Client {
    fn new(engine: &Arc<Engine>) -> Client {
        let bell = Arc::new(Bell::default());
        let mut worker = worker_on(engine, Waker::from(Arc::clone(&bell)));
        let connection = Some(worker.connect(Peer::Unix, ConnectionId::new(1)));
        let (input, received) = (Vec::new(), Vec::new());
        let limit = 64 << 10;
        let (flow, postponed) = (Flow::Read, false);
        Client { worker, connection, input, received, limit, flow, postponed, bell }
    }

    /// Calls the service until the connection has to wait.
    fn turn(&mut self) {
        self.call();
        while self.flow == Flow::Drain || self.postponed {
            self.call();
        }
    }

    /// Calls the service once.
    fn call(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        self.worker.turn();
        let mut memory = OutputMemory::default();
        let mut input = InputBuffer::new(&self.input);
        let mut output = memory.buffer(self.limit);
        self.flow = self.worker.process(connection, &mut input, &mut output);
        let consumed = input.consumed();
        self.postponed = input.is_postponed();
        self.received.extend_from_slice(memory.bytes());
        self.input.drain(..consumed);
        if self.flow == Flow::Close {
            self.received.extend_from_slice(b"<EOF>");
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.worker.disconnect(connection);
        }
    }

    /// Sends `bytes` and returns the output that the client receives at once, without a wake-up.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(bytes);
        self.more()
    }

    /// Calls the service without new input and returns the output.
    fn more(&mut self) -> Vec<u8> {
        self.turn();
        std::mem::take(&mut self.received)
    }

    /// Does the same as [`more`](Self::more). Panics if the worker was not woken since the last
    /// call.
    fn woken(&mut self) -> Vec<u8> {
        assert!(self.bell.0.swap(0, SeqCst) > 0, "the worker was not woken");
        self.more()
    }

    #[track_caller]
    fn sends(&mut self, bytes: &[u8], reply: &[u8]) {
        let got = self.send(bytes);
        assert!(got == reply, "{} got {}", shown(bytes), shown(&got));
    }

    #[track_caller]
    fn gets(&mut self, reply: &[u8]) {
        let got = self.woken();
        assert!(got == reply, "{} instead of {}", shown(&got), shown(reply));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
    }
}

const LOST: &[u8] = b"SERVER_ERROR store failed: write not kept\r\n";
