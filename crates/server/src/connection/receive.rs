//! Receives values that are too long to wait in the input of a connection until they are complete.
//! The value's memory grows with the bytes that arrive, so a client that announces a long value and
//! sends nothing costs no memory. The beginning of a value is copied from the input. The kernel
//! then writes the rest of a long value straight into the value's memory. When the value is
//! complete, the connection parses the header again and executes the request. The largest values
//! are received into memory of the engine, in which the items then stay. `arrivals.rs` decides
//! which values may be received.

use super::arrivals::Memory;
use super::body::{Announced, Body, Received};
use super::gates::Repair;
use super::scratch::KeyBatch;
use super::state::{Connection, State, Step};
use super::worker::Worker;
use crate::command::{Dialect, Executed, Execution};
use crate::latency::{CommandClass, Timing};
use crate::net::{Flow, Incoming, InputBuffer, OutputBuffer};
use crate::waits::Waits;
use larder_engine::{Key, LargeValue, Outcome};
use larder_protocol::Parse;
use std::sync::Arc;

/// The largest request that stays in the input until it is complete, in bytes. The size of a
/// request includes its value.
const HELD_MAX: usize = 16 << 10;
/// The shortest value that the kernel writes straight into the value's memory, in bytes. Of a
/// shorter one, little is left after the first receive, and another system call costs as much as
/// the copy.
const DIRECT_MIN: usize = 32 << 10;

/// How a storage request is timed.
struct BodyTiming {
    class: CommandClass,
    /// The data with which the request is timed on its own, apart from the other commands that the
    /// same call of the service executes. `None` if commands are not timed.
    apart: Option<Timing>,
    /// True if the request had to wait while its value was received. Such a request is timed on its
    /// own, as are all requests with withheld replies.
    has_waited: bool,
}

