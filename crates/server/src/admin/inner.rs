//! The session of the admin port: it executes commands and look-ups of people, one at a time, as a
//! worker does for its clients. It begins with the first request, on a thread of its own, so that it
//! costs nothing on a server whose page only reads, and so that no command delays a health check.
//!
//! A command goes through the [`Service`] of the workers, with memory in place of a socket. So a
//! reply that waits for a commit waits here too, and a command does here what it does for a client.
//!
//! Invariants: the session is asleep whenever the thread waits. Nothing is executed after
//! [`InnerSession::stop`], so the store can be closed. Every request ends within [`PATIENCE`] of its
//! arrival.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use larder_engine::{
    CommitPoint, CommitState, Delete, Deleted, Get, Outcome, ReadCount, Refusal, Session,
};
use tokio::sync::oneshot;

use crate::command::refusal_line;
use crate::connection;
use crate::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};
use crate::server::Running;

/// The longest time from the arrival of a request to its reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The largest number of requests that wait.
const WAITING: usize = 4;
/// The largest part of a reply to a command that is kept, in bytes.
pub(super) const REPLY_MAX: usize = 1 << 20;
/// The soft limit of the output of one call of the service, in bytes.
const OUTPUT: usize = 64 << 10;
/// The largest part of a value that a look-up returns, in bytes.
pub(super) const VALUE_MAX: usize = 64 << 10;

/// What the session can do.
#[derive(Debug)]
pub(super) enum Task {
    /// Execute one command of the text protocol, as this client.
    Command(Vec<u8>, Peer),
    /// Show the item of a key, without counting as a read.
    Look(Vec<u8>),
    /// Delete the item of a key.
    Delete(Vec<u8>),
    /// Empty a device of the store, or with `false` stop doing so.
    Drain(String, bool),
}

/// The result of a task.
#[derive(Debug)]
pub(super) enum Done {
    Replied(CommandReply),
    /// `None` if there is no item.
    Seen(Option<Seen>),
    /// False if there was no item.
    Deleted(bool),
    Drained,
}

/// The reply to a command.
#[derive(Debug)]
pub(super) struct CommandReply {
    pub(super) bytes: Vec<u8>,
    /// True if the rest of the reply is left out.
    pub(super) truncated: bool,
}

/// An item as a look-up shows it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) flags: u32,
    /// Seconds until the item expires; `None` for never.
    pub(super) ttl: Option<u32>,
    /// Length of the value, in bytes.
    pub(super) size: usize,
    pub(super) cas: u64,
    /// Seconds since the last use, estimated.
    pub(super) idle: u32,
    pub(super) fetched: bool,
    pub(super) stale: bool,
    /// The first bytes of the value, at most [`VALUE_MAX`].
    pub(super) value: Vec<u8>,
}

/// Why a task has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// Too many requests wait.
    Busy,
    /// The server stops.
    Stopping,
    /// Nothing was executed within [`PATIENCE`].
    Late,
    /// It was executed, but its commit has not ended within [`PATIENCE`].
    Unconfirmed,
    /// The command is incomplete.
    Incomplete,
    /// The engine refused, for this reason.
    Refused(String),
}

#[derive(Debug)]
struct InnerCall {
    task: Task,
    arrived: Instant,
    reply: oneshot::Sender<Result<Done, Undone>>,
}

/// The session, if it has begun.
#[derive(Debug, Default)]
pub(super) struct InnerSession(Mutex<InnerState>);

#[derive(Debug, Default)]
enum InnerState {
    #[default]
    NotBegun,
    Runs(InnerThread),
    Stopped,
}

#[derive(Debug)]
struct InnerThread {
    calls: SyncSender<InnerCall>,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl InnerSession {
    /// Executes a task.
    pub(super) async fn execute(&self, running: &Arc<Running>, task: Task) -> Result<Done, Undone> {
        let (reply, replied) = oneshot::channel();
        self.send(running, InnerCall { task, arrived: Instant::now(), reply })?;
        // The thread ends without a reply only when the server stops.
        replied.await.unwrap_or(Err(Undone::Stopping))
    }

    fn lock(&self) -> MutexGuard<'_, InnerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, running: &Arc<Running>, call: InnerCall) -> Result<(), Undone> {
        let mut state = self.lock();
        if let InnerState::NotBegun = *state {
            *state = InnerState::Runs(begin(running)?);
        }
        match &*state {
            InnerState::Runs(thread) => thread.calls.try_send(call).map_err(|error| match error {
                TrySendError::Full(_) => Undone::Busy,
                TrySendError::Disconnected(_) => Undone::Stopping,
            }),
            InnerState::NotBegun | InnerState::Stopped => Err(Undone::Stopping),
        }
    }

