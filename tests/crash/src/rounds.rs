//! Rounds over one store. In each round the server runs, usually under load, and then ends, usually
//! suddenly. A seed determines the load and the end of every round.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::activity::{self, Interrupted};
use crate::checker::Totals;
use crate::client::ClientPlan;
use crate::disk::{Cut, Disk, Faults};
use crate::server::Server;
use crate::workload::Sizes;
use crate::world::{End, Failure, Load, TIGHT_MIB, World};
use larder_disk::Random;

/// The longest value in bytes: the largest item, less the longest key and the overhead of an item.
pub(crate) const LARGEST: u32 = (1 << 20) - 512;
/// The largest number of writing connections per process. A writer has the same keys in all rounds.
const WRITERS: u16 = 4;
/// The largest number of client processes.
const PROCESSES: u16 = 3;
/// Factor for the number of keys on machines whose devices should become full.
const FILLING: u16 = 5;
/// The longest time for which a round delays its end until background work runs. It is also the
/// longest delay until the disk has unsynced bytes.
const AIMING: Duration = Duration::from_millis(200);

/// The duration of a slow device's syncs. In async mode, it is longer than the sync interval, so
/// the device stalls again and again.
const SLOW_SYNC: Duration = Duration::from_millis(500);
/// The longest time for which a device that is not slow may lag behind the promise of async mode.
const CATCHING_UP: Duration = Duration::from_secs(10);

/// The counts of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) rounds: u32,
    pub(crate) totals: Totals,
    pub(crate) slowest_start: Duration,
    /// Number of power failures that could lose bytes, and the number of those bytes.
    pub(crate) cuts: (u64, u64),
    /// Number of devices added, of devices drained, and of times that a device grew.
    pub(crate) devices: (u32, u32, u32),
    /// How many rounds ended in the middle of each kind of background work; only with several
    /// devices.
    pub(crate) interrupted: Interrupted,
}

/// Where and why the rounds stopped early.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) round: u32,
    pub(crate) doing: String,
    pub(crate) failure: Failure,
}

/// The limits and the output of a series of rounds.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) rounds: u32,
    /// The time after which no round begins.
    pub(crate) until: Option<Instant>,
    /// The server's memory in every round; `None` chooses it at random.
    pub(crate) memory_mib: Option<u64>,
    /// The longest value in bytes.
    pub(crate) largest: u32,
    /// True if each round prints a line.
    pub(crate) verbose: bool,
}

/// Runs rounds until a limit or a failure.
pub(crate) fn run(world: &mut World, seed: u64, limits: &Limits) -> Result<Done, Box<Stopped>> {
    let mut done = Done::default();
    for round in 0..limits.rounds {
        if limits.until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let mut random = Random::part(seed, &[u64::from(round)]);
        let mut plan = Round::choose(&mut random, world);
        if let Some(load) = &mut plan.load {
            load.client.largest = limits.largest;
        }
        plan.memory_mib = limits.memory_mib.unwrap_or(plan.memory_mib);
        if limits.verbose {
            println!("  round {round}: {plan}");
        }
        plan.run(world)
            .map_err(|failure| Box::new(Stopped { round, doing: plan.to_string(), failure }))?;
        done.rounds += 1;
    }
    let round = done.rounds;
    let last = |failure| Box::new(Stopped { round, doing: "last start".into(), failure });
    finish(world).map_err(last)?;
    done.totals = world.totals();
    done.slowest_start = world.slowest_start;
    if let Some(devices) = &world.devices {
        let grown = devices.grown.load(Ordering::Relaxed);
        done.devices = (devices.added, devices.drained, grown);
        done.interrupted = world.interrupted;
    }
    if let Some(disk) = &world.disk {
        let counts = disk.counts();
        done.cuts = (counts.cuts, counts.at_stake);
    }
    Ok(done)
}

/// Checks the store after the end of the last round, and once more after an orderly stop.
fn finish(world: &mut World) -> Result<(), Failure> {
    let server = world.start()?;
    world.end(server, End::Terminate)?;
    let server = world.start()?;
    Ok(world.end(server, End::Terminate)?)
}

/// One round, as the seed chose it.
#[derive(Debug)]
struct Round {
    memory_mib: u64,
    load: Option<Load>,
    time: Duration,
    sync_delay: Duration,
    /// If true, syncs of one of several devices take [`SLOW_SYNC`].
    has_slow_device: bool,
    /// If true, the round delays its end until the expected background work runs and then until the
    /// disk has unsynced bytes. Each delay lasts at most [`AIMING`].
    aimed: bool,
    end: End,
    /// If set, the server is started again after the round's end, and killed when this time has
    /// passed, even in the middle of its recovery.
    stillborn: Option<Duration>,
    /// If set, the round then starts the server once more, reads all keys, and cuts the power in
    /// this way. Everything that it read must be durable.
    again: Option<Cut>,
    /// The random numbers that decide which devices are added, drained and grown in this round.
    devices: Random,
}

