//! Tests that the simulated device keeps the promises of a device, and nothing beyond them.

mod crashes;
mod faults;
mod holding;

use super::cache::SECTOR;
use super::*;

/// Returns the content of one sector without counting a read.
fn sector(device: &SimDevice, number: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    device.peek(number * SECTOR as u64, &mut bytes);
    bytes
}

/// Returns the first byte of each of the first `count` sectors.
fn first_bytes(device: &SimDevice, count: u64) -> Vec<u8> {
    (0..count).map(|number| sector(device, number)[0]).collect()
}

#[test]
fn reads_return_the_bytes_written_across_pages() {
    let device = SimDevice::new(20_000, 1);
    assert_eq!(device.size(), 20_480, "rounded up");
    let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i % 251) as u8).collect();
    device.write_at(3_999, &bytes).expect("write");
    let mut found = vec![1; 10_002];
    device.read_at(3_998, &mut found).expect("read");
    assert_eq!(found[0], 0);
    assert_eq!(found[1..10_001], bytes);
    assert_eq!(found[10_001], 0);
}

#[test]
fn calls_outside_the_device_change_nothing_and_are_not_counted() {
    let device = SimDevice::new(4096, 1);
    let error = device.write_at(4000, &[1; 97]).expect_err("one byte too long");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(device.read_at(u64::MAX, &mut [0]).is_err());
    assert_eq!(device.counts(), Counts::default());
    assert_eq!(device.unsynced_sectors(), 0);
    device.write_at(4000, &[1; 96]).expect("fits");
    device.read_at(4096, &mut []).expect("nothing at the end");
    assert_eq!(device.counts(), Counts { reads: 1, writes: 1, syncs: 0 });
}

#[test]
fn an_image_keeps_everything_and_makes_nothing_durable() {
    let device = SimDevice::new(1 << 20, 1);
    device.write_at(0, &[3; 512]).expect("write");
    device.plan(Fault::lasting(Operation::Write, 1, Failure::Io));
    let restarted = device.image();
    assert_eq!(sector(&restarted, 0), [3; 512]);
    assert_eq!(restarted.counts(), Counts::default());
    restarted.write_at(512, &[4; 512]).expect("the fault stayed behind");
    let losses = (0..50).filter(|&seed| sector(&restarted.crash(seed), 0) == [0; 512]).count();
    assert!((10..50).contains(&losses), "lost in {losses} of 50 power losses");
    restarted.sync().expect("sync");
    assert!((0..50).all(|seed| sector(&restarted.crash(seed), 0) == [3; 512]));
    assert_eq!(sector(&device, 1), [0; 512], "an image does not write to its origin");
}

#[test]
fn a_device_from_bytes_is_durable_and_a_grown_one_continues_with_zeros() {
    let device = SimDevice::from_bytes(&[9; 5000], 1);
    assert_eq!(device.size(), 8192);
    assert_eq!(device.unsynced_sectors(), 0);
    device.write_at(0, &[8; 512]).expect("write");
    let grown = device.grown(20_000);
    assert_eq!(grown.size(), 20_480);
    assert_eq!(first_bytes(&grown, 3), [8, 9, 9]);
    assert_eq!(sector(&grown, 16), [0; 512]);
    assert_eq!(grown.unsynced_sectors(), 1, "growing is no sync");
    grown.write_at(20_000, &[1; 480]).expect("write to the new part");
    grown.sync().expect("sync");
    assert_eq!(first_bytes(&grown.crash(0), 3), [8, 9, 9]);
}

#[test]
fn a_flipped_bit_stays_on_the_medium_until_unsynced_content_overwrites_it() {
    let device = SimDevice::new(1 << 20, 1);
    device.write_at(0, &[0xff; 1024]).expect("write");
    device.sync().expect("sync");
    device.flip_bit(5, 3);
    assert_eq!(sector(&device, 0)[5], 0xf7);
    assert_eq!(sector(&device.crash(0), 0)[5], 0xf7);

    device.write_at(512, &[0xaa; 512]).expect("write");
    device.flip_bit(512, 0);
    assert_eq!(sector(&device, 1)[0], 0xaa, "not at rest");
    device.sync().expect("sync");
    assert_eq!(sector(&device.crash(0), 1), [0xaa; 512]);
}

