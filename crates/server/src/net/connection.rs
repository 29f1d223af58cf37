//! What both loops have in common: connections, running the service for one of them, placing new
//! ones, time. A loop adds how bytes move and what it waits for.
//!
//! Life of a connection: *served* while it has a service state; then it *lingers*, its output
//! ended, until the client has ended its own side or a short time has passed (closing a socket
//! that has unread input makes the kernel reset the connection, and the reset may overtake
//! replies that are still on their way); then it is gone.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::{Order, Shared};
use super::counters::Counters;
use super::held::Held;
use super::slab::Slab;
use super::{Flow, InputBuffer, MAX_INPUT_HELD, OutputMemory, Service, transport};

/// What a client above the connection limit is told.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";
/// How long a closed connection may linger.
const LINGER_MS: u64 = 2_000;
/// How many rejected clients may linger at a time; more are closed at once.
const MAX_LINGERING_REJECTED: usize = 64;
/// How long accepting stops when it fails for want of descriptors or memory.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Connections that go on in a turn without an event of their own, if they have nothing but replies to send: as
/// many as were set free by a commit go on in a few turns.
const STEPS: usize = 64;
/// A connection with more requests, or with more replies than the output takes, counts as this many steps:
/// what has arrived meanwhile from others does not wait for many of them.
const STEPS_OF_REQUESTS: usize = 8;
/// No step of a turn begins later than this after the first one began, unless the events of the turn have taken
/// longer: then as much later. A step that runs is not interrupted.
pub(super) const STEPS_TIME: Duration = Duration::from_micros(100);
/// The most that is received from a connection at a time by system call, in bytes.
pub(super) const READ_SIZE: usize = 32 << 10;
/// The most input the service sees at a time. More than it may leave, so that every call makes
/// progress or ends the connection.
pub(super) const INPUT_WINDOW: usize = 2 * MAX_INPUT_HELD;

/// One connection; `I` is what the loop needs to know about it.
#[derive(Debug)]
pub(super) struct Connection<C, I> {
    pub(super) socket: OwnedFd,
    /// The service's state; `None` when it lingers.
    pub(super) service: Option<C>,
    /// Input that was not consumed.
    pub(super) input: Held,
    /// Output that the socket did not take.
    pub(super) output: Held,
    pub(super) flow: Flow,
    /// The client sends nothing more.
    pub(super) ended: bool,
    /// `input` holds bytes that the service has not seen, or has postponed.
    pub(super) unseen: bool,
    /// The service has postponed them.
    pub(super) postponed: bool,
    /// It filled the output the last time.
    filled: bool,
    /// Whether it is in the ready list.
    pub(super) queued: bool,
    /// Whether it is in the list of those that a wake-up moves.
    listed: bool,
    /// When it last moved a byte, or when it began to linger; in coarse milliseconds.
    pub(super) stamp: u64,
    /// When it last kept nothing, in coarse milliseconds, and how many bytes it has moved since.
    pub(super) empty_at: u64,
    pub(super) moved: u64,
    pub(super) io: I,
}

impl<C, I> Connection<C, I> {
    /// Something may be kept from `now` on.
    #[inline]
    fn note_kept(&mut self, now: u64) {
        if self.input.is_empty() && self.output.is_empty() {
            (self.empty_at, self.moved) = (now, 0);
        }
    }

    /// Whether the service may look at input that arrives now: nothing comes before it.
    #[inline]
    pub(super) fn takes_input(&self) -> bool {
        self.service.is_some() && self.output.is_empty() && !self.unseen && self.flow.reads()
    }
}

/// Where an accepted socket goes.
pub(super) enum Admission {
    /// This worker serves it.
    Own(OwnedFd),
    /// Another worker does, and has it already.
    Elsewhere,
    /// It was told that there are too many; it should linger.
    Rejected(OwnedFd),
}

/// The number of ready connections that may still run in this turn, and the deadline for the last one to begin.
pub(super) struct StepBudget {
    left: usize,
    /// Set when the first of several begins: a single step needs no clock.
    until: Option<Instant>,
}

