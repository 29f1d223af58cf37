//! The connections of the limit port, with limits of their number, and of the memory and the time
//! that each may take.
//!
//! hyper serves the connections, because it can limit the length of request heads. axum's server
//! cannot. The first bytes of a connection say whether it speaks HTTP/1 (`request.rs`) or HTTP/2
//! (`envoy`).

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Version};
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::call::{Callee, LimitRequest, PATIENCE};
use super::request::HttpRequest;
use super::{envoy, reply, request};

/// The largest number of connections at a time. At this number, a new connection replaces the one
/// that has waited longest for a request.
pub(crate) const CONNECTIONS: usize = 1024;
/// The largest number of bytes that a connection keeps of a request, and also of replies that the
/// client has not read. Requests may be this long, because proxies pass on the cookies of their
/// clients.
pub(super) const BUFFER: usize = 16 << 10;
/// The largest length of the headers of an HTTP/2 request, in bytes, with 32 bytes added for each
/// header. With tracing, Envoy copies headers of its clients into calls. By default Envoy accepts
/// 60 KB of headers. So the limit is higher: a call with longer headers gets the status 431, which
/// Envoy treats as an error of this service. Envoy would then let its client's request pass.
pub(super) const HEADERS: u32 = 72 << 10;
/// The largest number of requests at a time of an HTTP/2 connection. Envoy opens another connection
/// for more.
pub(super) const STREAMS: u32 = 8;
/// The flow-control window of an HTTP/2 connection, in bytes. HTTP/2 allows no smaller window for a
/// connection.
const WINDOW: u32 = 65_535;
/// A connection is closed after this time without a request. Few clients notice: proxies close idle
/// connections earlier, and Envoy connects again. The time is longer than [`PATIENCE`], the time in
/// which the body of a request must arrive.
pub(super) const SILENCE: Duration = Duration::from_secs(75);
const _: () = assert!(SILENCE.as_secs() > PATIENCE.as_secs());

/// Time after `graceful_shutdown` at which an idle connection is closed if it has not ended by
/// itself.
const GOODBYE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 1000 });

/// The connections of all listeners.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients(Rc<RefCell<Vec<Weak<LimitClient>>>>);

/// The state of a connection. When there are too many connections, [`Clients::enter`] uses these
/// states to choose one connection and close it.
#[derive(Debug)]
struct LimitClient {
    /// Number of requests that are being executed.
    executing: Cell<usize>,
    /// Number of requests that are being executed or whose bodies are arriving.
    begun: Cell<usize>,
    /// Time at which a request last began or ended; the time of the connect if there was no request
    /// yet.
    waits_since: Cell<Instant>,
    /// Notified when the connection has to end.
    leave: Notify,
}

impl Clients {
    /// Returns the state of a new connection. If there are already [`CONNECTIONS`] connections,
    /// closes the one that has waited longest for a request. Returns `None` if all connections are
    /// busy.
    fn enter(&self) -> Option<Rc<LimitClient>> {
        let mut clients = self.0.borrow_mut();
        if clients.len() >= CONNECTIONS {
            clients.retain(|client| client.strong_count() > 0);
        }
        if clients.len() >= CONNECTIONS {
            let waiting = clients.iter().enumerate().filter_map(|(at, client)| {
                let client = client.upgrade().filter(|client| !client.is_busy())?;
                Some((at, client))
            });
            let (at, longest) = waiting.min_by_key(|(_, client)| client.waits_since.get())?;
            longest.leave.notify_one();
            clients.swap_remove(at);
        }
        let client = Rc::new(LimitClient {
            executing: Cell::new(0),
            begun: Cell::new(0),
            waits_since: Cell::new(Instant::now()),
            leave: Notify::new(),
        });
        clients.push(Rc::downgrade(&client));
        Some(client)
    }
}

impl LimitClient {
    fn is_busy(&self) -> bool {
        self.executing.get() > 0
    }
}

/// Counts a request of a client until this value is dropped. So the request is also uncounted if it
/// ends early because the client has left.
struct Counted {
    client: Rc<LimitClient>,
    count: fn(&LimitClient) -> &Cell<usize>,
}

