//! The part that the event loops over epoll and io_uring share: connections, calls of the service,
//! placement of new connections, and time. The loops themselves move bytes and wait for events.
//!
//! A connection is *served* while it has a service state. A connection that the service has ended,
//! or that was rejected, *lingers*: it sends no more output, and waits until the client shuts down
//! its sending side or [`LINGER_MS`] have passed. Without lingering, the kernel would reset a
//! connection that is closed with unread input. The reset might overtake replies that are still on
//! their way. After lingering, the connection is removed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::byte_queue::ByteQueue;
use super::control::{Order, Shared};
use super::counters::Counters;
use super::incoming::{Incoming, Receipt};
use super::slab::Slab;
use super::transport::{self, Moved};
use super::{Flow, InputBuffer, MAX_INPUT_HELD, OutputMemory, Service};

/// The reply to a client that is rejected because of the connection limit.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// The longest time for which a connection lingers, in milliseconds.
const LINGER_MS: u64 = 2_000;
/// A rejected client lingers only while fewer than this many connections of the worker linger.
/// Otherwise its connection is closed at once.
const MAX_LINGERING_REJECTED: usize = 64;
/// Time until a worker accepts again after an accept has failed for lack of descriptors or memory,
/// in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// The largest number of steps per turn for the connections of the ready list, which can continue
/// without an event of the kernel. A connection that only has replies to send costs one step. So
/// after a commit, the many connections that waited for it continue within a few turns.
const STEPS: usize = 64;
/// Number of steps that a connection costs if it has unprocessed requests, or more replies than fit
/// into the output. So only a few such connections continue per turn, and new input of other
/// connections does not wait long.
const STEPS_OF_REQUESTS: usize = 8;
/// Time after its first step of a turn in which a worker may begin further steps. If the worker
/// took longer than this to handle the kernel's events of the turn, it may begin steps for as long
/// as that took. A running step is not interrupted.
pub(super) const STEPS_TIME: Duration = Duration::from_micros(100);
/// The largest number of bytes per receive call.
pub(super) const READ_SIZE: usize = 32 << 10;
/// The largest number of bytes per receive call for a client that sends [long
/// values](ConnectedSocket::sends_values). The first call receives the header of a request and a
/// little of its value, and the service then receives the rest without a copy.
const READ_SIZE_OF_VALUES: usize = 8 << 10;
/// The largest input that a service sees in one call, in bytes. A service that waits for more input
/// must leave fewer than [`MAX_INPUT_HELD`] bytes unconsumed. So every call with a full window
/// makes progress or ends the connection.
pub(super) const INPUT_WINDOW: usize = 2 * MAX_INPUT_HELD;

/// A connected socket with its buffers, and the service's state of the connection. `I` is the
/// additional state that the loop keeps for it.
#[derive(Debug)]
pub(super) struct ConnectedSocket<C, I> {
    pub(super) socket: OwnedFd,
    /// The service's state of the connection. `None` while the connection lingers.
    pub(super) service: Option<C>,
    /// Input that the service has not consumed.
    pub(super) input: ByteQueue,
    /// Output that the socket has not taken.
    pub(super) output: ByteQueue,
    pub(super) flow: Flow,
    /// True if the client has ended its side, so that no more input follows.
    pub(super) ended: bool,
    /// True if `input` holds bytes that the service has not seen, or that it has postponed.
    pub(super) unseen: bool,
    /// True if the service has postponed bytes of `input`.
    pub(super) postponed: bool,
    /// True if the service expects bytes of a long value.
    expects_value: bool,
    /// True if the last requests had long values, so that the next one most probably has one too.
    pub(super) sends_values: bool,
    /// True if the last call of the service filled the output.
    filled: bool,
    /// True if the connection is in the ready list of [`Core`].
    pub(super) queued: bool,
    /// True if the connection is in the `parked` list of [`Core`]. The connections of this list
    /// continue after a wake-up.
    listed: bool,
    /// Time of the last call of the service, of the last write from `output`, or of the beginning
    /// of lingering, in [coarse milliseconds](coarse_ms).
    pub(super) stamp: u64,
    /// The last time at which the connection's buffers were empty, in coarse milliseconds.
    pub(super) empty_at: u64,
    /// Number of bytes that the service has consumed, or that the socket has taken from `output`,
    /// since `empty_at`.
    pub(super) moved: u64,
    pub(super) io: I,
}

