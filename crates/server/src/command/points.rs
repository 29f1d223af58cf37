//! What a reply waits for: the engine calls of one command may each name a commit.

use larder_engine::{CommitPoint, CommitState};

/// The commits that a reply waits for. Of one lane not only the last one counts: a commit may
/// fail, and a later one, after the lane has gone on elsewhere, may not.
#[derive(Debug)]
pub(crate) struct Points {
    first: CommitPoint,
    /// The others; most replies wait for one alone.
    more: Vec<CommitPoint>,
}

impl Points {
    pub(crate) fn new(point: CommitPoint) -> Self {
        Points { first: point, more: Vec::new() }
    }

    /// Waits for `point`, too.
    pub(crate) fn add(&mut self, point: CommitPoint) {
        if point != self.first && self.more.last() != Some(&point) {
            self.more.push(point);
        }
    }

    /// Calls `visit` for each.
    pub(crate) fn each(&self, mut visit: impl FnMut(CommitPoint)) {
        visit(self.first);
        self.more.iter().copied().for_each(visit);
    }

    /// What has become of all of them: one that failed decides, then one that is pending.
    pub(crate) fn state(&self, state: &impl Fn(CommitPoint) -> CommitState) -> CommitState {
        let first = state(self.first);
        self.more.iter().fold(first, |so_far, &point| match (so_far, state(point)) {
            (CommitState::Failed, _) | (_, CommitState::Failed) => CommitState::Failed,
            (CommitState::Pending, _) | (_, CommitState::Pending) => CommitState::Pending,
            (CommitState::Durable, CommitState::Durable) => CommitState::Durable,
        })
    }

    /// Bytes of memory that it takes beside itself.
    pub(crate) fn allocated(&self) -> usize {
        self.more.capacity() * size_of::<CommitPoint>()
    }
}
