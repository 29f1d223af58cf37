//! Tests that the table answers every query as a walk over all sealed segments would.

use super::*;
use crate::log::Log;
use crate::record::write_filler;
use crate::{Appender, Budget, Claim, Config, Epochs};
use proptest::prelude::*;
use std::sync::Arc;

const SEGMENT: usize = 8 << 10;
const NOW: u32 = 1000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Appends a record: stream, bytes, expiry, and the time of the append.
    Append(Stream, usize, u32, u32),
    /// Makes a record dead, directly or through a thread's tally.
    Kill(usize, bool),
    /// Reports the thread's tally.
    Tell,
    Seal(Stream),
    Promote(usize),
    /// Begins to clean a segment, then gives it up or empties it.
    Clean(usize, u8),
    KeepUnreadable(usize),
    Reap,
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![Just(Stream::Hot), Just(Stream::Survivors)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expiry = prop_oneof![Just(0), NOW - 5..NOW + 5];
    let step = prop_oneof![
        8 => (stream(), 2..300usize, expiry, NOW - 9..NOW)
            .prop_map(|(stream, units, expiry, born)| Step::Append(stream, units * 8, expiry, born)),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(which, direct)| Step::Kill(which, direct)),
        1 => Just(Step::Tell),
        1 => stream().prop_map(Step::Seal),
        1 => any::<usize>().prop_map(Step::Promote),
        2 => (any::<usize>(), 0..4u8).prop_map(|(which, how)| Step::Clean(which, how)),
        1 => any::<usize>().prop_map(Step::KeepUnreadable),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..200)
}

struct Model {
    log: Log,
    appender: Appender,
    /// Records that are alive.
    records: Vec<(SegmentNumber, usize)>,
    kept: BTreeSet<SegmentNumber>,
}

impl Model {
    fn new() -> Model {
        let config = Config { segment_size: SEGMENT, max_frame_bytes: 1 << 20, keeps_all: false };
        let budget = Arc::new(Budget::new(1 << 20));
        let log = Log::new(config, None, budget, Arc::new(Epochs::default())).unwrap();
        let appender = log.appender();
        Model { log, appender, records: Vec::new(), kept: BTreeSet::new() }
    }

    /// Returns the sealed segments in the order of their queues.
    fn sealed(&self) -> Vec<(Stream, SegmentNumber)> {
        let of = |stream| self.log.sealed(stream).into_iter().map(move |number| (stream, number));
        of(Stream::Hot).chain(of(Stream::Survivors)).collect()
    }

    /// Returns the segments that can be reclaimed: all sealed ones except the kept ones. No thread
    /// is awake, so no segment waits for a quiescent point.
    fn ready(&self) -> Vec<(Stream, SegmentNumber)> {
        let mut sealed = self.sealed();
        // A kept segment stays only while something in it is alive.
        sealed.retain(|(_, number)| !self.kept.contains(number) || self.log.live(*number) == 0);
        sealed
    }

