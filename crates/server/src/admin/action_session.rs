//! The engine session of the admin port. The session executes the tasks of operators (commands,
//! look-ups, deletes and drains), one at a time. It has its own thread, so that tasks do not delay
//! health checks. The first task starts the thread, so a server whose operators send none does not
//! have the thread.
//!
//! The same [`Service`] as in the workers executes a command, with memory in place of a socket. So
//! the command has the same effect as the command of a client, and its reply waits for the same
//! commit.
//!
//! Invariants: the session is asleep whenever the thread waits. [`ActionSession::close`] lets no
//! further task begin, and [`ActionSession::stop`] also waits for the task that is being executed.
//! So the store can be closed after `stop`. Every request ends within [`PATIENCE`] of its arrival.
//! If a task has no result, the reply says how much of the task was executed, see [`TaskError`].

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_engine::{
    CommitPoint, CommitState, Delete, Deleted, Get, Outcome, ReadCount, Refusal, Session,
};
use larder_protocol::text::{self, Admin, Request};
use larder_protocol::{Parse, Then};
use tokio::sync::oneshot;

use crate::command::refusal_line;
use crate::connection;
use crate::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};
use crate::server::Running;
use crate::unpark::waker_of_this_thread;

/// The longest time from the arrival of a request to its reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The largest number of requests that wait for the session. More are refused as
/// [`TaskError::Busy`].
const WAITING: usize = 4;
/// The largest number of bytes of a command's reply that are returned. The rest is cut off.
pub(super) const REPLY_MAX: usize = 1 << 20;
/// The limit of the output of one call of the service, in bytes. The limit is soft: see
/// [`OutputBuffer`](crate::net::OutputBuffer).
const OUTPUT: usize = 64 << 10;
/// The longest time that a stop waits until all requests are answered.
const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The largest part of a value that a look-up returns, in bytes.
pub(super) const VALUE_MAX: usize = 64 << 10;

/// A task for the session.
#[derive(Debug)]
pub(super) enum Task {
    /// Executes one command of the text protocol, as the given client.
    Command(Vec<u8>, Peer),
    /// Shows the item of a key, without counting as a read.
    Look(Vec<u8>),
    /// Deletes the item of a key.
    Delete(Vec<u8>),
    /// Drains a device of the store, or with `false` cancels its drain.
    Drain(String, bool),
}

/// The result of a task.
#[derive(Debug)]
pub(super) enum Done {
    Replied(CommandReply),
    /// The item of the key; `None` if there is none.
    Seen(Option<Seen>),
    /// True if there was an item, which is now deleted.
    Deleted(bool),
    Drained,
}

