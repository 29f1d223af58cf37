//! The implementation of [`Hooks`], through which commands query and control the running server.

use std::fmt;
use std::sync::Arc;

use super::running::Running;
use crate::command::Hooks;
use crate::stats;

/// Gives commands access to the running server.
pub(super) struct ServerHooks(pub(super) Arc<Running>);

impl Hooks for ServerHooks {
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
        stats::group(&self.0, group, row)
    }

    fn reset_stats(&self) {
        self.0.reset();
    }

    fn shutdown(&self, _graceful: bool) {
        // The server finishes the commands in flight even if the client did not ask for a graceful
        // shutdown, so that nothing is lost.
        self.0.stopper.stop("the shutdown command");
    }

    fn set_verbosity(&self, level: u32) {
        if let Some(set_log_level) = &self.0.set_log_level {
            set_log_level(self.0.settings().log_level.raised(level));
        }
    }
}
