//! Requests a stop of a server. Records who requested the stop first, and whether the stop waits
//! for commands in flight.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::net;

#[derive(Debug, Default)]
pub(super) struct StopState {
    /// Text for the log: who or what first requested the stop.
    reason: Option<String>,
    pub(super) failure: Option<String>,
    /// True if the stop does not wait for commands in flight.
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

    /// Requests a stop that finishes commands in flight. Returns false if the server is already
    /// stopping.
    pub fn stop(&self, reason: &str) -> bool {
        let mut state = self.state();
        let first = state.reason.is_none();
        if first {
            state.reason = Some(reason.to_owned());
        }
        self.shared.1.notify_all();
        first
    }

    /// Requests a stop that does not wait for commands in flight.
    pub fn stop_now(&self, reason: &str) {
        self.stop(reason);
        let mut state = self.state();
        state.now = true;
        if let Some(control) = &state.control {
            control.shut_down(Duration::ZERO);
        }
    }

    /// Returns true if a stop was requested that does not wait for commands in flight.
    pub(crate) fn stops_now(&self) -> bool {
        self.state().now
    }

    /// Requests a stop because of a failure.
    pub(crate) fn fail(&self, failure: String) {
        self.state().failure.get_or_insert(failure);
        self.stop("a failure");
    }

    /// Blocks until a stop is requested and returns the name of the requester.
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
