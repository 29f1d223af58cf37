//! Quiescent-state-based reclamation. Memory that was unlinked is reused only after every
//! participant has passed a quiescent point, a moment at which the participant holds no reference
//! to shared memory. This costs a reader one store per turn of its loop, and nothing per read.
//!
//! A participant that is about to block is *asleep*: it holds no reference, and reclamation does
//! not wait for it.
//!
//! Source of the scheme: T. Hart et al., "Performance of memory reclamation for lockless
//! synchronization", 2007.

use crate::rule::Rule;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::Arc;

const ASLEEP: u64 = u64::MAX;

/// One participant's state that others read, in its own cache line.
#[derive(Debug)]
#[repr(align(64))]
struct ParticipantState {
    /// The epoch of the participant's last quiescent point, or `ASLEEP`.
    epoch: AtomicU64,
    /// A number that is odd while the participant may hold reserved space in the log that is not
    /// filled and published yet.
    appending: AtomicU64,
}

/// The epochs of all participants.
#[derive(Debug)]
pub struct Epochs {
    current: AtomicU64,
    seen: Mutex<Vec<Arc<ParticipantState>>>,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs { current: AtomicU64::new(1), seen: Mutex::new(Vec::new()) }
    }
}

impl Epochs {
    /// Adds a participant, which is asleep.
    pub fn join(self: &Arc<Self>) -> Participant {
        let seen = Arc::new(ParticipantState {
            epoch: AtomicU64::new(ASLEEP),
            appending: AtomicU64::new(0),
        });
        self.lock().push(Arc::clone(&seen));
        Participant { epochs: Arc::clone(self), seen }
    }

