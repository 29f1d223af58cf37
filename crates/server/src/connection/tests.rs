//! Tests of requests and replies without a socket. `tests/replies.txt` is a table of replies
//! observed from memcached 1.6.45. The other files in `tests/` test, for example, input in pieces,
//! output that the client does not take, long values, and replies that wait for commits.

mod commits;
mod counters;
mod flow;
mod gates;
mod latencies;
mod limits;
mod loops;
mod policies;
mod refusals;
mod sampled;
mod stalled;
mod switches;
mod table;
mod times;
mod values;

use super::{Connection, Worker};
use crate::command::{Hooks, ServerContext, Switches};
use crate::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};
use larder_engine::{Engine, NANOS, Options};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

const NOW: u32 = 1_800_000_000;

struct NoHooks;

impl Hooks for NoHooks {
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
        if group.is_empty() {
            row("pid", format_args!("{}", 1));
        }
        group.is_empty()
    }

    fn reset_stats(&self) {}

    fn shutdown(&self, _graceful: bool) {}
}

/// Creates a worker with its own engine.
fn worker() -> Worker {
    worker_with(Options { memory: 64 << 20, ..Options::default() })
}

fn worker_with(options: Options) -> Worker {
    worker_on(&Engine::open(options).unwrap(), Waker::noop().clone())
}

fn worker_on(engine: &Arc<Engine>, waker: Waker) -> Worker {
    let context = ServerContext::new(Arc::clone(engine), NOW - 100, Box::new(NoHooks));
    context.set_switches(Switches { shutdown: true, ..Switches::default() });
    let session = engine.session(waker);
    Worker::new(Arc::new(context), session, Box::new(|| u64::from(NOW) * NANOS))
}

/// A client for tests. It takes all output. It keeps the input that the connection has not
/// consumed, and sends this input again before new input.
struct Client<'w> {
    worker: &'w mut Worker,
    connection: Option<Connection>,
    held: Vec<u8>,
    replies: Vec<u8>,
    /// The output's limit, in bytes.
    limit: usize,
    /// The largest output of one call, in bytes.
    output_max: usize,
}

impl<'w> Client<'w> {
    fn new(worker: &'w mut Worker) -> Self {
        let connection = worker.connect(Peer::Unix, ConnectionId::new(1));
        let (held, replies) = (Vec::new(), Vec::new());
        let limit = 64 << 10;
        Client { worker, connection: Some(connection), held, replies, limit, output_max: 0 }
    }

    /// Sends `bytes` and takes the replies until more input is needed.
    fn send(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let mut turns = 0;
        while let Some(connection) = &mut self.connection {
            self.worker.turn();
            let mut memory = OutputMemory::default();
            let mut input = InputBuffer::new(&self.held);
            let mut output = memory.buffer(self.limit);
            let flow = self.worker.process(connection, &mut input, &mut output);
            self.output_max = self.output_max.max(output.len());
            let (consumed, postponed) = (input.consumed(), input.is_postponed());
            self.replies.extend_from_slice(memory.bytes());
            self.held.drain(..consumed);
            match flow {
                Flow::Read if postponed => {}
                Flow::Read => break,
                Flow::Drain => {}
                // The connection waits until another thread of the engine has made room or ended a
                // commit.
                Flow::Park | Flow::Hold => std::thread::yield_now(),
                Flow::Close => {
                    self.replies.extend_from_slice(b"<EOF>");
                    self.worker.disconnect(self.connection.take().unwrap());
                }
            }
            turns += 1;
            assert!(turns < 10_000_000, "no progress");
        }
    }

    /// Returns the replies since the last call.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// Sends `bytes` and returns the replies.
    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes);
        self.take()
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.worker.disconnect(connection);
        }
    }
}

/// Returns the bytes in readable form, shortened.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(2000)].escape_ascii().to_string()
}
