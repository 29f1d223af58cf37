//! Two parts of a lane's state: the calls that wait for space, and the counters of its sessions.

use crate::stats::{Counters, Totals};
use larder_log::Claim;
use std::sync::Arc;
use std::task::Waker;

/// The calls that wait for space.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) wakers: Vec<Waker>,
    /// The most urgent claim among these calls.
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
}

impl Ledger {
    pub(super) fn sum(&self) -> Totals {
        let mut totals = self.ended.clone();
        self.sessions.iter().for_each(|counters| counters.add_to(&mut totals));
        totals
    }
}
