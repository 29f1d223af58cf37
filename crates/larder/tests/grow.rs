//! `larder ctl store`: growing and draining devices while clients are served. Runs the real binary.

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use harness::{BINARY, Folder, Process, Server, connect, serve};

const MIB: u64 = 1 << 20;
/// Length of a value in bytes.
const VALUE: usize = 100_000;

/// Runs `larder ctl`, and returns its exit code and output.
fn ctl(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(BINARY);
    command.args(["ctl", "--server", &server.address]).args(arguments);
    let output = command.output().expect("the binary starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

fn refused(server: &Server, arguments: &[&str], reason: &str) {
    let (code, said) = ctl(server, arguments);
    assert!(code != Some(0) && said.contains(reason), "{arguments:?}: {code:?} {said}");
}

fn done(server: &Server, arguments: &[&str], saying: &str) {
    let (code, said) = ctl(server, arguments);
    assert!(code == Some(0) && said.contains(saying), "{arguments:?}: {code:?} {said}");
}

/// Sets keys from number `from` on until one is refused, and returns the refused number.
fn fill(server: &Server, from: u32) -> u32 {
    let mut client = connect(&server.address);
    let mut lines = BufReader::new(client.try_clone().expect("a descriptor"));
    for key in from.. {
        let value = vec![b'a' + (key % 26) as u8; VALUE];
        client.write_all(format!("set {key} 0 0 {VALUE}\r\n").as_bytes()).expect("it reads");
        client.write_all(&value).expect("it reads");
        client.write_all(b"\r\n").expect("it reads");
        let mut line = String::new();
        lines.read_line(&mut line).expect("it answers");
        if line != "STORED\r\n" {
            assert!(line.contains("store is full"), "{line}");
            return key;
        }
    }
    unreachable!("a store has an end")
}

fn check(server: &Server, keys: u32) {
    let mut client = connect(&server.address);
    for key in 0..keys {
        let value = String::from((b'a' + (key % 26) as u8) as char).repeat(VALUE);
        let found = format!("VALUE {key} 0 {VALUE}\r\n{value}\r\nEND\r\n");
        harness::ask(&mut client, &format!("get {key}\r\n"), &found);
    }
}

fn start(stores: &[&str], more: &[&str]) -> Server {
    let mut command = serve();
    for store in stores {
        command.args(["--store", store]);
    }
    Server::spawn(command.args(["--when-full", "refuse"]).args(more))
}

#[test]
fn a_full_store_grows_while_it_serves_and_stays_so_with_the_old_command_line() {
    let folder = Folder::new("grow");
    let path = folder.0.join("store").display().to_string();
    let given = format!("{path}:32MB");
    let mut server = start(&[&given], &["--durability", "sync"]);
    assert_eq!(server.stat("larder_lane_0_capacity"), (32 * MIB).to_string());
    let full = fill(&server, 0);
    done(&server, &["store", "grow", "64MB"], "has 67108864 bytes now");
    assert_eq!(server.stat("larder_lane_0_capacity"), (64 * MIB).to_string());
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 64 * MIB);
    let end = fill(&server, full);
    assert!(end > full * 3 / 2, "{full} had room, and now {end}");
    check(&server, end);
    let grown = server.process.event("store_grown");
    assert!(grown.contains(&path) && grown.contains("67108864"), "{grown}");
    server.kill();

    // The second start's command line still has the old size. The store must keep its new one.
    let mut command = serve();
    command.args(["--store", &given, "--when-full", "refuse"]);
    let mut process = Process::spawn(&mut command);
    let told = process.event("store_larger_than_asked");
    assert!(told.contains("bytes=67108864") && told.contains("asked=33554432"), "{told}");
    let server = listening(process);
    check(&server, end);
    assert_eq!(server.stat("larder_lane_0_capacity"), (64 * MIB).to_string());
    done(&server, &["store", "grow", &path, "80MB"], "has 83886080 bytes now");
    let last = fill(&server, end);
    assert!(last > end);
    server.stop();
    let output = Command::new(BINARY).args(["check", &path]).output().expect("the binary starts");
    let report = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains(&format!("{last} items")), "{report}");
    let server = start(&[&path], &[]);
    check(&server, last);
    server.stop();
}