impl Round {
    fn choose(random: &mut Random, world: &World) -> Round {
        let fills = world.machine.fills();
        let sizes = random.pick(&[
            if fills { Sizes::Borders } else { Sizes::Small },
            Sizes::Mixed,
            Sizes::Mixed,
            Sizes::Mixed,
            Sizes::Borders,
            Sizes::Large,
        ]);
        let keys = match sizes {
            Sizes::Small => 120,
            Sizes::Mixed => 60,
            Sizes::Borders => 16,
            Sizes::Large => 6,
        } * if fills { FILLING } else { 1 };
        let client = ClientPlan {
            seed: random.bits(),
            writers: random.between(1, u64::from(WRITERS)) as u16,
            readers: random.between(0, 2) as u16,
            keys,
            sizes,
            largest: LARGEST,
            window: random.pick(&[1, 2, 8, 32]),
            ..ClientPlan::default()
        };
        let processes = random.between(1, u64::from(PROCESSES)) as u16;
        let cut = random.pick(&Cut::ALL);
        let again = (random.chance(30) && world.disk.is_some()).then(|| random.pick(&Cut::ALL));
        let end = match (random.below(100), &world.disk) {
            _ if again.is_some() => End::Kill,
            (0..10, _) => End::Terminate,
            (10..70, Some(_)) => End::PowerLoss(cut),
            _ => End::Kill,
        };
        // Some rounds have no load. Such a round ends as soon as its server has answered the reads
        // of all keys. So its end may interrupt work that the recovery has left for later, and the
        // next start may have to repeat the recovery.
        let idle = random.chance(12);
        // An orderly stop makes many syncs, so it would take long with slow ones.
        let has_slow_device = random.chance(10)
            && world.devices.is_some()
            && world.disk.is_some()
            && end != End::Terminate;
        // A device must be slow for long enough to stall.
        let longest = if has_slow_device { 4000 } else { random.pick(&[80, 400, 1200]) };
        Round {
            memory_mib: random.pick(&[TIGHT_MIB, 64, 96]),
            load: (!idle).then_some(Load { processes, client }),
            time: Duration::from_millis(random.between(1, longest)),
            sync_delay: Duration::from_millis(match has_slow_device {
                true => random.pick(&[0, 15]),
                false => random.pick(&[0, 0, 0, 3, 15, 40]),
            }),
            has_slow_device,
            aimed: again.is_some() || random.chance(70),
            end,
            stillborn: random.chance(20).then(|| Duration::from_millis(random.below(60))),
            again,
            devices: Random::part(random.bits(), &[]),
        }
    }

    fn run(&self, world: &mut World) -> Result<(), Failure> {
        world.plan.memory_mib = self.memory_mib;
        let mut random = self.devices.clone();
        if let Some(devices) = &mut world.devices {
            devices.erase(world.disk.as_ref())?;
            devices.before_start(&mut random, &mut world.plan);
        }
        let server = world.start()?;
        if let Some(disk) = &world.disk {
            disk.set_faults(self.faults(disk, &mut random));
        }
        if let Some(load) = &self.load {
            self.under_load(world, server, load)?;
        } else {
            world.end(server, self.end)?;
        }
        if let Some(after) = self.stillborn {
            world.plan.start_and_kill(after)?;
        }
        if let Some(cut) = self.again {
            let server = world.start()?;
            world.end(server, End::PowerLoss(cut))?;
        }
        Ok(())
    }

    fn faults(&self, disk: &Disk, random: &mut Random) -> Faults {
        let mut faults = Faults { sync_delay: self.sync_delay, ..Faults::default() };
        if self.has_slow_device {
            let names = disk.names();
            let file = disk.file(&names[random.below(names.len() as u64) as usize]);
            faults.slow_file = file.map(|file| (file, SLOW_SYNC));
        }
        faults
    }

    fn under_load(
        &self,
        world: &mut World,
        mut server: Server,
        load: &Load,
    ) -> Result<(), Failure> {
        let clients = world.clients(&server, load)?;
        match &world.devices {
            // A drain waits for several syncs of each device, so slow syncs would delay the end of
            // the round by seconds.
            Some(devices) if !self.has_slow_device => {
                devices.shake(&mut self.devices.clone(), &server, self.time)?;
            }
            _ => thread::sleep(self.time),
        }
        if let Some(work) = world.machine.work() {
            let patience = if self.aimed { AIMING } else { Duration::ZERO };
            let mut watched = activity::watch(&server, work, patience)?;
            let watching = Instant::now();
            // Without a slow device, a device lags only while the computer is busy.
            while !self.has_slow_device && world.lags(watched.unsynced) {
                if watching.elapsed() > CATCHING_UP {
                    let text = format!("writes do not become durable: {:?}", watched.unsynced);
                    return Err(Failure::Io(std::io::Error::other(text)));
                }
                watched = activity::watch(&server, work, patience)?;
            }
            world.note(watched);
        }
        if let (Some(disk), true) = (&world.disk, self.aimed) {
            // Waits for a moment between a write and the sync that covers it.
            let aiming = Instant::now();
            while disk.unsynced() == 0 && aiming.elapsed() < AIMING {
                thread::yield_now();
            }
        }
        if !server.is_alive() {
            return Err(Failure::Io(std::io::Error::other("the server ended by itself")));
        }
        world.end(server, self.end)?;
        world.collect(clients, self.memory_mib <= TIGHT_MIB)
    }
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Round { memory_mib, time, sync_delay, has_slow_device, end, stillborn, again, .. } =
            self;
        match &self.load {
            None => write!(f, "no load")?,
            Some(Load { processes, client }) => {
                let ClientPlan { writers, readers, keys, sizes, window, .. } = client;
                write!(f, "{processes} processes of {writers} writers and {readers} readers, ")?;
                write!(f, "{keys} keys each, {sizes:?} values, window {window}")?;
            }
        }
        write!(f, ", {memory_mib} MiB, syncs take {sync_delay:?}")?;
        if *has_slow_device {
            write!(f, ", those of one device {SLOW_SYNC:?}")?;
        }
        write!(f, ", after {time:?}: {end:?}")?;
        if let Some(after) = stillborn {
            write!(f, ", recovery killed after {after:?}")?;
        }
        again.map_or(Ok(()), |cut| write!(f, ", and after recovery PowerLoss({cut:?})"))
    }
}
