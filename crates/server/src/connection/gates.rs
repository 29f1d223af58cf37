//! Replies that may not be sent yet. A *gate* is a reply that waits for commits. All replies behind
//! a gate wait too, because replies keep the order of their requests. A connection has a queue of
//! gates only while it withholds replies.
//!
//! During a call of the service, replies are written to the output, whether they are withheld or
//! not. At the end of the call, the queue [absorbs](Gates::absorb) the output from the first gate
//! on. A *position* is the distance of a byte from the first byte that the queue has withheld. So
//! positions stay valid while bytes are released.
//!
//! Invariants: gates stand in the order of their replies and do not overlap. The first withheld
//! byte is the first byte of the first gate's reply. No byte is released before the commits of
//! every gate in front of it are durable, or the gate's reply was replaced.

use crate::command::{FailureReply, Points};
use crate::latency::Timing;
use crate::net::{Budget, OutputBuffer};
use larder_engine::{CommitPoint, CommitState};
use smallvec::SmallVec;

/// The replacement for a reply whose commit has failed.
#[derive(Debug)]
pub(super) enum Repair {
    /// This error reply, or nothing if the client wants no reply.
    Say(FailureReply),
    /// The reply to a second execution of the request. Holds the request, which only reads and can
    /// therefore be executed twice.
    Again(Box<[u8]>),
    /// No replacement is possible, so the connection must close.
    Close,
}

impl Repair {
    /// Writes the replacement if it is a fixed reply. Returns false otherwise.
    pub(super) fn put(&self, output: &mut OutputBuffer<'_>) -> bool {
        match self {
            Repair::Say(reply) => reply.put(output),
            Repair::Again(_) | Repair::Close => return false,
        }
        true
    }
}

/// A reply that waits for commits.
#[derive(Debug)]
struct Gate {
    start: u64,
    end: u64,
    points: Points,
    repair: Repair,
    /// True if the reply ends within a long value. The rest of the value is not written yet.
    open: bool,
    /// Present if commands are timed. The command's latency is counted when the reply is sent.
    timing: Option<Timing>,
}

/// Size of a gate in bytes, without its reply.
const GATE: usize = size_of::<Gate>();

impl Gate {
    fn cost(&self) -> usize {
        let request = if let Repair::Again(request) = &self.repair { request.len() } else { 0 };
        GATE + self.points.allocated() + request
    }
}

/// The largest length of withheld replies, in bytes, that needs no allocation. Most clients wait
/// for one short reply.
const SHORT: usize = 32;

/// The state of the queue after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// All replies are released.
    None,
    /// The first gate still waits for a commit.
    Pending,
    /// The first gate's commit has failed, and [`Gates::release`] cannot replace the gate's reply.
    Failed,
}

/// The replies that a connection withholds.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// The withheld bytes, except those still in the output of the running call.
    bytes: SmallVec<[u8; SHORT]>,
    /// The position of the first byte in `bytes`.
    base: u64,
    gates: SmallVec<[Gate; 1]>,
    /// Sum of [`Gate::cost`] over `gates`: the memory of the gates, in bytes, without their
    /// replies.
    cost: usize,
    /// The latest commit of each lane among the commits of all gates that were ever added. A
    /// release of gates does not change this list. The worker requests these commits.
    lanes: SmallVec<[CommitPoint; 1]>,
    /// Offset in the output of the running call at which the withheld bytes begin.
    split: usize,
    /// The bytes of this queue that are charged to the memory budget.
    charged: usize,
    /// True if the connection must close once all replies are released.
    pub(super) closing: bool,
}

impl Gates {
    /// Creates an empty queue. The first reply that it will withhold begins at `split` in the
    /// output of the running call.
    pub(super) fn new(split: usize) -> Self {
        Gates { split, ..Gates::default() }
    }

    /// Withholds the reply in the output from `start` on.
    pub(super) fn add(
        &mut self,
        start: usize,
        output: &mut OutputBuffer<'_>,
        points: Points,
        repair: Repair,
        open: bool,
        timing: Option<Timing>,
    ) {
        let (start, end) = (self.position(start), self.position(output.len()));
        self.note_lanes(&points);
        let gate = Gate { start, end, points, repair, open, timing };
        output.count_against_limit(gate.cost());
        self.cost += gate.cost();
        self.gates.push(gate);
    }

    fn note_lanes(&mut self, points: &Points) {
        points.each(|point| match self.lanes.iter_mut().find(|known| known.lane == point.lane) {
            Some(known) => known.position = known.position.max(point.position),
            None => self.lanes.push(point),
        });
    }

    /// Calls `visit` with the latest commit of each lane among the commits of all gates that were
    /// added.
    pub(super) fn each_lane(&self, visit: impl FnMut(CommitPoint)) {
        self.lanes.iter().copied().for_each(visit);
    }

