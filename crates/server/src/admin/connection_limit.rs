//! Limits on the connections of the admin page: their number, and how long a connection may stay
//! silent. HTTP/2 is refused, so a connection has one request at a time. The page shares the
//! process's file descriptors with the data port. So at the limit, a new connection replaces the
//! connection that has been silent for longest. Connections with a running action are replaced
//! last. Otherwise any client that can connect could cut off an operator from the result of an
//! action.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

/// The largest number of connections at a time.
const CONNECTIONS: usize = 32;
/// A connection that neither sends nor receives a byte for this time is closed. Its client sends no
/// request, sends only a part of one, or does not read a reply. Monitors usually send requests at
/// shorter intervals than this.
const SILENCE: Duration = Duration::from_secs(75);
/// The first bytes of an HTTP/2 connection. axum would accept HTTP/2, because the limit port needs
/// that part of hyper. Then each connection could have 200 requests at a time, each with a reply in
/// memory.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The listener of the admin page, with its limits.
#[derive(Debug)]
pub(super) struct AdminListener {
    listener: TcpListener,
    connections: Vec<Weak<ConnectionSlot>>,
    silence: Duration,
}

/// The state that [`AdminListener`] shares with a connection. The listener uses it to end the
/// connection.
#[derive(Debug)]
struct ConnectionSlot {
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// Time at which the connection last received or sent a byte; before the first byte, the time
    /// at which it was opened.
    moved: Instant,
    /// Number of actions that are being executed for the connection.
    actions: usize,
    must_close: bool,
    waker: Option<Waker>,
}

