//! The past values of the page's series, in bounded memory. There is a *step*, one value of each
//! series, for each second of the last ten minutes. A *long step* covers ten seconds, and there are
//! long steps for the last day. The history also has the latest events. A restart loses it.

use std::collections::VecDeque;

use serde::Serialize;

use super::series::{Merge, READS, SERIES, Values};

/// The largest number of steps of one second in the history.
const SECONDS: usize = 600;
/// The length of a long step in seconds.
const LONG: u64 = 10;
/// The largest number of long steps in the history.
const LONG_STEPS: usize = 24 * 360;
/// The largest number of steps in an answer; more are merged. This limits the memory of an answer,
/// which a slow client occupies for long.
const ANSWER_STEPS: usize = 1440;
/// The largest number of events in the history.
const EVENTS: usize = 200;

/// A moment that a chart marks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    /// Milliseconds since the Unix epoch.
    pub(super) time: u64,
    /// A name for programs, such as `eviction_begins`.
    pub(super) name: &'static str,
    /// A sentence for people.
    pub(super) text: String,
}

/// The past values of all series.
#[derive(Debug)]
pub(super) struct History {
    seconds: Steps,
    long: Steps,
    /// The values of each second of the present long step, which has not ended.
    open: Vec<Values>,
    events: VecDeque<Event>,
}

/// The values of all series for at most `most` steps of equal length, the newest last. `times` has
/// the ends of the steps.
#[derive(Debug)]
struct Steps {
    most: usize,
    times: VecDeque<u64>,
    values: VecDeque<Values>,
}

impl Steps {
    /// Reserves the memory for all steps, because growing queues would reserve up to twice as much.
    fn new(most: usize) -> Steps {
        let (times, values) = (VecDeque::with_capacity(most), VecDeque::with_capacity(most));
        Steps { most, times, values }
    }

    fn push(&mut self, time: u64, values: Values) {
        if self.times.len() == self.most {
            self.times.pop_front();
            self.values.pop_front();
        }
        self.times.push_back(time);
        self.values.push_back(values);
    }
}

impl Default for History {
    fn default() -> History {
        let (seconds, long) = (Steps::new(SECONDS), Steps::new(LONG_STEPS));
        History { seconds, long, open: Vec::new(), events: VecDeque::new() }
    }
}

/// The answer to `/v1/history`. `values` has a list for each series, of the same length as `times`.
/// An absent value is `null`.
#[derive(Debug, Serialize)]
pub(super) struct Past {
    /// The end of the oldest step in the history, in milliseconds since the Unix epoch.
    begins: Option<u64>,
    /// The length of a step of this answer, in seconds.
    step: u64,
    series: Vec<&'static str>,
    times: Vec<u64>,
    values: Vec<Vec<Option<f32>>>,
    events: Vec<Event>,
}

impl History {
    /// Adds the values of the second that ended at `time`.
    pub(super) fn push(&mut self, time: u64, values: Values) {
        self.seconds.push(time, values);
        self.open.push(values);
        if self.open.len() as u64 == LONG {
            let merged = merged(&self.open);
            self.open.clear();
            self.long.push(time, merged);
        }
    }

