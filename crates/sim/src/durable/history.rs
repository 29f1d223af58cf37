//! The model of a store: for each key, the states that it had, in the order in which they were
//! written.
//!
//! A prefix of each history is known to be durable, because the engine reports its commits as
//! durable. After a crash, a key is in the last state of that prefix or in a later state. After a
//! commit, the key is in its last state. A state that only an early write covers survives the end
//! of the process, but perhaps not a power loss.

use larder_engine::limit::Limiter;
use larder_engine::{CommitPoint, CommitState, Item as Found, NANOS};
use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    /// Unix seconds at which the item expires; 0 for never.
    pub(super) expiry: u32,
    pub(super) cas: u64,
    /// The state of a rate limiter. The value and the expiry that clients see depend on the time,
    /// so `value` is empty and `expiry` is 0.
    pub(super) limiter: Option<Limiter>,
}

impl Item {
    pub(super) fn of(found: &Found<'_>) -> Self {
        Item {
            value: found.value().to_vec(),
            flags: found.flags(),
            expiry: found.expiry().seconds().unwrap_or(0),
            cas: found.cas(),
            limiter: None,
        }
    }

    /// Returns the item that clients see; `None` if it has expired.
    fn shown(&self, now: u32) -> Option<Cow<'_, Item>> {
        let Some(limiter) = &self.limiter else {
            return (self.expiry == 0 || self.expiry > now).then_some(Cow::Borrowed(self));
        };
        let nanos = u64::from(now) * NANOS;
        if limiter.is_new(nanos) {
            return None;
        }
        let left = limiter.reset(nanos);
        Some(Cow::Owned(Item {
            value: limiter.used(nanos).to_string().into_bytes(),
            expiry: left.map_or(0, |left| now + left.div_ceil(NANOS) as u32),
            limiter: None,
            ..*self
        }))
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.value, self.flags, self.expiry, self.cas).hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.value[..self.value.len().min(8)];
        let Item { value, flags, expiry, cas, limiter } = self;
        write!(f, "{} bytes {start:x?} flags {flags} expiry {expiry} cas {cas}", value.len())?;
        limiter.iter().try_for_each(|limiter| write!(f, " {limiter:?}"))
    }
}

/// The commit that makes a state durable; `None` if the state is known to be durable.
pub(super) type Commit = Option<CommitPoint>;

/// Whether a key was lost with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    No,
    /// The key was moving from or to the lost device.
    Perhaps,
    /// The key was only on the lost device. A version that came back later would be an old one, so
    /// none may come back.
    Yes,
}

/// A state of a key.
#[derive(Clone, Debug)]
struct State {
    /// `None` if there is no item.
    item: Option<Item>,
    /// Items that clients do not see, and that a restart may bring back: an evicted item, because
    /// the eviction becomes durable only later, and expired items, because the clock may be set
    /// back while the machine boots.
    hidden: Vec<Item>,
    commit: Commit,
    /// True if an early write covers this state.
    written: bool,
    /// True if a flush of all keys left this state. Such a state outlives a failed commit: the
    /// flush stays in effect, and the next commit makes it durable.
    flushed: bool,
}

impl State {
    fn gone(commit: Commit) -> Self {
        State { item: None, hidden: Vec::new(), commit, written: false, flushed: false }
    }

    fn live(&self, now: u32) -> Option<Cow<'_, Item>> {
        self.item.as_ref()?.shown(now)
    }

    /// Returns the item that clients would see as `found` at the time `now`.
    fn seen_as(&self, found: &Item, now: u32) -> Option<&Item> {
        self.all().find(|item| item.shown(now).as_deref() == Some(found))
    }

    /// Returns the item and the hidden ones.
    fn all(&self) -> impl Iterator<Item = &Item> {
        self.item.iter().chain(&self.hidden)
    }

    /// Returns the items that have expired at the time `now`.
    fn expired(&self, now: u32) -> impl Iterator<Item = &Item> {
        self.all().filter(move |item| item.shown(now).is_none())
    }
}