    #[cfg(test)]
    pub(super) fn has_not_begun(&self) -> bool {
        matches!(*self.lock(), InnerState::NotBegun)
    }

    /// Ends the session. A task that waits is given up.
    pub(super) fn stop(&self) {
        let state = std::mem::replace(&mut *self.lock(), InnerState::Stopped);
        if let InnerState::Runs(InnerThread { calls, stopped, thread }) = state {
            stopped.store(true, Relaxed);
            drop(calls);
            thread.thread().unpark();
            // After a panic nothing executes any more either.
            let _ = thread.join();
        }
    }
}

fn begin(running: &Arc<Running>) -> Result<InnerThread, Undone> {
    let (calls, called) = sync_channel(WAITING);
    let stopped = Arc::new(AtomicBool::new(false));
    let (running, stops) = (Arc::clone(running), Arc::clone(&stopped));
    let thread = std::thread::Builder::new()
        .name("admin-session".to_owned())
        .spawn(move || serve(&running, &called, stops))
        .map_err(|error| Undone::Refused(format!("no thread: {error}")))?;
    Ok(InnerThread { calls, stopped, thread })
}

fn serve(running: &Running, calls: &Receiver<InnerCall>, stopped: Arc<AtomicBool>) {
    let Some(context) = running.context() else { return };
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let session = running.engine.session(waker);
    let clock = running.clock;
    let mut worker = connection::Worker::new(context, session, Box::new(move || clock.nanos()));
    worker.sleep();
    while let Ok(InnerCall { task, arrived, reply }) = calls.recv() {
        // The client may have gone while the call waited.
        if !reply.is_closed() {
            let mut turn =
                Turn { worker: &mut worker, deadline: arrived + PATIENCE, stopped: &stopped };
            let done = turn.execute(task);
            worker.sleep();
            let _ = reply.send(done);
        }
    }
}

/// Wakes the thread of the session.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The execution of one task.
struct Turn<'w> {
    worker: &'w mut connection::Worker,
    deadline: Instant,
    stopped: &'w AtomicBool,
}

