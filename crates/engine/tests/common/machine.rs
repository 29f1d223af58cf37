//! An engine without threads on one simulated device, and its only session.

use larder_disk::SimDevice;
use larder_engine::{Engine, ManualCleaner, Options, Session};
use std::sync::Arc;
use std::task::Waker;

/// The time in Unix seconds; it never changes.
pub(crate) const NOW: u32 = 1000;

pub(crate) struct Machine {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) session: Session,
    pub(crate) cleaner: ManualCleaner,
}

impl Machine {
    /// Opens an engine; `options` must have a store on the device.
    pub(crate) fn open(device: Arc<SimDevice>, options: Options) -> Machine {
        let engine = Engine::open_without_threads(options).unwrap();
        let mut session = engine.session(Waker::noop().clone());
        session.tick(NOW);
        Machine { device, engine, session, cleaner: ManualCleaner::default() }
    }
}
