//! Tests of calls that `SimDevice::hold` delays while other threads work.

use super::*;
use std::sync::Arc;
use std::thread;

const LIMIT: Duration = Duration::from_secs(20);

fn held_sync(device: &Arc<SimDevice>) -> thread::JoinHandle<io::Result<()>> {
    let other = Arc::clone(device);
    let thread = thread::spawn(move || other.sync());
    assert!(device.wait_until_held(LIMIT), "no sync came");
    thread
}

#[test]
fn a_held_sync_covers_only_writes_before_its_call() {
    let device = Arc::new(SimDevice::new(4096, 1));
    device.write_at(0, &[1; SECTOR]).expect("write");
    device.hold(Operation::Sync);
    let syncing = held_sync(&device);
    assert_eq!(device.unsynced_sectors(), 1, "not done yet");
    device.write_at(0, &[2; SECTOR]).expect("a write while the sync is under way");
    device.write_at(512, &[3; SECTOR]).expect("write");
    device.release();
    syncing.join().expect("thread").expect("sync");
    assert_eq!(device.unsynced_sectors(), 2);
    let found: std::collections::HashSet<Vec<u8>> =
        (0..300).map(|seed| first_bytes(&device.crash(seed), 2)).collect();
    assert!(found.contains(&vec![1, 0]), "later writes may be lost");
    assert!(found.iter().all(|sectors| sectors[0] != 0), "earlier writes may not be lost");
}

#[test]
fn a_release_continues_only_calls_held_before_it() {
    let device = Arc::new(SimDevice::new(4096, 1));
    for round in 1..=20 {
        device.hold(Operation::Sync);
        let syncing = held_sync(&device);
        device.release();
        // Holds syncs again before the other thread can have noticed the release. Its released sync
        // must still complete.
        device.hold(Operation::Sync);
        syncing.join().expect("thread").expect("sync");
        assert_eq!(device.counts().syncs, round);
    }
    assert!(!device.wait_until_held(Duration::ZERO), "no operation is held now");
}

#[test]
fn a_stopped_machine_ends_held_calls_with_an_error() {
    let device = Arc::new(SimDevice::new(4096, 1));
    device.hold(Operation::Sync);
    let syncing = held_sync(&device);
    device.stop_at(1);
    let error = device.write_at(0, &[1]).expect_err("the first change");
    assert!(Stopped::is(&error));
    let error = syncing.join().expect("thread").expect_err("the machine is gone");
    assert!(Stopped::is(&error));
    device.hold(Operation::Read);
    device.read_at(0, &mut [0]).expect_err("nothing waits on a machine that is gone");
}
