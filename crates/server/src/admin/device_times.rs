//! How long the reads, writes and syncs of each device took over time, in steps of three seconds.
//! The last 50 steps are kept. They take the most memory, 0.9 MB, if a store has 32 devices with a
//! lower device each.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_disk::{DeviceHistograms, Histogram};
use larder_engine::StoreHistograms;

use crate::server::Running;

/// The length of a step, in milliseconds. The server is sampled once a second, so a step ends with
/// every third sample.
pub(super) const STEP_MS: u64 = 3000;
/// A step may be shorter than [`STEP_MS`] by this many milliseconds, because a sample may come
/// early.
const EARLY_MS: u64 = 500;
/// The number of steps that are kept.
pub(super) const STEPS: usize = 50;
/// Calls are counted in [`ROWS`] rows, by their duration. This is the upper bound of the first row,
/// in nanoseconds. No call of a device is much faster.
const LEAST_NS: u64 = 1000;
/// The number of rows. A row counts the calls that took longer than the bound of the previous row,
/// but not longer than its own bound. The last row has no bound.
const ROWS: usize = 23;

// `CallSteps::cells` returns the indexes of steps and rows as `u8`.
const _: () = assert!(STEPS <= 256 && ROWS <= 256);

type OfTimes = fn(&DeviceHistograms) -> &Histogram;

/// The kinds of device calls: the name, and a function that selects the histogram.
pub(super) const KINDS: [(&str, OfTimes); 3] =
    [("read", |times| &times.read), ("write", |times| &times.write), ("sync", |times| &times.sync)];

/// Counts of one device's calls, by kind and row: the calls since the start of the server, or those
/// of one step.
type DeviceCalls<N> = [[N; ROWS]; KINDS.len()];

/// The counts of device calls in one step.
#[derive(Debug)]
struct CallStep {
    /// The end of the step, in milliseconds since the Unix epoch.
    to: u64,
    /// The counts of each device, in the order of the lanes. After each lane's device comes its
    /// lower device, if it has one.
    devices: Vec<DeviceCalls<u32>>,
}

/// The counts of device calls from the server's start to `time`.
#[derive(Clone, Debug)]
struct MeasuredCalls {
    /// Time at which the counts were read, in milliseconds since the Unix epoch.
    time: u64,
    devices: Vec<DeviceCalls<u64>>,
}

/// The last [`STEPS`] steps, the newest last.
#[derive(Debug, Default)]
pub(super) struct CallSteps {
    /// The beginning of the first kept step, in milliseconds since the Unix epoch.
    from: u64,
    steps: VecDeque<CallStep>,
    last: Option<MeasuredCalls>,
}

/// The past steps of a server.
#[derive(Debug, Default)]
pub(super) struct RecentTimes(Mutex<CallSteps>);

impl RecentTimes {
    /// Returns the past steps, locked.
    pub(super) fn read(&self) -> MutexGuard<'_, CallSteps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current step if it is long enough. [`live`](super::live), which samples the server
    /// for the page, calls this method once a second.
    pub(super) fn beat(&self, running: &Running) {
        if !running.settings().has_store() {
            return;
        }
        let now = running.clock.wall_ms(running.clock.nanos());
        let mut steps = self.read();
        if steps.is_over(now) {
            let devices = each_device(&running.engine.store_histograms()).map(calls_of).collect();
            steps.push(MeasuredCalls { time: now, devices });
        }
    }
}

impl CallSteps {
    fn is_over(&self, now: u64) -> bool {
        self.last.as_ref().is_none_or(|last| now.saturating_sub(last.time) >= STEP_MS - EARLY_MS)
    }

    fn push(&mut self, now: MeasuredCalls) {
        if let Some(last) = &self.last {
            let pairs = now.devices.iter().zip(&last.devices);
            let devices = pairs.map(|(now, last)| since(now, last)).collect();
            self.steps.push_back(CallStep { to: now.time, devices });
            if self.steps.len() > STEPS {
                self.from = self.steps.pop_front().map_or(0, |first| first.to);
            }
        } else {
            self.from = now.time;
        }
        self.last = Some(now);
    }

    /// Returns the beginning of the first step and the ends of all steps; nothing if there is no
    /// step.
    pub(super) fn times(&self) -> impl Iterator<Item = u64> {
        let from = (!self.steps.is_empty()).then_some(self.from);
        from.into_iter().chain(self.steps.iter().map(|step| step.to))
    }

    /// Returns a triple for each step and row in which `device` has calls of `kind`: the index of
    /// the step, the index of the row, and the number of calls.
    pub(super) fn cells(&self, kind: usize, device: usize) -> impl Iterator<Item = (u8, u8, u32)> {
        let of = move |step: &CallStep| step.devices.get(device).map(|calls| calls[kind]);
        self.steps.iter().enumerate().flat_map(move |(at, step)| {
            let rows = of(step).into_iter().flatten().enumerate();
            let full = rows.filter(|(_, calls)| *calls > 0);
            full.map(move |(row, calls)| (at as u8, row as u8, calls))
        })
    }
}

