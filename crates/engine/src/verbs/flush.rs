//! flush_all: forgets everything written before a moment, in time proportional to stripes and
//! segments, not to items.

use crate::engine::Engine;
use crate::stats::bump;
use crate::{Outcome, Session, UnixSeconds};
use std::sync::atomic::Ordering;

impl Session {
    /// Forgets every item written before now, or at `at` every item written before then. A later
    /// call replaces an earlier one that is not due yet.
    pub fn flush_all(&self, at: Option<UnixSeconds>) -> Outcome<()> {
        bump(&self.counters.cmd_flush, 1);
        match at {
            Some(at) if at > self.now() => self.engine.flush_at.store(at, Ordering::Relaxed),
            _ => {
                self.engine.flush_at.store(0, Ordering::Relaxed);
                self.engine.flush();
            }
        }
        Outcome::Ready(())
    }
}

impl Engine {
    /// Flushes if a delayed flush is due; exactly one caller does it.
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) {
        let at = self.flush_at.load(Ordering::Relaxed);
        let due = at != 0 && at <= now;
        let relaxed = Ordering::Relaxed;
        if due && self.flush_at.compare_exchange(at, 0, relaxed, relaxed).is_ok() {
            self.flush();
        }
    }

    fn flush(&self) {
        let mut sealed = Vec::new();
        // Writers append under a stripe's lock, so while all are held nobody is appending.
        self.index.clear(|| {
            self.log.seal_all();
            sealed = self.log.drain_sealed();
        });
        // Only now is the index free of their addresses, so the quiescent period begins here.
        for segment in sealed {
            self.log.quarantine(segment);
        }
        self.full.store(false, Ordering::Relaxed);
        self.kick_cleaner();
    }
}
