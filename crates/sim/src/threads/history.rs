//! What the keys of a worker hold, and what they may hold after the end of the world.

use larder_engine::CommitPoint;

/// Keys of a worker.
pub(super) const KEYS: u64 = 300;
/// Counters that all workers share.
pub(super) const COUNTERS: usize = 4;

/// What a key holds: a version of its value, and when that expires; or nothing.
pub(super) type State = Option<Version>;

/// A value that a worker has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Unique among those of a key.
    pub(super) number: u64,
    /// Unix seconds; 0: never.
    pub(super) expiry: u32,
}

impl Version {
    /// Whether clients see it.
    pub(super) fn lives(&self, now: u32) -> bool {
        self.expiry == 0 || self.expiry > now
    }
}

/// A change that is not known to be durable.
#[derive(Clone, Copy, Debug)]
struct Change {
    state: State,
    /// `None`: nobody has heard what became of it.
    point: Option<CommitPoint>,
}

/// One key.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// What it holds in this life.
    pub(super) current: State,
    durable: State,
    changes: Vec<Change>,
}

impl History {
    /// A change begins: it may be durable from now on.
    pub(super) fn begin(&mut self, state: State) {
        self.changes.push(Change { state, point: None });
    }

    /// The change that was begun last has taken effect, and is durable with this commit.
    pub(super) fn changed(&mut self, point: CommitPoint) {
        if let Some(change) = self.changes.last_mut() {
            change.point = Some(point);
            self.current = change.state;
        }
    }

    /// The change that was begun last has taken effect; nobody knows with which commit it becomes durable.
    pub(super) fn stays(&mut self) {
        if let Some(change) = self.changes.last() {
            self.current = change.state;
        }
    }

    /// The change that was begun last has not taken effect, and never was anywhere.
    pub(super) fn refused(&mut self) {
        self.changes.pop();
    }

    /// The change that was begun last is durable.
    pub(super) fn durable_now(&mut self) {
        if let Some(change) = self.changes.last() {
            (self.current, self.durable) = (change.state, change.state);
            self.changes.clear();
        }
    }

    /// It was evicted: that may be undone by a restart.
    pub(super) fn evicted(&mut self) {
        self.current = None;
    }

    /// Forgets what is older than a change that is durable.
    pub(super) fn settle(&mut self, is_durable: impl Fn(CommitPoint) -> bool) {
        let durable = |change: &Change| change.point.is_some_and(&is_durable);
        if let Some(last) = self.changes.iter().rposition(durable) {
            self.durable = self.changes[last].state;
            self.changes.drain(..=last);
        }
    }

    /// Whether there is anything to settle.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }

    /// After a restart this was found, `now`. Says what else it should be.
    pub(super) fn restarted(&mut self, found: State, now: u32, evicts: bool) -> Result<(), String> {
        let seen = |state: State| state.filter(|version| version.lives(now));
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

/// A counter as one worker knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    /// How often this worker has tried to add one.
    pub(super) tried: u64,
    /// The greatest value that is known to be durable.
    pub(super) durable: u64,
    /// Values that are not, and when they will be.
    pub(super) pending: Vec<(u64, CommitPoint)>,
    /// The greatest value that it was answered.
    pub(super) seen: u64,
}

/// What a worker knows.
pub(super) struct Keys {
    pub(super) worker: usize,
    pub(super) histories: Vec<History>,
    pub(super) counts: Vec<Count>,
    /// The number of the next version.
    pub(super) next: u64,
}

impl Keys {
    pub(super) fn new(worker: usize, evicts: bool) -> Keys {
        let counts = if evicts { Vec::new() } else { vec![Count::default(); COUNTERS] };
        Keys { worker, histories: vec![History::default(); KEYS as usize], counts, next: 1 }
    }
}

/// Between two lives all workers know of each other's counts. Nobody may have counted further than all of them
/// together have tried.
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
