//! Early writes, in async mode. Every few milliseconds, acknowledged records are written to the
//! device without a sync. So a crash of only the process loses at most the records of these
//! milliseconds. A separate thread makes early writes, so they continue while the committer waits
//! for a sync.

use super::{Durability, Durable};
use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::{self};
use std::time::Duration;

/// Interval between two early writes.
const PERIOD: Duration = Duration::from_millis(8);

impl Durable {
    /// Notes that the calling thread has appended records that should be written early.
    #[inline]
    pub(crate) fn has_appended(&self) {
        if self.mode() == Durability::Async {
            // Pairs with the fence in `run`. Either this thread sees that the early writer rests,
            // or the early writer sees the records.
            fence(Ordering::SeqCst);
            if self.early.resting.load(Ordering::Relaxed) {
                self.end_rest();
            }
        }
    }

    #[cold]
    fn end_rest(&self) {
        if self.early.resting.swap(false, Ordering::AcqRel)
            && let Some(thread) = &*lock(&self.early.thread)
        {
            thread.unpark();
        }
    }
}

/// Starts the early writer's thread, in async mode. The thread holds no strong reference to the
/// lane while it waits, so it does not keep the lane alive.
pub(crate) fn spawn(lane: &Arc<Lane>, durability: &Durable) -> io::Result<()> {
    if durability.mode() != Durability::Async {
        return Ok(());
    }
    let weak = Arc::downgrade(lane);
    let builder = thread::Builder::new().name("early writer".into());
    let handle = builder.spawn(move || run(&weak))?;
    *lock(&durability.early.thread) = Some(handle.thread().clone());
    Ok(())
}

fn run(weak: &Weak<Lane>) {
    loop {
        let Some(lane) = weak.upgrade() else { return };
        let Some(durable) = lane.durable() else { return };
        let mut pause = PERIOD;
        if !durable.write_early().unwrap_or(false) {
            durable.state.early.resting.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !durable.write_early().unwrap_or(false) {
                pause = durable.state.interval() / 4;
            }
        }
        drop(lane);
        thread::park_timeout(pause);
    }
}

impl DurableLane<'_> {
    /// In async mode, writes the records appended before this call, so that a crash of the process
    /// does not lose them. Returns true if there was anything to write, or `None` if the write is
    /// left to the next commit. Apart from the early writer's thread, only simulations and tests
    /// call this function.
    pub(crate) fn write_early(self) -> Option<bool> {
        if self.state.mode() != Durability::Async {
            return None;
        }
        let mut committer = lock(&self.state.committer);
        if committer.ended || self.state.is_failing() {
            return None;
        }
        let written = self.log.write_early(&mut committer.log);
        let written = written.ok().flatten();
        if written.is_none() {
            // The next commit handles the failure and writes everything that is left.
            self.state.want_commit();
        }
        written
    }
}
