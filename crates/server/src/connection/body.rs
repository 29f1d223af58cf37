//! A value that is too long to wait in the input of its connection until it is complete. The
//! connection keeps the request's header, and collects the value as it arrives (`receive.rs`).

use super::arrivals::{Arrival, ArrivalState, Memory};
use crate::net::{Incoming, InputBuffer};
use crate::waits::Waits;
use larder_engine::LargeValue;
use std::sync::Arc;

/// The longest trailer of any protocol, in bytes. Here a *trailer* is the bytes that end a value:
/// `\r\n` in the text protocol, nothing in the binary protocol.
const TRAILER_MAX: usize = 2;

/// The lengths that the header of a storage request announces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// Length of the header, in bytes.
    pub(super) header: usize,
    /// Length of the value, in bytes.
    pub(super) value: usize,
    /// Length of the trailer behind the value, in bytes.
    pub(super) trailer: usize,
}

impl Announced {
    /// Returns the length of the whole request, in bytes.
    pub(super) fn len(&self) -> usize {
        self.header + self.value + self.trailer
    }
}

/// A value that is being received.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) header: Arc<[u8]>,
    /// The value's place (see `arrivals.rs`), or its position in the queue for a place; `None`
    /// until the first bytes of the value arrive.
    pub(super) arrival: Option<Arrival>,
    pub(super) announced: Announced,
    /// Bytes of value and trailer that have arrived.
    filled: usize,
    trailer: [u8; TRAILER_MAX],
    /// Total time for which the request waited before the connection could receive more of the
    /// value, in nanoseconds. The latencies of later requests do not include this time, because
    /// only this request waited.
    pub(super) waited_ns: u64,
    /// The reasons for the waits in `waited_ns`.
    pub(super) waited_for: Waits,
}

/// The result of an attempt to receive more of a value.
pub(super) enum Received {
    /// Value and trailer are complete.
    All,
    /// More input is needed.
    Part,
    /// The value waits for a place (see `arrivals.rs`), or for memory that is being reclaimed.
    Wait,
    /// The value gets no memory, or has lost its place. The request must be refused.
    NoMemory,
}

impl Body {
    /// Creates a value of which nothing has arrived. `header` is the header of its request.
    pub(super) fn new(header: &[u8], announced: Announced) -> Body {
        Body {
            header: header.into(),
            arrival: None,
            announced,
            filled: 0,
            trailer: [0; TRAILER_MAX],
            waited_ns: 0,
            waited_for: Waits::NONE,
        }
    }

    /// Returns the header of the request, and the length of the whole request in bytes.
    pub(super) fn request(&self) -> (Arc<[u8]>, usize) {
        (Arc::clone(&self.header), self.announced.len())
    }

    /// Returns the number of bytes that have arrived.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns true if the value waits for a place.
    pub(super) fn waits_for_place(&self) -> bool {
        self.arrival.as_ref().is_some_and(|arrival| arrival.state() == ArrivalState::Waiting)
    }

    /// Stops the value's wait for a place, so that the request is refused. Returns false if the
    /// value was not waiting for a place.
    pub(super) fn give_up(&mut self) -> bool {
        self.arrival.as_ref().is_some_and(Arrival::give_up)
    }

    /// Moves arrived bytes of the value and its trailer from the input to the memory of the value.
    /// `enter` asks for the value's place. `append` appends bytes to the value, given its
    /// memory and the number of bytes that have arrived before.
    pub(super) fn fill(
        &mut self,
        input: &mut InputBuffer<'_>,
        enter: impl FnOnce() -> Arrival,
        append: impl FnOnce(&mut Memory, usize, &[u8]) -> Received,
    ) -> Received {
        let len = self.announced.value;
        if self.filled < len {
            if input.bytes().is_empty() {
                return Received::Part;
            }
            let bytes = &input.bytes()[..input.bytes().len().min(len - self.filled)];
            let arrival = self.arrival.get_or_insert_with(enter);
            match arrival.with(|memory| append(memory, self.filled, bytes)) {
                Ok(Received::Part) => arrival.arrived(bytes.len()),
                Ok(other) => {
                    if let Received::Wait = other {
                        arrival.starved();
                    }
                    return other;
                }
                Err(ArrivalState::Waiting) => return Received::Wait,
                Err(_) => return Received::NoMemory,
            }
            self.filled += bytes.len();
            input.consume(bytes.len());
        }
        if self.filled >= len {
            let at = self.filled - len;
            let missing = self.announced.trailer - at;
            let bytes = &input.bytes()[..input.bytes().len().min(missing)];
            self.trailer[at..at + bytes.len()].copy_from_slice(bytes);
            self.filled += bytes.len();
            input.consume(bytes.len());
        }
        if self.missing() > 0 {
            return Received::Part;
        }
        if let Some(arrival) = &self.arrival {
            arrival.complete();
        }
        Received::All
    }

    /// Receives bytes of the value into its memory. Receives nothing if the value has no memory for
    /// them: no byte of it has arrived yet, it has lost its place, or the budget has no room.
    /// `grow` makes the first bytes of a large value usable, given their number. Returns the number
    /// of bytes received.
    pub(super) fn receive(
        &mut self,
        incoming: &mut Incoming<'_>,
        grow: impl FnOnce(&mut LargeValue, usize) -> bool,
    ) -> usize {
        let (filled, most) = (self.filled, self.value_missing().min(Incoming::MAX));
        let Some(arrival) = self.arrival.as_mut().filter(|_| most > 0) else { return 0 };
        let received = arrival.with(|memory| match memory {
            Memory::None => 0,
            Memory::Buffer(buffer) => buffer.receive(incoming, most),
            Memory::Large(large) => match grow(large, filled + most) {
                true => incoming.fill(&mut large.bytes_mut()[filled..filled + most]),
                false => 0,
            },
        });
        let received = received.unwrap_or(0);
        if received > 0 {
            arrival.arrived(received);
            self.filled += received;
        }
        received
    }

    /// Returns the number of bytes of the value that have not arrived.
    pub(super) fn value_missing(&self) -> usize {
        self.announced.value.saturating_sub(self.filled)
    }

    /// Returns the number of bytes of value and trailer that have not arrived.
    pub(super) fn missing(&self) -> usize {
        self.announced.value + self.announced.trailer - self.filled
    }

    pub(super) fn has_good_trailer(&self) -> bool {
        self.trailer[..self.announced.trailer] == b"\r\n"[..self.announced.trailer]
    }
}
