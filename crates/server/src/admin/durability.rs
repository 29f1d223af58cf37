//! `/v1/durability`: the histograms of the page's Durability view, as JSON. Each histogram comes
//! twice: for about the last minute, and for the time since the start.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use larder_disk::Histogram;
use larder_engine::LaneState;
use serde::Serialize;

use super::headers::HARDENED;
use super::recent::{MeasuredLane, MeasuredStore};
use super::state::{AdminState, Serving};

/// Returns the histograms of waits, commits and syncs.
pub(super) async fn show(
    Serving(running): Serving,
    State(state): State<Arc<AdminState>>,
) -> Response {
    let now = MeasuredStore::of(&running);
    let earlier = state.recent_store.earliest();
    (HARDENED, axum::Json(DurabilityAnswer::of(&now, earlier.as_ref(), &running.engine.lanes())))
        .into_response()
}

#[derive(Debug, Serialize)]
struct DurabilityAnswer {
    /// The time that the recent histograms cover, in seconds.
    seconds: f64,
    /// The upper bounds of the buckets of all histograms: in bytes for commits, in nanoseconds for
    /// waits and syncs. The last bucket has no bound.
    bounds: Vec<u64>,
    waits: Option<ShapePair>,
    /// The histograms of each lane. If there are several lanes, the sum over all lanes comes first.
    lanes: Vec<LaneShapes>,
}

#[derive(Debug, Serialize)]
struct LaneShapes {
    /// The number of the lane; `null` for the sum over all lanes.
    lane: Option<u8>,
    device: Option<String>,
    lower_device: Option<String>,
    /// Commits, by the number of bytes that each made durable.
    commits: ShapePair,
    syncs: ShapePair,
    lower_syncs: Option<ShapePair>,
}

/// Two histograms of the same values: of about the last minute, and since the start of the server.
#[derive(Debug, Serialize)]
struct ShapePair {
    recent: HistogramShape,
    ever: HistogramShape,
}

#[derive(Debug, Serialize)]
struct HistogramShape {
    count: u64,
    sum: u64,
    p50: Option<u64>,
    p99: Option<u64>,
    /// The number of values in each bucket.
    counts: Vec<u64>,
}

impl DurabilityAnswer {
    /// Builds the answer. `states` has the states of all lanes, in the order of `now.lanes`.
    fn of(
        now: &MeasuredStore,
        earlier: Option<&MeasuredStore>,
        states: &[LaneState],
    ) -> DurabilityAnswer {
        let seconds = earlier.map_or(0, |earlier| now.up_ms.saturating_sub(earlier.up_ms));
        let before = |at: usize| earlier.and_then(|earlier| earlier.lanes.get(at));
        let waits = now
            .waits
            .as_ref()
            .map(|waits| ShapePair::of(waits, earlier.and_then(|earlier| earlier.waits.as_ref())));
        let mut lanes: Vec<LaneShapes> = Vec::new();
        if now.lanes.len() > 1 {
            let sum = |of: &MeasuredStore| {
                let mut sum = MeasuredLane::default();
                of.lanes.iter().for_each(|lane| sum.add(lane));
                sum
            };
            lanes.push(LaneShapes::of(None, &sum(now), earlier.map(sum).as_ref()));
        }
        for (at, (lane, state)) in now.lanes.iter().zip(states).enumerate() {
            lanes.push(LaneShapes::of(Some(state), lane, before(at)));
        }
        let bounds = Histogram::few_bounds(0).collect();
        DurabilityAnswer { seconds: seconds as f64 / 1000.0, bounds, waits, lanes }
    }
}

impl LaneShapes {
    fn of(
        state: Option<&LaneState>,
        now: &MeasuredLane,
        earlier: Option<&MeasuredLane>,
    ) -> LaneShapes {
        let lower_before = earlier.and_then(|earlier| earlier.lower_syncs.as_ref());
        LaneShapes {
            lane: state.map(|state| state.number.0),
            device: state.map(|state| state.name.clone()),
            lower_device: state.and_then(|state| state.lower.clone()),
            commits: ShapePair::of(&now.commits, earlier.map(|earlier| &earlier.commits)),
            syncs: ShapePair::of(&now.syncs, earlier.map(|earlier| &earlier.syncs)),
            lower_syncs: now.lower_syncs.as_ref().map(|now| ShapePair::of(now, lower_before)),
        }
    }
}

impl ShapePair {
    /// Builds a pair from two readings of a histogram that counts since the start. The recent
    /// histogram is their difference. Without an `earlier` reading it is empty.
    fn of(now: &Histogram, earlier: Option<&Histogram>) -> ShapePair {
        let recent = now.since(earlier.unwrap_or(now));
        ShapePair { recent: HistogramShape::of(&recent), ever: HistogramShape::of(now) }
    }
}

impl HistogramShape {
    fn of(histogram: &Histogram) -> HistogramShape {
        HistogramShape {
            count: histogram.count(),
            sum: histogram.sum,
            p50: histogram.quantile(0.5),
            p99: histogram.quantile(0.99),
            counts: histogram.counts_by_few(0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device_times::tests::histogram;
    use super::*;

    fn measured(up_ms: u64, lanes: Vec<MeasuredLane>) -> MeasuredStore {
        MeasuredStore { up_ms, waits: Some(histogram(&[1000])), lanes }
    }

    #[test]
    fn the_recent_values_are_those_since_the_earlier_histograms() {
        let lane = |commits: &[u64], syncs: &[u64], lower_syncs: Option<&[u64]>| MeasuredLane {
            commits: histogram(commits),
            syncs: histogram(syncs),
            lower_syncs: lower_syncs.map(histogram),
        };
        let before = measured(5000, vec![lane(&[700], &[90], None), lane(&[], &[], Some(&[7]))]);
        let now = measured(
            8500,
            vec![
                lane(&[700, 4100, u64::MAX], &[90, 91], None),
                lane(&[5000], &[], Some(&[7, 2_000_000])),
            ],
        );
        let answer = DurabilityAnswer::of(&now, Some(&before), &[]);
        assert_eq!((answer.seconds, answer.bounds.len()), (3.5, 25));
        assert_eq!(answer.waits.unwrap().recent.count, 0);
        // `states` is empty, so the answer contains only the sum over all lanes.
        let [sum] = &answer.lanes[..] else { panic!("{:?}", answer.lanes) };
        let full = |shape: &HistogramShape| {
            assert_eq!(shape.counts.len(), 26);
            assert_eq!(shape.counts.iter().sum::<u64>(), shape.count);
            let counts = shape.counts.iter().enumerate().filter(|(_, count)| **count > 0);
            counts.map(|(at, count)| (answer.bounds.get(at).copied(), *count)).collect::<Vec<_>>()
        };
        assert_eq!(full(&sum.commits.recent), [(Some(5000), 2), (None, 1)]);
        assert_eq!(full(&sum.commits.ever), [(Some(1000), 1), (Some(5000), 2), (None, 1)]);
        assert_eq!(full(&sum.syncs.recent), [(Some(100), 1)]);
        assert_eq!(full(&sum.lower_syncs.as_ref().unwrap().recent), [(Some(2_000_000), 1)]);
        assert_eq!(sum.syncs.recent.sum, 91);
        let first = DurabilityAnswer::of(&now, None, &[]);
        assert_eq!((first.seconds, first.lanes[0].commits.recent.count), (0.0, 0));
        assert_eq!(first.lanes[0].commits.ever.count, 4);
        assert_eq!(
            (first.lanes[0].commits.recent.p50, first.lanes[0].commits.recent.sum),
            (None, 0)
        );
    }
}
