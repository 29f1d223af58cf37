//! Remembers which commits have failed, for threads that wait for one.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// The largest number of outages remembered. A waiter is woken when its commit fails, and then asks
/// whether the commit has failed. The failure is forgotten only after this many later outages. Each
/// outage lasts at least as long as the committer's pause before it tries again, so a waiter has
/// ample time to ask.
const OUTAGES: usize = 4096;

/// Numbers of failed commits. The numbers of one outage are consecutive.
#[derive(Debug, Default)]
pub(crate) struct FailedCommits {
    /// The failed commits of each outage, in ascending order.
    outages: VecDeque<RangeInclusive<u64>>,
}

impl FailedCommits {
    /// Adds a failed commit. Its number must be greater than all numbers added before.
    pub(crate) fn insert(&mut self, commit: u64) {
        match self.outages.back_mut() {
            Some(last) if *last.end() + 1 >= commit => *last = *last.start()..=commit,
            _ => self.outages.push_back(commit..=commit),
        }
        if self.outages.len() > OUTAGES {
            self.outages.pop_front();
        }
    }

    pub(crate) fn contains(&self, commit: u64) -> bool {
        let after = self.outages.partition_point(|outage| *outage.start() <= commit);
        after.checked_sub(1).is_some_and(|at| self.outages[at].contains(&commit))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_outage_takes_no_more_memory_the_longer_it_lasts() {
        let mut failed = FailedCommits::default();
        (5..1_000_000).for_each(|commit| failed.insert(commit));
        assert_eq!(failed.outages.len(), 1);
        assert!(!failed.contains(4) && failed.contains(5) && failed.contains(999_999));
        assert!(!failed.contains(1_000_000));
    }

    #[test]
    fn outages_are_told_apart_and_the_oldest_forgotten() {
        let mut failed = FailedCommits::default();
        let commits = || (1..3 * OUTAGES as u64).map(|n| n * 3);
        commits().for_each(|commit| failed.insert(commit));
        assert_eq!(failed.outages.len(), OUTAGES);
        for commit in commits().skip(2 * OUTAGES) {
            assert!(failed.contains(commit));
            assert!(!failed.contains(commit - 1) && !failed.contains(commit + 1));
        }
    }
}