    /// Ends the epoch in which the caller has unlinked memory. Returns the epoch that every
    /// participant must have reached before that memory may be reused.
    pub fn advance(&self) -> u64 {
        // Pairs with the fence in `tick_after`: either this thread sees the participant awake, or
        // the participant sees that the memory is unlinked.
        fence(Ordering::SeqCst);
        self.current.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns true if every participant has passed a quiescent point since `advance` returned
    /// `epoch`, or is asleep.
    pub fn passed(&self, epoch: u64) -> bool {
        self.horizon() >= epoch || Rule::QuiescentReuse.is_broken()
    }

    /// Returns the greatest epoch for which [`Epochs::passed`] returns true.
    pub fn horizon(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.lock().iter().map(|seen| seen.epoch.load(Ordering::Acquire)).min().unwrap_or(ASLEEP)
    }

    /// Waits until every append that had begun before this call is complete: its record is filled
    /// and published, and its [`Appending`] is dropped. An append takes less than a microsecond,
    /// unless its value is large or its thread lost the processor.
    ///
    /// A caller can use this to stop appends with a flag: it sets the flag and then calls this
    /// function. A thread that appends first calls [`Participant::appending_seen`] and then reads
    /// the flag. So either that thread sees the flag, or this call waits for its append.
    ///
    /// A caller may also have closed a segment before this call. Then this call waits for every
    /// append that reserved space in the segment before that. Such an append was marked before it
    /// changed the segment's tail, and the caller changed the tail after it.
    pub fn wait_for_appends(&self) {
        // Pairs with the fence in `appending_seen`.
        fence(Ordering::SeqCst);
        // Waits without holding the lock, because an append may itself wait for a thread that takes
        // the lock in `horizon`. This call need not wait for a participant that joins from here on,
        // because it reserves space only behind the bytes that this thread has closed.
        let all = self.lock().clone();
        for seen in all {
            let begun = seen.appending.load(Ordering::Acquire);
            let mut turn = 0;
            while begun % 2 == 1 && seen.appending.load(Ordering::Acquire) == begun {
                crate::sync::spin(&mut turn);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ParticipantState>>> {
        lock(&self.seen)
    }
}

/// One thread's membership in the epochs.
#[derive(Debug)]
pub struct Participant {
    epochs: Arc<Epochs>,
    seen: Arc<ParticipantState>,
}

impl Participant {
    /// Passes a quiescent point: at this call, the thread holds no reference to shared memory. The
    /// participant is awake afterwards.
    #[inline]
    pub fn tick(&mut self) {
        self.tick_after(|| ());
    }

    /// Like [`Participant::tick`], but calls `last` just before the quiescent point. In `last`, the
    /// thread sees everything that was done before the current [epoch](Epochs::advance) began. A
    /// thread that later finds that this epoch has passed sees everything that `last` has done.
    #[inline]
    pub fn tick_after(&mut self, last: impl FnOnce()) {
        let was_asleep = self.seen.epoch.load(Ordering::Relaxed) == ASLEEP;
        let current = self.epochs.current.load(Ordering::Acquire);
        last();
        self.seen.epoch.store(current, Ordering::Release);
        if was_asleep {
            // Pairs with the fences in `advance` and `horizon`. A thread that saw this participant
            // asleep may reuse unlinked memory at once. So reads from here on must see that the
            // memory is unlinked.
            fence(Ordering::SeqCst);
        }
    }

    /// Puts the participant to sleep: it holds no reference until the next `tick`.
    #[inline]
    pub fn sleep(&mut self) {
        self.seen.epoch.store(ASLEEP, Ordering::Release);
    }

    /// Marks the thread as appending until the returned guard is dropped: it may hold reservations
    /// that are not filled and published, and a commit waits for it.
    #[inline]
    pub fn appending(&self) -> Appending<'_> {
        let count = self.seen.appending.load(Ordering::Relaxed);
        debug_assert!(count.is_multiple_of(2));
        // `Release`, because a waiting thread may read this count without having read the even
        // count before it. The waiting thread must still see all that the previous append wrote.
        self.seen.appending.store(count + 1, Ordering::Release);
        Appending { seen: &self.seen }
    }

    /// Like [`Participant::appending`], but visible to all threads before the calling thread reads
    /// anything more.
    #[inline]
    pub fn appending_seen(&self) -> Appending<'_> {
        // On x86-64, a swap orders memory accesses like the fence does, in half the time.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        {
            let count = self.seen.appending.load(Ordering::Relaxed);
            debug_assert!(count.is_multiple_of(2));
            self.seen.appending.swap(count + 1, Ordering::SeqCst);
            Appending { seen: &self.seen }
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        {
            let appending = self.appending();
            fence(Ordering::SeqCst);
            appending
        }
    }
}

/// While this guard lives, commits wait for its thread. See [`Participant::appending`].
#[derive(Debug)]
pub struct Appending<'a> {
    seen: &'a ParticipantState,
}

impl Drop for Appending<'_> {
    #[inline]
    fn drop(&mut self) {
        let count = self.seen.appending.load(Ordering::Relaxed);
        self.seen.appending.store(count + 1, Ordering::Release);
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        let mut all = self.epochs.lock();
        all.retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_awake_participant_holds_an_epoch_back_and_a_sleeping_one_does_not() {
        let epochs = Arc::new(Epochs::default());
        let (mut a, mut b) = (epochs.join(), epochs.join());
        a.tick();
        let epoch = epochs.advance();
        assert!(!epochs.passed(epoch));
        b.tick();
        assert!(!epochs.passed(epoch));
        a.tick();
        assert!(epochs.passed(epoch));
        let epoch = epochs.advance();
        a.sleep();
        assert!(!epochs.passed(epoch));
        drop(b);
        assert!(epochs.passed(epoch));
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p larder-log --release loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// A reader follows a link to a frame. The reclaimer unlinks the frame, and reuses it if the
    /// epoch has passed. The reader must never see the reuse through the old link.
    fn reader_and_reclaimer(starts_asleep: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let epochs = Arc::new(Epochs::default());
            let link = Arc::new(AtomicUsize::new(1));
            let frame = Arc::new(AtomicUsize::new(7));
            let mut reader = epochs.join();
            if !starts_asleep {
                reader.tick();
            }
            let worker = {
                let (link, frame) = (Arc::clone(&link), Arc::clone(&frame));
                thread::spawn(move || {
                    reader.tick();
                    if link.load(Ordering::Acquire) == 1 {
                        assert_eq!(frame.load(Ordering::Relaxed), 7);
                    }
                    reader.sleep();
                })
            };
            link.store(0, Ordering::Release);
            let epoch = epochs.advance();
            if epochs.passed(epoch) {
                frame.store(0, Ordering::Relaxed);
            }
            worker.join().unwrap();
        });
    }

    /// A writer appends unless it sees that commits fail. The committer announces the failure,
    /// waits for appends, and closes. No append may begin after the wait.
    #[test]
    fn loom_no_append_begins_behind_a_failure() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::default());
            let failing = Arc::new(AtomicUsize::new(0));
            let appended = Arc::new(AtomicUsize::new(0));
            let writer = epochs.join();
            let thread = {
                let (failing, appended) = (Arc::clone(&failing), Arc::clone(&appended));
                thread::spawn(move || {
                    let _appending = writer.appending_seen();
                    if failing.load(Ordering::Relaxed) == 0 {
                        appended.store(1, Ordering::Relaxed);
                    }
                })
            };
            failing.store(1, Ordering::Release);
            epochs.wait_for_appends();
            let closed = appended.load(Ordering::Relaxed);
            thread.join().unwrap();
            assert_eq!(appended.load(Ordering::Relaxed), closed);
        });
    }

    #[test]
    fn loom_frame_reuse_waits_for_an_awake_reader() {
        reader_and_reclaimer(false);
    }

    #[test]
    fn loom_frame_reuse_waits_for_a_waking_reader() {
        reader_and_reclaimer(true);
    }
}
