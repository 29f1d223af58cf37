//! The connections of all workers, for `stats conns` and the admin page. Only one worker writes to
//! the entry of a connection. So plain stores suffice, which cost less than atomic additions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_engine::UnixSeconds;

use crate::net::{ConnectionId, Counter, Peer};
use crate::waits::Waits;

/// The largest number of entries that a reader copies each time it takes the lock of the
/// [`Registry`].
const COPIED: usize = 128;

/// Returns the address of a client as text.
pub(crate) fn address_of(peer: &Peer) -> String {
    match peer {
        Peer::Tcp { from, .. } => from.to_string(),
        // Clients of a Unix socket have no address.
        Peer::Unix => "unix".to_owned(),
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    /// The client has sent nothing yet, so its protocol is unknown.
    Undecided,
    Text,
    Binary,
}

impl ClientProtocol {
    /// All protocols with their names, in the order of their numbers.
    pub(crate) const ALL: [(ClientProtocol, &'static str); 3] = [
        (ClientProtocol::Undecided, "none yet"),
        (ClientProtocol::Text, "text"),
        (ClientProtocol::Binary, "binary"),
    ];

    pub(crate) fn name(self) -> &'static str {
        ClientProtocol::ALL[self as usize].1
    }
}

/// What a connection has begun to receive or to send, but not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    Nothing,
    /// A request has arrived in part.
    Request,
    /// A reply was sent in part.
    Reply,
}

impl Unfinished {
    const ALL: [Unfinished; 3] = [Unfinished::Nothing, Unfinished::Request, Unfinished::Reply];
}

/// The state of a connection that other threads may read. Only the connection's worker writes to
/// it. The fields that a worker writes whenever it serves the connection stand together at the
/// beginning. The fields that never change stand at the end. With the counts of its `Arc` and the
/// allocator's header, an entry takes 128 bytes of heap, so the counts of two connections share no
/// cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Registered {
    /// Time at which the worker last processed input or output of this connection, in seconds.
    last_command: AtomicU32,
    /// Memory that is held for the connection, in bytes: buffers of the event loop, and the part of
    /// a value that has arrived.
    kept: AtomicU32,
    /// Number of input bytes that the worker has consumed since the connection was opened.
    received: Counter,
    /// Number of bytes of replies that the worker has written since the connection was opened. Some
    /// of them may still be in a buffer.
    sent: Counter,
    /// Number of answered commands. Commands are counted only while latencies are measured.
    commands: Counter,
    /// The reasons for which the connection waits now, as the bits of [`Waits`].
    waits: AtomicU8,
    protocol: AtomicU8,
    /// 1 if replies are buffered because the client does not read them, otherwise 0.
    is_blocked: AtomicU8,
    unfinished: AtomicU8,
    pub(crate) since: UnixSeconds,
    pub(crate) peer: Peer,
}

// Every connection takes this memory in addition to its socket and the worker's state for it.
const _: () = assert!(size_of::<Registered>() <= 104);

impl Registered {
    pub(crate) fn new(peer: Peer, now: UnixSeconds) -> Registered {
        Registered {
            last_command: AtomicU32::new(now),
            kept: AtomicU32::new(0),
            received: Counter::default(),
            sent: Counter::default(),
            commands: Counter::default(),
            waits: AtomicU8::new(0),
            protocol: AtomicU8::new(ClientProtocol::Undecided as u8),
            is_blocked: AtomicU8::new(0),
            unfinished: AtomicU8::new(Unfinished::Nothing as u8),
            since: now,
            peer,
        }
    }

    /// Records a call of the service at `now` that consumed `received` bytes and wrote `sent`
    /// bytes.
    #[inline]
    pub(crate) fn called(&self, now: UnixSeconds, received: usize, sent: usize) {
        self.last_command.store(now, Relaxed);
        self.received.add(received as u64);
        self.sent.add(sent as u64);
    }

    /// Counts answered commands.
    #[inline]
    pub(crate) fn answered(&self, commands: u32) {
        self.commands.add(commands.into());
    }

    /// Publishes what the connection waits for.
    pub(crate) fn set_waits(&self, waits: Waits) {
        self.waits.store(waits.bits(), Relaxed);
    }

