//! A layer between the event loop and the service. The layer sees the first bytes of every
//! connection before a parser does. It enforces `--protocol`, so the parsers need not know this
//! setting. Authentication would belong here too.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use larder_protocol::BINARY_MAGIC;

use crate::clients::Registry;
use crate::net::{ConnectionId, Flow, Incoming, InputBuffer, OutputBuffer, Peer, Service};
use crate::settings::Protocol;

/// The service of one worker, with the checks of a connection's first bytes in front of it.
pub(crate) struct Guard<S> {
    service: S,
    registry: Arc<Registry>,
    protocol: Protocol,
}

/// A connection with the state that this layer keeps for it.
pub(crate) struct Guarded<C> {
    connection: C,
    /// True once the connection's first bytes were checked for an allowed protocol and for HTTP.
    greeted: bool,
}

/// The first bytes of HTTP requests. No command begins with them, because memcached's commands are
/// in lower case.
const HTTP: [&[u8]; 6] = [b"OPTIONS /", b"DELETE /", b"POST /", b"HEAD /", b"GET /", b"PUT /"];

impl<S> Guard<S> {
    pub(crate) fn new(service: S, registry: Arc<Registry>, protocol: Protocol) -> Self {
        Guard { service, registry, protocol }
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

    fn notes_buffers(&mut self, guarded: &mut Self::Connection, input: usize, output: usize) {
        self.service.notes_buffers(&mut guarded.connection, input, output);
    }

    fn can_give_up(&self, guarded: &Self::Connection) -> bool {
        self.service.can_give_up(&guarded.connection)
    }

    fn gives_up(&mut self, guarded: &mut Self::Connection) -> bool {
        self.service.gives_up(&mut guarded.connection)
    }

    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection {
        Guarded { connection: self.service.connect(peer, id), greeted: false }
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
        self.service.process(&mut guarded.connection, input, output)
    }

    fn receive(&mut self, guarded: &mut Self::Connection, incoming: &mut Incoming<'_>) {
        self.service.receive(&mut guarded.connection, incoming);
    }

    fn awaits(&self, guarded: &mut Self::Connection) -> bool {
        self.service.awaits(&mut guarded.connection)
    }

    fn is_idle(&self, guarded: &Self::Connection) -> bool {
        self.service.is_idle(&guarded.connection)
    }

    fn disconnect(&mut self, guarded: Self::Connection) {
        self.service.disconnect(guarded.connection);
    }
}