#[test]
fn a_spoilt_range_is_never_readable_again() {
    let device = SimDevice::new(1 << 20, 1);
    device.write_at(0, &[7; 8192]).expect("write");
    device.sync().expect("sync");
    device.spoil(4096..4608);
    let later = [device.image(), device.crash(3), device.grown(2 << 20)];
    for device in later.iter().chain([&device]) {
        device.mend();
        device.write_at(4096, &[8; 512]).expect("it can be written");
        let mut bytes = [0; 513];
        for (at, len) in [(4096, 1), (4607, 1), (3600, 513), (4607, 513)] {
            let error = device.read_at(at, &mut bytes[..len]).expect_err("a bad range");
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        for (at, len) in [(4095, 1), (4608, 513), (3583, 513), (4200, 0)] {
            device.read_at(at, &mut bytes[..len]).expect("beside it");
        }
    }
}

#[test]
fn the_same_seeds_give_the_same_bytes() {
    let run = |seed| {
        let device = SimDevice::new(64 << 10, seed);
        device.plan(Fault { operation: Operation::Write, at: 3, times: 20, failure: Failure::Io });
        device.plan(Fault::once(Operation::Sync, 2, Failure::Io));
        for call in 0..60_u64 {
            let _ = device.write_at(call * 700, &[call as u8 + 1; 3000]);
            if call % 7 == 0 {
                let _ = device.sync();
            }
        }
        let mut bytes = vec![0; 64 << 10];
        device.crash(seed).peek(0, &mut bytes);
        bytes
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_power_loss_may_lose_an_unsynced_growth() {
    let device = SimDevice::new(1 << 20, 1);
    device.grow(2 << 20).expect("grows");
    assert_eq!(device.size(), 2 << 20);
    device.write_at((2 << 20) - 512, &[7; 512]).expect("the new part is there");
    assert!(device.grow(1 << 20).is_err(), "it does not shrink");
    assert_eq!(device.image().size(), 2 << 20, "the end of a process takes nothing");
    let kept = (0..50).filter(|&seed| device.crash(seed).size() == 2 << 20).count();
    assert!((10..40).contains(&kept), "kept in {kept} of 50 power losses");
    assert!((0..50).all(|seed| [1 << 20, 2 << 20].contains(&device.crash(seed).size())));
    device.sync().expect("sync");
    assert!((0..50).all(|seed| sector(&device.crash(seed), 4095) == [7; 512]));
    // First a growth fails, which must not change the size. Then the machine stops during another
    // growth.
    device.plan(Fault::once(Operation::Write, device.counts().writes + 1, Failure::Full));
    assert!(device.grow(3 << 20).is_err());
    assert_eq!(device.size(), 2 << 20);
    device.stop_at(device.counts().changes() + 1);
    assert!(device.grow(3 << 20).is_err());
    assert!(device.is_stopped());
}

#[test]
fn a_growth_lost_by_a_failed_sync_returns_only_when_repeated() {
    let mut lost = 0;
    for seed in 0..40 {
        let device = SimDevice::new(1 << 20, seed);
        device.grow(2 << 20).expect("grows");
        device.plan(Fault::once(Operation::Sync, 1, Failure::Io));
        assert!(device.sync().is_err());
        assert_eq!(device.size(), 2 << 20, "nothing tells of it");
        device.grow(2 << 20).expect("it seems to be there");
        device.sync().expect("sync");
        lost += u32::from(device.crash(1).size() == 1 << 20);
        device.shrink(1 << 20).expect("shrinks");
        device.grow(2 << 20).expect("grows");
        device.sync().expect("sync");
        assert_eq!(device.crash(1).size(), 2 << 20);
    }
    assert!((5..30).contains(&lost), "lost in {lost} of 40 failures");
}
