//! The commits that a reply waits for. Each engine call of a command may add one commit.

use larder_engine::{CommitPoint, CommitState};

/// The commits that a reply waits for. Every commit must be listed, not only the last one of each
/// lane: after a failed commit, a later commit of the same lane may succeed.
#[derive(Debug)]
pub(crate) struct Points {
    first: CommitPoint,
    /// The other commits. Most replies wait for a single commit, so this list is usually empty.
    more: Vec<CommitPoint>,
}

impl Points {
    pub(crate) fn new(point: CommitPoint) -> Self {
        Points { first: point, more: Vec::new() }
    }

    /// Adds `point` to the commits to wait for.
    pub(crate) fn add(&mut self, point: CommitPoint) {
        if point != self.first && self.more.last() != Some(&point) {
            self.more.push(point);
        }
    }

    /// Calls `visit` for each commit.
    pub(crate) fn each(&self, mut visit: impl FnMut(CommitPoint)) {
        visit(self.first);
        self.more.iter().copied().for_each(visit);
    }

    /// Returns the state of all commits together: failed if any commit has failed, otherwise
    /// pending if any is pending, otherwise durable.
    pub(crate) fn state(&self, state: &impl Fn(CommitPoint) -> CommitState) -> CommitState {
        let first = state(self.first);
        self.more.iter().fold(first, |so_far, &point| match (so_far, state(point)) {
            (CommitState::Failed, _) | (_, CommitState::Failed) => CommitState::Failed,
            (CommitState::Pending, _) | (_, CommitState::Pending) => CommitState::Pending,
            (CommitState::Durable, CommitState::Durable) => CommitState::Durable,
        })
    }

    /// Returns the heap memory in use, in bytes.
    pub(crate) fn allocated(&self) -> usize {
        self.more.capacity() * size_of::<CommitPoint>()
    }
}
