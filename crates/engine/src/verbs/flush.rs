//! flush_all: forgets everything written before a moment, in time proportional to stripes and
//! segments, not to items.

use crate::lane::Lane;
use crate::lane::session::LaneSession;
use crate::{Outcome, Refusal, UnixSeconds};
use larder_log::format::Superblock;
use larder_log::{Rule, Stream};
use std::io;
use std::sync::atomic::Ordering;

impl LaneSession {
    /// See [`Session::flush_all`](crate::Session::flush_all).
    pub(crate) fn flush_all(&self, at: Option<UnixSeconds>) -> Outcome<()> {
        match at {
            Some(at) if at > self.now() => {
                if self.lane.flush_later(at).is_err() {
                    return Outcome::Refused(Refusal::StoreFailed);
                }
            }
            _ => {
                if self.lane.flush().is_err() {
                    return Outcome::Refused(Refusal::StoreFailed);
                }
            }
        }
        Outcome::Ready(())
    }
}

impl Lane {
    /// Whether a delayed flush is due.
    pub(crate) fn flush_is_due(&self, now: UnixSeconds) -> bool {
        let at = self.flush_at.load(Ordering::Relaxed);
        at != 0 && at <= now
    }

    /// Flushes if a delayed flush is due; exactly one caller does it. If the store cannot take it, it
    /// stays due.
    pub(crate) fn flush_if_due(&self, now: UnixSeconds) {
        let at = self.flush_at.load(Ordering::Relaxed);
        let due = self.flush_is_due(now);
        let relaxed = Ordering::Relaxed;
        if due
            && self.flush_at.compare_exchange(at, 0, relaxed, relaxed).is_ok()
            && self.flush().is_err()
        {
            let _ = self.flush_at.compare_exchange(0, at, relaxed, relaxed);
        }
    }

    /// A delayed flush is due at `at`, after a restart too.
    pub(crate) fn flush_later(&self, at: UnixSeconds) -> io::Result<()> {
        self.keep_flush_time(at)?;
        self.flush_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    fn keep_flush_time(&self, at: UnixSeconds) -> io::Result<()> {
        let Some(store) = self.log.store() else { return Ok(()) };
        store.change_superblock_now(|superblock| superblock.pending_flush = at)
    }

    /// Empties the engine. With a store the fence is durable before anything is changed, and nobody
    /// writes meanwhile: a flush waits for one sync.
    fn flush(&self) -> io::Result<()> {
        let (mut sealed, undoings) = (Vec::new(), self.undoings());
        // Writers append under a stripe's lock, so while all are held nobody is appending.
        self.index.clear(|fence| {
            if let Some(store) = self.log.store() {
                let change = |superblock: &mut Superblock| {
                    superblock.fence = superblock.fence.max(fence);
                    superblock.pending_flush = 0;
                };
                if Rule::FenceFirst.is_broken() {
                    store.change_superblock(change);
                } else {
                    store.change_superblock_now(change)?;
                }
            }
            self.log.seal_all();
            sealed = self.log.drain_sealed();
            self.log.forget_deaths();
            io::Result::Ok(())
        })?;
        self.flush_at.store(0, Ordering::Relaxed);
        // Only now is the index free of their addresses, so the quiescent period begins here.
        for number in sealed {
            let hot = self.log.segment(number).stream() == Stream::Hot as u8;
            let stream = if hot { Stream::Hot } else { Stream::Survivors };
            // One that is kept, because something is being undone, is cleaned like others.
            self.quarantine(stream, number, Vec::new(), undoings);
        }
        self.set_full(None);
        self.kick_cleaner();
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
