//! The figures of a run.

use std::collections::BTreeMap;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::record::{Faults, Tally, VerbCount};
use super::worker::WorkerReport;
use super::{Load, Moment};
use crate::interrupt::is_interrupted;
use crate::process::Sample;
use crate::workload::{Shape, Verb};
use crate::{Error, Result, machine};

/// The distribution of a latency, in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latencies {
    /// The minimum.
    pub min_us: f64,
    /// The arithmetic mean.
    pub mean_us: f64,
    /// Percentiles by name, `p50` to `p99.999`, in order.
    pub percentiles_us: Vec<(String, f64)>,
    /// The maximum.
    pub max_us: f64,
}

const PERCENTILES: [(&str, f64); 8] = [
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
];

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

impl Latencies {
    pub(super) fn of(histogram: &Histogram<u64>) -> Latencies {
        if histogram.is_empty() {
            return Latencies::default();
        }
        let percentile =
            |&(name, q): &(&str, f64)| (name.to_owned(), micros(histogram.value_at_quantile(q)));
        Latencies {
            min_us: micros(histogram.min()),
            mean_us: histogram.mean() / 1000.0,
            percentiles_us: PERCENTILES.iter().map(percentile).collect(),
            max_us: micros(histogram.max()),
        }
    }

    /// Returns the percentile named `name`, in microseconds; 0 if nothing was measured.
    pub fn get(&self, name: &str) -> f64 {
        self.percentiles_us.iter().find(|row| row.0 == name).map_or(0.0, |row| row.1)
    }
}

/// The figures of one second of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Second {
    /// Answered requests per second.
    pub requests_per_second: f64,
    /// Answered keys per second.
    pub keys_per_second: f64,
    /// The median latency in microseconds.
    pub p50_us: f64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// The maximum latency in microseconds.
    pub max_us: f64,
    /// In the open loop, the longest time between a request's due time and its sending, in
    /// microseconds, if its connection was free. The generator or its machine causes this delay,
    /// not the server.
    pub generator_lag_us: f64,
    /// The server's use of resources, if its process was known.
    pub server: Option<SecondUse>,
}

/// The server's use of resources in one second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SecondUse {
    /// Average number of processors that the server kept busy.
    pub busy: f64,
    /// Average number of the server's threads that were ready to run but had no processor. A value
    /// above 0 means that the server could have used more processors than it got.
    pub waiting: f64,
    /// Bytes per second written to devices or to the page cache; 0 if unknown.
    pub written_per_second: f64,
    /// Bytes per second read from devices; 0 if unknown.
    pub read_per_second: f64,
    /// The part of `busy` that the server spent in the kernel. It is less exact than `busy`,
    /// because the kernel counts this time in clock ticks.
    pub system: f64,
}

impl Second {
    pub(super) fn of(tally: &Tally, length: f64, server: Option<SecondUse>) -> Second {
        let (total, latencies) = (tally.total(), tally.all_latencies());
        Second {
            requests_per_second: total.requests as f64 / length,
            keys_per_second: total.keys as f64 / length,
            p50_us: micros(latencies.value_at_quantile(0.5)),
            p99_us: micros(latencies.value_at_quantile(0.99)),
            p999_us: micros(latencies.value_at_quantile(0.999)),
            server,
            max_us: micros(latencies.max()),
            generator_lag_us: tally.lag.as_deref().map_or(0.0, |lag| micros(lag.max())),
        }
    }
}

/// The server's use of resources during the run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ServerUse {
    /// Microseconds of processor time per request.
    pub cpu_us_per_request: f64,
    /// Microseconds of processor time per key.
    pub cpu_us_per_key: f64,
    /// Average number of processors that the server kept busy.
    pub busy: f64,
    /// Average number of the server's threads that were ready to run but had no processor. A value
    /// above 0 means that the server could have used more processors than it got.
    pub waiting: f64,
    /// Resident bytes at the start of the measurement.
    pub rss_before: u64,
    /// Resident bytes at the end of the measurement.
    pub rss_after: u64,
    /// Bytes written to devices or to the page cache during the measurement; 0 if unknown.
    pub written: u64,
    /// Bytes read from devices during the measurement; 0 if unknown.
    pub read: u64,
}

