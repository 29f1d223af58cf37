//! The event loop over epoll. Each connection is registered once, edge-triggered. So the kernel
//! reports a socket only when bytes arrive, and the loop can stop reading from a slow client
//! without changing the registration. But the kernel does not report unread bytes again, so the
//! loop must remember which sockets it has not read completely (`readable`). A connection with more
//! work continues in the next turn, after the other connections.
//!
//! A single request costs one receive and one send. One system call waits for the events of all
//! connections.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::connection::{Admission, Core, INPUT_WINDOW, READ_SIZE};
use super::control::{Order, Shared};
use super::transport::{self, Moved};
use super::{FORESEEN, Flow, MAX_INPUT_HELD, OutputMemory, Service};

/// The largest number of events per wait.
const EVENTS: usize = 256;
/// Size of each receive buffer in [`Epoll::ahead`], in bytes. If the size were a power of two, the
/// beginnings of all buffers would compete for the same sets of the processor's cache.
const AHEAD: usize = READ_SIZE + 192;
/// The largest number of connections accepted per listener and turn.
const ACCEPTS: usize = 64;

const ALARM: u64 = u64::MAX;
/// The smallest token of a listener in epoll events. The token of a connection is its key, which is
/// always smaller than this.
const LISTENERS: u64 = 1 << 32;

const INTEREST: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
const OUTPUT: u32 = libc::EPOLLOUT as u32;
const HANGUP: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// The state that this loop keeps for a connection.
#[derive(Debug, Default)]
struct Readiness {
    /// True if the socket may have unread input: epoll reported it readable, and no receive since
    /// then has emptied it.
    readable: bool,
    /// True if epoll reported the end of input or an error. From then on, `readable` stays true
    /// after a receive that did not fill its buffer, because a further receive must still return
    /// the end or the error.
    hangup: bool,
    /// True if the socket takes no output until epoll reports it writable.
    blocked: bool,
    /// True if the socket is registered for output.
    waits_for_output: bool,
}

impl Readiness {
    #[inline]
    fn note(&mut self, events: u32) {
        self.hangup |= events & HANGUP != 0;
        self.readable |= events & !OUTPUT != 0;
        if events & (OUTPUT | HANGUP) != 0 {
            self.blocked = false;
        }
    }
}

struct Epoll<S: Service> {
    core: Core<S, Readiness>,
    poll: OwnedFd,
    input: Box<[u8]>,
    /// Buffers for receiving from several connections before processing their input.
    ahead: Box<[[u8; AHEAD]]>,
    replies: OutputMemory,
}

/// Runs the event loop of one worker until the workers are told to stop.
pub(super) fn run<S: Service>(shared: Arc<Shared>, index: usize, service: S) -> io::Result<()> {
    // SAFETY: takes no pointers; a non-negative result is a new descriptor without another owner.
    let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if poll < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above, `poll` is open and has no other owner.
    let poll = unsafe { OwnedFd::from_raw_fd(poll) };
    let replies = OutputMemory::of_loop(shared.options.output_limit);
    let mut epoll = Epoll {
        core: Core::new(shared, index, service),
        poll,
        input: vec![0; INPUT_WINDOW.max(MAX_INPUT_HELD + READ_SIZE)].into(),
        ahead: vec![[0; AHEAD]; FORESEEN].into(),
        replies,
    };
    epoll.listen()?;
    let alarm = epoll.core.shared.workers[index].alarm.fd();
    epoll.register(libc::EPOLL_CTL_ADD, alarm, libc::EPOLLIN as u32, ALARM)?;
    let result = epoll.turns();
    epoll.remove_all();
    result
}

/// Converts the result of a wait to the number of events. An interrupted wait returns no events.
fn waited(n: i32) -> io::Result<usize> {
    if n < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    Ok(n as usize)
}