impl Worker {
    /// Begins to receive the value of a storage request, unless the request is refused. A request
    /// of at most [`HELD_MAX`] bytes stays in the input until it is complete. `keys` are the
    /// request's keys.
    pub(super) fn begin_body<D: Dialect>(
        &self,
        connection: &mut Connection,
        request: &D::Request<'_>,
        keys: &[Key<'_>],
        announced: Announced,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        let Announced { header, value, trailer } = announced;
        if output.is_full() {
            return Step::Stop(Flow::Drain);
        }
        let start = output.len();
        let mut x = self.execution(output);
        let refused = D::refuse_value(&mut x, request, keys, value);
        match refused {
            None => {}
            Some(Executed::Again) => return Step::Stop(Flow::Park),
            Some(Executed::Close) => return Step::Stop(Flow::Close),
            Some(_) => {
                let repair = Repair::Say(D::failure_reply(request));
                let waited = (0, connection.waits());
                let timing = self.time_body::<D>(request, keys, announced, waited);
                self.withhold_timed(connection, &mut x, start, repair, &timing);
                input.consume(header);
                connection.state = State::Swallow(value + trailer);
                return Step::Next;
            }
        }
        if announced.len() <= HELD_MAX {
            return Step::Stop(Flow::Read);
        }
        let body = Body::new(&input.bytes()[..header], announced);
        input.consume(header);
        connection.state = State::Body(Box::new(body));
        Step::Next
    }

    /// Returns the data with which a request is timed. `waited` has the time for which the request
    /// has waited so far, in nanoseconds, and the reasons for this.
    fn time_body<D: Dialect>(
        &self,
        request: &D::Request<'_>,
        keys: &[Key<'_>],
        announced: Announced,
        waited: (u64, Waits),
    ) -> BodyTiming {
        let class = D::class(request);
        let key = self.first_hash::<D>(request, keys);
        let apart = self.timer.apart(class, key, announced.len(), waited);
        BodyTiming { class, apart, has_waited: waited.0 > 0 }
    }

    /// Withholds the reply to a storage request if the reply waits for a commit, and times the
    /// request.
    fn withhold_timed(
        &self,
        connection: &mut Connection,
        x: &mut Execution<'_, '_>,
        start: usize,
        repair: Repair,
        timing: &BodyTiming,
    ) {
        if connection.withhold_output(x, start, repair, false, timing.apart) {
            self.timer.note_apart();
        } else {
            self.count_body(connection, timing, x.output.len() - start);
        }
    }

    /// Counts and times a storage request whose reply of `len` bytes may be sent now.
    fn count_body(&self, connection: &Connection, timing: &BodyTiming, len: usize) {
        match &timing.apart {
            Some(apart) if timing.has_waited => {
                self.timer.note_apart();
                let (id, registered) = (connection.id, &connection.registered);
                self.note_released(id, registered, apart, len, (self.clock)());
            }
            _ => self.timer.answered(timing.class),
        }
    }

    /// Appends `bytes` to a value of `len` bytes, of which `filled` have arrived.
    fn append(
        &self,
        memory: &mut Memory,
        filled: usize,
        len: usize,
        keys: &[Key<'_>],
        bytes: &[u8],
    ) -> Received {
        let engine = self.session.engine();
        if let Memory::None = memory {
            *memory = if len <= engine.large_value_threshold() {
                match self.context.arrivals.buffers.take(len) {
                    Some(buffer) => Memory::Buffer(buffer),
                    None => return Received::NoMemory,
                }
            } else {
                match self.session.large_value(keys.first(), len) {
                    Outcome::Ready(Some(large)) | Outcome::AfterCommit(Some(large), _) => {
                        Memory::Large(large)
                    }
                    Outcome::NeedsSpace | Outcome::NeedsRead => return Received::Wait,
                    _ => return Received::NoMemory,
                }
            };
        }
        match memory {
            Memory::None => Received::NoMemory,
            Memory::Buffer(buffer) => {
                buffer.extend(bytes);
                Received::Part
            }
            Memory::Large(large) => match self.session.grow_large(large, filled + bytes.len()) {
                Outcome::Ready(()) | Outcome::AfterCommit((), _) => {
                    large.bytes_mut()[filled..filled + bytes.len()].copy_from_slice(bytes);
                    Received::Part
                }
                Outcome::NeedsSpace | Outcome::NeedsRead => Received::Wait,
                Outcome::Refused(_) => Received::NoMemory,
            },
        }
    }

    /// Receives bytes of a long value into its memory. Does not execute the request, even if its
    /// value is then complete: the next call of the service does.
    pub(super) fn receive_value(&self, connection: &mut Connection, incoming: &mut Incoming<'_>) {
        let State::Body(body) = &mut connection.state else { return };
        let grow = |large: &mut LargeValue, filled| self.session.try_grow_large(large, filled);
        let received = body.receive(incoming, grow);
        connection.registered.called(self.session.now(), received, 0);
    }

    /// Receives more of a value. Executes the request when its value is complete.
    pub(super) fn receive_body<D: Dialect>(
        &self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        let (since_ns, waits) = (connection.waits_since, connection.waits());
        let State::Body(body) = &mut connection.state else { return Step::Next };
        // The header is cloned, because the keys borrow from it while the rest of `body` changes.
        let header = Arc::clone(&body.header);
        let mut keys = KeyBatch::new(&self.session, Vec::new());
        let parsed = D::parse(&header, &mut keys);
        let keys = keys.into_inner();
        let Parse::NeedValue { request, .. } = parsed else {
            // This cannot happen, because the same bytes were parsed as the header of a storage
            // request before.
            return Step::Stop(Flow::Close);
        };
        let len = body.announced.value;
        let enter = || self.context.arrivals.enter(len, self.session.waker());
        let received = body.fill(input, enter, |memory, filled, bytes| {
            self.append(memory, filled, len, &keys, bytes)
        });
        if let Received::Part = received
            && since_ns != 0
        {
            body.waited_ns += self.timer.turn_ns().saturating_sub(since_ns);
            body.waited_for = body.waited_for.and(waits);
        }
        let waited = (body.waited_ns, waits.and(body.waited_for));
        let timing = self.time_body::<D>(&request, &keys, body.announced, waited);
        let start = output.len();
        let mut x = self.execution(output);
        let repair = Repair::Say(D::failure_reply(&request));
        match received {
            Received::All => {}
            Received::Part => {
                if body.announced.value >= DIRECT_MIN {
                    input.expect_value();
                }
                return Step::Stop(Flow::Read);
            }
            Received::Wait => return Step::Stop(Flow::Park),
            Received::NoMemory => {
                if let Executed::Again = D::no_memory(&mut x, &request, &keys) {
                    return Step::Stop(Flow::Park);
                }
                connection.state = State::Swallow(body.missing());
                self.withhold_timed(connection, &mut x, start, repair, &timing);
                return Step::Next;
            }
        }
        if !body.has_good_trailer() {
            D::bad_trailer(&mut x, &request);
            connection.state = State::Ready;
            self.count_body(connection, &timing, x.output.len() - start);
            return Step::Next;
        }
        let mut execute =
            |memory: &mut Memory| D::execute(&mut x, &request, &keys, Some(memory.value()));
        // `Body::fill` has marked the value as complete. From then on, no check (`arrivals.rs`) can
        // take its place away.
        let executed = match &mut body.arrival {
            Some(arrival) => arrival.with(&mut execute),
            None => Ok(execute(&mut Memory::None)),
        };
        // A check by another worker may have taken the value's memory just before the value was
        // marked as complete. The client then receives the error for a lack of memory.
        let executed = executed.unwrap_or_else(|_| D::no_memory(&mut x, &request, &keys));
        if self.sampler.counts(executed.keys(keys.len().max(1))) {
            let len = body.announced.len();
            self.sample::<D>(&request, &keys, len, &x.output.bytes()[start..]);
        }
        match executed {
            Executed::Again => Step::Stop(Flow::Park),
            Executed::Close => Step::Stop(Flow::Close),
            _ => {
                connection.state = State::Ready;
                self.withhold_timed(connection, &mut x, start, repair, &timing);
                Step::Next
            }
        }
    }
}