/// The figures of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Closed loop, or open loop with its rate.
    pub pacing: String,
    /// The verbs with their weights.
    pub mix: String,
    /// Number of connections of all threads together.
    pub connections: usize,
    /// Number of generator threads.
    pub threads: usize,
    /// The largest number of requests in flight per connection.
    pub pipeline: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Key lengths in bytes.
    pub key_lengths: String,
    /// Value lengths in bytes.
    pub value_lengths: String,
    /// The popularity of keys.
    pub distribution: String,
    /// Number of keys per get.
    pub keys_per_get: usize,
    /// The seed from which the requests were generated.
    pub seed: u64,
    /// True if the values were checked.
    pub verified: bool,
    /// Length of the measurement in seconds.
    pub seconds: f64,
    /// The counts of all verbs together.
    pub total: VerbCount,
    /// Answered requests per second.
    pub requests_per_second: f64,
    /// Answered keys per second.
    pub keys_per_second: f64,
    /// Keys found, divided by keys requested; `None` if no keys were requested.
    pub hit_ratio: Option<f64>,
    /// Latencies of all verbs together.
    pub latency: Latencies,
    /// Counts by verb.
    pub verbs: BTreeMap<&'static str, VerbCount>,
    /// Latencies by verb.
    pub verb_latency: BTreeMap<&'static str, Latencies>,
    /// Requests without an answer. Each of them adds to the latencies the time that it had waited
    /// when the run gave up.
    pub unanswered: u64,
    /// Error answers in the whole run, including the warm-up.
    pub errors: u64,
    /// The first error answer.
    pub first_error: Option<String>,
    /// Average number of processors that the generator kept busy.
    pub generator_busy: f64,
    /// True if the generator kept more than 80 % of the processors busy that its threads can use
    /// at the same time: it may have limited the figures.
    pub generator_bound: bool,
    /// In the open loop, the 99th percentile of the time between a request's due time and its
    /// sending, in microseconds, of requests whose connection was free.
    pub generator_lag_p99_us: f64,
    /// The server's use of resources, if its process was known.
    pub server: Option<ServerUse>,
    /// The figures of each second.
    pub per_second: Vec<Second>,
    /// Requests that were due in the run and answered after its last second.
    pub answered_late: u64,
    /// The numbers that counters returned, if the load collected them.
    #[serde(skip)]
    pub numbers: Vec<u64>,
    /// One pair per request, if the load kept them: the start of the request, counted from the
    /// beginning of the measurement, and its latency. Both are in nanoseconds.
    #[serde(skip)]
    pub samples: Vec<(u64, u64)>,
    /// The time at which the measurement began, after the warm-up.
    #[serde(skip)]
    pub began: Option<Instant>,
    /// The distribution from which `latency` is computed, for [`Summary::histogram`].
    #[serde(skip)]
    recorded: Option<Histogram<u64>>,
}