impl<S: Service> Epoll<S> {
    fn turns(&mut self) -> io::Result<()> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            let wait = !self.core.has_ready();
            let mut n = if wait { 0 } else { self.wait(&mut events, 0)? };
            while wait
                && n == 0
                && let Some(time) = self.core.service.lingers()
            {
                n = self.wait_for(&mut events, time)?;
            }
            if wait && n == 0 {
                self.core.service.sleep();
                while n == 0 && self.core.service.polls() {
                    n = self.wait(&mut events, 0)?;
                    if n == 0 {
                        thread::yield_now();
                    }
                }
            }
            if wait && n == 0 {
                // Waits up to 1 ms longer than the limit. A wait that ended just before the next
                // sweep would only begin a turn with nothing to do.
                let limit = self.core.wait_limit();
                n =
                    self.wait(&mut events, limit.map_or(-1, |limit| limit.as_millis() as i32 + 1))?;
            }
            self.core.begin_turn();
            for some in events[..n].chunks(FORESEEN) {
                self.events(some);
                self.relieve();
            }
            let mut budget = self.core.step_budget();
            while let Some(key) = self.core.next_ready(&mut budget) {
                self.step(key);
                self.relieve();
            }
            if self.core.sweep_due() {
                self.sweep();
            }
            if self.core.order == Order::Stop
                && (self.core.connections.len() == 0 || self.core.out_of_grace())
            {
                return Ok(());
            }
        }
    }

    /// Closes connections of this worker if the buffers of all connections exceed the budget.
    #[inline]
    fn relieve(&mut self) {
        if self.core.budget_check_due {
            for key in self.core.relieve() {
                self.core.remove(key);
            }
        }
    }

    /// Waits for events. Returns their number. A limit of -1 waits without a limit.
    fn wait(&self, events: &mut [libc::epoll_event], limit_ms: i32) -> io::Result<usize> {
        let (poll, room) = (self.poll.as_raw_fd(), events.len() as i32);
        // SAFETY: the kernel fills at most as many events as the slice has.
        let n = unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), room, limit_ms) };
        waited(n)
    }

    /// Waits for events for at most `time`, which may be much shorter than a millisecond.
    fn wait_for(&self, events: &mut [libc::epoll_event], time: Duration) -> io::Result<usize> {
        let (poll, room) = (self.poll.as_raw_fd(), events.len() as i32);
        let limit = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: the kernel fills at most as many events as the slice has. The time lives until
        // the call returns, and no signal mask is given.
        let n = unsafe {
            let no_mask = std::ptr::null::<libc::sigset_t>();
            let (events, limit) = (events.as_mut_ptr(), &raw const limit);
            libc::syscall(libc::SYS_epoll_pwait2, poll, events, room, limit, no_mask, 0_usize)
        };
        match waited(n as i32) {
            // Kernels before Linux 5.11 lack `epoll_pwait2`. On such a kernel, this function only
            // checks for events and does not wait.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => self.wait(events, 0),
            n => n,
        }
    }

    /// Handles events. Receives from several connections before processing, so that the service can
    /// prefetch for their requests.
    #[inline]
    fn events(&mut self, events: &[libc::epoll_event]) {
        // Events of listeners and of the alarm may affect any connection. The loop must not handle
        // them between a receive and the processing of the received input. So if `events` contains
        // such an event, the loop completes each event before it begins the next.
        if events.len() == 1 || events.iter().any(|event| event.u64 >= LISTENERS) {
            return events.iter().for_each(|event| self.event(event.u64, event.events));
        }
        let mut received = [const { None }; FORESEEN];
        for ((event, received), ahead) in events.iter().zip(&mut received).zip(&mut self.ahead) {
            let Some(connection) = self.core.connections.get_mut(event.u64 as u32) else {
                continue;
            };
            connection.io.note(event.events);
            // A value that the service expects needs no prefetch, so `step` receives it.
            if connection.io.readable
                && connection.takes_input()
                && connection.input.is_empty()
                && !connection.expects_value()
            {
                let room = &mut ahead[..connection.read_size()];
                let moved = transport::receive(&connection.socket, room);
                *received = Some((moved, moved == Moved::Bytes(room.len())));
            }
        }
        let inputs =
            received.iter().zip(&self.ahead).filter_map(|(received, ahead)| match received {
                Some((Moved::Bytes(n), _)) => Some(&ahead[..*n]),
                _ => None,
            });
        self.core.service.foresee(inputs);
        for (slot, (event, received)) in events.iter().zip(received).enumerate() {
            let key = event.u64 as u32;
            match received {
                None => self.step(key),
                Some((Moved::Bytes(n), full)) => {
                    self.note_received(key, n, full);
                    let input = &self.ahead[slot][..n];
                    if self.core.execute(key, Some(input), &mut self.replies) {
                        self.transmit(key);
                    }
                }
                Some((nothing, _)) => self.received_nothing(key, nothing),
            }
        }
    }

    #[inline]
    fn event(&mut self, token: u64, events: u32) {
        if token < LISTENERS {
            let key = token as u32;
            let Some(connection) = self.core.connections.get_mut(key) else { return };
            connection.io.note(events);
            self.step(key);
        } else if token == ALARM {
            self.alarmed();
        } else {
            self.accept((token - LISTENERS) as usize);
        }
    }

    /// Continues a connection by one step: sends held output, processes input, or receives.
    #[inline]
    fn step(&mut self, key: u32) {
        let given_up = self.core.has_given_up_clients();
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        if connection.service.is_none() {
            return self.linger(key);
        }
        if !connection.output.is_empty() && !self.flush(key) {
            return;
        }
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        let executed = match connection.flow {
            Flow::Close => return self.finish(key),
            Flow::Park => return,
            Flow::Drain => self.core.execute(key, None, &mut self.replies),
            Flow::Read | Flow::Hold if connection.unseen => {
                self.core.execute(key, None, &mut self.replies)
            }
            Flow::Read | Flow::Hold if connection.io.readable && !given_up => self.read(key),
            Flow::Read | Flow::Hold => return self.settle(key),
        };
        if executed {
            self.transmit(key);
        }
    }

    /// Receives once and passes the input to the service. Returns true if the service was called.
    #[inline]
    fn read(&mut self, key: u32) -> bool {
        let Some((received, len)) = self.core.receive(key, &mut self.input) else { return false };
        match received.moved {
            Moved::Bytes(n) => {
                self.note_received(key, n, received.full);
                self.core.execute(key, Some(&self.input[..len]), &mut self.replies)
            }
            nothing => {
                self.received_nothing(key, nothing);
                false
            }
        }
    }

    /// Records that a receive returned `n` bytes. `full` is true if it filled its memory.
    #[inline]
    fn note_received(&mut self, key: u32, n: usize, full: bool) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        connection.io.readable = full || connection.io.hangup;
        self.core.received(n);
    }

    fn received_nothing(&mut self, key: u32, received: Moved) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        connection.io.readable = false;
        connection.ended |= received == Moved::End;
        match received {
            Moved::Broken => self.core.remove(key),
            _ => self.settle(key),
        }
    }

    /// Sends the replies of the last call of the service, and then continues the connection as the
    /// service's [`Flow`] says.
    #[inline]
    fn transmit(&mut self, key: u32) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        let bytes = self.replies.bytes();
        if !bytes.is_empty() {
            let sent = match transport::send(&connection.socket, bytes) {
                Moved::Bytes(n) => n,
                Moved::Blocked => 0,
                Moved::End | Moved::Broken => {
                    self.replies.clear();
                    return self.core.remove(key);
                }
            };
            self.core.sent(sent);
            if sent < bytes.len() {
                self.core.hold_output(key, &bytes[sent..]);
                self.replies.recycle(self.core.shared.options.output_limit);
                return self.wait_for_output(key, true);
            }
            self.replies.recycle(self.core.shared.options.output_limit);
        }
        match connection_flow(&mut self.core, key) {
            Some((Flow::Close, _)) => self.finish(key),
            Some((Flow::Drain, _) | (Flow::Read | Flow::Hold, true)) => self.core.queue(key),
            Some((Flow::Read | Flow::Hold, false)) => self.settle(key),
            Some((Flow::Park, _)) | None => {}
        }
    }

    /// Sends output held from an earlier turn. Returns true if all of it was sent.
    fn flush(&mut self, key: u32) -> bool {
        let Some(connection) = self.core.connections.get_mut(key) else { return false };
        if connection.io.blocked {
            return false;
        }
        match transport::send(&connection.socket, connection.output.bytes()) {
            Moved::Bytes(n) => {
                let all = n == connection.output.len();
                self.core.sent_held(key, n);
                self.wait_for_output(key, !all);
                all
            }
            Moved::Blocked => {
                self.wait_for_output(key, true);
                false
            }
            Moved::End | Moved::Broken => {
                self.core.remove(key);
                false
            }
        }
    }

    fn wait_for_output(&mut self, key: u32, wait: bool) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        connection.io.blocked = wait;
        if connection.io.waits_for_output == wait {
            return;
        }
        connection.io.waits_for_output = wait;
        let fd = connection.socket.as_raw_fd();
        let interest = if wait { INTEREST | OUTPUT } else { INTEREST };
        // When the registration is changed, epoll reports again that a socket is ready, so no event
        // is lost.
        if self.register(libc::EPOLL_CTL_MOD, fd, interest, key.into()).is_err() {
            self.core.remove(key);
        }
    }

    /// Called when all received input of a connection is processed and answered. Closes the
    /// connection if the client has ended its side, or if the workers stop and nothing is in
    /// flight. Otherwise the connection waits for more input.
    fn settle(&mut self, key: u32) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        // A client that has ended its side must still receive the withheld replies, so its
        // connection stays open.
        let ended = connection.ended && connection.flow != Flow::Hold;
        if ended || (self.core.order == Order::Stop && self.core.is_quiet(key)) {
            self.core.remove(key);
        }
    }

    /// Begins to close a connection as the service asked. Called when all its replies were sent. If
    /// the client has not ended its side yet, the connection lingers until it does.
    fn finish(&mut self, key: u32) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        if connection.ended {
            return self.core.remove(key);
        }
        transport::end_output(&connection.socket);
        connection.io.readable = true;
        self.core.detach(key);
        self.linger(key);
    }

    /// Receives and discards the input of a lingering connection, until the client shuts down its
    /// sending side.
    fn linger(&mut self, key: u32) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        match transport::receive(&connection.socket, &mut self.input) {
            Moved::Bytes(_) => self.core.queue(key),
            Moved::Blocked if self.core.order < Order::Stop => {}
            Moved::Blocked | Moved::End | Moved::Broken => self.core.remove(key),
        }
    }

    fn register(&self, operation: i32, fd: i32, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` lives until the call returns, and the kernel copies it.
        let result = unsafe { libc::epoll_ctl(self.poll.as_raw_fd(), operation, fd, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn listen(&self) -> io::Result<()> {
        for (index, listener) in self.core.shared.options.listeners.iter().enumerate() {
            // With `EPOLLEXCLUSIVE`, a new client does not wake all workers.
            let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
            self.register(libc::EPOLL_CTL_ADD, listener.fd(), events, LISTENERS + index as u64)?;
        }
        Ok(())
    }

    fn stop_listening(&self) {
        for listener in &self.core.shared.options.listeners {
            // The call fails if the listener is not registered. The error is ignored, because
            // nothing has to be removed then.
            let _ = self.register(libc::EPOLL_CTL_DEL, listener.fd(), 0, 0);
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS {
            let listener = self.core.shared.options.listeners[index].fd();
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no address is requested; a non-negative result is a new descriptor without
            // another owner.
            let fd = unsafe {
                libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags)
            };
            if fd >= 0 {
                // SAFETY: `fd` is a new descriptor without another owner.
                let socket = unsafe { OwnedFd::from_raw_fd(fd) };
                match self.core.admit(socket) {
                    Admission::Own(socket) => self.attach(socket, true),
                    Admission::Rejected(socket) => self.attach(socket, false),
                    Admission::HandedOver => {}
                }
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                // No client waits, or the listener has stopped listening.
                Some(libc::EAGAIN | libc::EINVAL) => return,
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    self.core.accept_failed();
                    return self.stop_listening();
                }
                // The accepted client has already left, but another client may wait.
                _ => {}
            }
        }
    }

    fn attach(&mut self, socket: OwnedFd, served: bool) {
        if !served && !self.core.may_linger() {
            return self.discard(socket);
        }
        let fd = socket.as_raw_fd();
        let key = self.core.insert(socket, served, Readiness::default());
        if self.register(libc::EPOLL_CTL_ADD, fd, INTEREST, key.into()).is_err() {
            return self.core.remove(key);
        }
        if self.core.order == Order::Stop {
            self.wind_up(key);
        }
    }

    /// Closes the connection of a rejected client at once, without lingering. The client has been
    /// sent an error reply. Reads the input first: on a close with unread input, the kernel resets
    /// the connection, and the reset might overtake the reply.
    fn discard(&mut self, socket: OwnedFd) {
        let _ = transport::receive(&socket, &mut self.input);
    }

    fn alarmed(&mut self) {
        self.core.shared.workers[self.core.index].alarm.clear();
        self.core.note_relief_wanted();
        for socket in self.core.shared.take_over(self.core.index) {
            self.attach(socket, true);
        }
        self.core.queue_parked();
        let order = self.core.shared.order();
        if order > self.core.order {
            self.core.order = order;
            self.core.accept_again = None;
            self.stop_listening();
            if order == Order::Stop {
                self.stop();
            }
        }
    }

    /// Closes all [quiet](Core::is_quiet) connections. Each other connection is closed once it
    /// becomes quiet.
    fn stop(&mut self) {
        for key in 0..self.core.connections.bound() {
            self.wind_up(key);
        }
    }

    fn wind_up(&mut self, key: u32) {
        let Some(connection) = self.core.connections.get_mut(key) else { return };
        // The client may have sent a request that epoll has not reported yet. Read the socket, so
        // that this request is still answered.
        connection.io.readable = true;
        self.step(key);
    }

    fn sweep(&mut self) {
        for key in self.core.sweep() {
            self.core.remove(key);
        }
        if self.core.has_given_up_clients() {
            self.stop();
        }
        if self.core.accept_due() && self.listen().is_err() {
            self.core.accept_failed();
        }
    }

    fn remove_all(&mut self) {
        for key in 0..self.core.connections.bound() {
            self.core.remove(key);
        }
    }
}

/// Returns the flow of a connection. The second value is true if the connection has more input to
/// process or read.
#[inline]
fn connection_flow<S: Service>(core: &mut Core<S, Readiness>, key: u32) -> Option<(Flow, bool)> {
    let given_up = core.has_given_up_clients();
    let connection = core.connections.get_mut(key)?;
    Some((connection.flow, connection.unseen || connection.io.readable && !given_up))
}