/// The reply to a command.
#[derive(Debug)]
pub(super) struct CommandReply {
    pub(super) bytes: Vec<u8>,
    /// True if `bytes` has only the first [`REPLY_MAX`] bytes of the reply.
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
pub(super) enum TaskError {
    /// Too many requests wait. The task was not executed.
    Busy,
    /// The server stops. The task was not executed.
    Stopping,
    /// The deadline passed before the task was executed completely. A part of the task may have
    /// been executed.
    Late,
    /// The task was executed, at least in part, but the deadline passed before the commit that its
    /// reply depends on had ended.
    Unconfirmed,
    /// The task requested a change, but the devices did not record the change before the deadline.
    /// They will record it later, unless the server stops before that.
    Asked,
    /// The service closed the connection on which the command was executed, or the thread panicked,
    /// before the reply was complete.
    Broken,
    /// The operator's input ends before the command does, for example in the middle of a value.
    Incomplete,
    /// The engine refused the task or the kernel gave no thread for it, for this reason.
    Refused(String),
}

#[derive(Debug)]
struct ActionCall {
    task: Task,
    arrived: Instant,
    reply: oneshot::Sender<Result<Done, TaskError>>,
}

/// The session of the admin port. Its thread begins with the first task.
#[derive(Debug, Default)]
pub(super) struct ActionSession {
    state: Mutex<ActionSessionState>,
    /// Number of requests that are not answered yet.
    unanswered: Mutex<usize>,
    answered: Condvar,
}

#[derive(Debug, Default)]
enum ActionSessionState {
    #[default]
    NotBegun,
    Runs(ActionThread),
    /// No further task begins. The value is the thread until [`ActionSession::stop`] joins it;
    /// `None` afterwards, or if no thread had begun.
    Closed(Option<ActionThread>),
}

#[derive(Debug)]
struct ActionThread {
    calls: SyncSender<ActionCall>,
    end: Arc<StopDeadline>,
    thread: JoinHandle<()>,
}

/// The deadline that a stop of the server sets for the task that is being executed. Once it is set,
/// no task begins any more.
#[derive(Debug, Default)]
struct StopDeadline(Mutex<Option<Instant>>);

impl StopDeadline {
    fn is_set(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Sets the deadline, unless an earlier one is set.
    fn set(&self, at: Instant) {
        let mut end = lock(&self.0);
        *end = Some(end.map_or(at, |end| end.min(at)));
    }

    /// Returns the deadline that a stop has set, if it is earlier than `deadline`, or else
    /// `deadline`.
    fn limit(&self, deadline: Instant) -> Instant {
        lock(&self.0).map_or(deadline, |end| end.min(deadline))
    }
}

/// Counts a request until it is answered.
struct Unanswered<'s>(&'s ActionSession);

impl<'s> Unanswered<'s> {
    fn new(session: &'s ActionSession) -> Self {
        *lock(&session.unanswered) += 1;
        Unanswered(session)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        *lock(&self.0.unanswered) -= 1;
        self.0.answered.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ActionSession {
    /// Sends a task to the session's thread and waits for the result.
    pub(super) async fn execute(
        &self,
        running: &Arc<Running>,
        task: Task,
    ) -> Result<Done, TaskError> {
        let _unanswered = Unanswered::new(self);
        let (reply, replied) = oneshot::channel();
        self.send(running, ActionCall { task, arrived: Instant::now(), reply })?;
        // The session's thread replies to every task, unless it panics.
        replied.await.unwrap_or(Err(TaskError::Broken))
    }

    fn send(&self, running: &Arc<Running>, call: ActionCall) -> Result<(), TaskError> {
        let mut state = lock(&self.state);
        if let ActionSessionState::NotBegun = *state {
            *state = ActionSessionState::Runs(begin(running)?);
        }
        match &*state {
            ActionSessionState::Runs(thread) => {
                thread.calls.try_send(call).map_err(|error| match error {
                    TrySendError::Full(_) => TaskError::Busy,
                    TrySendError::Disconnected(_) => TaskError::Stopping,
                })
            }
            ActionSessionState::NotBegun | ActionSessionState::Closed(_) => {
                Err(TaskError::Stopping)
            }
        }
    }

    #[cfg(test)]
    pub(super) fn has_not_begun(&self) -> bool {
        matches!(*lock(&self.state), ActionSessionState::NotBegun)
    }

    /// Begins no further tasks. The task that is being executed has `grace` to finish, but at most
    /// [`PATIENCE`] from its arrival. A second call of this function may shorten `grace`.
    pub(super) fn close(&self, grace: Duration) {
        let mut state = lock(&self.state);
        let thread = match std::mem::replace(&mut *state, ActionSessionState::Closed(None)) {
            ActionSessionState::NotBegun => None,
            ActionSessionState::Runs(thread) => Some(thread),
            ActionSessionState::Closed(thread) => thread,
        };
        if let Some(thread) = &thread {
            thread.end.set(Instant::now() + grace);
            thread.thread.thread().unpark();
        }
        *state = ActionSessionState::Closed(thread);
    }

    /// Ends the session. First waits for the task that is being executed, then until all requests
    /// are answered, but for this at most [`REPLY_GRACE`].
    pub(super) fn stop(&self) {
        self.close(PATIENCE);
        let state = std::mem::replace(&mut *lock(&self.state), ActionSessionState::Closed(None));
        if let ActionSessionState::Closed(Some(ActionThread { calls, thread, .. })) = state {
            drop(calls);
            // `join` fails if the thread has panicked. A thread that has panicked executes nothing
            // either.
            let _ = thread.join();
        }
        let unanswered = lock(&self.unanswered);
        let _ = self.answered.wait_timeout_while(unanswered, REPLY_GRACE, |count| *count > 0);
    }
}

fn begin(running: &Arc<Running>) -> Result<ActionThread, TaskError> {
    let (calls, called) = sync_channel(WAITING);
    let end = Arc::new(StopDeadline::default());
    let (running, ends) = (Arc::clone(running), Arc::clone(&end));
    let thread = std::thread::Builder::new()
        .name("admin-session".to_owned())
        .spawn(move || serve(&running, &called, &ends))
        .map_err(|error| TaskError::Refused(format!("no thread: {error}")))?;
    Ok(ActionThread { calls, end, thread })
}

fn serve(running: &Running, calls: &Receiver<ActionCall>, end: &StopDeadline) {
    let Some(context) = running.context() else { return };
    let session = running.engine.session(waker_of_this_thread());
    let clock = running.clock;
    let mut worker = connection::Worker::new(context, session, Box::new(move || clock.nanos()));
    worker.sleep();
    while let Ok(ActionCall { task, arrived, reply }) = calls.recv() {
        // The client may have disconnected while its call waited in the channel.
        if reply.is_closed() {
            continue;
        }
        let done = if end.is_set() {
            Err(TaskError::Stopping)
        } else {
            let done =
                TaskRun { worker: &mut worker, deadline: arrived + PATIENCE, end }.execute(task);
            worker.sleep();
            done
        };
        let _ = reply.send(done);
    }
}

/// The execution of one task.
struct TaskRun<'w> {
    worker: &'w mut connection::Worker,
    deadline: Instant,
    end: &'w StopDeadline,
}

impl TaskRun<'_> {
    fn execute(&mut self, task: Task) -> Result<Done, TaskError> {
        if Instant::now() >= self.deadline {
            return Err(TaskError::Late);
        }
        match task {
            Task::Command(input, client) => self.command(&input, client).map(Done::Replied),
            Task::Look(key) => {
                self.settle(|session| look(session, &key), TaskError::Late).map(Done::Seen)
            }
            Task::Delete(key) => {
                let delete =
                    |session: &Session| session.delete(&session.key(&key), &Delete::default());
                Ok(Done::Deleted(self.settle(delete, TaskError::Late)? == Deleted::Deleted))
            }
            Task::Drain(device, draining) => {
                match self.settle(|session| session.drain(&device, draining), TaskError::Asked)? {
                    Ok(()) => Ok(Done::Drained),
                    Err(error) => Err(TaskError::Refused(format!("{device}: {error}"))),
                }
            }
        }
    }

