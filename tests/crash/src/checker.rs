//! Compares, key by key, the journals of all clients with the replies of the server after a crash.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::clock;
use crate::history::{Fault, History, Taken, Violation};
use crate::journal::Event;
use crate::model::When;
use crate::operation::{Key, Operation};
use crate::reply::{Reply, Seen};
use crate::value::Print;

/// The largest number of cas ids remembered for each key.
const REMEMBERED: usize = 256;

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Requests that were answered with `SERVER_ERROR`.
    pub(crate) failed: u64,
    /// Requests that had no answer when the server ended.
    pub(crate) in_flight: u64,
    /// Requests of readers.
    pub(crate) read: u64,
    /// Keys checked after crashes; a key counts once for each check.
    pub(crate) checked: u64,
    /// Requests that were executed, or may have been, and that a crash undid.
    pub(crate) taken: u64,
    /// Those of `taken` that a client had been told of. They were so recent that the server's
    /// durability mode allows their loss.
    pub(crate) taken_told: u64,
}

/// Checks the replies of the server against the history of each key.
#[derive(Debug)]
pub(crate) struct Checker {
    histories: BTreeMap<Key, History>,
    /// True if the server may evict.
    evicts: bool,
    cas_ids: HashMap<Key, BTreeMap<u64, Print>>,
    /// Unix time in microseconds at microsecond 0 of the monotonic clock.
    epoch: u64,
    /// The monotonic clock's time in microseconds at which the last write was acknowledged.
    pub(crate) last_write: u64,
    pub(crate) totals: Totals,
}

impl Checker {
    pub(crate) fn new(evicts: bool) -> Checker {
        Checker {
            histories: BTreeMap::new(),
            evicts,
            cas_ids: HashMap::new(),
            epoch: clock::wall_micros().saturating_sub(clock::now()),
            last_write: 0,
            totals: Totals::default(),
        }
    }