/// The part of a worker that does not depend on the kernel interface.
pub(super) struct Core<S: Service, I> {
    pub(super) service: S,
    pub(super) connections: Slab<Connection<S::Connection, I>>,
    pub(super) shared: Arc<Shared>,
    pub(super) counters: Arc<Counters>,
    pub(super) index: usize,
    /// The order that this worker follows already.
    pub(super) order: Order,
    /// When the first tick after the order to stop was, in coarse milliseconds.
    stopping_since: Option<u64>,
    /// Accepting failed and waits until then.
    pub(super) accept_again: Option<u64>,
    /// Connections may keep more than they did: see `relief.rs`.
    pub(super) look_at_budget: bool,
    /// Nobody had to go; before this time, in coarse milliseconds, nobody looks again.
    pub(super) look_after: u64,
    parked: Vec<u32>,
    ready: VecDeque<u32>,
    lingering: usize,
    now: u64,
    /// When this turn began, if connections were waiting for their steps then.
    turn_began: Option<Instant>,
    next_tick: u64,
}

impl<S: Service, I> Core<S, I> {
    pub(super) fn new(shared: Arc<Shared>, index: usize, service: S) -> Self {
        let counters = Arc::clone(&shared.desks[index].counters);
        Core {
            service,
            connections: Slab::new(),
            shared,
            counters,
            index,
            order: Order::Serve,
            stopping_since: None,
            accept_again: None,
            look_at_budget: false,
            look_after: 0,
            parked: Vec::new(),
            ready: VecDeque::new(),
            lingering: 0,
            now: coarse_ms(),
            turn_began: None,
            next_tick: 0,
        }
    }