impl<C, I> ConnectedSocket<C, I> {
    /// Must be called before the connection's buffers change. If the buffers are empty, sets
    /// `empty_at` to `now`: the connection has kept no bytes until now.
    #[inline]
    fn note_kept(&mut self, now: u64) {
        if self.input.is_empty() && self.output.is_empty() {
            (self.empty_at, self.moved) = (now, 0);
        }
    }

    /// Tells the service the sizes of the connection's buffers.
    fn note_buffers(&mut self, service: &mut impl Service<Connection = C>) {
        if let Some(state) = &mut self.service {
            service.notes_buffers(state, self.input.capacity(), self.output.capacity());
        }
    }

    /// Returns true if the service may process arriving input at once, because no unsent output,
    /// unseen input or parked command comes before it.
    #[inline]
    pub(super) fn takes_input(&self) -> bool {
        self.service.is_some() && self.output.is_empty() && !self.unseen && self.flow.reads()
    }

    /// Returns true if all received input is consumed, and the service can receive the next bytes
    /// itself.
    #[inline]
    pub(super) fn expects_value(&self) -> bool {
        self.expects_value && self.takes_input() && self.input.is_empty()
    }

    /// Returns the largest number of bytes that the next receive call should return.
    #[inline]
    pub(super) fn read_size(&self) -> usize {
        if self.sends_values { READ_SIZE_OF_VALUES } else { READ_SIZE }
    }
}

/// The result of accepting a socket.
pub(super) enum Admission {
    /// This worker serves the socket.
    Own(OwnedFd),
    /// Another worker serves the socket, which was handed over to it.
    HandedOver,
    /// No worker serves the socket. The client was told that there are too many connections. The
    /// socket should linger.
    Rejected(OwnedFd),
}

/// The number of connections of the ready list that may still continue in this turn, and the time
/// after which no further connection continues.
pub(super) struct StepBudget {
    left: usize,
    /// Set when the first of several connections continues. For a single connection no deadline is
    /// needed, so the clock is not read.
    until: Option<Instant>,
}

/// The part of a worker that does not depend on the kernel interface.
pub(super) struct Core<S: Service, I> {
    pub(super) service: S,
    pub(super) connections: Slab<ConnectedSocket<S::Connection, I>>,
    pub(super) shared: Arc<Shared>,
    pub(super) counters: Arc<Counters>,
    pub(super) index: usize,
    /// The latest [order](Order) to all workers, for example to stop, that this worker has
    /// followed.
    pub(super) order: Order,
    /// Time of the first call of [sweep](Self::sweep) after the order to stop, in coarse
    /// milliseconds.
    stopping_since: Option<u64>,
    /// The time until which accepting pauses after a failure, in coarse milliseconds.
    pub(super) accept_again: Option<u64>,
    /// True if it is possible that connections keep more bytes than at the last check of the
    /// budget, see `relief.rs`.
    pub(super) budget_check_due: bool,
    /// The earliest time for the next check of the budget, in coarse milliseconds. Set after a
    /// check that closed no connection.
    pub(super) next_budget_check: u64,
    parked: Vec<u32>,
    ready: VecDeque<u32>,
    lingering: usize,
    now: u64,
    /// The time at which this turn began. `None` if the ready list was empty at that time. Then
    /// [`next_ready`](Self::next_ready) counts the time of this turn's events as 0, so that most
    /// turns need not read the exact clock when they begin.
    turn_began: Option<Instant>,
    next_sweep: u64,
}