impl Summary {
    pub(super) fn build(
        load: &Load,
        shape: &Shape,
        reports: Vec<WorkerReport>,
        moments: Vec<Moment>,
        seconds: Vec<Tally>,
        began: Option<Instant>,
    ) -> Result<Summary> {
        let mut tally = Tally::default();
        seconds.iter().for_each(|second| tally.add(second));
        let Merged { faults, numbers, samples, busy, window } = Merged::of(reports);
        if faults.wrong > 0 {
            let first = faults.first_wrong.unwrap_or_default();
            return Err(Error::Void(format!("{} wrong answers, the first: {first}", faults.wrong)));
        }
        let length = measured_length(load, shape, window)?;
        let total = tally.total();
        let recorded = tally.all_latencies();
        // Pinned threads share one processor.
        let processors = load.cpu.map_or_else(machine::processors, |_| 1);
        Ok(Summary {
            pacing: load.pacing.to_string(),
            mix: shape.mix.to_string(),
            connections: load.connections,
            threads: load.threads,
            pipeline: load.pipeline,
            keys: shape.keys,
            key_lengths: shape.key_lengths.to_string(),
            value_lengths: shape.value_lengths.to_string(),
            distribution: shape.distribution.to_string(),
            keys_per_get: shape.keys_per_get,
            seed: load.seed,
            verified: load.verify,
            seconds: length,
            total,
            requests_per_second: total.requests as f64 / length,
            keys_per_second: total.keys as f64 / length,
            hit_ratio: hit_ratio(&tally),
            latency: Latencies::of(&recorded),
            verbs: by_verb(|verb| Some(tally.counts[verb as usize]).filter(|c| c.requests > 0)),
            verb_latency: by_verb(|verb| {
                tally.latencies[verb as usize].as_deref().map(Latencies::of)
            }),
            unanswered: faults.unanswered,
            errors: faults.errors,
            first_error: faults.first_error,
            generator_busy: busy,
            generator_bound: is_bound(busy, load.threads, processors),
            generator_lag_p99_us: tally
                .lag
                .as_deref()
                .map_or(0.0, |lag| micros(lag.value_at_quantile(0.99))),
            server: server_use(&moments),
            per_second: per_second(&seconds, length, &moments),
            answered_late: seconds
                .iter()
                .skip(measured_seconds(length))
                .map(|tally| tally.total().requests)
                .sum(),
            numbers,
            samples,
            began,
            recorded: Some(recorded),
        })
    }

    /// Returns the number of requests per range of latencies, as pairs of the range's upper end in
    /// microseconds and the number. The pairs are in ascending order. Each end is 5 % above the one
    /// before. Ranges without requests are left out.
    pub(crate) fn histogram(&self) -> Vec<(f64, u64)> {
        let Some(recorded) = &self.recorded else { return Vec::new() };
        let steps = recorded.iter_log(1000, 1.05);
        let counts =
            steps.map(|step| (step.value_iterated_to(), step.count_since_last_iteration()));
        counts.filter(|step| step.1 > 0).map(|(value, count)| (micros(value), count)).collect()
    }

    /// Returns this summary, unless the server answered a request with an error or not at all.
    ///
    /// # Errors
    /// Returns [`Error::Void`], with the first error answer if there is one.
    pub fn without_errors(self) -> Result<Summary> {
        match &self.first_error {
            None if self.unanswered == 0 => Ok(self),
            None => Err(Error::Void(format!("{} requests were not answered", self.unanswered))),
            Some(first) => {
                Err(Error::Void(format!("{} error answers, the first: {first}", self.errors)))
            }
        }
    }
}

/// The results of all threads together.
struct Merged {
    faults: Faults,
    /// The numbers that counters returned.
    numbers: Vec<u64>,
    /// The start and the latency of each request, in nanoseconds, sorted by start.
    samples: Vec<(u64, u64)>,
    /// Average number of processors that the threads kept busy.
    busy: f64,
    /// The longest measured window of a thread, in nanoseconds.
    window: u64,
}

impl Merged {
    fn of(reports: Vec<WorkerReport>) -> Merged {
        let (faults, numbers, samples) = (Faults::default(), Vec::new(), Vec::new());
        let mut merged = Merged { faults, numbers, samples, busy: 0.0, window: 0 };
        for report in reports {
            merged.faults.add(report.faults);
            merged.numbers.extend(report.counted);
            merged.samples.extend(report.samples);
            merged.busy += report.cpu as f64 / report.window.max(1) as f64;
            merged.window = merged.window.max(report.window);
        }
        merged.samples.sort_unstable();
        merged
    }
}

