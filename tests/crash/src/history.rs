//! The history of one key, and the states in which a crash may leave it.
//!
//! A step is a request that was executed, or that may have been executed. It holds the states in
//! which the request may have left the key. A crash takes the history back to an earlier step. But
//! the crash must not take back a step that a client was told of by the cutoff. The cutoff is the
//! time up to which the durability mode promises that acknowledged writes survive. After a crash,
//! the test reads the key and finds the step whose state the read shows. The history then ends at
//! this step, because steps that a crash took back never return.

use crate::model::{Item, State, When, after, after_reply, evictable, fits};
use crate::operation::{Key, Operation};
use crate::reply::{Reply, Seen};
use crate::value::Print;

/// Number of steps kept that are too old for a crash to take the history back to them. If one of
/// these steps wrongly comes back, the message can name it.
const ARCHIVE: usize = 40;

#[derive(Clone, Debug)]
struct Step {
    states: Vec<State>,
    /// The monotonic clock's time in microseconds at which a client was first told of this step, or
    /// of a later step that depends on it.
    told: Option<u64>,
    what: String,
    /// The states that this write would have left if it had not been answered with an error. No
    /// read may show them.
    undone: Vec<State>,
}

/// The ways in which a server can break its promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An answer contradicts everything that is known about the key.
    Contradiction,
    /// An acknowledged item is gone.
    Lost,
    /// A value is older than one that was acknowledged or seen.
    RolledBack,
    /// An item is back after its deletion, expiry or flush was acknowledged.
    Resurrected,
    /// A write that was answered with an error took effect.
    Undone,
    /// No request has stored this value under this key.
    Foreign,
    /// A reader saw a state older than one that was acknowledged before the reader's request.
    Stale,
    /// A cas id stands for another value than before.
    CasReused,
    /// A connection broke the protocol, or an answer did not come.
    Broken,
}

/// A fault and its circumstances.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) fault: Fault,
    pub(crate) key: Option<Key>,
    pub(crate) text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.key.map(|key| key.name().trim_end_matches('-').to_owned());
        write!(f, "{:?} {}: {}", self.fault, key.unwrap_or_default(), self.text)
    }
}

/// Counts of the steps that a crash took back from one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Number of steps taken back.
    pub(crate) steps: u32,
    /// Number of steps taken back that a client had been told of.
    pub(crate) told: u32,
}

/// The history of one key.
#[derive(Clone, Debug)]
pub(crate) struct History {
    key: Key,
    steps: Vec<Step>,
    /// The index of the oldest step to which another crash could still take the history back.
    sure: usize,
    /// True if the server evicts. An item may then be missing at any time. A missing item may come
    /// back after a crash, unless a step has followed the one that stored it.
    evicts: bool,
}

impl History {
    /// Returns the history of a key that has not been used yet.
    pub(crate) fn new(key: Key, evicts: bool) -> History {
        let unused = Step {
            states: vec![None],
            told: Some(0),
            what: "never stored".into(),
            undone: Vec::new(),
        };
        History { key, steps: vec![unused], sure: 0, evicts }
    }

    fn last(&self) -> &Step {
        // There is always a step: `recovered` removes steps, but keeps the one that it found.
        &self.steps[self.steps.len() - 1]
    }

    /// Returns the states that a step may have left, including those after an eviction.
    fn possible(&self, step: &Step) -> Vec<State> {
        if self.evicts { evictable(&step.states) } else { step.states.clone() }
    }

    /// Returns true if `step` explains what another client read, or what was read after a crash.
    fn fits(&self, step: &Step, seen: Option<&Seen>, when: When) -> bool {
        self.possible(step).iter().any(|state| fits(state, seen, when))
    }

    fn violation(&self, fault: Fault, text: String) -> Violation {
        Violation { fault, key: Some(self.key), text }
    }

    /// Adds a step for a request whose answer is unknown. If `may_fail` is true, the step's states
    /// include those that the key may have if the request failed.
    pub(crate) fn executed(&mut self, operation: &Operation, when: When, may_fail: bool) {
        if *operation == Operation::Get {
            return;
        }
        let before = self.possible(self.last());
        let mut states = flat(&before, |state| after(state, operation, when));
        if may_fail {
            before.into_iter().for_each(|state| include(&mut states, state));
        }
        let what = operation.describe();
        self.steps.push(Step { states, told: None, what, undone: Vec::new() });
    }

