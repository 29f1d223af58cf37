//! The model of a store: all states of each key, in the order in which they were written.
//!
//! A prefix of each history is known to be durable, because a writer or a reader was answered.
//! After a crash a key is in its last state known to be durable or in a later one; after a commit
//! it is in the last. A write that is not durable survives the end of the process, but not a power
//! loss.

use larder_engine::{CommitPoint, CommitState, Item as Found};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    /// Unix seconds; 0 for never.
    pub(super) expiry: u32,
    pub(super) cas: u64,
}

impl Item {
    pub(super) fn of(found: &Found<'_>) -> Self {
        Item {
            value: found.value().to_vec(),
            flags: found.flags(),
            expiry: found.expiry().seconds().unwrap_or(0),
            cas: found.cas(),
        }
    }

    fn is_live(&self, now: u32) -> bool {
        self.expiry == 0 || self.expiry > now
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.value[..self.value.len().min(8)];
        let Item { value, flags, expiry, cas } = self;
        write!(f, "{} bytes {start:x?} flags {flags} expiry {expiry} cas {cas}", value.len())
    }
}

/// The commit that makes something durable; `None` if it is known to be durable.
pub(super) type Commit = Option<CommitPoint>;

/// Whether a key was lost with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    No,
    /// It was moving from or to the lost device.
    Perhaps,
    /// It was on the lost device: anything that comes back would be an older version.
    Yes,
}

/// A state of a key.
#[derive(Clone, Debug)]
struct State {
    /// `None` if there is no item.
    item: Option<Item>,
    /// The item was evicted, which becomes durable only later: a crash may bring it back.
    evicted: Option<Item>,
    commit: Commit,
    /// An early write covers it.
    written: bool,
    /// A flush of everything. If its commit fails, it stays in effect, and the next commit makes it
    /// durable.
    flushed: bool,
}

impl State {
    fn gone(commit: Commit) -> Self {
        State { item: None, evicted: None, commit, written: false, flushed: false }
    }

    fn live(&self, now: u32) -> Option<&Item> {
        self.item.as_ref().filter(|item| item.is_live(now))
    }

    fn live_evicted(&self, now: u32) -> Option<&Item> {
        self.evicted.as_ref().filter(|item| item.is_live(now))
    }
}

/// The histories of all keys; the last state of each is the current one.
#[derive(Default)]
pub(super) struct Histories {
    of: HashMap<Vec<u8>, Vec<State>>,
    /// States from failed commits while the device is failing: a crash may show them.
    failed: HashMap<Vec<u8>, Vec<State>>,
    greatest_cas: HashMap<Vec<u8>, u64>,
    /// Keys with an expired item: no client sees it, but its record may still be there.
    expired: HashSet<Vec<u8>>,
    /// Digests of all items that ever existed.
    written: HashMap<Vec<u8>, HashSet<u64>>,
}

impl Histories {
    /// Returns all keys in a deterministic order.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.of.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Returns the keys of all items that may be there, expired or not.
    pub(super) fn items(&self) -> impl Iterator<Item = &[u8]> {
        let there = |past: &State| past.item.is_some() || past.evicted.is_some();
        let all = self.of.iter().filter(move |(key, history)| {
            history.last().is_some_and(there) || self.expired.contains(*key)
        });
        all.map(|(key, _)| &key[..])
    }

    /// Returns the live item.
    pub(super) fn current(&self, key: &[u8], now: u32) -> Option<Item> {
        self.of.get(key)?.last()?.live(now).cloned()
    }

    /// Returns true if the key was given this cas id or a greater one before.
    pub(super) fn had_cas(&self, key: &[u8], cas: u64) -> bool {
        self.greatest_cas.get(key).is_some_and(|&greatest| greatest >= cas)
    }

    /// Returns true if the key ever had this item.
    pub(super) fn was_written(&self, key: &[u8], item: &Item) -> bool {
        self.written.get(key).is_some_and(|all| all.contains(&item.digest()))
    }

    /// Appends the key's next state, durable with `commit`.
    pub(super) fn push(&mut self, key: &[u8], item: Option<Item>, commit: Commit) {
        if let Some(item) = &item {
            let greatest = self.greatest_cas.entry(key.to_vec()).or_default();
            *greatest = (*greatest).max(item.cas);
            self.written.entry(key.to_vec()).or_default().insert(item.digest());
        }
        let history = self.of.entry(key.to_vec()).or_insert_with(|| vec![State::gone(None)]);
        history.push(State { item, ..State::gone(commit) });
    }

    /// Notes that a client is told, after `commit`, that there is no item; `None` means now. An
    /// evicted item must not come back from then on.
    pub(super) fn said_gone(&mut self, key: &[u8], commit: Commit) {
        let history = self.of.entry(key.to_vec()).or_default();
        if history.last().is_some_and(|past| past.item.is_some()) {
            self.expired.insert(key.to_vec());
        }
        if commit.is_none() {
            history.clear();
        }
        history.push(State::gone(commit));
    }

    /// Notes an eviction: the item is gone, but a crash may bring it back.
    pub(super) fn evicted(&mut self, key: &[u8]) {
        if let Some(last) = self.of.get_mut(key).and_then(|history| history.last_mut()) {
            last.evicted = last.item.take();
        }
    }

