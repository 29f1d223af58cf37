//! Rate limits over HTTP, and for Envoy over gRPC, on a separate port and thread (`--limit-port`).
//!
//! A request for units briefly takes a lock of the data path, so the admin port must not execute
//! such requests. The workers cannot do so either: they speak memcached's protocols, and disconnect
//! clients that speak HTTP. Instead, the limit port has one thread with an engine session, like a
//! worker.
//!
//! The thread runs two kinds of tasks. The tasks of the connections parse requests (`request.rs`)
//! and send them to the task of the [`LimitWorker`]. In one turn of the session, that task executes
//! the requests that have arrived, up to a limit, and replies. Then the session sleeps until more
//! requests arrive or the engine wakes it. So the session ticks once per turn, for all requests of
//! the turn, and is asleep whenever another task runs.
//!
//! The key of a limiter is the prefix of its policy followed by the key of the request. So
//! `POST /v1/limit/logins?key=ann` and `ma login/ann Qlogins` share one limiter if `login/` is the
//! prefix.
//!
//! Invariants: there are at most [`CONNECTIONS`] connections, apart from replaced ones that still
//! answer a request. For any input, a connection holds at most [`BUFFER`] bytes in each direction.
//! With HTTP/2, it also holds at most [`STREAMS`] requests, each with a body of at most
//! [`BODY`](envoy::BODY) bytes and a reply of at most [`BUFFER`] bytes. The headers of a request
//! have at most [`HEADERS`] bytes, and are dropped before the connection waits for the body. While
//! a client sends headers and never ends them, they take up to about 0.5 MB of memory, because a
//! short header field takes more memory than it has bytes. While the thread reads a connection, the
//! headers and trailers of up to [`STREAMS`] + [`CANCELLED`] requests take such memory, together up
//! to about 70 MB. They are dropped before the thread reads another connection. The body of an
//! HTTP/1 request is never read. A connection without requests for [`SILENCE`] is closed. A body
//! has to arrive within [`PATIENCE`]. A complete request is answered within [`PATIENCE`] too. Web
//! pages cannot take units, see `request.rs`.
//!
//! There is one exception. The table of indexed headers in h2 refers to the buffers in which a path
//! or an authority arrived. So a hostile client can keep up to about 14 MB for each connection.
//!
//! [`BUFFER`]: connections::BUFFER
//! [`CANCELLED`]: connections::CANCELLED
//! [`HEADERS`]: connections::HEADERS
//! [`STREAMS`]: connections::STREAMS
//! [`SILENCE`]: connections::SILENCE
//! [`PATIENCE`]: call::PATIENCE

mod call;
mod connections;
mod envoy;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::net::Listener;
use crate::policies::PolicyReader;
use crate::server::{Running, Stopper};
use call::{Callee, PATIENCE};
pub(crate) use connections::CONNECTIONS;
use connections::{Clients, accept};
use worker::LimitWorker;

/// Interval between the checks, while the port stops, whether the server must stop at once.
const CHECK: Duration = Duration::from_millis(50);

/// A running limit port. Dropping it stops the port.
#[derive(Debug)]
pub(crate) struct LimitPort {
    /// The addresses, with the ports that the kernel chose for port 0.
    pub(crate) addresses: Vec<SocketAddr>,
    /// `None` until the port is told to stop. From then on, the deadline by which requests in
    /// flight must finish.
    stop: watch::Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl LimitPort {
    /// Serves the sockets of `listeners` on its own thread.
    pub(crate) fn start(
        running: &Arc<Running>,
        policies: PolicyReader,
        listeners: &[Listener],
    ) -> io::Result<LimitPort> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sockets = {
            let _inside = runtime.enter();
            let open = |listener: &Listener| TcpListener::from_std(listener.to_std()?);
            listeners.iter().map(open).collect::<io::Result<Vec<_>>>()?
        };
        let (calls, called) = mpsc::channel(CONNECTIONS);
        let worker = LimitWorker::new(running, policies, called);
        let (stop, stopped) = watch::channel(None);
        let running = Arc::clone(running);
        let thread =
            std::thread::Builder::new().name("limit-port".to_owned()).spawn(move || {
                let _end = LimitPortEnd(Arc::clone(&running));
                let server = Callee { running, calls };
                LocalSet::new().block_on(&runtime, serve(sockets, worker, server, stopped));
            })?;
        let addresses = listeners.iter().filter_map(Listener::address).collect();
        Ok(LimitPort { addresses, stop, thread: Some(thread) })
    }

    /// Stops accepting connections, and gives requests in flight at most `grace` to finish. A
    /// second call does not change the deadline, but [`Stopper::stop_now`] ends the wait.
    pub(crate) fn stop(&self, grace: Duration) {
        // No decision takes longer than `PATIENCE`. A longer grace would help only a request whose
        // body still arrives.
        let end = Instant::now() + grace.min(PATIENCE);
        self.stop.send_modify(|stop| *stop = stop.or(Some(end)));
    }
}

impl Drop for LimitPort {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
        if let Some(thread) = self.thread.take() {
            // `join` fails if the thread has panicked. `LimitPortEnd` has already reported that.
            let _ = thread.join();
        }
    }
}

/// Serves until the port is told to stop and all requests are answered, but not beyond the deadline
/// of the stop, and not after a request to stop at once.
async fn serve(
    sockets: Vec<TcpListener>,
    worker: LimitWorker,
    server: Callee,
    mut stopped: watch::Receiver<Option<Instant>>,
) {
    let clients = Clients::default();
    for socket in sockets {
        let (clients, server, stopped) = (clients.clone(), server.clone(), stopped.clone());
        tokio::task::spawn_local(accept(socket, clients, server, stopped));
    }
    let running = Arc::clone(&server.running);
    // `server` holds a sender of calls. `worker.run` returns when all such senders are dropped, so
    // when all connections and listeners have ended.
    drop(server);
    tokio::select! {
        () = worker.run() => {}
        () = grace(&mut stopped, &running.stopper) => {}
    }
}

/// Waits until the port is told to stop. Then waits until the deadline of that stop has passed or
/// the server must stop at once.
async fn grace(stopped: &mut watch::Receiver<Option<Instant>>, stopper: &Stopper) {
    let end = stopped.wait_for(Option::is_some).await.ok().and_then(|end| *end);
    let Some(end) = end else { return };
    while Instant::now() < end && !stopper.stops_now() {
        tokio::time::sleep_until(end.min(Instant::now() + CHECK)).await;
    }
}

/// A guard that the limit port's thread holds. If the thread panics, the guard ends the server.
struct LimitPortEnd(Arc<Running>);

impl Drop for LimitPortEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stopper.fail("the limit port has panicked".to_owned());
        }
    }
}
