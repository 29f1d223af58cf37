//! An engine with a lane on two simulated devices, and a machine in which both devices lose power
//! together.

use larder_disk::{Device, Random, SimDevice};
use larder_engine::{
    CommitPoint, CommitState, Durability, Engine, Expiry, LowerDevice, ManualCleaner, OpenError,
    Options, Outcome, Session, Store, StoreDevice, StoreOptions, Stored, WhenFull,
};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// Number of turns after which a waiting call counts as stuck.
const PATIENCE: usize = 300;

/// The devices and options that an engine is opened with.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    fast: Arc<dyn Device>,
    lower: Option<Arc<dyn Device>>,
    durability: Durability,
    when_full: WhenFull,
    seed: u64,
    beside: Option<Box<Given>>,
}

pub(crate) fn given(fast: &Arc<SimDevice>, lower: Option<&Arc<SimDevice>>) -> Given {
    Given {
        fast: Arc::<SimDevice>::clone(fast),
        lower: lower.map(|lower| Arc::<SimDevice>::clone(lower) as Arc<dyn Device>),
        durability: Durability::Sync,
        when_full: WhenFull::Refuse,
        seed: 1,
        beside: None,
    }
}

impl Given {
    pub(crate) fn with(self, durability: Durability, when_full: WhenFull) -> Given {
        Given { durability, when_full, ..self }
    }

    /// Sets the number from which the seeds of the devices are made. Each process has other seeds.
    pub(crate) fn seeded(self, seed: u64) -> Given {
        Given { seed, ..self }
    }

    /// Adds another lane, with the devices of `other`.
    pub(crate) fn beside(self, other: Given) -> Given {
        Given { beside: Some(Box::new(other)), ..self }
    }

    fn device(&self) -> StoreDevice {
        let lower = self.lower.clone();
        StoreDevice {
            name: "fast".to_owned(),
            device: Arc::clone(&self.fast),
            lower: lower.map(|device| LowerDevice { name: "lower".to_owned(), device }),
            seeds: [self.seed, self.seed + 100, self.seed + 200],
        }
    }

    pub(crate) fn options(&self) -> Options {
        let devices = [self].into_iter().chain(self.beside.as_deref()).map(Given::device);
        let store = StoreOptions {
            devices: devices.collect(),
            ..super::store::store(Arc::clone(&self.fast), self.durability)
        };
        let memory = if self.beside.is_some() { 24 << 20 } else { 8 << 20 };
        let (max_item_size, when_full) = (1 << 20, self.when_full);
        Options { memory, max_item_size, when_full, store: Some(store), ..Options::default() }
    }
}

/// Values that identify their key.
pub(crate) struct Values {
    pub(crate) bytes: usize,
}

impl Values {
    pub(crate) fn of(&self, n: u32) -> String {
        let mut value = format!("<{n}:{}>", self.bytes);
        value.push_str(&"v".repeat(self.bytes - value.len()));
        value
    }
}

/// An engine without threads and its only session.
pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) now: u32,
    session: Session,
    cleaner: ManualCleaner,
}

/// Drops `world` and opens a new engine on its devices. Unless `world` was closed, this is a crash
/// of the process.
pub(crate) fn reopen(world: World, given: Given) -> World {
    drop(world);
    World::open(given)
}

