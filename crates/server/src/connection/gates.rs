//! Replies that may not be sent yet: each waits for commits, and all that was written behind it
//! waits with it, because replies keep the order of their requests. Only a connection that waits
//! for something has a queue of this kind at all.
//!
//! While a call runs, replies go to the output as always; at its end the queue
//! [absorbs](Gates::absorb) what stands behind the first gate. Positions count the bytes of all
//! replies since the queue was made, so they stay what they are while bytes are released.
//!
//! Invariants: gates stand in the order of their replies and do not overlap; the first byte
//! withheld is the first one of the first gate's reply; nothing is released before every gate in
//! front of it is durable or repaired.

use crate::command::{NotKept, Points};
use crate::net::{Budget, OutputBuffer};
use larder_engine::{CommitPoint, CommitState};
use smallvec::SmallVec;

/// What is said instead of a reply whose commit has failed.
#[derive(Debug)]
pub(super) enum Repair {
    /// That something was not kept.
    Say(NotKept),
    /// What is true now: the request is executed again. It changes nothing.
    Again(Box<[u8]>),
    /// Nothing can be said, so the connection ends.
    Close,
}

impl Repair {
    /// Says what can be said at once; false if it is not done with that.
    pub(super) fn put(&self, output: &mut OutputBuffer<'_>) -> bool {
        match self {
            Repair::Say(not_kept) => not_kept.put(output),
            Repair::Again(_) | Repair::Close => return false,
        }
        true
    }
}

/// A reply that waits.
#[derive(Debug)]
struct Gate {
    start: u64,
    end: u64,
    points: Points,
    repair: Repair,
    /// The rest of a long value follows.
    open: bool,
}

/// What a gate costs, beside the bytes of its reply.
const GATE: usize = size_of::<Gate>();

impl Gate {
    fn cost(&self) -> usize {
        let request = if let Repair::Again(request) = &self.repair { request.len() } else { 0 };
        GATE + self.points.allocated() + request
    }
}

/// Bytes of replies that a queue has room for in itself: most clients wait for one short reply.
const SHORT: usize = 32;

/// How far a release came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// Everything is released.
    None,
    /// The first gate waits.
    Pending,
    /// The first gate's commit has failed, and its reply is not simply replaced.
    Failed,
}

/// The replies that a connection withholds.
#[derive(Debug)]
pub(super) struct Gates {
    /// What is withheld, but for what the output of the running call holds.
    bytes: SmallVec<[u8; SHORT]>,
    /// The position of the first of these.
    base: u64,
    gates: SmallVec<[Gate; 1]>,
    /// The sum of the gates' costs, in bytes.
    cost: usize,
    /// Of each lane whose commits a gate has waited for, the last commit.
    lanes: SmallVec<[CommitPoint; 1]>,
    /// Where in the output of the running call the withheld bytes begin.
    split: usize,
    /// What the budget was charged, in bytes.
    charged: usize,
    /// The connection ends when everything is released.
    pub(super) closing: bool,
}

impl Gates {
    /// An empty queue, made by a call whose next reply begins at `split` in its output.
    pub(super) fn new(split: usize) -> Self {
        Gates {
            bytes: SmallVec::new(),
            base: 0,
            gates: SmallVec::new(),
            cost: 0,
            lanes: SmallVec::new(),
            split,
            charged: 0,
            closing: false,
        }
    }

    /// Withholds the reply that stands in the output from `start` on.
    pub(super) fn add(
        &mut self,
        start: usize,
        output: &mut OutputBuffer<'_>,
        points: Points,
        repair: Repair,
        open: bool,
    ) {
        let (start, end) = (self.position(start), self.position(output.len()));
        self.note_lanes(&points);
        let gate = Gate { start, end, points, repair, open };
        output.withhold(gate.cost());
        self.cost += gate.cost();
        self.gates.push(gate);
    }

    fn note_lanes(&mut self, points: &Points) {
        points.each(|point| match self.lanes.iter_mut().find(|known| known.lane == point.lane) {
            Some(known) => known.position = known.position.max(point.position),
            None => self.lanes.push(point),
        });
    }

    /// Calls `visit` with the last commit of each lane that it waits for.
    pub(super) fn each_lane(&self, visit: impl FnMut(CommitPoint)) {
        self.lanes.iter().copied().for_each(visit);
    }

    /// The position of a place in the output of the running call.
    fn position(&self, place: usize) -> u64 {
        debug_assert!(place >= self.split);
        self.base + (self.bytes.len() + place - self.split) as u64
    }

    /// Takes what the call has written behind the first gate out of its output.
    pub(super) fn absorb(&mut self, output: &mut OutputBuffer<'_>) {
        self.bytes.extend_from_slice(&output.bytes()[self.split..]);
        output.truncate(self.split);
    }

