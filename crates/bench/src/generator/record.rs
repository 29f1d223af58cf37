//! The results of one generator thread: latencies by verb, counts of answers, and the faults that
//! make a run void.

use hdrhistogram::Histogram;
use larder_client::{Code, Reply};
use serde::Serialize;

use crate::workload::mix::VERBS;
use crate::workload::{Asked, Verb};

/// The longest latency that the histogram resolves: one hour, in nanoseconds.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// Returns a histogram of nanoseconds with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    // The bounds are constants, so the call cannot fail.
    Histogram::new_with_bounds(64, LATENCY_MAX, 3).expect("the bounds of the histogram are valid")
}

#[inline]
fn record(slot: &mut Option<Box<Histogram<u64>>>, nanoseconds: u64) {
    slot.get_or_insert_with(|| Box::new(histogram())).saturating_record(nanoseconds);
}

/// The counts of answers to one verb, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerbCount {
    /// Answered requests.
    pub requests: u64,
    /// Keys in these requests.
    pub keys: u64,
    /// Keys found, or changes made.
    pub hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Changes refused by their condition (`NOT_STORED`, `EXISTS`).
    pub refused: u64,
    /// Error answers.
    pub errors: u64,
}

impl VerbCount {
    pub(crate) fn add(&mut self, other: &VerbCount) {
        self.requests += other.requests;
        self.keys += other.keys;
        self.hits += other.hits;
        self.misses += other.misses;
        self.refused += other.refused;
        self.errors += other.errors;
    }
}

/// The counts and latencies of the requests of one second, or of a whole run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: [VerbCount; VERBS],
    /// One histogram per verb of the mix, created at first use.
    pub(crate) latencies: [Option<Box<Histogram<u64>>>; VERBS],
    /// In the open loop, the nanoseconds between a request's due time and its sending, for requests
    /// whose connection was free. Such a delay is caused by the generator, or by a machine that did
    /// not let the generator run.
    pub(crate) lag: Option<Box<Histogram<u64>>>,
}

impl Tally {
    #[inline]
    pub(crate) fn record(&mut self, asked: Asked, reply: &Reply<'_>, values: u32, latency: u64) {
        let count = &mut self.counts[asked.verb as usize];
        count.requests += 1;
        count.keys += u64::from(asked.keys);
        match *reply {
            Reply::End | Reply::Meta(Code::Value(_) | Code::Miss, _) => {
                count.hits += u64::from(values);
                count.misses += u64::from(asked.keys.saturating_sub(values));
            }
            Reply::Meta(Code::Noop, _) => count.hits += u64::from(asked.keys),
            Reply::NotFound | Reply::Meta(Code::NotFound, _) => count.misses += 1,
            Reply::NotStored | Reply::Exists | Reply::Meta(Code::NotStored | Code::Exists, _) => {
                count.refused += 1
            }
            Reply::Error(_) => count.errors += 1,
            _ => count.hits += 1,
        }
        self.latency(asked.verb, latency);
    }

    #[inline]
    pub(crate) fn latency(&mut self, verb: Verb, latency: u64) {
        record(&mut self.latencies[verb as usize], latency);
    }

    #[inline]
    pub(crate) fn lag(&mut self, lag: u64) {
        record(&mut self.lag, lag);
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            mine.add(theirs);
        }
        let mine = self.latencies.iter_mut().chain([&mut self.lag]);
        for (mine, theirs) in mine.zip(other.latencies.iter().chain([&other.lag])) {
            if let Some(theirs) = theirs {
                let mine = mine.get_or_insert_with(|| Box::new(histogram()));
                mine.add(&**theirs).expect("histograms of the same bounds");
            }
        }
    }

    pub(crate) fn total(&self) -> VerbCount {
        let mut total = VerbCount::default();
        self.counts.iter().for_each(|count| total.add(count));
        total
    }

    pub(crate) fn all_latencies(&self) -> Histogram<u64> {
        let mut all = histogram();
        for latencies in self.latencies.iter().flatten() {
            all.add(&**latencies).expect("histograms of the same bounds");
        }
        all
    }
}

