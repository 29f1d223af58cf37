//! How the committer lets one commit serve all clients.
//!
//! A commit releases the answers that waited for it, and their clients send their next requests. If
//! the next commit began at once, it would serve only the clients whose requests had arrived during
//! the last commit. Each client would wait for two commits: the one under way when its request
//! arrives, and its own. If the released clients return much faster than a commit takes, the
//! committer waits for them first. Each commit then serves all clients, and each client waits for
//! one commit.

use crate::durability::Durable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A commit waits for clients only if all of them are expected back within this time, in
/// microseconds. It then waits for at most twice this time, even if the last commit took unusually
/// long.
const RETURN_MOST_US: u64 = 10_000;

/// The answers that wait for the next commit, as sessions report them.
#[derive(Debug)]
pub(super) struct WaitingAnswers {
    count: AtomicU64,
    /// The time at which the last commit ended, in microseconds.
    since_us: AtomicU64,
    /// The sum of the delays of all answers reported since the last commit ended, in microseconds.
    /// An answer's delay is the time from that end to the report.
    delays_us: AtomicU64,
    /// The committer is woken when `count` reaches this number; `u64::MAX` while the committer does
    /// not wait.
    needed: AtomicU64,
}

impl WaitingAnswers {
    pub(super) fn new(now_us: u64) -> Self {
        WaitingAnswers {
            count: AtomicU64::new(0),
            since_us: AtomicU64::new(now_us),
            delays_us: AtomicU64::new(0),
            needed: AtomicU64::new(u64::MAX),
        }
    }
}

impl Durable {
    /// Reports that `count` more answers wait for the next commit.
    pub(crate) fn add_answers(&self, count: u64) {
        let answers = &self.answers;
        let delay_us = self.now_us().saturating_sub(answers.since_us.load(Ordering::Relaxed));
        answers.delays_us.fetch_add(count.saturating_mul(delay_us), Ordering::Relaxed);
        // The order of these two accesses and the opposite order in `wait_for_clients` make sure
        // that the committer sees the report or is woken.
        let waiting = answers.count.fetch_add(count, Ordering::SeqCst) + count;
        if waiting >= answers.needed.load(Ordering::SeqCst) {
            self.wake_committer();
        }
    }

    /// Lets the committer's thread wait until all clients are back, or until `within_us` after the
    /// end of the last commit.
    pub(super) fn wait_for_clients(&self, Returning { clients, within_us }: Returning) {
        let answers = &self.answers;
        let until_us = answers.since_us.load(Ordering::Relaxed).saturating_add(within_us);
        answers.needed.store(clients, Ordering::SeqCst);
        while answers.count.load(Ordering::SeqCst) < clients {
            let left_us = until_us.saturating_sub(self.now_us());
            if left_us == 0 {
                break;
            }
            thread::park_timeout(Duration::from_micros(left_us));
        }
        answers.needed.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Clients that wait for a commit, and that will send their next requests soon after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returning {
    /// The number of these clients, including those that have already sent their next requests.
    pub(super) clients: u64,
    /// How long the next commit waits for these clients, in microseconds after the end of the last
    /// commit.
    pub(super) within_us: u64,
}

/// The committer's estimate of the clients that wait for commits, and of the time in which they
/// return.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// The number of clients whose answers waited when the last commit ended. Some of these answers
    /// waited for that commit, the others for the next one.
    clients: u64,
    /// The number of answers that, when the last commit ended, already waited for the commit after
    /// it.
    held: u64,
    /// The number of answers that wait for the commit under way, and for the commits that failed
    /// before it.
    served: u64,
    /// The average time between the returns of two successive clients, in nanoseconds.
    interval_ns: u64,
}

impl Gather {
    /// Notes that a commit was closed.
    pub(super) fn begin(&mut self, answers: &WaitingAnswers) {
        self.served += answers.count.swap(0, Ordering::Relaxed);
    }

    /// Notes that the closed commit is about to release its answers. `took_us` is the time since
    /// that commit began.
    pub(super) fn end(&mut self, answers: &WaitingAnswers, now_us: u64, took_us: u64) {
        let waiting = answers.count.load(Ordering::Relaxed);
        let delays_us = answers.delays_us.swap(0, Ordering::Relaxed);
        self.note(waiting, delays_us, took_us);
        answers.since_us.store(now_us, Ordering::Relaxed);
    }

