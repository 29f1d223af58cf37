//! Scenarios that do not need the test's disk. If the disk can be mounted, they also cut the power.

use std::thread;
use std::time::{Duration, Instant};

use super::{Setup, becomes, expect, wrong};
use crate::client::ClientPlan;
use crate::rounds::LARGEST;
use crate::server::Durability;
use crate::workload::Sizes;
use crate::world::{ASYNC_SLACK, End, Failure, Load};

/// Size in MiB of a store that is small enough for a scenario to fill it.
const SMALL_STORE_MIB: u64 = 64;
/// The longest time until the space of deleted items can be used again.
const CLEANING: Duration = Duration::from_secs(10);

/// The bursts: number of writers, unanswered requests per writer, requests per writer, and lengths
/// of values. The first burst is a single request.
const BURSTS: [(u16, usize, u64, Sizes); 6] = [
    (1, 1, 1, Sizes::Large),
    (1, 4, 12, Sizes::Large),
    (2, 1, 20, Sizes::Borders),
    (40, 4, 25, Sizes::Small),
    (1, 100, 300, Sizes::Small),
    (10, 8, 40, Sizes::Mixed),
];

pub(super) fn burst(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    world.idle = true;
    for (number, (writers, window, requests, sizes)) in BURSTS.into_iter().enumerate() {
        for end in [End::Kill, setup.hard_end()] {
            let server = world.start()?;
            let client = ClientPlan {
                seed: setup.seed + number as u64,
                writers,
                readers: 1,
                keys: 30,
                sizes,
                largest: LARGEST,
                window,
                requests,
                ..ClientPlan::default()
            };
            let mut clients = world.clients(&server, &Load { processes: 1, client })?;
            clients.wait(Duration::from_secs(20))?;
            if setup.plan.durability == Durability::Async {
                // After one sync interval everything must be durable, even if no further request
                // arrives.
                thread::sleep(setup.plan.sync_interval + ASYNC_SLACK + Duration::from_millis(50));
            }
            world.end(server, end)?;
            world.collect(clients, false)?;
        }
    }
    let server = world.start()?;
    Ok(world.end(server, End::Terminate)?)
}

pub(super) fn flush_and_expiry(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let server = world.start()?;
    let mut talk = server.connect()?;
    for key in ["flushed", "again"] {
        talk.expect(&format!("set {key} 0 0 3\r\nold"), "STORED")?;
    }
    talk.expect("flush_all", "OK")?;
    talk.expect("set again 0 0 3\r\nnew", "STORED")?;
    // The newer values expire sooner. When they do, the older values must not reappear.
    for (key, old) in [("short", "old"), ("count", "500")] {
        talk.expect(&format!("set {key} 0 0 3\r\n{old}"), "STORED")?;
        talk.expect(&format!("set {key} 0 1 1\r\n7"), "STORED")?;
    }
    talk.expect("set touched 0 0 3\r\nold", "STORED")?;
    talk.expect("touch touched 1", "TOUCHED")?;
    talk.expect("set gone 0 0 3\r\nold", "STORED")?;
    talk.expect("delete gone", "DELETED")?;
    talk.expect("set kept 0 100 3\r\nnew", "STORED")?;
    world.end(server, setup.hard_end())?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    expect("flushed, after a crash", talk.get("flushed")?, None)?;
    expect("stored after flush_all", talk.get("again")?, Some("new"))?;
    expect("deleted", talk.get("gone")?, None)?;
    for key in ["short", "count", "touched"] {
        let patience = Duration::from_secs(5);
        becomes("an item expires", patience, || Ok(talk.get(key)?.is_none()))?;
    }
    world.end(server, End::Kill)?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    for key in ["short", "count", "touched", "gone", "flushed"] {
        expect(&format!("{key}, after another crash"), talk.get(key)?, None)?;
    }
    expect("kept", talk.get("kept")?, Some("new"))?;
    // A crash must not cancel a delayed flush.
    talk.expect("flush_all 2", "OK")?;
    world.end(server, setup.hard_end())?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    let patience = Duration::from_secs(6);
    becomes("a delayed flush_all happens after a crash", patience, || {
        Ok(talk.get("kept")?.is_none())
    })?;
    expect("flushed later", talk.get("again")?, None)?;
    talk.expect("set later 0 0 3\r\nnew", "STORED")?;
    world.end(server, setup.hard_end())?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    for key in ["kept", "again", "short", "count", "touched", "gone", "flushed"] {
        expect(&format!("{key}, after the delayed flush and a crash"), talk.get(key)?, None)?;
    }
    expect("stored after the delayed flush", talk.get("later")?, Some("new"))?;
    Ok(world.end(server, End::Terminate)?)
}

