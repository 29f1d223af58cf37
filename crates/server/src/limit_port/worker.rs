//! The worker of the limit port: one engine session that decides about all requests.
//!
//! Invariant: whenever the worker waits, its session is asleep and holds no items. While a session
//! is awake and does not tick, the engine cannot reuse memory.

use std::sync::Arc;
use std::task::Wake;

use larder_engine::{
    CommitPoint, CommitState, Delete, Deleted, Key, Outcome, Reads, Refusal, SecretHash, Session,
    Taken,
};
use tokio::sync::{Notify, mpsc, oneshot};

use super::call::{Call, LimitAction, LimitReply, LimitRequest, Undecided};
use crate::clock::Clock;
use crate::latency::{CommandClass, Latencies, Timer, Timing};
use crate::policies::{Policy, PolicyReader};
use crate::server::Running;
use crate::slow::{SentBy, SlowCommand, SlowCommands};
use crate::waits::{Wait, Waits};

/// The largest number of new requests per turn.
const TURN: usize = 256;
/// The least value of `withheld_limit`. When that limit is reached, [`LimitWorker::withhold`] drops
/// the replies whose clients have left, and sets the limit to twice the number of replies that
/// stay. So the cost of dropping is constant per reply.
const WITHHELD: usize = 1024;

#[derive(Debug)]
pub(super) struct LimitWorker {
    session: Session,
    clock: Clock,
    policies: PolicyReader,
    latencies: Arc<Latencies>,
    timer: Timer,
    slow: Arc<SlowCommands>,
    calls: mpsc::Receiver<Call>,
    /// Notified by the engine when a waiting request may continue.
    woken: Arc<Woken>,
    /// Requests that wait for reads or for memory.
    parked: Vec<ParkedCall>,
    /// Replies that wait for commits.
    withheld: Vec<WithheldReply>,
    /// The length of `withheld` at which the worker drops the replies whose clients have left.
    withheld_limit: usize,
}

#[derive(Debug)]
struct ParkedCall {
    call: Call,
    /// The reads that the request waits for; `None` if it waits for memory.
    reads: Option<Reads>,
    /// The time of the worker's clock at which the request began to wait, in nanoseconds; 0 if the
    /// request has just arrived.
    since: u64,
    /// The reasons for which the request has waited.
    waits: Waits,
}

#[derive(Debug)]
struct WithheldReply {
    sender: oneshot::Sender<LimitReply>,
    reply: LimitReply,
    point: CommitPoint,
    timing: Option<Timing>,
}

#[derive(Debug, Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

impl LimitWorker {
    /// Creates a worker that executes `calls`.
    pub(super) fn new(
        running: &Running,
        policies: PolicyReader,
        calls: mpsc::Receiver<Call>,
    ) -> LimitWorker {
        let woken = Arc::<Woken>::default();
        let clock = running.clock;
        let mut session = running.engine.session(Arc::clone(&woken).into());
        session.tick_at(clock.nanos());
        session.sleep();
        let context = running.context();
        let of_context = context.map(|it| (Arc::clone(&it.latencies), Arc::clone(&it.slow)));
        let (latencies, slow) = of_context.unwrap_or_default();
        let timer = latencies.timer();
        let (parked, withheld) = (Vec::new(), Vec::new());
        LimitWorker {
            session,
            clock,
            policies,
            latencies,
            timer,
            slow,
            calls,
            woken,
            parked,
            withheld,
            withheld_limit: WITHHELD,
        }
    }

