//! Tests of single situations in which some servers lost data or hung.

mod basic;
mod disk;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::disk::Cut;
use crate::machine::Machine;
use crate::server::{Durability, ServerPlan};
use crate::world::{End, Failure, World};

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// The server ends suddenly after a burst of writes and, in async mode, a pause. No write may
    /// stay only in memory because no request follows it.
    Burst,
    /// A crash brings no flushed or expired item back, and does not cancel a delayed flush_all.
    Flush,
    /// A client that stalls in the middle of a value delays no other client.
    Stall,
    /// Two servers never share a store.
    Second,
    /// A full store refuses new items. Stored items can still be read, counted and deleted.
    FullStore,
    /// Syncs fail: every writer gets an error, and readers see the old value. When the disk works
    /// again, the server accepts writes again.
    FailingSync,
    /// The disk is full: the same must hold as for failing syncs.
    FullDisk,
    /// A sync takes long: unrelated requests are served meanwhile, and no reply shows data that is
    /// not durable.
    SlowSync,
    /// The disk hangs: in async mode, the server acknowledges no more writes once the disk has hung
    /// for one sync interval.
    HungDisk,
    /// One of two devices hangs: in async mode, requests for the items of the other one are served,
    /// and a power loss takes only writes that the server calls unsynced.
    HungDevice,
}

impl Scenario {
    pub(crate) fn all() -> Vec<Scenario> {
        clap::ValueEnum::value_variants().to_vec()
    }

    pub(crate) fn is_for(self, durability: Durability) -> bool {
        match self {
            Scenario::Burst => true,
            Scenario::HungDisk | Scenario::HungDevice => durability == Durability::Async,
            _ => durability == Durability::Sync,
        }
    }

    pub(crate) fn needs_disk(self) -> bool {
        use Scenario::{FailingSync, FullDisk, HungDevice, HungDisk, SlowSync};
        matches!(self, FailingSync | FullDisk | SlowSync | HungDisk | HungDevice)
    }

    pub(crate) fn run(self, setup: &Setup) -> Result<(), Failure> {
        match self {
            Scenario::Burst => basic::burst(setup),
            Scenario::Flush => basic::flush_and_expiry(setup),
            Scenario::Stall => basic::stalled_client(setup),
            Scenario::Second => basic::second_server(setup),
            Scenario::FullStore => basic::full_store(setup),
            Scenario::FailingSync => disk::failing_sync(setup),
            Scenario::FullDisk => disk::full_disk(setup),
            Scenario::SlowSync => disk::slow_sync(setup),
            Scenario::HungDisk => disk::hung_disk(setup),
            Scenario::HungDevice => disk::hung_device(setup),
        }
    }
}

/// The input of a scenario.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) plan: ServerPlan,
    pub(crate) directory: PathBuf,
    /// True if the test's disk can be mounted, so that power loss can be tested.
    pub(crate) has_disk: bool,
    pub(crate) seed: u64,
}

impl Setup {
    fn world(&self) -> io::Result<World> {
        let machine = if self.has_disk { Machine::Power } else { Machine::Plain };
        World::new(&self.directory, self.plan.clone(), machine, self.seed)
    }

    /// Returns the hardest end that can be tested: a power loss that drops all unsynced data, or
    /// `kill -9` if the test's disk cannot be mounted.
    fn hard_end(&self) -> End {
        if self.has_disk { End::PowerLoss(Cut::Nothing) } else { End::Kill }
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::Io(io::Error::other(text.into()))
}

fn expect(what: &str, found: Option<String>, wanted: Option<&str>) -> Result<(), Failure> {
    if found.as_deref() == wanted {
        return Ok(());
    }
    let show = |value: Option<&str>| match value {
        None => "nothing".to_owned(),
        Some(text) if text.len() > 40 => {
            format!("{} bytes …{:?}", text.len(), text.split_at(text.len() - 9).1)
        }
        Some(text) => format!("{text:?}"),
    };
    Err(wrong(format!("{what}: found {}, expected {}", show(found.as_deref()), show(wanted))))
}

/// Calls `is` until it returns true, and returns the time that passed. Fails after `patience`.
fn becomes(
    what: &str,
    patience: Duration,
    mut is: impl FnMut() -> io::Result<bool>,
) -> Result<Duration, Failure> {
    let begun = Instant::now();
    while !is()? {
        if begun.elapsed() > patience {
            return Err(wrong(format!("{what}: not within {} s", patience.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}
