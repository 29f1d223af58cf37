//! The state of a worker. The methods of [`Worker`] that execute requests are in the other files of
//! this folder.

use super::scratch::Scratch;
use crate::clock::random_seed;
use crate::command::binary::Binary;
use crate::command::text::Text;
use crate::command::{CommandCounters, Dialect, Execution, ServerContext};
use crate::keys::{KeySampler, SampledRequest};
use crate::latency::Timer;
use crate::net::OutputBuffer;
use crate::policies::PolicyReader;
use larder_engine::{Key, SecretHash, Session};
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

    /// Passes an executed request to the sampler of keys. `keys` are the answered keys. `len` is
    /// the length of the request in bytes, with its value.
    #[cold]
    #[inline(never)]
    pub(super) fn sample<D: Dialect>(
        &self,
        request: &D::Request<'_>,
        keys: &[Key<'_>],
        len: usize,
        reply: &[u8],
    ) {
        let sampled = SampledRequest { writes: !D::properties(request).only_reads(), len, reply };
        match D::encoded_key(request) {
            Some(key) if keys.is_empty() => self.sampler.sample(&[self.session.key(&key)], sampled),
            _ => self.sampler.sample(keys, sampled),
        }
    }

    /// Returns the hash of the first key of a request. `keys` are the request's keys. `keys` is
    /// empty if the request has no key, or a key in base64.
    #[inline]
    pub(super) fn first_hash<D: Dialect>(
        &self,
        request: &D::Request<'_>,
        keys: &[Key<'_>],
    ) -> Option<SecretHash> {
        match keys {
            [first, ..] => Some(first.secret_hash()),
            // Decoding a key allocates memory, and only timed commands need the hash.
            [] if self.timer.is_on() => self.encoded_hash::<D>(request),
            [] => None,
        }
    }

    #[cold]
    fn encoded_hash<D: Dialect>(&self, request: &D::Request<'_>) -> Option<SecretHash> {
        Some(self.session.key(&D::encoded_key(request)?).secret_hash())
    }
}
