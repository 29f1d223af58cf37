//! The requests of clients in a world with a store. Each answer is compared with the model.

use super::history::{Commit, Item, Lost};
use super::{Check, DurableWorld};
use crate::model::Model;
use larder_engine::limit::{Limit, Limiter};
use larder_engine::{
    Arith, CommitState, Counted, Create, Delete, Deleted, Expiry, Get, NANOS, Outcome, Store,
    Stored, Take, Taken,
};
use std::hint::black_box;

/// The largest number of values that [`DurableWorld::crowd`] writes. They fill the smallest memory
/// that a world may have.
const MEMORYFUL: u64 = 400;
/// Bytes of the smallest lane for each key with a large value. A world has at most as many of these
/// keys as this size allows, so that their values do not fill the devices.
pub(super) const ROOM: u64 = 50 << 10;

/// Returns a key as text for messages. One letter `k` replaces those with which keys are padded.
pub(super) fn short(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    format!("k{}", text.trim_start_matches('k'))
}

impl DurableWorld {
    pub(super) fn key(&mut self) -> Vec<u8> {
        if !self.twins.is_empty() && self.random.one_in(8) {
            return self.twins[self.random.below(self.twins.len() as u64) as usize].clone();
        }
        let at = self.random.below(self.keys) * self.random.below(self.keys) / self.keys;
        format!("{}{at}", "k".repeat(1 + at as usize % 100)).into_bytes()
    }

    fn expiry(&mut self) -> Expiry {
        match self.random.below(4) {
            0 => Expiry::at(self.now + 1 + self.random.below(200) as u32),
            _ => Expiry::NEVER,
        }
    }

    /// Appends a state to the model. In async mode an answer does not wait for durability, so
    /// `commit` may be `None`. The state then becomes durable with the open commit of the key's
    /// lane.
    fn push(&mut self, key: &[u8], item: Option<Item>, commit: Commit) -> Check {
        if self.is_sync() && commit.is_none() {
            let key = short(key);
            return Err(format!("a change of {key} was acknowledged before it was durable"));
        }
        let commit = commit.map_or_else(|| self.open_commit(key), Ok)?;
        self.model.push(key, item, Some(commit));
        Ok(())
    }

    /// Returns the engine's item for a key, and the commit for which the answer waits.
    pub(super) fn get(&mut self, key: &[u8]) -> Result<Option<(Option<Item>, Commit)>, String> {
        self.finish(|session| {
            session.get(&session.key(key)).map(|found| found.as_ref().map(Item::of))
        })
    }

    /// Reads a key and compares the item with the model. In sync mode, the item must be durable if
    /// the answer waits for no commit.
    pub(super) fn read(&mut self, key: &[u8]) -> Result<Option<Item>, String> {
        let found = self.get(key)?;
        let expected = self.model.current(key, self.now);
        let Some((found, commit)) = found else { return Ok(expected) };
        if found.is_none() && expected.is_some() && self.evicts() {
            self.model.evicted(key);
            return Ok(None);
        }
        if found != expected {
            return Err(format!("{}: read {found:?}, should be {expected:?}", short(key)));
        }
        let missed = found.is_none() && self.evicts();
        if self.is_sync()
            && commit.is_none()
            && !missed
            && let Some(point) = self.model.undurable(key, found.as_ref(), self.now)
            && self.sessions[0].commit_state(point) == CommitState::Pending
        {
            return Err(format!("{} was read before it was durable", short(key)));
        }
        Ok(found)
    }

