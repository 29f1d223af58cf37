//! A session's part in group commit: when it requests the commit that its answers wait for, and
//! what its thread polls for meanwhile.
//!
//! A commit is expensive, and covers all answers that wait when it is closed. So a thread with
//! other work delays the request for a while, and so does an idle thread that is likely to get work
//! soon. A thread whose clients all wait requests the commit at once.
//!
//! Invariant: every commit that an answer waits for was requested, by this session or another, or
//! [`Group::is_wanted`] returns true.

use super::LaneSession;
use crate::CommitState;
use larder_log::sync::atomic::Ordering;
use std::cell::Cell;
use std::time::Duration;

/// An idle thread waits for more requests only if its last requested commit released at least this
/// many answers, or if the session made at least this many look-ups since that request.
const MANY: u64 = 16;

/// The longest time, in microseconds, that an idle thread waits for a request of a client that has
/// got its answer. After this time, the thread requests the commit that other answers wait for. The
/// thread waits like this only if most of its recent answers waited for no commit.
const QUIET_US: u64 = 60;

/// Time for which a thread polls for the request that may follow an answer, in microseconds. It
/// takes about this long to wake the client and to receive its next request.
const POLL_CLIENT_US: u64 = 100;

/// What an idle thread has done in this turn to get more work before it requests its commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lingered {
    No,
    /// The thread looked for work once more.
    Looked,
    /// The thread waited for a request of a client that has got its answer, at most [`QUIET_US`].
    Waited,
}

/// What an idle thread polls for, and until when, in microseconds of the clock that measures
/// commits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polling {
    No,
    /// The commit that answers wait for.
    Commit(u64),
    /// The next request of the clients that got their answers.
    Client(u64),
}

/// A session's answers that wait for commits, and its requests for these commits.
pub(super) struct Group {
    /// The newest commit that any of the answers waits for.
    wanted: Cell<u64>,
    /// The newest commit that this session requested, or would have requested if another session
    /// had not done so first.
    asked: u64,
    /// The time at which the session first considered requesting `wanted`, in microseconds of the
    /// clock that measures commits; 0 before that.
    since: Cell<u64>,
    /// The number of answers that began to wait since the session last requested a commit.
    waiting: Cell<u64>,
    /// The value of `waiting` when the session last requested a commit.
    waited: u64,
    /// The number of answers that wait for a commit and that the committer does not know yet.
    unreported: Cell<u64>,
    /// The session's count of look-ups when it last requested a commit.
    lookups: u64,
    /// True if the waker was registered in this turn. The waker is woken at the next change of a
    /// commit's state.
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
            unreported: Cell::new(0),
            lookups: 0,
            listens: Cell::new(false),
            lingered: Lingered::No,
            polling: Polling::No,
        }
    }

    /// Returns true if an answer waits for a commit that was not requested.
    #[inline]
    fn is_wanted(&self) -> bool {
        self.wanted.get() > self.asked
    }
}

impl LaneSession {
    /// See [`Session::wake_on_commit`](crate::Session::wake_on_commit).
    #[inline]
    pub(crate) fn wake_on_commit(&self, commit: u64) {
        let Some(durability) = self.lane.log.durability() else { return };
        let group = &self.group;
        if commit > group.wanted.get() {
            group.wanted.set(commit);
            group.since.set(0);
        }
        group.waiting.set(group.waiting.get() + 1);
        if !group.listens.replace(true) {
            durability.wait(&self.waker);
        }
    }

    /// Counts an answer that waits for a commit.
    pub(super) fn note_waiting(&self) {
        self.group.unreported.set(self.group.unreported.get() + 1);
    }

    /// Tells the committer how many answers have begun to wait for a commit since the last report.
    fn report_waiting(&self) {
        let unreported = self.group.unreported.take();
        if unreported > 0
            && let Some(durability) = self.lane.log.durability()
        {
            durability.add_answers(unreported);
        }
    }

    /// As [`LaneSession::wake_on_commit`], for the open commit.
    pub(crate) fn wake_on_next_commit(&self) {
        self.wake_on_commit(self.lane.open_commit());
    }

