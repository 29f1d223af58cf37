//! What the admin page speaks of: a server that starts, later the one that serves.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::server::Running;
use crate::settings::Settings;

/// A server, from before it serves.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The settings of the start.
    settings: Arc<Settings>,
    /// What the start is at.
    progress: Mutex<String>,
    /// Set once it serves.
    running: OnceLock<Arc<Running>>,
}

impl Subject {
    pub(super) fn new(settings: Settings) -> Subject {
        let progress = Mutex::new("starting".to_owned());
        Subject { settings: Arc::new(settings), progress, running: OnceLock::new() }
    }

    /// Says what the start is at.
    pub(crate) fn is_at(&self, progress: &str) {
        progress.clone_into(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// From now on the server serves.
    pub(crate) fn serves(&self, running: Arc<Running>) {
        // It does so once.
        let _ = self.running.set(running);
    }

    /// The statistics, once it serves.
    pub(super) fn running(&self) -> Option<&Arc<Running>> {
        self.running.get()
    }

    /// The settings in use.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.running().map_or_else(|| Arc::clone(&self.settings), |running| running.settings())
    }
}

/// For what only a server that serves can answer. Before, the answer is how far its start is.
pub(super) struct Serving(pub(super) Arc<Running>);

impl FromRequestParts<Arc<Subject>> for Serving {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(
        _: &mut Parts,
        subject: &Arc<Subject>,
    ) -> Result<Self, Self::Rejection> {
        match subject.running() {
            Some(running) => Ok(Serving(Arc::clone(running))),
            None => {
                let progress = subject.progress.lock().unwrap_or_else(PoisonError::into_inner);
                Err((StatusCode::SERVICE_UNAVAILABLE, format!("{progress}\n")))
            }
        }
    }
}
