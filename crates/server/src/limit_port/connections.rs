//! The connections of the limit port, with limits of their number, and of the memory and the time
//! that each may take.
//!
//! hyper serves the connections, because it can limit the length of request heads. axum's server
//! cannot.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::call::Call;
use super::{reply, request};
use crate::server::Running;

/// The largest number of connections at a time. Beyond it, a new connection replaces the one that
/// has waited longest for a request.
pub(crate) const CONNECTIONS: usize = 1024;
/// The largest number of bytes that are held of a request, and of replies that the client does not
/// read. Requests need room for the cookies of clients, which proxies pass on.
pub(super) const BUFFER: usize = 16 << 10;
/// The longest time between two complete requests of a connection. Proxies close idle connections
/// earlier.
pub(super) const SILENCE: Duration = Duration::from_secs(75);
/// The longest time that a request waits for memory, for a record that is not in memory, and for
/// the commit of its decision.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The server's state, and the channel to the worker that executes requests.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    pub(super) running: Arc<Running>,
    pub(super) calls: mpsc::Sender<Call>,
}

/// The connections of all listeners.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients(Rc<RefCell<Vec<Weak<LimitClient>>>>);

/// The state of a connection. Through it, a new connection can close an old one.
#[derive(Debug)]
struct LimitClient {
    /// True while a request is being executed.
    is_busy: Cell<bool>,
    /// Time of the last reply, or of the connect if there was no reply.
    waits_since: Cell<Instant>,
    /// Notified when the connection has to end.
    leave: Notify,
}

impl Clients {
    /// Returns the state of a new connection. Closes the connection that has waited longest if
    /// there are [`CONNECTIONS`]. Returns `None` if all of them are busy.
    fn enter(&self) -> Option<Rc<LimitClient>> {
        let mut clients = self.0.borrow_mut();
        if clients.len() >= CONNECTIONS {
            clients.retain(|client| client.strong_count() > 0);
        }
        if clients.len() >= CONNECTIONS {
            let waiting = clients.iter().enumerate().filter_map(|(at, client)| {
                let client = client.upgrade().filter(|client| !client.is_busy.get())?;
                Some((at, client))
            });
            let (at, longest) = waiting.min_by_key(|(_, client)| client.waits_since.get())?;
            longest.leave.notify_one();
            clients.swap_remove(at);
        }
        let (is_busy, waits_since) = (Cell::new(false), Cell::new(Instant::now()));
        let client = Rc::new(LimitClient { is_busy, waits_since, leave: Notify::new() });
        clients.push(Rc::downgrade(&client));
        Some(client)
    }
}

/// Accepts connections and serves them, until the port is stopped.
pub(super) async fn accept(
    mut listener: TcpListener,
    clients: Clients,
    server: Callee,
    mut stopped: watch::Receiver<Option<Instant>>,
) {
    loop {
        let stream = tokio::select! {
            // `Listener::accept` logs errors and tries again.
            (stream, _) = Listener::accept(&mut listener) => stream,
            _ = stopped.wait_for(Option::is_some) => return,
        };
        if let Some(client) = clients.enter() {
            tokio::task::spawn_local(serve(stream, client, server.clone(), stopped.clone()));
        }
    }
}

/// Serves a connection until it ends, is too slow, is replaced, or the port is stopped.
async fn serve(
    stream: TcpStream,
    client: Rc<LimitClient>,
    server: Callee,
    mut stopped: watch::Receiver<Option<Instant>>,
) {
    let service = service_fn(|request| answer(request, &client, &server));
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut stopping = false;
    loop {
        let silent = client.waits_since.get() + SILENCE;
        tokio::select! {
            // An error concerns only this client.
            _ = connection.as_mut() => return,
            () = client.leave.notified() => return,
            () = sleep_until(silent.max(Instant::now())) => {
                if client.is_busy.get() {
                    client.waits_since.set(Instant::now());
                } else if client.waits_since.get() + SILENCE <= Instant::now() {
                    return;
                }
            }
            _ = stopped.wait_for(Option::is_some), if !stopping => {
                if !client.is_busy.get() {
                    return;
                }
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Answers a request. Its body, if it has one, is not read.
async fn answer(
    request: Request<Incoming>,
    client: &LimitClient,
    server: &Callee,
) -> Result<Response, Infallible> {
    client.is_busy.set(true);
    let settings = || server.running.settings();
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let response = match request::parse(method, uri, headers, settings) {
        Ok(request) => {
            let (reply, replied) = oneshot::channel();
            let call = async {
                // Fails only if the thread is about to end.
                server.calls.send(Call { request, reply }).await.ok()?;
                replied.await.ok()
            };
            let response = timeout(PATIENCE, call).await.ok().flatten();
            response.unwrap_or_else(|| reply::late(PATIENCE))
        }
        Err(mistake) => reply::mistake(&mistake),
    };
    client.is_busy.set(false);
    client.waits_since.set(Instant::now());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_replaces_the_one_that_waits_longest() {
        let clients = Clients::default();
        let began = Instant::now();
        let inside: Vec<_> = (0..CONNECTIONS as u64)
            .map(|age| {
                let client = clients.enter().unwrap();
                client.waits_since.set(began + Duration::from_secs(age));
                client
            })
            .collect();
        inside[0].is_busy.set(true);
        inside[1].waits_since.set(began + SILENCE);
        let has_to_leave = |at: usize| {
            let leave = pin!(inside[at].leave.notified());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            Future::poll(leave, &mut context).is_ready()
        };
        let newest = clients.enter().unwrap();
        assert!(has_to_leave(2));
        assert!(![0, 1, 3].into_iter().any(has_to_leave));
        // A busy connection is never replaced.
        inside.iter().chain([&newest]).for_each(|client| client.is_busy.set(true));
        assert!(clients.enter().is_none());
        drop(newest);
        assert!(clients.enter().is_some());
    }
}
