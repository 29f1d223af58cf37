//! The admin page: health checks, metrics and a page for people, over HTTP, on its own port and
//! thread. It answers even before the store is read.
//!
//! The thread of the page takes only a few of the locks that requests take, and holds them only for
//! a moment. For statistics, it takes the locks of free places and of copies, which a request takes
//! when it opens a segment or keeps a copy. For the list of connections, it takes the lock that a
//! connection takes when it opens or closes, and copies a bounded number of entries at a time. It
//! also takes the lock of the last slow commands, but workers never wait for that lock.
//!
//! Invariants: a foreign web page cannot read the admin page, see [`origin`]. Only requests with
//! the token change the server or see values, see [`authorization`] and [`actions`]. Such requests
//! are executed on a separate thread, see [`action_session`].

mod action_session;
mod actions;
mod assets;
mod authorization;
mod clients;
mod connection_limit;
mod device_times;
mod durability;
pub(crate) mod escape;
mod events;
mod headers;
mod health;
mod history;
pub(crate) mod host;
mod keys;
mod lab;
mod live;
mod origin;
mod recent;
mod refused;
mod series;
mod state;
#[cfg(test)]
mod tests;
mod tiers;
mod token;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::oneshot;

use crate::settings::Settings;
use crate::stats;
use actions::ACTIONS;
use connection_limit::{AdminClient, AdminListener};
use headers::HARDENED;
pub(crate) use state::AdminState;
use state::Serving;
pub(crate) use token::AdminToken;

/// A running admin page. Dropping it stops the page.
#[derive(Debug)]
pub(crate) struct Admin {
    /// The address of the admin port. If the settings have port 0, the kernel has chosen this port.
    pub(crate) address: SocketAddr,
    /// The server that this page reports on.
    pub(crate) state: Arc<AdminState>,
    /// The page's thread, and the sender that stops this thread. Dropping the sender also stops the
    /// thread.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// Binds the address and listens, so that an unusable address is reported before the start.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Admin {
    /// Serves the page on its own thread. Until the server accepts clients, the page reports the
    /// progress of the start. `settings` are the settings at the start.
    pub(crate) fn start(
        listener: TcpListener,
        settings: &Settings,
        token: AdminToken,
    ) -> io::Result<Admin> {
        let address = listener.local_addr()?;
        let state = Arc::new(AdminState::new(settings.clone(), token, address));
        let router = router(Arc::clone(&state));
        let service = router.into_make_service_with_connect_info::<AdminClient>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let watched = Arc::clone(&state);
        let (end, ended) = oneshot::channel::<()>();
        let serve = async move {
            tokio::select! {
                // Both a message and a dropped sender stop the page. The stop does not wait for
                // requests in flight, because a reader that keeps its connection open must not
                // delay the stop.
                _ = ended => {}
                () = live::beat(watched) => {}
                result = axum::serve(AdminListener::new(listener), service) => if let Err(error) = result {
                    tracing::error!(event = "admin_failed", %error);
                },
            }
        };
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(serve))?;
        Ok(Admin { address, state, running: Some((end, thread)) })
    }
}

impl Admin {
    /// Begins no further actions. The action that is being executed has `grace` to finish.
    pub(crate) fn close_actions(&self, grace: Duration) {
        self.state.action_session.close(grace);
    }

    /// Waits until the action that is being executed has ended. Then waits for a bounded time until
    /// all requests for actions are answered. The page continues to serve other requests.
    pub(crate) fn stop_actions(&self) {
        self.state.action_session.stop();
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop_actions();
        if let Some((end, thread)) = self.running.take() {
            // `send` fails if the thread has already ended.
            let _ = end.send(());
            let _ = thread.join();
        }
    }
}

fn router(state: Arc<AdminState>) -> Router {
    let router = ACTIONS
        .iter()
        .fold(assets::router(), |router, action| router.route(action.path, (action.handler)()));
    router
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthz", get(health::ready))
        .route("/metrics", get(show_metrics))
        .route("/v1/stats", get(show_stats))
        .route("/v1/metrics", get(|| async { (HARDENED, axum::Json(stats::described())) }))
        .route("/v1/clients", get(show_clients))
        .route("/v1/durability", get(durability::show))
        .route("/v1/history", get(live::history))
        .route("/v1/keys", get(keys::show))
        .route("/v1/refused", get(refused::show))
        .route("/v1/live", get(live::stream))
        .route("/v1/lab", get(lab::description))
        .route("/v1/tiers", get(tiers::show))
        .route("/lab/report.html", get(lab::report))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page: see /\n") })
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), origin::check))
        .with_state(state)
}

async fn show_metrics(Serving(running): Serving) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    (HARDENED, [(header::CONTENT_TYPE, kind)], stats::prometheus(&running)).into_response()
}

async fn show_stats(Serving(running): Serving) -> Response {
    (HARDENED, axum::Json(health::Rows::all(&running))).into_response()
}

/// Returns the connections and the last slow commands.
async fn show_clients(Serving(running): Serving, State(state): State<Arc<AdminState>>) -> Response {
    let json = state.clients.answer(&running);
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (HARDENED, kind, json.to_string()).into_response()
}