impl<S: Service, I> Core<S, I> {
    pub(super) fn new(shared: Arc<Shared>, index: usize, service: S) -> Self {
        let counters = Arc::clone(&shared.workers[index].counters);
        Core {
            service,
            connections: Slab::new(),
            shared,
            counters,
            index,
            order: Order::Serve,
            stopping_since: None,
            accept_again: None,
            budget_check_due: false,
            next_budget_check: 0,
            parked: Vec::new(),
            ready: VecDeque::new(),
            lingering: 0,
            now: coarse_ms(),
            turn_began: None,
            next_sweep: 0,
        }
    }

    /// Calls the service for a served connection. If `whole` is given, the service gets `whole`,
    /// which must begin with the input that the connection holds. Otherwise the service gets the
    /// held input. Writes replies to `replies`, which must be empty. Returns true if the service
    /// was called.
    #[inline]
    pub(super) fn execute(
        &mut self,
        key: u32,
        whole: Option<&[u8]>,
        replies: &mut OutputMemory,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Some(state) = &mut connection.service else { return false };
        let budget = &*self.shared.options.budget;
        let all = whole.unwrap_or(connection.input.bytes());
        let seen = all.len().min(INPUT_WINDOW);
        let mut input = InputBuffer::new(&all[..seen]);
        let mut output = replies.buffer(self.shared.options.output_limit);
        let flow = self.service.process(state, &mut input, &mut output);
        let (consumed, postponed) = (input.consumed(), input.is_postponed());
        let expects_value = input.expects_value();
        self.counters.processed.add(1);
        connection.flow = flow;
        connection.filled = flow == Flow::Drain;
        connection.stamp = self.now;
        connection.moved += consumed as u64;
        connection.unseen = postponed || seen < all.len();
        connection.postponed = postponed;
        // A call that consumes input without a long value shows that the client sends other
        // requests now.
        connection.sends_values =
            expects_value || connection.sends_values && (connection.expects_value || consumed == 0);
        connection.expects_value = expects_value;
        if whole.is_none() && connection.input.is_empty() {
            // The service got no input, so no unconsumed input has to be kept.
        } else {
            connection.note_kept(self.now);
            let before = connection.input.capacity();
            match whole {
                Some(all) => connection.input.replace(&all[consumed..], budget),
                None => connection.input.consume(consumed, budget),
            }
            if connection.input.capacity() != before {
                self.counters.buffer_bytes.adjust(before, connection.input.capacity());
                self.budget_check_due |= connection.input.capacity() > before;
                connection.note_buffers(&mut self.service);
            }
            if flow.reads() && !postponed && seen - consumed >= MAX_INPUT_HELD {
                self.counters.input_overflows.add(1);
                connection.flow = Flow::Close;
            }
        }
        if connection.flow.waits() {
            // The service may keep withheld replies, which count against the budget. So the budget
            // must be checked.
            self.budget_check_due = true;
            if !connection.listed {
                connection.listed = true;
                self.parked.push(key);
            }
        }
        true
    }

    /// Receives once by system call. The first bytes of `memory` then are the input for the next
    /// call of the service, with the input that the connection holds. Returns what was received,
    /// and the length of this input. `memory` must have room for the held input and [`READ_SIZE`]
    /// bytes.
    #[inline]
    pub(super) fn receive(&mut self, key: u32, memory: &mut [u8]) -> Option<(Receipt, usize)> {
        let connection = self.connections.get_mut(key)?;
        let kept = connection.input.len();
        memory[..kept].copy_from_slice(connection.input.bytes());
        let room = &mut memory[kept..kept + connection.read_size()];
        if connection.expects_value()
            && let Some(state) = &mut connection.service
        {
            let mut incoming = Incoming::new(&connection.socket, room);
            self.service.receive(state, &mut incoming);
            if let Some(received) = incoming.received() {
                return Some((received, received.rest));
            }
        }
        let moved = transport::receive(&connection.socket, room);
        let rest = if let Moved::Bytes(n) = moved { n } else { 0 };
        Some((Receipt { moved, rest, full: rest == room.len() }, kept + rest))
    }