impl Counted {
    fn begin(client: &Rc<LimitClient>, count: fn(&LimitClient) -> &Cell<usize>) -> Counted {
        count(client).set(count(client).get() + 1);
        Counted { client: Rc::clone(client), count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = (self.count)(&self.client);
        count.set(count.get() - 1);
        self.client.waits_since.set(Instant::now());
    }
}

/// Spawns the tasks of HTTP/2 streams on the limit port's thread.
#[derive(Clone, Copy, Debug)]
struct OnThisThread;

impl<F> hyper::rt::Executor<F> for OnThisThread
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
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
    let service = {
        let client = Rc::clone(&client);
        service_fn(move |request| answer(request, Rc::clone(&client), server.clone()))
    };
    let mut protocols = auto::Builder::new(OnThisThread);
    protocols.http1().header_read_timeout(None).max_buf_size(BUFFER);
    protocols
        .http2()
        .max_concurrent_streams(STREAMS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(envoy::BODY as u32)
        .max_header_list_size(HEADERS)
        .max_send_buf_size(BUFFER);
    let mut connection = pin!(protocols.serve_connection(TokioIo::new(stream), service));
    // True once the connection accepts no more requests.
    let mut leaving = false;
    let mut stopping = false;
    // The time at which a replaced connection is closed even if it has unanswered requests.
    let mut deadline = None;
    loop {
        let patience = if leaving { GOODBYE } else { SILENCE };
        let silent = client.waits_since.get() + patience;
        tokio::select! {
            // The connection has ended. An error concerns only its client.
            _ = connection.as_mut() => return,
            () = client.leave.notified() => {
                // A request may have begun since another connection chose this one. Its units may
                // be taken, so it must get its reply.
                if !client.is_busy() {
                    return;
                }
                leaving = true;
                deadline = Some(Instant::now() + PATIENCE + GOODBYE);
                client.waits_since.set(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(deadline.map_or(silent, |end: Instant| end.min(silent))) => {
                if deadline.is_some_and(|end| end <= Instant::now()) {
                    return;
                }
                // A connection that accepts no more requests stays open until those that have begun
                // are answered. `PATIENCE` bounds the time of each.
                if client.is_busy() || leaving && client.begun.get() > 0 {
                    client.waits_since.set(Instant::now());
                } else if client.waits_since.get() + patience <= Instant::now() {
                    if leaving {
                        return;
                    }
                    // Tells an HTTP/2 client that its next request needs another connection.
                    leaving = true;
                    client.waits_since.set(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
            }
            _ = stopped.wait_for(Option::is_some), if !stopping => {
                // The replies to finished requests may not be written yet, so the connection is not
                // closed at once.
                (stopping, leaving) = (true, true);
                client.waits_since.set(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    client: Rc<LimitClient>,
    server: Callee,
) -> Result<Response, Infallible> {
    // Even a request whose body has not arrived shows that its client is active.
    client.waits_since.set(Instant::now());
    let _begun = Counted::begin(&client, |client| &client.begun);
    let begin = || Counted::begin(&client, |client| &client.executing);
    Ok(match request.version() {
        // A connection is not busy while a body arrives. Otherwise, bodies that never end would
        // keep new connections from replacing it.
        Version::HTTP_2 => envoy::answer(request, &server, begin).await,
        _ => {
            let _executing = begin();
            answer_http(&request, &server).await
        }
    })
}

/// Answers a request of HTTP/1. Its body, if it has one, is not read.
async fn answer_http(request: &Request<Incoming>, server: &Callee) -> Response {
    let settings = || server.running.settings();
    let parsed = request::parse(request.method(), request.uri(), request.headers(), settings);
    match parsed {
        Ok(request) => execute(&request, server).await,
        Err(mistake) => reply::mistake(&mistake),
    }
}

async fn execute(request: &HttpRequest, server: &Callee) -> Response {
    let policies = server.running.policies();
    let Some(policy) = policies.shared(&request.policy) else { return reply::unknown_policy() };
    if request.key_of_header && policy.prefix.is_none() {
        return reply::no_prefix();
    }
    match LimitRequest::new(&policies, Arc::clone(policy), &request.key, request.action) {
        Ok(call) => reply::of(request, policy, &server.call(call, Instant::now() + PATIENCE).await),
        Err(why) => reply::unfit_key(&why),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::sync::mpsc;
    use tokio::task::{LocalSet, spawn_local, yield_now};
    use tokio::time::timeout;

    use super::*;
    use crate::limit_port::envoy::tests::calls::{PREFACE, head, no_settings};
    use crate::limit_port::tests::{connect, server};

    /// A connection must not be closed while the body of its request arrives, or just after it
    /// got a reply.
    #[test]
    fn every_request_of_a_proxy_ends_the_silence() {
        let server = server(Vec::new());
        let (calls, _called) = mpsc::channel(1);
        let callee = Callee { running: Arc::clone(&server.running), calls };
        let (_stop, stopped) = watch::channel(None);
        let clients = Clients::default();
        let first = || clients.0.borrow().first().and_then(Weak::upgrade);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stream = connect(listener.local_addr().unwrap());
            stream.write_all(&[PREFACE, &no_settings()].concat()).unwrap();
            spawn_local(accept(listener, clients.clone(), callee, stopped));
            let client = loop {
                match first() {
                    Some(client) => break client,
                    None => yield_now().await,
                }
            };
            let grpc = "application/grpc";
            // The body of the first request does not arrive. The other requests need no body.
            let requests = [(envoy::PATH, grpc), ("/", grpc), (envoy::PATH, "text/plain")];
            for (at, (path, kind)) in (0..).zip(requests) {
                let past = Instant::now() - SILENCE / 2;
                client.waits_since.set(past);
                stream.write_all(&head(2 * at + 1, path, kind)).unwrap();
                let noticed = async {
                    while client.waits_since.get() == past {
                        yield_now().await;
                    }
                };
                let noticed = timeout(Duration::from_secs(30), noticed).await;
                assert!(noticed.is_ok(), "{path} {kind}");
            }
        });
    }

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
        inside[0].executing.set(1);
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
        inside.iter().chain([&newest]).for_each(|client| client.executing.set(1));
        assert!(clients.enter().is_none());
        drop(newest);
        assert!(clients.enter().is_some());
    }
}
