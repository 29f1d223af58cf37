//! What an engine call can answer. No call ever blocks a worker: what cannot be finished now says
//! what it waits for, and the connection parks.

/// A position in the durability order: the `commit`-th group commit of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitPoint {
    /// The stream that the change was appended to.
    pub stream: u32,
    /// The group commit of that stream that makes the change durable.
    pub commit: u64,
}

/// The answer of an engine call.
#[derive(Debug)]
#[must_use]
pub enum Outcome<T> {
    /// Finished; the answer may be sent.
    Ready(T),
    /// Finished, but the answer must be held back until the commit is durable.
    AfterCommit(T, CommitPoint),
    /// Nothing was done: memory is full and is being reclaimed. Call again after the session's
    /// waker was woken.
    NeedsSpace,
}

impl<T> Outcome<T> {
    /// Changes the answer, keeps what it waits for.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Ready(t) => Outcome::Ready(f(t)),
            Outcome::AfterCommit(t, point) => Outcome::AfterCommit(f(t), point),
            Outcome::NeedsSpace => Outcome::NeedsSpace,
        }
    }
}
