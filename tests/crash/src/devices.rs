//! The devices of a store with several lanes. Some starts add a lane. While the server works, some
//! lanes are drained and some grow. Later starts leave out the drained devices, and name the others
//! with their original sizes.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::server::{Server, ServerPlan};
use larder_disk::Random;

/// The sizes of each lane's devices, and a limit of the number of lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Size of a device in MiB; with two tiers, the size of the fast device.
    pub(crate) device_mib: u64,
    /// Size in MiB of the lower device of every lane; `None` with one tier.
    pub(crate) lower_mib: Option<u64>,
    /// The largest number of lanes for which the server has enough memory.
    pub(crate) most: usize,
}

/// The devices of a store.
#[derive(Debug)]
pub(crate) struct Devices {
    directory: PathBuf,
    layout: Layout,
    names: Vec<u32>,
    next: u32,
    /// Number of lanes added.
    pub(crate) added: u32,
    /// Number of lanes drained to the end.
    pub(crate) drained: u32,
    /// How often a device grew.
    pub(crate) grown: AtomicU32,
}

/// The largest growth of a device beyond its original size, in MiB.
const MORE_MIB: u64 = 16;

impl Devices {
    /// Returns the devices with which a store begins. Their files are in `directory`.
    pub(crate) fn new(directory: PathBuf, layout: Layout) -> Devices {
        Devices {
            directory,
            layout,
            names: vec![0],
            next: 1,
            added: 0,
            drained: 0,
            grown: AtomicU32::new(0),
        }
    }

    fn path(&self, name: u32) -> String {
        self.directory.join(name.to_string()).display().to_string()
    }

    fn lower_path(&self, name: u32) -> String {
        format!("{}-big", self.path(name))
    }

    /// Returns the values of `--store` for the server.
    fn stores(&self) -> Vec<String> {
        let Layout { device_mib, lower_mib, .. } = self.layout;
        let device = |&name: &u32| {
            let store = format!("{}:{device_mib}MB", self.path(name));
            match lower_mib {
                None => vec![store],
                Some(lower_mib) => {
                    let lower = format!("{}:{lower_mib}MB@big", self.lower_path(name));
                    vec![format!("{store}@fast"), lower]
                }
            }
        };
        self.names.iter().flat_map(device).collect()
    }

    /// Adds a lane for the next start, with some probability. Stores the values of `--store` in
    /// `plan` even if it adds none.
    pub(crate) fn before_start(&mut self, random: &mut Random, plan: &mut ServerPlan) {
        let percent = if self.names.len() == 1 { 80 } else { 40 };
        if self.names.len() < self.layout.most && random.chance(percent) {
            self.names.push(self.next);
            self.next += 1;
            self.added += 1;
        }
        plan.devices = self.stores();
    }

    /// Drains devices, cancels drains and grows devices at random for `time`, while the server is
    /// under load.
    pub(crate) fn shake(
        &self,
        random: &mut Random,
        server: &Server,
        time: Duration,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut talk = server.connect()?;
        while begun.elapsed() < time {
            let name = random.pick(&self.names);
            let command = match random.below(100) {
                0..50 => format!("store drain {}", self.path(name)),
                50..75 => format!("store keep {}", self.path(name)),
                _ => self.growth(name, random),
            };
            // The server refuses to drain the last device or one that was drained before, and to
            // shrink a device.
            let answer = talk.line(&command)?;
            if answer != "OK" && !answer.starts_with("SERVER_ERROR ") {
                return Err(io::Error::other(format!("{command} was answered {answer:?}")));
            }
            if answer == "OK" && command.starts_with("store grow ") {
                self.grown.fetch_add(1, Ordering::Relaxed);
            }
            let left = time.saturating_sub(begun.elapsed());
            thread::sleep(left.min(Duration::from_millis(random.below(200))));
        }
        Ok(())
    }

    /// Returns a command that grows a lane's device to a random size; with two tiers, the lower
    /// device. The server refuses the command if the device is already larger.
    fn growth(&self, name: u32, random: &mut Random) -> String {
        let (path, mib) = match self.layout.lower_mib {
            Some(mib) => (self.lower_path(name), mib),
            None => (self.path(name), self.layout.device_mib),
        };
        format!("store grow {} {path}", (mib + random.below(MORE_MIB + 1)) << 20)
    }

    /// Removes from the plan the devices that `rows` of the statistics show as drained.
    pub(crate) fn leave(&mut self, rows: &[(String, String)], plan: &mut ServerPlan) {
        let is_drained = |path: &str| {
            let of_lane = |(row, value): &(String, String)| {
                value == path && row.starts_with("larder_lane_") && row.ends_with("_device")
            };
            // A device that was drained before the server's start has no lane.
            rows.iter().find(|row| of_lane(row)).is_none_or(|(row, _)| {
                let state = row.replace("_device", "_state");
                rows.iter().any(|(row, value)| *row == state && value == "drained")
            })
        };
        let (gone, kept): (Vec<u32>, Vec<u32>) =
            self.names.iter().partition(|&&name| is_drained(&self.path(name)));
        self.drained += gone.len() as u32;
        self.names = kept;
        plan.devices = self.stores();
    }

    /// Deletes the files of devices that are no longer in the plan. The server must have ended.
    pub(crate) fn erase(&self, disk: Option<&Disk>) -> io::Result<()> {
        let is_used = |file: &str| {
            let name = file.strip_suffix("-big").unwrap_or(file);
            self.names.iter().any(|used| used.to_string() == name)
        };
        if let Some(disk) = disk {
            disk.names().iter().filter(|name| !is_used(name)).for_each(|name| disk.remove(name));
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            if !is_used(&entry.file_name().to_string_lossy()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