impl ConnectionSlot {
    fn new() -> ConnectionSlot {
        let state = SlotState { moved: Instant::now(), actions: 0, must_close: false, waker: None };
        ConnectionSlot { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rank of the connection. The connection with the least rank is replaced first.
    fn rank(&self) -> (bool, Instant) {
        let state = self.lock();
        (state.actions > 0, state.moved)
    }

    fn close(&self) {
        let mut state = self.lock();
        state.must_close = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn must_close(&self, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.waker = Some(context.waker().clone());
        state.must_close
    }
}

impl AdminListener {
    pub(super) fn new(listener: TcpListener) -> AdminListener {
        AdminListener { listener, connections: Vec::new(), silence: SILENCE }
    }

    #[cfg(test)]
    fn with_silence(self, silence: Duration) -> AdminListener {
        AdminListener { silence, ..self }
    }

    fn admit(&mut self, stream: TcpStream) -> AdminConnection {
        self.connections.retain(|slot| slot.strong_count() > 0);
        while self.connections.len() >= CONNECTIONS {
            let slots = self.connections.iter().map(Weak::upgrade).enumerate();
            // A connection that has just ended has the least rank, `None`.
            let silent = slots.min_by_key(|(_, slot)| slot.as_ref().map(|slot| slot.rank()));
            let Some((at, slot)) = silent else { break };
            self.connections.swap_remove(at);
            slot.iter().for_each(|slot| slot.close());
        }
        let slot = Arc::new(ConnectionSlot::new());
        self.connections.push(Arc::downgrade(&slot));
        let silence = self.silence;
        let over = Box::pin(tokio::time::sleep(silence));
        AdminConnection { stream, slot, silence, over, http_2: Some(HTTP_2) }
    }
}

impl Listener for AdminListener {
    type Io = AdminConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (self.admit(stream), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client of the admin page.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    pub(super) address: SocketAddr,
    slot: Weak<ConnectionSlot>,
}

impl AdminClient {
    /// Returns a guard. While the guard lives, this connection is replaced only after all
    /// connections without such a guard.
    pub(super) fn begin_action(&self) -> ActionGuard {
        if let Some(slot) = self.slot.upgrade() {
            slot.lock().actions += 1;
        }
        ActionGuard(Weak::clone(&self.slot))
    }

    #[cfg(test)]
    pub(super) fn at(address: SocketAddr) -> AdminClient {
        AdminClient { address, slot: Weak::new() }
    }
}

impl Connected<IncomingStream<'_, AdminListener>> for AdminClient {
    fn connect_info(stream: IncomingStream<'_, AdminListener>) -> AdminClient {
        AdminClient { address: *stream.remote_addr(), slot: Arc::downgrade(&stream.io().slot) }
    }
}

/// The guard that [`AdminClient::begin_action`] returns. While it lives, its connection is replaced
/// last.
#[derive(Debug)]
pub(super) struct ActionGuard(Weak<ConnectionSlot>);

impl Drop for ActionGuard {
    fn drop(&mut self) {
        if let Some(slot) = self.0.upgrade() {
            slot.lock().actions -= 1;
        }
    }
}

/// A connection to the admin page.
#[derive(Debug)]
pub(super) struct AdminConnection {
    stream: TcpStream,
    slot: Arc<ConnectionSlot>,
    silence: Duration,
    over: Pin<Box<Sleep>>,
    /// The rest of [`HTTP_2`] if all bytes that were received are its beginning; otherwise `None`.
    http_2: Option<&'static [u8]>,
}

impl AdminConnection {
    /// `moved` is the result of an attempt to receive or send bytes. Returns an error if the
    /// connection was silent for too long, or if a new connection replaces it. Otherwise returns
    /// `moved`.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.slot.must_close(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if moved.is_ready() {
            let now = Instant::now();
            self.slot.lock().moved = now;
            self.over.as_mut().reset(now + self.silence);
            return moved;
        }
        self.over.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Returns true if the connection speaks HTTP/2. `received` are the next bytes that it has
    /// received.
    fn speaks_http_2(&mut self, received: &[u8]) -> bool {
        if let Some(rest) = self.http_2 {
            let common = received.len().min(rest.len());
            self.http_2 = (received[..common] == rest[..common]).then_some(&rest[common..]);
        }
        self.http_2.is_some_and(<[u8]>::is_empty)
    }
}

impl AsyncRead for AdminConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let mut moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.speaks_http_2(&buffer.filled()[before..]) {
            moved = Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        self.judge(context, moved)
    }
}

impl AsyncWrite for AdminConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, moved)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use tokio::sync::oneshot;

    /// Starts a server in a thread. Dropping the returned sender stops the server.
    fn serve(silence: Duration) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let limited = AdminListener::new(TcpListener::from_std(listener).unwrap());
                // The reply to `/stay` is sent only after a request for `/go`.
                let go = Arc::new(tokio::sync::Notify::new());
                let goes = Arc::clone(&go);
                let stay = async move |ConnectInfo(visitor): ConnectInfo<AdminClient>| {
                    let _guard = visitor.begin_action();
                    goes.notified().await;
                    "hello"
                };
                let router = Router::new()
                    .route("/", get(|| async { "hello" }))
                    .route("/stay", get(stay))
                    .route("/go", get(async move || go.notify_one()));
                let router = router.into_make_service_with_connect_info::<AdminClient>();
                tokio::select! {
                    _ = ended => {}
                    _ = axum::serve(limited.with_silence(silence), router) => {}
                }
            });
        });
        (address, end)
    }

    fn connect(address: SocketAddr) -> Client {
        let client = Client::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client
    }

    fn ask(client: &mut Client) {
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        hear(client);
    }

    fn hear(client: &mut Client) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"hello") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
    }

    fn is_closed(client: &mut Client) -> bool {
        matches!(client.read(&mut [0]), Ok(0) | Err(_))
    }

    #[test]
    fn a_new_connection_replaces_the_one_silent_for_longest() {
        let (address, _end) = serve(SILENCE);
        let mut first: Vec<Client> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        for client in &mut first {
            ask(client);
        }
        // The oldest connection sends another request, so it must stay.
        ask(&mut first[0]);
        let mut others: Vec<Client> = (0..5).map(|_| connect(address)).collect();
        for client in &mut others {
            client.write_all(b"GET / HTT").unwrap();
        }
        for client in &mut first[1..6] {
            assert!(is_closed(client));
        }
        ask(&mut first[0]);
        for client in &mut first[6..] {
            ask(client);
        }
    }

    #[test]
    fn a_connection_with_an_action_is_replaced_last() {
        let (address, _end) = serve(SILENCE);
        let mut acting = connect(address);
        acting.write_all(b"GET /stay HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // The reply to this request shows that the server has received the request for `/stay`.
        ask(&mut connect(address));
        let mut others: Vec<Client> = (0..2 * CONNECTIONS).map(|_| connect(address)).collect();
        others.iter_mut().rev().take(CONNECTIONS - 1).for_each(ask);
        others[2 * CONNECTIONS - 1].write_all(b"GET /go HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        hear(&mut acting);
        // After the action, the connection is replaced like any other.
        let mut later: Vec<Client> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        later.iter_mut().for_each(ask);
        assert!(is_closed(&mut acting));
    }

    /// A connection must not have several requests at a time.
    #[test]
    fn http_2_is_refused() {
        let (address, _end) = serve(SILENCE);
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let mut whole = connect(address);
        whole.write_all(&[HTTP_2, &settings].concat()).unwrap();
        assert!(is_closed(&mut whole));
        let mut parts = connect(address);
        let (start, rest) = HTTP_2.split_at(5);
        parts.write_all(start).unwrap();
        ask(&mut connect(address));
        parts.write_all(rest).unwrap();
        assert!(is_closed(&mut parts));
        // A request that only begins like HTTP/2 gets a reply.
        let mut similar = connect(address);
        similar.write_all(b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(!is_closed(&mut similar));
    }

    #[test]
    fn silent_connections_are_closed() {
        let (address, _end) = serve(Duration::from_secs(1));
        let (mut silent, mut half) = (connect(address), connect(address));
        half.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
        assert!(is_closed(&mut silent) && is_closed(&mut half));
        ask(&mut connect(address));
    }
}
