//! Runs each installed system. It must start, answer, keep the data that its durability promises,
//! and leave nothing behind. A system that is not installed is skipped, with the reason.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use larder_client::{Client, Options};

use super::start_plan::StartPlan;
use super::*;
use crate::process::tree;
use crate::wire::Caller;
use crate::workload::Verb;

/// Returns a small sandbox for plans that are never started. Its directory does not exist.
pub(super) fn sandbox() -> Sandbox {
    Sandbox {
        dir: PathBuf::from("/sandbox"),
        memory: 64,
        threads: 2,
        connections: 50,
        disk: 256,
        io_threads: 16,
        value_max: 1024,
        page_cache: None,
        second_dir: None,
    }
}

/// Returns the command line of a plan.
pub(super) fn line(plan: &StartPlan) -> String {
    let words: Vec<&str> = plan.arguments().collect();
    format!("{} {}", plan.program.display(), words.join(" "))
}

/// Each test that starts systems holds this lock, so that a slow machine can start each system in
/// time.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn ids_are_unique_and_each_system_is_found_or_missing_with_advice() {
    let systems = catalogue();
    for (index, system) in systems.iter().enumerate() {
        assert!(systems[..index].iter().all(|other| other.id != system.id), "{}", system.id);
        if let Err(missing) = system.find() {
            assert!(!missing.why.is_empty() && !missing.install.is_empty(), "{missing:?}");
        }
    }
}

#[test]
fn only_systems_with_files_need_space() {
    let space = |id: &str| {
        let systems = catalogue();
        systems.iter().find(|system| system.id == id).map(|system| system.space(1000))
    };
    for id in ["larder", "memcached", "arcus", "redis", "mariadb-memory", "mongo"] {
        assert_eq!(space(id), Some([0, 0]), "{id}");
    }
    for id in ["larder-sync", "larder-flash", "memcached-extstore", "redis-everysec", "postgres"] {
        assert_eq!(space(id), Some([1000, 0]), "{id}");
    }
    assert_eq!(space("postgres-unlogged"), Some([1000, 0]));
    assert_eq!(space("larder-flash-2"), Some([500, 500]));
    assert_eq!(space("memcached-extstore-2"), Some([500, 500]));
    assert_eq!(space("larder-tiers"), Some([250, 750]));
}

#[test]
fn a_system_without_space_is_not_started() {
    let parent = std::env::temp_dir().join(format!("larder-space-{}", std::process::id()));
    let system = catalogue().into_iter().find(|system| system.id == "redis-always").unwrap();
    let Ok(found) = system.find() else { return println!("skipped: no Redis") };
    let sandbox = Sandbox { disk: u64::MAX, ..Sandbox::new(&parent, 64, 1, 10).unwrap() };
    let error = found.start(&sandbox).unwrap_err().to_string();
    assert!(error.contains("MiB are free"), "{error}");
    assert!(!sandbox.dir.exists());
    fs::remove_dir(parent).unwrap();
}

#[test]
fn larder() {
    try_out(&["larder", "larder-async", "larder-sync", "larder-flash"]);
    try_out(&["larder-flash-2", "larder-tiers"]);
}

#[test]
fn memcached() {
    try_out(&["memcached", "memcached-extstore", "memcached-extstore-2"]);
}

#[test]
fn arcus() {
    try_out(&["arcus", "arcus-async", "arcus-sync"]);
}

#[test]
fn pogocache() {
    try_out(&["pogocache"]);
}

#[test]
fn redis() {
    try_out(&["redis", "redis-everysec", "redis-always"]);
}

#[test]
fn valkey() {
    try_out(&["valkey", "valkey-everysec", "valkey-always"]);
}

#[test]
fn postgres() {
    try_out(&["postgres", "postgres-nofsync", "postgres-unlogged"]);
}

#[test]
fn mariadb() {
    try_out(&["mariadb-memory", "mariadb-innodb", "mariadb-activerecord"]);
}

#[test]
fn cassandra() {
    try_out(&["cassandra", "cassandra-periodic", "cassandra-grouped"]);
}

#[test]
fn mongo() {
    try_out(&["mongo"]);
}

#[test]
fn ferretdb() {
    try_out(&["ferretdb"]);
}

/// The environment variable that makes [`a_lab_to_be_killed`] start a server in the directory that
/// the variable names. Only [`a_killed_lab_leaves_nothing`] sets it, for a separate process.
const SACRIFICE: &str = "LARDER_BENCH_SACRIFICE_IN";

#[test]
#[ignore = "does nothing unless another test starts it"]
fn a_lab_to_be_killed() {
    let Some(parent) = std::env::var_os(SACRIFICE) else { return };
    let systems = catalogue();
    let found = ["postgres", "redis", "memcached"]
        .iter()
        .find_map(|id| systems.iter().find(|system| system.id == *id)?.find().ok());
    let Some(found) = found else { return println!("nothing to start") };
    let server = found.start(&Sandbox::new(parent.as_ref(), 64, 1, 10).unwrap()).unwrap();
    println!("{}:{:?}", found.system.id, tree::members(server.probe().leader()));
    loop {
        std::thread::park();
    }
}

