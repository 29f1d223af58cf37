//! Scenarios in which the disk fails, fills up, hangs or is slow.

use std::thread;
use std::time::{Duration, Instant};

use super::{Setup, becomes, expect, wrong};
use crate::activity;
use crate::client::ClientPlan;
use crate::clock;
use crate::disk::{Cut, Disk, Faults};
use crate::rounds::LARGEST;
use crate::server::{Server, Talk};
use crate::workload::Sizes;
use crate::world::{ASYNC_SLACK, End, Failure, Load, World};
use larder_disk::Random;

/// A request counts as withheld if it has no answer after this time.
const HELD: Duration = Duration::from_millis(250);
/// The longest time to answer a client that the fault does not affect.
const PROMPT: Duration = Duration::from_secs(2);
/// The longest time for a set that does not wait for a device.
const PROMPT_SET: Duration = Duration::from_millis(50);
/// The longest time for a server to report that its store fails, or that it works again.
const HEALING: Duration = Duration::from_secs(10);

pub(super) fn failing_sync(setup: &Setup) -> Result<(), Failure> {
    failing(setup, Faults { sync_error: Some(libc::EIO), ..Faults::default() })
}

pub(super) fn full_disk(setup: &Setup) -> Result<(), Failure> {
    failing(setup, Faults { write_error: Some(libc::ENOSPC), ..Faults::default() })
}

fn disk_of(world: &World) -> Result<&Disk, Failure> {
    world.disk.as_ref().ok_or_else(|| wrong("this scenario needs the test's disk"))
}

/// Makes the disk fail under load for a while and then kills the server or cuts the power, several
/// times.
fn failing(setup: &Setup, faults: Faults) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let mut random = Random::part(setup.seed, &[1]);
    for round in 0..4u32 {
        let server = world.start()?;
        let client = ClientPlan {
            seed: random.bits(),
            writers: 3,
            readers: 1,
            keys: 30,
            sizes: random.pick(&[Sizes::Small, Sizes::Mixed]),
            largest: LARGEST,
            window: random.pick(&[1, 8]),
            ..ClientPlan::default()
        };
        let clients = world.clients(&server, &Load { processes: 2, client })?;
        let mut talk = server.connect()?;
        let old = format!("old{round}");
        talk.expect(&format!("set probe 0 0 {}\r\n{old}", old.len()), "STORED")?;
        thread::sleep(Duration::from_millis(random.between(20, 200)));
        disk_of(&world)?.set_faults(faults);
        let last = while_it_fails(&server, &mut talk, &old)?;
        disk_of(&world)?.set_faults(Faults::default());
        becomes("writes succeed again", HEALING, || {
            Ok(talk.line("set healed 0 0 3\r\nyes")? == "STORED")
        })?;
        becomes("health is good again", HEALING, || Ok(server.stat("larder_health")? == "ok"))?;
        expect("a value that was not overwritten", talk.get("probe")?, Some(&last))?;
        thread::sleep(Duration::from_millis(random.between(20, 200)));
        let cut = random.pick(&Cut::ALL);
        world.end(server, if round % 2 == 0 { End::PowerLoss(cut) } else { End::Kill })?;
        world.collect(clients, true)?;
        let server = world.start()?;
        let mut talk = server.connect()?;
        expect("the value that was kept, after a crash", talk.get("probe")?, Some(&last))?;
        expect("the value stored after healing", talk.get("healed")?, Some("yes"))?;
        world.end(server, End::Kill)?;
    }
    Ok(())
}

/// Waits until the server notices the fault. Then checks that every write fails, that every read
/// returns the value before it, and that the server's health reports the fault. Returns the value
/// of the key `probe`. It is not always `old`, because a write may have succeeded before the server
/// noticed the fault.
fn while_it_fails(server: &Server, talk: &mut Talk, old: &str) -> Result<String, Failure> {
    let mut last = old.to_owned();
    let mut attempt = 0;
    becomes("a write is answered with an error", HEALING, || {
        attempt += 1;
        let new = format!("{old}-{attempt}");
        let answer = talk.line(&format!("set probe 0 0 {}\r\n{new}", new.len()))?;
        if answer == "STORED" {
            last = new;
        }
        Ok(answer.starts_with("SERVER_ERROR"))
    })?;
    for _ in 0..20 {
        let begun = Instant::now();
        let answer = talk.line("set probe 0 0 5\r\nwrong")?;
        if !answer.starts_with("SERVER_ERROR ") {
            return Err(wrong(format!("a set on a failing disk was answered {answer:?}")));
        }
        expect("read while the disk fails", talk.get("probe")?, Some(&last))?;
        if begun.elapsed() > PROMPT {
            return Err(wrong(format!("an error and a read took {:?}", begun.elapsed())));
        }
    }
    becomes("health says so", HEALING, || Ok(server.stat("larder_health")? != "ok"))?;
    Ok(last)
}

