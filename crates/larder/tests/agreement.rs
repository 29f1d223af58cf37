//! Checks that the next start does what `larder check` predicts. Once a start has reported damage
//! and served nevertheless, neither a check nor a later start reports that damage again. Runs the
//! real binary.

mod harness;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{BINARY, Folder, Process, Server, connect, serve};

/// The size of each store in these tests, in the form of `--store`. With the default memory limit,
/// a new store has segments of 512 KiB.
const SIZE: &str = ":16MB";
/// Length in bytes of a value that gets its own segment.
const LARGE: usize = 400_000;

/// The damage that a test does to a store.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    /// A record of a commit that a later commit proves to have been durable.
    Record,
    /// A record of a segment that was sealed by its only commit.
    Sealed,
    /// A record of a segment with a summary.
    Summarized,
    /// The value of a jumbo.
    LargeValue,
    /// The second half of the store is missing.
    Cut,
}

fn serving(store: &Path, size: &str, flags: &[&str]) -> Command {
    let mut command = serve();
    command.arg("--store").arg(format!("{}{size}", store.display())).args(flags);
    command
}

fn set(server: &Server, key: &str, letter: &str, length: usize) {
    let value = letter.repeat(length);
    server.ask(&format!("set {key} 0 0 {length}\r\n{value}\r\n"), "STORED\r\n");
}

/// Runs a server that creates a store in the directory and writes items. Then stops the server
/// cleanly, or kills it if `clean` is false.
fn store(folder: &Folder, clean: bool) -> PathBuf {
    let path = folder.0.join(if clean { "clean" } else { "killed" });
    let server = Server::spawn(&mut serving(&path, SIZE, &[]));
    for number in 0..150 {
        set(&server, &format!("early{number}"), "e", 20_000);
    }
    server.until_durable();
    for (key, length) in [("large", LARGE), ("one", 5000), ("two", 5000), ("three", 5000)] {
        set(&server, key, "v", length);
        // Each item gets its own commit, so that the next commit proves it to have been durable.
        server.until_durable();
    }
    if clean {
        server.stop()
    } else {
        server.kill()
    }
    path
}

/// Overwrites bytes in the value of a key.
fn spoil(store: &Path, key: &str, letter: &str) {
    let bytes = fs::read(store).expect("the store");
    let item = format!("{key}{}", letter.repeat(20));
    let at = bytes.windows(item.len()).position(|bytes| bytes == item.as_bytes());
    let at = at.expect("an item") as u64 + 1000;
    let file = fs::OpenOptions::new().write(true).open(store).expect("the store");
    file.write_all_at(b"!", at).expect("a writable file");
}

fn harm(store: &Path, harm: Harm) {
    match harm {
        Harm::Nothing => {}
        Harm::Record => spoil(store, "two", "v"),
        Harm::Sealed => spoil(store, "early3", "e"),
        Harm::Summarized => spoil(store, "early70", "e"),
        Harm::LargeValue => spoil(store, "large", "v"),
        Harm::Cut => {
            let file = fs::OpenOptions::new().write(true).open(store).expect("the store");
            file.set_len(8 << 20).expect("a writable file");
        }
    }
}

/// Runs a check, and returns its exit code and report.
fn checked(store: &Path) -> (Option<i32>, serde_json::Value) {
    let output = Command::new(BINARY).args(["check", "--json"]).arg(store).output();
    let output = output.expect("the binary starts");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    (output.status.code(), report)
}

/// Returns true if the server starts to serve clients. Kills the server in that case.
fn serves(command: &mut Command) -> bool {
    let mut process = Process::spawn(command);
    let mut log = String::new();
    loop {
        let read = std::io::BufRead::read_line(&mut process.log, &mut log);
        if read.expect("the log is text") == 0 {
            assert_eq!(process.child.wait().expect("it ends").code(), Some(3), "{log}");
            return false;
        }
        if log.contains("event=serving") {
            return true;
        }
    }
}

#[test]
fn a_check_predicts_which_starts_succeed() {
    let folder = Folder::new("agreement");
    let modes: [(&str, &[&str]); 3] = [
        ("evict", &[]),
        ("refuse", &["--when-full", "refuse"]),
        ("accept_damage", &["--when-full", "refuse", "--accept-damage"]),
    ];
    let mut refusals = 0;
    for clean in [true, false] {
        let original = store(&folder, clean);
        let copy = folder.0.join("copy");
        for kind in [
            Harm::Nothing,
            Harm::Record,
            Harm::Sealed,
            Harm::Summarized,
            Harm::LargeValue,
            Harm::Cut,
        ] {
            for (mode, flags) in modes {
                fs::copy(&original, &copy).expect("a copy");
                harm(&copy, kind);
                let (code, report) = checked(&copy);
                let damaged = !matches!(kind, Harm::Nothing);
                assert_eq!(code, Some(if damaged { 2 } else { 0 }), "{kind:?}: {report}");
                // A start without a given size keeps the store's size. If the second half of the
                // store is missing, no start may serve and replace that half by zeros.
                for size in ["", SIZE] {
                    let start = serves(&mut serving(&copy, size, flags));
                    refusals += u32::from(!start);
                    let told = &report["starts"][mode];
                    assert_eq!(told, start, "clean {clean}, {kind:?}, {mode} {size}: {report}");
                    if start {
                        break;
                    }
                }
            }
        }
    }
    assert!(refusals > 10, "{refusals} refusals");
}

#[test]
fn accepted_damage_is_remembered_and_new_damage_is_reported() {
    let folder = Folder::new("accepted");
    let store = store(&folder, false);
    harm(&store, Harm::Record);
    let refuse = ["--when-full", "refuse"];
    let accept = ["--when-full", "refuse", "--accept-damage"];
    assert!(!serves(&mut serving(&store, "", &refuse)));
    assert_eq!(checked(&store).0, Some(2));

    let server = Server::spawn(&mut serving(&store, "", &accept));
    assert!(server.recovered.contains("damaged_records=1"), "{}", server.recovered);
    server.kill();
    // Starts the server again without `--accept-damage`, as a service manager would. These starts
    // must succeed, because the damage is already accepted.
    for _ in 0..2 {
        let (code, report) = checked(&store);
        assert_eq!(code, Some(0), "{report}");
        assert!(
            report["notes"][0].as_str().expect("a note").contains("accepted this damage"),
            "{report}"
        );
        let server = Server::spawn(&mut serving(&store, "", &refuse));
        assert!(server.recovered.contains("damaged_records=0"), "{}", server.recovered);
        assert!(server.recovered.contains("accepted_records=1"), "{}", server.recovered);
        let mut client = connect(&server.address);
        harness::ask(&mut client, "get two\r\nmg one k\r\n", "END\r\nHD kone\r\n");
        server.kill();
    }
    spoil(&store, "three", "v");
    assert_eq!(checked(&store).0, Some(2));
    assert!(!serves(&mut serving(&store, "", &refuse)), "this is other damage");
    // With `--when-full evict` a start needs no `--accept-damage`. Such a start reports the damage,
    // remembers it and serves.
    assert!(serves(&mut serving(&store, "", &[])));
    assert_eq!(checked(&store).0, Some(0));
    assert!(serves(&mut serving(&store, "", &refuse)));
}