    /// Adds a step for a request that was executed, and answered at `told` microseconds.
    pub(crate) fn answered(
        &mut self,
        operation: &Operation,
        reply: &Reply,
        when: When,
        told: u64,
    ) -> Result<(), Violation> {
        let before = self.possible(self.last());
        if let Reply::Failed(_) = reply {
            let undone = flat(&before, |state| after(state, operation, when));
            if *operation != Operation::Get {
                let what = format!("{} (answered with an error)", operation.describe());
                self.steps.push(Step { states: before, told: None, what, undone });
            }
            return Ok(());
        }
        let states = flat(&before, |state| after_reply(state, operation, reply, when));
        if states.is_empty() {
            let text = format!(
                "{} was answered {reply:?}, but the key held {}; before: {}",
                operation.describe(),
                show(&before),
                self.recent(),
            );
            return Err(self.violation(Fault::Contradiction, text));
        }
        let last = self.steps.len() - 1;
        // A touch may give a new cas id to a value that otherwise stays the same. So each touch
        // becomes a step.
        let touches = matches!(operation, Operation::Touch { .. });
        // Readers may have seen the item before it expired, so its expiry becomes a separate step.
        let expired = states == [None] && before != states;
        if !expired && (*operation == Operation::Get || (before == states && !touches)) {
            self.steps[last].states = states;
            self.steps[last].told.get_or_insert(told);
        } else {
            let what = operation.describe();
            self.steps.push(Step { states, told: Some(told), what, undone: Vec::new() });
        }
        Ok(())
    }

    /// Adds a read by another connection. `asked` and `answered` are the times of its request and
    /// its answer, in microseconds. The read shows the state after a step, and so proves that the
    /// step was executed.
    pub(crate) fn read(
        &mut self,
        seen: Option<&Seen>,
        asked: u64,
        answered: u64,
        when: When,
    ) -> Result<(), Violation> {
        let fitting = |step: &Step| self.fits(step, seen, when);
        let Some(newest) = self.steps.iter().rposition(fitting) else {
            let undone = |step: &Step| step.undone.iter().any(|state| fits(state, seen, when));
            let fault = if self.steps.iter().any(undone) { Fault::Undone } else { Fault::Foreign };
            let text = format!("a reader saw {}, known: {}", show_seen(seen), self.recent());
            return Err(self.violation(fault, text));
        };
        let overtaken = self.steps[newest + 1..].iter().find(|step| {
            step.told.is_some_and(|told| told < asked)
                && !step.states.iter().all(|state| fits(state, seen, when))
        });
        if let Some(step) = overtaken {
            let text = format!(
                "a reader saw {} ({}) after {} had been acknowledged",
                show_seen(seen),
                self.steps[newest].what,
                step.what
            );
            return Err(self.violation(Fault::Stale, text));
        }
        // Several steps may leave the state that was read. The oldest of them may be the only one
        // that was executed before the read, so the read proves only this one.
        let from = self.sure.min(newest);
        let oldest = self.steps[from..].iter().position(fitting);
        if let Some(oldest) = oldest {
            let told = &mut self.steps[from + oldest].told;
            *told = Some(told.map_or(answered, |told| told.min(answered)));
        }
        Ok(())
    }

