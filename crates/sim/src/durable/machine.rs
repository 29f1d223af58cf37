//! The machine of a world: its devices, which lose their power together.

use crate::Random;
use larder_disk::{Device, SimDevice};
use larder_engine::StoreDevice;
use std::sync::Arc;

/// A device, and what a store on it is created with.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) device: Arc<SimDevice>,
    pub(super) seeds: [u64; 3],
}

impl Part {
    fn with(&self, device: SimDevice) -> Part {
        Part { device: Arc::new(device), ..self.clone() }
    }

    /// As a new process finds it.
    pub(super) fn image(&self) -> Part {
        self.with(self.device.image())
    }
}

/// The devices of a machine, in the order in which they were added.
#[derive(Clone)]
pub(super) struct Machine {
    parts: Vec<Part>,
    /// How many there ever were.
    added: u64,
}

impl Machine {
    /// A machine with one device.
    pub(super) fn new(device: SimDevice, seeds: [u64; 3]) -> Self {
        let first = Part { name: "store".to_owned(), device: Arc::new(device), seeds };
        Machine { parts: vec![first], added: 1 }
    }

    /// An empty device more.
    pub(super) fn add(&mut self, random: &mut Random) {
        let name = format!("store{}", self.added);
        self.added += 1;
        let device = Arc::new(SimDevice::new(random_size(random), random.bits()));
        let seeds = [random.bits(), random.bits(), random.bits()];
        self.parts.push(Part { name, device, seeds });
    }

    /// Takes a device out.
    pub(super) fn remove(&mut self, name: &str) -> Option<Part> {
        let at = self.parts.iter().position(|part| part.name == name)?;
        Some(self.parts.remove(at))
    }

    pub(super) fn put_back(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// What an engine is opened with.
    pub(super) fn devices(&self) -> Vec<StoreDevice> {
        let device = |part: &Part| {
            let device: Arc<dyn Device> = Arc::<SimDevice>::clone(&part.device);
            StoreDevice { name: part.name.clone(), device, lower: None, seeds: part.seeds }
        };
        self.parts.iter().map(device).collect()
    }

    /// Whether it has lost its power; what one device notices is true for all.
    pub(super) fn is_stopped(&self) -> bool {
        let stopped = self.parts.iter().any(|part| part.device.is_stopped());
        if stopped {
            self.parts.iter().for_each(|part| part.device.stop());
        }
        stopped
    }

    /// After a power loss.
    pub(super) fn crash(&self, mut seed: impl FnMut() -> u64) -> Machine {
        self.each(|part| part.with(part.device.crash(seed())))
    }

    /// After the end of the process.
    pub(super) fn image(&self) -> Machine {
        self.each(Part::image)
    }

    /// With empty devices.
    pub(super) fn emptied(&self, seed: u64) -> Machine {
        self.each(|part| part.with(SimDevice::new(part.device.size(), seed)))
    }

    fn each(&self, part: impl FnMut(&Part) -> Part) -> Machine {
        Machine { parts: self.parts.iter().map(part).collect(), added: self.added }
    }

    /// The size of the smallest device.
    pub(super) fn smallest(&self) -> u64 {
        self.parts.iter().map(|part| part.device.size()).min().unwrap_or(0)
    }
}

/// The size of a device: little, so that it fills.
pub(super) fn random_size(random: &mut Random) -> u64 {
    (6 + random.below(20)) << 20
}