    fn pick(&self, which: usize) -> Option<(Stream, SegmentNumber)> {
        let ready = self.ready();
        (!ready.is_empty()).then(|| ready[which % ready.len()])
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Append(stream, bytes, expiry, born) => {
                let Some(reserved) = self.log.reserve(stream, bytes, born, Claim::Write) else {
                    return;
                };
                // SAFETY: the reservation has `bytes` bytes.
                unsafe { write_filler(reserved.memory, bytes) };
                let number = reserved.address.segment();
                self.log.segment(number).note_expiry(expiry);
                self.records.push((number, bytes));
            }
            Step::Kill(which, direct) if !self.records.is_empty() => {
                let which = which % self.records.len();
                let (number, bytes) = self.records.swap_remove(which);
                if direct {
                    self.log.segment(number).kill(bytes);
                    self.log.note_changed(number);
                } else {
                    self.log.kill_for(&self.appender, number, bytes);
                }
            }
            Step::Kill(..) => {}
            Step::Tell => {
                self.log.report_dead(&self.appender);
            }
            Step::Seal(stream) => self.log.seal(stream),
            Step::Promote(which) => {
                if let Some((_, number)) = self.pick(which) {
                    self.log.promote(number);
                }
            }
            Step::Clean(which, how) => {
                let Some((stream, number)) = self.pick(which) else { return };
                assert_eq!(self.log.begin_cleaning(number), Some(stream));
                assert_eq!(self.log.begin_cleaning(number), None);
                self.kept.remove(&number);
                match how {
                    0 => self.log.abandon_cleaning(stream, number),
                    1 => self.log.postpone_cleaning(stream, number),
                    _ => {
                        self.records.retain(|&(of, _)| of != number);
                        self.log.quarantine(number, Vec::new(), 0).expect("nothing is undone");
                    }
                }
            }
            Step::KeepUnreadable(which) => {
                let Some((stream, number)) = self.pick(which) else { return };
                assert_eq!(self.log.begin_cleaning(number), Some(stream));
                self.log.keep_unreadable(stream, number);
                self.kept.insert(number);
            }
            Step::Reap => drop(self.log.reap()),
        }
    }

    fn check(&self) {
        let (log, ready, sealed) = (&self.log, self.ready(), self.sealed());
        let class = |number: SegmentNumber| {
            let (live, filled) = (u64::from(log.live(number)), log.segment(number).filled());
            (live * 100).div_ceil(filled.max(1).into()) as usize
        };
        let usage = log.usage();
        assert!(!usage.is_waiting());
        for stream in [Stream::Hot, Stream::Survivors] {
            let mine: Vec<_> = ready.iter().filter(|it| it.0 == stream).map(|it| it.1).collect();
            let live: u64 = mine.iter().map(|&number| u64::from(log.live(number))).sum();
            assert_eq!(usage.oldest(stream, Among::All), mine.first().copied());
            assert_eq!(usage.resident(stream).collect::<Vec<_>>(), mine);
            assert_eq!(usage.live(stream, Among::Resident), live);
        }
        let dead = ready.iter().any(|&(_, number)| log.live(number) == 0);
        assert_eq!(usage.dead(Among::All).is_some(), dead);
        if let Some((stream, number)) = usage.dead(Among::Resident) {
            assert!(ready.contains(&(stream, number)) && log.live(number) == 0);
        }
        let ends = |number: SegmentNumber| log.segment(number).expiries().1;
        let whole: BTreeSet<_> = ready
            .iter()
            .filter(|(_, number)| log.segment(*number).expired_whole(NOW))
            .map(|&(_, number)| (ends(number), number))
            .collect();
        let mut found = BTreeSet::new();
        let mut after = (0, 0);
        while let Some((stream, at)) = usage.expired(NOW, Among::All, after) {
            assert!(ready.contains(&(stream, at.1)) && found.insert(at));
            after = at;
        }
        assert_eq!(found, whole);
        let partly = usage.partly_expired(NOW).map(|(_, number)| number).collect::<BTreeSet<_>>();
        let is_partly =
            |number: SegmentNumber| (1..=NOW).contains(&log.segment(number).min_expiry());
        let expected = ready.iter().map(|it| it.1).filter(|&number| is_partly(number));
        assert_eq!(partly, expected.collect());
        for percent in [40, 60, 95, 100] {
            // Ranked by age alone, the best segment is the oldest. Ranked by live share, it is the
            // emptiest.
            let within = |number: SegmentNumber| (1..=percent).contains(&class(number));
            let born = |number: SegmentNumber| log.segment(number).born();
            let those = || ready.iter().map(|it| it.1).filter(|&number| within(number));
            let oldest = usage.best(&[Tier::Fast], Among::All, percent, |it| -f64::from(it.born));
            assert_eq!(oldest.map(|it| it.born), those().map(born).min());
            let emptiest = usage.best(&[Tier::Fast], Among::All, percent, |it| {
                -f64::from(it.live) / f64::from(it.filled)
            });
            assert_eq!(emptiest.map(|it| class(it.segment)), those().map(class).min());
        }
        let live: u64 = sealed.iter().map(|&(_, number)| u64::from(log.live(number))).sum();
        assert_eq!((usage.totals().segments, usage.totals().live), (sealed.len() as u64, live));
        drop(usage);
        // Unreported deaths make the counted live bytes too large, never too small.
        let mut alive = std::collections::HashMap::<SegmentNumber, usize>::new();
        self.records.iter().for_each(|&(number, bytes)| *alive.entry(number).or_default() += bytes);
        for (_, number) in sealed {
            assert!(log.live(number) as usize >= alive.get(&number).copied().unwrap_or(0));
        }
    }
}

proptest! {
    #[test]
    fn the_table_answers_as_a_walk_over_all_segments_does(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.take(step);
            model.check();
        }
        model.log.report_dead(&model.appender);
        model.check();
        let live: usize = model.records.iter().map(|(_, bytes)| bytes).sum();
        let mut sum = model.log.usage().totals().live;
        sum += model.log.unsealed().into_iter().map(|it| u64::from(model.log.live(it))).sum::<u64>();
        prop_assert_eq!(sum, live as u64);
    }
}