    /// Holds an item while other sessions overwrite it and the cleaner runs. Its bytes must not
    /// change.
    pub(super) fn read_slowly(&mut self) -> Check {
        let key = self.key();
        let reader = self.new_session();
        let item = match reader.get(&reader.key(&key)) {
            Outcome::Ready(Some(item)) | Outcome::AfterCommit(Some(item), _) => item,
            _ => return Ok(()),
        };
        if item.value().len() as u64 > self.options.max_item_size / 32 {
            return Ok(());
        }
        let (looked_at, before) = (item.value(), item.value().to_vec());
        self.reading = true;
        let lanes = self.lanes_of_keys();
        let done = match self.random.below(3) {
            0 => self.crowd(),
            _ => (0..self.random.below(60)).try_for_each(|_| match self.random.below(4) {
                0 => self.commit(),
                1 => {
                    self.clean();
                    Ok(())
                }
                _ if self.several && self.random.one_in(3) => self.move_some(),
                _ => self.set(),
            }),
        };
        self.reading = false;
        done?;
        self.check_not_moved(&lanes)?;
        // If the engine is wrong, this memory changes although the compiler assumes that it cannot.
        // `black_box` makes the compiler read the memory again.
        if black_box(looked_at) != before {
            return Err(format!("{} changed during a read", short(&key)));
        }
        Ok(())
    }

    pub(super) fn set(&mut self) -> Check {
        let key = self.key();
        let most = if self.random.one_in(200) { 300 << 10 } else { self.value_max };
        let len = self.random.below(1 + self.random.clone().below(most)) as usize;
        let mut value = vec![b'a' + self.random.below(26) as u8; len];
        let mark = self.random.bits().to_le_bytes();
        let marked = value.len().min(8);
        value[..marked].copy_from_slice(&mark[..marked]);
        self.store(&key, value).map(drop)
    }

    /// Stores a value under a key. Returns false if the engine refused the call for a valid reason.
    pub(super) fn store(&mut self, key: &[u8], value: Vec<u8>) -> Result<bool, String> {
        let flags = if self.random.one_in(3) { self.random.bits() as u32 } else { 0 };
        let expiry = self.expiry();
        let answer = self.finish(|session| {
            session.store(&session.key(key), Store::set(&value, flags, expiry))
        })?;
        match answer {
            Some((Stored::Stored { cas, .. }, commit)) => {
                if self.model.had_cas(key, cas) {
                    return Err(format!("cas id {cas} of {} was given before", short(key)));
                }
                let expiry = expiry.seconds().unwrap_or(0);
                self.push(key, Some(Item { value, flags, expiry, cas, limiter: None }), commit)?;
                Ok(true)
            }
            Some((stored, _)) => Err(format!("a set was answered {stored:?}")),
            None => self.refused("a set", key).map(|()| false),
        }
    }

    /// Writes up to [`MEMORYFUL`] large values without waiting for space, until memory is full of
    /// uncommitted records. Then starts a commit that waits in the device. While it waits, the
    /// cleaner looks for space, and the power may fail.
    pub(super) fn crowd(&mut self) -> Check {
        self.hurry = true;
        let keys = self.machine.smallest() / ROOM;
        let mut full = Ok(false);
        let first = self.random.below(keys);
        for at in first..first + MEMORYFUL {
            let key = format!("c{}", at % keys).into_bytes();
            let value = vec![self.random.bits() as u8; 20_000 + self.random.below(10_000) as usize];
            full = self.store(&key, value).map(|stored| !stored);
            if full != Ok(false) {
                break;
            }
            self.clean();
        }
        self.hurry = false;
        full?;
        self.begin_held_commit()?;
        (0..4).for_each(|_| self.clean());
        if !self.reading && self.random.one_in(3) { self.crash() } else { Ok(()) }
    }

