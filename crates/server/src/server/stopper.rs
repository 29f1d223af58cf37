//! How a server is asked to end: by whom first, and whether it may take its time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::net;

#[derive(Debug, Default)]
pub(super) struct StopState {
    /// Who asked first.
    reason: Option<String>,
    pub(super) failure: Option<String>,
    /// Commands in flight are not waited for.
    pub(super) now: bool,
    pub(super) control: Option<net::Control>,
}

/// Asks a server to stop, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stopper {
    shared: Arc<(Mutex<StopState>, Condvar)>,
}

impl Stopper {
    pub(super) fn state(&self) -> MutexGuard<'_, StopState> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stop: commands in flight are finished. Returns false if the server is stopping already.
    pub fn stop(&self, reason: &str) -> bool {
        let mut state = self.state();
        let first = state.reason.is_none();
        if first {
            state.reason = Some(reason.to_owned());
        }
        self.shared.1.notify_all();
        first
    }

    /// Stop without waiting for anything.
    pub fn stop_now(&self, reason: &str) {
        self.stop(reason);
        let mut state = self.state();
        state.now = true;
        if let Some(control) = &state.control {
            control.shut_down(Duration::ZERO);
        }
    }

    pub(super) fn fail(&self, failure: String) {
        self.state().failure.get_or_insert(failure);
        self.stop("a failure");
    }

    /// Waits until somebody asks; returns who.
    pub(super) fn wait(&self) -> String {
        let mut state = self.state();
        loop {
            if let Some(reason) = &state.reason {
                return reason.clone();
            }
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