    /// Appends to the output what may be sent; `state` says what has become of a commit. Called at
    /// the beginning of a call, or when what it wrote was absorbed.
    pub(super) fn release(
        &mut self,
        state: impl Fn(CommitPoint) -> CommitState,
        output: &mut OutputBuffer<'_>,
    ) -> Front {
        let (mut done, mut passed, mut cost) = (0, 0, 0);
        let front = loop {
            let Some(gate) = self.gates.get(passed) else {
                output.extend(&self.bytes[done..]);
                done = self.bytes.len();
                break Front::None;
            };
            let (start, end) = (self.index(gate.start), self.index(gate.end));
            output.extend(&self.bytes[done..start]);
            done = start;
            match gate.points.state(&state) {
                CommitState::Pending => break Front::Pending,
                CommitState::Durable => output.extend(&self.bytes[start..end]),
                CommitState::Failed if !gate.open && gate.repair.put(output) => {}
                CommitState::Failed => break Front::Failed,
            }
            done = end;
            passed += 1;
            cost += gate.cost();
        };
        self.gates.drain(..passed);
        self.cost -= cost;
        self.bytes.drain(..done);
        self.base += done as u64;
        self.split = output.len();
        front
    }

    /// Where the byte at a position is.
    fn index(&self, position: u64) -> usize {
        (position - self.base) as usize
    }

    /// Whether the last reply goes on behind what is withheld: it has to be released first.
    pub(super) fn is_open(&self) -> bool {
        self.gates.last().is_some_and(|gate| gate.open)
    }

    /// Whether the first gate is still in the way, as `state` says.
    pub(super) fn is_pending(&self, state: impl Fn(CommitPoint) -> CommitState) -> bool {
        self.gates.first().is_some_and(|gate| gate.points.state(&state) == CommitState::Pending)
    }

    /// Takes out the first gate, whose commit has failed, and forgets its reply.
    pub(super) fn take_failed(&mut self) -> Option<Failed> {
        if self.gates.is_empty() {
            return None;
        }
        let gate = self.gates.remove(0);
        self.cost -= gate.cost();
        let len = self.index(gate.end);
        self.bytes.drain(..len);
        self.base += len as u64;
        let last = self.gates.is_empty() && self.bytes.is_empty();
        Some(Failed { points: gate.points, repair: gate.repair, open: gate.open, last })
    }

    /// Puts back what was [taken out](Self::take_failed): its reply is now what stands in the output
    /// from the beginning of the withheld bytes on. It waits for `points`, or, without any, has
    /// failed as before.
    pub(super) fn put_back(
        &mut self,
        failed: Failed,
        points: Option<Points>,
        output: &mut OutputBuffer<'_>,
    ) {
        let reply = &output.bytes()[self.split..];
        let len = reply.len() as u64;
        self.bytes.insert_from_slice(0, reply);
        output.truncate(self.split);
        // The positions of what stands behind it stay: it is this reply that has moved.
        for gate in &mut self.gates {
            gate.start += len;
            gate.end += len;
        }
        let (start, end) = (self.base, self.base + len);
        let points = points.unwrap_or(failed.points);
        self.note_lanes(&points);
        let gate = Gate { start, end, points, repair: failed.repair, open: failed.open };
        self.cost += gate.cost();
        self.gates.insert(0, gate);
    }

    /// Whether a change whose reply is withheld has not failed: what is executed again now would see
    /// a later state than its place in the order of requests allows.
    pub(super) fn holds_change(&self, state: impl Fn(CommitPoint) -> CommitState) -> bool {
        let changes = |gate: &Gate| !matches!(gate.repair, Repair::Again(_) | Repair::Close);
        self.gates
            .iter()
            .any(|gate| changes(gate) && gate.points.state(&state) != CommitState::Failed)
    }

    /// What counts against the limit of the output, in bytes.
    pub(super) fn load(&self) -> usize {
        self.bytes.len() + self.cost
    }

    /// Charges what it owns.
    pub(super) fn charge(&mut self, budget: &impl Budget) {
        let bytes = if self.bytes.spilled() { self.bytes.capacity() } else { 0 };
        let gates = (self.gates.capacity() - self.gates.len()) * GATE;
        let owned = bytes + self.cost + gates + size_of::<Self>();
        if owned > self.charged {
            budget.charge(owned - self.charged);
        } else {
            budget.release(self.charged - owned);
        }
        self.charged = owned;
    }

    /// What was charged, in bytes.
    pub(super) fn charged(&self) -> usize {
        self.charged
    }

    /// Gives back what was charged. Must be called before it is dropped.
    pub(super) fn discharge(&mut self, budget: &impl Budget) {
        budget.release(std::mem::take(&mut self.charged));
    }
}

/// A gate that was taken out because its commit has failed.
#[derive(Debug)]
pub(super) struct Failed {
    /// The commits, one of which has failed.
    pub(super) points: Points,
    /// How its reply is replaced.
    pub(super) repair: Repair,
    /// Whether the rest of a long value would have followed.
    pub(super) open: bool,
    /// Whether nothing stands behind it.
    pub(super) last: bool,
}
