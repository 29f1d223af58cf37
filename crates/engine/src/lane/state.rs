//! Two parts of a lane's state: the calls that wait for space, and the counters of its sessions.

use crate::stats::{Counters, Totals};
use larder_log::Claim;
use std::sync::Arc;
use std::task::Waker;

/// The calls that wait for space.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) wakers: Vec<Waker>,
    /// The most urgent claim among the waiting calls.
    pub(super) claim: Option<Claim>,
}

/// The counters of all sessions.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) sessions: Vec<Arc<Counters>>,
    /// The counts of sessions that have ended.
    pub(super) ended: Totals,
    /// The counts at the last reset.
    pub(super) reset: Totals,
    /// The store's counts at the last reset.
    pub(super) store_reset: StoreCounts,
}

/// The counters of a lane's store since the start. They are never reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCounts {
    pub(super) device_written_bytes: u64,
    pub(super) map_written_bytes: u64,
    pub(super) freed_bytes: u64,
    pub(super) segment_read_bytes: u64,
    pub(super) commits: u64,
}

impl StoreCounts {
    /// Returns the counts since `earlier`.
    pub(super) fn since(&self, earlier: &StoreCounts) -> StoreCounts {
        StoreCounts {
            device_written_bytes: self.device_written_bytes - earlier.device_written_bytes,
            map_written_bytes: self.map_written_bytes - earlier.map_written_bytes,
            freed_bytes: self.freed_bytes - earlier.freed_bytes,
            segment_read_bytes: self.segment_read_bytes - earlier.segment_read_bytes,
            commits: self.commits - earlier.commits,
        }
    }
}

impl Ledger {
    pub(super) fn sum(&self) -> Totals {
        let mut totals = self.ended.clone();
        self.sessions.iter().for_each(|counters| counters.add_to(&mut totals));
        totals
    }
}
