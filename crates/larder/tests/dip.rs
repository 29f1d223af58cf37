//! `larder bench dip`, which shows whether a server ever pauses under load. It runs the real server
//! here. It must report every second of a steady run, and must detect a server that stalls for a
//! second.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use harness::{BINARY, Folder};
use serde_json::Value;

/// Runs `larder bench dip` for `seconds` with a small store, and returns its JSON report. After the
/// first measured second, calls `meanwhile` with the process id of `larder bench`.
fn dip(name: &str, seconds: u32, meanwhile: impl FnOnce(u32)) -> Value {
    let folder = Folder::new(name);
    let (json, html) = (folder.0.join("dip.json"), folder.0.join("dip.html"));
    let mut command = Command::new(BINARY);
    command.args("bench dip --rounds 1 --noise-time 1 --rate 2000 --connections 4".split(' '));
    command.args("--keys 2000 --store-size 64MB --memory 64".split(' '));
    command.arg("--time").arg(seconds.to_string()).arg("--dir").arg(&folder.0);
    command.arg("--json").arg(&json).arg("--html").arg(&html);
    let mut bench =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut lines = BufReader::new(bench.stderr.take().expect("stderr is piped")).lines();
    let mut line = || lines.next().map(|line| line.expect("the progress is text"));
    // Skips to the header of the measured run. One line per second follows it.
    while line().expect("it goes on").split(',').next() != Some("open loop") {}
    let first = line().expect("it goes on");
    assert!(first.trim_start().starts_with("1 s"), "{first}");
    meanwhile(bench.id());
    while line().is_some() {}
    assert!(bench.wait().expect("it ends").success());
    let page = fs::read_to_string(html).expect("the page was written");
    assert!(page.contains("<svg") && page.contains("larder, round 1"));
    let left = fs::read_dir(&folder.0).expect("readable directory").count();
    assert_eq!(left, 2, "the store must be gone");
    serde_json::from_slice(&fs::read(json).expect("the report was written")).expect("JSON")
}

/// Returns the process id of the server, which is a child of process `pid`. That process also has
/// another child, a watcher that kills the server if `pid` ends first.
fn server_of(pid: u32) -> u32 {
    let binary = fs::canonicalize(BINARY).expect("the binary has a path");
    let runs_binary =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).ok() == Some(binary.clone());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let mut children = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    children.find(runs_binary).expect("the server is a child of the lab")
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

#[test]
fn every_second_is_reported() {
    let report = &dip("dip-steady", 3, |_| ())["results"];
    let run = &report["runs"][0];
    let seconds = run["load"]["per_second"].as_array().expect("a series");
    assert_eq!((seconds.len(), run["noise"]["per_second"].as_array().unwrap().len()), (3, 1));
    let answered: f64 = seconds.iter().map(|s| s["requests_per_second"].as_f64().unwrap()).sum();
    let late = run["load"]["answered_late"].as_f64().unwrap();
    assert_eq!(answered + late, run["load"]["total"]["requests"].as_f64().unwrap());
    assert_eq!(run["load"]["total"]["requests"], 6000);
    assert_eq!(run["store_bytes"], 64 << 20);
    assert!(run["turnovers"].as_f64().unwrap() > 0.0, "{run}");
}

#[test]
fn a_stalled_server_fails_the_verdict() {
    let report = &dip("dip-stall", 5, |lab| {
        let server = server_of(lab);
        signal(server, "-STOP");
        // The report must show a stall of this length.
        thread::sleep(Duration::from_secs(2));
        signal(server, "-CONT");
    })["results"];
    let (verdict, steadiness) =
        (&report["outcomes"][0]["verdict"], &report["runs"][0]["steadiness"]);
    assert_eq!(verdict["holds"], false, "{verdict}");
    assert!(steadiness["delivered_ratio"].as_f64().unwrap() < 0.6, "{steadiness}");
    assert!(steadiness["worst_p999_us"].as_f64().unwrap() > 900_000.0, "{steadiness}");
}