    /// Appends input that cannot be processed now to the input that the connection holds.
    pub(super) fn hold_input(&mut self, key: u32, bytes: &[u8]) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note_kept(now);
        let before = connection.input.capacity();
        connection.input.append(bytes, &*self.shared.options.budget);
        self.counters.buffer_bytes.adjust(before, connection.input.capacity());
        connection.note_buffers(&mut self.service);
        connection.unseen = true;
        self.budget_check_due = true;
    }

    /// Keeps output that the socket did not take. The connection must not hold other output
    /// already.
    pub(super) fn hold_output(&mut self, key: u32, bytes: &[u8]) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note_kept(now);
        connection.output.replace(bytes, &*self.shared.options.budget);
        self.counters.buffer_bytes.adjust(0, connection.output.capacity());
        connection.note_buffers(&mut self.service);
        self.counters.output_stalls.add(1);
        self.budget_check_due = true;
    }

    /// Removes the first `n` bytes of the held output, which the socket has taken.
    pub(super) fn sent_held(&mut self, key: u32, n: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.output.capacity();
        connection.output.consume(n, &*self.shared.options.budget);
        connection.stamp = self.now;
        connection.moved += n as u64;
        self.counters.buffer_bytes.adjust(before, connection.output.capacity());
        connection.note_buffers(&mut self.service);
        self.sent(n);
    }

    /// Counts a write of `n` bytes that a socket took.
    #[inline]
    pub(super) fn sent(&self, n: usize) {
        self.counters.writes.add(1);
        self.counters.bytes_written.add(n as u64);
    }

    /// Counts a read of `n` bytes from a socket.
    #[inline]
    pub(super) fn received(&self, n: usize) {
        self.counters.reads.add(1);
        self.counters.bytes_read.add(n as u64);
    }

    /// Decides which worker serves a new socket.
    pub(super) fn admit(&mut self, socket: OwnedFd) -> Admission {
        match self.shared.place(self.index) {
            Some(worker) if worker == self.index => Admission::Own(socket),
            Some(worker) => {
                self.shared.hand_over(worker, socket);
                Admission::HandedOver
            }
            None => {
                self.counters.rejected_connections.add(1);
                // The result is ignored. The buffer of a new socket has room for these bytes, and a
                // client whose connection is already broken does not need them.
                let _ = transport::send(&socket, TOO_MANY);
                transport::end_output(&socket);
                Admission::Rejected(socket)
            }
        }
    }

    /// Returns true if a rejected client may linger.
    pub(super) fn may_linger(&self) -> bool {
        self.lingering < MAX_LINGERING_REJECTED
    }

    /// Adds a new socket to the connections of this worker. `served` is false if the client was
    /// rejected. Its connection then only lingers.
    pub(super) fn insert(&mut self, socket: OwnedFd, served: bool, io: I) -> u32 {
        let service = served.then(|| {
            self.counters.total_connections.add(1);
            self.counters.current_connections.add(1);
            self.service.connect(transport::peer_of(&socket), self.shared.next_id())
        });
        if !served {
            self.lingering += 1;
        }
        self.now = coarse_ms();
        self.connections.insert(ConnectedSocket {
            socket,
            service,
            input: ByteQueue::default(),
            output: ByteQueue::default(),
            flow: Flow::Read,
            ended: false,
            unseen: false,
            postponed: false,
            expects_value: false,
            sends_values: false,
            filled: false,
            queued: false,
            listed: false,
            stamp: self.now,
            empty_at: self.now,
            moved: 0,
            io,
        })
    }

    /// Ends the service of a connection and frees its buffers. From then on, the connection
    /// lingers.
    pub(super) fn detach(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(state) = connection.service.take() else { return };
        let budget = &*self.shared.options.budget;
        for queue in [&mut connection.input, &mut connection.output] {
            self.counters.buffer_bytes.adjust(queue.capacity(), 0);
            queue.clear(budget);
        }
        connection.unseen = false;
        self.now = coarse_ms();
        connection.stamp = self.now;
        self.lingering += 1;
        self.shared.displace(self.index);
        self.counters.current_connections.sub(1);
        self.service.disconnect(state);
    }

    /// Removes a connection and closes its socket.
    pub(super) fn remove(&mut self, key: u32) {
        self.detach(key);
        if self.connections.remove(key).is_some() {
            self.lingering -= 1;
        }
    }

    /// Adds a connection to the ready list. The connections of this list continue in the next turns
    /// without an event of the kernel.
    pub(super) fn queue(&mut self, key: u32) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.queued
        {
            connection.queued = true;
            self.counters.yields.add(1);
            self.ready.push_back(key);
        }
    }

    /// Returns true if a served connection is in the ready list.
    pub(super) fn is_queued(&mut self, key: u32) -> bool {
        self.connections.get_mut(key).is_some_and(|c| c.queued && c.service.is_some())
    }

    /// Returns true if the ready list is not empty.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the budget for continuing connections of the ready list in this turn.
    pub(super) fn step_budget(&self) -> StepBudget {
        let mut steps = 0;
        let in_turn = self.ready.iter().take_while(|&&key| {
            let costs =
                |c: &ConnectedSocket<_, _>| c.filled || c.flow.reads() || !c.input.is_empty();
            let much = self.connections.get(key).is_some_and(costs);
            steps += if much { STEPS_OF_REQUESTS } else { 1 };
            steps <= STEPS
        });
        StepBudget { left: in_turn.count(), until: None }
    }

    /// Removes and returns the next connection of the ready list; `None` if the budget is used up.
    #[inline]
    pub(super) fn next_ready(&mut self, budget: &mut StepBudget) -> Option<u32> {
        if budget.left == 0 || budget.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        budget.left -= 1;
        if budget.left > 0 && budget.until.is_none() {
            let now = Instant::now();
            let events = self.turn_began.map_or(Duration::ZERO, |began| now - began);
            budget.until = Some(now + STEPS_TIME.max(events));
        }
        let key = self.ready.pop_front()?;
        if let Some(connection) = self.connections.get_mut(key) {
            connection.queued = false;
        }
        Some(key)
    }

    /// Moves the parked connections to the ready list, except connections that would only wait
    /// again. Called after a wake-up.
    pub(super) fn queue_parked(&mut self) {
        let (connections, service, ready) = (&mut self.connections, &self.service, &mut self.ready);
        self.parked.retain(|&key| {
            // Another connection may have this key by now, or the key may be in the list twice. So
            // this code checks that the connection waits and is not queued yet.
            let Some(connection) = connections.get_mut(key) else { return false };
            if connection.flow == Flow::Park
                && let Some(state) = &mut connection.service
                && service.awaits(state)
            {
                return true;
            }
            connection.listed = false;
            if connection.flow.waits() {
                connection.flow = Flow::Drain;
                if !std::mem::replace(&mut connection.queued, true) {
                    ready.push_back(key);
                }
            }
            false
        });
    }

    /// Returns true if a shutdown may close the connection: the connection waits for input, and no
    /// command or reply is in flight. A half-sent command is in flight until the shutdown [gives
    /// up](Self::has_given_up_clients) waiting for its rest.
    pub(super) fn is_quiet(&mut self, key: u32) -> bool {
        let given_up = self.has_given_up_clients();
        let Some(connection) = self.connections.get_mut(key) else { return true };
        connection.flow == Flow::Read
            && connection.output.is_empty()
            && (given_up
                || connection.input.is_empty()
                    && connection.service.as_ref().is_none_or(|state| self.service.is_idle(state)))
    }

    /// Returns true if a shutdown no longer waits for the rest of half-sent commands. Executed
    /// commands are still answered. Half-sent commands were not executed, so no acknowledged write
    /// is lost.
    pub(super) fn has_given_up_clients(&self) -> bool {
        let grace = self.shared.options.unfinished_grace.as_millis() as u64;
        self.stopping_since.is_some_and(|since| self.now.saturating_sub(since) >= grace)
    }

    /// Counts a failed accept, and pauses accepting.
    pub(super) fn accept_failed(&mut self) {
        self.counters.accept_errors.add(1);
        self.now = coarse_ms();
        self.accept_again = Some(self.now + ACCEPT_PAUSE_MS);
    }

    /// Begins a turn: reads the clock and plans the next [sweep](Self::sweep).
    pub(super) fn begin_turn(&mut self) {
        self.counters.turns.add(1);
        // The clock is read in every turn, even if no idle timeout is set. If one is set later, it
        // counts from the `stamp` that each connection has got until then.
        self.now = coarse_ms();
        self.turn_began = self.has_ready().then(Instant::now);
        self.plan_sweep();
        self.service.turn();
    }

    /// Returns the start of the turn, in coarse milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Returns the interval between calls of [sweep](Self::sweep), in milliseconds; `None` if
    /// nothing depends on time now.
    fn sweep_interval(&self) -> Option<u64> {
        if self.order == Order::Stop || self.lingering > 0 || self.accept_again.is_some() {
            return Some(ACCEPT_PAUSE_MS / 2);
        }
        let idle = self.shared.idle_timeout_ms().map(|timeout| (timeout / 8).clamp(10, 1_000));
        let service = self.service.wakes_within().map(|time| time.as_millis() as u64);
        idle.into_iter().chain(service).min()
    }

    /// Returns the longest time that the kernel may wait for events before the next
    /// [sweep](Self::sweep).
    pub(super) fn wait_limit(&mut self) -> Option<Duration> {
        self.plan_sweep();
        // If the next sweep is already overdue, the wait is zero.
        let wait = self.next_sweep.checked_sub(self.now);
        self.sweep_interval().map(|_| Duration::from_millis(wait.unwrap_or(0)))
    }

    /// Plans the next [sweep](Self::sweep), if one is needed. Called in every turn, also in a turn
    /// that does not wait for events, because a worker that is always busy must sweep too.
    fn plan_sweep(&mut self) {
        match self.sweep_interval() {
            None => self.next_sweep = 0,
            Some(interval) if self.next_sweep == 0 || self.next_sweep > self.now + interval => {
                self.next_sweep = self.now + interval;
            }
            Some(_) => {}
        }
    }

    /// Returns the time of the next [sweep](Self::sweep), in coarse milliseconds.
    pub(super) fn next_sweep(&self) -> u64 {
        self.next_sweep
    }

    /// Returns true if a [sweep](Self::sweep) is due.
    pub(super) fn sweep_due(&self) -> bool {
        self.next_sweep != 0 && self.now >= self.next_sweep
    }

    /// Does the periodic work of a worker: finds the lingering and idle connections whose time is
    /// over. The caller must close the returned connections.
    pub(super) fn sweep(&mut self) -> Vec<u32> {
        self.next_sweep = 0;
        if self.order == Order::Stop {
            self.stopping_since.get_or_insert(self.now);
        }
        let mut gone = Vec::new();
        let idle = self.shared.idle_timeout_ms();
        for key in 0..self.connections.bound() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let age = self.now.saturating_sub(connection.stamp);
            if connection.service.is_none() {
                if age >= LINGER_MS {
                    gone.push(key);
                }
            } else if idle.is_some_and(|idle| age >= idle) && !connection.flow.waits() {
                self.counters.idle_closed.add(1);
                gone.push(key);
            }
        }
        gone
    }

    /// Returns true in the first call after a pause in accepting has ended.
    pub(super) fn accept_due(&mut self) -> bool {
        let due = self.accept_again.is_some_and(|at| self.now >= at);
        if due {
            self.accept_again = None;
        }
        due
    }

    /// Returns true if a shutdown has reached its time limit.
    pub(super) fn out_of_grace(&self) -> bool {
        self.shared.deadline().is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Returns the time of a monotonic clock in milliseconds. Reading it costs no system call.
fn coarse_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local timespec, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}
