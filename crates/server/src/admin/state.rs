//! The server that the admin page reports on, first while it starts, then while it serves.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::clients::ClientList;
use super::device_times::RecentTimes;
use super::inner::InnerSession;
use super::live::Live;
use super::recent::RecentStore;
use super::token::AdminToken;
use crate::server::Running;
use crate::settings::Settings;

/// A server, which may not serve yet.
#[derive(Debug)]
pub(crate) struct AdminState {
    /// The settings of the start.
    settings: Arc<Settings>,
    /// The progress of the start.
    progress: Mutex<String>,
    /// Set when the server serves.
    running: OnceLock<Arc<Running>>,
    pub(super) live: Live,
    pub(super) clients: ClientList,
    pub(super) recent_store: RecentStore,
    pub(super) recent_times: RecentTimes,
    /// The address at which the admin page listens.
    pub(super) address: SocketAddr,
    /// The token for changes.
    pub(crate) token: Arc<AdminToken>,
    /// The session that executes these changes, and look-ups.
    pub(super) inner: InnerSession,
}

impl AdminState {
    pub(super) fn new(settings: Settings, token: AdminToken, address: SocketAddr) -> AdminState {
        let progress = Mutex::new("starting".to_owned());
        AdminState {
            settings: Arc::new(settings),
            progress,
            running: OnceLock::new(),
            live: Live::new(),
            clients: ClientList::default(),
            recent_store: RecentStore::default(),
            recent_times: RecentTimes::default(),
            address,
            token: Arc::new(token),
            inner: InnerSession::default(),
        }
    }

    /// Sets the progress of the start.
    pub(crate) fn is_at(&self, progress: &str) {
        progress.clone_into(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that the server serves from now on.
    pub(crate) fn serves(&self, running: Arc<Running>) {
        // Called once, so the cell is empty.
        let _ = self.running.set(running);
    }

    /// Returns the running server, once it serves.
    pub(super) fn running(&self) -> Option<&Arc<Running>> {
        self.running.get()
    }

    /// Returns the settings in use.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.running().map_or_else(|| Arc::clone(&self.settings), |running| running.settings())
    }
}

/// Extractor for requests that need a running server. During the start, the reply is the progress
/// of the start.
pub(super) struct Serving(pub(super) Arc<Running>);

impl FromRequestParts<Arc<AdminState>> for Serving {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(
        _: &mut Parts,
        state: &Arc<AdminState>,
    ) -> Result<Self, Self::Rejection> {
        match state.running() {
            Some(running) => Ok(Serving(Arc::clone(running))),
            None => {
                let progress = state.progress.lock().unwrap_or_else(PoisonError::into_inner);
                Err((StatusCode::SERVICE_UNAVAILABLE, format!("{progress}\n")))
            }
        }
    }
}