/// The histories of all keys. The last state of a history is the current one.
#[derive(Default)]
pub(super) struct Histories {
    of: HashMap<Vec<u8>, Vec<State>>,
    /// States from failed commits of devices that still fail. A restart may show such a state,
    /// because a failed commit may have written it.
    failed: HashMap<Vec<u8>, Vec<State>>,
    greatest_cas: HashMap<Vec<u8>, u64>,
    /// Keys with an expired item. No client sees such an item, but its record may still be in the
    /// engine.
    expired: HashSet<Vec<u8>>,
    /// For each key, the digests of all items that it ever had.
    written: HashMap<Vec<u8>, HashSet<u64>>,
}

impl Histories {
    /// Returns all keys in a deterministic order.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.of.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Returns the keys of which the engine may have a record, including keys whose items have
    /// expired or were evicted.
    pub(super) fn items(&self) -> impl Iterator<Item = &[u8]> {
        let there = |past: &State| past.all().next().is_some();
        let all = self.of.iter().filter(move |(key, history)| {
            history.last().is_some_and(there) || self.expired.contains(*key)
        });
        all.map(|(key, _)| &key[..])
    }

    /// Returns the item that a client would see.
    pub(super) fn current(&self, key: &[u8], now: u32) -> Option<Item> {
        self.of.get(key)?.last()?.live(now).map(Cow::into_owned)
    }

    /// Returns the same item as [`Histories::current`]. For a rate limiter, however, the item has
    /// the limiter's state instead of its used units.
    pub(super) fn current_state(&self, key: &[u8], now: u32) -> Option<Item> {
        let item = self.of.get(key)?.last()?.item.as_ref()?;
        item.shown(now).is_some().then(|| item.clone())
    }

    /// Returns true if the key ever had this cas id or a greater one.
    pub(super) fn had_cas(&self, key: &[u8], cas: u64) -> bool {
        self.greatest_cas.get(key).is_some_and(|&greatest| greatest >= cas)
    }

    /// Returns true if the key ever had this item.
    pub(super) fn was_written(&self, key: &[u8], item: &Item) -> bool {
        let of_limiter = Item { value: Vec::new(), expiry: 0, ..item.clone() };
        self.written
            .get(key)
            .is_some_and(|all| all.contains(&item.digest()) || all.contains(&of_limiter.digest()))
    }

    /// Appends the key's next state, which `commit` makes durable.
    pub(super) fn push(&mut self, key: &[u8], item: Option<Item>, commit: Commit) {
        if let Some(item) = &item {
            let greatest = self.greatest_cas.entry(key.to_vec()).or_default();
            *greatest = (*greatest).max(item.cas);
            self.written.entry(key.to_vec()).or_default().insert(item.digest());
        }
        let history = self.of.entry(key.to_vec()).or_insert_with(|| vec![State::gone(None)]);
        history.push(State { item, ..State::gone(commit) });
    }

    /// Records an answer that the key has no item. The client gets the answer once `commit` is
    /// durable, or now if `commit` is `None`. From then on, an evicted item must not come back. An
    /// expired item still may.
    pub(super) fn reported_missing(&mut self, key: &[u8], now: u32, commit: Commit) {
        let history = self.of.entry(key.to_vec()).or_default();
        let hidden = history.last().map(|past| past.expired(now).cloned().collect());
        if history.last().is_some_and(|past| past.item.is_some()) {
            self.expired.insert(key.to_vec());
        }
        if commit.is_none() {
            history.clear();
        }
        history.push(State { hidden: hidden.unwrap_or_default(), ..State::gone(commit) });
    }

    /// Records an eviction. The item is gone, but a crash may bring it back.
    pub(super) fn evicted(&mut self, key: &[u8]) {
        if let Some(last) = self.of.get_mut(key).and_then(|history| history.last_mut()) {
            last.hidden.extend(last.item.take());
        }
    }

    /// Returns the commit for which the answer `found` should have waited. Returns `None` if what
    /// the answer shows is known to be durable.
    pub(super) fn undurable(&self, key: &[u8], found: Option<&Item>, now: u32) -> Commit {
        let history = self.of.get(key)?;
        let last = history.last()?;
        let expired = found.is_none() && last.item.is_some();
        let same = history.iter().all(|past| past.live(now).as_deref() == found);
        last.commit.filter(|_| !expired && !same)
    }