    pub(super) fn count(&mut self) -> Check {
        let key = [b"n", &self.key()[..]].concat();
        self.read(&key)?;
        let create = Create { initial: 7, expiry: Expiry::NEVER };
        let arith = Arith { create: Some(create), ..Arith::add(1 + self.random.below(9)) };
        let answer = self.finish(|session| session.arith(&session.key(&key), &arith))?;
        let Some((counted, commit)) = answer else { return self.refused("a count", &key) };
        let Counted::Value { value, cas, created, .. } = counted else {
            return Err(format!("a count was answered {counted:?}"));
        };
        // While the increment waited, a commit may have failed, and the engine may have undone its
        // changes to this key. So only the model's current state gives the expected value.
        let before = self.model.current(&key, self.now);
        let before = before.filter(|_| !(created && self.evicts()));
        let expected = match &before {
            None => 7,
            Some(item) => {
                let text = String::from_utf8_lossy(&item.value);
                text.trim().parse::<u64>().map_err(|e| e.to_string())? + arith.delta
            }
        };
        if value != expected {
            return Err(format!("{} counted to {value}, should be {expected}", short(&key)));
        }
        let text = value.to_string().into_bytes();
        let item = match before {
            Some(item) => Item { value: text, cas, ..item },
            None => Item { value: text, flags: 0, expiry: 0, cas, limiter: None },
        };
        self.push(&key, Some(item), commit)
    }

    /// Takes units of a rate limit. Sometimes deletes, sets, increments, decrements or touches the
    /// limiter's key instead.
    pub(super) fn limit(&mut self) -> Check {
        let number = self.random.below(6);
        let key = match self.random.below(2) {
            0 => format!("l{number}").into_bytes(),
            _ => [b"l", &self.key()[..]].concat(),
        };
        match self.random.below(12) {
            0 => return self.delete_key(&key),
            1 => return self.store(&key, number.to_string().into_bytes()).map(drop),
            2 => return self.count_units(&key),
            3 => return self.touch_key(&key),
            _ => {}
        }
        self.read(&key)?;
        // Requests for a key usually name the same limit, and sometimes another one.
        let at = if self.random.one_in(8) { self.random.below(99) } else { key.len() as u64 };
        let (budget, window) = (1 + at % 7 * 3, (1 + at % 5 * 40) * NANOS);
        let limit = match at % 3 {
            0 => Some(Limit::fixed(budget, if at % 4 == 0 { 0 } else { window })),
            1 => Limit::sliding(budget, window),
            _ => Limit::gcra(budget, window, 1 + budget / 2),
        };
        let limit = limit.expect("the window is not 0");
        let cost = self.random.below(4);
        let answer =
            self.finish(|session| session.take(&session.key(&key), &Take::of(limit, cost)))?;
        let Some((taken, commit)) = answer else { return self.refused("a take", &key) };
        let Taken::Decided { decision, cas, .. } = taken else {
            return Err(format!("a take was answered {taken:?}"));
        };
        let nanos = u64::from(self.now) * NANOS;
        let before = self.model.current_state(&key, self.now);
        let known = before.as_ref().map(|item| match &item.limiter {
            Some(limiter) => *limiter,
            None => {
                let used = String::from_utf8_lossy(&item.value).trim().parse().expect("a number");
                let end = (item.expiry != 0).then_some(u64::from(item.expiry) * NANOS);
                Limiter::with_used(&limit, used, end, nanos)
            }
        });
        let plain = before.as_ref().is_some_and(|item| item.limiter.is_none());
        let (expected, next) = Limiter::decide(known.as_ref(), &limit, cost, nanos);
        let next = next.or(known.filter(|_| plain && cost != 0));
        let missing = Limiter::decide(None, &limit, cost, nanos);
        let (next, flags) = match decision {
            _ if decision == expected => (next, before.as_ref().map_or(0, |item| item.flags)),
            _ if self.evicts() && decision == missing.0 => {
                self.model.evicted(&key);
                (missing.1, 0)
            }
            _ => {
                let key = short(&key);
                return Err(format!("{key}: {cost} units: {decision:?}, should be {expected:?}"));
            }
        };
        let Some(limiter) = next else { return Ok(()) };
        let unchanged = before.as_ref().is_some_and(|item| item.cas == cas);
        if !decision.allowed && !plain && unchanged {
            // The store could not take the changed limit of a refused request.
            return self.refused("a changed limit", &key);
        }
        let limiter = Some(limiter);
        self.push(&key, Some(Item { value: Vec::new(), flags, expiry: 0, cas, limiter }), commit)
    }

