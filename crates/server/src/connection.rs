//! The server's [`Service`], which turns the bytes of a socket into commands and replies. A worker
//! parses a batch of the requests that have arrived, and prefetches the index buckets of their keys
//! while it parses. The worker then prefetches the records and executes the requests. So the cache
//! misses of a batch overlap.
//!
//! Invariant: input is consumed exactly when its requests are executed or refused. A batch is
//! interrupted if the output is full, or if a request must wait, for example until memory is
//! reclaimed. The rest of the batch then stays in the input and is parsed again later. Only long
//! values leave the input before they are complete (`receive.rs`).
//!
//! The connection withholds replies that must not be seen before a commit is durable, and all
//! replies that follow them (`gates.rs`, `withheld.rs`). The connection continues to execute
//! requests meanwhile.
//!
//! The state of a connection is in `state.rs`, and the state that all connections of a worker share
//! in `worker.rs`. The methods of [`Worker`] are where their work is: batches of requests in
//! `batch.rs`, long values in `receive.rs`, withheld replies in `withheld.rs`, and slow commands in
//! `slow.rs`.

pub(crate) mod arrivals;
mod batch;
mod body;
mod gates;
mod receive;
mod scratch;
mod slow;
mod state;
#[cfg(test)]
mod tests;
mod value_buffers;
mod withheld;
mod worker;

use crate::clients::{ClientProtocol, Registered, Unfinished};
use crate::command::binary::Binary;
use crate::command::text::{self, Text};
use crate::command::{Sent, Unready, refusal_line};
use crate::keys::SampledRequest;
use crate::net::{Budget, ConnectionId, Flow, Incoming, InputBuffer, OutputBuffer, Peer, Service};
use arrivals::CHECK_INTERVAL;
use gates::Repair;
use larder_engine::Engine;
use larder_protocol::text::{Get, KeysEnd, parse_keys};
use larder_protocol::{BINARY_MAGIC, KeySink, guess_key, reply};
use scratch::KeyBatch;
use slow::First;
pub use state::Connection;
use state::{State, Step};
use std::time::{Duration, Instant};
pub use worker::Worker;

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

impl Worker {
    /// Continues the work that the connection has begun.
    fn resume(
        &mut self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        if connection.value.is_some() && connection.is_open() {
            return Step::Stop(Flow::Park);
        }
        if output.is_full() {
            return Step::Stop(Flow::Drain);
        }
        if let Some(value) = &mut connection.value {
            match value.send(output) {
                Sent::All => connection.value = None,
                Sent::Part | Sent::Wait => return Step::Stop(Flow::Drain),
                Sent::Gone => {
                    self.counters.values_cut.add(1);
                    return Step::Stop(Flow::Close);
                }
            }
        }
        if output.is_full() {
            return Step::Stop(Flow::Drain);
        }
        match &mut connection.state {
            State::Ready => Step::Next,
            State::Keys(get) => {
                let get = *get;
                self.keys(&get, connection, input, output)
            }
            State::Swallow(left) => {
                let now = input.bytes().len().min(*left);
                input.consume(now);
                *left -= now;
                if *left > 0 {
                    return Step::Stop(Flow::Read);
                }
                connection.state = State::Ready;
                Step::Next
            }
            State::SkipLine => match memchr::memchr(b'\n', input.bytes()) {
                None => {
                    input.consume(input.bytes().len());
                    Step::Stop(Flow::Read)
                }
                Some(newline) => {
                    input.consume(newline + 1);
                    connection.state = State::Ready;
                    Step::Next
                }
            },
            State::Body(_) => match connection.protocol {
                ClientProtocol::Binary => self.receive_body::<Binary>(connection, input, output),
                ClientProtocol::Undecided | ClientProtocol::Text => {
                    self.receive_body::<Text>(connection, input, output)
                }
            },
            State::Dump(_) => self.dump(connection, output),
        }
    }