    /// Converts an offset in the output of the running call to a position.
    fn position(&self, place: usize) -> u64 {
        debug_assert!(place >= self.split);
        self.base + (self.bytes.len() + place - self.split) as u64
    }

    /// Moves the withheld bytes at the end of the output into the queue.
    pub(super) fn absorb(&mut self, output: &mut OutputBuffer<'_>) {
        self.bytes.extend_from_slice(&output.bytes()[self.split..]);
        output.truncate(self.split);
    }

    /// Appends to `output` all replies that may be sent now. `state` returns the state of a commit.
    /// For each of these replies that has a timing, calls `released` with the timing and the
    /// reply's length. The output must not contain withheld bytes, so this method must run at the
    /// beginning of a call of the service, or after [`absorb`](Self::absorb).
    pub(super) fn release(
        &mut self,
        state: impl Fn(CommitPoint) -> CommitState,
        output: &mut OutputBuffer<'_>,
        released: &mut impl FnMut(Timing, usize),
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
            let before = output.len();
            match gate.points.state(&state) {
                CommitState::Pending => break Front::Pending,
                CommitState::Durable => output.extend(&self.bytes[start..end]),
                CommitState::Failed if !gate.open && gate.repair.put(output) => {}
                CommitState::Failed => break Front::Failed,
            }
            if let Some(timing) = gate.timing {
                released(timing, output.len() - before);
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

    /// Converts a position to an index in `bytes`.
    fn index(&self, position: u64) -> usize {
        (position - self.base) as usize
    }

    /// Returns true if the last withheld reply ends within a long value. The rest of the value must
    /// not be written before the withheld bytes are released.
    pub(super) fn is_open(&self) -> bool {
        self.gates.last().is_some_and(|gate| gate.open)
    }

    /// Returns true if the first gate still waits for a commit. `state` returns the state of a
    /// commit.
    pub(super) fn is_pending(&self, state: impl Fn(CommitPoint) -> CommitState) -> bool {
        self.gates.first().is_some_and(|gate| gate.points.state(&state) == CommitState::Pending)
    }

    /// Removes the first gate, whose commit has failed, and discards its reply.
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
        let Gate { points, repair, open, timing, .. } = gate;
        Some(Failed { points, repair, open, timing, last })
    }

    /// Puts a gate that was [taken out](Self::take_failed) back to the front. The output from
    /// `split` on becomes the gate's reply. With `points`, the gate waits for these commits.
    /// Without `points`, the gate keeps its own commits, so it still counts as failed.
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
        // The new reply comes first, so the positions of all other replies move by its length.
        for gate in &mut self.gates {
            gate.start += len;
            gate.end += len;
        }
        let (start, end) = (self.base, self.base + len);
        let points = points.unwrap_or(failed.points);
        self.note_lanes(&points);
        let Failed { repair, open, timing, .. } = failed;
        let gate = Gate { start, end, points, repair, open, timing };
        self.cost += gate.cost();
        self.gates.insert(0, gate);
    }

    /// Returns true if the queue holds the reply to a change whose commit has not failed. If so,
    /// the caller must not execute an earlier retrieval again, because the retrieval would see this
    /// later change.
    pub(super) fn holds_change(&self, state: impl Fn(CommitPoint) -> CommitState) -> bool {
        let changes = |gate: &Gate| !matches!(gate.repair, Repair::Again(_) | Repair::Close);
        self.gates
            .iter()
            .any(|gate| changes(gate) && gate.points.state(&state) != CommitState::Failed)
    }

    /// Returns the size of the withheld replies and their gates, in bytes. They count against the
    /// limit of the output.
    pub(super) fn load(&self) -> usize {
        self.bytes.len() + self.cost
    }

    /// Charges or releases bytes of `budget`, so that the charge equals the memory that this queue
    /// uses now.
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

    pub(super) fn charged(&self) -> usize {
        self.charged
    }

    /// Releases the charge. Must be called before the queue is dropped.
    pub(super) fn discharge(&mut self, budget: &impl Budget) {
        budget.release(std::mem::take(&mut self.charged));
    }
}

/// A gate that was removed because its commit has failed.
#[derive(Debug)]
pub(super) struct Failed {
    /// The commits, at least one of which has failed.
    pub(super) points: Points,
    /// The replacement for the gate's reply.
    pub(super) repair: Repair,
    /// True if the gate's reply ended within a long value, whose rest was not written yet.
    pub(super) open: bool,
    /// The timing of the gate's command.
    pub(super) timing: Option<Timing>,
    /// True if no withheld reply follows the gate.
    pub(super) last: bool,
}