    /// Returns all keys that clients have used.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.histories.keys().copied().collect()
    }

    fn when(&self, from: u64, to: u64) -> When {
        let second = |time| (self.epoch + time) / 1_000_000;
        When { from: second(from), to: second(to) }
    }

    fn history(&mut self, key: Key) -> &mut History {
        let evicts = self.evicts;
        self.histories.entry(key).or_insert_with(|| History::new(key, evicts))
    }

    /// Adds the journals of all connections of a round. `errors` is true if the disk failed or
    /// memory was short. Requests may then have been answered with an error, and unanswered ones
    /// may have failed.
    pub(crate) fn feed(&mut self, journals: &[Vec<Event>], errors: bool) -> Vec<Violation> {
        let mut violations = Vec::new();
        for journal in journals {
            self.feed_writer(journal, errors, &mut violations);
        }
        let mut reads: Vec<&Event> =
            journals.iter().flatten().filter(|event| matches!(event, Event::Read { .. })).collect();
        reads.sort_by_key(|event| match event {
            Event::Read { answered, .. } => *answered,
            _ => 0,
        });
        for event in reads {
            let Event::Read { key, asked, answered, seen } = event else { continue };
            self.totals.read += 1;
            let when = self.when(*asked, *answered);
            let read = self.history(*key).read(seen.as_ref(), *asked, *answered, when);
            violations.extend(read.err());
            if let Some(seen) = seen {
                violations.extend(self.cas_id(*key, seen.cas, seen.print, false));
            }
        }
        violations
    }

    fn feed_writer(&mut self, events: &[Event], errors: bool, violations: &mut Vec<Violation>) {
        let mut waiting: VecDeque<(u64, u64, Key, &Operation)> = VecDeque::new();
        for event in events {
            match event {
                Event::Sent { number, time, key, operation } => {
                    waiting.push_back((*number, *time, *key, operation));
                }
                Event::Answered { number, time, reply } => {
                    while let Some((next, sent, key, operation)) = waiting.pop_front() {
                        let when = self.when(sent, *time);
                        if next == *number {
                            self.answered(key, operation, reply, when, *time, errors, violations);
                            break;
                        }
                        self.history(key).executed(operation, when, errors);
                    }
                }
                Event::Ended { fault: Some(text), .. } => violations.push(Violation {
                    fault: Fault::Broken,
                    key: waiting.front().map(|(_, _, key, _)| *key),
                    text: format!("{text}; {} requests were not answered", waiting.len()),
                }),
                Event::Ended { .. } | Event::Read { .. } => {}
            }
        }
        for (_, sent, key, operation) in waiting {
            let when = self.when(sent, clock::now());
            self.history(key).executed(operation, when, errors);
            self.totals.in_flight += 1;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one answer with all that belongs to it")]
    fn answered(
        &mut self,
        key: Key,
        operation: &Operation,
        reply: &Reply,
        when: When,
        time: u64,
        errors: bool,
        violations: &mut Vec<Violation>,
    ) {
        self.totals.answered += 1;
        use Reply::{Deleted, Number, Stored, Touched};
        if matches!(reply, Stored(_) | Deleted | Number(..) | Touched) {
            self.last_write = self.last_write.max(time);
        }
        if let Reply::Failed(reason) = reply {
            self.totals.failed += 1;
            if !errors && !reason.starts_with("object too large") {
                let text = format!("{} was answered SERVER_ERROR {reason}", operation.describe());
                violations.push(Violation { fault: Fault::Broken, key: Some(key), text });
            }
        }
        let history = self.history(key);
        if let Err(violation) = history.answered(operation, reply, when, time) {
            violations.push(violation);
        } else if let Some((cas, print)) = history.cas_id() {
            let given = matches!(reply, Stored(_) | Number(..));
            violations.extend(self.cas_id(key, cas, print, given));
        }
    }

    /// Checks that a cas id always stands for the same value of a key, across all restarts. `given`
    /// is true if the id is in the reply to a write. A new id in such a reply must not be lower
    /// than all remembered ids. An id that a reader saw may be lower, because the ids of a round's
    /// writes are remembered before those of its reads. So may an id after a crash, which may bring
    /// an old value back.
    fn cas_id(&mut self, key: Key, cas: u64, print: Print, given: bool) -> Option<Violation> {
        let known = self.cas_ids.entry(key).or_default();
        let text = match known.get(&cas) {
            Some(old) if *old == print => return None,
            Some(old) => format!("cas id {cas} stood for {old:?} and now for {print:?}"),
            None if given
                && known.len() >= REMEMBERED
                && known.keys().next().is_some_and(|low| cas < *low) =>
            {
                format!(
                    "cas id {cas} of {print:?} is older than {REMEMBERED} that were seen before"
                )
            }
            None => {
                known.insert(cas, print);
                if known.len() > REMEMBERED {
                    known.pop_first();
                }
                return None;
            }
        };
        Some(Violation { fault: Fault::CasReused, key: Some(key), text })
    }

    /// Adds what the test read after a crash, from the time `asked` until now, for each key in
    /// `found`. Every write that a client had been told of by the time `cutoff` must be there. With
    /// `u64::MAX` these are all writes that a client had been told of. Both times are in
    /// microseconds of the monotonic clock.
    pub(crate) fn recovered(
        &mut self,
        found: &[(Key, Option<Seen>)],
        asked: u64,
        cutoff: u64,
    ) -> Vec<Violation> {
        let now = clock::now();
        let when = self.when(asked, now);
        let mut violations = Vec::new();
        for (key, seen) in found {
            self.totals.checked += 1;
            match self.history(*key).recovered(seen.as_ref(), when, cutoff, now) {
                Ok(Taken { steps, told }) => {
                    self.totals.taken += u64::from(steps);
                    self.totals.taken_told += u64::from(told);
                }
                Err(violation) => violations.push(violation),
            }
            if let Some(seen) = seen {
                violations.extend(self.cas_id(*key, seen.cas, seen.print, false));
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Store, chunk, store};

    const KEY: Key = Key { writer: 1, index: 1 };

    fn sent(number: u64, operation: Operation) -> Event {
        Event::Sent { number, time: clock::now(), key: KEY, operation }
    }

    fn answered(number: u64, reply: Reply) -> Event {
        Event::Answered { number, time: clock::now(), reply }
    }

    fn set(seed: u64) -> Operation {
        store(Store::Set, chunk(seed, 9))
    }

    fn seen(seed: u64, cas: u64) -> Seen {
        Seen { print: chunk(seed, 9).print(), flags: 0, ttl: None, cas }
    }

    fn faults(violations: &[Violation]) -> Vec<Fault> {
        violations.iter().map(|violation| violation.fault.clone()).collect()
    }

    #[test]
    fn a_round_without_faults_passes_and_each_planted_one_is_found() {
        let journal = vec![
            sent(0, set(1)),
            answered(0, Reply::Stored(None)),
            sent(1, set(2)),
            answered(1, Reply::Stored(None)),
            sent(2, set(3)),
        ];
        let checked = |found: Option<Seen>| {
            let mut checker = Checker::new(false);
            assert!(checker.feed(std::slice::from_ref(&journal), false).is_empty());
            assert_eq!(checker.totals.in_flight, 1);
            faults(&checker.recovered(&[(KEY, found)], clock::now(), u64::MAX))
        };
        assert_eq!(checked(Some(seen(2, 5))), []);
        assert_eq!(checked(Some(seen(3, 5))), []);
        assert_eq!(checked(Some(seen(1, 5))), [Fault::RolledBack]);
        assert_eq!(checked(None), [Fault::Lost]);
    }

    #[test]
    fn a_quiet_write_in_between_may_not_be_skipped() {
        let mut quiet = set(1);
        if let Operation::Store { quiet, .. } = &mut quiet {
            *quiet = true;
        }
        let journal = vec![sent(0, quiet), sent(1, Operation::Get), answered(1, Reply::Miss)];
        let mut checker = Checker::new(false);
        assert_eq!(faults(&checker.feed(&[journal], false)), [Fault::Contradiction]);
    }

    #[test]
    fn a_cas_id_that_comes_again_for_another_value_is_found_after_restarts_too() {
        let mut checker = Checker::new(false);
        let get =
            |number, seen| [sent(number, Operation::Get), answered(number, Reply::Item(seen))];
        let mut journal = vec![sent(0, set(1)), answered(0, Reply::Stored(None))];
        journal.extend(get(1, seen(1, 50)));
        assert!(checker.feed(&[journal], false).is_empty());
        assert!(checker.recovered(&[(KEY, Some(seen(1, 50)))], 0, u64::MAX).is_empty());
        let mut journal = vec![sent(0, set(2)), answered(0, Reply::Stored(None))];
        journal.extend(get(1, seen(2, 50)));
        assert_eq!(faults(&checker.feed(&[journal], false)), [Fault::CasReused]);
    }

    #[test]
    fn a_reader_may_see_a_value_that_was_replaced_many_times_since() {
        let mut checker = Checker::new(false);
        let write = |number: u64| {
            let stored = Reply::Stored(Some(100 + number));
            [sent(number, set(number)), answered(number, stored)]
        };
        let asked = clock::now();
        let mut writes: Vec<Event> = write(0).into();
        let (answered_at, seen) = (clock::now(), Some(seen(0, 100)));
        writes.push(Event::Read { key: KEY, asked, answered: answered_at, seen });
        writes.extend((1..=2 * REMEMBERED as u64).flat_map(write));
        assert_eq!(faults(&checker.feed(&[writes], false)), []);
        // A new id in the reply to a write must not be lower than all remembered ids.
        let number = 2 * REMEMBERED as u64 + 1;
        let again = [sent(number, set(number)), answered(number, Reply::Stored(Some(90)))];
        assert_eq!(faults(&checker.feed(&[again.into()], false)), [Fault::CasReused]);
    }

    #[test]
    fn errors_and_broken_connections_are_faults_unless_the_disk_was_failing() {
        let journal = vec![sent(0, set(1)), answered(0, Reply::Failed("store failed".into()))];
        assert_eq!(
            faults(&Checker::new(false).feed(std::slice::from_ref(&journal), false)),
            [Fault::Broken]
        );
        assert_eq!(faults(&Checker::new(false).feed(&[journal], true)), []);
        let journal = vec![Event::Ended { time: 1, fault: Some("half an answer".into()) }];
        assert_eq!(faults(&Checker::new(false).feed(&[journal], true)), [Fault::Broken]);
    }
}