impl Turn<'_> {
    fn execute(&mut self, task: Task) -> Result<Done, Undone> {
        self.check(Undone::Late)?;
        match task {
            Task::Command(input, client) => self.command(&input, client).map(Done::Replied),
            Task::Look(key) => self.settle(|session| look(session, &key)).map(Done::Seen),
            Task::Delete(key) => {
                let delete =
                    |session: &Session| session.delete(&session.key(&key), &Delete::default());
                Ok(Done::Deleted(self.settle(delete)? == Deleted::Deleted))
            }
            Task::Drain(device, draining) => {
                match self.settle(|session| session.drain(&device, draining))? {
                    Ok(()) => Ok(Done::Drained),
                    Err(error) => Err(Undone::Refused(format!("{device}: {error}"))),
                }
            }
        }
    }

    /// Returns an error if the task must end now: `late` if its time is over.
    fn check(&self, late: Undone) -> Result<(), Undone> {
        if self.stopped.load(Relaxed) {
            return Err(Undone::Stopping);
        }
        if Instant::now() < self.deadline { Ok(()) } else { Err(late) }
    }

    /// Waits for a wake-up.
    fn wait(&mut self, late: Undone) -> Result<(), Undone> {
        self.check(late)?;
        self.worker.sleep();
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = self.worker.wakes_within().unwrap_or(left);
        std::thread::park_timeout(left.min(limit));
        Ok(())
    }

    /// Executes a command as a connection that ends afterwards.
    fn command(&mut self, input: &[u8], client: Peer) -> Result<CommandReply, Undone> {
        // No connection with a socket has the number 0.
        let mut connection = self.worker.connect(client, ConnectionId::new(0));
        let reply = self.converse(&mut connection, input);
        self.worker.disconnect(connection);
        reply
    }

    fn converse(
        &mut self,
        connection: &mut connection::Connection,
        mut input: &[u8],
    ) -> Result<CommandReply, Undone> {
        let mut reply = CommandReply { bytes: Vec::new(), truncated: false };
        let mut memory = OutputMemory::default();
        loop {
            self.worker.turn();
            let mut given = InputBuffer::new(input);
            let flow = self.worker.process(connection, &mut given, &mut memory.buffer(OUTPUT));
            input = given.bytes();
            let room = REPLY_MAX - reply.bytes.len();
            reply.truncated = memory.bytes().len() > room;
            reply.bytes.extend_from_slice(&memory.bytes()[..memory.bytes().len().min(room)]);
            memory.clear();
            match flow {
                _ if reply.truncated => return Ok(reply),
                Flow::Close => return Ok(reply),
                Flow::Read if given.is_postponed() => self.check(Undone::Late)?,
                // A refused value is not waited for, because it was not sent.
                Flow::Read if input.is_empty() && self.worker.is_idle(connection) => {
                    return Ok(reply);
                }
                Flow::Read if reply.bytes.is_empty() => return Err(Undone::Incomplete),
                Flow::Read => return Ok(reply),
                Flow::Drain => self.check(Undone::Late)?,
                Flow::Park => self.wait(Undone::Late)?,
                Flow::Hold => self.wait(Undone::Unconfirmed)?,
            }
        }
    }

    /// Repeats an engine call until it has a result that may be told.
    fn settle<T>(&mut self, attempt: impl Fn(&Session) -> Outcome<T>) -> Result<T, Undone> {
        let mut reads = None;
        let settled = loop {
            self.worker.turn();
            let session = self.worker.session();
            if reads.as_mut().is_some_and(|reads| session.awaits(reads)) {
                match self.wait(Undone::Late) {
                    Ok(()) => continue,
                    Err(undone) => break Err(undone),
                }
            }
            let outcome = attempt(session);
            session.forget_items();
            let wanted = session.take_reads();
            // Released only now, because this attempt may have needed the records.
            if let Some(reads) = std::mem::replace(&mut reads, wanted) {
                session.release(reads);
            }
            match outcome {
                Outcome::Ready(done) => break Ok(done),
                Outcome::AfterCommit(done, point) => break self.commit(point).map(|()| done),
                Outcome::Refused(refusal) => break Err(refused(refusal)),
                Outcome::NeedsRead | Outcome::NeedsSpace => {
                    if let Err(undone) = self.wait(Undone::Late) {
                        break Err(undone);
                    }
                }
            }
        };
        if let Some(reads) = reads {
            self.worker.session().release(reads);
        }
        settled
    }

    /// Waits until a commit has ended.
    fn commit(&mut self, point: CommitPoint) -> Result<(), Undone> {
        loop {
            let session = self.worker.session();
            let mut state = session.commit_state(point);
            if state == CommitState::Pending {
                session.wake_on_commit(point);
                // The commit may have ended before the waker was registered.
                state = session.commit_state(point);
            }
            match state {
                CommitState::Durable => return Ok(()),
                CommitState::Failed => return Err(refused(Refusal::StoreFailed)),
                CommitState::Pending => self.wait(Undone::Unconfirmed)?,
            }
            self.worker.turn();
        }
    }
}

fn refused(refusal: Refusal) -> Undone {
    Undone::Refused(refusal_line(refusal, false).trim_end().to_owned())
}

fn look(session: &Session, key: &[u8]) -> Outcome<Option<Seen>> {
    let get = Get { no_bump: true, counted_as: ReadCount::Nothing, ..Get::default() };
    let now = session.now();
    session.get_with(&session.key(key), &get).map(|got| {
        let item = got?.item;
        let value = item.value();
        Some(Seen {
            flags: item.flags(),
            ttl: item.expiry().remaining(now),
            size: value.len(),
            cas: item.cas(),
            idle: now.saturating_sub(item.last_access()),
            fetched: item.hit_before(),
            stale: item.is_stale(),
            value: value[..value.len().min(VALUE_MAX)].to_vec(),
        })
    })
}

#[cfg(test)]
mod tests {
    use larder_disk::{Failure, Fault, Operation, SimDevice};
    use larder_engine::{
        Durability, Engine, MachineTime, MonotonicClock, NANOS, Options, StoreDevice, StoreOptions,
    };

    use super::*;
    use crate::command::{Hooks, ServerContext};

    const NOW: u64 = 1_800_000_000 * NANOS;

    struct NoHooks;