    /// Sends the next part of a dump. If the dump cannot be continued, the connection is closed, so
    /// that the client sees that the dump is incomplete. There are two such cases: a new dump has
    /// taken the place of this dump, or a commit that a part of the dump depends on has failed.
    fn dump(&mut self, connection: &mut Connection, output: &mut OutputBuffer<'_>) -> Step {
        let State::Dump(mut dump) = std::mem::replace(&mut connection.state, State::Ready) else {
            return Step::Next;
        };
        let start = output.len();
        let mut x = self.execution(output);
        let sent = dump.send(&mut x);
        connection.withhold_output(&mut x, start, Repair::Close, false, None);
        match sent {
            Sent::All => return Step::Next,
            Sent::Gone => return Step::Stop(Flow::Close),
            Sent::Wait | Sent::Part => connection.state = State::Dump(dump),
        }
        Step::Stop(if sent == Sent::Wait { Flow::Park } else { Flow::Drain })
    }

    /// Continues a retrieval: its line was too long to be parsed as a whole, or only its first keys
    /// are answered. Answers up to `text::PREFETCH_WINDOW` of its keys, which the input holds.
    fn keys(
        &mut self,
        get: &Get,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        let bytes = input.bytes();
        let keys = self.text.take_keys();
        let mut keys = KeyBatch::new(&self.session, keys);
        let parsed = parse_keys(bytes, text::PREFETCH_WINDOW, &mut keys);
        keys.fetch_records();
        let start = output.len();
        let mut x = self.execution(output);
        let progress = text::answer_keys(&mut x, get, keys.all());
        let (unready, value) = (progress.unready, progress.value);
        let open = value.is_some();
        if self.sampler.counts(progress.answered) {
            let reply = &x.output.bytes()[start..];
            let request = SampledRequest { writes: get.exptime.is_some(), len: 0, reply };
            self.sampler.sample(&keys.all()[..progress.answered], request);
        }
        connection.value = value;
        connection.withhold_output(&mut x, start, Repair::Close, open, None);
        let interrupted = open || progress.answered < keys.all().len();
        let consumed = match progress.answered {
            _ if !interrupted => parsed.consumed,
            0 => 0,
            answered => batch::end_within(bytes, keys.all()[answered - 1].bytes()),
        };
        let keys = keys.into_inner();
        self.text.give_keys(keys);
        input.consume(consumed);
        if interrupted {
            return match unready {
                None => Step::Stop(Flow::Drain),
                Some(Unready::Again) => Step::Stop(Flow::Park),
                Some(Unready::Refused(refusal)) => {
                    output.extend(refusal_line(refusal, false).as_bytes());
                    connection.state = State::SkipLine;
                    Step::Next
                }
            };
        }
        match parsed.end {
            KeysEnd::More => Step::Next,
            KeysEnd::NeedMore => Step::Stop(Flow::Read),
            KeysEnd::Line => {
                output.extend(reply::END.as_bytes());
                connection.state = State::Ready;
                Step::Next
            }
            KeysEnd::Refused(line) => {
                output.extend(line.as_bytes());
                connection.state = State::SkipLine;
                Step::Next
            }
        }
    }
}

impl Service for Worker {
    type Connection = Connection;

    fn turn(&mut self) {
        let now = (self.clock)();
        self.session.tick_at(now);
        self.timer.begin_turn(now, &self.context.latencies);
        self.sampler.begin_turn(now);
        self.policies.refresh();
        if self.context.arrivals.is_waited_for() && self.last_check.elapsed() >= CHECK_INTERVAL {
            self.last_check = Instant::now();
            self.context.arrivals.expel_slow();
        }
    }

    fn wakes_within(&self) -> Option<Duration> {
        self.context.arrivals.is_waited_for().then_some(CHECK_INTERVAL)
    }

    #[inline]
    fn lingers(&mut self) -> Option<Duration> {
        self.session.lingers()
    }

    #[inline]
    fn polls(&mut self) -> bool {
        self.session.polls()
    }

    fn sleep(&mut self) {
        self.session.sleep();
    }

    fn keeps(&self, connection: &Connection) -> usize {
        connection.gates.as_ref().map_or(0, |gates| gates.charged())
    }

    fn can_give_up(&self, connection: &Connection) -> bool {
        matches!(&connection.state, State::Body(body) if body.waits_for_place())
    }

    fn gives_up(&mut self, connection: &mut Connection) -> bool {
        let State::Body(body) = &mut connection.state else { return false };
        body.waits_for_place() && body.give_up()
    }

    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Connection {
        let entry = Registered::new(peer, self.session.now());
        Connection::new(id, self.context.registry.add(id, entry))
    }

