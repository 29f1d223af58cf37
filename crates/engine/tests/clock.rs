//! The time at which a store continues after a restart.

#[path = "common/store.rs"]
mod common;

use larder_disk::SimDevice;
use larder_engine::{Durability, Engine, MachineTime, NANOS, Options, StoreDevice, StoreOptions};
use std::sync::Arc;

const HOUR: u64 = 3600 * NANOS;
const START: MachineTime =
    MachineTime { wall: 1_800_000_000 * NANOS + 5, boot_id: 1, since_boot: 40 * NANOS };

/// Opens a store on these devices. Returns the time at which it continues, and the devices as they
/// are after a power loss.
fn open(devices: &[Arc<SimDevice>], opened: MachineTime) -> (u64, Vec<Arc<SimDevice>>) {
    let device = |(n, device): (usize, &Arc<SimDevice>)| StoreDevice {
        name: n.to_string(),
        device: Arc::<SimDevice>::clone(device),
        lower: None,
        seeds: [n as u64 + 1, 2, 3],
    };
    let store = StoreOptions {
        devices: devices.iter().enumerate().map(device).collect(),
        opened,
        ..common::store(Arc::<SimDevice>::clone(&devices[0]), Durability::Sync)
    };
    let options = Options { memory: 32 << 20, store: Some(store), ..Options::default() };
    let engine = Engine::open_without_threads(options).expect("a store");
    let time = engine.opened_at().expect("a store");
    drop(engine);
    (time, devices.iter().map(|device| Arc::new(device.crash(1))).collect())
}

fn new_device() -> Arc<SimDevice> {
    Arc::new(SimDevice::new(16 << 20, 1))
}

#[test]
fn a_boot_has_one_time_through_crashes_and_with_new_devices() {
    let (time, mut devices) = open(&[new_device(), new_device()], START);
    assert_eq!(time, START.wall);
    let mut machine = START;
    for wall in [START.wall + HOUR, START.wall - HOUR, 0] {
        machine = MachineTime { wall, since_boot: machine.since_boot + NANOS / 3, ..machine };
        let (time, after) = open(&devices, machine);
        assert_eq!(time - START.wall, machine.since_boot - START.since_boot);
        devices = after;
    }
    devices.push(new_device());
    machine.since_boot += NANOS;
    let (time, mut devices) = open(&devices, machine);
    assert_eq!(time - START.wall, machine.since_boot - START.since_boot);
    // The new device must have recorded the time, too. So the result must be the same if the new
    // device is given first.
    devices.rotate_right(1);
    machine.since_boot += NANOS;
    let (time, devices) = open(&devices, machine);
    assert_eq!(time - START.wall, machine.since_boot - START.since_boot);

    // After the next boot, the store must take the wall clock, unless the wall clock is behind the
    // store's time.
    let second = time / NANOS * NANOS;
    machine = MachineTime { boot_id: 2, wall: START.wall, ..START };
    let (time, devices) = open(&devices, machine);
    assert_eq!(time, second);
    machine = MachineTime { boot_id: 3, wall: START.wall + HOUR, ..START };
    assert_eq!(open(&devices, machine).0, START.wall + HOUR);
}

#[test]
fn a_cache_in_memory_has_no_time_to_continue() {
    let options = Options { memory: 32 << 20, ..Options::default() };
    assert_eq!(Engine::open_without_threads(options).expect("a cache").opened_at(), None);
}