fn each_device(lanes: &[StoreHistograms]) -> impl Iterator<Item = &DeviceHistograms> {
    lanes.iter().flat_map(|lane| [&lane.fast].into_iter().chain(&lane.lower))
}

fn calls_of(times: &DeviceHistograms) -> DeviceCalls<u64> {
    KINDS.map(|(_, of)| rows_of(of(times)))
}

/// Returns the upper bounds of the rows in nanoseconds. The last row has no bound.
pub(super) fn bounds() -> impl Iterator<Item = u64> {
    Histogram::few_bounds(LEAST_NS)
}

/// Returns the number of values in each row.
fn rows_of(histogram: &Histogram) -> [u64; ROWS] {
    let mut rows = [0; ROWS];
    rows.iter_mut().zip(histogram.counts_by_few(LEAST_NS)).for_each(|(row, count)| *row = count);
    rows
}

fn since(now: &DeviceCalls<u64>, last: &DeviceCalls<u64>) -> DeviceCalls<u32> {
    std::array::from_fn(|kind| {
        std::array::from_fn(|row| {
            let grown = now[kind][row].saturating_sub(last[kind][row]);
            u32::try_from(grown).unwrap_or(u32::MAX)
        })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use larder_disk::Recorder;

    pub(in crate::admin) fn histogram(values: &[u64]) -> Histogram {
        let recorder = Recorder::default();
        values.iter().for_each(|value| recorder.add(*value, 1));
        recorder.read()
    }

    fn measured(time: u64, devices: &[(&[u64], &[u64])]) -> MeasuredCalls {
        let calls = devices.iter().map(|(read, sync)| {
            let (read, sync) = (histogram(read), histogram(sync));
            calls_of(&DeviceHistograms { read, write: Histogram::default(), sync })
        });
        MeasuredCalls { time, devices: calls.collect() }
    }

    #[test]
    fn a_row_holds_the_values_up_to_its_bound_and_above_the_one_before() {
        let bounds: Vec<u64> = bounds().collect();
        assert_eq!(
            (bounds.len(), bounds[0], bounds[1], bounds[21]),
            (22, 1000, 2000, 10_000_000_000)
        );
        let rows = rows_of(&histogram(&[1, 1000, 1001, 2000, 5001, 10_000_000_000, u64::MAX]));
        let full = rows.iter().enumerate().filter(|(_, count)| **count > 0);
        let full: Vec<(usize, u64)> = full.map(|(row, count)| (row, *count)).collect();
        assert_eq!(full, [(0, 2), (1, 2), (3, 1), (21, 1), (22, 1)]);
    }

    #[test]
    fn steps_have_the_calls_of_their_time_by_device_and_kind() {
        let mut steps = CallSteps::default();
        assert!(steps.is_over(5000));
        steps.push(measured(5000, &[(&[700], &[]), (&[], &[30_000])]));
        assert_eq!(steps.times().count(), 0, "there is no step yet");
        assert!(!steps.is_over(7400) && steps.is_over(7500));
        steps.push(measured(8000, &[(&[700, 1500, 1600], &[]), (&[], &[30_000])]));
        // The machine was suspended for a minute. Device 0 has fewer reads than before, as after a
        // reset, so no reads must be counted for it.
        steps.push(measured(70_000, &[(&[700], &[9000]), (&[], &[30_000, 30_000])]));
        assert_eq!(steps.times().collect::<Vec<_>>(), [5000, 8000, 70_000]);
        let cells = |kind, device| steps.cells(kind, device).collect::<Vec<_>>();
        let [read, write, sync] = [0, 1, 2];
        assert_eq!((cells(read, 0), cells(read, 1)), (vec![(0, 1, 2)], vec![]));
        assert_eq!((cells(sync, 0), cells(sync, 1)), (vec![(1, 3, 1)], vec![(1, 5, 1)]));
        assert_eq!((cells(write, 0), cells(write, 2)), (vec![], vec![]));
    }

    #[test]
    fn the_kept_steps_are_few_and_small() {
        let mut steps = CallSteps::default();
        for second in 0..500 {
            let now = second * 1000;
            if steps.is_over(now) {
                steps.push(measured(now, &[(&vec![5; second as usize], &[])]));
            }
            let times: Vec<u64> = steps.times().collect();
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] == STEP_MS), "{times:?}");
            assert!(steps.steps.len() <= STEPS);
        }
        assert_eq!(steps.times().last().unwrap() - steps.from, 150_000);
        assert_eq!(
            steps.cells(0, 0).collect::<Vec<_>>(),
            (0..50).map(|at| (at, 0, 3)).collect::<Vec<_>>()
        );
        // The largest store: 32 lanes with two devices each.
        let devices = 64;
        let bytes =
            devices * (STEPS * size_of::<DeviceCalls<u32>>() + size_of::<DeviceCalls<u64>>());
        assert!(bytes < 930_000, "{bytes}");
    }
}
