//! A lane's log and the state of durability that a lane with a store needs. Invariant: the log has
//! a store if and only if there is such a state. Both come from one argument of [`LaneLog::new`].

use crate::durability::Durable;
use crate::lane::options::LaneStore;
use larder_log::{Budget, Config, Epochs, Log, Store};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// A lane's log, and with a store the state that the lane's threads share to make writes durable.
#[derive(Debug)]
pub(crate) struct LaneLog {
    log: Log,
    durability: Option<Durable>,
}

impl LaneLog {
    /// Creates an empty log, as [`Log::new`] does.
    pub(super) fn new(
        config: Config,
        store: Option<(Store, LaneStore)>,
        budget: Arc<Budget>,
        epochs: Arc<Epochs>,
    ) -> io::Result<Self> {
        let (store, options) = store.unzip();
        let durability = options.map(Durable::new);
        Ok(LaneLog { log: Log::new(config, store, budget, epochs)?, durability })
    }

    /// Returns the state of durability, if there is a store.
    #[inline]
    pub(crate) fn durability(&self) -> Option<&Durable> {
        self.durability.as_ref()
    }
}

impl Deref for LaneLog {
    type Target = Log;

    #[inline]
    fn deref(&self) -> &Log {
        &self.log
    }
}