    /// Executes calls until all senders of calls are dropped.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(TURN);
        loop {
            let woken = tokio::select! {
                arrived = self.calls.recv_many(&mut calls, TURN) => match arrived {
                    0 => return,
                    _ => false,
                },
                () = self.woken.0.notified() => true,
            };
            self.turn(&mut calls, woken);
        }
    }

    /// Executes `calls`, and continues parked requests and withheld replies. `woken` is true if the
    /// engine has woken the session. Only then may a commit have ended.
    fn turn(&mut self, calls: &mut Vec<Call>, woken: bool) {
        let now = self.clock.nanos();
        self.session.tick_at(now);
        self.timer.begin_turn(now, &self.latencies);
        self.policies.refresh();
        if woken {
            for withheld in std::mem::take(&mut self.withheld) {
                self.release(withheld);
            }
        }
        for parked in std::mem::take(&mut self.parked) {
            self.go_on(parked);
        }
        for call in calls.drain(..) {
            self.go_on(ParkedCall { call, reads: None, since: 0, waits: Waits::NONE });
        }
        self.session.sleep();
    }

    /// Executes a request. Parks it again if its reads have not arrived, and drops it if its client
    /// has left.
    fn go_on(&mut self, mut parked: ParkedCall) {
        let before = parked.reads.take();
        if parked.call.reply.is_closed() {
            before.into_iter().for_each(|reads| self.session.release(reads));
            return;
        }
        if let Some(mut reads) = before {
            if self.session.awaits(&mut reads) {
                parked.reads = Some(reads);
                self.parked.push(parked);
                return;
            }
            self.execute(parked.call, parked.since, parked.waits);
            // The reads are released only now, because `execute` needed the records.
            self.session.release(reads);
        } else {
            self.execute(parked.call, parked.since, parked.waits);
        }
    }

    fn execute(&mut self, call: Call, since: u64, waits: Waits) {
        self.timer.begin(since);
        let key = self.session.key(&call.request.key);
        let outcome = decide(&self.session, &self.policies, &key, &call.request);
        let key = key.secret_hash();
        let reads = self.session.take_reads();
        match outcome {
            Outcome::NeedsRead | Outcome::NeedsSpace => {
                let wait = if reads.is_some() { Wait::Read } else { Wait::Space };
                let (since, waits) = (self.timer.began_ns(), waits.with(wait));
                self.parked.push(ParkedCall { call, reads, since, waits });
                return;
            }
            Outcome::Ready(reply) => self.answer(call, reply, key, waits),
            Outcome::Refused(refusal) => {
                let reply = LimitReply::Undecided(Undecided::Refused(refusal));
                self.answer(call, reply, key, waits);
            }
            Outcome::AfterCommit(reply, point) => {
                let waits = waits.with(Wait::Commit);
                let timing = self.timer.apart(CommandClass::Limit, Some(key), 0, (0, waits));
                self.release(WithheldReply { sender: call.reply, reply, point, timing });
            }
        }
        reads.into_iter().for_each(|reads| self.session.release(reads));
    }

    /// Sends a reply that waits for no commit.
    fn answer(&self, call: Call, reply: LimitReply, key: SecretHash, waits: Waits) {
        self.timer.answered(CommandClass::Limit);
        if let Some(answered) = self.timer.end(|| self.clock.nanos())
            && self.timer.is_slow(answered.took_ns)
        {
            let time_ns = self.timer.began_ns().saturating_add(answered.took_ns);
            if self.timer.count_slow(answered.commands, time_ns) {
                self.slow.push(SlowCommand {
                    time_ns,
                    took_ns: answered.took_ns,
                    sent_by: SentBy::LimitPort,
                    class: CommandClass::Limit,
                    name: None,
                    commands: answered.commands,
                    key: Some(key),
                    request_bytes: 0,
                    reply_bytes: 0,
                    waits,
                });
            }
        }
        send(call.reply, reply);
    }

    /// Sends a reply if its commit has ended, and otherwise withholds it.
    fn release(&mut self, withheld: WithheldReply) {
        let state = self.session.commit_state_or_wake(withheld.point);
        if state != CommitState::Pending {
            self.note_wait(&withheld);
        }
        match state {
            CommitState::Pending => self.withhold(withheld),
            CommitState::Durable => send(withheld.sender, withheld.reply),
            CommitState::Failed => {
                let why = Undecided::Refused(Refusal::StoreFailed);
                send(withheld.sender, LimitReply::Undecided(why));
            }
        }
    }

    /// Withholds a reply until its commit ends. While commits are stuck, clients give up and send
    /// more requests. So when `withheld_limit` is reached, drops the replies whose clients have
    /// left. The number of all other replies is bounded, because the number of connections is.
    fn withhold(&mut self, withheld: WithheldReply) {
        if self.withheld.len() >= self.withheld_limit {
            for withheld in std::mem::take(&mut self.withheld) {
                match withheld.sender.is_closed() {
                    true => self.note_wait(&withheld),
                    false => self.withheld.push(withheld),
                }
            }
            self.withheld_limit = WITHHELD.max(2 * self.withheld.len());
        }
        self.withheld.push(withheld);
    }

    /// Measures the time that a withheld reply has waited.
    fn note_wait(&self, withheld: &WithheldReply) {
        let Some(timing) = &withheld.timing else { return };
        let now = self.clock.nanos();
        self.timer.note_commit_wait(timing, now);
        let took_ns = self.timer.released(timing, now);
        if self.timer.is_slow(took_ns) && self.timer.count_slow(1, now) {
            self.slow.push(SlowCommand::apart(SentBy::LimitPort, timing, took_ns, now, 0));
        }
    }
}

