//! The devices of a store of several: one is added at some starts, and some are drained while the server
//! works. What was drained is not given to it any more.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::server::{Server, ServerPlan};

/// A server has memory for so many.
const MOST: usize = 4;

/// The devices of a store.
#[derive(Debug)]
pub(crate) struct Devices {
    directory: PathBuf,
    names: Vec<u32>,
    next: u32,
    /// Devices that were added, and that were drained to the end.
    pub(crate) added: u32,
    pub(crate) drained: u32,
}

impl Devices {
    /// The first device of a store in `directory`.
    pub(crate) fn new(directory: PathBuf) -> Devices {
        Devices { directory, names: vec![0], next: 1, added: 0, drained: 0 }
    }

    fn path(&self, name: u32) -> PathBuf {
        self.directory.join(name.to_string())
    }

    /// Adds one to those of the next start, perhaps, and tells the plan.
    pub(crate) fn before_start(
        &mut self,
        random: &mut Random,
        plan: &mut ServerPlan,
    ) -> io::Result<()> {
        if self.names.len() < MOST && random.chance(if self.names.len() == 1 { 80 } else { 40 }) {
            self.names.push(self.next);
            self.next += 1;
            self.added += 1;
        }
        for &name in &self.names {
            std::fs::create_dir_all(self.path(name))?;
        }
        plan.devices = self.names.iter().map(|&name| self.path(name)).collect();
        Ok(())
    }

    /// While the server is under load: drains devices, and takes that back, now and then.
    pub(crate) fn shake(
        &self,
        random: &mut Random,
        server: &Server,
        time: Duration,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut talk = server.connect()?;
        while begun.elapsed() < time {
            let device = self.path(random.pick(&self.names));
            let verb = if random.chance(70) { "drain" } else { "keep" };
            // The last one is refused, and so is one that is drained already.
            let answer = talk.line(&format!("store {verb} {}", device.display()))?;
            if answer != "OK" && !answer.starts_with("SERVER_ERROR ") {
                return Err(io::Error::other(format!("store {verb} was answered {answer:?}")));
            }
            let left = time.saturating_sub(begun.elapsed());
            thread::sleep(left.min(Duration::from_millis(random.below(200))));
        }
        Ok(())
    }

    /// Those that are drained leave the store: the next start does without them.
    pub(crate) fn leave(&mut self, server: &Server, plan: &mut ServerPlan) -> io::Result<()> {
        let rows = server.stats()?;
        let is_drained = |path: &str| {
            let of_lane = |(row, value): &(String, String)| {
                value == path && row.starts_with("larder_lane_") && row.ends_with("_device")
            };
            // One that was drained before the start is no lane any more.
            rows.iter().find(|row| of_lane(row)).is_none_or(|(row, _)| {
                let state = row.replace("_device", "_state");
                rows.iter().any(|(row, value)| *row == state && value == "drained")
            })
        };
        let (gone, kept): (Vec<u32>, Vec<u32>) = self
            .names
            .iter()
            .partition(|&&name| is_drained(&self.path(name).display().to_string()));
        self.drained += gone.len() as u32;
        self.names = kept;
        plan.devices = self.names.iter().map(|&name| self.path(name)).collect();
        Ok(())
    }

    /// Deletes what the server does not use any more; called when it has ended.
    pub(crate) fn erase(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if !self.names.iter().any(|&name| self.path(name) == path) {
                std::fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }
}
