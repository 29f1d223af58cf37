//! Tests of the time from which a store continues.

use super::a_superblock;
use crate::format::{MachineTime, NANOS, Superblock};

const WALL: u64 = 1_800_000_000 * NANOS + 700;
const HOUR: u64 = 3600 * NANOS;

const START: MachineTime = MachineTime { wall: WALL, boot_id: 7, since_boot: 5000 };

/// Returns the clocks a minute after [`START`], with the wall clock set by `change`.
fn later(change: impl Fn(u64) -> u64) -> MachineTime {
    let minute = 60 * NANOS;
    MachineTime {
        wall: change(START.wall + minute),
        since_boot: START.since_boot + minute,
        ..START
    }
}

/// Returns a superblock of a server that started at [`START`].
fn started() -> Superblock {
    let mut superblock = a_superblock();
    superblock.set_time(START.of_store([&superblock]), &START);
    superblock
}

#[test]
fn a_new_store_begins_with_the_wall_clock() {
    assert_eq!(START.of_store([]), WALL);
    let superblock = started();
    assert_eq!(superblock.clock, 1_800_000_000);
    assert_eq!((superblock.boot_id, superblock.boot_offset), (7, WALL as i64 - 5000));
}

#[test]
fn within_a_boot_the_wall_clock_changes_nothing() {
    let superblock = started();
    for change in [|wall| wall, |wall| wall + HOUR, |wall| wall - HOUR, |_| 0] {
        let later = later(change);
        let time = later.of_store([&superblock]);
        assert_eq!(time, WALL + 60 * NANOS);
        let mut again = superblock;
        again.set_time(time, &later);
        assert_eq!(again.boot_offset, superblock.boot_offset);
    }
}

#[test]
fn after_another_boot_the_wall_clock_counts_unless_it_is_behind() {
    let superblock = started();
    for (boot_id, known) in [(8, superblock), (0, superblock), (7, zeroed(superblock))] {
        let at =
            |change: fn(u64) -> u64| MachineTime { boot_id, ..later(change) }.of_store([&known]);
        assert_eq!(at(|wall| wall + HOUR), WALL + HOUR + 60 * NANOS);
        assert_eq!(at(|wall| wall - HOUR), 1_800_000_000 * NANOS);
    }
    // The id 0 stands for an unknown boot. It never counts as the same boot.
    let mut unknown = superblock;
    unknown.set_time(WALL, &MachineTime { boot_id: 0, ..START });
    assert_eq!((unknown.boot_id, unknown.boot_offset), (0, 0));
}

/// Returns the superblock as an older program writes it: without the boot fields.
fn zeroed(superblock: Superblock) -> Superblock {
    Superblock { boot_id: 0, boot_offset: 0, ..superblock }
}

#[test]
fn the_remembered_second_bounds_the_time_within_a_boot_too() {
    let superblock = Superblock { clock: 1_800_003_600, ..started() };
    assert_eq!(later(|wall| wall).of_store([&superblock]), 1_800_003_600 * NANOS);
}

#[test]
fn the_newest_time_of_several_lanes_counts() {
    let (one, mut other) = (started(), started());
    other.boot_offset += 1;
    let ahead = later(|wall| wall + HOUR);
    assert_eq!(ahead.of_store([&one, &other]), WALL + 60 * NANOS + 1);
    // One lane was last opened in another boot. The store still does not take its time from the
    // wall clock, because the other lane was last opened in this boot. But the time is never
    // earlier than the `clock` of any lane.
    let absent = Superblock { boot_id: 6, ..one };
    assert_eq!(ahead.of_store([&absent, &one]), WALL + 60 * NANOS);
    let absent = Superblock { clock: 1_800_003_600, ..absent };
    assert_eq!(ahead.of_store([&one, &absent]), 1_800_003_600 * NANOS);
}

#[test]
fn extreme_times_are_bounded() {
    for (time, since_boot) in [(u64::MAX, 0), (0, u64::MAX / 2), (u64::MAX, u64::MAX)] {
        let machine = MachineTime { since_boot, ..START };
        let mut superblock = Superblock { clock: 0, ..a_superblock() };
        superblock.set_time(time, &machine);
        let again = machine.of_store([&superblock]);
        assert!(again <= time && again >= time.min(u64::from(u32::MAX) * NANOS));
    }
}
