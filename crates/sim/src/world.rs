//! A world in memory: random operations on an engine and on the model, compared after each
//! operation.

use crate::model::{Entry, Model};
use larder_disk::Random;
use larder_engine::{
    Arith, Counted, Create, Delete, Deleted, Engine, Expiry, Get, ManualCleaner, Options, Outcome,
    Refusal, ScanCursor, Session, Store, StoreMode, Stored, Value, WhenFull,
};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

/// The largest size of an item of a world, in bytes.
const MAX_ITEM_SIZE: u64 = 1 << 20;

/// The setup of a world.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Determines the whole run, except the order of the threads of a
    /// [`ThreadedWorld`](crate::ThreadedWorld).
    pub seed: u64,
    /// The number of operations to run. [`ThreadedWorld::run`](crate::ThreadedWorld::run) and
    /// [`DurableWorld::run_with`](crate::DurableWorld::run_with) run this number in each life.
    pub steps: u64,
}

/// A difference between engine and model.
#[derive(Debug)]
pub struct Failure {
    /// The seed with which the failure can be repeated.
    pub seed: u64,
    /// The operation at which the difference appeared; in a world with threads, the life.
    pub step: u64,
    /// A description of the difference.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} step {}: {}", self.seed, self.step, self.what)
    }
}

/// An engine, its sessions, and the model.
pub struct World {
    random: Random,
    engine: Arc<Engine>,
    cleaner: ManualCleaner,
    sessions: Vec<Session>,
    model: Model,
    keys: u64,
    value_max: u64,
    evicts: bool,
    /// The number of items that the engine lacked so far. The engine must have evicted all of them.
    missed: u64,
}

macro_rules! same {
    ($what:expr, $engine:expr, $model:expr) => {{
        let (engine, model) = (&$engine, &$model);
        if engine != model {
            return Err(format!("{}: engine {engine:?}, model {model:?}", $what));
        }
    }};
}