/// The faults of a run, each kind with its first example.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Answers that belong to another request, and values that do not match their key.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
    /// Error answers, including those outside the measured time.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Requests that had no answer when the run stopped waiting.
    pub(crate) unanswered: u64,
}

impl Faults {
    pub(crate) fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert_with(what);
    }

    pub(crate) fn error(&mut self, line: &[u8]) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| String::from_utf8_lossy(line).into_owned());
    }

    pub(crate) fn add(&mut self, other: Faults) {
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        self.first_wrong = self.first_wrong.take().or(other.first_wrong);
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Returns true if `reply` is a valid kind of answer to `verb`.
pub(crate) fn fits(verb: Verb, reply: &Reply<'_>) -> bool {
    use {Code as C, Reply as R};
    matches!(
        (verb, reply),
        (_, R::Error(_))
            | (Verb::Get | Verb::Gets | Verb::Gat, R::End)
            | (Verb::MetaGet, R::Meta(C::Value(_) | C::Miss, _))
            | (Verb::Set | Verb::SetCounter | Verb::Add, R::Stored)
            | (Verb::Add, R::NotStored)
            | (Verb::Delete, R::Deleted | R::NotFound)
            | (Verb::Touch, R::Touched | R::NotFound)
            | (Verb::Incr | Verb::Decr, R::Number(_) | R::NotFound)
            | (Verb::MetaSet, R::Meta(C::Done | C::NotStored | C::Exists | C::NotFound, _))
            | (Verb::QuietSets, R::Meta(C::Noop, _))
            | (Verb::MetaDelete, R::Meta(C::Done | C::NotFound | C::Exists, _))
            | (
                Verb::MetaArithmetic,
                R::Meta(C::Value(_) | C::Done | C::NotFound | C::NotStored, _)
            )
            | (Verb::Limit, R::Stored | R::NotStored | R::Meta(C::Done | C::NotStored, _))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_three_digits() {
        let mut tally = Tally::default();
        for microseconds in 1..=100_000u64 {
            let asked = Asked { verb: Verb::Get, keys: 1 };
            tally.record(asked, &Reply::End, 1, microseconds * 1000);
        }
        let all = tally.all_latencies();
        for (quantile, exact) in
            [(0.5, 50_000_000.0), (0.99, 99_000_000.0), (0.99999, 99_999_000.0)]
        {
            let seen = all.value_at_quantile(quantile) as f64;
            assert!((seen / exact - 1.0).abs() < 0.001, "{quantile}: {seen}");
        }
        assert_eq!(all.len(), 100_000);
        assert_eq!(tally.total().hits, 100_000);
    }

    #[test]
    fn a_multi_get_counts_its_keys() {
        let mut tally = Tally::default();
        tally.record(Asked { verb: Verb::Get, keys: 50 }, &Reply::End, 48, 1000);
        let total = tally.total();
        assert_eq!((total.requests, total.keys, total.hits, total.misses), (1, 50, 48, 2));
        let mut sum = Tally::default();
        sum.add(&tally);
        sum.add(&tally);
        assert_eq!(sum.total().keys, 100);
        assert_eq!(sum.all_latencies().len(), 2);
    }

    #[test]
    fn foreign_answers_do_not_fit() {
        assert!(!fits(Verb::Get, &Reply::Stored));
        assert!(!fits(Verb::Set, &Reply::End));
        assert!(!fits(Verb::Set, &Reply::NotStored));
        assert!(!fits(Verb::Touch, &Reply::Deleted));
        assert!(!fits(Verb::MetaGet, &Reply::End));
        assert!(fits(Verb::Delete, &Reply::NotFound));
        assert!(fits(Verb::Incr, &Reply::Error(b"ERROR")));
    }
}