/// Sends a reply. This fails if the client has disconnected, so the error is ignored.
fn send(sender: oneshot::Sender<LimitReply>, reply: LimitReply) {
    let _ = sender.send(reply);
}

/// Executes a request for the limiter `key`.
fn decide(
    session: &Session,
    policies: &PolicyReader,
    key: &Key<'_>,
    request: &LimitRequest,
) -> Outcome<LimitReply> {
    let policy = &*request.policy;
    let cost = match request.action {
        LimitAction::Take(cost) => cost,
        LimitAction::Look => 0,
        LimitAction::Reset => return reset(session, policy, key),
    };
    session.take(key, &policy.take(cost)).map(|taken| match taken {
        Taken::Decided { decision, .. } => {
            if cost != 0 {
                policies.count(Some(policy), key.bytes(), &decision);
            }
            LimitReply::Decided(decision)
        }
        // A take without a cas id can return `NonNumeric`, but neither `NotFound` nor `Exists`.
        Taken::NotFound | Taken::Exists | Taken::NonNumeric => {
            LimitReply::Undecided(Undecided::NotALimiter)
        }
    })
}

/// Reads a limiter and then deletes it by its cas id. So if another item has replaced the limiter
/// after the read, that item is not deleted.
fn reset(session: &Session, policy: &Policy, key: &Key<'_>) -> Outcome<LimitReply> {
    loop {
        let cas = match session.take(key, &policy.take(0)) {
            Outcome::Ready(Taken::Decided { cas, .. })
            | Outcome::AfterCommit(Taken::Decided { cas, .. }, _) => cas,
            other => return other.map(|_| LimitReply::Undecided(Undecided::NotALimiter)),
        };
        let delete = Delete { compare: Some(cas), ..Delete::default() };
        match session.delete(key, &delete) {
            // Another request has changed or replaced the limiter, so read it again.
            Outcome::Ready(Deleted::Exists) | Outcome::AfterCommit(Deleted::Exists, _) => {}
            deleted => return deleted.map(|_| LimitReply::Reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_engine::Durability;

    use super::*;
    use crate::limit_port::tests::{logins, with_store};
    use crate::policies::Policies;

    /// Clients that give up and ask again must not fill memory while commits are stuck.
    #[test]
    fn abandoned_withheld_replies_are_dropped() {
        let folder = std::env::temp_dir().join(format!("larder-withheld-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let server = with_store(&folder, Durability::Sync, vec![logins(u64::MAX)]);
        let policy = Arc::clone(server.running.policies().shared(b"logins").unwrap());
        let (_calls, called) = mpsc::channel(1);
        let reader = server.running.context().unwrap().policies().reader();
        let mut worker = LimitWorker::new(&server.running, reader, called);
        let mut turn = |calls: usize| {
            let (mut calls, replies): (Vec<_>, Vec<_>) = (0..calls)
                .map(|_| {
                    let (reply, replied) = oneshot::channel();
                    let policy = Arc::clone(&policy);
                    let none = Policies::default();
                    let take = LimitAction::Take(1);
                    let request = LimitRequest::new(&none, policy, b"ann", take).unwrap();
                    (Call { request, reply }, replied)
                })
                .unzip();
            // `woken` is false, so the worker does not check withheld replies again.
            worker.turn(&mut calls, false);
            (worker.withheld.len(), replies)
        };
        let (_, mut awaited) = turn(TURN);
        let most = (0..20).map(|_| turn(TURN).0).max().unwrap();
        assert!((TURN..=WITHHELD + 1).contains(&most), "{most}");
        let open = |reply: &mut oneshot::Receiver<_>| {
            matches!(reply.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        assert!(awaited.iter_mut().all(open), "replies that are awaited stay");
        drop(worker);
        drop(server);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
