//! A session's side of group commit: when it asks for the commit that its answers wait for, and what its
//! thread polls for meanwhile.
//!
//! A commit costs much and takes all answers along that wait by then. So a thread that has other work puts
//! the asking off for a while, and so does one that has none just now but is likely to get some; one
//! whose clients all wait asks at once.
//!
//! Invariant: whatever something waits for was asked for, by this session or by another one, or
//! [`Group::is_wanted`].

use super::LaneSession;
use crate::CommitState;
use larder_log::sync::atomic::Ordering;
use std::cell::Cell;
use std::time::Duration;

/// Answers are many from here on: whoever got them is likely to come back.
const MANY: u64 = 16;

/// A thread whose clients were busy asks for a commit when none of them has been heard of for so long, in
/// microseconds.
const QUIET_US: u64 = 60;

/// How long a request is polled for that may follow on an answer, in microseconds: about what it takes
/// to wake the client and to hear from it.
const POLL_CLIENT_US: u64 = 100;

/// What a thread without work has done so far to get some, in this turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lingered {
    No,
    /// Looked once more.
    Looked,
    /// Waited for a busy client.
    Waited,
}

/// What a thread without work polls for, and until when, by the durability's clock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polling {
    No,
    /// The commit that answers wait for.
    Commit(u64),
    /// The next request of who got them.
    Client(u64),
}

/// The answers that wait for the same commit.
pub(super) struct Group {
    /// The last commit that something waits for.
    wanted: Cell<u64>,
    /// The last one that was asked for, or was when this session would have done so.
    asked: u64,
    /// How long it has been wanted, in microseconds of the durability's clock; 0 before that was looked at.
    since: Cell<u64>,
    /// How many answers wait, and how many did when the last commit was asked for.
    waiting: Cell<u64>,
    waited: u64,
    /// Look-ups of the session until then.
    lookups: u64,
    /// In this turn the waker was noted among those that commits wake.
    listens: Cell<bool>,
    lingered: Lingered,
    polling: Polling,
}

impl Group {
    pub(super) fn new() -> Self {
        Group {
            wanted: Cell::new(0),
            asked: 0,
            since: Cell::new(0),
            waiting: Cell::new(0),
            waited: 0,
            lookups: 0,
            listens: Cell::new(false),
            lingered: Lingered::No,
            polling: Polling::No,
        }
    }

    /// Whether something waits for a commit that was not asked for.
    #[inline]
    fn is_wanted(&self) -> bool {
        self.wanted.get() > self.asked
    }
}

impl LaneSession {
    /// See [`Session::wake_on_commit`](crate::Session::wake_on_commit).
    #[inline]
    pub(crate) fn wake_on_commit(&self, commit: u64) {
        let Some(durable) = &self.lane.durable else { return };
        let group = &self.group;
        if commit > group.wanted.get() {
            group.wanted.set(commit);
            group.since.set(0);
        }
        group.waiting.set(group.waiting.get() + 1);
        if !group.listens.replace(true) {
            durable.wait(&self.waker);
        }
    }

    /// As [`LaneSession::wake_on_commit`], for the next one that is written.
    pub(crate) fn wake_on_next_commit(&self) {
        self.wake_on_commit(self.lane.open_commit());
    }

    /// A turn of the thread's loop begins.
    #[inline]
    pub(super) fn turn_of_group(&mut self) {
        self.group.listens.set(false);
        self.group.lingered = Lingered::No;
        if self.group.is_wanted() && self.left_to_gather().is_zero() {
            self.ask_for_commit();
        }
    }

    /// What is left of the time for which a busy thread puts off the commit that something waits for.
    fn left_to_gather(&self) -> Duration {
        let Some(durable) = &self.lane.durable else { return Duration::ZERO };
        let (now, since) = (durable.now_us(), &self.group.since);
        if since.get() == 0 {
            since.set(now);
        }
        let gathered = now.saturating_sub(since.get());
        Duration::from_micros(durable.gather_us().saturating_sub(gathered))
    }

    /// See [`Session::lingers`](crate::Session::lingers).
    #[inline]
    pub(crate) fn lingers(&mut self) -> Option<Duration> {
        if self.lane.durable.is_some() {
            self.fetched.start(&self.lane.log);
        }
        if !self.group.is_wanted() {
            return None;
        }
        if self.group.lingered == Lingered::No {
            self.group.lingered = Lingered::Looked;
            return Some(Duration::ZERO);
        }
        let longer = self.awaits_more();
        if longer.is_none() {
            // Now: the thread may linger for another lane.
            self.end_turn();
        }
        longer
    }

    /// For how long it is worth waiting for more answers that need the same commit.
    #[cold]
    fn awaits_more(&mut self) -> Option<Duration> {
        let (waiting, waited) = (self.group.waiting.get(), self.group.waited);
        let lookups = self.lookups().wrapping_sub(self.group.lookups);
        let left = if waited >= MANY && waiting < waited / 2 {
            // Most of those whom the last commit has set free, or will, are still to come.
            self.left_to_gather()
        } else if lookups >= MANY.max(waiting + 1) && self.group.lingered == Lingered::Looked {
            // Most answers did not wait.
            self.group.lingered = Lingered::Waited;
            self.left_to_gather().min(Duration::from_micros(QUIET_US))
        } else {
            Duration::ZERO
        };
        (!left.is_zero()).then_some(left)
    }

    fn lookups(&self) -> u64 {
        self.counters.cmd_get.load(Ordering::Relaxed)
    }

    /// The thread has nothing to do: has the commit that is waited for begun, if that was not done, and
    /// notes what is worth polling for.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.expect();
        if self.group.is_wanted() {
            self.ask_for_commit();
        }
    }

    /// Asks for the commit that something waits for, unless another session has done so and it is closed:
    /// the one that is open now holds nothing that this session waits for.
    fn ask_for_commit(&mut self) {
        let lookups = self.lookups();
        let Some(durable) = &self.lane.durable else { return };
        let group = &mut self.group;
        group.asked = group.wanted.get();
        group.waited = group.waiting.take();
        group.lookups = lookups;
        if group.asked >= self.lane.open_commit() {
            durable.wait(&self.waker);
            durable.want_commit();
        }
    }

    /// What is worth polling for from now on.
    #[inline]
    fn expect(&mut self) {
        let waits = self.commit_state(self.group.wanted.get()) == CommitState::Pending;
        if !waits && self.group.polling == Polling::No {
            return;
        }
        let Some(durable) = &self.lane.durable else { return };
        let now = durable.now_us();
        self.group.polling = match self.group.polling {
            _ if waits => Polling::Commit(now + durable.poll_us()),
            // The commit came in time.
            Polling::Commit(_) => Polling::Client(now + POLL_CLIENT_US),
            other => other,
        };
    }

    /// Whether the commit that answers wait for, or the next request of who got them, is expected at any
    /// moment.
    #[inline]
    pub(super) fn polls_for_commit(&mut self) -> bool {
        let (Polling::Commit(until) | Polling::Client(until)) = self.group.polling else {
            return false;
        };
        let Some(durable) = &self.lane.durable else { return false };
        let polls = durable.now_us() < until;
        if !polls {
            self.group.polling = Polling::No;
        }
        polls
    }
}
