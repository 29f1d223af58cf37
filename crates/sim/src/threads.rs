//! A world in which everything runs concurrently. Each worker, the committer, the cleaner and the
//! readers have their own threads. The world consists of several lives. In each life, devices are
//! slow, hang or fail for a while; then the power fails or the process is killed. The seed decides
//! the load and the faults. The operating system decides the order in which threads run, so a
//! failing seed may have to be run several times until it fails again.
//!
//! Each worker has keys that only it uses, and knows their state. If the engine does not evict, all
//! workers also count in the same counters. After a restart, each key must have its last durable
//! state or a newer one. Between restarts, every answer must be exactly right, however long a
//! device hangs. An engine that evicts may always miss an item.

mod history;
mod worker;

use crate::world::{Failure, Plan};
use history::Keys;
use larder_disk::Random;
use larder_disk::{Device, Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::{
    Durability, Engine, LowerDevice, MachineTime, MonotonicClock, NANOS, Options, StoreDevice,
    StoreOptions, WhenFull,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use worker::Worker;

/// The number of worker threads.
const WORKERS: usize = 4;
/// The number of lives of a store in one world. A life lasts from a start to the next power loss or
/// kill.
const LIVES: u64 = 3;
/// Salt of the seed, so that a world with threads differs from other worlds with the same seed.
const THREADED: u64 = 0x7412_EAD5;

/// State that all threads of one life share.
struct Shared {
    engine: Arc<Engine>,
    /// True at the end of a life. The workers then start no new operations.
    stopping: AtomicBool,
    now: AtomicU32,
    /// The number of operations that have ended, including refused ones.
    done: AtomicU64,
    /// True once a fault of a device is planned in this life. Device calls may then fail before
    /// `stopping` is true.
    faulty: AtomicBool,
    evicts: bool,
    syncs: bool,
    /// The first error that was found.
    wrong: Mutex<Option<String>>,
}

impl Shared {
    fn fail(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.stopping.store(true, Relaxed);
    }

    fn stops(&self) -> bool {
        self.stopping.load(Relaxed)
    }
}

/// A store that outlives its engines, and the model of its keys.
pub struct ThreadedWorld {
    random: Random,
    options: Options,
    /// The devices of each lane: the fast one, and perhaps a lower one.
    devices: Vec<Vec<Arc<SimDevice>>>,
    clock: Arc<AtomicU64>,
    keys: Vec<Keys>,
    now: u32,
}

impl ThreadedWorld {
    /// Runs a whole plan. `plan.steps` is the number of operations of all workers
    /// together in one life, which lasts from a start to the next power loss or kill.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn run(plan: Plan) -> Result<(), Failure> {
        let mut world = ThreadedWorld::new(plan.seed);
        for life in 0..LIVES {
            let fail = |what| Failure { seed: plan.seed, step: life, what };
            world.live(plan.steps).map_err(fail)?;
        }
        Ok(())
    }

    fn new(seed: u64) -> ThreadedWorld {
        let mut random = Random::new(seed ^ THREADED);
        let lanes = if random.one_in(3) { 2 } else { 1 };
        let tiers = random.one_in(3);
        let device =
            |size: u64, random: &mut Random| Arc::new(SimDevice::new(size << 20, random.bits()));
        let devices: Vec<Vec<_>> = (0..lanes)
            .map(|_| match tiers {
                true => vec![device(6, &mut random), device(16, &mut random)],
                false => vec![device(12 + random.below(12), &mut random)],
            })
            .collect();
        let clock = Arc::new(AtomicU64::new(1));
        let reading = Arc::clone(&clock);
        let time = move || Duration::from_millis(reading.load(Relaxed));
        let when_full = if random.one_in(2) { WhenFull::Evict } else { WhenFull::Refuse };
        let store = StoreOptions {
            devices: Vec::new(),
            forget: Vec::new(),
            durability: if random.one_in(2) { Durability::Async } else { Durability::Sync },
            sync_interval: Duration::from_millis(5 + random.below(30)),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(time)),
            opened: MachineTime { wall: 1_000_000 * NANOS, ..MachineTime::default() },
        };
        let options = Options {
            memory: (8 * lanes) << 20,
            max_item_size: 1 << 20,
            when_full,
            hash_seed: random.bits(),
            lanes: 1,
            store: Some(store),
        };
        let evicts = when_full == WhenFull::Evict;
        let keys = (0..WORKERS).map(|worker| Keys::new(worker, evicts)).collect();
        ThreadedWorld { random, options, devices, clock, keys, now: 1_000_000 }
    }

    fn store_devices(&self) -> Vec<StoreDevice> {
        let dynamic = |device: &Arc<SimDevice>| Arc::<SimDevice>::clone(device) as Arc<dyn Device>;
        let lane = |(at, devices): (usize, &Vec<Arc<SimDevice>>)| StoreDevice {
            name: format!("store{at}"),
            device: dynamic(&devices[0]),
            lower: devices
                .get(1)
                .map(|lower| LowerDevice { name: format!("lower{at}"), device: dynamic(lower) }),
            seeds: [1, 2, 3].map(|seed| seed + 10 * (at as u64 + 1)),
        };
        self.devices.iter().enumerate().map(lane).collect()
    }

    /// Runs one life: a start, a check of all keys, a load under faults, and the end.
    fn live(&mut self, steps: u64) -> Result<(), String> {
        let devices = self.store_devices();
        let store = self.options.store.as_mut().expect("it has one");
        store.devices = devices;
        let syncs = store.durability == Durability::Sync;
        let evicts = self.options.when_full == WhenFull::Evict;
        let engine = Engine::open(self.options.clone()).map_err(|e| format!("a start: {e}"))?;
        let shared = Shared {
            engine,
            stopping: AtomicBool::new(false),
            now: AtomicU32::new(self.now),
            done: AtomicU64::new(0),
            faulty: AtomicBool::new(false),
            evicts,
            syncs,
            wrong: Mutex::new(None),
        };
        let seeds: Vec<u64> = self.keys.iter().map(|_| self.random.bits()).collect();
        thread::scope(|scope| {
            for (keys, seed) in self.keys.iter_mut().zip(seeds) {
                let shared = &shared;
                scope.spawn(move || {
                    let mut worker = Worker::new(shared, keys, Random::new(seed));
                    if let Err(what) = worker.run() {
                        shared.fail(what);
                    }
                });
            }
            let (random, clock) = (&mut self.random, &self.clock);
            disturb(&shared, random, clock, &self.devices, steps);
        });
        let wrong = shared.wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(what) = wrong {
            return Err(format!("{what}; {:?}", shared.engine.stats()));
        }
        self.now = shared.now.load(Relaxed);
        history::share_counts(&mut self.keys)?;
        let power_goes = self.random.one_in(2);
        drop(shared.engine);
        for devices in &mut self.devices {
            for device in devices {
                let next =
                    if power_goes { device.crash(self.random.bits()) } else { device.image() };
                *device = Arc::new(next);
            }
        }
        Ok(())
    }
}

