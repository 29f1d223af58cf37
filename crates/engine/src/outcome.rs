//! What an engine call can answer. No call ever blocks a worker: what cannot be finished now says
//! what it waits for, and the connection parks or holds its reply back.

use std::convert::Infallible;

/// A position in the durability order of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitPoint {
    /// The lane that the change was appended to.
    pub lane: u32,
    /// The commit of the lane that decides about it.
    pub position: u64,
}

/// What has become of a commit point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Everything up to the point survives a crash.
    Durable,
    /// Not yet.
    Pending,
    /// The commit failed. In sync mode the change was undone; in async mode, where answers wait for a commit
    /// that is late, it stays and becomes durable with a later one.
    Failed,
}

/// Why a call was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Memory is full and nothing in it may be reclaimed.
    OutOfMemory,
    /// The store cannot be written; it is tried again in the background.
    StoreFailed,
    /// The store is full and nothing on it may be reclaimed.
    StoreFull,
}

/// The answer of an engine call.
#[derive(Debug)]
#[must_use]
pub enum Outcome<T> {
    /// Finished; the answer may be sent.
    Ready(T),
    /// Finished, but the answer must be held back until
    /// [`commit_state`](crate::Session::commit_state) says that the point is durable.
    AfterCommit(T, CommitPoint),
    /// Nothing was done: the record is being read into memory. Call again after the session's waker
    /// was woken.
    NeedsRead,
    /// Nothing was done: memory is full and is being reclaimed. Call again after the session's
    /// waker was woken.
    NeedsSpace,
    /// Nothing was done, and waiting would not change that.
    Refused(Refusal),
}

impl Outcome<Infallible> {
    /// The same where there could have been an answer. Functions that never give one say so in their type: it fits
    /// into a register, and what callers hold of answers need not go through memory.
    #[inline(always)]
    pub(crate) fn for_any<T>(self) -> Outcome<T> {
        self.map(|never| match never {})
    }
}

impl<T> Outcome<T> {
    /// Changes the answer, keeps what it waits for.
    #[inline]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Ready(t) => Outcome::Ready(f(t)),
            Outcome::AfterCommit(t, point) => Outcome::AfterCommit(f(t), point),
            Outcome::NeedsRead => Outcome::NeedsRead,
            Outcome::NeedsSpace => Outcome::NeedsSpace,
            Outcome::Refused(refusal) => Outcome::Refused(refusal),
        }
    }
}
