//! A world with a store: random operations, commits, cleaning, failing devices, and crashes at any
//! write to a device. After every restart, everything durable must be there, and nothing may come
//! back whose removal is durable. In sync mode, every acknowledged change is durable, and no client
//! has read anything that the crash undid.
//!
//! One thread does everything, except that a commit may run on a second thread. The two never run
//! at the same time: either the second thread waits inside the device, or the first one waits for
//! the second. With the feature `breakable`, `set_beside_a_commit` is an exception.

mod anomaly;
mod clocks;
mod growth;
mod history;
mod lanes;
mod machine;
mod power;
mod scan;
mod tiers;
mod verbs;

pub use anomaly::Anomaly;
pub use tiers::WorldCounts;

use crate::world::{Failure, Plan};
use clocks::Clocks;
use history::{Commit, Histories, Lost};
use lanes::MOST_DEVICES;
use larder_disk::Random;
use larder_disk::SimDevice;
use larder_engine::{
    CommitPoint, Durability, Engine, Health, ManualCleaner, MonotonicClock, Options, Outcome,
    Reads, Session, StoreOptions, WhenFull,
};
use machine::{Machine, Part, random_size};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

/// The time at which worlds begin, in seconds since the Unix epoch.
const START: u32 = 1_000_000;

/// The number of attempts after which a call that still waits counts as stuck.
const PATIENCE: usize = 2000;

/// Salt of the random numbers that decide whether a world may have several devices. Tests replay
/// the seeds of bugs that need only one device. With this salt, the worlds of these seeds have one
/// device.
const SEVERAL: u64 = 0x1ae40;

/// Salt of the random numbers that decide whether a world's lanes have a lower device. Tests replay
/// the seeds of bugs that need no lower device. With this salt, the worlds of these seeds have
/// none.
const TIERS: u64 = 0x71eab;

/// Salt of the random numbers that decide whether a world's devices grow while in use. Tests replay
/// the seeds of bugs that need no growth. With this salt, devices do not grow in the worlds of
/// these seeds.
const GROWS: u64 = 0x96920;

/// Salt of the random numbers that decide when early writes happen.
const EARLY: u64 = 0xea417;

/// Salt of the random numbers that decide whether a world has twins: keys that the index cannot
/// tell apart. Worlds with twins also delete items that they have just set. Tests replay the seeds
/// of bugs that need no twins. With this salt, the worlds of these seeds have no twins.
const TWINS: u64 = 0x7472b;
/// The number of names among which [`find_twins`] searches for keys that the index cannot tell
/// apart. Among this many names there are several such pairs.
const NAMES: u64 = 200_000;

/// Returns keys that the index cannot tell apart, in pairs.
fn find_twins(session: &Session) -> Vec<Vec<u8>> {
    let mut seen = HashMap::new();
    let mut twins = Vec::new();
    for n in 0..NAMES {
        let name = format!("twin{n}").into_bytes();
        if let Some(other) = seen.insert(session.key(&name).place(), n) {
            twins.extend([format!("twin{other}").into_bytes(), name]);
        }
    }
    twins
}

/// An engine on simulated devices.
pub struct DurableWorld {
    random: Random,
    machine: Machine,
    /// True if the world may add and lose devices. Keys then move between devices.
    several: bool,
    /// True if devices may grow while in use.
    grows: bool,
    /// A device that was lost. A later start may be given this device again.
    gone: Option<Part>,
    /// True if a device is lost at the next restart.
    loses: bool,
    /// The keys that were lost with a device.
    lost: HashMap<Vec<u8>, Lost>,
    engine: Arc<Engine>,
    cleaner: ManualCleaner,
    sessions: Vec<Session>,
    options: Options,
    model: Histories,
    /// The time of the store, in seconds since the Unix epoch.
    now: u32,
    clocks: Clocks,
    clock: Arc<AtomicU64>,
    keys: u64,
    /// Keys that the index cannot tell apart, in pairs; only in some worlds.
    twins: Vec<Vec<u8>>,
    value_max: u64,
    restarts: u64,
    /// A commit whose thread waits inside a device.
    held_commit: Option<HeldCommit>,
    /// True while a slow reader uses the bytes of an item. The engine may not free these bytes
    /// before the reader has finished. So space may stay short, and calls give up after a few
    /// attempts to get some.
    reading: bool,
    /// True while the items are checked after a restart. The model's commit numbers are still those
    /// of the engine from before the restart.
    restarting: bool,
    /// True if calls give up instead of waiting for space.
    hurry: bool,
    /// The number of failed device reads when the current step of the world began.
    failed_reads: u64,
    /// The number of failed writes and syncs when the world last looked for new ones.
    failed_changes: u64,
    /// True while the world restarts after the process was killed without a power loss. The devices
    /// then still have everything that the process wrote.
    keeps_written: bool,
    /// Random numbers for early writes. They have their own generator, so that they do not change
    /// the other random numbers of a world.
    early: Random,
    anomaly: anomaly::Armed,
    counts: WorldCounts,
}

