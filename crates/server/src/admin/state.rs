//! The server that the admin page reports on, first while it starts, then while it serves.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::action_session::ActionSession;
use super::clients::ClientList;
use super::device_times::RecentTimes;
use super::live::Live;
use super::recent::RecentStore;
use super::token::AdminToken;
use crate::server::Running;
use crate::settings::Settings;

/// What the admin page knows of a server, which may not serve yet.
#[derive(Debug)]
pub(crate) struct AdminState {
    /// The settings with which the server started.
    settings: Arc<Settings>,
    /// The progress of the start.
    progress: Mutex<String>,
    /// Set once the server serves clients.
    running: OnceLock<Arc<Running>>,
    pub(super) live: Live,
    pub(super) clients: ClientList,
    pub(super) recent_store: RecentStore,
    pub(super) recent_times: RecentTimes,
    /// The address at which the admin page listens.
    pub(super) address: SocketAddr,
    /// The token that actions need.
    pub(crate) token: Arc<AdminToken>,
    /// The session that executes actions.
    pub(super) action_session: ActionSession,
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
            action_session: ActionSession::default(),
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

    /// Returns the running server; `None` while it starts.
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