    /// Returns the commit that a reader should have waited for, if its immediate answer `found` is
    /// not durable.
    pub(super) fn undurable(&self, key: &[u8], found: Option<&Item>, now: u32) -> Commit {
        let history = self.of.get(key)?;
        let last = history.last()?;
        let expired = found.is_none() && last.item.is_some();
        let same = history.iter().all(|past| past.live(now) == found);
        last.commit.filter(|_| !expired && !same)
    }

    /// Removes everything. For each key, that is durable with the commit that `durable` returns.
    pub(super) fn flushed(&mut self, durable: impl Fn(&[u8]) -> Commit) {
        for (key, history) in &mut self.of {
            history.push(State { flushed: true, ..State::gone(durable(key)) });
        }
    }

    /// Notes that the last states of all keys are durable.
    pub(super) fn all_durable(&mut self) {
        for history in self.of.values_mut() {
            history.drain(..history.len().saturating_sub(1));
            history.iter_mut().for_each(|state| state.commit = None);
        }
    }

    /// Notes an early write of everything that the lane was given so far. A flush is written only
    /// with the next commit.
    pub(super) fn written(&mut self, lane: usize) {
        let all = self.of.values_mut().flatten();
        for past in all.filter(|past| past.commit.is_some_and(|it| it.lane as usize == lane)) {
            past.written = !past.flushed;
        }
    }

    /// Forgets early writes after a device failure: what the device still has of them is unknown.
    pub(super) fn forget_written(&mut self) {
        self.of.values_mut().flatten().for_each(|past| past.written = false);
    }

    /// Notes the end of the process: everything written early is there. Returns the number of keys
    /// for which that matters.
    pub(super) fn keep_written(&mut self) -> u64 {
        let mut keys = 0;
        for history in self.of.values_mut() {
            if let Some(last) = history.iter().rposition(|past| past.written) {
                keys += u64::from(last > 0);
                history.drain(..last);
            }
        }
        keys
    }

    /// Drops failed changes on all lanes except those for which `fails` returns true. A working
    /// device does not have the changes that it failed to take.
    pub(super) fn healthy(&mut self, fails: impl Fn(usize) -> bool) {
        for failed in self.failed.values_mut() {
            failed.retain(|past| past.commit.is_some_and(|point| fails(point.lane as usize)));
        }
        self.failed.retain(|_, failed| !failed.is_empty());
    }

    /// Updates the histories with the states of commits. If `undone`, failed commits took their
    /// changes back; otherwise the changes are written again and become durable with a later
    /// commit. `next` returns the open commit of a lane.
    pub(super) fn settle(
        &mut self,
        state: impl Fn(CommitPoint) -> CommitState,
        next: impl Fn(u32) -> u64,
        undone: bool,
    ) {
        for past in self.of.values_mut().flatten().filter(|past| past.flushed) {
            if let Some(point) = past.commit.as_mut()
                && state(*point) == CommitState::Failed
            {
                point.position = next(point.lane);
            }
        }
        let is = |past: &State, wanted| past.commit.is_some_and(|point| state(point) == wanted);
        for (key, history) in &mut self.of {
            if undone && history.iter().any(|past| is(past, CommitState::Failed)) {
                // Until the device works again, a crash may show the changes of a failed commit.
                let shown = history.iter().filter(|past| is(past, CommitState::Failed)).cloned();
                self.failed.entry(key.clone()).or_default().extend(shown);
                history.retain(|past| !is(past, CommitState::Failed));
                if history.is_empty() {
                    history.push(State::gone(None));
                }
            }
            let durable = |past: &State| past.commit.is_none() || is(past, CommitState::Durable);
            if let Some(durable) = history.iter().rposition(durable) {
                history.drain(..durable);
                history[0].commit = None;
            }
        }
    }

    /// Checks the state in which a key was found after a restart, and continues from it.
    pub(super) fn restarted(
        &mut self,
        key: &[u8],
        found: Option<Item>,
        now: u32,
        evicts: bool,
        lost: Lost,
    ) -> Result<(), String> {
        let history = self.of.get_mut(key).ok_or("no history")?;
        let failed = self.failed.get(key).into_iter().flatten();
        let mut states = history.iter().chain(failed);
        let possible = states.clone().any(|past| {
            let evicted = found.is_some() && past.live_evicted(now) == found.as_ref();
            evicted || past.live(now) == found.as_ref()
        });
        let missing = found.is_none() && (evicts || lost != Lost::No);
        if !possible && !missing {
            return Err(format!("after the restart {found:?}, should be in {history:?}"));
        }
        // An item that no longer fit into memory may come back after another restart.
        let last = history.last().and_then(|past| past.item.clone().or(past.evicted.clone()));
        if states.any(|past| past.item.is_some() && past.live(now).is_none()) {
            self.expired.insert(key.to_vec());
        }
        let evicts = evicts && lost != Lost::Yes;
        let evicted = last.filter(|item| evicts && found.is_none() && item.is_live(now));
        if found.is_none() && lost != Lost::No {
            // The cas ids of the key were lost with the device.
            self.greatest_cas.remove(key);
        }
        *history = vec![State { item: found, evicted, ..State::gone(None) }];
        Ok(())
    }

    /// Notes that all keys were checked after a restart.
    pub(super) fn all_restarted(&mut self) {
        self.failed.clear();
    }
}
