//! The event loop: sockets in, bytes out, one loop per worker. What the bytes mean is the
//! [`Service`]'s business, so the same loops carry the server and the responder of the lab that
//! only answers.

use std::net::SocketAddr;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client of the Unix socket.
    Unix,
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything that could be executed was; more input is needed.
    Read,
    /// The output limit is reached: call again when the client has read.
    Drain,
    /// An answer is waited for: call again when the worker's waker was woken. No input is read
    /// meanwhile.
    Park,
    /// Send what is in the output, then close.
    Close,
}

/// The unconsumed bytes of a connection, for the length of one [`Service::process`] call. What is
/// left unconsumed is kept and comes again, with more behind it.
pub trait Input {
    /// All unconsumed bytes.
    fn bytes(&self) -> &[u8];
    /// Forgets the first `n` bytes.
    fn consume(&mut self, n: usize);
}

/// What the loops call. One service per worker, on the worker's thread.
pub trait Service {
    /// State of one connection.
    type Connection;

    /// A turn of the loop begins: the wait for events has ended.
    fn turn(&mut self);
    /// The loop is about to block in the kernel.
    fn sleep(&mut self);
    /// A client has connected.
    fn connect(&mut self, peer: Peer, id: ConnectionId) -> Self::Connection;
    /// New input has arrived, the output has drained after [`Flow::Drain`], or the waker was woken
    /// after [`Flow::Park`].
    fn process(
        &mut self,
        connection: &mut Self::Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow;
    /// The connection has ended, whatever the reason.
    fn disconnect(&mut self, connection: Self::Connection);
}
