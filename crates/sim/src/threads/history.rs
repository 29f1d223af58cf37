//! The states of a worker's keys, and the states that they may have after the end of a life.

use larder_engine::CommitPoint;

/// The number of keys per worker.
pub(super) const KEYS: u64 = 300;
/// The number of counters that all workers share.
pub(super) const COUNTERS: usize = 4;

/// The state of a key: a version of its value, or `None` if there is no item.
pub(super) type KeyState = Option<Version>;

/// A value that a worker has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// A number that no other version of the key has.
    pub(super) number: u64,
    /// Unix seconds at which this version expires; 0 for never.
    pub(super) expiry: u32,
}

impl Version {
    /// Returns true if clients can see this version at time `now`.
    pub(super) fn lives(&self, now: u32) -> bool {
        self.expiry == 0 || self.expiry > now
    }
}

/// A change that is not known to be durable.
#[derive(Clone, Copy, Debug)]
struct Change {
    state: KeyState,
    /// The commit of the change; `None` if it is unknown.
    point: Option<CommitPoint>,
}

/// The history of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// The state that clients see in this life.
    pub(super) current: KeyState,
    durable: KeyState,
    changes: Vec<Change>,
}

impl History {
    /// Records that a change begins. From now on the change may become durable.
    pub(super) fn begin(&mut self, state: KeyState) {
        self.changes.push(Change { state, point: None });
    }

    /// Records that the last change has taken effect and that the commit `point` makes it durable.
    pub(super) fn changed(&mut self, point: CommitPoint) {
        if let Some(change) = self.changes.last_mut() {
            change.point = Some(point);
            self.current = change.state;
        }
    }

    /// Records that the last change has taken effect and that an unknown commit will make it
    /// durable.
    pub(super) fn stays(&mut self) {
        if let Some(change) = self.changes.last() {
            self.current = change.state;
        }
    }

    /// Records that the last change has not taken effect and was never written.
    pub(super) fn refused(&mut self) {
        self.changes.pop();
    }

    /// Records that the last change is durable.
    pub(super) fn durable_now(&mut self) {
        if let Some(change) = self.changes.last() {
            (self.current, self.durable) = (change.state, change.state);
            self.changes.clear();
        }
    }

    /// Records an eviction. A restart may bring the item back.
    pub(super) fn evicted(&mut self) {
        self.current = None;
    }

    /// Makes the last durable change the durable state, and drops all changes up to it.
    pub(super) fn settle(&mut self, is_durable: impl Fn(CommitPoint) -> bool) {
        let durable = |change: &Change| change.point.is_some_and(&is_durable);
        if let Some(last) = self.changes.iter().rposition(durable) {
            self.durable = self.changes[last].state;
            self.changes.drain(..=last);
        }
    }

    /// Returns true if all changes are known to be durable.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }

    /// Checks `found`, the state that clients see at the time `now` after a restart, and continues
    /// the history from it. The error lists the states that are allowed.
    pub(super) fn restarted(
        &mut self,
        found: KeyState,
        now: u32,
        evicts: bool,
    ) -> Result<(), String> {
        let seen = |state: KeyState| state.filter(|version| version.lives(now));
        let allowed = found.is_none() && evicts
            || seen(self.durable) == found
            || self.changes.iter().any(|change| seen(change.state) == found);
        if !allowed {
            return Err(format!("found {found:?} after a restart: {self:?}"));
        }
        *self = History { current: found, durable: found, changes: Vec::new() };
        Ok(())
    }
}

/// One worker's knowledge of a counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    /// The number of times that this worker has tried to increment the counter.
    pub(super) tried: u64,
    /// The greatest value known to be durable.
    pub(super) durable: u64,
    /// Values that are not known to be durable, each with its commit.
    pub(super) pending: Vec<(u64, CommitPoint)>,
    /// The greatest value that this worker has received in an answer.
    pub(super) seen: u64,
}

/// Everything that one worker knows.
pub(super) struct Keys {
    pub(super) worker: usize,
    pub(super) histories: Vec<History>,
    pub(super) counts: Vec<Count>,
    /// The number of the next version that the worker writes.
    pub(super) next: u64,
}

impl Keys {
    pub(super) fn new(worker: usize, evicts: bool) -> Keys {
        let counts = if evicts { Vec::new() } else { vec![Count::default(); COUNTERS] };
        Keys { worker, histories: vec![History::default(); KEYS as usize], counts, next: 1 }
    }
}

/// Called between two lives. Checks for each counter that no worker has seen a value above the
/// number of increments that all workers together have tried. Gives every worker the greatest value
/// that any of them knows to be durable.
pub(super) fn share_counts(keys: &mut [Keys]) -> Result<(), String> {
    let counters = keys.first().map_or(0, |keys| keys.counts.len());
    for at in 0..counters {
        let all = || keys.iter().map(|keys| &keys.counts[at]);
        let tried: u64 = all().map(|count| count.tried).sum();
        let durable = all().map(|count| count.durable).max().unwrap_or(0);
        if let Some(count) = all().find(|count| count.seen > tried) {
            return Err(format!("{tried} times one is not {}", count.seen));
        }
        for keys in &mut *keys {
            let count = &mut keys.counts[at];
            count.durable = durable;
            count.pending.clear();
        }
    }
    Ok(())
}