pub(super) fn stalled_client(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let server = world.start()?;
    let mut stalled = server.connect()?;
    stalled.raw(b"set stalled 0 0 1000000\r\n")?;
    stalled.raw(&vec![b'x'; 500_000])?;
    let mut talk = server.connect()?;
    let begun = Instant::now();
    for number in 0..50 {
        talk.expect(&format!("set k{number} 0 0 5\r\nvalue"), "STORED")?;
    }
    if begun.elapsed() > Duration::from_secs(5) {
        return Err(wrong(format!("50 sets beside a stalled client took {:?}", begun.elapsed())));
    }
    world.end(server, setup.hard_end())?;
    let server = world.start()?;
    let mut talk = server.connect()?;
    expect("a value that was not sent whole", talk.get("stalled")?, None)?;
    for number in 0..50 {
        expect("stored beside it", talk.get(&format!("k{number}"))?, Some("value"))?;
    }
    Ok(world.end(server, End::Terminate)?)
}

pub(super) fn second_server(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let server = world.start()?;
    server.connect()?.expect("set k 0 0 5\r\nvalue", "STORED")?;
    match world.plan.start() {
        Ok(_) => return Err(wrong("a second server started on the same store")),
        Err(error) if !error.to_string().contains("ended at its start") => return Err(error.into()),
        Err(_) => {}
    }
    server.connect()?.expect("set k 0 0 5\r\nother", "STORED")?;
    world.end(server, setup.hard_end())?;
    let server = world.start()?;
    expect("after all", server.connect()?.get("k")?, Some("other"))?;
    Ok(world.end(server, End::Terminate)?)
}

pub(super) fn full_store(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    world.plan.store_mib = SMALL_STORE_MIB;
    let server = world.start()?;
    let mut talk = server.connect()?;
    talk.expect("set counter 0 0 1\r\n5", "STORED")?;
    let value = |number: u64| format!("{number:0>20000}");
    let set = |key: &str, value: &str| format!("set {key} 0 0 {}\r\n{value}", value.len());
    let mut stored = 0;
    let refused = loop {
        let answer = talk.line(&set(&format!("f{stored}"), &value(stored)))?;
        if answer != "STORED" {
            break answer;
        }
        stored += 1;
        if stored * 20_000 > SMALL_STORE_MIB << 20 {
            return Err(wrong("a store holds more than its size"));
        }
    };
    if !refused.starts_with("SERVER_ERROR ") {
        return Err(wrong(format!("a set into a full store was answered {refused:?}")));
    }
    if stored * 20_000 < (SMALL_STORE_MIB << 20) / 2 {
        return Err(wrong(format!(
            "a store of {SMALL_STORE_MIB} MiB was full after {stored} values"
        )));
    }
    let mut first = value(0);
    for number in 0..20 {
        let other = value(1_000_000 + number);
        if talk.line(&set("f0", &other))? == "STORED" {
            first = other;
        }
        expect("a value that could not be overwritten", talk.get("f0")?, Some(&first))?;
        talk.expect("incr counter 1", &(6 + number).to_string())?;
    }
    talk.expect("delete f1", "DELETED")?;
    world.end(server, setup.hard_end())?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    expect("a counter in a full store", talk.get("counter")?, Some("25"))?;
    expect("deleted from a full store", talk.get("f1")?, None)?;
    expect("the value that was overwritten", talk.get("f0")?, Some(&first))?;
    for number in 2..stored {
        let key = format!("f{number}");
        expect(&format!("{key} in a full store"), talk.get(&key)?, Some(&value(number)))?;
    }
    for number in (3..stored).step_by(2) {
        talk.expect(&format!("delete f{number}"), "DELETED")?;
    }
    for number in 0..stored / 4 {
        becomes("there is room after deletes", CLEANING, || {
            Ok(talk.line(&set(&format!("g{number}"), &value(number)))? == "STORED")
        })?;
    }
    world.end(server, setup.hard_end())?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    for number in 0..stored / 4 {
        let key = format!("g{number}");
        expect("a value in the freed space", talk.get(&key)?, Some(&value(number)))?;
    }
    for number in 2..stored {
        let kept = (number % 2 == 0).then(|| value(number));
        let key = format!("f{number}");
        expect(&format!("{key}, kept or deleted"), talk.get(&key)?, kept.as_deref())?;
    }
    Ok(world.end(server, End::Terminate)?)
}