    pub(super) fn note(&mut self, event: Event) {
        self.events.push_back(event);
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Returns the values of the last `seconds` seconds. If `seconds` is at most [`SECONDS`], each
    /// step of the answer is one second. Otherwise it is a long step, or several merged into one so
    /// that the answer has at most [`ANSWER_STEPS`].
    pub(super) fn past(&self, seconds: u64) -> Past {
        let is_short = seconds <= SECONDS as u64;
        let (steps, step) = if is_short { (&self.seconds, 1) } else { (&self.long, LONG) };
        let end = self.seconds.times.back().copied().unwrap_or_default();
        let from = end.saturating_sub(seconds.saturating_mul(1000));
        let first = steps.times.partition_point(|&time| time <= from);
        let values: Vec<Values> = steps.values.iter().skip(first).copied().collect();
        let times: Vec<u64> = steps.times.iter().skip(first).copied().collect();
        let joined = values.len().div_ceil(ANSWER_STEPS).max(1);
        let values: Vec<Values> = values.chunks(joined).map(merged).collect();
        let of = |at: usize| {
            let column = values.iter().map(|values| values[at]);
            column.map(|value| value.is_finite().then_some(value)).collect()
        };
        let oldest = [self.seconds.times.front(), self.long.times.front()];
        Past {
            begins: oldest.into_iter().flatten().min().copied(),
            step: step * joined as u64,
            series: SERIES.iter().map(|series| series.name).collect(),
            times: times.chunks(joined).filter_map(|times| times.last().copied()).collect(),
            values: (0..SERIES.len()).map(of).collect(),
            events: self.events.iter().filter(|event| event.time >= from).cloned().collect(),
        }
    }
}

/// Merges the values of several seconds or steps. Absent values do not count.
fn merged(seconds: &[Values]) -> Values {
    std::array::from_fn(|at| {
        let here = seconds.iter().filter(|values| values[at].is_finite());
        let mean = |weight: fn(&Values) -> f32| {
            let (sum, weights) = here.clone().fold((0.0, 0.0), |(sum, weights), values| {
                (sum + values[at] * weight(values), weights + weight(values))
            });
            sum / weights
        };
        match SERIES[at].merge {
            Merge::Largest => here.map(|values| values[at]).fold(f32::NAN, f32::max),
            Merge::Mean => mean(|_| 1.0),
            Merge::ByReads => mean(|values| values[READS]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: f32) -> Values {
        [value; SERIES.len()]
    }

    fn at(name: &str) -> usize {
        SERIES.iter().position(|series| series.name == name).unwrap()
    }

    #[test]
    fn seconds_become_long_steps() {
        let mut history = History::default();
        for second in 1..=25_u64 {
            let value = if second == 3 { f32::NAN } else { second as f32 };
            history.push(second * 1000, values(value));
        }
        let short = history.past(5);
        assert_eq!(
            (short.step, short.times.as_slice()),
            (1, &[21_000, 22_000, 23_000, 24_000, 25_000][..])
        );
        assert_eq!(short.values[at("reads")].last(), Some(&Some(25.0)));
        assert_eq!(history.past(600).values[0][2], None, "an absent value is null");
        let long = history.past(3600);
        assert_eq!((long.step, long.times), (10, vec![10_000, 20_000]));
        // `reads` is merged to the mean. Here, this is the mean of 1 to 10 without 3, because the
        // third second has no value. `unsynced_ms` is merged to the largest value.
        assert_eq!(long.values[at("reads")][0], Some(52.0 / 9.0));
        assert_eq!(long.values[at("unsynced_ms")], [Some(10.0), Some(20.0)]);
        assert_eq!(long.begins, Some(1000));
    }

    #[test]
    fn hit_ratios_count_by_their_reads() {
        let second = |reads: f32, ratio: f32| {
            let mut values = values(0.0);
            (values[READS], values[at("hit_ratio")]) = (reads, ratio);
            values
        };
        let merged = merged(&[second(1.0, 0.0), second(99.0, 1.0), second(0.0, f32::NAN)]);
        assert!((merged[at("hit_ratio")] - 0.99).abs() < 1e-6);
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = History::default();
        for second in 0..100_000_u64 {
            history.push(second * 1000, values(1.0));
            history.note(Event { time: second * 1000, name: "reload", text: String::new() });
        }
        assert_eq!(history.past(600).times.len(), 600);
        let all = history.past(u64::MAX);
        assert_eq!((all.times.len(), all.events.len()), (ANSWER_STEPS, EVENTS));
        assert_eq!((all.step, all.values[at("reads")][0]), (60, Some(1.0)));
        let all = [&history.seconds, &history.long];
        let bytes: usize = all.map(|it| it.values.capacity() * size_of::<Values>()).iter().sum();
        assert!(bytes < 1 << 20, "{bytes}");
        let bytes: usize = all.map(|it| it.times.capacity() * size_of::<u64>()).iter().sum();
        assert!(bytes < 100_000, "{bytes}");
    }

    #[test]
    fn an_empty_history_is_no_error() {
        let past = History::default().past(60);
        assert_eq!((past.begins, past.times.len()), (None, 0));
    }
}
