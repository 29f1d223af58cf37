//! The model of a store: of each key all its states, in the order in which they were written.
//!
//! Some prefix of a history is known to be durable, because a writer was answered or a reader was.
//! After a crash a key is in its last known state or in a later one; after a commit in the last. What was written
//! and is not durable survives the end of the process, not of the power.

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

/// The commit that makes something durable; `None` when it is known to be.
pub(super) type Commit = Option<CommitPoint>;

/// Whether a key was lost with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    No,
    /// It was on its way from the device that is lost, or to it.
    Perhaps,
    /// It was there: what comes back now would be an older version.
    Yes,
}

/// A state of a key.
#[derive(Clone, Debug)]
struct State {
    /// `None`: there is no item.
    item: Option<Item>,
    /// It was evicted, which is durable only later: a crash may bring it back.
    evicted: Option<Item>,
    commit: Commit,
    /// It was written early.
    written: bool,
    /// Everything was flushed. If the commit fails it stays so, and the next one is to make it durable.
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
    /// What was in failed commits while the device is failing: a crash may show it.
    failed: HashMap<Vec<u8>, Vec<State>>,
    greatest_cas: HashMap<Vec<u8>, u64>,
    /// What had expired: nobody sees it, but it may still be there.
    expired: HashSet<Vec<u8>>,
    /// Digests of all items that ever were.
    written: HashMap<Vec<u8>, HashSet<u64>>,
}

impl Histories {
    /// All keys, in an order that depends on nothing else.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.of.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// The keys of all items that may be there, expired or not.
    pub(super) fn items(&self) -> impl Iterator<Item = &[u8]> {
        let there = |past: &State| past.item.is_some() || past.evicted.is_some();
        let all = self.of.iter().filter(move |(key, history)| {
            history.last().is_some_and(there) || self.expired.contains(*key)
        });
        all.map(|(key, _)| &key[..])
    }

    /// The live item.
    pub(super) fn current(&self, key: &[u8], now: u32) -> Option<Item> {
        self.of.get(key)?.last()?.live(now).cloned()
    }

    /// Whether this cas id was given to the key before, or a greater one.
    pub(super) fn had_cas(&self, key: &[u8], cas: u64) -> bool {
        self.greatest_cas.get(key).is_some_and(|&greatest| greatest >= cas)
    }

    /// Whether the key ever had this item.
    pub(super) fn was_written(&self, key: &[u8], item: &Item) -> bool {
        self.written.get(key).is_some_and(|all| all.contains(&item.digest()))
    }

    /// The key's next state, durable with `commit`.
    pub(super) fn push(&mut self, key: &[u8], item: Option<Item>, commit: Commit) {
        if let Some(item) = &item {
            let greatest = self.greatest_cas.entry(key.to_vec()).or_default();
            *greatest = (*greatest).max(item.cas);
            self.written.entry(key.to_vec()).or_default().insert(item.digest());
        }
        let history = self.of.entry(key.to_vec()).or_insert_with(|| vec![State::gone(None)]);
        history.push(State { item, ..State::gone(commit) });
    }

    /// Somebody was told that there is no item, or will be with `commit`; `None`: now. What was
    /// evicted must not come back any more.
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

    /// The key was evicted: it is gone, or after a crash as it was.
    pub(super) fn evicted(&mut self, key: &[u8]) {
        if let Some(last) = self.of.get_mut(key).and_then(|history| history.last_mut()) {
            last.evicted = last.item.take();
        }
    }

    /// Whether a reader who was answered `found` at once was told what is not durable: the commit
    /// it should have waited for.
    pub(super) fn undurable(&self, key: &[u8], found: Option<&Item>, now: u32) -> Commit {
        let history = self.of.get(key)?;
        let last = history.last()?;
        let expired = found.is_none() && last.item.is_some();
        let same = history.iter().all(|past| past.live(now) == found);
        last.commit.filter(|_| !expired && !same)
    }

    /// Everything is gone, durably with the commit that `durable` gives for a key.
    pub(super) fn flushed(&mut self, durable: impl Fn(&[u8]) -> Commit) {
        for (key, history) in &mut self.of {
            history.push(State { flushed: true, ..State::gone(durable(key)) });
        }
    }

    /// The last states of all keys are durable.
    pub(super) fn all_durable(&mut self) {
        for history in self.of.values_mut() {
            history.drain(..history.len().saturating_sub(1));
            history.iter_mut().for_each(|state| state.commit = None);
        }
    }

    /// What a lane was given so far was written early. A flush goes with the next commit.
    pub(super) fn written(&mut self, lane: usize) {
        let all = self.of.values_mut().flatten();
        for past in all.filter(|past| past.commit.is_some_and(|it| it.lane as usize == lane)) {
            past.written = !past.flushed;
        }
    }

    /// A device has failed: nobody knows what it still has of that.
    pub(super) fn forget_written(&mut self) {
        self.of.values_mut().flatten().for_each(|past| past.written = false);
    }

    /// The process ends: what was written is there. The answer is of how many keys that matters.
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

    /// The devices of all lanes work but of those that `fails` names: what the others failed to take is not
    /// on them.
    pub(super) fn healthy(&mut self, fails: impl Fn(usize) -> bool) {
        for failed in self.failed.values_mut() {
            failed.retain(|past| past.commit.is_some_and(|point| fails(point.lane as usize)));
        }
        self.failed.retain(|_, failed| !failed.is_empty());
    }

    /// Brings the histories up to date with the states of commits. `undone`: failed ones took their
    /// changes back; else they are written again, and durable with a later one. `next` is the commit that a
    /// lane fills now.
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
                // Until the device is well again a crash may show what it was told last.
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

    /// After a restart the key was found like this: whether that may be. From here on it is so.
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
        // What did not fit into memory any more may come back with another restart.
        let last = history.last().and_then(|past| past.item.clone().or(past.evicted.clone()));
        if states.any(|past| past.item.is_some() && past.live(now).is_none()) {
            self.expired.insert(key.to_vec());
        }
        let evicts = evicts && lost != Lost::Yes;
        let evicted = last.filter(|item| evicts && found.is_none() && item.is_live(now));
        if found.is_none() && lost != Lost::No {
            // Nobody is left who knows which cas ids it had.
            self.greatest_cas.remove(key);
        }
        *history = vec![State { item: found, evicted, ..State::gone(None) }];
        Ok(())
    }

    /// All keys were looked at after a restart.
    pub(super) fn all_restarted(&mut self) {
        self.failed.clear();
    }
}