impl World {
    pub(crate) fn open(given: Given) -> World {
        World::try_open(given).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_open(given: Given) -> Result<World, OpenError> {
        let engine = Engine::open_without_threads(given.options())?;
        let mut session = engine.session(Waker::noop().clone());
        session.tick(1);
        Ok(World { engine, now: 1, session, cleaner: ManualCleaner::default() })
    }

    fn turn(&mut self) -> bool {
        self.session.tick(self.now);
        self.engine.clean(&mut self.cleaner)
    }

    /// Runs one turn of the cleaner and a commit. Returns true if the cleaner wants another turn.
    pub(crate) fn turn_and_commit(&mut self) -> bool {
        let more = self.turn();
        assert!(self.engine.commit(), "{:?}", self.engine.health());
        more
    }

    /// Runs the cleaner until it has nothing to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..PATIENCE {
            if !self.turn_and_commit() {
                return;
            }
        }
        panic!("the cleaner does not come to an end: {:?}", self.engine.stats());
    }

    /// Repeats a call until it is done. Returns `None` if it is refused, or if a commit fails while
    /// it waits for space.
    fn done<T>(
        &mut self,
        call: impl for<'a> Fn(&'a Session) -> Outcome<T>,
    ) -> Option<(T, Option<CommitPoint>)> {
        for _ in 0..PATIENCE {
            match call(&self.session) {
                Outcome::Ready(answer) => return Some((answer, None)),
                Outcome::AfterCommit(answer, point) => return Some((answer, Some(point))),
                Outcome::NeedsRead => {
                    self.engine.serve_reads();
                    self.session.tick(self.now);
                }
                Outcome::NeedsSpace => {
                    self.turn();
                    if !self.engine.commit() {
                        return None;
                    }
                }
                Outcome::Refused(_) => return None,
            }
        }
        panic!("a call waits for ever: {:?}", self.engine.stats());
    }

    /// Sets a key. Returns `None` if the engine refuses the set, or if a commit fails while the set
    /// waits for space. Returns `Some(Some(commit))` if the reply waits for `commit`, and
    /// `Some(None)` if it waits for nothing.
    fn set(&mut self, n: u32, value: &str) -> Option<Option<CommitPoint>> {
        let name = format!("key{n}");
        let set = |session: &Session| {
            let store = Store::set(value.as_bytes(), 0, Expiry::NEVER);
            session.store(&session.key(name.as_bytes()), store).map(|stored| {
                assert!(matches!(stored, Stored::Stored { .. }), "{stored:?}");
            })
        };
        self.done(set).map(|((), point)| point)
    }

    pub(crate) fn set_all(&mut self, keys: Range<u32>, values: &Values) {
        for n in keys {
            assert!(self.set(n, &values.of(n)).is_some(), "{n} was refused");
            if n % 16 == 0 {
                self.turn();
                assert!(self.engine.commit());
            }
        }
    }

    fn start_delete(&mut self, n: u32) -> Option<Option<CommitPoint>> {
        let name = format!("key{n}");
        let delete = |session: &Session| {
            session.delete(&session.key(name.as_bytes()), &Default::default()).map(|_| ())
        };
        self.done(delete).map(|((), point)| point)
    }

    pub(crate) fn delete(&mut self, n: u32) {
        assert!(self.start_delete(n).is_some(), "{n} was not deleted");
    }

    /// Returns the value found. The outer `None` means that the call was refused.
    pub(crate) fn try_get(&mut self, n: u32) -> Option<Option<String>> {
        let name = format!("key{n}");
        let get = |session: &Session| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let found = session.get(&session.key(name.as_bytes()));
            found.map(|item| item.map(|item| text(item.value())))
        };
        self.done(get).map(|(found, _)| found)
    }

    pub(crate) fn get(&mut self, n: u32) -> Option<String> {
        self.try_get(n).unwrap_or_else(|| panic!("{n} cannot be read"))
    }

    pub(crate) fn check_all(&mut self, keys: Range<u32>, values: &Values) {
        for n in keys {
            assert!(self.get(n).as_deref() == Some(&values.of(n)), "{n} is not there");
            if n % 16 == 0 {
                self.turn();
            }
        }
    }

    pub(crate) fn close(&self) {
        self.engine.close().expect("close");
    }
}

/// Two devices that lose power together, when the number of their writes and syncs reaches `stop`.
#[derive(Debug)]
pub(crate) struct Machine {
    devices: [Arc<SimDevice>; 2],
    stop: u64,
    changes: AtomicU64,
}

/// One of the machine's two devices.
#[derive(Debug)]
struct Wired {
    machine: Arc<Machine>,
    own: usize,
}

impl Machine {
    pub(crate) fn new(fast: &Arc<SimDevice>, lower: &Arc<SimDevice>, stop: u64) -> Arc<Machine> {
        let devices = [Arc::clone(fast), Arc::clone(lower)];
        Arc::new(Machine { devices, stop, changes: AtomicU64::new(0) })
    }