    /// Runs the service for a connection that is served, over `whole` (what it held included, at
    /// the front), or over what it holds. Replies are appended to `replies`, which is empty.
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
        self.counters.processed.add(1);
        connection.flow = flow;
        connection.filled = flow == Flow::Drain;
        connection.stamp = self.now;
        connection.moved += consumed as u64;
        connection.unseen = postponed || seen < all.len();
        connection.postponed = postponed;
        if whole.is_none() && connection.input.is_empty() {
            // Nothing held, nothing seen, nothing left.
        } else {
            connection.note_kept(self.now);
            let before = connection.input.capacity();
            match whole {
                Some(all) => connection.input.replace(&all[consumed..], budget),
                None => connection.input.consume(consumed, budget),
            }
            self.counters.buffer_bytes.adjust(before, connection.input.capacity());
            self.look_at_budget |= connection.input.capacity() > before;
            if flow.reads() && !postponed && seen - consumed >= MAX_INPUT_HELD {
                self.counters.input_overflows.add(1);
                connection.flow = Flow::Close;
            }
        }
        if connection.flow.waits() {
            // It may keep replies.
            self.look_at_budget = true;
            if !connection.listed {
                connection.listed = true;
                self.parked.push(key);
            }
        }
        true
    }

    /// Keeps input that cannot be processed now.
    pub(super) fn hold_input(&mut self, key: u32, bytes: &[u8]) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note_kept(now);
        let before = connection.input.capacity();
        connection.input.append(bytes, &*self.shared.options.budget);
        self.counters.buffer_bytes.adjust(before, connection.input.capacity());
        connection.unseen = true;
        self.look_at_budget = true;
    }

    /// Keeps output that the socket did not take; there was none before.
    pub(super) fn hold_output(&mut self, key: u32, bytes: &[u8]) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.note_kept(now);
        connection.output.replace(bytes, &*self.shared.options.budget);
        self.counters.buffer_bytes.adjust(0, connection.output.capacity());
        self.counters.output_stalls.add(1);
        self.look_at_budget = true;
    }

    /// The socket took the first `n` bytes of the output held.
    pub(super) fn sent_held(&mut self, key: u32, n: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.output.capacity();
        connection.output.consume(n, &*self.shared.options.budget);
        connection.stamp = self.now;
        connection.moved += n as u64;
        self.counters.buffer_bytes.adjust(before, connection.output.capacity());
        self.sent(n);
    }

    /// Counts bytes that a socket took.
    #[inline]
    pub(super) fn sent(&self, n: usize) {
        self.counters.writes.add(1);
        self.counters.bytes_written.add(n as u64);
    }

    /// Counts bytes that a socket gave.
    #[inline]
    pub(super) fn received(&self, n: usize) {
        self.counters.reads.add(1);
        self.counters.bytes_read.add(n as u64);
    }

    /// Decides who serves a new socket.
    pub(super) fn admit(&mut self, socket: OwnedFd) -> Admission {
        match self.shared.place(self.index) {
            Some(worker) if worker == self.index => Admission::Own(socket),
            Some(worker) => {
                self.shared.hand_over(worker, socket);
                Admission::Elsewhere
            }
            None => {
                self.counters.rejected_connections.add(1);
                // A fresh socket takes this much, or is broken.
                let _ = transport::send(&socket, TOO_MANY);
                transport::end_output(&socket);
                Admission::Rejected(socket)
            }
        }
    }

    /// Whether a rejected client may linger.
    pub(super) fn may_linger(&self) -> bool {
        self.lingering < MAX_LINGERING_REJECTED
    }

    /// Takes a socket placed here; `served` unless it was rejected.
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
        self.connections.insert(Connection {
            socket,
            service,
            input: Held::default(),
            output: Held::default(),
            flow: Flow::Read,
            ended: false,
            unseen: false,
            postponed: false,
            filled: false,
            queued: false,
            listed: false,
            stamp: self.now,
            empty_at: self.now,
            moved: 0,
            io,
        })
    }

    /// Ends the service of a connection; from now on it lingers.
    pub(super) fn detach(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(state) = connection.service.take() else { return };
        let budget = &*self.shared.options.budget;
        for held in [&mut connection.input, &mut connection.output] {
            self.counters.buffer_bytes.adjust(held.capacity(), 0);
            held.clear(budget);
        }
        connection.unseen = false;
        self.now = coarse_ms();
        connection.stamp = self.now;
        self.lingering += 1;
        self.counters.current_connections.sub(1);
        self.shared.displace(self.index);
        self.service.disconnect(state);
    }

    /// Forgets a connection and closes its socket.
    pub(super) fn remove(&mut self, key: u32) {
        self.detach(key);
        if self.connections.remove(key).is_some() {
            self.lingering -= 1;
        }
    }

    /// Puts a connection on the list of those that go on in the next turns without any event.
    pub(super) fn queue(&mut self, key: u32) {
        if let Some(connection) = self.connections.get_mut(key)
            && !connection.queued
        {
            connection.queued = true;
            self.counters.yields.add(1);
            self.ready.push_back(key);
        }
    }

    /// Whether a connection that is served goes on in this turn or a later one without any event.
    pub(super) fn is_queued(&mut self, key: u32) -> bool {
        self.connections.get_mut(key).is_some_and(|c| c.queued && c.service.is_some())
    }

    /// Whether connections go on without any event.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The budget of a turn for the connections that go on without any event.
    pub(super) fn step_budget(&self) -> StepBudget {
        let mut steps = 0;
        let in_turn = self.ready.iter().take_while(|&&key| {
            let costs = |c: &Connection<_, _>| c.filled || c.flow.reads() || !c.input.is_empty();
            let much = self.connections.get(key).is_some_and(costs);
            steps += if much { STEPS_OF_REQUESTS } else { 1 };
            steps <= STEPS
        });
        StepBudget { left: in_turn.count(), until: None }
    }

    /// The next connection that goes on in this turn, if the budget has a step for it.
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

    /// The connections that waited for the wake-up go on as if they had drained, unless what they wait for
    /// has not come.
    pub(super) fn queue_parked(&mut self) {
        let (connections, service, ready) = (&mut self.connections, &self.service, &mut self.ready);
        self.parked.retain(|&key| {
            // A key may have been reused or be listed twice.
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

    /// Whether nothing is in flight on a connection that waits for input. Half a command counts
    /// until the client has had time to send the rest.
    pub(super) fn is_quiet(&mut self, key: u32) -> bool {
        let given_up = self.has_given_up_clients();
        let Some(connection) = self.connections.get_mut(key) else { return true };
        connection.flow == Flow::Read
            && connection.output.is_empty()
            && (given_up
                || connection.input.is_empty()
                    && connection.service.as_ref().is_none_or(|state| self.service.is_idle(state)))
    }

    /// Whether a shutdown waits no longer for the rest of half-sent commands. What was executed is
    /// answered all the same; of the rest nothing was.
    pub(super) fn has_given_up_clients(&self) -> bool {
        let grace = self.shared.options.unfinished_grace.as_millis() as u64;
        self.stopping_since.is_some_and(|since| self.now.saturating_sub(since) >= grace)
    }

    /// Counts a failed accept and stops accepting for a while.
    pub(super) fn accept_failed(&mut self) {
        self.counters.accept_errors.add(1);
        self.now = coarse_ms();
        self.accept_again = Some(self.now + ACCEPT_PAUSE_MS);
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.counters.turns.add(1);
        // Also while nothing depends on it: a limit may be set later, and it counts from what was.
        self.now = coarse_ms();
        self.turn_began = self.has_ready().then(Instant::now);
        self.plan_tick();
        self.service.turn();
    }

    /// When the turn began, in coarse milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// How often time matters now; `None` while nothing depends on it.
    fn tick_interval(&self) -> Option<u64> {
        if self.order == Order::Stop || self.lingering > 0 || self.accept_again.is_some() {
            return Some(ACCEPT_PAUSE_MS / 2);
        }
        let idle = self.shared.idle_timeout_ms().map(|timeout| (timeout / 8).clamp(10, 1_000));
        let service = self.service.wakes_within().map(|time| time.as_millis() as u64);
        idle.into_iter().chain(service).min()
    }

    /// How long the kernel may be waited for until the next tick.
    pub(super) fn wait_limit(&mut self) -> Option<Duration> {
        self.plan_tick();
        // The clock may stand behind the plan by a turn; then the wait is over at once.
        let wait = self.next_tick.checked_sub(self.now);
        self.tick_interval().map(|_| Duration::from_millis(wait.unwrap_or(0)))
    }

    /// Sees to it that a tick is planned if one is needed, and soon enough. Also called in turns
    /// that do not wait: a worker that never sleeps must tick all the same.
    fn plan_tick(&mut self) {
        match self.tick_interval() {
            None => self.next_tick = 0,
            Some(interval) if self.next_tick == 0 || self.next_tick > self.now + interval => {
                self.next_tick = self.now + interval;
            }
            Some(_) => {}
        }
    }

    /// When the next tick is due, in coarse milliseconds.
    pub(super) fn next_tick(&self) -> u64 {
        self.next_tick
    }

    /// Whether time has come for [`tick`](Self::tick).
    pub(super) fn tick_due(&self) -> bool {
        self.next_tick != 0 && self.now >= self.next_tick
    }

    /// Looks after what depends on time: the connections that have to go now.
    pub(super) fn tick(&mut self) -> Vec<u32> {
        self.next_tick = 0;
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

    /// Whether accepting may be tried again after a failure.
    pub(super) fn accept_due(&mut self) -> bool {
        let due = self.accept_again.is_some_and(|at| self.now >= at);
        if due {
            self.accept_again = None;
        }
        due
    }

    /// Whether the grace of a shutdown has passed.
    pub(super) fn out_of_grace(&self) -> bool {
        self.shared.deadline().is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Milliseconds on a clock that never goes back and costs no system call.
fn coarse_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to be filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}