/// Returns the length of a measurement in seconds. `window` is the longest measured window of a
/// thread, in nanoseconds.
///
/// # Errors
/// Returns an error if a signal ended the run before the measurement began.
fn measured_length(load: &Load, shape: &Shape, window: u64) -> Result<f64> {
    let asked = load.duration.map_or(f64::MAX, |duration| duration.as_secs_f64());
    // With `in_order`, the load may end early: once it has requested all keys.
    let length = match load.duration {
        Some(_) if !is_interrupted() && !shape.in_order => asked,
        _ => asked.min(window as f64 / 1e9),
    };
    if is_interrupted() && length <= 0.0 {
        return Err(Error::server("interrupted before anything was measured"));
    }
    Ok(length)
}

/// Returns true if a generator may have limited the figures: its threads kept more than 80 % of the
/// processors busy that they can use at the same time. `busy` is the average number of processors
/// that they kept busy, and `processors` the number of those that they may use.
pub(crate) fn is_bound(busy: f64, threads: usize, processors: usize) -> bool {
    busy > 0.8 * threads.min(processors) as f64
}

fn by_verb<T>(value: impl Fn(Verb) -> Option<T>) -> BTreeMap<&'static str, T> {
    Verb::all().filter_map(|verb| Some((verb.name(), value(verb)?))).collect()
}

fn hit_ratio(tally: &Tally) -> Option<f64> {
    let mut reads = VerbCount::default();
    for verb in Verb::all().filter(|verb| verb.returns_values()) {
        reads.add(&tally.counts[verb as usize]);
    }
    let known = reads.hits + reads.misses;
    (known > 0).then(|| reads.hits as f64 / known as f64)
}

fn server_use(moments: &[Moment]) -> Option<ServerUse> {
    let (first, last) = (moments.first()?, moments.last()?);
    let (before, after) = (first.server?, last.server?);
    let cpu = after.cpu_ns.saturating_sub(before.cpu_ns) as f64;
    let per = |count: u64| if count > 0 { cpu / 1000.0 / count as f64 } else { 0.0 };
    Some(ServerUse {
        cpu_us_per_request: per(last.requests - first.requests),
        cpu_us_per_key: per(last.keys - first.keys),
        busy: cpu / (last.time - first.time).max(1) as f64,
        waiting: after.wait_ns.saturating_sub(before.wait_ns) as f64
            / (last.time - first.time).max(1) as f64,
        rss_before: before.rss,
        rss_after: after.rss,
        written: after.written.saturating_sub(before.written),
        read: after.read.saturating_sub(before.read),
    })
}

/// Returns the number of seconds that a measurement of `length` seconds touches. The last second
/// may be incomplete, but is left out if less than a millisecond of it was measured.
fn measured_seconds(length: f64) -> usize {
    (length - 0.001).max(0.0).ceil() as usize
}

/// Returns the figures of each second. Answers after the last second are left out.
fn per_second(seconds: &[Tally], length: f64, moments: &[Moment]) -> Vec<Second> {
    let rows = seconds.iter().take(measured_seconds(length)).enumerate();
    rows.map(|(index, tally)| {
        let share = (length - index as f64).min(1.0);
        let bounds = moments.get(index).zip(moments.get(index + 1));
        Second::of(tally, share, bounds.and_then(|(from, to)| second_use(from, to)))
    })
    .collect()
}

fn second_use(from: &Moment, to: &Moment) -> Option<SecondUse> {
    let (before, after) = (from.server?, to.server?);
    let nanoseconds = (to.time - from.time).max(1) as f64;
    let difference = |counter: fn(&Sample) -> u64| {
        counter(&after).saturating_sub(counter(&before)) as f64 / nanoseconds
    };
    Some(SecondUse {
        busy: difference(|sample| sample.cpu_ns),
        waiting: difference(|sample| sample.wait_ns),
        written_per_second: difference(|sample| sample.written) * 1e9,
        read_per_second: difference(|sample| sample.read) * 1e9,
        system: difference(|sample| sample.system_ns),
    })
}
