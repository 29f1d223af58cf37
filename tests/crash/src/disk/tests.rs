//! Tests of the disk through the kernel: a separate program writes, the disk loses power, and
//! another program reads.
//!
//! The programs are `dd`, `sync` and `cat`, because a thread of this process must not wait for a
//! file system that this process serves. Where FUSE cannot be used, the tests print SKIPPED and
//! end. The crash test itself then reports SKIPPED, too.

use std::process::{Command, Stdio};

use super::*;

fn mounted(name: &str) -> Option<Disk> {
    let directory =
        std::env::temp_dir().join(format!("larder-crash-{name}-{}", std::process::id()));
    match Disk::mount(&directory, 1) {
        Ok(disk) => Some(disk),
        Err(error) => {
            println!("SKIPPED: cannot mount a FUSE file system: {error}");
            None
        }
    }
}

fn gone(disk: Disk) {
    let directory = disk.directory().to_owned();
    drop(disk);
    std::fs::remove_dir(directory).unwrap();
}

/// Writes `blocks` blocks of `source` from block number `at` on, and syncs the file if `synced` is
/// true. Returns true if `dd` succeeded.
fn write(disk: &Disk, source: &str, at: u32, blocks: u32, synced: bool) -> bool {
    let mut command = Command::new("dd");
    command.arg(format!("if={source}")).arg(format!("of={}/store", disk.directory().display()));
    command.args(["bs=4096", &format!("seek={at}"), &format!("count={blocks}")]);
    command.arg(if synced { "conv=notrunc,fdatasync" } else { "conv=notrunc" });
    command.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn sync_directory(disk: &Disk) {
    let status = Command::new("sync").arg(disk.directory()).status().unwrap();
    assert!(status.success());
}

fn read(disk: &Disk) -> Option<Vec<u8>> {
    let output = Command::new("cat").arg(disk.directory().join("store")).output().unwrap();
    output.status.success().then_some(output.stdout)
}

#[test]
fn synced_bytes_survive_a_cut_and_other_bytes_may_be_lost() {
    let Some(mut disk) = mounted("cut") else { return };
    assert!(write(&disk, "/dev/urandom", 0, 300, true));
    sync_directory(&disk);
    let kept = read(&disk).unwrap();
    assert_eq!(kept.len(), 300 * 4096);
    assert!(write(&disk, "/dev/urandom", 300, 100, false));
    assert_eq!(disk.unsynced(), 100 * 4096);
    let all = read(&disk).unwrap();
    disk.cut(Cut::Sectors).unwrap();
    let after = read(&disk).unwrap();
    assert_eq!(after[..kept.len()], kept[..]);
    let (mut present, mut lost) = (0, after.len().abs_diff(all.len()) / 512);
    for (sector, was) in after[kept.len()..].chunks(512).zip(all[kept.len()..].chunks(512)) {
        assert!(
            sector == was || sector.iter().all(|byte| *byte == 0),
            "a sector of neither version"
        );
        *if sector == was { &mut present } else { &mut lost } += 1;
    }
    assert_eq!(present + lost, 800);
    assert_eq!(disk.unsynced(), 0);
    gone(disk);
}

#[test]
fn a_name_that_was_not_synced_can_be_lost() {
    let Some(mut disk) = mounted("name") else { return };
    assert!(write(&disk, "/dev/zero", 0, 1, true));
    disk.cut(Cut::Nothing).unwrap();
    assert_eq!(read(&disk), None);
    assert!(write(&disk, "/dev/zero", 0, 1, true));
    sync_directory(&disk);
    disk.cut(Cut::Nothing).unwrap();
    assert_eq!(read(&disk), Some(vec![0; 4096]));
    gone(disk);
}

#[test]
fn faults_reach_the_program_and_end_when_taken_back() {
    let Some(disk) = mounted("faults") else { return };
    assert!(write(&disk, "/dev/zero", 0, 8, true));
    let before = disk.counts();
    disk.set_faults(Faults { sync_error: Some(libc::EIO), ..Faults::default() });
    assert!(write(&disk, "/dev/zero", 0, 8, false));
    assert!(!write(&disk, "/dev/zero", 0, 8, true));
    disk.set_faults(Faults { write_error: Some(libc::ENOSPC), ..Faults::default() });
    assert!(!write(&disk, "/dev/zero", 0, 8, false));
    disk.set_faults(Faults::default());
    assert!(write(&disk, "/dev/zero", 0, 8, true));
    // If fdatasync fails, dd also tries fsync, so at least two syncs have failed.
    assert!(disk.counts().failed - before.failed >= 2);
    gone(disk);
}

#[test]
fn a_held_sync_ends_when_released_and_reads_go_on_meanwhile() {
    let Some(disk) = mounted("held") else { return };
    assert!(write(&disk, "/dev/zero", 0, 8, true));
    disk.set_faults(Faults { hold_syncs: true, ..Faults::default() });
    std::thread::scope(|scope| {
        let held = scope.spawn(|| write(&disk, "/dev/urandom", 0, 8, true));
        while disk.unsynced() < 8 * 4096 {
            std::thread::yield_now();
        }
        assert_eq!(read(&disk).map(|bytes| bytes.len()), Some(8 * 4096));
        assert!(!held.is_finished());
        disk.set_faults(Faults::default());
        assert!(held.join().unwrap());
    });
    assert_eq!(disk.unsynced(), 0);
    gone(disk);
}
