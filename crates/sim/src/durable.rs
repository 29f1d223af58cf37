//! A world with a store: random operations, commits, cleaning, and crashes at any write to the
//! device. What was acknowledged must be there after every restart, nothing may come back that was
//! deleted, and nobody may have read what a crash took back.
//!
//! The model is the history of each key: all its states in the order in which they were written.
//! Some prefix of it is known to be durable, because a writer was answered or a reader was. After a
//! crash a key must be in its last known state or in a later one, and in the last one after a commit.

use crate::Random;
use crate::world::{Failure, Plan};
use larder_disk::{Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::{
    Arith, CommitPoint, CommitState, Counted, Create, Delete, Deleted, Durability, Engine, Expiry,
    Get, Health, ManualCleaner, MonotonicClock, Options, Outcome, Session, Store, StoreOptions,
    Stored, WhenFull,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

/// A state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// `None`: there is no item.
    item: Option<Item>,
    /// It was evicted, which is durable only later: a crash may bring it back.
    evicted: Option<Item>,
    /// The commit that makes it durable; 0 when it is known to be.
    commit: u64,
}

impl State {
    fn gone(commit: u64) -> Self {
        State { item: None, evicted: None, commit }
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Item {
    value: Vec<u8>,
    flags: u32,
    /// Unix seconds; 0 for never.
    expiry: u32,
    cas: u64,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.value[..self.value.len().min(8)];
        let Item { value, flags, expiry, cas } = self;
        write!(f, "{} bytes {start:x?} flags {flags} expiry {expiry} cas {cas}", value.len())
    }
}

/// The history of a key; the last state is the current one.
type History = Vec<State>;

/// An engine on a simulated device.
pub struct DurableWorld {
    random: Random,
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
    cleaner: ManualCleaner,
    sessions: Vec<Session>,
    options: Options,
    histories: HashMap<Vec<u8>, History>,
    now: u32,
    clock: Arc<AtomicU64>,
    keys: u64,
    value_max: u64,
    greatest_cas: HashMap<Vec<u8>, u64>,
    restarts: u64,
    /// What was in failed commits while the device is failing.
    failed: HashMap<Vec<u8>, History>,
    /// A flush was refused because the device failed: it may have reached it all the same.
    maybe_flushed: bool,
}

type Check = Result<(), String>;

/// A key without its filling.
fn short(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    format!("k{}", text.trim_start_matches('k'))
}

impl DurableWorld {
    /// Runs a whole plan.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn run(plan: Plan) -> Result<(), Failure> {
        let fail = |step, what| Failure { seed: plan.seed, step, what };
        let mut world = DurableWorld::new(plan.seed).map_err(|what| fail(0, what))?;
        for step in 0..plan.steps {
            world.step().map_err(|what| fail(step, what))?;
        }
        world.crash().map_err(|what| fail(plan.steps, what))
    }

    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed ^ 0xD0_0DAB1E);
        let size = (6 + random.below(20)) << 20;
        let device = Arc::new(SimDevice::new(size, random.bits()));
        let clock = Arc::new(AtomicU64::new(1));
        let durability = if random.one_in(3) { Durability::Async } else { Durability::Sync };
        let when_full = if random.one_in(2) { WhenFull::Evict } else { WhenFull::Refuse };
        let reading = Arc::clone(&clock);
        let store = StoreOptions {
            device: Arc::<SimDevice>::clone(&device),
            durability,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(move || {
                Duration::from_millis(reading.load(Ordering::Relaxed))
            })),
            seeds: [random.bits(), random.bits(), random.bits()],
            created: 1_000_000,
        };
        let options = Options {
            memory: 8 << 20,
            max_item_size: 1 << 20,
            when_full,
            hash_seed: random.bits(),
            store: Some(store),
        };
        let engine = Engine::open_without_threads(options.clone()).map_err(|e| e.to_string())?;
        let mut world = DurableWorld {
            keys: 1 << (3 + random.below(10)),
            value_max: 1 << (4 + random.below(15)),
            random,
            device,
            engine,
            cleaner: ManualCleaner::default(),
            sessions: Vec::new(),
            options,
            histories: HashMap::new(),
            now: 1_000_000,
            clock,
            greatest_cas: HashMap::new(),
            restarts: 0,
            failed: HashMap::new(),
            maybe_flushed: false,
        };
        world.open_sessions();
        Ok(world)
    }

    fn is_sync(&self) -> bool {
        self.options.store.as_ref().is_some_and(|store| store.durability == Durability::Sync)
    }

    fn evicts(&self) -> bool {
        self.options.when_full == WhenFull::Evict
    }

    fn open_sessions(&mut self) {
        let count = 1 + self.random.below(3);
        self.sessions = (0..count)
            .map(|_| {
                let mut session = self.engine.session(Waker::noop().clone());
                session.tick(self.now);
                session
            })
            .collect();
    }

    fn step(&mut self) -> Check {
        match self.random.below(1000) {
            0..=1 => self.crash()?,
            2..=3 => self.kill()?,
            4 => self.clean_stop()?,
            5..=6 => self.plan_fault(),
            7..=20 => self.advance_clock(),
            21..=50 => self.clean(),
            51..=120 => self.commit()?,
            121 if self.random.one_in(5) => self.flush()?,
            122 if self.random.one_in(5) => self.check_all()?,
            123..=480 => self.set()?,
            481..=560 => self.count()?,
            561..=640 => self.delete()?,
            641..=690 => self.touch()?,
            _ => {
                let key = self.key();
                self.read(&key)?;
            }
        }
        Ok(())
    }

    fn tick_all(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.tick(self.now));
    }

    fn advance_clock(&mut self) {
        self.now += 1 + self.random.below(30) as u32;
        self.clock.fetch_add(self.random.below(2000), Ordering::Relaxed);
        self.tick_all();
    }

    fn clean(&mut self) {
        self.tick_all();
        self.engine.clean(&mut self.cleaner);
        self.engine.serve_reads();
        self.tick_all();
    }

    fn key(&mut self) -> Vec<u8> {
        let at = self.random.below(self.keys) * self.random.below(self.keys) / self.keys;
        format!("{}{at}", "k".repeat(1 + at as usize % 100)).into_bytes()
    }

    fn plan_fault(&mut self) {
        let operation = match self.random.below(3) {
            0 => Operation::Write,
            _ => Operation::Sync,
        };
        let counts = self.device.counts();
        let done = match operation {
            Operation::Write => counts.writes,
            _ => counts.syncs,
        };
        let failure = if self.random.one_in(2) { DeviceFailure::Io } else { DeviceFailure::Full };
        let nth = done + 1 + self.random.below(20);
        let times = 1 + self.random.below(3);
        self.device.plan(Fault { operation, at: nth, times, failure });
    }

    /// Commits, and settles the histories by what became of every commit.
    fn commit(&mut self) -> Check {
        self.engine.commit();
        self.settle();
        self.tick_all();
        Ok(())
    }

    /// Brings the histories up to date with the states of commits.
    fn settle(&mut self) {
        let sync = self.is_sync();
        let session = &self.sessions[0];
        if self.engine.health() == Health::Good {
            self.failed.clear();
        }
        if !self.engine.superblock_is_behind() {
            self.maybe_flushed = false;
        }
        for (key, history) in &mut self.histories {
            let state = |commit: u64| match commit {
                0 => CommitState::Durable,
                position => session.commit_state(CommitPoint { stream: 0, position }),
            };
            // In async mode a failed commit is written again: it is durable with a later one.
            if sync {
                let failed = |past: &State| state(past.commit) == CommitState::Failed;
                if history.iter().any(failed) {
                    // Until the device is well again a crash may show what it was told last.
                    let shown = history.iter().filter(|past| failed(past)).cloned();
                    self.failed.entry(key.clone()).or_default().extend(shown);
                    history.retain(|past| !failed(past));
                }
                if history.is_empty() {
                    history.push(State::gone(0));
                }
            }
            let durable =
                history.iter().rposition(|past| state(past.commit) == CommitState::Durable);
            if let Some(durable) = durable {
                history.drain(..durable);
                history[0].commit = 0;
            }
        }
    }

    /// Repeats a call until it does not wait any more; `None` if it was refused.
    fn finish<T>(
        &mut self,
        mut call: impl FnMut(&Session) -> Outcome<T>,
    ) -> Result<Option<(T, u64)>, String> {
        let at = self.random.below(self.sessions.len() as u64) as usize;
        for _ in 0..2000 {
            match call(&self.sessions[at]) {
                Outcome::Ready(answer) => return Ok(Some((answer, 0))),
                Outcome::AfterCommit(answer, point) => return Ok(Some((answer, point.position))),
                Outcome::Refused(_) => return Ok(None),
                Outcome::NeedsRead => {
                    self.engine.serve_reads();
                }
                Outcome::NeedsSpace => {
                    self.engine.clean(&mut self.cleaner);
                    self.engine.commit();
                    self.settle();
                }
            }
            self.tick_all();
        }
        Err(format!("a call waits for ever: {:?}", self.engine.stats()))
    }

    /// The current state by the model; `None` for no item.
    fn current(&self, key: &[u8]) -> Option<Item> {
        let item = self.histories.get(key)?.last()?.item.clone()?;
        (item.expiry == 0 || item.expiry > self.now).then_some(item)
    }

    /// Appends a state. In async mode the answer says nothing about durability: the commit that will
    /// cover it is the open one.
    fn push(&mut self, key: &[u8], item: Option<Item>, commit: u64) -> Check {
        if self.is_sync() && commit == 0 {
            return Err(format!(
                "a change of {} was acknowledged before it was durable",
                short(key)
            ));
        }
        let commit = if commit == 0 { self.engine.open_commit() } else { commit };
        if let Some(item) = &item {
            let greatest = self.greatest_cas.entry(key.to_vec()).or_default();
            *greatest = (*greatest).max(item.cas);
        }
        let history = self.histories.entry(key.to_vec()).or_insert_with(|| vec![State::gone(0)]);
        history.push(State { item, evicted: None, commit });
        Ok(())
    }

    /// Reads a key and compares it with the model; what is answered at once must be durable.
    fn read(&mut self, key: &[u8]) -> Result<Option<Item>, String> {
        let found = self.finish(|session| {
            session.get(&session.key(key)).map(|found| {
                found.map(|item| Item {
                    value: item.value().to_vec(),
                    flags: item.flags(),
                    expiry: item.expiry().seconds().unwrap_or(0),
                    cas: item.cas(),
                })
            })
        })?;
        let Some((found, commit)) = found else { return Ok(self.current(key)) };
        let expected = self.current(key);
        if found.is_none() && expected.is_some() && self.evicts() {
            self.evicted(key);
            return Ok(None);
        }
        if found != expected {
            return Err(format!("{}: read {found:?}, should be {expected:?}", short(key)));
        }
        let history = self.histories.get_mut(key);
        if let Some(history) = history
            && self.options.store.as_ref().is_some_and(|s| s.durability == Durability::Sync)
        {
            let last = history.last().map_or(0, |state| state.commit);
            let expired = found.is_none() && history.last().is_some_and(|s| s.item.is_some());
            let now = self.now;
            let live = |item: &Item| item.expiry == 0 || item.expiry > now;
            let same = history.iter().all(|past| past.item.clone().filter(live) == found);
            let missed = found.is_none() && self.options.when_full == WhenFull::Evict;
            if commit == 0 && last != 0 && !expired && !same && !missed {
                let session = &self.sessions[0];
                let point = CommitPoint { stream: 0, position: last };
                if session.commit_state(point) == CommitState::Pending {
                    return Err(format!("{} was read before it was durable", short(key)));
                }
            }
        }
        Ok(found)
    }

    /// The key was evicted: it is gone, or after a crash as it was.
    fn evicted(&mut self, key: &[u8]) {
        if let Some(last) = self.histories.get_mut(key).and_then(|history| history.last_mut()) {
            last.evicted = last.item.take();
        }
    }

    fn expiry(&mut self) -> Expiry {
        match self.random.below(4) {
            0 => Expiry::at(self.now + 1 + self.random.below(200) as u32),
            _ => Expiry::NEVER,
        }
    }

    fn set(&mut self) -> Check {
        let key = self.key();
        let most = if self.random.one_in(200) { 300 << 10 } else { self.value_max };
        let len = self.random.below(1 + self.random.clone().below(most)) as usize;
        let mut value = vec![b'a' + self.random.below(26) as u8; len];
        let mark = self.random.bits().to_le_bytes();
        let marked = value.len().min(8);
        value[..marked].copy_from_slice(&mark[..marked]);
        let flags = if self.random.one_in(3) { self.random.bits() as u32 } else { 0 };
        let expiry = self.expiry();
        let answer = self.finish(|session| {
            session.store(&session.key(&key), Store::set(&value, flags, expiry))
        })?;
        match answer {
            Some((Stored::Stored { cas, .. }, commit)) => {
                if self.greatest_cas.get(&key).is_some_and(|&greatest| greatest >= cas) {
                    return Err(format!("cas id {cas} of {} was given before", short(&key)));
                }
                let expiry = expiry.seconds().unwrap_or(0);
                self.push(&key, Some(Item { value, flags, expiry, cas }), commit)
            }
            Some((stored, _)) => Err(format!("a set was answered {stored:?}")),
            None => self.refused("a set"),
        }
    }

    fn refused(&mut self, what: &str) -> Check {
        let failing = self.engine.health() != Health::Good;
        if failing || !self.evicts() {
            return Ok(());
        }
        Err(format!("{what} was refused: {:?}", self.engine.stats()))
    }

    fn count(&mut self) -> Check {
        let key = [b"n", &self.key()[..]].concat();
        let before = self.read(&key)?;
        let create = Create { initial: 7, expiry: Expiry::NEVER };
        let arith = Arith {
            decrement: false,
            delta: 1 + self.random.below(9),
            compare: None,
            cas: None,
            expiry: None,
            create: Some(create),
        };
        let answer = self.finish(|session| session.arith(&session.key(&key), &arith))?;
        let Some((counted, commit)) = answer else { return self.refused("a count") };
        let Counted::Value { value, cas, created, .. } = counted else {
            return Err(format!("a count was answered {counted:?}"));
        };
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
            None => Item { value: text, flags: 0, expiry: 0, cas },
        };
        self.push(&key, Some(item), commit)
    }

    fn delete(&mut self) -> Check {
        let key = self.key();
        let before = self.current(&key).is_some();
        let (sync, open) = (self.is_sync(), self.engine.open_commit());
        let answer =
            self.finish(|session| session.delete(&session.key(&key), &Delete::default()))?;
        match answer {
            Some((Deleted::Deleted, commit)) if before => self.push(&key, None, commit),
            Some((Deleted::NotFound, commit)) if !before || self.evicts() => {
                // What was evicted must not come back now that it was said to be gone.
                let history = self.histories.entry(key.clone()).or_default();
                let commit = if commit == 0 && !sync { open } else { commit };
                if commit == 0 {
                    history.clear();
                }
                history.push(State::gone(commit));
                Ok(())
            }
            None => self.refused("a delete"),
            answer => Err(format!("a delete of {before} was answered {answer:?}")),
        }
    }

    fn touch(&mut self) -> Check {
        let key = self.key();
        let Some(before) = self.read(&key)? else { return Ok(()) };
        let expiry = self.expiry();
        let get = Get { touch: Some(expiry), ..Get::default() };
        let answer = self.finish(|session| {
            session.get_with(&session.key(&key), &get).map(|found| found.is_some())
        })?;
        match answer {
            Some((true, commit)) => {
                // While the touch waited, a failed commit may have undone what was read.
                let before = self.current(&key).unwrap_or(before);
                let expiry = expiry.seconds().unwrap_or(0);
                if expiry == before.expiry {
                    return Ok(());
                }
                self.push(&key, Some(Item { expiry, ..before }), commit)
            }
            Some((false, _)) if self.evicts() => Ok(()),
            Some((false, _)) => Err(format!("a touch missed {}", short(&key))),
            None => self.refused("a touch"),
        }
    }

    fn flush(&mut self) -> Check {
        let flushed = self.finish(|session| session.flush_all(None))?.is_some();
        self.maybe_flushed = !flushed;
        if flushed {
            for history in self.histories.values_mut() {
                *history = vec![State::gone(0)];
            }
        }
        Ok(())
    }

    fn check_all(&mut self) -> Check {
        let mut keys: Vec<_> = self.histories.keys().cloned().collect();
        keys.sort();
        for key in keys {
            self.read(&key)?;
        }
        Ok(())
    }

    /// Power loss.
    fn crash(&mut self) -> Check {
        let device = self.device.crash(self.random.bits());
        self.restart(device, false)
    }

    /// The process dies; everything that it wrote is there.
    fn kill(&mut self) -> Check {
        self.restart(self.device.image(), false)
    }

    fn clean_stop(&mut self) -> Check {
        let closed = self.engine.close().is_ok();
        if closed {
            self.settle();
            for history in self.histories.values_mut() {
                let last = history.last().cloned();
                *history = last.into_iter().map(|state| State { commit: 0, ..state }).collect();
            }
        }
        let device = self.device.crash(self.random.bits());
        self.restart(device, closed)
    }

    fn restart(&mut self, device: SimDevice, clean: bool) -> Check {
        self.settle();
        self.restarts += 1;
        self.sessions.clear();
        self.cleaner = ManualCleaner::default();
        self.device = Arc::new(device);
        let mut options = self.options.clone();
        if let Some(store) = &mut options.store {
            store.device = Arc::<SimDevice>::clone(&self.device);
        }
        self.options = options.clone();
        self.engine = Engine::open_without_threads(options)
            .map_err(|error| format!("restart {}: {error}", self.restarts))?;
        let recovered = self.engine.recovered().cloned().unwrap_or_default();
        if clean && !recovered.clean {
            return Err(format!("clean should be {clean}: {recovered:?}"));
        }
        if recovered.damaged_records > 0 || recovered.damaged_segments > 0 {
            return Err(format!("damage without a fault: {recovered:?}"));
        }
        self.open_sessions();
        let mut keys: Vec<_> = self.histories.keys().cloned().collect();
        keys.sort();
        for key in keys {
            self.check_restarted(&key)?;
        }
        self.failed.clear();
        self.maybe_flushed = false;
        Ok(())
    }

    /// A key is in one of the states that it may be in.
    fn check_restarted(&mut self, key: &[u8]) -> Check {
        let found = self.finish(|session| {
            session.get(&session.key(key)).map(|found| {
                found.map(|item| Item {
                    value: item.value().to_vec(),
                    flags: item.flags(),
                    expiry: item.expiry().seconds().unwrap_or(0),
                    cas: item.cas(),
                })
            })
        })?;
        let Some((found, commit)) = found else { return Err("a read was refused".into()) };
        if commit != 0 {
            return Err(format!("{} is not durable after a restart", short(key)));
        }
        let now = self.now;
        let live = |item: &Item| item.expiry == 0 || item.expiry > now;
        let history = self.histories.get_mut(key).ok_or("no history")?;
        let failed = self.failed.get(key).into_iter().flatten();
        let possible = history.iter().chain(failed).any(|past| {
            past.item.clone().filter(live) == found
                || found.is_some() && past.evicted.clone().filter(live) == found
        });
        let flushed = found.is_none() && self.maybe_flushed;
        let evicted = flushed || found.is_none() && self.options.when_full == WhenFull::Evict;
        if !possible && !evicted {
            return Err(format!(
                "{}: after the restart {found:?}, should be in {history:?}",
                short(key)
            ));
        }
        // What did not fit into memory any more may come back with another restart.
        let last = history.last().and_then(|past| past.item.clone().or(past.evicted.clone()));
        let evicted = if found.is_none() { last.filter(live) } else { None };
        *history = vec![State { item: found, evicted, commit: 0 }];
        Ok(())
    }
}
