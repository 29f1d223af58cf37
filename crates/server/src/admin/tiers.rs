//! `/v1/tiers`: how long the reads, writes or syncs of each device took over time, for the heat
//! maps of the view Tiers.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use larder_engine::LaneState;
use serde::Serialize;

use super::device_times::{CallSteps, KINDS, STEP_MS, STEPS, bounds};
use super::headers::HARDENED;
use super::state::{AdminState, Serving};

/// Returns the calls of the kind that the query names: `kind=read`, `kind=write` or `kind=sync`.
pub(super) async fn show(
    Serving(running): Serving,
    State(state): State<Arc<AdminState>>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(kind) = kind_of(query.as_deref()) else {
        return (StatusCode::BAD_REQUEST, "the query is kind=read, kind=write or kind=sync\n")
            .into_response();
    };
    let lanes = if running.settings().has_store() { running.engine.lanes() } else { Vec::new() };
    let answer = TiersAnswer::of(kind, &state.recent_times.read(), &lanes);
    (HARDENED, axum::Json(answer)).into_response()
}

fn kind_of(query: Option<&str>) -> Option<usize> {
    let name = query?.strip_prefix("kind=")?;
    KINDS.iter().position(|(kind, _)| *kind == name)
}

#[derive(Debug, Serialize)]
struct TiersAnswer {
    /// The upper bounds of the heat map's rows, in nanoseconds: each row counts the calls of one
    /// range of durations. The last row has no bound.
    bounds: Vec<u64>,
    /// The time of a complete heat map, which has [`STEPS`] steps, in seconds.
    span: u64,
    /// The beginning of the first step and the ends of all steps, in milliseconds since the Unix
    /// epoch.
    times: Vec<u64>,
    devices: Vec<DeviceCells>,
}

#[derive(Debug, Serialize)]
struct DeviceCells {
    lane: u8,
    device: String,
    /// True for a lane's lower device.
    lower: bool,
    /// Step, row and number of calls of each cell that is not empty.
    cells: Vec<(u8, u8, u32)>,
}

impl TiersAnswer {
    /// Builds the answer for one kind of calls. `steps` has the devices in the order of `lanes`. A
    /// lane's lower device follows the lane's first device.
    fn of(kind: usize, steps: &CallSteps, lanes: &[LaneState]) -> TiersAnswer {
        let names = lanes.iter().flat_map(|lane| {
            let fast = (lane.number.0, &lane.name, false);
            [fast].into_iter().chain(lane.lower.iter().map(|name| (lane.number.0, name, true)))
        });
        let devices = names.enumerate().map(|(at, (lane, name, lower))| {
            let cells = steps.cells(kind, at).collect();
            DeviceCells { lane, device: name.clone(), lower, cells }
        });
        TiersAnswer {
            bounds: bounds().collect(),
            span: STEP_MS / 1000 * STEPS as u64,
            times: steps.times().collect(),
            devices: devices.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_kinds_are_shown() {
        for query in [
            None,
            Some(""),
            Some("kind="),
            Some("kind=reads"),
            Some("read"),
            Some("kind=read&kind=sync"),
        ] {
            assert_eq!(kind_of(query), None, "{query:?}");
        }
        assert_eq!(kind_of(Some("kind=sync")), Some(2));
    }
}
