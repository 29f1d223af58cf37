//! Compares the queue of withheld replies ([`Gates`]) with a model, which is a plain list of
//! replies.

use super::super::gates::{Front, Gates, Repair};
use crate::command::{FailureReply, Points};
use crate::net::{Budget, OutputMemory};
use larder_disk::Random;
use larder_engine::{CommitPoint, CommitState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const LOST: &[u8] = b"SERVER_ERROR store failed: write not kept\r\n";

fn bytes(random: &mut Random, max: u64) -> Vec<u8> {
    let letter = b'a' + random.below(26) as u8;
    vec![letter; random.below(max + 1) as usize]
}

#[derive(Default)]
struct Meter {
    used: AtomicUsize,
}

impl Budget for Meter {
    fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, Relaxed);
    }

    fn held(&self) -> (u64, u64) {
        (self.used.load(Relaxed) as u64, u64::MAX)
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

/// The commits of three lanes. `issued` and `ended` have the numbers of the last issued and the
/// last ended commit of each lane. `failed` has the lane and the number of every failed commit.
#[derive(Default)]
struct Commits {
    issued: [u64; 3],
    ended: [u64; 3],
    failed: Vec<(u32, u64)>,
}

impl Commits {
    fn state(&self, point: CommitPoint) -> CommitState {
        if point.position > self.ended[point.lane as usize] {
            CommitState::Pending
        } else if self.failed.contains(&(point.lane, point.position)) {
            CommitState::Failed
        } else {
            CommitState::Durable
        }
    }

    fn all(&self, points: &[CommitPoint]) -> CommitState {
        let is = |wanted| points.iter().any(|&point| self.state(point) == wanted);
        match () {
            () if is(CommitState::Failed) => CommitState::Failed,
            () if is(CommitState::Pending) => CommitState::Pending,
            () => CommitState::Durable,
        }
    }

    /// Returns the commit of a change in a random lane: either a new commit of this lane, or its
    /// last one.
    fn issue(&mut self, random: &mut Random) -> CommitPoint {
        let stream = random.below(3) as u32;
        let issued = &mut self.issued[stream as usize];
        *issued += random.below(2).max(u64::from(*issued == 0));
        CommitPoint { lane: stream, position: *issued }
    }

    fn some(&mut self, random: &mut Random) -> Vec<CommitPoint> {
        (0..1 + random.below(2)).map(|_| self.issue(random)).collect()
    }

    fn go_on(&mut self, random: &mut Random) {
        let stream = random.below(3) as usize;
        while self.ended[stream] < self.issued[stream] && !random.one_in(4) {
            self.ended[stream] += 1;
            if random.one_in(5) {
                self.failed.push((stream as u32, self.ended[stream]));
            }
        }
    }
}

fn points(all: &[CommitPoint]) -> Points {
    let mut points = Points::new(all[0]);
    all[1..].iter().for_each(|&point| points.add(point));
    points
}

/// A reply in the model.
struct Reply {
    bytes: Vec<u8>,
    points: Vec<CommitPoint>,
    /// What replaces the reply if a commit that it waits for fails. `None` for a retrieval, because
    /// the worker executes a retrieval again.
    repair: Option<Vec<u8>>,
}

/// A connection and its model.
#[derive(Default)]
struct World {
    commits: Commits,
    meter: Meter,
    gates: Option<Gates>,
    received: Vec<u8>,
    /// Replies that the model has not released.
    replies: std::collections::VecDeque<Reply>,
    expected: Vec<u8>,
    redone: usize,
}

impl World {
    /// Calls [`call`](Self::call) as an event loop would call the service: again at once while the
    /// commits that the first gate waits for have already ended.
    fn go_on(&mut self, random: &mut Random) {
        let commands = random.below(6);
        self.call(random, commands);
        while self.gates.as_ref().is_some_and(|g| !g.is_pending(|p| self.commits.state(p))) {
            self.call(random, 0);
        }
        self.settle();
    }

    /// Makes one call: releases replies, executes `commands` commands, and absorbs the output.
    fn call(&mut self, random: &mut Random, commands: u64) {
        let mut memory = OutputMemory::default();
        let mut output = memory.buffer(1 << 20);
        let mut left_load = 0;
        while let Some(gates) = &mut self.gates {
            match gates.release(|point| self.commits.state(point), &mut output, &mut |_, _| {}) {
                Front::None => {
                    gates.discharge(&self.meter);
                    self.gates = None;
                }
                Front::Pending => {
                    left_load = gates.load();
                    break;
                }
                Front::Failed => {
                    let failed = gates.take_failed().unwrap();
                    assert!(
                        matches!(&failed.repair, Repair::Again(request) if **request == *b"get")
                    );
                    self.redone += 1;
                    let reply = self.replies.iter_mut().find(|reply| {
                        self.commits.all(&reply.points) == CommitState::Failed
                            && reply.repair.is_none()
                    });
                    let reply = reply.unwrap();
                    reply.bytes = bytes(random, 50);
                    reply.points.clear();
                    output.extend(&reply.bytes);
                    if random.one_in(2) {
                        let all = self.commits.some(random);
                        gates.put_back(failed, Some(points(&all)), &mut output);
                        reply.points = all;
                    }
                }
            }
        }
        for _ in 0..commands {
            let start = output.len();
            let bytes = bytes(random, 30);
            output.extend(&bytes);
            let mut reply = Reply { bytes, points: Vec::new(), repair: None };
            if random.one_in(2) {
                reply.points = self.commits.some(random);
                let repair = match random.below(3) {
                    0 => Repair::Say(FailureReply::Silent),
                    1 => Repair::Say(FailureReply::Line),
                    _ => Repair::Again((*b"get").into()),
                };
                reply.repair = match repair {
                    Repair::Say(FailureReply::Silent) => Some(Vec::new()),
                    Repair::Say(FailureReply::Line) => Some(LOST.to_vec()),
                    _ => None,
                };
                let gates = self.gates.get_or_insert_with(|| Gates::new(start));
                gates.add(start, &mut output, points(&reply.points), repair, false, None);
            }
            self.replies.push_back(reply);
        }
        if let Some(gates) = &mut self.gates {
            gates.absorb(&mut output);
            gates.charge(&self.meter);
            assert!(self.meter.used.load(Relaxed) >= gates.load());
            let withheld: usize = self.replies.iter().map(|reply| reply.bytes.len()).sum();
            assert!(gates.load() <= withheld + (self.replies.len() + 1) * 400 + left_load);
        }
        self.received.extend_from_slice(memory.bytes());
    }

    /// Releases in the model all replies that may be sent now.
    fn settle(&mut self) {
        while let Some(reply) = self.replies.front() {
            match (self.commits.all(&reply.points), &reply.repair) {
                (CommitState::Pending, _) | (CommitState::Failed, None) => break,
                (CommitState::Durable, _) => self.expected.extend_from_slice(&reply.bytes),
                (CommitState::Failed, Some(repair)) => self.expected.extend_from_slice(repair),
            }
            self.replies.pop_front();
        }
    }
}

#[test]
fn gates_are_charged_for_their_memory() {
    let mut memory = OutputMemory::default();
    let mut output = memory.buffer(1000);
    let mut gates = Gates::new(0);
    let point = |position| Points::new(CommitPoint { lane: 0, position });
    let meter = Meter::default();
    for position in 1..=20 {
        let start = output.len();
        output.extend(b"STORED\r\n");
        gates.add(
            start,
            &mut output,
            point(position),
            Repair::Say(FailureReply::Line),
            false,
            None,
        );
    }
    // The output counts 160 bytes of replies and the size of 20 gates, which exceed its limit.
    assert!(output.is_full());
    gates.absorb(&mut output);
    gates.charge(&meter);
    let charged = meter.used.load(Relaxed);
    assert!(charged >= gates.load() && gates.load() > 1000);
    assert_eq!(charged, gates.charged());
    output.extend(&[b'x'; 10_000]);
    gates.add(0, &mut output, point(21), Repair::Close, false, None);
    gates.absorb(&mut output);
    gates.charge(&meter);
    assert!(meter.used.load(Relaxed) >= charged + 10_000);
    gates.discharge(&meter);
    assert_eq!(meter.used.load(Relaxed), 0);
}

#[test]
fn replies_keep_their_order_and_wait_for_their_commits() {
    let mut redone = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut world = World::default();
        for step in 0..200 {
            if random.one_in(2) {
                world.commits.go_on(&mut random);
            }
            world.go_on(&mut random);
            assert!(world.received == world.expected, "seed {seed}, step {step}");
            assert_eq!(world.gates.is_none(), world.replies.is_empty(), "seed {seed}, {step}");
        }
        while !world.replies.is_empty() {
            world.commits.go_on(&mut random);
            world.go_on(&mut random);
        }
        assert!(world.received == world.expected, "seed {seed}");
        assert_eq!(world.meter.used.load(Relaxed), 0, "seed {seed}");
        redone += world.redone;
    }
    assert!(redone > 1000, "{redone}");
}
