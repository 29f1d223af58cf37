//! Early writes, in async mode: every few milliseconds what was acknowledged is written to the device, without
//! a sync, so that the end of the process alone takes back no more than that. A thread does it that never
//! syncs, so it goes on while the committer waits for a sync, however long that takes.

use super::{Durability, Durable};
use crate::lane::{Lane, lock};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

/// From one early write to the next.
const PERIOD: Duration = Duration::from_millis(8);

/// When the thread does nothing, because nothing is written.
#[derive(Debug, Default)]
pub(super) struct Rest {
    resting: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Durable {
    /// Records were appended by the calling thread: they are to be written early.
    #[inline]
    pub(crate) fn has_appended(&self) {
        if self.mode == Durability::Async {
            // Either this thread sees the other one rest, or that one sees the records.
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

/// Starts the thread. It holds no handle of the lane while it waits.
pub(crate) fn spawn(lane: &Arc<Lane>) -> io::Result<()> {
    let Some(durable) = lane.durable.as_ref().filter(|it| it.mode == Durability::Async) else {
        return Ok(());
    };
    let weak = Arc::downgrade(lane);
    let builder = thread::Builder::new().name("early writer".into());
    let handle = builder.spawn(move || run(&weak))?;
    *lock(&durable.early.thread) = Some(handle.thread().clone());
    Ok(())
}

fn run(weak: &Weak<Lane>) {
    loop {
        let Some(lane) = weak.upgrade() else { return };
        let Some(durable) = &lane.durable else { return };
        let mut pause = PERIOD;
        if !lane.write_early().unwrap_or(false) {
            durable.early.resting.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !lane.write_early().unwrap_or(false) {
                pause = durable.interval / 4;
            }
        }
        drop(lane);
        thread::park_timeout(pause);
    }
}

impl Lane {
    /// In async mode: writes what was appended before this call, so that the end of the process does not
    /// take it back. `Some` if it is written now, with whether there was anything new; `None` if that is left to
    /// the next commit. The lane's thread does this by itself: calling it is for simulations.
    pub(crate) fn write_early(&self) -> Option<bool> {
        let durable = self.durable.as_ref().filter(|it| it.mode == Durability::Async)?;
        let mut committer = lock(&self.committer);
        if committer.ended || durable.is_failing() {
            return None;
        }
        let written = self.log.write_early(&mut committer.log);
        let written = written.ok().flatten();
        if written.is_none() {
            // The commit finds out what it means, and writes all of it.
            durable.want_commit();
        }
        written
    }
}
