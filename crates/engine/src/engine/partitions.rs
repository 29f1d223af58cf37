//! The partition table in memory, which tells every look-up which lane owns the key.

use crate::key::Key;
use crate::lock::lock;
use larder_log::format::{PARTITIONS, partition};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::Waker;

/// The value in [`Partitions::lanes`] of a partition that is moving. No lane shows the keys of such
/// a partition.
const CLOSED: u8 = u8::MAX;

/// The partition table in memory.
#[derive(Debug)]
pub(crate) struct Partitions {
    /// For each partition, the index of its lane among the engine's lanes, or [`CLOSED`].
    lanes: Box<[AtomicU8]>,
    /// Number of calls of [`Partitions::close`] so far.
    closings: AtomicU32,
    /// For each partition, the value that its last closing stored in `closings`; 0 if the partition
    /// was never closed.
    closed_at: Box<[AtomicU32]>,
    /// True if no partition ever moves.
    fixed: bool,
    /// True if closed partitions may stay closed for a long time, because a device fails or the
    /// mover has ended.
    stuck: AtomicBool,
    /// Wakers of calls that wait until partitions are opened.
    waiting: Mutex<Vec<Waker>>,
}

impl Partitions {
    /// Creates the table. `position` gives the lane of each partition. `fixed` is true if no
    /// partition ever moves.
    pub(crate) fn new(position: impl Fn(usize) -> usize, fixed: bool) -> Self {
        Partitions {
            lanes: (0..PARTITIONS).map(|at| AtomicU8::new(position(at) as u8)).collect(),
            closings: AtomicU32::new(0),
            closed_at: (0..PARTITIONS).map(|_| AtomicU32::new(0)).collect(),
            fixed,
            stuck: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Returns true if no partition ever moves.
    #[inline]
    pub(crate) fn never_move(&self) -> bool {
        self.fixed
    }

    /// Returns the position of the key's lane; an invalid position while the key is moving.
    #[inline]
    pub(crate) fn lane_of(&self, key: &Key<'_>) -> usize {
        usize::from(self.lanes[partition(key.lo)].load(Ordering::Acquire))
    }

    /// Returns the position of a partition's lane; an invalid position while the partition is
    /// moving.
    pub(crate) fn owner(&self, partition: usize) -> usize {
        usize::from(self.lanes[partition].load(Ordering::Acquire))
    }

    /// Returns true if a partition is moving.
    pub(crate) fn is_closed(&self, partition: usize) -> bool {
        self.owner(partition) == usize::from(CLOSED)
    }

    /// Returns the number of calls of [`Partitions::close`] so far.
    pub(crate) fn closings(&self) -> u32 {
        self.closings.load(Ordering::Acquire)
    }

    /// Returns true if the partition has not been closed since the caller got `closings` from
    /// [`Partitions::closings`].
    pub(crate) fn has_stayed(&self, partition: usize, closings: u32) -> bool {
        self.closed_at[partition].load(Ordering::Acquire) <= closings
    }

    /// Closes partitions, so that no call starts to look for their keys. Calls that have already
    /// started end before the next quiescent point of their session. Only the mover calls this.
    pub(crate) fn close(&self, partitions: Range<usize>) {
        let time = self.closings.load(Ordering::Relaxed) + 1;
        for closed_at in &self.closed_at[partitions.clone()] {
            closed_at.store(time, Ordering::Release);
        }
        for lane in &self.lanes[partitions] {
            lane.store(CLOSED, Ordering::Release);
        }
        // The count is stored last: a thread that reads the new count also sees the partitions
        // closed.
        self.closings.store(time, Ordering::Release);
    }

    /// Gives the partitions to the lane at `position`, and wakes all calls that wait for
    /// partitions.
    pub(crate) fn open(&self, partitions: Range<usize>, position: usize) {
        for lane in &self.lanes[partitions] {
            lane.store(position as u8, Ordering::Release);
        }
        self.stuck.store(false, Ordering::Release);
        self.wake();
    }

    /// Notes that closed partitions may stay closed for a long time, because a device fails or the
    /// mover has ended. Wakes the waiting calls.
    pub(crate) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes waiting calls, so that they look up their partition again.
    pub(crate) fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Registers `waker` for the next time that partitions are opened. Returns false if closed
    /// partitions are stuck: they may never open, so the caller should not wait.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        if self.stuck.load(Ordering::Acquire) {
            return false;
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        drop(waiting);
        // Just before the waker was added, another thread may have opened the last closed partition
        // or called `set_stuck`. Then nothing may call `wake` later, so this call does.
        let nothing_closed = !self.lanes.iter().any(|lane| lane.load(Ordering::Acquire) == CLOSED);
        if nothing_closed || self.stuck.load(Ordering::Acquire) {
            self.wake();
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Engine, Expiry, Options, Outcome, Store};
    use std::collections::HashSet;
    use std::task::Waker;

    /// Partition and stripe both come from the top bits of the hash. So each of eight lanes uses
    /// only an eighth of its stripes. All eight lanes together must use as many stripes as a single
    /// lane.
    #[test]
    fn many_lanes_fill_as_many_stripes_as_one_lane() {
        let stripes = |lanes: usize| {
            let options = Options { memory: 128 << 20, lanes, ..Options::default() };
            let engine = Engine::open_without_threads(options).expect("memory");
            let mut session = engine.session(Waker::noop().clone());
            session.tick(1);
            for number in 0..10_000 {
                let key = format!("key{number}");
                let set = Store::set(b"value", 0, Expiry::NEVER);
                let stored = session.store(&session.key(key.as_bytes()), set);
                assert!(matches!(stored, Outcome::Ready(_)));
            }
            let mut used = HashSet::new();
            for (position, lane) in engine.lanes.iter().enumerate() {
                for stripe in 0..lane.index.stripe_count() {
                    let mut any = false;
                    lane.index.visit_stripe(stripe, |_| any = true);
                    if any {
                        used.insert((position, stripe));
                    }
                }
            }
            used.len()
        };
        assert_eq!((stripes(1), stripes(8)), (128, 128));
    }
}