    #[inline]
    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>) {
        let mut keys = KeyBatch::new(&self.session, self.text.take_keys());
        inputs.filter_map(guess_key).for_each(|key| keys.push(key));
        keys.prefetch_records();
        let keys = keys.into_inner();
        self.text.give_keys(keys);
    }

    fn process(
        &mut self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        let flow = self.serve(connection, input, output);
        connection.registered.called(self.session.now(), input.consumed(), output.len());
        if connection.unfinished() != Unfinished::Nothing
            || connection.registered.unfinished() != Unfinished::Nothing
        {
            connection.show_unfinished();
        }
        flow
    }

    fn receive(&mut self, connection: &mut Connection, incoming: &mut Incoming<'_>) {
        self.receive_value(connection, incoming);
    }

    fn notes_buffers(&mut self, connection: &mut Connection, input: usize, output: usize) {
        connection.buffers = input.saturating_add(output).try_into().unwrap_or(u32::MAX);
        connection.registered.set_blocked(output > 0);
        connection.show_kept();
    }

    fn awaits(&self, connection: &mut Connection) -> bool {
        match connection {
            Connection { gates: None, reads: Some(reads), .. } => self.session.awaits(reads),
            Connection { gates: None, state: State::Body(body), .. } => body.waits_for_place(),
            _ => false,
        }
    }

    fn is_idle(&self, connection: &Connection) -> bool {
        connection.value.is_none()
            && matches!(connection.state, State::Ready)
            && connection.gates.is_none()
    }

    fn disconnect(&mut self, mut connection: Connection) {
        self.context.registry.remove(connection.id);
        // The end of this function drops `connection`, which also frees a value that has arrived in
        // part.
        self.forget(&mut connection);
        if let Some(reads) = connection.reads {
            self.session.release(reads);
        }
    }
}

impl Worker {
    /// Sends the withheld replies that may be sent now, and executes the input.
    #[inline]
    fn serve(
        &mut self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        if connection.gates.is_some()
            && let Some(flow) = self.release(connection, output)
        {
            if let Some(wanted) = self.session.take_reads()
                && let Some(before) = connection.reads.replace(wanted)
            {
                self.session.release(before);
            }
            return flow;
        }
        let reads = connection.reads.take();
        self.timer.begin(connection.waits_since);
        let first = First::of(connection, input);
        let flow = self.go_on(connection, input, output);
        if let Some(answered) = self.timer.end(&self.clock) {
            connection.registered.answered(answered.commands);
            if self.timer.is_slow(answered.took_ns) {
                self.note_slow_call(connection, &answered, first, input.consumed(), output.len());
            }
        }
        self.session.forget_items();
        let mut wanted = self.session.retake_reads(reads);
        // If the connection parks, its next request has waited since it arrived, not only from now
        // on.
        if flow == Flow::Park {
            let reads = wanted.as_mut().is_some_and(|reads| self.session.awaits(reads));
            connection.park(self.timer.began_ns(), connection.parks_for(reads));
        } else if connection.waits_since != 0 {
            connection.unpark();
        }
        match wanted {
            Some(reads) if flow == Flow::Read => self.session.release(reads),
            reads => connection.reads = reads,
        }
        if connection.gates.is_none() { flow } else { self.withhold(connection, flow, output) }
    }

    /// Executes the requests in the input until all are executed, or the connection must wait or
    /// close.
    #[inline]
    fn go_on(
        &mut self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        loop {
            if connection.value.is_some() || !matches!(connection.state, State::Ready) {
                if let Step::Stop(flow) = self.resume(connection, input, output) {
                    return flow;
                }
                continue;
            }
            let step = match connection.protocol {
                ClientProtocol::Text => self.batch::<Text>(connection, input, output),
                ClientProtocol::Binary => self.batch::<Binary>(connection, input, output),
                ClientProtocol::Undecided => {
                    connection.protocol = match input.bytes() {
                        [] => return Flow::Read,
                        [BINARY_MAGIC, ..] => ClientProtocol::Binary,
                        _ => ClientProtocol::Text,
                    };
                    connection.registered.set_protocol(connection.protocol);
                    Step::Next
                }
            };
            if let Step::Stop(flow) = step {
                return flow;
            }
        }
    }
}
