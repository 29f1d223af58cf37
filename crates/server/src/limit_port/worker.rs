//! The worker of the limit port: one engine session that decides about all requests.
//!
//! Invariant: the session is asleep whenever the worker waits. It holds no items then. An awake
//! session that does not tick would stop the reclaiming of memory.

use std::sync::Arc;
use std::task::Wake;

use axum::response::Response;
use larder_engine::{CommitPoint, CommitState, Delete, Outcome, Reads, Refusal, Session, Taken};
use larder_protocol::KEY_LEN_MAX;
use tokio::sync::{Notify, mpsc, oneshot};

use super::call::{Call, LimitAction, LimitRequest};
use super::reply;
use crate::clock::Clock;
use crate::latency::{CommandClass, Latencies, Timer, Timing};
use crate::policies::PolicyReader;
use crate::server::Running;

/// The largest number of requests per turn.
const TURN: usize = 256;

#[derive(Debug)]
pub(super) struct LimitWorker {
    session: Session,
    clock: Clock,
    policies: PolicyReader,
    latencies: Arc<Latencies>,
    timer: Timer,
    calls: mpsc::Receiver<Call>,
    /// Notified by the engine when a request that waits may go on.
    woken: Arc<Woken>,
    /// Requests that wait for reads or for memory.
    parked: Vec<ParkedCall>,
    /// Replies that wait for commits.
    withheld: Vec<WithheldReply>,
}

#[derive(Debug)]
struct ParkedCall {
    call: Call,
    /// The reads it waits for; `None` if it waits for memory.
    reads: Option<Reads>,
    /// The time since which it waits, in nanoseconds of the clock; 0 if it has just arrived.
    since: u64,
}

#[derive(Debug)]
struct WithheldReply {
    reply: oneshot::Sender<Response>,
    response: Response,
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
        let latencies =
            running.context().map(|context| Arc::clone(&context.latencies)).unwrap_or_default();
        let timer = latencies.timer();
        let (parked, withheld) = (Vec::new(), Vec::new());
        LimitWorker { session, clock, policies, latencies, timer, calls, woken, parked, withheld }
    }

    /// Executes calls until all senders of calls are gone.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(TURN);
        loop {
            tokio::select! {
                arrived = self.calls.recv_many(&mut calls, TURN) => if arrived == 0 { return },
                () = self.woken.0.notified() => {}
            }
            self.turn(&mut calls);
        }
    }

    fn turn(&mut self, calls: &mut Vec<Call>) {
        let now = self.clock.nanos();
        self.session.tick_at(now);
        self.timer.begin_turn(now, self.latencies.is_on());
        self.policies.refresh();
        for withheld in std::mem::take(&mut self.withheld) {
            self.release(withheld);
        }
        for parked in std::mem::take(&mut self.parked) {
            self.go_on(parked);
        }
        for call in calls.drain(..) {
            self.go_on(ParkedCall { call, reads: None, since: 0 });
        }
        self.session.sleep();
    }

    /// Executes a request, unless it has to wait or nobody waits for its reply any more.
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
            self.execute(parked.call, parked.since);
            // Released only now, because the call needed the records.
            self.session.release(reads);
        } else {
            self.execute(parked.call, parked.since);
        }
    }

    fn execute(&mut self, call: Call, since: u64) {
        self.timer.begin(since);
        let outcome = respond(&self.session, &self.policies, &call.request);
        let reads = self.session.take_reads();
        match outcome {
            Outcome::NeedsRead | Outcome::NeedsSpace => {
                self.parked.push(ParkedCall { call, reads, since: self.timer.began_ns() });
                return;
            }
            Outcome::Ready(response) => self.answer(call, response),
            Outcome::Refused(refusal) => self.answer(call, reply::refused(refusal)),
            Outcome::AfterCommit(response, point) => {
                let timing = self.timer.withheld(CommandClass::Limit);
                self.release(WithheldReply { reply: call.reply, response, point, timing });
            }
        }
        reads.into_iter().for_each(|reads| self.session.release(reads));
    }

    /// Sends a reply that waits for no commit.
    fn answer(&self, call: Call, response: Response) {
        self.timer.answered(CommandClass::Limit);
        self.timer.end(|| self.clock.nanos());
        send(call.reply, response);
    }

    /// Sends a reply if its commit has ended.
    fn release(&mut self, withheld: WithheldReply) {
        let mut state = self.session.commit_state(withheld.point);
        if state == CommitState::Pending {
            self.session.wake_on_commit(withheld.point);
            // The commit may have ended before the waker was registered.
            state = self.session.commit_state(withheld.point);
        }
        if state != CommitState::Pending
            && let Some(timing) = withheld.timing
        {
            self.timer.released(timing, self.clock.nanos());
        }
        match state {
            CommitState::Pending => self.withheld.push(withheld),
            CommitState::Durable => send(withheld.reply, withheld.response),
            CommitState::Failed => send(withheld.reply, reply::refused(Refusal::StoreFailed)),
        }
    }
}

/// Sends a reply. The client may have disconnected.
fn send(reply: oneshot::Sender<Response>, response: Response) {
    let _ = reply.send(response);
}

/// Executes a request and returns its reply.
fn respond(
    session: &Session,
    policies: &PolicyReader,
    request: &LimitRequest,
) -> Outcome<Response> {
    let Some(policy) = policies.named(&request.policy) else {
        return Outcome::Ready(reply::unknown_policy());
    };
    let prefix = policy.prefix.as_deref().unwrap_or_default();
    let key = [prefix.as_bytes(), &request.key].concat();
    if key.len() > KEY_LEN_MAX {
        return Outcome::Ready(reply::long_key(prefix.len(), KEY_LEN_MAX));
    }
    let key = session.key(&key);
    let cost = match request.action {
        LimitAction::Take(cost) => cost,
        LimitAction::Look => 0,
        LimitAction::Reset => {
            // A reset must not delete other items, so first check that the item is a limiter.
            return match session.take(&key, &policy.take(0)) {
                Outcome::Ready(Taken::NonNumeric) | Outcome::AfterCommit(Taken::NonNumeric, _) => {
                    Outcome::Ready(reply::not_a_limiter())
                }
                Outcome::Ready(_) | Outcome::AfterCommit(..) => {
                    session.delete(&key, &Delete::default()).map(|_| reply::reset())
                }
                unready => unready.map(|_| reply::not_a_limiter()),
            };
        }
    };
    session.take(&key, &policy.take(cost)).map(|taken| match taken {
        Taken::Decided { decision, .. } => {
            if cost != 0 {
                policies.count(policy, &decision);
            }
            reply::decided(request, policy, &decision)
        }
        // Without a cas id, only the last of these is possible.
        Taken::NotFound | Taken::Exists | Taken::NonNumeric => reply::not_a_limiter(),
    })
}
