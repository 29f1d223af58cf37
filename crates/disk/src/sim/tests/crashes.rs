//! Tests of the states in which a power loss leaves the device.

use super::*;
use crate::Random;
use std::collections::HashSet;

const SECTORS: u64 = 64;

/// For each sector, every content that it may have after a power loss: the content that the last
/// covering sync left, and every content written since.
struct Allowed(Vec<Vec<[u8; SECTOR]>>);

impl Allowed {
    fn new() -> Allowed {
        Allowed(vec![vec![[0; SECTOR]]; SECTORS as usize])
    }

    fn wrote(&mut self, device: &SimDevice, sectors: std::ops::Range<u64>) {
        for number in sectors {
            self.0[number as usize].push(sector(device, number));
        }
    }

    fn synced(&mut self) {
        for contents in &mut self.0 {
            contents.drain(..contents.len() - 1);
        }
    }

    /// Returns true if `found` is one of the allowed contents, or a torn write: the first bytes are
    /// of one allowed content, and the rest is of an older one.
    fn has(&self, number: u64, found: &[u8; SECTOR]) -> bool {
        let contents = &self.0[number as usize];
        let cut = |newer: &[u8; SECTOR], older: &[u8; SECTOR]| {
            let same = found.iter().zip(newer).take_while(|(a, b)| a == b).count();
            found[same..] == older[same..]
        };
        contents.iter().enumerate().any(|(position, newer)| {
            found == newer || contents[..position].iter().any(|older| cut(newer, older))
        })
    }
}

#[test]
fn a_crash_leaves_only_contents_since_the_last_sync() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let device = SimDevice::new(SECTORS * SECTOR as u64, seed);
        let mut allowed = Allowed::new();
        for _ in 0..random.below(40) {
            if random.chance(15) {
                device.sync().expect("sync");
                allowed.synced();
                continue;
            }
            let start = random.below(SECTORS);
            let count = 1 + random.below((SECTORS - start).min(12));
            let bytes: Vec<u8> =
                (0..count as usize * SECTOR).map(|_| random.bits() as u8).collect();
            // Writes often do not cover whole sectors: the bytes around a write must survive.
            let (skip, cut) = if random.chance(50) { (100, 200) } else { (0, 0) };
            let at = start * SECTOR as u64 + skip as u64;
            device.write_at(at, &bytes[skip..bytes.len() - cut]).expect("write");
            allowed.wrote(&device, start..start + count);
        }
        for crash in 0..20 {
            let crashed = device.crash(crash);
            assert_eq!(crashed.unsynced_sectors(), 0, "surviving sectors are durable");
            for number in 0..SECTORS {
                assert!(
                    allowed.has(number, &sector(&crashed, number)),
                    "seed {seed}, crash {crash}: sector {number} holds contents that were never written to it"
                );
            }
        }
    }
}

/// Returns the outcomes of many power losses after two un-synced writes of four sectors each.
fn outcomes() -> HashSet<Vec<u8>> {
    let device = SimDevice::new(8 * SECTOR as u64, 1);
    device.write_at(0, &[1; 4 * SECTOR]).expect("write");
    device.write_at(4 * SECTOR as u64, &[2; 4 * SECTOR]).expect("write");
    (0..2000).map(|seed| first_bytes(&device.crash(seed), 8)).collect()
}

#[test]
fn unsynced_writes_are_kept_lost_torn_and_reordered() {
    let outcomes = outcomes();
    let all = |wanted: [u8; 8]| outcomes.contains(wanted.as_slice());
    assert!(all([1, 1, 1, 1, 2, 2, 2, 2]), "both kept");
    assert!(all([0; 8]), "both lost");
    assert!(all([1, 1, 1, 1, 0, 0, 0, 0]), "the later one lost");
    assert!(all([0, 0, 0, 0, 2, 2, 2, 2]), "the later one kept alone");
    assert!(all([0, 1, 0, 1, 0, 0, 0, 0]), "torn with holes, the other lost");
    assert!(all([1, 1, 1, 1, 0, 2, 2, 0]), "torn behind a whole one");
}