    /// Updates the estimate when a commit ends. `waiting` answers wait for the next commit.
    /// `delays_us` is the sum of the delays of all answers reported since the previous commit
    /// ended.
    fn note(&mut self, waiting: u64, delays_us: u64, took_us: u64) {
        let all = self.served + waiting;
        let returned = all.saturating_sub(self.held);
        // Estimates the delay of the last client as twice the average delay, which is right for
        // clients that return at equal intervals.
        if let Some(last_us) = delays_us.saturating_mul(2).checked_div(returned) {
            // The interval is limited, because the first client after a pause says nothing about
            // the others.
            let most_ns = took_us.min(RETURN_MOST_US) * 1000;
            let interval_ns = (last_us.saturating_mul(1000) / returned).min(most_ns);
            self.interval_ns = (3 * self.interval_ns + interval_ns) / 4;
        }
        (self.clients, self.held, self.served) = (all, waiting, 0);
    }

    /// Returns the clients that the next commit should wait for; `None` if it should begin at once.
    /// `commit_us` is the duration of the last commit.
    pub(super) fn returning(&self, commit_us: u64) -> Option<Returning> {
        let all_us = self.clients.saturating_mul(self.interval_ns) / 1000;
        let are_fast = self.clients > 1 && all_us <= (commit_us / 4 * 3).min(RETURN_MOST_US);
        // A late client gets twice the expected time. Clients that have left, or that do something
        // else first, delay a commit by this time.
        let within_us = all_us.saturating_mul(2);
        are_fast.then_some(Returning { clients: self.clients, within_us })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const COMMIT_US: u64 = 2000;

    /// Simulates a commit that `served` answers wait for. `delays` are the times, in microseconds
    /// after the end of the previous commit, at which answers were reported. Answers that the
    /// commit does not serve wait for the next commit.
    fn commit(gather: &mut Gather, served: u64, delays: &[u64]) {
        let waiting = gather.held + delays.len() as u64 - served;
        gather.served = served;
        gather.note(waiting, delays.iter().sum(), COMMIT_US);
    }

    fn clients(gather: &Gather) -> Option<u64> {
        gather.returning(COMMIT_US).map(|returning| returning.clients)
    }

    #[test]
    fn clients_in_two_groups_become_one_group() {
        let mut gather = Gather::default();
        let delays: Vec<u64> = (1..=5).map(|at| 20 * at).collect();
        commit(&mut gather, 0, &delays);
        // Two groups of five clients alternate: each commit serves one group, while the other group
        // sends its next requests.
        for _ in 0..20 {
            commit(&mut gather, 5, &delays);
        }
        assert_eq!(clients(&gather), Some(10));
        let within_us = gather.returning(COMMIT_US).unwrap().within_us;
        assert!((200..=800).contains(&within_us), "{within_us}");
        let delays: Vec<u64> = (1..=10).map(|at| 20 * at).collect();
        commit(&mut gather, 10, &delays[5..]);
        for _ in 0..20 {
            commit(&mut gather, 10, &delays);
            assert_eq!(clients(&gather), Some(10));
        }
    }

    #[test]
    fn a_commit_waits_for_no_client_that_has_left() {
        let mut gather = Gather::default();
        for _ in 0..20 {
            commit(&mut gather, 10, &[50; 10]);
        }
        assert_eq!(clients(&gather), Some(10));
        commit(&mut gather, 3, &[50; 3]);
        assert_eq!(clients(&gather), Some(3));
        commit(&mut gather, 1, &[50]);
        assert_eq!(clients(&gather), None);
    }

    /// If requests arrive independently of the replies, a commit gains nothing by waiting for more
    /// requests.
    #[test]
    fn a_commit_waits_for_no_steady_stream() {
        let mut gather = Gather::default();
        let delays: Vec<u64> = (1..=20).map(|at| at * COMMIT_US / 20).collect();
        commit(&mut gather, 0, &delays);
        for _ in 0..20 {
            commit(&mut gather, 20, &delays);
            assert_eq!(clients(&gather), None);
        }
    }

    #[test]
    fn a_pause_is_soon_forgotten() {
        let mut gather = Gather::default();
        for _ in 0..20 {
            commit(&mut gather, 10, &[50; 10]);
        }
        commit(&mut gather, 1, &[3_600_000_000]);
        commit(&mut gather, 10, &[50; 10]);
        assert_eq!(clients(&gather), None);
        for _ in 0..20 {
            commit(&mut gather, 10, &[50; 10]);
        }
        assert_eq!(clients(&gather), Some(10));
    }
}