    pub(crate) fn set_protocol(&self, protocol: ClientProtocol) {
        self.protocol.store(protocol as u8, Relaxed);
    }

    /// Publishes the memory that is held for the connection, in bytes.
    pub(crate) fn set_kept(&self, bytes: usize) {
        self.kept.store(bytes.try_into().unwrap_or(u32::MAX), Relaxed);
    }

    /// Publishes whether the client fails to read its replies.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked.into(), Relaxed);
    }

    pub(crate) fn set_unfinished(&self, unfinished: Unfinished) {
        self.unfinished.store(unfinished as u8, Relaxed);
    }

    pub(crate) fn last_command(&self) -> UnixSeconds {
        self.last_command.load(Relaxed)
    }

    pub(crate) fn kept(&self) -> u32 {
        self.kept.load(Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.get()
    }

    pub(crate) fn commands(&self) -> u64 {
        self.commands.get()
    }

    pub(crate) fn waits(&self) -> Waits {
        Waits::of_bits(self.waits.load(Relaxed))
    }

    pub(crate) fn protocol(&self) -> ClientProtocol {
        let known = self.protocol.load(Relaxed);
        ClientProtocol::ALL
            .get(usize::from(known))
            .map_or(ClientProtocol::Undecided, |(spoken, _)| *spoken)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn unfinished(&self) -> Unfinished {
        let known = self.unfinished.load(Relaxed);
        Unfinished::ALL.get(usize::from(known)).copied().unwrap_or(Unfinished::Nothing)
    }
}

/// The connections of all workers. Workers take the lock when a connection opens or closes. Readers
/// take the lock to copy at most [`COPIED`] entries.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<BTreeMap<ConnectionId, Arc<Registered>>>,
    /// Number of connections that began with an HTTP request.
    pub(crate) http: AtomicU64,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, Arc<Registered>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(crate) fn add(&self, id: ConnectionId, entry: Registered) -> Arc<Registered> {
        let entry = Arc::new(entry);
        self.lock().insert(id, Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove(&self, id: ConnectionId) {
        self.lock().remove(&id);
    }

    /// Calls `visit` with every open connection, in the order of their ids. `visit` runs without
    /// the lock, so workers may open and close connections meanwhile.
    pub(crate) fn each(&self, mut visit: impl FnMut(ConnectionId, &Registered)) {
        let mut from = ConnectionId::new(0);
        let mut copies = Vec::with_capacity(COPIED);
        loop {
            let copied = |(id, entry): (&ConnectionId, &Arc<_>)| (*id, Arc::clone(entry));
            copies.extend(self.lock().range(from..).take(COPIED).map(copied));
            let is_last = copies.len() < COPIED;
            for (id, entry) in copies.drain(..) {
                visit(id, &entry);
                from = ConnectionId::new(id.get() + 1);
            }
            if is_last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_is_visited_once() {
        let registry = Registry::default();
        for number in (1..=3 * COPIED as u64).rev() {
            registry.add(ConnectionId::new(number), Registered::new(Peer::Unix, 7));
        }
        registry.remove(ConnectionId::new(9));
        let mut seen = Vec::new();
        registry.each(|id, entry| {
            assert_eq!((entry.last_command(), entry.protocol()), (7, ClientProtocol::Undecided));
            seen.push(id.get());
        });
        let expected: Vec<_> = (1..=3 * COPIED as u64).filter(|number| *number != 9).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn connections_open_and_close_during_a_visit() {
        let registry = Registry::default();
        (1..=3).for_each(|number| {
            registry.add(ConnectionId::new(number), Registered::new(Peer::Unix, 7));
        });
        let mut seen = 0;
        registry.each(|id, _| {
            assert!(registry.entries.try_lock().is_ok());
            registry.remove(id);
            seen += 1;
        });
        assert_eq!((seen, registry.lock().len()), (3, 0));
    }

    #[test]
    fn sizes_of_buffers_saturate() {
        let entry = Registered::new(Peer::Unix, 7);
        entry.set_kept(usize::MAX);
        assert_eq!(entry.kept(), u32::MAX);
        entry.set_kept(5);
        assert_eq!(entry.kept(), 5);
    }
}
