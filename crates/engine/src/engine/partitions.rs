//! Which lane every key belongs to, for whoever looks one up.

use crate::key::Key;
use crate::lock::lock;
use larder_log::format::{PARTITIONS, partition};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::Waker;

/// No lane: the partition is on its way.
const CLOSED: u8 = u8::MAX;

/// For each partition the position of its lane among the engine's.
#[derive(Debug)]
pub(crate) struct Partitions {
    lanes: Box<[AtomicU8]>,
    /// How often partitions were closed, and at which of these times each was closed last.
    closings: AtomicU32,
    closed_at: Box<[AtomicU32]>,
    /// No partition ever moves.
    settled: bool,
    /// What is on its way does not arrive for the time being.
    stuck: AtomicBool,
    /// Who waits for partitions that are on their way.
    waiting: Mutex<Vec<Waker>>,
}

impl Partitions {
    /// `position` gives the lane of each partition. `settled`: nothing will ever be closed.
    pub(crate) fn new(position: impl Fn(usize) -> usize, settled: bool) -> Self {
        Partitions {
            lanes: (0..PARTITIONS).map(|at| AtomicU8::new(position(at) as u8)).collect(),
            closings: AtomicU32::new(0),
            closed_at: (0..PARTITIONS).map(|_| AtomicU32::new(0)).collect(),
            settled,
            stuck: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Whether no partition ever moves.
    #[inline]
    pub(crate) fn are_settled(&self) -> bool {
        self.settled
    }

    /// The position of the key's lane; no lane's if it is on its way.
    #[inline]
    pub(crate) fn lane_of(&self, key: &Key<'_>) -> usize {
        usize::from(self.lanes[partition(key.lo)].load(Ordering::Acquire))
    }

    /// The position of a partition's lane; no lane's if it is on its way.
    pub(crate) fn owner(&self, partition: usize) -> usize {
        usize::from(self.lanes[partition].load(Ordering::Acquire))
    }

    /// Whether a partition is on its way.
    pub(crate) fn is_closed(&self, partition: usize) -> bool {
        self.owner(partition) == usize::from(CLOSED)
    }

    /// How often partitions were closed so far.
    pub(crate) fn closings(&self) -> u32 {
        self.closings.load(Ordering::Acquire)
    }

    /// Whether a partition that was somewhere after that many closings has been there ever since.
    pub(crate) fn has_stayed(&self, partition: usize, closings: u32) -> bool {
        self.closed_at[partition].load(Ordering::Acquire) <= closings
    }

    /// From now on nobody begins to look for keys of these partitions. Who has begun ends before its
    /// session's next quiescent point. Only the mover calls this.
    pub(crate) fn close(&self, partitions: Range<usize>) {
        let time = self.closings.load(Ordering::Relaxed) + 1;
        for closed_at in &self.closed_at[partitions.clone()] {
            closed_at.store(time, Ordering::Release);
        }
        for lane in &self.lanes[partitions] {
            lane.store(CLOSED, Ordering::Release);
        }
        // Last: who counts this closing in sees that they are closed.
        self.closings.store(time, Ordering::Release);
    }

    /// The partitions belong to this lane; who waited for them looks again.
    pub(crate) fn open(&self, partitions: Range<usize>, position: usize) {
        for lane in &self.lanes[partitions] {
            lane.store(position as u8, Ordering::Release);
        }
        self.stuck.store(false, Ordering::Release);
        self.wake();
    }

    /// What is on its way does not arrive before a device works again; who waits is told.
    pub(crate) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
        self.wake();
    }

    /// Who waited looks again.
    pub(crate) fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Has `waker` woken when something was opened; false if that may take for ever.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        if self.stuck.load(Ordering::Acquire) {
            return false;
        }
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        drop(waiting);
        // What it waits for may have happened just before.
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

    /// A lane owns keys whose hashes begin alike, and so do those of a stripe.
    #[test]
    fn keys_of_many_lanes_lie_in_as_many_stripes_as_those_of_one() {
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
