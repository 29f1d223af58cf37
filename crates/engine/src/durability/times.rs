//! How long the calls of a lane's devices take, and how large the lane's commits are.

use crate::durability::{LowerDevice, StoreDevice};
use larder_disk::{Device, DeviceHistograms, DeviceTimes, Histogram, MonotonicClock, Timed};
use std::sync::Arc;

/// Histograms of how long calls to a lane's devices take. The devices add each further call.
#[derive(Clone, Debug)]
pub(crate) struct TierTimes {
    fast: Arc<DeviceTimes>,
    lower: Option<Arc<DeviceTimes>>,
}

/// Histograms of a lane's store since it was opened. `stats reset` does not change them.
#[derive(Clone, Debug)]
pub struct StoreHistograms {
    /// The durations of calls to the lane's device.
    pub fast: DeviceHistograms,
    /// The durations of calls to the lane's lower device, if the lane has one.
    pub lower: Option<DeviceHistograms>,
    /// The number of bytes that each commit made durable: records and their trailers.
    pub commit_bytes: Histogram,
}

impl TierTimes {
    /// Returns the histograms of durations as they are now, together with `commit_bytes`.
    pub(crate) fn with_commits(&self, commit_bytes: Histogram) -> StoreHistograms {
        let lower = self.lower.as_ref().map(|times| times.read());
        StoreHistograms { fast: self.fast.read(), lower, commit_bytes }
    }
}

/// Wraps a lane's devices, so that the durations of all calls to them are recorded.
pub(crate) fn timed(given: StoreDevice, clock: &MonotonicClock) -> (StoreDevice, TierTimes) {
    let timed = |device| {
        let timed = Timed::new(device, clock.clone());
        let times = Arc::clone(timed.times());
        (Arc::new(timed) as Arc<dyn Device>, times)
    };
    let (device, fast) = timed(given.device);
    let lower = given.lower.map(|LowerDevice { name, device }| {
        let (device, times) = timed(device);
        (LowerDevice { name, device }, times)
    });
    let (lower, lower_times) = lower.unzip();
    (StoreDevice { device, lower, ..given }, TierTimes { fast, lower: lower_times })
}