    pub(crate) fn given(self: &Arc<Self>, seed: u64) -> Given {
        let wired = |own| Arc::new(Wired { machine: Arc::clone(self), own }) as Arc<dyn Device>;
        let [fast, lower] = &self.devices;
        let given = given(fast, Some(lower)).seeded(seed);
        Given { fast: wired(0), lower: Some(wired(1)), ..given }
    }

    /// Returns both devices as they are after the power loss.
    pub(crate) fn crash(&self, seed: u64) -> (Arc<SimDevice>, Arc<SimDevice>) {
        let [fast, lower] = &self.devices;
        (Arc::new(fast.crash(seed)), Arc::new(lower.crash(seed ^ 0x5EED)))
    }
}

impl Wired {
    fn device(&self) -> &SimDevice {
        &self.machine.devices[self.own]
    }

    /// Counts a write or sync, and returns the device to make it on. Power fails during change
    /// number `stop`: no device completes a later one.
    fn change(&self) -> &SimDevice {
        let change = self.machine.changes.fetch_add(1, Ordering::Relaxed) + 1;
        if change == self.machine.stop {
            self.machine.devices[1 - self.own].stop();
            self.device().stop_at(self.device().counts().changes() + 1);
        }
        self.device()
    }
}

impl Device for Wired {
    fn size(&self) -> u64 {
        self.device().size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device().read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change().write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.change().sync()
    }
}

/// All states that each key has had, and which of them was acknowledged last.
#[derive(Default)]
pub(crate) struct History {
    /// Per key: its states in order. The first is `None`, the state before the first write.
    states: HashMap<u32, Vec<Option<String>>>,
    /// Per key: the index in `states` of the last acknowledged state. This state or a later one
    /// must survive.
    acknowledged: HashMap<u32, usize>,
}

impl History {
    const KEYS: u64 = 700;
    const ROUNDS: u32 = 350;

    /// Writes, overwrites and deletes until the machine stops. Returns true if all rounds ended
    /// before that.
    pub(crate) fn run(&mut self, given: Given, seed: u64) -> bool {
        let Ok(mut world) = World::try_open(given) else { return false };
        let mut random = Random::new(seed);
        for _ in 0..Self::ROUNDS {
            let mut waiting = Vec::new();
            for _ in 0..8 {
                let n = random.below(Self::KEYS) as u32;
                let states = self.states.entry(n).or_insert_with(|| vec![None]);
                let values = Values { bytes: 500 + random.below(8000) as usize };
                let number = states.len();
                let deletes = random.one_in(8);
                let state = (!deletes).then(|| format!("{number} {}", values.of(n)));
                states.push(state.clone());
                let done = match &state {
                    Some(value) => world.set(n, value),
                    None => world.start_delete(n),
                };
                match done {
                    Some(point) => waiting.push((n, number, point)),
                    // It is unknown whether this change happened, so the history ends here.
                    None => return false,
                }
            }
            world.turn();
            let committed = world.engine.commit();
            for (n, number, point) in waiting {
                let state = |point| world.session.commit_state(point);
                if point.is_none_or(|point| state(point) == CommitState::Durable) {
                    let acknowledged = self.acknowledged.entry(n).or_default();
                    *acknowledged = number.max(*acknowledged);
                }
            }
            if !committed {
                return false;
            }
        }
        true
    }

    pub(crate) fn is_nothing_acknowledged(&self) -> bool {
        self.acknowledged.is_empty()
    }

    /// Checks that every key has its last acknowledged state or a later one.
    pub(crate) fn check(&self, world: &mut World, stop: u64) {
        for (&n, states) in &self.states {
            let acknowledged = self.acknowledged.get(&n).copied().unwrap_or(0);
            let found = world.get(n);
            let allowed = &states[acknowledged..];
            assert!(
                allowed.contains(&found),
                "stopped at {stop}: key {n} is {:?}, of {} states {acknowledged} was acknowledged",
                found.map(|found| found[..40].to_owned()),
                states.len(),
            );
        }
    }
}
