//! State that the threads of a recovery share, and how they divide the work.

use crate::error::StoreError;
use crate::recovery::newest::Newest;
use larder_log::recover::{Found, Survey};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// State shared by the threads of a recovery.
pub(super) struct Shared<'a> {
    pub(super) survey: &'a Survey,
    /// Versions below this seq are dead, because flush_all has hidden them.
    pub(super) fence: u64,
    pub(super) newest: Newest,
    pub(super) threads: usize,
    pub(super) readers: usize,
}

/// Returns true if the segment's dead map marks the record. Recovery leaves such a record out of
/// the index, but the record still hides older versions.
pub(super) fn is_marked(found: &Found, offset: usize) -> bool {
    larder_log::format::meta::is_marked(&found.dead, offset)
}

/// A counter from which several threads take numbers, each number once.
pub(super) struct Numbers {
    pub(super) next: AtomicUsize,
    pub(super) end: usize,
}

impl Numbers {
    pub(super) fn next(&self) -> Option<usize> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end).then_some(number)
    }

    /// Makes [`Numbers::next`] return no more numbers.
    pub(super) fn stop(&self) {
        self.next.store(self.end, Ordering::Relaxed);
    }

    /// Returns how many numbers were taken, or the number of all after [`Numbers::stop`].
    pub(super) fn taken(&self) -> usize {
        self.next.load(Ordering::Relaxed).min(self.end)
    }
}

/// Runs `work` in this many threads, which share the numbers below `end`. If a thread fails, no
/// more numbers are given out.
pub(super) fn in_parallel(
    threads: usize,
    end: usize,
    work: impl Fn(&Numbers) -> Result<(), StoreError> + Sync,
) -> Result<(), StoreError> {
    let numbers = Numbers { next: AtomicUsize::new(0), end };
    let run = || work(&numbers).inspect_err(|_| numbers.stop());
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut result = run();
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}
