//! `larder bench limit --device` measures a responder, a server of the benchmarks that only sends
//! replies. The responder must answer each key after a read of the device, and must not change the
//! device.

mod harness;

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Output};

use harness::{BINARY, Folder};
use serde_json::Value;

fn limit(device: &str, io: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.args("bench limit --requests 300 --warm-up 0 --connections 3 --multi-get 7".split(' '));
    command.args([
        "--quiet",
        "--json",
        "-",
        "--server-threads",
        "2",
        "--io",
        io,
        "--device",
        device,
    ]);
    command.output().expect("the binary starts")
}

#[test]
fn every_key_is_answered_after_a_read() {
    let folder = Folder::new("limit");
    let path = folder.0.join("device");
    let bytes = vec![b'd'; 4 << 20];
    fs::write(&path, &bytes).expect("a temporary directory");
    for io in ["auto", "epoll"] {
        let output = limit(&path.display().to_string(), io);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let json = &text[text.find('{').expect("a report")..];
        let report: Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(report["results"]["total"]["hits"], 2100, "{text}");
        assert_eq!(report["results"]["total"]["misses"], 0);
        assert_eq!(report["schema"], 1);
        fs::write(folder.0.join(format!("{io}.json")), json).expect("room");
    }
    assert!(fs::read(&path).expect("it is there") == bytes, "the device was changed");

    let table = |other: &str| {
        let files = ["auto.json", other].map(|name| folder.0.join(name));
        let output = Command::new(BINARY).args(["bench", "table"]).args(files).output();
        let output = output.expect("the binary starts");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).expect("text"))
    };
    let (done, text) = table("epoll.json");
    assert!(done && text.contains("| requests/s (1) |"), "{text}");
    let load = text.lines().filter(|line| line.starts_with("| get=1, closed loop | 3 | 1 |"));
    assert_eq!(load.count(), 1, "both runs are one case: {text}");
    assert!(text.contains("`larder bench limit --requests 300"), "{text}");
    let (done, text) = table("device");
    assert!(!done && text.contains("device is not a result file"), "{text}");
}

#[test]
fn parts_of_a_device_that_were_never_written_are_reported() {
    let folder = Folder::new("limit-sparse");
    let path = folder.0.join("device");
    let file = fs::File::create(&path).expect("a temporary directory");
    file.set_len(16 << 20).expect("room");
    let direct = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    if direct.is_err() {
        return; // Without O_DIRECT the reads of the device cannot be counted.
    }
    let told = |written: usize| {
        file.write_all_at(&vec![1; written], 0).expect("room");
        file.sync_all().expect("it is written");
        let output = limit(&path.display().to_string(), "auto");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        errors
    };
    let errors = told(4 << 20);
    assert!(errors.contains("REACH NO DEVICE: 192 of 256 blocks"), "{errors}");
    let errors = told(16 << 20);
    assert!(!errors.contains("REACH NO DEVICE"), "{errors}");
}

#[test]
fn a_path_without_a_device_is_refused_and_unchanged() {
    let folder = Folder::new("limit-none");
    let missing = folder.0.join("missing");
    for path in [&missing, &folder.0] {
        let output = limit(&path.display().to_string(), "auto");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains("limit-none"), "{errors}");
    }
    assert_eq!(fs::read_dir(&folder.0).expect("readable directory").count(), 0);
}
