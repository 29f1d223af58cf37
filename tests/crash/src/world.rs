//! One store across many runs of the server. Each run consists of a start, a check of every key, a
//! load, and an end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::activity::{Interrupted, Unsynced, Watched};
use crate::checker::{Checker, Totals};
use crate::client::ClientPlan;
use crate::clock;
use crate::devices::Devices;
use crate::disk::{Cut, Disk};
use crate::history::Violation;
use crate::journal::{self, Event};
use crate::machine::Machine;
use crate::server::{Durability, Server, ServerPlan, tail};

/// In async mode, a crash may lose the writes of the last sync interval, and those of this time
/// before the interval. On a busy computer, commits take longer to end, and clients take longer to
/// read their answers. If one of several devices stalls, a crash may also lose the writes of that
/// device's last interval before the stall.
pub(crate) const ASYNC_SLACK: Duration = Duration::from_millis(500);

/// With a slow device, a crash may lose the writes of this time: those of two commits, each of
/// which may wait for another sync first, and some time for a busy computer.
const LONGEST_STALL: Duration = Duration::from_millis(2600);

/// With at most this much memory, in MiB, a server may answer requests with errors while it reads
/// values of a megabyte, or while such values wait for a sync. The test counts these errors, but
/// they are no faults.
pub(crate) const TIGHT_MIB: u64 = 32;

/// The reason why a run of rounds or a scenario stops.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server has lost or invented data.
    Violations(Vec<Violation>),
    /// An operation failed that should succeed.
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(error) => write!(f, "{error}"),
            Failure::Violations(all) => {
                write!(f, "{} violations", all.len())?;
                all.iter().take(8).try_for_each(|one| write!(f, "\n  {one}"))
            }
        }
    }
}

fn none(violations: Vec<Violation>) -> Result<(), Failure> {
    if violations.is_empty() { Ok(()) } else { Err(Failure::Violations(violations)) }
}

/// How a run of the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `kill -9`: everything that the server has passed to the kernel stays.
    Kill,
    /// Power loss: `kill -9`, and the disk keeps the data that syncs have covered. Of the rest it
    /// keeps what [`Cut`] says.
    PowerLoss(Cut),
    /// SIGTERM: everything acknowledged stays, even the most recent.
    Terminate,
}

/// The load of one run of the server.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) processes: u16,
    /// The work of each process. [`World::clients`] sets the port, the directory of the journals
    /// and the numbers of the writers.
    pub(crate) client: ClientPlan,
}

/// A store, and everything that is known about it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: ServerPlan,
    pub(crate) machine: Machine,
    pub(crate) disk: Option<Disk>,
    /// Set if the store has several devices.
    pub(crate) devices: Option<Devices>,
    checker: Checker,
    directory: PathBuf,
    /// The monotonic clock's time in microseconds at which the last server ended, and true if
    /// SIGTERM ended it.
    ended: Option<(u64, bool)>,
    /// The age of unsynced writes just before the test ended the server. Set only in rounds with
    /// several devices on the test's disk.
    unsynced: Option<Unsynced>,
    /// True if each server ends only after a time without load in which all writes must have become
    /// durable.
    pub(crate) idle: bool,
    /// The longest time from the restart of a server until it answered.
    pub(crate) slowest_start: Duration,
    /// The background work that the ends of servers interrupted.
    pub(crate) interrupted: Interrupted,
}

impl World {
    /// Returns the world of a new store in `directory`.
    pub(crate) fn new(
        directory: &Path,
        mut plan: ServerPlan,
        machine: Machine,
        seed: u64,
    ) -> io::Result<World> {
        std::fs::create_dir_all(directory.join("journals"))?;
        plan.store = directory.join("store");
        plan.log = directory.join("server.log");
        plan.evicts = machine.evicts();
        let disk = match machine.loses_power() {
            true => Some(Disk::mount(&plan.store, seed)?),
            false => None,
        };
        if disk.is_none() {
            std::fs::create_dir_all(&plan.store)?;
        }
        let layout = machine.layout(plan.store_mib);
        let devices = layout.map(|layout| Devices::new(plan.store.clone(), layout));
        Ok(World {
            checker: Checker::new(plan.evicts),
            plan,
            machine,
            disk,
            devices,
            directory: directory.to_owned(),
            ended: None,
            unsynced: None,
            idle: false,
            slowest_start: Duration::ZERO,
            interrupted: Interrupted::default(),
        })
    }

    pub(crate) fn totals(&self) -> Totals {
        self.checker.totals
    }

    /// Returns the last part of the servers' output.
    pub(crate) fn log(&self) -> String {
        tail(&self.plan.log)
    }