    /// Starts a turn of the thread's loop.
    #[inline]
    pub(super) fn turn_of_group(&mut self) {
        self.group.listens.set(false);
        self.group.lingered = Lingered::No;
        self.report_waiting();
        if self.group.is_wanted() && self.left_to_gather().is_zero() {
            self.ask_for_commit();
        }
    }

    /// Returns how long a busy thread may still delay the commit that answers wait for.
    fn left_to_gather(&self) -> Duration {
        let Some(durability) = self.lane.log.durability() else { return Duration::ZERO };
        let (now, since) = (durability.now_us(), &self.group.since);
        if since.get() == 0 {
            since.set(now);
        }
        let gathered = now.saturating_sub(since.get());
        Duration::from_micros(durability.gather_us().saturating_sub(gathered))
    }

    /// See [`Session::lingers`](crate::Session::lingers).
    #[inline]
    pub(crate) fn lingers(&mut self) -> Option<Duration> {
        if let Some(log) = self.lane.log.durable() {
            self.fetched.start(log);
        }
        if !self.group.is_wanted() {
            return None;
        }
        self.report_waiting();
        if self.group.lingered == Lingered::No {
            self.group.lingered = Lingered::Looked;
            return Some(Duration::ZERO);
        }
        let longer = self.awaits_more();
        if longer.is_none() {
            // Requests the commit now, because the thread may wait longer for another lane.
            self.end_turn();
        }
        longer
    }

    /// Returns how long to wait for more answers that need the same commit; `None` if waiting is
    /// not worthwhile.
    #[cold]
    fn awaits_more(&mut self) -> Option<Duration> {
        let (waiting, waited) = (self.group.waiting.get(), self.group.waited);
        let lookups = self.lookups().wrapping_sub(self.group.lookups);
        let left = if waited >= MANY && waiting < waited / 2 {
            // Most of the clients that the last commit released have not come back yet.
            self.left_to_gather()
        } else if lookups >= MANY.max(waiting + 1) && self.group.lingered == Lingered::Looked {
            // Since this session last requested a commit, most answers waited for no commit. So the
            // clients that got them may soon send a request that needs the next commit.
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

    /// Ends the turn of an idle thread: notes what is worth polling for, and requests the commit
    /// that answers wait for, unless it was already requested.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.expect();
        self.report_waiting();
        if self.group.is_wanted() {
            self.ask_for_commit();
        }
    }

    /// Requests the commit that answers wait for. If that commit is already closed, another session
    /// has requested it, and there is nothing to do.
    fn ask_for_commit(&mut self) {
        let lookups = self.lookups();
        let Some(durability) = self.lane.log.durability() else { return };
        let group = &mut self.group;
        group.asked = group.wanted.get();
        group.waited = group.waiting.take();
        group.lookups = lookups;
        if group.asked >= self.lane.open_commit() {
            durability.wait(&self.waker);
            durability.want_commit();
        }
    }

    /// Determines what is worth polling for from now on.
    #[inline]
    fn expect(&mut self) {
        let waits = self.commit_state(self.group.wanted.get()) == CommitState::Pending;
        if !waits && self.group.polling == Polling::No {
            return;
        }
        let Some(durability) = self.lane.log.durability() else { return };
        let now = durability.now_us();
        self.group.polling = match self.group.polling {
            _ if waits => Polling::Commit(now + durability.poll_us()),
            // The commit ended while the thread polled, so its clients may now send requests.
            Polling::Commit(_) => Polling::Client(now + POLL_CLIENT_US),
            other => other,
        };
    }

    /// Returns true if the thread should poll, because one of two events is expected at any moment:
    /// the end of the commit that answers wait for, or the next request of the clients that this
    /// commit released.
    #[inline]
    pub(super) fn polls_for_commit(&mut self) -> bool {
        let (Polling::Commit(until) | Polling::Client(until)) = self.group.polling else {
            return false;
        };
        let polls = self.lane.clock_us() < until;
        if !polls {
            self.group.polling = Polling::No;
        }
        polls
    }
}
