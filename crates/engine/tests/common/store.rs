//! Default store options for tests.

use std::sync::Arc;
use std::time::Duration;

use larder_disk::Device;
use larder_engine::{Durability, MachineTime, MonotonicClock, StoreDevice, StoreOptions};

/// Returns the options of a store on one device with a stopped clock.
pub(crate) fn store(device: Arc<dyn Device>, durability: Durability) -> StoreOptions {
    StoreOptions {
        devices: vec![StoreDevice {
            name: "store".to_owned(),
            device,
            lower: None,
            seeds: [1, 2, 3],
        }],
        forget: Vec::new(),
        durability,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        opened: MachineTime::default(),
    }
}
