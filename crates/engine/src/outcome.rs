//! The results of engine calls. No call blocks the thread. A call that cannot finish returns what
//! it waits for, and the caller suspends the connection or holds its reply back.

use std::convert::Infallible;

/// Names one commit of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitPoint {
    /// The position of the lane among the engine's lanes.
    pub lane: u32,
    /// The number of the commit.
    pub position: u64,
}

/// The state of the commit that a [`CommitPoint`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Everything in this commit and in earlier ones survives a crash.
    Durable,
    /// The commit has not ended yet.
    Pending,
    /// The commit failed. In sync mode, the change was undone, unless it was a flush. Flushes, and
    /// all changes in async mode, stay and become durable with a later commit. (In async mode, an
    /// answer waits for a commit if the call was a flush or asked for sync durability, or while a
    /// commit is overdue.)
    Failed,
}

/// The reason why a call was refused. Nothing was changed, except that a refused flush may have
/// emptied some lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Memory is full and nothing in it may be reclaimed.
    OutOfMemory,
    /// A device fails: the store cannot be written, the record cannot be read, or the key cannot
    /// finish its move to another lane. The engine retries writes and moves in the background.
    StoreFailed,
    /// The store is full and nothing on it may be reclaimed.
    StoreFull,
}

/// The result of an engine call.
#[derive(Debug)]
#[must_use]
pub enum Outcome<T> {
    /// Finished; the answer may be sent.
    Ready(T),
    /// Finished, but the answer must be held back until
    /// [`commit_state`](crate::Session::commit_state) returns [`CommitState::Durable`] for this
    /// [`CommitPoint`].
    AfterCommit(T, CommitPoint),
    /// Nothing was done, because the record is being read into memory. Repeat the call after the
    /// session's waker was woken.
    NeedsRead,
    /// Not finished; nothing was changed yet. Repeat the call after the session's waker was woken.
    /// There are four reasons:
    /// - Memory or the store is full, and the cleaner makes room.
    /// - The key is moving between lanes.
    /// - A commit must first extend the lease of versions.
    /// - A flush, a drain or the growth of a device waits for another thread.
    NeedsSpace,
    /// Nothing was done, and the caller cannot wait: the session's waker is not woken when a
    /// repeated call would succeed.
    Refused(Refusal),
}

impl Outcome<Infallible> {
    /// Converts an outcome without an answer to an outcome of any type. Functions that never return
    /// an answer have the type `Outcome<Infallible>`. This type fits into a register, so the
    /// compiler need not pass a larger outcome through memory.
    #[inline(always)]
    pub(crate) fn for_any<T>(self) -> Outcome<T> {
        self.map(|never| match never {})
    }
}

impl<T> Outcome<T> {
    /// Maps the answer and keeps the commit that it waits for.
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
