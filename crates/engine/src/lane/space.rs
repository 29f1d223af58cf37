//! Waiting for space: who waits, what is refused, and when the cleaner is asked to make room.

use crate::lane::Lane;
use crate::lock::lock;
use larder_log::Claim;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::Thread;

impl Lane {
    /// A call was answered `NeedsSpace`: the cleaner must work, and `waker` hear of it.
    pub(crate) fn wait_for_space(&self, waker: &Waker, claim: Claim) {
        let mut waiting = lock(&self.waiting);
        waiting.wakers.push(waker.clone());
        waiting.claim = waiting.claim.max(Some(claim));
        drop(waiting);
        self.kick_cleaner();
    }

    /// Lets those who wait try again.
    pub(crate) fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.wakers.into_iter().for_each(Waker::wake);
    }

    /// The most urgent claim that somebody waits with.
    pub(crate) fn waiting(&self) -> Option<Claim> {
        lock(&self.waiting).claim
    }

    /// Whether a claim that finds no space is refused, because nothing can be reclaimed.
    pub(crate) fn is_full(&self, claim: Claim) -> bool {
        self.full.load(Ordering::Relaxed) > claim as u8
    }

    /// Nothing can be reclaimed for claims up to this one.
    pub(crate) fn set_full(&self, most_urgent: Option<Claim>) {
        let below = most_urgent.map_or(0, |claim| claim as u8 + 1);
        self.full.store(below, Ordering::Relaxed);
    }

    pub(crate) fn set_cleaner(&self, thread: Thread) {
        *lock(&self.cleaner) = Some(thread);
    }

    /// Has the cleaner look whether there is something to do.
    pub(crate) fn kick_cleaner(&self) {
        if let Some(thread) = &*lock(&self.cleaner) {
            thread.unpark();
        }
    }

    /// A record of `bytes` in `segment` is dead.
    pub(crate) fn kill(&self, segment: u32, bytes: usize) {
        self.log.segment(segment).kill(bytes);
        self.log.note_death(segment);
        self.killed(segment);
    }

    /// Something in `segment` is dead that was not.
    #[inline]
    pub(crate) fn killed(&self, segment: u32) {
        if self.is_full(Claim::Write) || self.log.segment(segment).is_jumbo() {
            self.set_full(None);
            self.kick_cleaner();
        }
    }

    /// A thread has told its counts of dead bytes, so there may be room again.
    pub(crate) fn told_dead(&self) {
        if self.is_full(Claim::Write) {
            self.set_full(None);
            self.kick_cleaner();
        }
    }
}
