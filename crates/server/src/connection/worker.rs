//! The state that the connections of one worker share.

use super::scratch::Scratch;
use crate::clock::random_seed;
use crate::command::binary::Binary;
use crate::command::text::Text;
use crate::command::{CommandCounters, Execution, ServerContext};
use crate::keys::KeySampler;
use crate::latency::Timer;
use crate::net::{Budget, OutputBuffer};
use crate::policies::PolicyReader;
use larder_engine::{Engine, Session};
use std::sync::Arc;
use std::time::Instant;

/// The state that the connections of one worker share.
pub struct Worker {
    pub(super) session: Session,
    pub(super) context: Arc<ServerContext>,
    pub(super) counters: Arc<CommandCounters>,
    pub(super) timer: Timer,
    pub(super) sampler: KeySampler,
    pub(super) policies: PolicyReader,
    pub(super) clock: Box<dyn Fn() -> u64 + Send>,
    pub(super) text: Scratch<Text>,
    pub(super) binary: Scratch<Binary>,
    /// Time of the last check for values that arrive too slowly.
    pub(super) last_check: Instant,
}

impl Worker {
    /// Creates a worker that uses `session`. `clock` returns the time in nanoseconds since the Unix
    /// epoch. The worker reads this clock once per turn. To time commands, it also reads the clock
    /// after each call of the service that answers commands.
    pub fn new(
        context: Arc<ServerContext>,
        mut session: Session,
        clock: Box<dyn Fn() -> u64 + Send>,
    ) -> Self {
        session.tick_at(clock());
        let (counters, timer) = (context.register(), context.latencies.timer());
        let sampler = KeySampler::new(Arc::clone(&context.hot_keys), random_seed());
        let policies = context.policies().reader();
        let (text, binary) = (Scratch::default(), Scratch::default());
        let last_check = Instant::now();
        Worker {
            session,
            context,
            counters,
            timer,
            sampler,
            policies,
            clock,
            text,
            binary,
            last_check,
        }
    }

    /// Returns the worker's session, for engine calls that belong to no connection.
    pub(crate) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    pub(super) fn execution<'e, 'o>(
        &'e self,
        output: &'e mut OutputBuffer<'o>,
    ) -> Execution<'e, 'o> {
        Execution {
            session: &self.session,
            context: &self.context,
            counters: &self.counters,
            policies: &self.policies,
            output,
            points: None,
        }
    }
}

/// Buffers of connections count against the engine's memory limit.
impl Budget for Engine {
    fn charge(&self, bytes: usize) {
        self.charge_buffers(bytes);
    }

    fn release(&self, bytes: usize) {
        self.release_buffers(bytes);
    }

    fn held(&self) -> (u64, u64) {
        self.buffers_held()
    }
}
