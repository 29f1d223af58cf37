//! Waiting for space: the calls that wait, the claims that are refused, and the requests to the
//! cleaner.

use crate::lane::Lane;
use crate::lock::lock;
use larder_log::Claim;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::Thread;

impl Lane {
    /// Registers `waker` for a call that returned `NeedsSpace`, and asks the cleaner to make room.
    pub(crate) fn wait_for_space(&self, waker: &Waker, claim: Claim) {
        let mut waiting = lock(&self.waiting);
        waiting.wakers.push(waker.clone());
        waiting.claim = waiting.claim.max(Some(claim));
        drop(waiting);
        self.kick_cleaner();
    }

    /// Wakes all waiting calls, so that they try again.
    pub(crate) fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the most urgent claim of the waiting calls.
    pub(crate) fn waiting(&self) -> Option<Claim> {
        lock(&self.waiting).claim
    }

    /// Returns true if the cleaner has noted that nothing can be reclaimed for a call with this
    /// claim.
    pub(crate) fn is_full(&self, claim: Claim) -> bool {
        self.full.load(Ordering::Relaxed) > claim as u8
    }

    /// Notes that nothing can be reclaimed for claims up to this one. With `None`, no claim is
    /// refused.
    pub(crate) fn set_full(&self, most_urgent: Option<Claim>) {
        let below = most_urgent.map_or(0, |claim| claim as u8 + 1);
        self.full.store(below, Ordering::Relaxed);
    }

    pub(crate) fn set_cleaner(&self, thread: Thread) {
        *lock(&self.cleaner) = Some(thread);
    }

    /// Wakes the cleaner to look for work.
    pub(crate) fn kick_cleaner(&self) {
        if let Some(thread) = &*lock(&self.cleaner) {
            thread.unpark();
        }
    }

    /// Marks a record of `bytes` in `segment` dead.
    pub(crate) fn kill(&self, segment: u32, bytes: usize) {
        self.log.segment(segment).kill(bytes);
        self.log.note_death(segment);
        self.killed(segment);
    }

    /// Notes that a record in `segment` has died. If writes were refused, there may be room again.
    /// A dead jumbo can be freed at once.
    #[inline]
    pub(crate) fn killed(&self, segment: u32) {
        if self.is_full(Claim::Write) || self.log.segment(segment).is_jumbo() {
            self.set_full(None);
            self.kick_cleaner();
        }
    }

    /// Notes that a thread has reported its dead bytes, so there may be room again.
    pub(crate) fn told_dead(&self) {
        if self.is_full(Claim::Write) {
            self.set_full(None);
            self.kick_cleaner();
        }
    }
}
