//! Values that do not fit into what a connection may leave in its input. Their header is kept, the
//! value grows as its bytes arrive (a client that announces much and sends nothing costs nothing),
//! and when it is complete the header is parsed once more and executed with it. Only the largest
//! values get all their memory at once, from the engine, to be filled in place.

use super::batch::KeyBatch;
use super::dialect::Dialect;
use super::{Connection, State, Step, Worker};
use crate::command::{Executed, Unready};
use crate::net::{Flow, InputBuffer, OutputBuffer};
use larder_engine::{Engine, Key, LargeValue, Value};
use larder_protocol::Parse;
use std::sync::Arc;

/// A request with its value that has at most so many bytes waits in the input.
const HELD_MAX: usize = 16 << 10;

/// The longest trailer of any protocol, in bytes.
const TRAILER_MAX: usize = 2;

/// The smallest step in which a value grows, in bytes.
const GROWTH_MIN: usize = 16 << 10;

/// What the header of a storage request announces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// Length of the header, in bytes.
    pub(super) header: usize,
    /// Length of the value, in bytes.
    pub(super) value: usize,
    /// Length of what follows the value, in bytes.
    pub(super) trailer: usize,
}

/// A value that is being received.
#[derive(Debug)]
pub(super) struct Body {
    header: Box<[u8]>,
    memory: Memory,
    announced: Announced,
    /// How much of value and trailer has arrived, in bytes.
    filled: usize,
    trailer: [u8; TRAILER_MAX],
}

#[derive(Debug)]
enum Memory {
    /// Of the connection: copied when it is complete.
    Buffer(ChargedBuffer),
    /// Of the engine: the item's own.
    Large(LargeValue),
}

/// A buffer that counts against the engine's memory limit as long as it exists.
struct ChargedBuffer {
    engine: Arc<Engine>,
    bytes: Vec<u8>,
    charged: usize,
}

impl std::fmt::Debug for ChargedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChargedBuffer").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Drop for ChargedBuffer {
    fn drop(&mut self) {
        self.engine.release_buffers(self.charged);
    }
}

impl ChargedBuffer {
    /// Makes room for `more` bytes of a value that ends at `len`; false if there is no memory.
    fn grow(&mut self, more: usize, len: usize) -> bool {
        let needed = self.bytes.len() + more;
        if needed <= self.charged {
            return true;
        }
        let capacity = needed.max(2 * self.charged).max(GROWTH_MIN).min(len);
        if !self.engine.charge_body(capacity - self.charged) {
            return false;
        }
        self.charged = capacity;
        // All addresses at once, so that growing leaves no garbage behind; a page becomes resident,
        // and is charged, only when bytes arrive for it.
        self.bytes.capacity() >= len || self.bytes.try_reserve_exact(len).is_ok()
    }
}

impl Body {
    /// Takes as much of value and trailer as there is; false if there is no memory for it.
    fn fill(&mut self, input: &mut InputBuffer<'_>) -> bool {
        let missing = self.announced.value.saturating_sub(self.filled);
        let bytes = &input.bytes()[..input.bytes().len().min(missing)];
        match &mut self.memory {
            Memory::Buffer(buffer) => {
                if !buffer.grow(bytes.len(), self.announced.value) {
                    return false;
                }
                buffer.bytes.extend_from_slice(bytes);
            }
            Memory::Large(large) => {
                let place = &mut large.bytes_mut()[self.filled.min(self.announced.value)..];
                place[..bytes.len()].copy_from_slice(bytes);
            }
        }
        self.filled += bytes.len();
        input.consume(bytes.len());
        if self.filled >= self.announced.value {
            let at = self.filled - self.announced.value;
            let missing = self.announced.trailer - at;
            let bytes = &input.bytes()[..input.bytes().len().min(missing)];
            self.trailer[at..at + bytes.len()].copy_from_slice(bytes);
            self.filled += bytes.len();
            input.consume(bytes.len());
        }
        true
    }

    /// How many bytes of value and trailer have not arrived.
    fn missing(&self) -> usize {
        self.announced.value + self.announced.trailer - self.filled
    }

    fn has_good_trailer(&self) -> bool {
        self.trailer[..self.announced.trailer] == b"\r\n"[..self.announced.trailer]
    }
}

impl Worker {
    /// Begins to receive a value, unless it is short enough to be waited for. `keys` are those of
    /// the request.
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
                connection.withhold_output(&mut x, start, D::not_kept(request), false);
                input.consume(header);
                connection.state = State::Swallow(value + trailer);
                return Step::Next;
            }
        }
        if header + value + trailer <= HELD_MAX {
            return Step::Stop(Flow::Read);
        }
        let engine = self.session.engine();
        let memory = if value > engine.large_value_threshold() {
            match self.execution(output).settle(self.session.large_value(keys.first(), value)) {
                Err(Unready::Again) => return Step::Stop(Flow::Park),
                Ok(Some(large)) => Memory::Large(large),
                Ok(None) | Err(Unready::Refused(_)) => {
                    let mut x = self.execution(output);
                    if let Executed::Again = D::no_memory(&mut x, request, keys) {
                        return Step::Stop(Flow::Park);
                    }
                    connection.withhold_output(&mut x, start, D::not_kept(request), false);
                    input.consume(header);
                    connection.state = State::Swallow(value + trailer);
                    return Step::Next;
                }
            }
        } else {
            let engine = Arc::clone(engine);
            Memory::Buffer(ChargedBuffer { engine, bytes: Vec::new(), charged: 0 })
        };
        let body = Body {
            header: input.bytes()[..header].into(),
            memory,
            announced,
            filled: 0,
            trailer: [0; TRAILER_MAX],
        };
        input.consume(header);
        connection.state = State::Body(Box::new(body));
        Step::Next
    }

    /// Receives more of a value, and executes its request when it is complete.
    pub(super) fn body<D: Dialect>(
        &self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        let State::Body(body) = &mut connection.state else { return Step::Next };
        let received = body.fill(input);
        if received && body.missing() > 0 {
            return Step::Stop(Flow::Read);
        }
        let mut keys = KeyBatch::new(&self.session, Vec::new());
        let parsed = D::parse(&body.header, &mut keys);
        let keys = keys.into_inner();
        let Parse::NeedValue { request, .. } = parsed else {
            // It was a header when the value began.
            return Step::Stop(Flow::Close);
        };
        let start = output.len();
        let mut x = self.execution(output);
        if !received {
            let missing = body.missing();
            if let Executed::Again = D::no_memory(&mut x, &request, &keys) {
                return Step::Stop(Flow::Park);
            }
            self.counters.buffers_refused.bump();
            let repair = D::not_kept(&request);
            connection.state = State::Swallow(missing);
            connection.withhold_output(&mut x, start, repair, false);
            return Step::Next;
        }
        if !body.has_good_trailer() {
            D::bad_trailer(&mut x, &request);
            connection.state = State::Ready;
            return Step::Next;
        }
        let value = match &mut body.memory {
            Memory::Buffer(buffer) => Value::Bytes(&buffer.bytes),
            Memory::Large(large) => Value::Large(large),
        };
        let executed = D::execute(&mut x, &request, &keys, Some(value));
        match executed {
            Executed::Again => Step::Stop(Flow::Park),
            Executed::Close => Step::Stop(Flow::Close),
            _ => {
                let repair = D::not_kept(&request);
                connection.state = State::Ready;
                connection.withhold_output(&mut x, start, repair, false);
                Step::Next
            }
        }
    }
}
