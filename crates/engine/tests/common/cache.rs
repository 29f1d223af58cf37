//! A cache without threads and without a store, with one session.

use larder_engine::*;
use std::sync::Arc;
use std::task::Waker;

pub(crate) struct Cache {
    pub(crate) engine: Arc<Engine>,
    pub(crate) session: Session,
    pub(crate) cleaner: ManualCleaner,
}

impl Cache {
    /// Opens an empty cache. The time of its session is `now`, in Unix seconds.
    pub(crate) fn with(options: Options, now: u32) -> Cache {
        let engine = Engine::open_without_threads(options).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(now);
        Cache { engine, session, cleaner: ManualCleaner::default() }
    }
}
