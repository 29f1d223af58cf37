//! The machine of a world: devices that lose power together.

use larder_disk::Random;
use larder_disk::{Device, SimDevice};
use larder_engine::{LowerDevice, StoreDevice};
use std::sync::Arc;

/// The devices of one lane, and the seeds with which a store on them is created.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) name: String,
    /// The only device, or the fast one.
    pub(super) device: Arc<SimDevice>,
    pub(super) lower: Option<Arc<SimDevice>>,
    pub(super) seeds: [u64; 3],
}

impl Part {
    /// Returns the lane's devices, the fast one first.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Arc<SimDevice>> {
        std::iter::once(&self.device).chain(&self.lower)
    }

    fn each(&self, mut device: impl FnMut(&SimDevice) -> SimDevice) -> Part {
        let mut of = |old: &Arc<SimDevice>| Arc::new(device(old));
        Part { device: of(&self.device), lower: self.lower.as_ref().map(of), ..self.clone() }
    }

    /// Returns the lane's devices as a new process finds them.
    pub(super) fn image(&self) -> Part {
        self.each(SimDevice::image)
    }

    fn size(&self) -> u64 {
        self.devices().map(|device| device.size()).sum()
    }

    /// Turns the lane's device into a lower device behind a new, small fast device. Sometimes drops
    /// the lower device, so that the lane has only the small device until it gets another lower
    /// device.
    fn tier(&mut self, random: &mut Random) {
        let fast = SimDevice::new((2 + random.below(4)) << 20, random.bits());
        let whole = std::mem::replace(&mut self.device, Arc::new(fast));
        self.lower = (!random.one_in(3)).then_some(whole);
    }
}

/// The devices of a machine, by lane, in the order in which the lanes were added.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) parts: Vec<Part>,
    /// The number of lanes ever added.
    added: u64,
    /// True if lanes have a lower device or get one later.
    pub(super) tiers: bool,
}

impl Machine {
    /// Creates a machine with a single device.
    pub(super) fn new(device: SimDevice, seeds: [u64; 3]) -> Self {
        let first = Part { name: "store".to_owned(), device: Arc::new(device), lower: None, seeds };
        Machine { parts: vec![first], added: 1, tiers: false }
    }

    /// Adds a lane with an empty device.
    pub(super) fn add(&mut self, random: &mut Random) {
        let name = format!("store{}", self.added);
        self.added += 1;
        let device = Arc::new(SimDevice::new(random_size(random), random.bits()));
        let seeds = [random.bits(), random.bits(), random.bits()];
        let mut part = Part { name, device, lower: None, seeds };
        if self.tiers {
            part.tier(random);
        }
        self.parts.push(part);
    }

    /// Gives every lane a small fast device, and makes its present device the lower one. Some lanes
    /// get their lower device only at a later restart.
    pub(super) fn tier(&mut self, random: &mut Random) {
        self.tiers = true;
        self.parts.iter_mut().for_each(|part| part.tier(random));
    }

    /// Removes and returns a lane's devices.
    pub(super) fn remove(&mut self, name: &str) -> Option<Part> {
        let at = self.parts.iter().position(|part| part.name == name)?;
        Some(self.parts.remove(at))
    }

    /// Returns the devices of all lanes.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Arc<SimDevice>> {
        self.parts.iter().flat_map(Part::devices)
    }

    pub(super) fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// Returns the number of failed reads on all devices.
    pub(super) fn failed_reads(&self) -> u64 {
        self.devices().map(|device| device.failed_reads()).sum()
    }

    /// Returns the number of failed writes and syncs on all devices.
    pub(super) fn failed_changes(&self) -> u64 {
        self.devices().map(|device| device.failed_changes()).sum()
    }

    /// Returns the devices as an engine takes them in its options.
    pub(super) fn given(&self) -> Vec<StoreDevice> {
        let dynamic =
            |device: &Arc<SimDevice>| -> Arc<dyn Device> { Arc::<SimDevice>::clone(device) };
        let given = |part: &Part| {
            let lower = part.lower.as_ref().map(|lower| LowerDevice {
                name: format!("{}-lower", part.name),
                device: dynamic(lower),
            });
            let (name, device) = (part.name.clone(), dynamic(&part.device));
            StoreDevice { name, device, lower, seeds: part.seeds }
        };
        self.parts.iter().map(given).collect()
    }

    /// Returns true if a device has stopped. All devices share the machine's power, so this call
    /// then stops the other devices too.
    pub(super) fn is_stopped(&self) -> bool {
        let stopped = self.devices().any(|device| device.is_stopped());
        if stopped {
            self.devices().for_each(|device| device.stop());
        }
        stopped
    }

    /// Returns the machine as a power loss leaves it.
    pub(super) fn crash(&self, mut seed: impl FnMut() -> u64) -> Machine {
        self.each(|part| part.each(|device| device.crash(seed())))
    }

    /// Returns the machine as the end of the process leaves it.
    pub(super) fn image(&self) -> Machine {
        self.each(Part::image)
    }

    /// Returns a machine with empty devices of the same sizes.
    pub(super) fn emptied(&self, seed: u64) -> Machine {
        self.each(|part| part.each(|device| SimDevice::new(device.size(), seed)))
    }

    fn each(&self, part: impl FnMut(&Part) -> Part) -> Machine {
        Machine {
            parts: self.parts.iter().map(part).collect(),
            added: self.added,
            tiers: self.tiers,
        }
    }

    /// Returns the total size of the smallest lane, in bytes.
    pub(super) fn smallest(&self) -> u64 {
        self.parts.iter().map(Part::size).min().unwrap_or(0)
    }
}

/// Returns a device size in bytes. It is small enough for the device to become full.
pub(super) fn random_size(random: &mut Random) -> u64 {
    (6 + random.below(20)) << 20
}
