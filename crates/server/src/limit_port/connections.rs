//! The connections of the limit port, with limits of their number, and of the memory and the time
//! that each may take.
//!
//! hyper serves the connections, because it can limit the length of request heads. axum's server
//! cannot. The first bytes of a connection say whether it speaks HTTP/1 (`request.rs`) or HTTP/2
//! (`envoy`).
//!
//! Headers take up to seven times as much memory as they have bytes. So the task of an HTTP/2
//! connection also executes the requests of this connection. It drops their headers and trailers
//! before it waits, that is, before the thread reads another connection.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::{Request, Version};
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::{Body, Incoming};
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
/// client has not read. With HTTP/2, the limit of replies applies to each request. Requests may be
/// this long, because proxies pass on the cookies of their clients.
pub(super) const BUFFER: usize = 16 << 10;
/// The largest length of the headers of an HTTP/2 request, in bytes, with 32 bytes added for each
/// header. With tracing, Envoy copies headers of its clients into calls. By default Envoy accepts
/// 60 KB of headers. So the limit is higher: a call with longer headers gets the status 431, which
/// Envoy treats as an error of this service. Envoy would then let its client's request pass.
pub(super) const HEADERS: u32 = 72 << 10;
/// The largest number of requests at a time of an HTTP/2 connection. Envoy opens another connection
/// for more.
pub(super) const STREAMS: u32 = 8;
/// The largest number of requests of an HTTP/2 connection that the client has cancelled before they
/// were begun. One more ends the connection, and with it the other requests. By default, Envoy
/// cancels a request after 20 ms. So this number suffices if the thread is delayed by 160 ms.
pub(super) const CANCELLED: usize = 64;
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
    /// Time since which the connection waits: a request last began or ended then, or the connection
    /// opened. [`serve`] also sets it when it begins to close the connection or finds it busy.
    waits_since: Cell<Instant>,
    /// The bodies of HTTP/2 requests that are already answered. Their further frames are received
    /// and dropped. Otherwise, h2 would keep their trailers.
    answered: RefCell<Vec<Incoming>>,
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
            answered: RefCell::default(),
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

    /// Drops the frames that have arrived for the bodies of answered requests.
    fn drop_rest(&self, context: &mut Context<'_>) {
        self.answered.borrow_mut().retain_mut(|body| {
            loop {
                match Pin::new(&mut *body).poll_frame(context) {
                    Poll::Ready(Some(Ok(_))) => {}
                    // The body waits for more, has ended, or its client has cancelled the request.
                    other => return other.is_pending(),
                }
            }
        });
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

/// A future that answers one HTTP/2 request.
type Answering = Pin<Box<dyn Future<Output = ()>>>;

/// Adds the futures that hyper makes for HTTP/2 requests to the list of their connection. The list
/// is a weak reference, because these futures own executors.
#[derive(Clone)]
struct OnConnection(Weak<RefCell<Vec<Answering>>>);

impl<F> hyper::rt::Executor<F> for OnConnection
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, future: F) {
        let Some(requests) = self.0.upgrade() else { return };
        let mut future = Box::pin(future);
        // Begins the request, which drops its headers, before hyper accepts another one. Afterwards
        // `poll` polls the future with the waker of the connection's task.
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            requests.borrow_mut().push(future);
        }
    }
}

/// Polls a connection, then its requests and the bodies of answered requests, because the
/// connection may have received something for them.
fn poll<C: Future>(
    connection: Pin<&mut C>,
    requests: &RefCell<Vec<Answering>>,
    client: &LimitClient,
    context: &mut Context<'_>,
) -> Poll<C::Output> {
    let ended = connection.poll(context);
    let mut polled = requests.take();
    polled.retain_mut(|request| request.as_mut().poll(context).is_pending());
    requests.borrow_mut().append(&mut polled);
    client.drop_rest(context);
    if requests.borrow().is_empty() {
        // All replies are handed over. h2 resets the requests whose bodies have not ended, so they
        // take no place of further requests.
        client.answered.borrow_mut().clear();
    }
    ended
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
    let requests = Rc::default();
    let mut protocols = auto::Builder::new(OnConnection(Rc::downgrade(&requests)));
    protocols.http1().header_read_timeout(None).max_buf_size(BUFFER);
    protocols
        .http2()
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(CANCELLED)
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
            _ = poll_fn(|context| poll(connection.as_mut(), &requests, &client, context)) => return,
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
                // are answered. `PATIENCE` bounds the arrival of each body, and each decision.
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
        Version::HTTP_2 => {
            let (head, mut body) = request.into_parts();
            let reply = envoy::answer(head, &mut body, &server, begin).await;
            client.answered.borrow_mut().push(body);
            // hyper may accept many requests in one poll, while HTTP/2 trailers of requests that
            // are already answered arrive. `poll` drops these trailers only afterwards.
            client.drop_rest(&mut Context::from_waker(Waker::noop()));
            reply
        }
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
    use crate::limit_port::envoy::tests::calls::{PREFACE, frame, head, no_settings};
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

    /// If the headers of requests stayed in memory while the thread reads all other connections,
    /// they would take gigabytes. So one poll of a connection must begin all requests that it
    /// receives. It must also drop the trailers of requests that it has already answered.
    #[test]
    fn a_connection_drops_headers_before_another_one_is_read() {
        let server = server(Vec::new());
        let (calls, _called) = mpsc::channel(1);
        let callee = Callee { running: Arc::clone(&server.running), calls };
        let (_stop, stopped) = watch::channel(None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut proxy = connect(listener.local_addr().unwrap());
            // The bodies do not arrive. The last request needs none, so it is answered.
            let last = 2 * STREAMS - 1;
            let mut bytes = [PREFACE, &no_settings()].concat();
            for stream in (1..last).step_by(2) {
                bytes.extend(head(stream, envoy::PATH, "application/grpc"));
            }
            bytes.extend(head(last, envoy::PATH, "text/plain"));
            proxy.write_all(&bytes).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            stream.writable().await.unwrap();
            stream.readable().await.unwrap();
            let client = Clients::default().enter().unwrap();
            let mut served = pin!(serve(stream, Rc::clone(&client), callee, stopped));
            // Polls the connection once, and no other task.
            let polled = poll_fn(|context| Poll::Ready(served.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            assert_eq!(client.begun.get(), STREAMS as usize - 1);
            assert_eq!(client.answered.borrow().len(), 1);

            // A HEADERS frame that ends the headers and the stream, with an empty header `a`.
            proxy.write_all(&frame(1, 5, last, &[0, 1, b'a', 0])).unwrap();
            let ended = poll_fn(|context| {
                assert!(served.as_mut().poll(context).is_pending());
                if client.answered.borrow().is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            assert!(timeout(Duration::from_secs(30), ended).await.is_ok());
            assert_eq!(client.begun.get(), STREAMS as usize - 1);
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