    /// Removes all items. `durable` returns the commit that makes the removal of a given key
    /// durable.
    pub(super) fn flushed(&mut self, durable: impl Fn(&[u8]) -> Commit) {
        for (key, history) in &mut self.of {
            history.push(State { flushed: true, ..State::gone(durable(key)) });
        }
    }

    /// Records that the last states of all keys are durable.
    pub(super) fn all_durable(&mut self) {
        for history in self.of.values_mut() {
            history.drain(..history.len().saturating_sub(1));
            history.iter_mut().for_each(|state| state.commit = None);
        }
    }

    /// Records an early write. It covers every state of the lane so far except a flush, because
    /// only a commit writes a flush.
    pub(super) fn written(&mut self, lane: usize) {
        let all = self.of.values_mut().flatten();
        for past in all.filter(|past| past.commit.is_some_and(|it| it.lane as usize == lane)) {
            past.written = !past.flushed;
        }
    }

    /// Unmarks all states that were written early. After a device failure it is unknown which of
    /// the early writes the device still has.
    pub(super) fn forget_written(&mut self) {
        self.of.values_mut().flatten().for_each(|past| past.written = false);
    }

    /// Records the end of the process. Every state that was written early survives. Returns the
    /// number of keys that a restart could have shown in an older state if there had been no early
    /// writes.
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

    /// Drops the states from failed commits on all lanes for which `fails` returns false. The
    /// changes of a failed commit are gone once the device works again.
    pub(super) fn healthy(&mut self, fails: impl Fn(usize) -> bool) {
        for failed in self.failed.values_mut() {
            failed.retain(|past| past.commit.is_some_and(|point| fails(point.lane as usize)));
        }
        self.failed.retain(|_, failed| !failed.is_empty());
    }

    /// Updates the histories with the states of commits. If `undone`, the engine has undone the
    /// changes of failed commits. Otherwise it writes these changes again, and a later commit makes
    /// them durable. `next` returns the open commit of a lane.
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
                // Until the device works again, a restart may show the changes of a failed commit.
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

    /// Checks the state in which a restart left a key, and continues the history from it. The
    /// engine may have removed items that expired until `latest`, even if the clock was set back
    /// to `now` since.
    pub(super) fn restarted(
        &mut self,
        key: &[u8],
        found: Option<Item>,
        (now, latest): (u32, u32),
        evicts: bool,
        lost: Lost,
    ) -> Result<(), String> {
        let history = self.of.get_mut(key).ok_or("no history")?;
        let failed = self.failed.get(key).into_iter().flatten();
        let mut states = history.iter().chain(failed);
        let state = found.as_ref().and_then(|it| states.clone().find_map(|s| s.seen_as(it, now)));
        let state = state.cloned();
        let possible = match &found {
            Some(_) => state.is_some(),
            None => states.clone().any(|past| past.live(latest).is_none()),
        };
        let missing = found.is_none() && (evicts || lost != Lost::No);
        if !possible && !missing {
            return Err(format!("after the restart {found:?}, should be in {history:?}"));
        }
        let mut hidden = Vec::new();
        if found.is_none() && lost != Lost::Yes {
            hidden.extend(states.clone().flat_map(|past| past.expired(latest)).cloned());
            // The item may not have fitted into memory. The model then treats it as evicted.
            let last = history.last().and_then(|past| past.all().next());
            hidden.extend(last.filter(|item| evicts && item.shown(latest).is_some()).cloned());
        }
        if states.any(|past| past.item.is_some() && past.live(latest).is_none()) {
            self.expired.insert(key.to_vec());
        }
        if found.is_none() && lost != Lost::No {
            // The key's cas ids were lost with the device.
            self.greatest_cas.remove(key);
        }
        *history = vec![State { item: state, hidden, ..State::gone(None) }];
        Ok(())
    }

    /// Records that all keys were checked after a restart.
    pub(super) fn all_restarted(&mut self) {
        self.failed.clear();
    }
}