    /// Adds a read after a crash. The crash must not have taken back a step that a client was told
    /// of by `cutoff`. Removes the steps after the newest one that can have left the state that was
    /// read. Times are in microseconds.
    pub(crate) fn recovered(
        &mut self,
        seen: Option<&Seen>,
        when: When,
        cutoff: u64,
        now: u64,
    ) -> Result<Taken, Violation> {
        let in_time = |step: &Step| step.told.is_some_and(|told| told <= cutoff);
        let floor = self.steps.iter().rposition(in_time).unwrap_or(0).max(self.sure);
        let fitting = |step: &Step| self.fits(step, seen, when);
        let Some(found) = self.steps[floor..].iter().rposition(fitting) else {
            return Err(self.wrong(floor, seen, when));
        };
        let found = floor + found;
        let lost = &self.steps[found + 1..];
        let told = lost.iter().filter(|step| step.told.is_some()).count() as u32;
        let taken = Taken { steps: lost.len() as u32, told };
        // Several steps may fit what was read, for example if their expiries differ by a second.
        // The crash may have left the key at any of them, so all their states that fit stay
        // possible.
        let mut states = Vec::new();
        for state in self.steps[floor..=found].iter().flat_map(|step| self.possible(step)) {
            if fits(&state, seen, when) {
                let shown = |item| match seen {
                    Some(seen) => Item { cas: Some(seen.cas), evicted: false, ..item },
                    None => item,
                };
                include(&mut states, state.map(shown));
            }
        }
        self.steps.truncate(found + 1);
        let step = &mut self.steps[found];
        step.states = states;
        step.told.get_or_insert(now);
        self.sure = floor;
        let archived = self.sure.saturating_sub(ARCHIVE);
        self.steps.drain(..archived);
        self.sure -= archived;
        Ok(taken)
    }

    fn wrong(&self, floor: usize, seen: Option<&Seen>, when: When) -> Violation {
        let fitting = |step: &&Step| step.states.iter().any(|state| fits(state, seen, when));
        let undone =
            self.steps.iter().any(|step| step.undone.iter().any(|state| fits(state, seen, when)));
        let older = self.steps[..floor].iter().rfind(fitting);
        let must = &self.steps[floor];
        let empty = must.states.iter().all(Option::is_none);
        let fault = match (seen, older) {
            (None, _) => Fault::Lost,
            (Some(_), _) if undone => Fault::Undone,
            (Some(_), _) if empty => Fault::Resurrected,
            (Some(_), Some(_)) => Fault::RolledBack,
            (Some(_), None) => Fault::Foreign,
        };
        let from = older.map_or(String::new(), |step| format!(" (that is: {})", step.what));
        let text = format!(
            "found {}{from}, must be at least {} = {}; history: {}",
            show_seen(seen),
            must.what,
            show(&must.states),
            self.recent()
        );
        self.violation(fault, text)
    }

    /// Lists the most recent steps, oldest first.
    fn recent(&self) -> String {
        let from = self.steps.len().saturating_sub(6);
        let shown = self.steps[from..].iter().map(|step| match step.told {
            Some(told) => {
                format!("[{} told at {}.{:06} s]", step.what, told / 1_000_000, told % 1_000_000)
            }
            None => format!("[{}]", step.what),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// Returns the cas id and the [`Print`] of the key's value, if only one state is possible and
    /// its cas id is known.
    pub(crate) fn cas_id(&self) -> Option<(u64, Print)> {
        match &self.last().states[..] {
            [Some(item)] => item.cas.map(|cas| (cas, item.print)),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &[State] {
        &self.last().states
    }
}

fn include(states: &mut Vec<State>, state: State) {
    if !states.contains(&state) {
        states.push(state);
    }
}

fn flat(states: &[State], step: impl Fn(&State) -> Vec<State>) -> Vec<State> {
    let mut all = Vec::new();
    states.iter().flat_map(step).for_each(|state| include(&mut all, state));
    all
}

fn show(states: &[State]) -> String {
    let one = |state: &State| match state {
        None => "nothing".to_owned(),
        Some(item) => {
            let print = item.print;
            let what = match print.number {
                Some(number) => number.to_string(),
                None => format!("{} bytes #{:08x}", print.length, print.hash as u32),
            };
            let Item { flags, expires, cas, .. } = item;
            let evicted = if item.evicted { " (evicted)" } else { "" };
            format!("{what} flags {flags} expires {expires} cas {cas:?}{evicted}")
        }
    };
    states.iter().map(one).collect::<Vec<_>>().join(" or ")
}

fn show_seen(seen: Option<&Seen>) -> String {
    let Some(seen) = seen else { return "nothing".into() };
    let what = match seen.print.number {
        Some(number) => number.to_string(),
        None => format!("{} bytes #{:08x}", seen.print.length, seen.print.hash as u32),
    };
    format!("{what} flags {} ttl {:?} cas {}", seen.flags, seen.ttl, seen.cas)
}

#[cfg(test)]
mod tests;