    /// Waits until the engine wakes this thread, the task's deadline passes, or the worker's next
    /// turn is due. If the deadline has already passed, returns `late` without waiting.
    fn wait(&mut self, late: TaskError) -> Result<(), TaskError> {
        let now = Instant::now();
        let left = self.end.limit(self.deadline).saturating_duration_since(now);
        if left.is_zero() {
            return Err(late);
        }
        self.worker.sleep();
        let limit = self.worker.wakes_within().unwrap_or(left);
        std::thread::park_timeout(left.min(limit));
        Ok(())
    }

    /// Executes a command on a new connection, and closes the connection afterwards.
    fn command(&mut self, input: &[u8], client: Peer) -> Result<CommandReply, TaskError> {
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
    ) -> Result<CommandReply, TaskError> {
        let mut reply = CommandReply { bytes: Vec::new(), truncated: false };
        let mut memory = OutputMemory::default();
        let nature = CommandEnding::of(input);
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
                Flow::Close if nature == CommandEnding::Closes => return Ok(reply),
                Flow::Close => return Err(TaskError::Broken),
                Flow::Read if given.is_postponed() => {}
                // The reply is complete once the connection is idle. If the connection has replied
                // but is not idle, it has refused a storage command and waits for the bytes of the
                // value, to discard them. This reply is complete too.
                Flow::Read if input.is_empty() && self.worker.is_idle(connection) => {
                    return Ok(reply);
                }
                Flow::Read if reply.bytes.is_empty() => return Err(TaskError::Incomplete),
                Flow::Read => return Ok(reply),
                Flow::Drain => {}
                Flow::Park | Flow::Hold if connection.withholds() => {
                    self.wait(TaskError::Unconfirmed)?;
                }
                Flow::Park | Flow::Hold if nature == CommandEnding::Asks => {
                    self.wait(TaskError::Asked)?
                }
                Flow::Park | Flow::Hold => self.wait(TaskError::Late)?,
            }
        }
    }

    /// Repeats an engine call until it has a result that a client may see. Returns `late` if the
    /// task's deadline passes before.
    fn settle<T>(
        &mut self,
        attempt: impl Fn(&Session) -> Outcome<T>,
        late: TaskError,
    ) -> Result<T, TaskError> {
        let mut reads = None;
        let settled = loop {
            self.worker.turn();
            let session = self.worker.session();
            if reads.as_mut().is_some_and(|reads| session.awaits(reads)) {
                match self.wait(late.clone()) {
                    Ok(()) => continue,
                    Err(undone) => break Err(undone),
                }
            }
            let outcome = attempt(session);
            session.forget_items();
            reads = session.retake_reads(reads);
            match outcome {
                Outcome::Ready(done) => break Ok(done),
                Outcome::AfterCommit(done, point) => break self.commit(point).map(|()| done),
                Outcome::Refused(refusal) => break Err(refused(refusal)),
                Outcome::NeedsRead | Outcome::NeedsSpace => {
                    if let Err(undone) = self.wait(late.clone()) {
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

    /// Waits until a commit is durable. Returns an error if it fails or the deadline passes.
    fn commit(&mut self, point: CommitPoint) -> Result<(), TaskError> {
        loop {
            match self.worker.session().commit_state_or_wake(point) {
                CommitState::Durable => return Ok(()),
                CommitState::Failed => return Err(refused(Refusal::StoreFailed)),
                CommitState::Pending => self.wait(TaskError::Unconfirmed)?,
            }
            self.worker.turn();
        }
    }
}

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandEnding {
    /// The command ends with its reply. If the connection closes earlier, the reply is incomplete.
    Replies,
    /// The connection closes after the reply.
    Closes,
    /// The reply comes when the requested change is done. If the client disconnects before the
    /// reply, the change goes on.
    Asks,
}

impl CommandEnding {
    fn of(input: &[u8]) -> CommandEnding {
        match text::parse(input, &mut Vec::<&[u8]>::new()) {
            Parse::Request {
                request: Request::Quit | Request::Admin(Admin::Shutdown(_)), ..
            }
            | Parse::Refused { then: Then::Close, .. } => CommandEnding::Closes,
            Parse::Request {
                request: Request::Admin(Admin::Device(_) | Admin::Grow(_)), ..
            } => CommandEnding::Asks,
            _ => CommandEnding::Replies,
        }
    }
}

fn refused(refusal: Refusal) -> TaskError {
    TaskError::Refused(refusal_line(refusal, false).trim_end().to_owned())
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

    /// Opens a store in sync mode without threads, so that it commits only when the test says so.
    fn store() -> (Arc<Engine>, Arc<SimDevice>) {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        (on(&[&device]), device)
    }

    /// A store whose devices are called `0`, `1` and so on.
    fn on(devices: &[&Arc<SimDevice>]) -> Arc<Engine> {
        let device = |(number, device): (usize, &&Arc<SimDevice>)| StoreDevice {
            name: number.to_string(),
            device: Arc::<SimDevice>::clone(device),
            lower: None,
            seeds: [1, 2, 3].map(|seed| seed + 10 * number as u64),
        };
        let store = StoreOptions {
            devices: devices.iter().enumerate().map(device).collect(),
            forget: Vec::new(),
            durability: Durability::Sync,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
            opened: MachineTime { wall: NOW, ..MachineTime::default() },
        };
        let options = Options { memory: 64 << 20, store: Some(store), ..Options::default() };
        Engine::open_without_threads(options).unwrap()
    }

    fn execute(engine: &Arc<Engine>, patience: Duration, task: Task) -> Result<Done, TaskError> {
        execute_until(engine, patience, &StopDeadline::default(), task)
    }

    fn execute_until(
        engine: &Arc<Engine>,
        patience: Duration,
        end: &StopDeadline,
        task: Task,
    ) -> Result<Done, TaskError> {
        let context = Arc::new(ServerContext::new(Arc::clone(engine), 0, Box::new(NoHooks)));
        let session = engine.session(waker_of_this_thread());
        let mut worker = connection::Worker::new(context, session, Box::new(|| NOW));
        let deadline = Instant::now() + patience;
        let done = TaskRun { worker: &mut worker, deadline, end }.execute(task);
        worker.sleep();
        done
    }

    fn command(line: &str) -> Task {
        Task::Command(format!("{line}\r\n").into_bytes(), Peer::Unix)
    }

    fn set() -> Task {
        command("set a 0 0 1\r\nx")
    }

    /// The length of a value that is longer than the output of one call, in bytes.
    const LONG: usize = 3 * OUTPUT;

    fn set_long() -> Task {
        command(&format!("set long 0 0 {LONG}\r\n{}", "v".repeat(LONG)))
    }

    const SHORT: Duration = Duration::from_millis(50);

    /// Executes a task while another thread makes commits.
    fn with_commits(engine: &Arc<Engine>, task: Task) -> Result<Done, TaskError> {
        with_commits_until(engine, &StopDeadline::default(), task)
    }

    fn with_commits_until(
        engine: &Arc<Engine>,
        limit: &StopDeadline,
        task: Task,
    ) -> Result<Done, TaskError> {
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
            let done = execute_until(engine, Duration::from_secs(60), limit, task);
            drop(end);
            done
        })
    }

    #[test]
    fn nothing_is_told_before_it_is_durable() {
        let (engine, _) = store();
        let short = SHORT;
        assert_eq!(execute(&engine, short, set()).unwrap_err(), TaskError::Unconfirmed);
        let look = || Task::Look(b"a".to_vec());
        assert_eq!(execute(&engine, short, look()).unwrap_err(), TaskError::Unconfirmed);
        assert!(engine.commit());
        assert!(matches!(execute(&engine, short, look()), Ok(Done::Seen(Some(_)))));
        let delete = || Task::Delete(b"a".to_vec());
        assert_eq!(execute(&engine, short, delete()).unwrap_err(), TaskError::Unconfirmed);
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
        assert!(matches!(deleted, Err(TaskError::Refused(_))), "{deleted:?}");
        device.mend();
        let Ok(Done::Seen(Some(seen))) = with_commits(&engine, Task::Look(b"a".to_vec())) else {
            panic!("the delete was not kept, so the item is there")
        };
        assert_eq!(seen.value, b"x");
    }

    /// A long value is withheld in another way than a short reply. In both cases, the result must
    /// be `Unconfirmed`.
    #[test]
    fn a_withheld_long_value_is_not_told_as_not_executed() {
        let (engine, _) = store();
        with_commits(&engine, set_long()).unwrap();
        for line in ["gat 1000 long", "mg long v T800", "get long"] {
            assert_eq!(
                execute(&engine, SHORT, command("touch long 500")).unwrap_err(),
                TaskError::Unconfirmed
            );
            let done = execute(&engine, SHORT, command(line));
            assert_eq!(done.unwrap_err(), TaskError::Unconfirmed, "{line}");
            let Ok(Done::Replied(reply)) = with_commits(&engine, command(line)) else {
                panic!("{line}: no reply")
            };
            assert!(reply.bytes.len() > LONG, "{line}: {}", reply.bytes.len());
        }
    }

    /// When the commit that a long reply waits for fails, the connection closes, because no error
    /// can replace the beginning of a value. The result must be `Broken`.
    #[test]
    fn a_reply_that_breaks_off_is_told() {
        let (engine, device) = store();
        with_commits(&engine, set_long()).unwrap();
        device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        let done = with_commits(&engine, command("gat 700 long"));
        assert_eq!(done.unwrap_err(), TaskError::Broken);
        device.mend();
        for line in ["quit", "GET / HTTP/1.1"] {
            let done = with_commits(&engine, command(line));
            assert!(
                matches!(&done, Ok(Done::Replied(reply)) if reply.bytes.is_empty()),
                "{done:?}"
            );
        }
    }

    /// In this test, no thread moves partitions, so a drain does not end. The simulated device
    /// delays a sync, so the growth of the store does not end either. So requests for a drain and
    /// for a growth must end as `Asked`.
    #[test]
    fn tasks_that_continue_without_a_reply_end_as_asked() {
        let [first, second] = [1, 2].map(|seed| Arc::new(SimDevice::new(64 << 20, seed)));
        let engine = on(&[&first, &second]);
        let drain = |draining| Task::Drain("1".to_owned(), draining);
        assert_eq!(execute(&engine, SHORT, drain(true)).unwrap_err(), TaskError::Asked);
        assert_eq!(
            execute(&engine, SHORT, command("store drain 1")).unwrap_err(),
            TaskError::Asked
        );
        // A drain that has not begun can still be cancelled.
        assert!(matches!(execute(&engine, SHORT, drain(false)), Ok(Done::Drained)));
        engine.move_partitions();
        assert!(engine.lanes().iter().all(|lane| !lane.draining));
        assert_eq!(execute(&engine, Duration::ZERO, drain(true)).unwrap_err(), TaskError::Late);
        first.hold(Operation::Sync);
        let grow = command(&format!("store grow {} 0", 128 << 20));
        let grown = execute(&engine, SHORT, grow);
        first.release();
        assert_eq!(grown.unwrap_err(), TaskError::Asked);
    }

    /// During a stop, the task that is being executed has some time left. The result must say
    /// whether the task was executed.
    #[test]
    fn a_stop_tells_whether_a_task_was_executed() {
        let (engine, _) = store();
        let (over, later) = (StopDeadline::default(), StopDeadline::default());
        over.set(Instant::now());
        later.set(Instant::now() + Duration::from_secs(60));
        let long = Duration::from_secs(60);
        let unconfirmed = execute_until(&engine, long, &over, set());
        assert_eq!(unconfirmed.unwrap_err(), TaskError::Unconfirmed);
        let done = with_commits_until(&engine, &later, set());
        assert!(matches!(done, Ok(Done::Replied(reply)) if reply.bytes == b"STORED\r\n"));
        // A second request to stop shortens the deadline that the first one has set.
        std::thread::scope(|scope| {
            let (waits, waited) = std::sync::mpsc::channel();
            let (engine, later) = (&engine, &later);
            let thread = scope.spawn(move || {
                waits.send(std::thread::current()).unwrap();
                execute_until(engine, long, later, set())
            });
            let waiting = waited.recv().unwrap();
            later.set(Instant::now() + SHORT);
            waiting.unpark();
            assert_eq!(thread.join().unwrap().unwrap_err(), TaskError::Unconfirmed);
        });
        // A command that need not wait gets its reply even after the deadline of the stop.
        assert!(matches!(execute_until(&engine, long, &over, command("mn")), Ok(Done::Replied(_))));
    }

    #[test]
    fn a_task_whose_time_is_over_is_not_executed() {
        let (engine, _) = store();
        assert_eq!(execute(&engine, Duration::ZERO, set()).unwrap_err(), TaskError::Late);
        let Ok(Done::Seen(seen)) = execute(&engine, PATIENCE, Task::Look(b"a".to_vec())) else {
            panic!("no reply")
        };
        assert!(seen.is_none());
    }
}