/// A process that is killed when a test no longer needs it.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A killed lab must leave no process. The directory of its server may stay until the next lab
/// starts, which removes it.
#[test]
fn a_killed_lab_leaves_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let parent = std::env::temp_dir().join(format!("larder-killed-{}", std::process::id()));
    let mut lab = Command::new(std::env::current_exe().unwrap());
    lab.args(["--ignored", "--exact", "--nocapture", "lab::target::tests::a_lab_to_be_killed"]);
    let mut lab = Killed(lab.env(SACRIFICE, &parent).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines =
        BufReader::new(lab.0.stdout.take().unwrap()).lines().map(std::io::Result::unwrap);
    let Some(line) = lines.find(|line| line.contains("pid: ")) else {
        println!("skipped: there is no server to start");
        return;
    };
    let pids = line.split("pid: ").skip(1).map(|rest| rest.split(',').next().unwrap());
    let members: Vec<tree::Member> =
        pids.filter_map(|pid| tree::member(pid.parse().unwrap())).collect();
    assert!(!members.is_empty(), "{line}");
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
    drop(lab);
    while members.iter().any(tree::Member::is_running) {
        std::thread::yield_now();
    }
    let sandbox = Sandbox::new(&parent, 64, 1, 10).unwrap();
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 1, "the new directory alone");
    assert!(sandbox.dir.exists());
    fs::remove_dir_all(parent).unwrap();
}

fn try_out(ids: &[&str]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for system in catalogue().iter().filter(|system| ids.contains(&system.id)) {
        match system.find() {
            Ok(found) => live(&found),
            Err(missing) => {
                println!("skipped {}: {} ({})", system.id, missing.why, missing.install);
            }
        }
    }
}

/// Starts a server, kills and restarts it, stops and restarts it, and removes it.
fn live(found: &Found) {
    let system = &found.system;
    let parent = std::env::temp_dir().join(format!("larder-try-{}", std::process::id()));
    let sandbox = Sandbox::new(&parent, 256, 2, 50).unwrap();
    let dir = sandbox.dir.clone();
    let begun = Instant::now();
    let mut server = found.start(&sandbox).unwrap_or_else(|error| panic!("{}: {error}", system.id));
    let took = begun.elapsed();
    println!("{} {}: up in {:.2} s", system.id, server.version, took.as_secs_f64());
    assert!(server.version.contains(|byte: char| byte.is_ascii_digit()), "{}", server.version);
    assert!(server.settings.iter().all(|line| !line.is_empty()));

    if let Some(wire) = server.wire() {
        wire.prepare(&server.address).unwrap();
        wire.prepare(&server.address).expect("a second preparation changes nothing");
    }
    store_and_read(&server);
    let probe = server.probe();
    let sample = probe.sample().unwrap();
    assert!(sample.rss > 1 << 20 && sample.cpu_ns > 0, "{sample:?}");
    store_and_read(&server);
    assert!(probe.sample().unwrap().cpu_ns >= sample.cpu_ns);

    server.kill();
    assert!(probe.sample().is_err());
    let begun = Instant::now();
    server.start_again().unwrap_or_else(|error| panic!("{}: {error}", system.id));
    println!("{}: up again in {:.2} s", system.id, begun.elapsed().as_secs_f64());
    if system.durability == Durability::Sync {
        assert_eq!(read(&server, b"kept"), Some(b"safe".to_vec()), "{}", system.id);
    }
    assert!(server.stop(Duration::from_secs(20)), "{} had to be killed", system.id);
    server.start_again().unwrap_or_else(|error| panic!("{}: {error}", system.id));

    let members = tree::members(server.probe().leader());
    assert!(!members.is_empty());
    drop(server);
    assert!(members.iter().all(|member| !member.is_running()), "{members:?}");
    assert!(!dir.exists());
    let _ = fs::remove_dir(parent);
}

/// Stores and reads values of several lengths, and increments a counter.
fn store_and_read(server: &Server) {
    let long = vec![b'x'; 1000];
    let Some(wire) = server.wire() else {
        let mut client = client(server);
        client.set(b"a", &long, 0, 0).unwrap();
        client.set(b"kept", b"safe", 0, 0).unwrap();
        assert_eq!(client.get(b"a").unwrap().map(|item| item.value), Some(long));
        client.set(b"#n", b"0", 0, 0).unwrap();
        assert_eq!(client.incr(b"#n", 1).unwrap(), Some(1));
        return;
    };
    let counts = wire.speaks(Verb::Incr);
    let mut caller = Caller::connect(&server.address, wire).unwrap();
    caller.set(b"a", b"old").unwrap();
    caller.set(b"a", &long).unwrap();
    caller.set(b"kept", b"safe").unwrap();
    assert_eq!(caller.get(b"a").unwrap(), Some(long));
    assert_eq!(caller.get(b"missing").unwrap(), None);
    if counts {
        caller.reset_counter(b"#n").unwrap();
        assert_eq!((caller.incr(b"#n").unwrap(), caller.incr(b"#n").unwrap()), (1, 2));
    }
}

fn read(server: &Server, key: &[u8]) -> Option<Vec<u8>> {
    match server.wire() {
        None => client(server).get(key).unwrap().map(|item| item.value),
        Some(wire) => Caller::connect(&server.address, wire).unwrap().get(key).unwrap(),
    }
}

fn client(server: &Server) -> Client {
    Client::connect_to(&server.address, Options::default()).unwrap()
}
