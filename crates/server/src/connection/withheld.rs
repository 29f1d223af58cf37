//! A worker's handling of replies that wait for commits. The worker withholds such a reply until
//! the commits that it waits for are durable, and replaces it if one of them fails.
//!
//! A change whose commit failed gets an error reply. A retrieval waits for the commits of the
//! changes that it saw. If one of them fails, the retrieval is executed again, as if it had arrived
//! a moment later. The engine undoes the changes of a failed commit before it reports the failure,
//! so the repeated retrieval does not see them. If the client has sent a change after the
//! retrieval, and that change has taken effect, the retrieval gets an error instead: a request must
//! not see a change that follows it.

use super::gates::{Front, Gates, Repair};
use super::scratch::KeyBatch;
use super::state::Connection;
use super::worker::Worker;
use crate::clients::ClientProtocol;
use crate::command::binary::Binary;
use crate::command::text::Text;
use crate::command::{Dialect, Executed, Execution, FailureReply, LongValue, Points};
use crate::latency::Timing;
use crate::net::{Flow, OutputBuffer};
use crate::waits::{Wait, Waits};
use larder_protocol::Parse;
use std::sync::Arc;

/// The result of executing a retrieval again after a commit that its reply waited for has failed.
enum RetryOutcome {
    /// The output holds the reply. A long value is present if its rest is still to be sent.
    Done(Option<Box<LongValue>>),
    /// Nothing was written, for example because memory is being reclaimed or a record is being
    /// read. The worker tries again after its waker is woken.
    Wait,
    /// The request cannot be answered, so the connection must close.
    Impossible,
}

impl Connection {
    /// Withholds the output from `start` on, which is the reply to `request`, until the commits in
    /// `x.points` are durable. `whole` is the request as it arrived. Returns false if there is
    /// nothing to withhold.
    #[inline(never)]
    pub(super) fn withhold_reply<D: Dialect>(
        &mut self,
        x: &mut Execution<'_, '_>,
        start: usize,
        request: &D::Request<'_>,
        whole: &[u8],
        executed: &Executed,
        timing: Option<Timing>,
    ) -> bool {
        let (repair, open) = match executed {
            // The request was not executed, so there is no reply yet.
            Executed::Again => (Repair::Say(FailureReply::Silent), false),
            // Later calls write the rest of this reply. If a commit that this part waits for fails,
            // no replacement for this part would fit the rest.
            Executed::Keys(part) => (Repair::Close, part.value.is_some()),
            _ if D::properties(request).only_reads() => {
                (Repair::Again(whole.into()), matches!(executed, Executed::Value(_)))
            }
            _ => (Repair::Say(D::failure_reply(request)), matches!(executed, Executed::Value(_))),
        };
        self.withhold_output(x, start, repair, open, timing)
    }

    /// Withholds the output from `start` on until the commits in `x.points` are durable. `open`
    /// means that the output ends within a long value. With `timing`, the command's latency is
    /// counted when the reply is sent. Returns false if there is nothing to withhold.
    pub(super) fn withhold_output(
        &mut self,
        x: &mut Execution<'_, '_>,
        start: usize,
        repair: Repair,
        open: bool,
        timing: Option<Timing>,
    ) -> bool {
        let Some(points) = x.points.take() else { return false };
        if matches!(repair, Repair::Say(FailureReply::Silent)) && start == x.output.len() {
            // There is no reply to withhold, but the change must become durable. So the commit must
            // be requested all the same.
            points.each(|point| x.session.wake_on_commit(point));
            return false;
        }
        let gates = self.gates.get_or_insert_with(|| Box::new(Gates::new(start)));
        gates.add(start, x.output, points, repair, open, timing);
        true
    }
}

impl Worker {
    /// Writes to `output` the withheld replies that may be sent now. Returns a flow if the
    /// connection must do nothing else in this call.
    #[inline(never)]
    pub(super) fn release(
        &mut self,
        connection: &mut Connection,
        output: &mut OutputBuffer<'_>,
    ) -> Option<Flow> {
        loop {
            let mut now = None;
            let Connection { id, registered, gates, .. } = &mut *connection;
            let mut released = |timing: Timing, len: usize| {
                let now = *now.get_or_insert_with(&self.clock);
                self.timer.note_commit_wait(&timing, now);
                self.note_released(*id, registered, &timing.with(Wait::Commit), len, now);
            };
            let gates = gates.as_mut()?;
            match gates.release(|point| self.session.commit_state(point), output, &mut released) {
                Front::None => {
                    let closing = gates.closing;
                    self.forget(connection);
                    return closing.then_some(Flow::Close);
                }
                Front::Pending => {
                    output.count_against_limit(gates.load());
                    let closing = gates.closing;
                    return closing.then(|| self.withhold(connection, Flow::Park, output));
                }
                // The worker executes a retrieval again only with an empty output, because `again`
                // clears the whole output if the retrieval must wait.
                Front::Failed if !output.is_empty() => return Some(Flow::Drain),
                Front::Failed => {
                    if let Some(flow) = self.repair(connection, output) {
                        return Some(flow);
                    }
                }
            }
        }
    }