    impl Hooks for NoHooks {
        fn stats(&self, _: &[u8], _: &mut dyn FnMut(&str, std::fmt::Arguments<'_>)) -> bool {
            false
        }
        fn reset_stats(&self) {}
        fn shutdown(&self, _: bool) {}
    }

    /// A store in sync mode that commits only when the test says so.
    fn store() -> (Arc<Engine>, Arc<SimDevice>) {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        let store = StoreOptions {
            devices: vec![StoreDevice {
                name: "store".to_owned(),
                device: Arc::<SimDevice>::clone(&device),
                lower: None,
                seeds: [1, 2, 3],
            }],
            forget: Vec::new(),
            durability: Durability::Sync,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
            opened: MachineTime { wall: NOW, ..MachineTime::default() },
        };
        let options = Options { memory: 64 << 20, store: Some(store), ..Options::default() };
        (Engine::open_without_threads(options).unwrap(), device)
    }

    fn execute(engine: &Arc<Engine>, patience: Duration, task: Task) -> Result<Done, Undone> {
        let context = Arc::new(ServerContext::new(Arc::clone(engine), 0, Box::new(NoHooks)));
        let session = engine.session(Waker::from(Arc::new(Parked(std::thread::current()))));
        let mut worker = connection::Worker::new(context, session, Box::new(|| NOW));
        let (deadline, stopped) = (Instant::now() + patience, AtomicBool::new(false));
        let done = Turn { worker: &mut worker, deadline, stopped: &stopped }.execute(task);
        worker.sleep();
        done
    }

    fn set() -> Task {
        Task::Command(b"set a 0 0 1\r\nx\r\n".to_vec(), Peer::Unix)
    }

    /// Executes while another thread makes commits.
    fn with_commits(engine: &Arc<Engine>, task: Task) -> Result<Done, Undone> {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while ended
                    .recv_timeout(Duration::from_millis(1))
                    .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    engine.commit();
                }
            });
            let done = execute(engine, Duration::from_secs(60), task);
            drop(end);
            done
        })
    }

    #[test]
    fn nothing_is_told_before_it_is_durable() {
        let (engine, _) = store();
        let short = Duration::from_millis(50);
        assert_eq!(execute(&engine, short, set()).unwrap_err(), Undone::Unconfirmed);
        let look = || Task::Look(b"a".to_vec());
        assert_eq!(execute(&engine, short, look()).unwrap_err(), Undone::Unconfirmed);
        assert!(engine.commit());
        assert!(matches!(execute(&engine, short, look()), Ok(Done::Seen(Some(_)))));
        let delete = || Task::Delete(b"a".to_vec());
        assert_eq!(execute(&engine, short, delete()).unwrap_err(), Undone::Unconfirmed);
        let done = with_commits(&engine, set()).unwrap();
        assert!(matches!(done, Done::Replied(reply) if reply.bytes == b"STORED\r\n"));
        assert!(matches!(with_commits(&engine, delete()), Ok(Done::Deleted(true))));
        assert!(matches!(with_commits(&engine, delete()), Ok(Done::Deleted(false))));
        assert!(matches!(with_commits(&engine, look()), Ok(Done::Seen(None))));
    }

    #[test]
    fn a_failed_commit_is_told() {
        let (engine, device) = store();
        with_commits(&engine, set()).unwrap();
        device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        let Ok(Done::Replied(reply)) = with_commits(&engine, set()) else { panic!("no reply") };
        assert!(reply.bytes.starts_with(b"SERVER_ERROR"), "{}", reply.bytes.escape_ascii());
        let deleted = with_commits(&engine, Task::Delete(b"a".to_vec()));
        assert!(matches!(deleted, Err(Undone::Refused(_))), "{deleted:?}");
        device.mend();
        let Ok(Done::Seen(Some(seen))) = with_commits(&engine, Task::Look(b"a".to_vec())) else {
            panic!("the delete was not kept, so the item is there")
        };
        assert_eq!(seen.value, b"x");
    }

    #[test]
    fn a_task_whose_time_is_over_is_not_executed() {
        let (engine, _) = store();
        assert_eq!(execute(&engine, Duration::ZERO, set()).unwrap_err(), Undone::Late);
        let Ok(Done::Seen(seen)) = execute(&engine, PATIENCE, Task::Look(b"a".to_vec())) else {
            panic!("no reply")
        };
        assert!(seen.is_none());
    }
}