/// Lets time pass and makes devices slow or faulty, until the workers have done enough operations.
/// Then stops the machine.
fn disturb(
    shared: &Shared,
    random: &mut Random,
    clock: &AtomicU64,
    devices: &[Vec<Arc<SimDevice>>],
    steps: u64,
) {
    let all: Vec<&Arc<SimDevice>> = devices.iter().flatten().collect();
    let pause = |random: &mut Random| {
        thread::park_timeout(Duration::from_micros(200 + random.below(1500)));
        clock.fetch_add(1 + random.below(4), Relaxed);
    };
    while shared.done.load(Relaxed) < steps && !shared.stops() {
        let device = all[random.below(all.len() as u64) as usize];
        match random.below(60) {
            0..6 => {
                let slow = [Operation::Sync, Operation::Write, Operation::Read];
                device.hold(slow[random.below(3) as usize]);
                (0..random.below(12)).for_each(|_| pause(random));
                device.release();
            }
            6..8 => {
                shared.now.fetch_add(1 + random.below(5) as u32, Relaxed);
            }
            8 if random.one_in(4) => {
                shared.faulty.store(true, Relaxed);
                let operation = [Operation::Sync, Operation::Write][random.below(2) as usize];
                let done = device.counts().of(operation);
                let (at, times) = (done + 1 + random.below(3), 1 + random.below(3));
                device.plan(Fault { operation, at, times, failure: DeviceFailure::Io });
            }
            9 => {
                // The result is ignored, because the limit may be below the engine's minimum.
                let _ = shared.engine.set_memory_limit((8 + random.below(24)) << 20);
            }
            10 if devices.len() > 1 && random.one_in(3) => {
                // The result is ignored, because the lane may be the last one, which the engine
                // does not drain.
                let name = format!("store{}", random.below(devices.len() as u64));
                let empties = random.one_in(2);
                let engine = &shared.engine;
                let _ = if empties { engine.drain(&name) } else { engine.keep(&name) };
            }
            _ => pause(random),
        }
    }
    shared.faulty.store(true, Relaxed);
    // Plans that each device stops during one of its next 20 writes and syncs.
    for device in &all {
        device.stop_at(device.counts().changes() + 1 + random.below(20));
    }
    for _ in 0..random.below(20) {
        if all.iter().any(|device| device.is_stopped()) {
            break;
        }
        pause(random);
    }
    all.iter().for_each(|device| device.stop());
    shared.stopping.store(true, Relaxed);
}