/// Fails if an answer comes within [`HELD`].
fn held(talk: &mut Talk, what: &str) -> Result<(), Failure> {
    if talk.answers_within(HELD)? {
        let line = talk.read_line()?;
        return Err(wrong(format!("{what} was answered {line:?} before the sync had ended")));
    }
    Ok(())
}

fn answered(talk: &mut Talk, what: &str, wanted: &str) -> Result<(), Failure> {
    let line = talk.read_line()?;
    if line == wanted {
        return Ok(());
    }
    Err(wrong(format!("{what} was answered {line:?} instead of {wanted:?}")))
}

pub(super) fn slow_sync(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let server = world.start()?;
    let mut talk = server.connect()?;
    for key in ["base", "deleted", "other"] {
        talk.expect(&format!("set {key} 0 0 3\r\nold"), "STORED")?;
    }
    let hold = Faults { hold_syncs: true, ..Faults::default() };
    disk_of(&world)?.set_faults(hold);
    // Each of these requests waits on its own connection. Some change an item; the replies to the
    // others depend on these changes.
    let waiting = [
        ("set base 0 0 3\r\nnew", "STORED"),
        ("delete deleted", "DELETED"),
        ("mg base v", "VA 3"),
        ("mg deleted v", "EN"),
        ("add base 0 0 3\r\nxyz", "NOT_STORED"),
        ("incr deleted 1", "NOT_FOUND"),
    ];
    let mut talks = Vec::new();
    for (request, wanted) in waiting {
        let mut one = server.connect()?;
        one.raw(format!("{request}\r\n").as_bytes())?;
        held(&mut one, request)?;
        talks.push((one, request, wanted));
    }
    let begun = Instant::now();
    for _ in 0..100 {
        expect("others are served", talk.get("other")?, Some("old"))?;
    }
    if begun.elapsed() > PROMPT {
        return Err(wrong(format!("100 reads beside a slow sync took {:?}", begun.elapsed())));
    }
    // A connection's requests are answered in order. So a read after a withheld write may wait, but
    // a read before it must not.
    let mut line = server.connect()?;
    line.raw(b"mg other v\r\nset more 0 0 1\r\n1\r\nmg other v\r\n")?;
    answered(&mut line, "a read before a write in a pipeline", "VA 3")?;
    line.read_line()?;
    held(&mut line, "a read after a write in a pipeline")?;
    disk_of(&world)?.set_faults(Faults::default());
    for (one, request, wanted) in &mut talks {
        answered(one, request, wanted)?;
    }
    answered(&mut line, "a write in a pipeline", "STORED")?;
    answered(&mut line, "a read behind it", "VA 3")?;

    // A hundred writes on one connection must share commits.
    let before = disk_of(&world)?.counts();
    let mut many = Vec::new();
    for number in 0..100 {
        many.extend(format!("set many{number} 0 0 5\r\nvalue\r\n").bytes());
    }
    let mut pipe = server.connect()?;
    pipe.raw(&many)?;
    for _ in 0..100 {
        answered(&mut pipe, "a set of many", "STORED")?;
    }
    let syncs = disk_of(&world)?.counts().syncs - before.syncs;
    if syncs > 3 {
        return Err(wrong(format!("100 pipelined sets took {syncs} syncs")));
    }

    // Cuts the power while a sync hangs, so the disk has nothing of the unacknowledged set. All
    // earlier changes must be there.
    disk_of(&world)?.set_faults(hold);
    let mut last = server.connect()?;
    last.raw(b"set base 0 0 4\r\nlast\r\n")?;
    held(&mut last, "a set")?;
    world.end(server, End::PowerLoss(Cut::Nothing))?;
    let server = world.start()?;
    expect("acknowledged before", server.connect()?.get("base")?, Some("new"))?;
    expect("deleted before", server.connect()?.get("deleted")?, None)?;
    Ok(world.end(server, End::Terminate)?)
}

