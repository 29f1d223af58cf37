//! The histograms of the store: calls of its devices, sizes of commits, and how long replies waited
//! for their commits.

use larder_disk::{DeviceHistograms, Histogram};

use super::metric::MetricUnit;
use super::snapshot::Snapshot;

/// A kind of histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    /// How long replies waited for their commits, while latencies are measured.
    CommitWaits,
    /// The bytes that commits made durable, for each lane.
    CommitBytes,
    /// The durations of syncs, for each device.
    Syncs,
    /// The durations of writes, for each device.
    Writes,
    /// The durations of reads, for each device.
    Reads,
}

/// A histogram of one device. If `of` is `None`, it is a histogram of the whole server.
#[derive(Debug)]
pub(super) struct Distributed {
    of: Option<MeasuredDevice>,
    pub(super) histogram: Histogram,
}

/// A device of the store.
#[derive(Debug)]
struct MeasuredDevice {
    lane: String,
    device: String,
    is_lower: bool,
}

impl Distribution {
    /// Returns the unit of the values.
    pub(super) fn unit(self) -> MetricUnit {
        match self {
            Distribution::CommitBytes => MetricUnit::Bytes,
            _ => MetricUnit::Nanoseconds,
        }
    }

    /// Returns all histograms of this kind; none without a store.
    pub(super) fn all(self, snapshot: &Snapshot<'_>) -> Vec<Distributed> {
        let times: fn(&DeviceHistograms) -> &Histogram = match self {
            Distribution::CommitWaits => {
                let waits = snapshot
                    .latencies
                    .as_ref()
                    .and_then(|all| snapshot.with_store(all.commit_waits.clone()));
                let all = waits.map(|histogram| Distributed { of: None, histogram });
                return all.into_iter().collect();
            }
            Distribution::CommitBytes => {
                let lanes = snapshot.lanes().zip(snapshot.store_histograms());
                let all = lanes.map(|(lane, store)| Distributed {
                    of: Some(lane.place()),
                    histogram: store.commit_bytes.clone(),
                });
                return all.collect();
            }
            Distribution::Syncs => |times| &times.sync,
            Distribution::Writes => |times| &times.write,
            Distribution::Reads => |times| &times.read,
        };
        let mut all = Vec::new();
        for (lane, store) in snapshot.lanes().zip(snapshot.store_histograms()) {
            let of = lane.place();
            all.push(Distributed { of: Some(of), histogram: times(&store.fast).clone() });
            if let (Some(lower), Some(device)) = (&store.lower, &lane.state.lower) {
                let place =
                    MeasuredDevice { device: device.clone(), is_lower: true, ..lane.place() };
                all.push(Distributed { of: Some(place), histogram: times(lower).clone() });
            }
        }
        all
    }
}

impl super::snapshot::LaneView<'_> {
    fn place(&self) -> MeasuredDevice {
        let (lane, device) = (self.state.number.to_string(), self.state.name.clone());
        MeasuredDevice { lane, device, is_lower: false }
    }
}

impl Distributed {
    /// Returns the lane's number, with `:lower` for its lower device; empty for the whole server.
    pub(super) fn place(&self) -> String {
        match &self.of {
            None => String::new(),
            Some(MeasuredDevice { lane, is_lower: false, .. }) => lane.clone(),
            Some(MeasuredDevice { lane, is_lower: true, .. }) => format!("{lane}:lower"),
        }
    }

    pub(super) fn labels(&self) -> Vec<(&'static str, &str)> {
        let of = self.of.iter();
        of.flat_map(|of| [("lane", of.lane.as_str()), ("device", of.device.as_str())]).collect()
    }
}