    /// Increments or decrements a key of rate limits. This changes the limiter's used units, or a
    /// plain number that a later request turns into a limiter.
    fn count_units(&mut self, key: &[u8]) -> Check {
        self.read(key)?;
        let (decrement, delta) = (self.random.one_in(2), self.random.below(5));
        let arith = Arith { decrement, ..Arith::add(delta) };
        let answer = self.finish(|session| session.arith(&session.key(key), &arith))?;
        let Some((counted, commit)) = answer else { return self.refused("a count", key) };
        let nanos = u64::from(self.now) * NANOS;
        let before = self.model.current_state(key, self.now);
        let (value, cas) = match counted {
            Counted::NotFound if before.is_none() => return Ok(()),
            Counted::NotFound if self.evicts() => {
                self.model.evicted(key);
                return Ok(());
            }
            Counted::Value { value, cas, .. } => (value, cas),
            _ => return Err(format!("{}: a count was answered {counted:?}", short(key))),
        };
        let Some(mut item) = before else {
            return Err(format!("{} was counted, and is not there", short(key)));
        };
        item.cas = cas;
        let expected = match &mut item.limiter {
            Some(limiter) => {
                match decrement {
                    true => limiter.give_back(delta, nanos),
                    false => limiter.add(delta, nanos),
                }
                limiter.used(nanos)
            }
            None => {
                let counted = Model::counted(&item.value, decrement, delta).expect("a number");
                item.value = counted.1;
                counted.0
            }
        };
        if value != expected {
            return Err(format!("{} counted to {value}, should be {expected}", short(key)));
        }
        self.push(key, Some(item), commit)
    }

    pub(super) fn delete(&mut self) -> Check {
        let key = self.key();
        self.delete_key(&key)
    }

    /// Stores items whose records may later be only on a device, and overwrites and deletes such
    /// items. The engine may do so without reading the old records. Afterwards overwrites other
    /// keys and runs the cleaner, so that it may clean the segments of the old records.
    pub(super) fn delete_unread(&mut self) -> Check {
        for _ in 0..8 << self.random.below(4) {
            let at = self.random.below(self.keys);
            let key = format!("{}{at}", "cold".repeat(50)).into_bytes();
            // About half of the operations store an item that may later be only on a device. The
            // others supersede an item and delete it.
            if self.random.one_in(2) {
                let value = vec![b'c'; 1 + self.random.below(2000) as usize];
                self.store(&key, value)?;
            } else {
                self.store(&key, b"over".to_vec())?;
                self.delete_key(&key)?;
            }
        }
        for at in 0..16 << self.random.below(5) {
            let value = vec![b'h'; 1 + self.random.below(8000) as usize];
            self.store(&format!("hot{}", at % 8).into_bytes(), value)?;
            if self.random.one_in(4) {
                self.commit()?;
                self.clean();
            }
        }
        Ok(())
    }

    pub(super) fn delete_key(&mut self, key: &[u8]) -> Check {
        let answer =
            self.finish(|session| session.delete(&session.key(key), &Delete::default()))?;
        let before = self.model.current(key, self.now).is_some();
        match answer {
            Some((Deleted::Deleted, commit)) if before => self.push(key, None, commit),
            Some((Deleted::NotFound, commit)) if !before || self.evicts() => {
                let waits = commit.is_some() || self.is_sync();
                let commit = if waits { commit } else { Some(self.open_commit(key)?) };
                self.model.reported_missing(key, self.now, commit);
                Ok(())
            }
            None => self.not_refused("a delete", key),
            answer => Err(format!("a delete of {before} was answered {answer:?}")),
        }
    }