impl World {
    /// Runs a whole plan.
    ///
    /// # Errors
    /// Returns the first difference between engine and model.
    pub fn run(plan: Plan) -> Result<(), Failure> {
        let mut world = World::new(plan.seed);
        for step in 0..plan.steps {
            world.step().map_err(|what| Failure { seed: plan.seed, step, what })?;
        }
        world.compare_all().map_err(|what| Failure { seed: plan.seed, step: plan.steps, what })
    }

    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let evicts = random.one_in(2);
        let lanes = 1 + random.below(3) as usize;
        let options = Options {
            memory: (lanes as u64 * 8) << 20,
            max_item_size: MAX_ITEM_SIZE,
            when_full: if evicts { WhenFull::Evict } else { WhenFull::Refuse },
            hash_seed: random.bits(),
            lanes,
            store: None,
        };
        let engine = Engine::open_without_threads(options).expect("the options are valid");
        let mut model = Model::default();
        model.now = 1_000_000;
        let sessions = (0..1 + random.below(3))
            .map(|_| {
                let mut session = engine.session(Waker::noop().clone());
                session.tick(model.now);
                session
            })
            .collect();
        World {
            keys: 1 << (3 + random.below(12)),
            value_max: 1 << (4 + random.below(15)),
            cleaner: ManualCleaner::default(),
            random,
            engine,
            sessions,
            model,
            evicts,
            missed: 0,
        }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..=1 => self.advance_clock(),
            2..=5 => {
                self.tick_all();
                self.engine.clean(&mut self.cleaner);
            }
            6 if self.random.one_in(40) => self.flush()?,
            6 if self.random.one_in(20) => self.compare_all()?,
            7..=40 => self.store()?,
            41..=50 => self.count()?,
            51..=58 => self.delete()?,
            59..=63 => self.touch()?,
            _ => self.get()?,
        }
        let stats = self.engine.stats();
        // The engine charges a new index page to the budget at once. Only the next cleaning frees
        // as much other memory. Until then, the memory in use may exceed the limit.
        if stats.memory_used > stats.memory_limit + (256 << 10) {
            return Err(format!("over budget: {stats:?}"));
        }
        Ok(())
    }

    fn tick_all(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.tick(self.model.now));
    }

    fn advance_clock(&mut self) {
        self.model.advance(1 + self.random.below(30) as u32);
        self.tick_all();
    }

    fn key(&mut self) -> Vec<u8> {
        // The product of two random numbers makes some keys much more popular than others.
        let at = self.random.below(self.keys) * self.random.below(self.keys) / self.keys;
        format!("{}{at}", "k".repeat(1 + at as usize % 200)).into_bytes()
    }

    fn session(&mut self) -> usize {
        self.random.below(self.sessions.len() as u64) as usize
    }

    /// Repeats a call until the engine finds space. Cleans between two attempts, as the cleaner
    /// thread would. Calls `settle` before each attempt, because the key's own item may have been
    /// evicted. Returns `None` if the engine refused the call and changed nothing.
    fn finish<T>(
        &mut self,
        key: &[u8],
        mut call: impl FnMut(&Session) -> Outcome<T>,
    ) -> Result<Option<T>, String> {
        let at = self.session();
        for _ in 0..1000 {
            self.settle(key)?;
            match call(&self.sessions[at]) {
                Outcome::Ready(answer) => return Ok(Some(answer)),
                Outcome::Refused(Refusal::OutOfMemory) if !self.evicts => {
                    self.compare(key)?;
                    return Ok(None);
                }
                Outcome::NeedsSpace => {}
                outcome => return Err(format!("{:?} from an engine in memory", outcome.map(drop))),
            }
            self.tick_all();
            self.engine.clean(&mut self.cleaner);
        }
        Err(format!("a call waits for space forever: {:?}", self.engine.stats()))
    }

    fn expiry(&mut self) -> Option<u32> {
        match self.random.below(4) {
            0 => Some(self.model.now + 1 + self.random.below(60) as u32),
            1 if self.random.one_in(10) => Some(self.model.now - 1),
            _ => None,
        }
    }

    /// Accepts that the engine lacks an item of the model, and removes the item from the model.
    /// Fails if the engine does not evict, or has lacked more items than it reports as evicted.
    fn forgive_miss(&mut self, key: &[u8]) -> Result<(), String> {
        if self.model.remove(key) {
            self.missed += 1;
            let evicted = self.engine.stats().totals.evictions;
            if !self.evicts || self.missed > evicted {
                let missed = self.missed;
                return Err(format!("{missed} items lost, {evicted} evicted: {key:?}"));
            }
        }
        Ok(())
    }

    /// Removes an item from the model if the engine has evicted it, so that the two agree.
    fn settle(&mut self, key: &[u8]) -> Result<(), String> {
        let get = Get { no_bump: true, ..Get::default() };
        let at = self.session();
        let session = &self.sessions[at];
        let present = match session.get_with(&session.key(key), &get) {
            Outcome::Ready(found) => found.is_some(),
            _ => return Err("a read waits".into()),
        };
        match (present, self.model.get(key).is_some()) {
            (true, false) => Err(format!("the engine has {key:?}, which should be gone")),
            (false, true) => self.forgive_miss(key),
            _ => Ok(()),
        }
    }

    fn get(&mut self) -> Result<(), String> {
        let key = self.key();
        self.compare(&key)
    }

    fn compare(&mut self, key: &[u8]) -> Result<(), String> {
        let at = self.session();
        let found = {
            let session = &self.sessions[at];
            match session.get(&session.key(key)) {
                Outcome::Ready(found) => found.map(|item| Entry {
                    value: item.value().to_vec(),
                    flags: item.flags(),
                    expiry: item.expiry().seconds(),
                    cas: item.cas(),
                }),
                _ => return Err("a get waits".into()),
            }
        };
        match (found, self.model.get(key)) {
            (None, None) => Ok(()),
            (None, Some(_)) => self.forgive_miss(key),
            (Some(_), None) => Err(format!("the engine has {key:?}, which should be gone")),
            (Some(found), Some(entry)) => {
                same!("value", found.value, entry.value);
                same!("flags", found.flags, entry.flags);
                same!("expiry", found.expiry, entry.expiry);
                same!("cas", found.cas, entry.cas);
                Ok(())
            }
        }
    }

    fn store(&mut self) -> Result<(), String> {
        let key = self.key();
        let mode = match self.random.below(10) {
            0 => StoreMode::Add,
            1 => StoreMode::Replace,
            2 => StoreMode::Append,
            3 => StoreMode::Prepend,
            _ => StoreMode::Set,
        };
        let len = self.random.below(1 + self.random.clone().below(self.value_max)) as usize;
        let value = vec![b'a' + self.random.below(26) as u8; len];
        let flags = if self.random.one_in(3) { self.random.bits() as u32 } else { 0 };
        let expiry = self.expiry();
        let compare = match (self.model.get(&key), self.random.below(8)) {
            (Some(old), 0) => Some(old.cas),
            (_, 1) => Some(self.random.below(50)),
            _ => None,
        };
        let stored = self.finish(&key, |session| {
            let expiry = expiry.map_or(Expiry::NEVER, Expiry::at);
            let value = Value::Bytes(&value);
            let store = Store { mode, compare, value, ..Store::set(&[], flags, expiry) };
            session.store(&session.key(&key), store)
        })?;
        let Some(stored) = stored else { return Ok(()) };
        if len > self.engine.max_value_len(key.len()) {
            same!("too large a value", stored, Stored::TooLarge);
            return Ok(());
        }
        let old = self.model.get(&key).cloned();
        let extends = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let expected = match (&old, mode) {
            (Some(_), StoreMode::Add) => Some(Stored::NotStored),
            (Some(old), _) if compare.is_some_and(|cas| cas != old.cas) => Some(Stored::Exists),
            (None, StoreMode::Replace | StoreMode::Set) if compare.is_some() => {
                Some(Stored::NotFound)
            }
            (None, StoreMode::Replace) => Some(Stored::NotStored),
            (None, _) if extends => Some(Stored::NotStored),
            _ => None,
        };
        if let Some(expected) = expected {
            same!("refused store", stored, expected);
            return Ok(());
        }
        let (Stored::Stored { cas, size }, old) = (stored, old) else {
            return self.grown_too_large(stored, &key, len);
        };
        if old.as_ref().is_some_and(|old| old.cas >= cas) {
            return Err(format!("cas id {cas} is not above {old:?}"));
        }
        let entry = match (mode, old) {
            (StoreMode::Append, Some(old)) => {
                Entry { value: [old.value, value].concat(), cas, ..old }
            }
            (StoreMode::Prepend, Some(old)) => {
                Entry { value: [value, old.value].concat(), cas, ..old }
            }
            _ => Entry { value, flags, expiry, cas },
        };
        same!("stored size", size, entry.value.len());
        self.model.put(&key, entry);
        Ok(())
    }

    /// Checks the answer to a store operation that failed although its condition was met. The only
    /// valid reason is that the item would have become too large.
    fn grown_too_large(&mut self, stored: Stored, key: &[u8], len: usize) -> Result<(), String> {
        let old = self.model.get(key).map_or(0, |entry| entry.value.len());
        let size = (len + old + key.len()) as u64;
        if stored == Stored::NotStored && size + 40 > MAX_ITEM_SIZE {
            return Ok(());
        }
        let stats = self.engine.stats();
        Err(format!("a store of {len} bytes on {old} was answered {stored:?}: {stats:?}"))
    }

    fn count(&mut self) -> Result<(), String> {
        let key = [b"n", &self.key()[..]].concat();
        let decrement = self.random.one_in(3);
        let delta = if self.random.one_in(20) { self.random.bits() } else { self.random.below(99) };
        let initial = self.random.below(1000);
        let create = (!self.random.one_in(4)).then_some(Create { initial, expiry: Expiry::NEVER });
        let arith = Arith { decrement, delta, compare: None, cas: None, expiry: None, create };
        let counted = self.finish(&key, |session| session.arith(&session.key(&key), &arith))?;
        let Some(counted) = counted else { return Ok(()) };
        let old = self.model.get(&key).cloned();
        match (counted, old) {
            (Counted::NotFound, None) if create.is_none() => Ok(()),
            (Counted::Value { value, cas, created: true, .. }, None) => {
                same!("created", value, initial);
                let value = initial.to_string().into_bytes();
                self.model.put(&key, Entry { value, flags: 0, expiry: None, cas });
                Ok(())
            }
            (Counted::Value { value, cas, created: false, .. }, Some(old)) => {
                let counted = Model::counted(&old.value, decrement, delta);
                let Some((number, text)) = counted else {
                    return Err(format!("counted {:?}", old.value));
                };
                same!("number", value, number);
                self.model.put(&key, Entry { value: text, cas, ..old });
                Ok(())
            }
            (answer, old) => Err(format!("count of {old:?} was answered {answer:?}")),
        }
    }

    fn delete(&mut self) -> Result<(), String> {
        let key = self.key();
        let deleted = self.finish(&key, |s| s.delete(&s.key(&key), &Delete::default()))?;
        let Some(deleted) = deleted else { return Ok(()) };
        let expected = if self.model.remove(&key) { Deleted::Deleted } else { Deleted::NotFound };
        same!("delete", deleted, expected);
        Ok(())
    }

    fn touch(&mut self) -> Result<(), String> {
        let key = self.key();
        let expiry = self.expiry();
        let touch = Some(expiry.map_or(Expiry::NEVER, Expiry::at));
        let found = self.finish(&key, |session| {
            let found = session.get_with(&session.key(&key), &Get { touch, ..Get::default() });
            found.map(|found| found.is_some())
        })?;
        let Some(found) = found else { return Ok(()) };
        same!("touch", found, self.model.get(&key).is_some());
        if let Some(entry) = self.model.get_mut(&key) {
            entry.expiry = expiry;
        }
        self.compare(&key)
    }

    fn flush(&mut self) -> Result<(), String> {
        let delay = if self.random.one_in(2) { None } else { Some(self.random.below(40) as u32) };
        let at = delay.map(|delay| self.model.now + delay);
        self.finish(b"any", |session| session.flush_all(at))?;
        self.model.flush_at = at.filter(|&at| at > self.model.now);
        if self.model.flush_at.is_none() {
            self.model.flush();
        }
        Ok(())
    }

    /// Compares all keys of the engine with all keys of the model.
    fn compare_all(&mut self) -> Result<(), String> {
        let mut scanned = HashSet::new();
        let mut twice = None;
        let mut cursor = ScanCursor::default();
        loop {
            let more = self.sessions[0].scan(&mut cursor, &mut |item| {
                if !scanned.insert(item.key().to_vec()) {
                    twice = Some(item.key().to_vec());
                }
            });
            if !matches!(more, Outcome::Ready(true)) {
                break;
            }
        }
        if let Some(key) = twice {
            return Err(format!("{key:?} was scanned twice"));
        }
        for (key, _) in self.model.live() {
            self.compare(&key)?;
            if self.model.get(&key).is_some() && !scanned.remove(&key) {
                return Err(format!("{key:?} is there, but was not scanned"));
            }
        }
        match scanned.iter().next() {
            Some(key) => Err(format!("{key:?} was scanned, and should be gone")),
            None => Ok(()),
        }
    }
}