    /// Replaces the first withheld reply, because a commit that it waited for has failed. Returns
    /// `None` if the caller can continue with the next withheld reply. Otherwise returns what the
    /// event loop must do next.
    fn repair(
        &mut self,
        connection: &mut Connection,
        output: &mut OutputBuffer<'_>,
    ) -> Option<Flow> {
        let gates = connection.gates.as_mut()?;
        let state = |point| self.session.commit_state(point);
        let overtaken = gates.holds_change(state);
        let mut failed = gates.take_failed()?;
        if failed.open {
            connection.value = None;
            failed.open = false;
        }
        let timing = failed.timing.map(|timing| timing.with(Wait::Commit));
        let (id, registered) = (connection.id, Arc::clone(&connection.registered));
        let released = |len: usize| {
            if let Some(timing) = timing {
                let now = (self.clock)();
                self.timer.note_commit_wait(&timing, now);
                self.note_released(id, &registered, &timing, len, now);
            }
        };
        let before = output.len();
        let Repair::Again(request) = &failed.repair else {
            if failed.repair.put(output) {
                released(output.len() - before);
                return None;
            }
            self.forget(connection);
            return Some(Flow::Close);
        };
        let (again, points) = match connection.protocol {
            ClientProtocol::Binary => self.again::<Binary>(request, overtaken, output),
            ClientProtocol::Undecided | ClientProtocol::Text => {
                self.again::<Text>(request, overtaken, output)
            }
        };
        match again {
            RetryOutcome::Done(value) if value.is_none() || failed.last => {
                if value.is_some() {
                    connection.value = value;
                    failed.open = true;
                }
                match (&points, &mut connection.gates) {
                    (Some(_), Some(gates)) => gates.put_back(failed, points, output),
                    _ => released(output.len() - before),
                }
                None
            }
            RetryOutcome::Wait => {
                if let Some(gates) = &mut connection.gates {
                    gates.put_back(failed, None, output);
                }
                Some(Flow::Park)
            }
            RetryOutcome::Done(_) | RetryOutcome::Impossible => {
                output.truncate(0);
                self.forget(connection);
                Some(Flow::Close)
            }
        }
    }

    /// Executes a retrieval again. `overtaken` is true if the client sent a change after the
    /// retrieval, and that change has taken effect. Then this function writes an error instead.
    fn again<D: Dialect>(
        &self,
        request: &[u8],
        overtaken: bool,
        output: &mut OutputBuffer<'_>,
    ) -> (RetryOutcome, Option<Points>) {
        let mut keys = KeyBatch::new(&self.session, Vec::new());
        let Parse::Request { request, .. } = D::parse(request, &mut keys) else {
            // This cannot happen, because the same bytes were parsed as a complete request before.
            return (RetryOutcome::Impossible, None);
        };
        if overtaken {
            D::failure_reply(&request).put(output);
            return (RetryOutcome::Done(None), None);
        }
        let mut x = self.execution(output);
        let executed = D::execute(&mut x, &request, &keys.into_inner(), None);
        let points = x.points;
        match executed {
            Executed::Done => (RetryOutcome::Done(None), points),
            Executed::Value(value) => (RetryOutcome::Done(Some(value)), points),
            Executed::Again => {
                output.truncate(0);
                (RetryOutcome::Wait, None)
            }
            Executed::Keys(_) | Executed::Dump(_) | Executed::Close => {
                (RetryOutcome::Impossible, None)
            }
        }
    }

    /// Ends a worker's call for a connection that withholds replies. Takes these replies out of the
    /// output, requests the commits that they wait for, and returns how the connection continues.
    /// `flow` is how the connection would continue if no reply were withheld.
    #[inline(never)]
    pub(super) fn withhold(
        &mut self,
        connection: &mut Connection,
        flow: Flow,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        let Some(gates) = &mut connection.gates else { return flow };
        gates.absorb(output);
        connection.registered.set_waits(Waits::NONE.with(Wait::Commit));
        gates.closing |= flow == Flow::Close;
        gates.charge(&**self.session.engine());
        gates.each_lane(|point| self.session.wake_on_commit(point));
        if !gates.is_pending(|point| self.session.commit_state(point)) {
            // The commit ended before `wake_on_commit` requested a wake-up. The wake-up may
            // therefore come late or never, so the connection continues at once.
            return Flow::Drain;
        }
        match flow {
            Flow::Read | Flow::Hold => Flow::Hold,
            Flow::Drain if !output.is_empty() => Flow::Drain,
            // With `Drain` and an empty output, the withheld replies alone have reached the limit
            // of the output.
            Flow::Drain | Flow::Park | Flow::Close => Flow::Park,
        }
    }

    /// Drops the queue of withheld replies, and releases its charge to the memory limit.
    pub(super) fn forget(&self, connection: &mut Connection) {
        if let Some(mut gates) = connection.gates.take() {
            connection.registered.set_waits(Waits::NONE);
            gates.discharge(&**self.session.engine());
        }
    }
}
