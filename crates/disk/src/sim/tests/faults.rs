//! Tests of failing calls, and of the state in which they leave the device.

use super::*;
use std::collections::HashSet;

#[test]
fn only_the_planned_calls_fail() {
    let device = SimDevice::new(4096, 1);
    device.plan(Fault { operation: Operation::Write, at: 2, times: 2, failure: Failure::Full });
    device.plan(Fault::once(Operation::Read, 1, Failure::Io));
    let kind = |call: io::Result<()>| call.map_err(|error| error.raw_os_error().unwrap_or(0));
    assert_eq!(kind(device.write_at(0, &[1])), Ok(()));
    assert_eq!(kind(device.write_at(0, &[1])), Err(libc::ENOSPC));
    assert_eq!(kind(device.read_at(0, &mut [0])), Err(libc::EIO));
    assert_eq!(kind(device.read_at(0, &mut [0])), Ok(()));
    assert_eq!(kind(device.sync()), Ok(()));
    assert_eq!(kind(device.write_at(0, &[1])), Err(libc::ENOSPC));
    assert_eq!(kind(device.write_at(0, &[1])), Ok(()));
    assert_eq!(device.counts(), Counts { reads: 2, writes: 4, syncs: 1 });
}

#[test]
fn a_lasting_fault_lasts_until_it_is_mended() {
    let device = SimDevice::new(4096, 1);
    device.plan(Fault::lasting(Operation::Sync, 2, Failure::Io));
    device.sync().expect("the first one");
    for _ in 0..5 {
        device.sync().expect_err("all behind it");
    }
    device.mend();
    device.sync().expect("works again");
}

#[test]
fn a_failed_write_leaves_any_part_of_it() {
    let outcome = |seed| {
        let device = SimDevice::new(4096, seed);
        device.plan(Fault::once(Operation::Write, 1, Failure::Full));
        device.write_at(256, &[1; 3072]).expect_err("full");
        let mut bytes = [0; 4096];
        device.peek(0, &mut bytes);
        assert!(bytes[..256].iter().all(|&byte| byte == 0), "wrote before its range");
        assert!(bytes[3328..].iter().all(|&byte| byte == 0), "wrote behind its range");
        bytes.iter().filter(|&&byte| byte == 1).count()
    };
    let outcomes: HashSet<usize> = (0..20_000).map(outcome).collect();
    assert!(outcomes.contains(&0) && outcomes.contains(&3072), "nothing, or all of it");
    assert!(outcomes.len() > 100, "{} outcomes", outcomes.len());
}

#[test]
fn a_failed_read_returns_no_usable_bytes() {
    let device = SimDevice::from_bytes(&[7; 4096], 1);
    device.plan(Fault::once(Operation::Read, 1, Failure::Io));
    let mut bytes = [0; 64];
    device.read_at(0, &mut bytes).expect_err("fails");
    assert_ne!(bytes, [7; 64]);
}

/// Returns a device after two sectors were written and their sync failed.
fn after_a_failed_sync(seed: u64) -> SimDevice {
    let device = SimDevice::new(4096, seed);
    device.write_at(0, &[1; SECTOR]).expect("write");
    device.sync().expect("sync");
    device.write_at(0, &[2; 2 * SECTOR]).expect("write");
    device.plan(Fault::once(Operation::Sync, 2, Failure::Io));
    device.sync().expect_err("planned");
    device
}

#[test]
fn content_dropped_by_a_failed_sync_stays_lost_after_a_later_sync() {
    let outcome = |seed| {
        let device = after_a_failed_sync(seed);
        device.sync().expect("sync");
        assert_eq!(device.unsynced_sectors(), 0, "the device believes that all is well");
        first_bytes(&device.crash(seed), 2)
    };
    let outcomes: HashSet<Vec<u8>> = (0..300).map(outcome).collect();
    let expected: HashSet<Vec<u8>> =
        [[1, 0], [1, 2], [2, 0], [2, 2]].into_iter().map(Vec::from).collect();
    assert_eq!(outcomes, expected, "each sector on its own, never older than the first sync");
}

#[test]
fn content_dropped_by_a_failed_sync_is_not_read() {
    let outcome = |seed| {
        let device = after_a_failed_sync(seed);
        device.write_at(1024, &[5; SECTOR]).expect("write");
        let found = first_bytes(&device, 3);
        assert_eq!(found[2], 5, "un-synced content is never dropped");
        found[..2].to_vec()
    };
    let outcomes: HashSet<Vec<u8>> = (0..300).map(outcome).collect();
    assert!(outcomes.contains(&vec![1, 0]) && outcomes.contains(&vec![2, 2]), "{outcomes:?}");
}

#[test]
fn content_written_again_after_a_failed_sync_becomes_durable() {
    for seed in 0..100 {
        let device = after_a_failed_sync(seed);
        let first = sector(&device, 0)[..100].to_vec();
        device.write_at(100, &[3; 2 * SECTOR - 100]).expect("write");
        device.sync().expect("sync");
        for crash in 0..10 {
            let crashed = device.crash(crash);
            let found = (sector(&crashed, 0), sector(&crashed, 1));
            assert_eq!(found.0[..100], first, "the sector is written as the cache has it");
            assert_eq!(found.0[100..], [3; SECTOR - 100]);
            assert_eq!(found.1, [3; SECTOR]);
        }
    }
}