/// A commit whose thread waits inside a device.
struct HeldCommit {
    lane: usize,
    device: Arc<SimDevice>,
    committer: JoinHandle<bool>,
    /// True if the commit waits before its first write; false if it waits in its sync.
    writes: bool,
}

type Check = Result<(), String>;

impl DurableWorld {
    /// Runs a whole plan. Returns counts of what happened in the world.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn run(plan: Plan) -> Result<WorldCounts, Failure> {
        let fail = |step, what| Failure { seed: plan.seed, step, what };
        let mut world = DurableWorld::new(plan.seed, None).map_err(|what| fail(0, what))?;
        for step in 0..plan.steps {
            world.step().map_err(|what| fail(step, what))?;
        }
        world.end().map_err(|what| fail(plan.steps, what))?;
        Ok(world.counts)
    }

    fn new(seed: u64, anomaly: Option<Anomaly>) -> Result<Self, String> {
        let mut random = Random::new(seed ^ 0xD0_0DAB1E);
        let size = random_size(&mut random);
        let device = SimDevice::new(size, random.bits());
        let clock = Arc::new(AtomicU64::new(1));
        let durability = if random.one_in(3) { Durability::Async } else { Durability::Sync };
        let when_full = if random.one_in(2) { WhenFull::Evict } else { WhenFull::Refuse };
        let reading = Arc::clone(&clock);
        let mut machine = Machine::new(device, [random.bits(), random.bits(), random.bits()]);
        // The choice of devices has its own generator, so that it does not change the other random
        // numbers of a world.
        let mut others = Random::new(seed ^ SEVERAL);
        let several = others.one_in(2);
        for _ in 0..if several { others.below(MOST_DEVICES as u64) } else { 0 } {
            machine.add(&mut others);
        }
        let mut tiers = Random::new(seed ^ TIERS);
        if tiers.one_in(2) {
            machine.tier(&mut tiers);
        }
        let mut clocks = Clocks::new(seed);
        let store = StoreOptions {
            devices: machine.given(),
            forget: Vec::new(),
            durability,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(move || {
                Duration::from_millis(reading.load(Ordering::Relaxed))
            })),
            opened: clocks.show(START),
        };
        let options = Options {
            memory: (8 * machine.parts.len() as u64) << 20,
            max_item_size: 1 << 20,
            when_full,
            hash_seed: random.bits(),
            lanes: 1,
            store: Some(store),
        };
        let victim = others.below(machine.devices().count() as u64) as usize;
        let mut anomaly = anomaly::Armed::new(anomaly, victim);
        let (machine, engine) = anomaly.open(machine, options.clone(), random.bits())?;
        let mut world = DurableWorld {
            keys: 1 << (3 + random.below(10)),
            twins: Vec::new(),
            value_max: 1 << (4 + random.below(15)),
            random,
            machine,
            several,
            grows: Random::new(seed ^ GROWS).one_in(3),
            gone: None,
            loses: false,
            lost: HashMap::new(),
            engine,
            cleaner: ManualCleaner::default(),
            sessions: Vec::new(),
            options,
            model: Histories::default(),
            now: START,
            clocks,
            clock,
            restarts: 0,
            held_commit: None,
            reading: false,
            restarting: false,
            hurry: false,
            failed_reads: 0,
            failed_changes: 0,
            keeps_written: false,
            early: Random::new(seed ^ EARLY),
            anomaly,
            counts: WorldCounts::default(),
        };
        world.check_opened_at(true)?;
        world.open_sessions();
        if Random::new(seed ^ TWINS).one_in(3) {
            world.twins = find_twins(&world.sessions[0]);
        }
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
        self.sessions = (0..count).map(|_| self.new_session()).collect();
    }

    fn new_session(&self) -> Session {
        let mut session = self.engine.session(Waker::noop().clone());
        session.tick(self.now);
        session
    }

    fn step(&mut self) -> Check {
        if self.failed_reads != self.machine.failed_reads() {
            // A session learns of a failed read in one tick and forgets it in the next. After two
            // ticks, failed reads of the previous step affect no session.
            self.tick_all();
            self.tick_all();
        }
        self.failed_reads = self.machine.failed_reads();
        if self.held_commit.is_some() && self.random.one_in(8) {
            self.finish_held_commit()?;
        }
        if !self.is_sync() {
            self.try_early_writes()?;
        }
        let done = self.act();
        // If there are no sessions, a restart has just failed, and its error must be returned.
        if self.machine.is_stopped() && !self.sessions.is_empty() {
            // The devices have stopped, and the process stops with them. So no client receives an
            // answer of this step, and its result does not count. The stop is either a power loss
            // or a kill. A killed process leaves everything that it has written, even in the middle
            // of a commit.
            return if self.random.one_in(2) { self.kill() } else { self.crash() };
        }
        done
    }

    fn act(&mut self) -> Check {
        if self.several && self.random.one_in(6) {
            return self.rearrange();
        }
        if self.machine.tiers && self.random.one_in(20) {
            return self.use_tiers();
        }
        if self.grows && self.random.one_in(200) {
            return self.grow();
        }
        if !self.twins.is_empty() && self.random.one_in(30) {
            return self.delete_unread();
        }
        match self.random.below(1000) {
            0..=1 => self.crash(),
            2..=3 => self.kill(),
            4 => self.clean_stop(),
            5..=6 => {
                self.plan_fault();
                Ok(())
            }
            7 => {
                self.plan_power_loss();
                Ok(())
            }
            8..=14 if self.held_commit.is_none() => self.begin_held_commit(),
            15..=16 => self.read_slowly(),
            17 => self.set_beside_a_commit(),
            18 => self.crowd(),
            19 => self.delete_in_a_row(),
            _ => self.work(),
        }
    }

    /// Runs a common operation.
    fn work(&mut self) -> Check {
        match self.random.below(1000) {
            0..=14 => {
                self.advance_clock();
                // The time and not a random number decides whether the world scans, so the scans
                // change nothing else in the world of a seed.
                if self.now.is_multiple_of(4) { self.check_scan() } else { Ok(()) }
            }
            15..=45 => {
                self.clean();
                Ok(())
            }
            46..=110 => self.commit(),
            111 if self.random.one_in(3) => self.flush(),
            112 if self.random.one_in(5) => self.check_all(),
            113..=480 => self.set(),
            481..=540 => self.count(),
            541..=580 => self.limit(),
            581..=640 => self.delete(),
            641..=690 => self.touch(),
            _ => {
                let key = self.key();
                self.read(&key)?;
                Ok(())
            }
        }
    }

    /// Crashes, then damages the store and checks it.
    fn end(&mut self) -> Check {
        self.crash()?;
        self.rot()
    }

    fn tick_all(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.tick(self.now));
    }

    fn advance_clock(&mut self) {
        self.now += 1 + self.random.below(30) as u32;
        self.clock.fetch_add(self.random.below(2000), Ordering::Relaxed);
        self.tick_all();
    }

    /// Runs one turn of the cleaner.
    fn turn(&mut self) {
        self.tick_all();
        self.engine.clean(&mut self.cleaner);
        self.engine.serve_reads();
        self.tick_all();
    }

    fn clean(&mut self) {
        self.turn();
        if self.engine.staged_maps() > 0 && self.random.one_in(2) {
            // The engine might wrongly write a dead map before the deaths in it are durable. That
            // does harm only if the power fails in between, so a power loss is planned for one of
            // the next writes or syncs.
            self.plan_power_loss_within(6);
        }
    }

    /// Commits all lanes, then updates the model.
    fn commit(&mut self) -> Check {
        self.finish_held_commit()?;
        if self.engine.commit() {
            self.note_commit();
        }
        if !self.restarting {
            self.settle();
        }
        self.tick_all();
        Ok(())
    }

    /// Updates the model with the state of every commit.
    fn settle(&mut self) {
        let fails = self.failing_lanes();
        self.model.healthy(|lane| fails.contains(&lane));
        let (session, engine) = (&self.sessions[0], &self.engine);
        let undone = self.is_sync();
        self.model.settle(
            |point: CommitPoint| session.commit_state(point),
            |lane| engine.open_commit(lane as usize),
            undone,
        );
    }

    /// Repeats a call until it no longer waits. Returns `None` if it was refused.
    fn finish<T>(
        &mut self,
        call: impl FnMut(&Session) -> Outcome<T>,
    ) -> Result<Option<(T, Commit)>, String> {
        let at = self.random.below(self.sessions.len() as u64) as usize;
        let mut reads = None;
        let finished = self.repeat(at, &mut reads, call);
        reads.into_iter().for_each(|reads| self.sessions[at].release(reads));
        finished
    }

    fn repeat<T>(
        &mut self,
        at: usize,
        reads: &mut Option<Reads>,
        mut call: impl FnMut(&Session) -> Outcome<T>,
    ) -> Result<Option<(T, Commit)>, String> {
        for turn in 0..PATIENCE {
            let outcome = call(&self.sessions[at]);
            *reads = self.sessions[at].retake_reads(reads.take());
            match outcome {
                Outcome::Ready(answer) => return Ok(Some((answer, None))),
                Outcome::AfterCommit(answer, point) => return Ok(Some((answer, Some(point)))),
                Outcome::Refused(_) => return Ok(None),
                Outcome::NeedsRead => {
                    self.engine.serve_reads();
                }
                Outcome::NeedsSpace if self.hurry || self.reading && turn > 2 => return Ok(None),
                Outcome::NeedsSpace => {
                    self.engine.clean(&mut self.cleaner);
                    self.commit()?;
                    if self.several {
                        self.engine.serve_reads();
                        self.move_step()?;
                    }
                }
            }
            if self.machine.is_stopped() {
                return Err("the machine has stopped".into());
            }
            self.tick_all();
        }
        let (lanes, stats) = (self.engine.lanes(), self.engine.stats());
        Err(format!("a call waits for ever: {lanes:?}, {stats:?}"))
    }

    /// Checks the refusal of a call that needs space. An engine that does not evict may always
    /// refuse such a call. Otherwise the reason must be one that [`not_refused`](Self::not_refused)
    /// accepts.
    fn refused(&mut self, what: &str, key: &[u8]) -> Check {
        if self.evicts() { self.not_refused(what, key) } else { Ok(()) }
    }

    /// Checks the refusal of a call that the engine must not refuse for lack of space. Valid
    /// reasons are a failing device, an unreadable record, the world's [`Anomaly`] and a moving
    /// key. The call may also have given up early, while the world does not wait long for space.
    fn not_refused(&mut self, what: &str, key: &[u8]) -> Check {
        let waits = !self.reading && !self.hurry;
        // The engine refuses a call that needs a record whose read fails. A later read may still
        // return the record, so the engine must not replace it.
        let unreadable = self.machine.failed_reads() != self.failed_reads;
        if self.engine.health() != Health::Good || unreadable || !waits {
            return Ok(());
        }
        if self.anomaly.was_reached(&self.machine, &self.engine) {
            return Ok(());
        }
        if self.engine.lane_of(key).is_none() {
            return self.arrives(key);
        }
        Err(format!("{what} was refused: {:?}", self.engine.stats()))
    }
}

impl Drop for DurableWorld {
    fn drop(&mut self) {
        self.abandon_held_commit();
    }
}
