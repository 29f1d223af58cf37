//! The devices of a store of several: a lane is added at some starts, and some are drained and some grow while the
//! server works. What was drained is not given to it any more, and no start knows of what has grown.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::random::Random;
use crate::server::{Server, ServerPlan};

/// What the lanes of a store are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The size of a device in MiB, the fast one if there are two.
    pub(crate) device_mib: u64,
    /// The size in MiB of a big device that every lane has beside it.
    pub(crate) lower_mib: Option<u64>,
    /// A server has memory for so many.
    pub(crate) most: usize,
}

/// The devices of a store.
#[derive(Debug)]
pub(crate) struct Devices {
    directory: PathBuf,
    layout: Layout,
    names: Vec<u32>,
    next: u32,
    /// Lanes that were added, and that were drained to the end.
    pub(crate) added: u32,
    pub(crate) drained: u32,
    /// How often one grew.
    pub(crate) grown: AtomicU32,
}

/// How much larger than at its creation a device becomes at most, in MiB.
const MORE_MIB: u64 = 16;

impl Devices {
    /// The first devices of a store whose files are in `directory`.
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

    /// What the server is given.
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

    /// Adds a lane to those of the next start, perhaps, and tells the plan.
    pub(crate) fn before_start(&mut self, random: &mut Random, plan: &mut ServerPlan) {
        let percent = if self.names.len() == 1 { 80 } else { 40 };
        if self.names.len() < self.layout.most && random.chance(percent) {
            self.names.push(self.next);
            self.next += 1;
            self.added += 1;
        }
        plan.devices = self.stores();
    }

    /// While the server is under load: drains devices, and takes that back, and makes some larger, now and then.
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
            // The last one is not drained, none shrinks, and one that is drained already is none of the store's.
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

    /// The command that makes a lane larger.
    fn growth(&self, name: u32, random: &mut Random) -> String {
        let (path, mib) = match self.layout.lower_mib {
            Some(mib) => (self.lower_path(name), mib),
            None => (self.path(name), self.layout.device_mib),
        };
        format!("store grow {} {path}", (mib + random.below(MORE_MIB + 1)) << 20)
    }

    /// Those that are drained, as the rows of the statistics say, leave the store: the next start does
    /// without them.
    pub(crate) fn leave(&mut self, rows: &[(String, String)], plan: &mut ServerPlan) {
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
        let (gone, kept): (Vec<u32>, Vec<u32>) =
            self.names.iter().partition(|&&name| is_drained(&self.path(name)));
        self.drained += gone.len() as u32;
        self.names = kept;
        plan.devices = self.stores();
    }

    /// Deletes what the server does not use any more; called when it has ended.
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
