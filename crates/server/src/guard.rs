//! The layer in front of the service, for every protocol: it enforces `--protocol` and keeps the
//! list behind `stats conns`, so the parsers know neither. Authentication would belong here too,
//! before a parser sees a byte.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_protocol::BINARY_MAGIC;

use crate::net::{ConnectionId, Flow, InputBuffer, OutputBuffer, Peer, Service};
use crate::settings::Protocol;

/// A connection as `stats conns` shows it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) peer: Peer,
    pub(crate) last_command: AtomicU32,
}

/// The connections of all workers. The lock is taken when a connection opens or closes, and by
/// readers.
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

    /// Returns all open connections.
    pub(crate) fn snapshot(&self) -> Vec<(ConnectionId, Arc<Registered>)> {
        self.lock().iter().map(|(id, entry)| (*id, Arc::clone(entry))).collect()
    }
}

/// The present second of a worker. The worker's clock writes it once per turn, and its guard reads
/// it.
pub(crate) type Now = Arc<AtomicU32>;

/// The layer around the service of one worker.
pub(crate) struct Guard<S> {
    service: S,
    registry: Arc<Registry>,
    protocol: Protocol,
    now: Now,
}

/// A connection with the state that this layer keeps for it.
pub(crate) struct Guarded<C> {
    connection: C,
    id: ConnectionId,
    entry: Arc<Registered>,
    /// True once its first bytes were checked for an allowed protocol and for HTTP.
    greeted: bool,
}

/// The first bytes of HTTP requests. memcached's commands are in lower case.
const HTTP: [&[u8]; 6] = [b"OPTIONS /", b"DELETE /", b"POST /", b"HEAD /", b"GET /", b"PUT /"];

impl<S> Guard<S> {
    pub(crate) fn new(service: S, registry: Arc<Registry>, protocol: Protocol, now: Now) -> Self {
        Guard { service, registry, protocol, now }
    }

    /// Returns true if a connection may begin with this byte.
    fn admits(&self, first: u8) -> bool {
        match self.protocol {
            Protocol::Auto => true,
            Protocol::Ascii => first != BINARY_MAGIC,
            Protocol::Binary => first == BINARY_MAGIC,
        }
    }
}

impl<S: Service> Service for Guard<S> {
    type Connection = Guarded<S::Connection>;

    fn turn(&mut self) {
        self.service.turn();
    }

    #[inline]
    fn lingers(&mut self) -> Option<Duration> {
        self.service.lingers()
    }

    #[inline]
    fn polls(&mut self) -> bool {
        self.service.polls()
    }

    fn sleep(&mut self) {
        self.service.sleep();
    }

    fn wakes_within(&self) -> Option<Duration> {
        self.service.wakes_within()
    }

    fn keeps(&self, guarded: &Self::Connection) -> usize {
        self.service.keeps(&guarded.connection)
    }

    fn can_give_up(&self, guarded: &Self::Connection) -> bool {
        self.service.can_give_up(&guarded.connection)
    }

    fn gives_up(&mut self, guarded: &mut Self::Connection) -> bool {
        self.service.gives_up(&mut guarded.connection)
    }

    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection {
        let last_command = AtomicU32::new(self.now.load(Relaxed));
        let entry = Arc::new(Registered { peer: peer.clone(), last_command });
        self.registry.lock().insert(id, Arc::clone(&entry));
        let connection = self.service.connect(peer, id);
        Guarded { connection, id, entry, greeted: false }
    }

    #[inline]
    fn foresee<'i>(&mut self, inputs: impl Iterator<Item = &'i [u8]>) {
        self.service.foresee(inputs);
    }

    #[inline]
    fn process(
        &mut self,
        guarded: &mut Self::Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        if !guarded.greeted
            && let Some(first) = input.bytes().first()
        {
            if !self.admits(*first) {
                return Flow::Close;
            }
            guarded.greeted = true;
            if HTTP.iter().any(|http| input.bytes().starts_with(http)) {
                self.registry.http.fetch_add(1, Relaxed);
            }
        }
        guarded.entry.last_command.store(self.now.load(Relaxed), Relaxed);
        self.service.process(&mut guarded.connection, input, output)
    }

    fn awaits(&self, guarded: &mut Self::Connection) -> bool {
        self.service.awaits(&mut guarded.connection)
    }

    fn is_idle(&self, guarded: &Self::Connection) -> bool {
        self.service.is_idle(&guarded.connection)
    }

    fn disconnect(&mut self, guarded: Self::Connection) {
        self.registry.lock().remove(&guarded.id);
        self.service.disconnect(guarded.connection);
    }
}