pub(super) fn hung_disk(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let server = world.start()?;
    let mut talk = server.connect()?;
    talk.expect("set early 0 0 5\r\nvalue", "STORED")?;
    thread::sleep(setup.plan.sync_interval * 2);
    disk_of(&world)?.set_faults(Faults { hold_syncs: true, ..Faults::default() });
    let begun = Instant::now();
    let (mut acknowledged, mut number) = (Duration::ZERO, 0);
    loop {
        talk.raw(format!("set k{number} 0 0 5\r\nvalue\r\n").as_bytes())?;
        if !talk.answers_within(setup.plan.sync_interval * 5)? {
            break;
        }
        answered(&mut talk, "a set beside a hung disk", "STORED")?;
        acknowledged = begun.elapsed();
        number += 1;
    }
    let bound = world.lag();
    if acknowledged > bound || number == 0 {
        let text = format!("{number} sets were acknowledged for {acknowledged:?}, bound {bound:?}");
        return Err(wrong(text));
    }
    expect("others are served", server.connect()?.get("early")?, Some("value"))?;
    disk_of(&world)?.set_faults(Faults::default());
    answered(&mut talk, "the set that waited", "STORED")?;
    thread::sleep(setup.plan.sync_interval * 3);
    world.end(server, End::PowerLoss(Cut::Nothing))?;
    let server = world.start()?;
    let mut talk = server.connect()?;
    for number in 0..=number {
        expect("acknowledged", talk.get(&format!("k{number}"))?, Some("value"))?;
    }
    Ok(world.end(server, End::Terminate)?)
}

/// A set that was acknowledged, and the monotonic clock's times in microseconds.
struct Acknowledged {
    key: String,
    sent: u64,
    told: u64,
}

pub(super) fn hung_device(setup: &Setup) -> Result<(), Failure> {
    let mut world = setup.world()?;
    let path = world.plan.store.display().to_string();
    world.plan.devices = ["0", "1"].map(|name| format!("{path}/{name}:128MB")).to_vec();
    let server = world.start()?;
    let mut talk = server.connect()?;
    for number in 0..20 {
        talk.expect(&format!("set early{number} 0 0 5\r\nvalue"), "STORED")?;
    }
    let interval = setup.plan.sync_interval.as_micros() as u64;
    let slack = ASYNC_SLACK.as_micros() as u64;
    becomes("the early sets are durable", HEALING, || {
        Ok(server.stat("larder_unsynced_bytes")? == "0")
    })?;
    let held_file = disk_of(&world)?.file("0");
    disk_of(&world)?.set_faults(Faults { hold_syncs: true, held_file, ..Faults::default() });
    let hung = clock::now();

    // Each set has its own connection, because a set that waits delays the replies behind it.
    let (mut acknowledged, mut waiting) = (Vec::new(), Vec::new());
    for number in 0.. {
        let (key, sent) = (format!("k{number}"), clock::now());
        let mut talk = server.connect()?;
        talk.raw(format!("set {key} 0 0 5\r\nvalue\r\n").as_bytes())?;
        if talk.answers_within(PROMPT_SET)? {
            answered(&mut talk, "a set", "STORED")?;
            acknowledged.push(Acknowledged { key, sent, told: clock::now() });
        } else {
            waiting.push((sent, talk));
        }
        let last = acknowledged.last().map_or(hung, |one| one.told);
        if !waiting.is_empty() && last > hung + 2 * interval && sent > hung + 4 * (interval + slack)
        {
            break;
        }
        if clock::now() > hung + HEALING.as_micros() as u64 / 2 {
            let (served, waiting) = (acknowledged.len(), waiting.len());
            let text =
                format!("beside a hung device, {served} sets were served, {waiting} were not");
            return Err(wrong(text));
        }
    }
    // The first set that the hung device has not acknowledged.
    let mut stalled = None;
    for (sent, talk) in &mut waiting {
        if stalled.is_none() && !talk.answers_within(Duration::from_millis(1))? {
            stalled = Some(*sent);
        }
    }
    let Some(stalled) = stalled else {
        return Err(wrong("a hung device has acknowledged all sets"));
    };
    let synced_until = activity::unsynced(&server)?.synced_until();
    let ended = clock::now();
    world.end(server, End::PowerLoss(Cut::Nothing))?;

    let server = world.start()?;
    let mut talk = server.connect()?;
    for number in 0..20 {
        expect("stored before the hang", talk.get(&format!("early{number}"))?, Some("value"))?;
    }
    let mut judged = 0;
    for Acknowledged { key, sent, told } in acknowledged {
        // The hung device may lose what it acknowledged before it noticed the hang, and the other
        // one what it acknowledged last.
        let late = sent <= stalled.max(hung + interval + slack) || told > ended - interval - slack;
        judged += u32::from(!late);
        let found = talk.get(&key)?;
        if found.is_some() || !late || told < synced_until {
            expect("acknowledged beside a hung device", found, Some("value"))?;
        }
    }
    if judged < 5 {
        return Err(wrong(format!("only {judged} sets had to survive")));
    }
    Ok(world.end(server, End::Terminate)?)
}