    /// Deletes keys one after the other and waits for each commit, as some clients do. A part of
    /// the log then contains only tombstones and trailers, and later writes put items behind it.
    pub(super) fn delete_in_a_row(&mut self) -> Check {
        for _ in 0..8 << self.random.below(4) {
            self.delete()?;
            self.commit()?;
        }
        Ok(())
    }

    pub(super) fn touch(&mut self) -> Check {
        let key = self.key();
        self.touch_key(&key)
    }

    fn touch_key(&mut self, key: &[u8]) -> Check {
        let Some(before) = self.read(key)? else { return Ok(()) };
        let expiry = self.expiry();
        let get = Get { touch: Some(expiry), ..Get::default() };
        let answer = self.finish(|session| {
            session.get_with(&session.key(key), &get).map(|found| found.is_some())
        })?;
        match answer {
            Some((true, commit)) => {
                // While the touch waited, a failed commit may have undone the state that was read
                // above. So the state is read from the model again.
                let mut before = self.model.current_state(key, self.now).unwrap_or(before);
                if let Some(limiter) = &mut before.limiter {
                    let end = expiry.seconds().map(|end| u64::from(end) * NANOS);
                    limiter.end_at(end, u64::from(self.now) * NANOS);
                    return self.push(key, Some(before), commit);
                }
                let expiry = expiry.seconds().unwrap_or(0);
                if expiry == before.expiry {
                    return Ok(());
                }
                self.push(key, Some(Item { expiry, ..before }), commit)
            }
            Some((false, _)) if self.evicts() || self.model.current(key, self.now).is_none() => {
                Ok(())
            }
            Some((false, _)) => Err(format!("a touch missed {}", short(key))),
            None => self.refused("a touch", key),
        }
    }

    pub(super) fn flush(&mut self) -> Check {
        // While a key moves, the commits of two lanes decide whether the flush is durable. The
        // model cannot express that, so no flush happens.
        if self.model.keys().iter().any(|key| self.engine.lane_of(key).is_none()) {
            return Ok(());
        }
        let Some((points, _)) = self.finish(|session| session.flush_all(None))? else {
            return Ok(());
        };
        let engine = &self.engine;
        self.model.flushed(|key| {
            points.iter().find(|point| engine.lane_of(key) == Some(point.lane as usize)).copied()
        });
        if self.random.one_in(4) { self.crash() } else { Ok(()) }
    }

    pub(super) fn check_all(&mut self) -> Check {
        self.model.keys().iter().try_for_each(|key| self.read(key).map(drop))?;
        self.check_scan()
    }

    /// Checks that a restart left a key in one of its possible states.
    pub(super) fn check_restarted(&mut self, key: &[u8]) -> Check {
        let mut found = self.get(key)?;
        if found.is_none() && self.anomaly.was_reached(&self.machine, &self.engine) {
            // The engine refused the read, perhaps because of the anomaly. After the next tick it
            // must answer.
            self.tick_all();
            found = self.get(key)?;
        }
        let (found, commit) =
            found.ok_or_else(|| format!("a read was refused: {:?}", self.engine.stats()))?;
        if commit.is_some() {
            return Err(format!("{} is not durable after a restart", short(key)));
        }
        let (times, evicts) = ((self.now, self.clocks.latest), self.evicts());
        let lost = self.lost.get(key).copied().unwrap_or(Lost::No);
        let settled = self.model.restarted(key, found, times, evicts, lost);
        settled.map_err(|what| format!("{}: {what}", short(key)))
    }

    /// Checks that a key in a damaged store has no item, or an item that the key once had.
    pub(super) fn check_damaged(&mut self, key: &[u8]) -> Check {
        match self.get(key)? {
            Some((Some(found), _)) if !self.model.was_written(key, &found) => {
                Err(format!("{}: damaged, read {found:?}, which never was", short(key)))
            }
            _ => Ok(()),
        }
    }
}