    /// Saves the store as it is now, so that it can be inspected after the run.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let disk = self.disk.as_ref();
        disk.map_or(Ok(()), |disk| disk.save(&self.directory.join("image")))
    }

    /// Starts the server and checks the content of every key.
    pub(crate) fn start(&mut self) -> Result<Server, Failure> {
        let server = self.plan.start()?;
        if self.ended.is_some() {
            self.slowest_start = self.slowest_start.max(server.ready_after);
        }
        self.check(&server)?;
        self.unsynced = None;
        Ok(server)
    }

    /// Reads every key and compares it with its history.
    pub(crate) fn check(&mut self, server: &Server) -> Result<(), Failure> {
        let asked = clock::now();
        let tight = self.plan.memory_mib <= TIGHT_MIB;
        let found = server.read_all(&self.checker.keys(), tight).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read all keys after the start: {error}"))
        })?;
        none(self.checker.recovered(&found, asked, self.cutoff()))
    }

    /// Returns the monotonic clock's time in microseconds up to which every acknowledged write must
    /// have survived. The result is `u64::MAX` if no acknowledged write may be lost.
    fn cutoff(&self) -> u64 {
        match (self.plan.durability, self.ended) {
            (Durability::Async, Some((ended, false))) => {
                // The server may lose the writes that it acknowledged in the last sync interval.
                // This interval ends with the last acknowledgement, not with the server's end,
                // because a server whose disk stalls acknowledges nothing. After a time without
                // load, the interval ends with the server's end.
                let last = if self.idle { ended } else { ended.min(self.checker.last_write) };
                let due = last.saturating_sub(self.lag().as_micros() as u64);
                // If one of several devices stalls, the others still acknowledge writes. Then the
                // interval of the stalled device ended before `last`.
                let synced = self.unsynced.map_or(u64::MAX, Unsynced::synced_until);
                due.min(synced.max(last.saturating_sub(LONGEST_STALL.as_micros() as u64)))
            }
            _ => u64::MAX,
        }
    }

    /// Returns the longest time until an acknowledged write is durable on a device that does not
    /// stall, in async mode.
    pub(crate) fn lag(&self) -> Duration {
        self.plan.sync_interval + ASYNC_SLACK
    }

    /// Returns true if an acknowledged write may have stayed unsynced for longer than
    /// [`World::lag`], so a device is slow or stalls. False without the test's disk, and in other
    /// modes than async.
    pub(crate) fn lags(&self, unsynced: Unsynced) -> bool {
        self.disk.is_some()
            && self.plan.durability == Durability::Async
            && unsynced.age > self.lag()
    }

    /// Notes what the statistics showed just before the end of a server with several devices.
    pub(crate) fn note(&mut self, watched: Watched) {
        self.interrupted.note(&watched);
        // On the file system of `--directory`, a slow sync delays no early writes.
        self.unsynced = self.disk.is_some().then_some(watched.unsynced);
        if let Some(devices) = &mut self.devices {
            devices.leave(&watched.rows, &mut self.plan);
        }
    }

    /// Starts the client processes of a load.
    pub(crate) fn clients(&self, server: &Server, load: &Load) -> io::Result<Clients> {
        let journals = self.directory.join("journals");
        std::fs::remove_dir_all(&journals)?;
        std::fs::create_dir(&journals)?;
        let mut children = Vec::new();
        for process in 0..load.processes {
            let mut plan = load.client.clone();
            plan.port = server.port;
            plan.first = process * plan.writers;
            plan.all = load.processes * plan.writers;
            plan.journals = journals.clone();
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("client").arg(serde_json::to_string(&plan)?);
            command.stdin(Stdio::null());
            children.push(command.spawn()?);
        }
        Ok(Clients { children, journals })
    }

    /// Ends the server. With a power loss, the disk then drops its unsynced data.
    pub(crate) fn end(&mut self, mut server: Server, end: End) -> io::Result<()> {
        self.ended = Some((clock::now(), end == End::Terminate));
        if end == End::Terminate {
            let status = server.terminate()?;
            return match status.success() {
                true => Ok(()),
                false => {
                    Err(io::Error::other(format!("asked to stop, the server ended: {status}")))
                }
            };
        }
        if let (End::PowerLoss(_), Some(disk)) = (end, &self.disk) {
            disk.power_off();
        }
        server.signal_kill()?;
        if let Some(disk) = &self.disk {
            // A process in a sync cannot end before the sync ends.
            match end {
                End::PowerLoss(_) => disk.release(),
                _ => disk.abandon_syncs(),
            }
        }
        server.kill()?;
        match (end, &mut self.disk) {
            (End::PowerLoss(cut), Some(disk)) => disk.cut(cut),
            _ => Ok(()),
        }
    }

    /// Adds the clients' journals to the histories. `errors` is true if the server had a reason to
    /// answer with errors.
    pub(crate) fn collect(&mut self, clients: Clients, errors: bool) -> Result<(), Failure> {
        let journals = clients.finish()?;
        none(self.checker.feed(&journals, errors))
    }
}

/// Client processes at work.
#[derive(Debug)]
pub(crate) struct Clients {
    children: Vec<Child>,
    journals: PathBuf,
}

impl Clients {
    /// Waits until all clients have ended by themselves, and fails after `patience`. Keeps their
    /// journals for [`World::collect`].
    pub(crate) fn wait(&mut self, patience: Duration) -> io::Result<()> {
        let begun = Instant::now();
        for child in &mut self.children {
            loop {
                match child.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => {
                        return Err(io::Error::other(format!("a client ended: {status}")));
                    }
                    None if begun.elapsed() > patience => {
                        let text =
                            format!("clients did not finish within {} s", patience.as_secs());
                        return Err(io::Error::other(text));
                    }
                    None => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<Vec<Event>>> {
        self.wait(Duration::from_secs(40))?;
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&self.journals)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()?;
        paths.sort();
        paths.iter().map(|path| journal::read(path)).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both calls fail only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