#[test]
fn a_sector_is_sometimes_cut_inside() {
    let device = SimDevice::new(4096, 1);
    device.write_at(0, &[1; 4096]).expect("write");
    let is_cut = |seed| {
        let found = sector(&device.crash(seed), 0);
        found[0] == 1 && found[SECTOR - 1] == 0
    };
    let cut = (0..2000).filter(|&seed| is_cut(seed)).count();
    assert!((1..200).contains(&cut), "{cut} of 2000");
}

#[test]
fn an_older_unsynced_version_may_win_over_a_newer_one() {
    let device = SimDevice::new(4096, 1);
    for version in 1..=3 {
        device.write_at(0, &[version; SECTOR]).expect("write");
    }
    let found: HashSet<u8> = (0..500).map(|seed| sector(&device.crash(seed), 0)[511]).collect();
    assert_eq!(found, HashSet::from([0, 1, 2, 3]));
    device.sync().expect("sync");
    device.write_at(0, &[4; SECTOR]).expect("write");
    let found: HashSet<u8> = (0..500).map(|seed| sector(&device.crash(seed), 0)[511]).collect();
    assert_eq!(found, HashSet::from([3, 4]), "never older than the last sync");
}

#[test]
fn taking_a_crash_does_not_change_the_device() {
    let device = SimDevice::new(4096, 1);
    device.write_at(0, &[1; 4096]).expect("write");
    let crashed = device.crash(3);
    crashed.write_at(0, &[9; 4096]).expect("write");
    assert_eq!(first_bytes(&device, 8), [1; 8]);
    assert_eq!(device.unsynced_sectors(), 8);
    assert_eq!(first_bytes(&device.crash(3), 8), first_bytes(&device.crash(3), 8));
}

/// Repeats a run, and stops the machine at each of its writes and syncs once. Everything that was
/// synced before the stop must survive a power loss.
#[test]
fn the_machine_can_be_stopped_at_every_change() {
    let mut stops = 0;
    for stop_at in 1.. {
        let device = SimDevice::new(64 << 10, stop_at);
        device.stop_at(stop_at);
        let mut synced = 0;
        let run = (1..=10_u8).try_for_each(|step| {
            for half in 0..2 {
                device.write_at(u64::from(step) * 2048 + half * 1024, &[step; 1024])?;
            }
            device.sync()?;
            synced = step;
            io::Result::Ok(())
        });
        for seed in 0..10 {
            let crashed = device.crash(seed);
            for step in 1..=synced {
                let found = first_bytes(&crashed, 64)[step as usize * 4..][..4].to_vec();
                assert_eq!(found, [step; 4], "stop at {stop_at}, seed {seed}");
            }
        }
        match run {
            Ok(()) => break,
            Err(error) => assert!(Stopped::is(&error), "{error}"),
        }
        stops += 1;
        assert_eq!(device.counts().changes(), stop_at);
        assert!(device.is_stopped());
        assert!(Stopped::is(&device.read_at(0, &mut [0]).expect_err("stopped")));
        assert!(Stopped::is(&device.sync().expect_err("stopped")));
    }
    assert_eq!(stops, 30, "20 writes and 10 syncs");
}

#[test]
fn a_stopped_write_may_be_whole_or_missing() {
    let outcome = |seed| {
        let device = SimDevice::new(4096, seed);
        device.stop_at(1);
        device.write_at(0, &[1; 4096]).expect_err("stopped");
        device.write_at(0, &[2; 4096]).expect_err("stopped before");
        first_bytes(&device.image(), 8)
    };
    let outcomes: HashSet<Vec<u8>> = (0..5000).map(outcome).collect();
    assert!(outcomes.contains(&vec![0; 8]) && outcomes.contains(&vec![1; 8]));
    assert!(outcomes.len() > 20, "{} outcomes", outcomes.len());
    assert!(outcomes.iter().flatten().all(|&byte| byte < 2), "a call after the stop did something");
}
