//! Readings of the store's histograms during the last minute, ten seconds apart. The histograms
//! count from the server's start, so the difference between two readings has the values that were
//! recorded between them. In the worst case, 32 devices with a lower device each, the readings take
//! 0.3 MB.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use larder_disk::Histogram;
use larder_engine::StoreHistograms;

use crate::server::Running;

/// Interval between two readings, in milliseconds.
const STEP_MS: u64 = 10_000;
/// The age of the oldest reading, in milliseconds, once the server has run for that long. The
/// oldest reading may be up to [`STEP_MS`] older.
const SPAN_MS: u64 = 60_000;

/// One reading of the histograms. They count from the server's start.
#[derive(Clone, Debug)]
pub(super) struct MeasuredStore {
    /// The server's uptime in milliseconds.
    pub(super) up_ms: u64,
    /// How long replies waited for their commits; `None` if that is not measured.
    pub(super) waits: Option<Histogram>,
    /// The histograms of each lane, in the order of the lanes.
    pub(super) lanes: Vec<MeasuredLane>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredLane {
    pub(super) commits: Histogram,
    pub(super) syncs: Histogram,
    pub(super) lower_syncs: Option<Histogram>,
}

/// The readings of the last minute, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentStore(Mutex<VecDeque<MeasuredStore>>);

impl RecentStore {
    /// Adds a reading if the newest one is at least [`STEP_MS`] old. The page's heartbeat calls
    /// this method once a second.
    pub(super) fn beat(&self, running: &Running) {
        if !running.settings().has_store() {
            return;
        }
        let up_ms = up_ms(running);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.back().is_none_or(|last| up_ms - last.up_ms >= STEP_MS) {
            keep(&mut kept, MeasuredStore::of(running));
        }
    }

    /// Returns the oldest reading.
    pub(super) fn earliest(&self) -> Option<MeasuredStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).front().cloned()
    }
}

/// Adds the newest reading, and drops the readings that are not needed to reach back [`SPAN_MS`].
fn keep(kept: &mut VecDeque<MeasuredStore>, newest: MeasuredStore) {
    let needed_ms = newest.up_ms.saturating_sub(SPAN_MS);
    kept.push_back(newest);
    while kept.get(1).is_some_and(|second| second.up_ms <= needed_ms) {
        kept.pop_front();
    }
}

fn up_ms(running: &Running) -> u64 {
    running.clock.uptime().as_millis() as u64
}

impl MeasuredStore {
    pub(super) fn of(running: &Running) -> MeasuredStore {
        MeasuredStore {
            up_ms: up_ms(running),
            waits: running.latencies_ever().map(|all| all.commit_waits),
            lanes: running.engine.store_histograms().into_iter().map(Into::into).collect(),
        }
    }
}

impl From<StoreHistograms> for MeasuredLane {
    fn from(store: StoreHistograms) -> MeasuredLane {
        let lower_syncs = store.lower.map(|lower| lower.sync);
        MeasuredLane { commits: store.commit_bytes, syncs: store.fast.sync, lower_syncs }
    }
}

impl MeasuredLane {
    /// Adds the values of another lane.
    pub(super) fn add(&mut self, other: &MeasuredLane) {
        self.commits.add(&other.commits);
        self.syncs.add(&other.syncs);
        if let Some(more) = &other.lower_syncs {
            self.lower_syncs.get_or_insert_default().add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_histograms_reach_back_a_minute_and_are_few() {
        let mut kept = VecDeque::new();
        for second in 0..1000 {
            let up_ms = second * 1000;
            if kept.back().is_none_or(|last: &MeasuredStore| up_ms - last.up_ms >= STEP_MS) {
                let newest = MeasuredStore { up_ms, waits: None, lanes: Vec::new() };
                keep(&mut kept, newest);
            }
            let age_ms = up_ms - kept[0].up_ms;
            assert!(age_ms == up_ms || (SPAN_MS..SPAN_MS + STEP_MS).contains(&age_ms), "{age_ms}");
            assert!(kept.len() <= 7, "{}", kept.len());
        }
        // Seven readings of the largest store: 32 lanes with two devices, so three histograms each.
        assert!(7 * 32 * 3 * size_of::<Histogram>() < 300_000);
    }
}