#[test]
fn a_refused_growth_names_the_reason_and_the_server_continues() {
    let folder = Folder::new("grow-refused");
    let path = folder.0.join("store").display().to_string();
    let server = start(&[&format!("{path}:32MB")], &[]);
    server.ask("set k 0 0 1\r\nv\r\n", "STORED\r\n");
    refused(
        &server,
        &["store", "grow", "16MB"],
        "it has 33554432 bytes, and a store does not shrink",
    );
    refused(
        &server,
        &["store", "grow", "elsewhere", "64MB"],
        &format!("no device of this name, only {path}"),
    );
    refused(
        &server,
        &["store", "grow", "7", "64MB"],
        &format!("no device of this name, only {path}"),
    );
    refused(&server, &["store", "grow", "100TB"], "restart with --store PATH:SIZE");
    refused(&server, &["store", "grow", "much"], "is not a size");
    refused(&server, &["store", "grow", "1MB"], "a store has at least 2MB");
    refused(&server, &["store", "grow"], "SIZE");
    done(&server, &["store", "grow", "32MB"], "has 33554432 bytes now");
    server.ask("store grow\r\n", "ERROR\r\n");
    server.ask("store grow x\r\n", "ERROR\r\n");
    server.ask("store grow -1\r\n", "ERROR\r\n");
    server.ask("store shrink 5\r\n", "ERROR\r\n");
    server.ask("get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 32 * MIB);
    server.stop();

    let server = listening(Process::spawn(&mut serve()));
    refused(&server, &["store", "grow", "64MB"], "there is no store");
    server.stop();
}

/// Waits until the server listens and serves.
fn listening(mut process: Process) -> Server {
    let line = process.event("listening");
    let address = line.rsplit_once("address=").expect("it says where").1.to_owned();
    process.event("serving");
    Server { process, address, recovered: String::new() }
}

#[test]
fn growing_one_of_several_devices_requires_its_name() {
    let folder = Folder::new("grow-several");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let given = |name: &str, more: &str| format!("{}{more}", path(name));
    let server = start(&[&given("a", ":32MB"), &given("b", ":32MB")], &[]);
    refused(&server, &["store", "grow", "64MB"], "the store has several devices, name one");
    done(&server, &["store", "grow", &path("b"), "64MB"], "has 67108864 bytes now");
    done(&server, &["store", "grow", "0", "48MB"], "has 50331648 bytes now");
    let capacity = |lane: u32| server.stat(&format!("larder_lane_{lane}_capacity"));
    assert_eq!([capacity(0), capacity(1)], [(48 * MIB).to_string(), (64 * MIB).to_string()]);
    server.stop();

    let tiers = [given("fast", ":16MB@fast"), given("big", ":32MB@big")];
    let server = start(&[&tiers[0], &tiers[1]], &[]);
    refused(&server, &["store", "grow", &path("fast"), "64MB"], &path("big"));
    let full = fill(&server, 0);
    done(&server, &["store", "grow", &path("big"), "96MB"], "has 100663296 bytes now");
    let end = fill(&server, full);
    assert!(end > full * 3 / 2);
    server.until_durable();
    server.kill();
    let server = start(&[&tiers[0], &tiers[1]], &[]);
    check(&server, end);
    server.stop();
}

#[test]
fn a_device_is_drained() {
    let folder = Folder::new("drain");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let given = |name: &str| format!("{}:32MB", path(name));
    let server = start(&[&given("a"), &given("b")], &[]);
    server.ask("set k 0 0 1\r\nv\r\n", "STORED\r\n");
    done(&server, &["store", "drain", &path("a")], "is drained: take it out of --store");
    refused(&server, &["store", "drain", &path("b")], "the only device that is left");
    refused(&server, &["store", "grow", &path("a"), "64MB"], &format!("only {}", path("b")));
    server.stop();
    let server = start(&[&given("b")], &[]);
    server.ask("get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    server.stop();
}

#[test]
fn disable_control_forbids_growth_until_a_reload_allows_it() {
    let folder = Folder::new("control");
    let (store, file) = (folder.0.join("store"), folder.0.join("larder.toml"));
    let forbid = |forbidden: bool| {
        std::fs::write(&file, format!("disable-control = {forbidden}\n")).expect("it is written");
    };
    forbid(true);
    let mut command = serve();
    command.arg("--store").arg(format!("{}:32MB", store.display())).arg("--config").arg(&file);
    let mut server = Server::spawn(&mut command);
    refused(&server, &["store", "grow", "64MB"], "store commands not allowed");
    server.ask("cache_memlimit 128\r\n", "CLIENT_ERROR cache_memlimit not allowed\r\n");
    assert_eq!(server.stat("larder_lane_0_capacity"), (32 * MIB).to_string());
    forbid(false);
    server.process.signal("-HUP");
    let reloaded = server.process.event("reloaded");
    assert!(reloaded.contains("disable-control"), "{reloaded}");
    done(&server, &["store", "grow", "64MB"], "has 67108864 bytes now");
    server.ask("cache_memlimit 128\r\n", "OK\r\n");
    server.stop();
}
