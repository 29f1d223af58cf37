//! The event loop over io_uring. Every connection has one multishot receive, which uses buffers
//! that all connections of the worker share. Short replies are queued and submitted with the next
//! wait. So a busy turn costs one system call, however many connections it serves.
//!
//! A send does not wait for the socket: it completes, perhaps in part, while it is submitted. The
//! connection keeps the bytes that the socket did not take, and sends them once the socket is
//! reported writable, as in the epoll loop. So the kernel never uses a connection's own buffers
//! while the loop waits for events.
//!
//! A multishot receive fills as many buffers as the socket has bytes for, all in one turn. A client
//! that fills several buffers in a row would delay the other connections. So the loop reads the
//! socket of such a *bulk* connection by system call instead, one part per turn. A connection that
//! sends long values counts as bulk too, because only a system call can write a value straight into
//! the service's memory (`incoming.rs`).
//!
//! Invariant: a connection's key is reused, and its socket is closed, only when the ring holds no
//! more operations of the connection (`operations` is 0).

mod buffers;
mod control_events;
mod ring;
mod staging;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::Timespec;

use self::buffers::BufferRing;
pub(super) use self::ring::probe;
use self::ring::{Completion, Op, Ring};
use self::staging::{STAGED_MAX, Staged, Staging};
use super::connection::{ConnectedSocket, Core, READ_SIZE};
use super::control::{Order, Shared};
use super::transport::{self, Moved};
use super::{FORESEEN, Flow, MAX_INPUT_HELD, OutputMemory, Service};

/// Number of shared receive buffers per worker.
const BUFFERS: u16 = 64;
const BUFFER_SIZE: usize = 8 << 10;
/// After this many full buffers in a row, a connection counts as bulk: the loop reads its socket by
/// system call.
const BULK_AFTER: u8 = 4;
/// The loop stops receiving for a connection with more than this many bytes of unprocessed input.
const PAUSE_ABOVE: usize = MAX_INPUT_HELD;
/// The loop stops receiving for a parked connection with more than this many bytes of unprocessed
/// input. While the buffers of all connections use more than half of their budget, this limit
/// applies to every connection.
const PAUSE_PARKED_ABOVE: usize = BUFFER_SIZE;
/// When the loop ends, it waits at most this long for the kernel to complete the last operations.
const REAP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receiving {
    #[default]
    No,
    Yes,
    /// The receive was cancelled, but the kernel has not confirmed the cancellation yet.
    Cancelled,
}

/// The state that this loop keeps for a connection.
#[derive(Debug, Default)]
struct InFlight {
    receiving: Receiving,
    /// Number of full buffers that have arrived in a row. A buffer that is not full sets it to 0.
    full: u8,
    /// True if the last receive filled its buffer, so that the socket most probably has more bytes.
    readable: bool,
    sending: Option<Staged>,
    /// True if the connection waits for its socket to become writable.
    polling: bool,
    /// True if the connection was ended and must be removed as soon as none of its operations are
    /// in flight.
    gone: bool,
    operations: u8,
}

impl InFlight {
    /// Records that a buffer with `len` bytes has arrived.
    #[inline]
    fn note_buffer(&mut self, len: usize) {
        self.readable = len == BUFFER_SIZE;
        self.full = if self.readable { self.full.saturating_add(1) } else { 0 };
    }
}

impl<C> ConnectedSocket<C, InFlight> {
    /// Returns true if the client sends so much at once that a multishot receive would delay other
    /// connections, or if the service can receive the client's values without a copy.
    #[inline]
    fn is_bulk(&self) -> bool {
        self.io.full >= BULK_AFTER || self.sends_values
    }

    /// Returns true if the loop should read the connection's socket by system call now. No receive
    /// is in the ring then, and the loop has taken the bytes of all earlier ones. So the call
    /// returns the bytes that follow them.
    #[inline]
    fn is_read_by_call(&self) -> bool {
        self.is_bulk() && self.io.readable && self.io.receiving == Receiving::No
    }
}

struct Uring<S: Service> {
    // `ring` is declared before the memory that it uses, because fields are dropped in the order of
    // their declaration.
    ring: Ring,
    buffers: BufferRing,
    staging: Staging,
    core: Core<S, InFlight>,
    /// Memory in which the loop puts new input behind the unprocessed input of a connection,
    /// because the service needs all of it in one piece.
    input: Box<[u8]>,
    replies: OutputMemory,
    /// For each listener, true if an accept is in the ring.
    accepting: Vec<bool>,
    /// The time at which the earliest timeout in the ring ends the wait, in milliseconds of the
    /// coarse clock. `u64::MAX` if the ring has no timeout.
    timer_at: u64,
    timer: Box<Timespec>,
}

/// Runs the event loop of one worker until the workers are told to stop.
pub(super) fn run<S: Service>(shared: Arc<Shared>, index: usize, service: S) -> io::Result<()> {
    let ring = Ring::new()?;
    let buffers = BufferRing::new(ring.raw(), BUFFERS, BUFFER_SIZE)?;
    let replies = OutputMemory::of_loop(shared.options.output_limit);
    let mut uring = Uring {
        ring,
        buffers,
        staging: Staging::new(),
        accepting: vec![false; shared.options.listeners.len()],
        core: Core::new(shared, index, service),
        input: vec![0; MAX_INPUT_HELD + READ_SIZE].into(),
        replies,
        timer_at: u64::MAX,
        timer: Box::new(Timespec::new()),
    };
    uring.watch()?;
    uring.listen()?;
    let result = uring.turns();
    uring.close()?;
    result
}

impl<S: Service> Uring<S> {
    fn turns(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        loop {
            self.turn(&mut completions)?;
            let mut budget = self.core.step_budget();
            while let Some(key) = self.core.next_ready(&mut budget) {
                self.step(key)?;
                self.relieve()?;
            }
            if self.core.sweep_due() {
                self.sweep()?;
            }
            if self.core.order == Order::Stop
                && (self.core.connections.len() == 0 || self.core.out_of_grace())
            {
                return Ok(());
            }
        }
    }

    /// Waits for completions and handles them.
    fn turn(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        let mut wait = !self.core.has_ready();
        while wait && let Some(time) = self.core.service.lingers() {
            self.ring.enter_for(time)?;
            wait = !self.ring.has_completions();
        }
        if wait {
            self.core.service.sleep();
            while wait && self.core.service.polls() {
                self.ring.enter(false)?;
                wait = !self.ring.has_completions();
                if wait {
                    thread::yield_now();
                }
            }
        }
        if wait {
            self.arm_timer()?;
        }
        self.ring.enter(wait)?;
        self.core.begin_turn();
        self.ring.harvest(completions);
        for some in completions.chunks(FORESEEN) {
            self.foresee(some);
            for &completion in some {
                self.completed(completion)?;
            }
            self.relieve()?;
        }
        completions.clear();
        Ok(())
    }

    /// Closes some connections if all connections together keep more input and replies than the
    /// budget allows.
    #[inline]
    fn relieve(&mut self) -> io::Result<()> {
        if self.core.budget_check_due {
            for key in self.core.relieve() {
                self.drop_connection(key)?;
            }
        }
        Ok(())
    }

    /// Lets the service prefetch for the requests in the input of these completions.
    #[inline]
    fn foresee(&mut self, completions: &[Completion]) {
        if completions.len() > 1 {
            let buffers = &self.buffers;
            self.core.service.foresee(completions.iter().filter_map(|completion| {
                Some(buffers.bytes(completion.buffer()?, completion.result.try_into().ok()?))
            }));
        }
    }

    #[inline]
    fn completed(&mut self, completion: Completion) -> io::Result<()> {
        match completion.op {
            Op::Receive => self.received(completion),
            Op::Send => self.sent(completion),
            Op::WaitForOutput => self.writable(completion.key),
            Op::Cancel => Ok(()),
            Op::Accept => self.accepted(completion),
            Op::Alarm => {
                if !completion.more() {
                    self.watch()?;
                }
                self.alarmed()
            }
            Op::Timer => {
                self.timer_at = u64::MAX;
                Ok(())
            }
        }
    }

    #[inline]
    fn received(&mut self, completion: Completion) -> io::Result<()> {
        let key = completion.key;
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        if !completion.more() {
            connection.io.receiving = Receiving::No;
            connection.io.operations -= 1;
        }
        match completion.result {
            0 => connection.ended = true,
            n if n > 0 => {
                connection.io.note_buffer(n as usize);
                if connection.is_bulk() && connection.io.receiving == Receiving::Yes {
                    self.stop_receiving(key)?;
                }
                self.core.received(n as usize);
                if let Some(buffer) = completion.buffer() {
                    let executed = self.take_input(key, buffer, n as usize)?;
                    self.buffers.give_back(buffer);
                    if !executed && self.core.is_queued(key) {
                        return Ok(());
                    }
                    return if executed { self.transmit(key) } else { self.step(key) };
                }
            }
            error => {
                // With these errors, the connection continues: the kernel was out of buffers, or
                // the receive was cancelled or interrupted. `step` begins a new receive if needed.
                let passing = [libc::ENOBUFS, libc::ECANCELED, libc::EAGAIN, libc::EINTR];
                if !passing.contains(&-error) {
                    return self.drop_connection(key);
                }
            }
        }
        if let Some(buffer) = completion.buffer() {
            self.buffers.give_back(buffer);
        }
        self.step(key)
    }

    /// Passes arriving input to the service, or keeps it for later. Returns true if the service was
    /// called.
    #[inline]
    fn take_input(&mut self, key: u32, buffer: u16, len: usize) -> io::Result<bool> {
        let bytes = self.buffers.bytes(buffer, len);
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(false) };
        if connection.service.is_none() {
            return Ok(false);
        }
        let kept = connection.input.len();
        let waits = connection.io.sending.is_some() || !connection.takes_input();
        if !waits && kept == 0 {
            return Ok(self.core.execute(key, Some(bytes), &mut self.replies));
        }
        if !waits && kept + len <= self.input.len() {
            self.input[..kept].copy_from_slice(connection.input.bytes());
            self.input[kept..kept + len].copy_from_slice(bytes);
            let whole = &self.input[..kept + len];
            return Ok(self.core.execute(key, Some(whole), &mut self.replies));
        }
        let short = self.core.is_short_of_memory();
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(false) };
        let waits_long = connection.flow == Flow::Park || short;
        let most = if waits_long { PAUSE_PARKED_ABOVE } else { PAUSE_ABOVE };
        let pause = kept + len > most && connection.io.receiving == Receiving::Yes;
        if pause {
            connection.io.receiving = Receiving::Cancelled;
        }
        self.core.hold_input(key, bytes);
        if pause {
            self.ring.cancel(Op::Receive, key)?;
        }
        Ok(false)
    }

    /// Sends the replies. If there are none, continues the connection at once.
    #[inline]
    fn transmit(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        let bytes = self.replies.bytes();
        if bytes.is_empty() {
            return self.proceed(key);
        }
        if bytes.len() <= STAGED_MAX {
            let staged = self.staging.stage(bytes);
            self.replies.clear();
            connection.io.sending = Some(staged);
            connection.io.operations += 1;
            let bytes = self.staging.bytes(staged);
            let (socket, bytes) =
                (connection.socket.as_raw_fd(), (bytes.as_ptr(), bytes.len() as u32));
            // SAFETY: staged bytes stay in place until they are released, which happens at the
            // completion.
            return unsafe { self.ring.send(socket, bytes, key) };
        }
        let sent = match transport::send(&connection.socket, bytes) {
            Moved::Bytes(n) => n,
            Moved::Blocked => 0,
            Moved::End | Moved::Broken => {
                self.replies.clear();
                return self.drop_connection(key);
            }
        };
        self.core.sent(sent);
        if sent < bytes.len() {
            self.core.hold_output(key, &bytes[sent..]);
            self.replies.recycle(self.core.shared.options.output_limit);
            return self.wait_for_output(key);
        }
        self.replies.recycle(self.core.shared.options.output_limit);
        self.proceed(key)
    }

    #[inline]
    fn sent(&mut self, completion: Completion) -> io::Result<()> {
        let key = completion.key;
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        let Some(staged) = connection.io.sending.take() else { return Ok(()) };
        connection.io.operations -= 1;
        let gone = connection.service.is_none();
        let sent = match completion.result {
            n if n >= 0 => n as usize,
            error if -error == libc::EAGAIN || -error == libc::EINTR => 0,
            _ => {
                self.staging.release(staged);
                return self.drop_connection(key);
            }
        };
        self.core.sent(sent);
        if sent < staged.len() && !gone {
            self.core.hold_output(key, &self.staging.bytes(staged)[sent..]);
            self.staging.release(staged);
            return self.wait_for_output(key);
        }
        self.staging.release(staged);
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        let goes_on =
            connection.unseen || connection.flow == Flow::Drain || connection.is_read_by_call();
        if goes_on && !gone {
            // The connection has more to do. It goes to the end of the ready list, so that the
            // connections already in the list continue first.
            self.core.queue(key);
            return Ok(());
        }
        self.step(key)
    }

    fn writable(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        connection.io.polling = false;
        connection.io.operations -= 1;
        self.step(key)
    }

    fn wait_for_output(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        connection.io.polling = true;
        connection.io.operations += 1;
        self.ring.wait_for_output(connection.socket.as_raw_fd(), key)
    }

    /// Continues a connection by one step: sends unsent output, processes input, or receives. Does
    /// nothing while a served connection has a send in flight or waits for its socket to be
    /// writable.
    #[inline]
    fn step(&mut self, key: u32) -> io::Result<()> {
        let given_up = self.core.has_given_up_clients();
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        let io = &connection.io;
        if connection.service.is_none() {
            return self.linger(key);
        }
        if io.sending.is_some() || io.polling {
            return Ok(());
        }
        if !connection.output.is_empty() && !self.flush(key)? {
            return Ok(());
        }
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        let executed = match connection.flow {
            Flow::Close => return self.finish(key),
            Flow::Park => return Ok(()),
            Flow::Drain => self.core.execute(key, None, &mut self.replies),
            Flow::Read | Flow::Hold if connection.unseen => {
                self.core.execute(key, None, &mut self.replies)
            }
            Flow::Read | Flow::Hold if connection.is_read_by_call() && !given_up => {
                return self.read(key);
            }
            Flow::Read | Flow::Hold => return self.settle(key),
        };
        if executed { self.transmit(key) } else { Ok(()) }
    }

    /// Receives once by system call, and passes the input to the service.
    fn read(&mut self, key: u32) -> io::Result<()> {
        let Some((received, len)) = self.core.receive(key, &mut self.input) else { return Ok(()) };
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        connection.io.readable = received.full;
        match received.moved {
            Moved::Bytes(n) => {
                self.core.received(n);
                let whole = &self.input[..len];
                if self.core.execute(key, Some(whole), &mut self.replies) {
                    self.transmit(key)?;
                }
                Ok(())
            }
            Moved::Broken => self.drop_connection(key),
            Moved::Blocked | Moved::End => {
                connection.ended |= received.moved == Moved::End;
                self.settle(key)
            }
        }
    }

    /// Continues a connection after the service was called and all its replies were sent.
    fn proceed(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        match connection.flow {
            Flow::Close => self.finish(key)?,
            Flow::Read | Flow::Hold if !connection.unseen => self.settle(key)?,
            Flow::Drain | Flow::Read | Flow::Hold => self.core.queue(key),
            Flow::Park => {}
        }
        Ok(())
    }

    /// Sends output held from an earlier turn. Returns true if all of it was sent.
    fn flush(&mut self, key: u32) -> io::Result<bool> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(false) };
        let all = connection.output.len();
        match transport::send(&connection.socket, connection.output.bytes()) {
            Moved::Bytes(n) => {
                self.core.sent_held(key, n);
                if n < all {
                    self.wait_for_output(key)?;
                }
                return Ok(n == all);
            }
            Moved::Blocked => self.wait_for_output(key)?,
            Moved::End | Moved::Broken => self.drop_connection(key)?,
        }
        Ok(false)
    }

    /// Called when all received input of a connection is processed and answered. Ends the
    /// connection if the client has ended its input, or if the workers stop and nothing is in
    /// flight. Otherwise receives more input.
    #[inline]
    fn settle(&mut self, key: u32) -> io::Result<()> {
        let given_up = self.core.has_given_up_clients();
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        if connection.ended {
            // The client has shut down its sending side. It must still receive withheld replies, so
            // a connection with such replies stays open.
            return if connection.flow == Flow::Hold { Ok(()) } else { self.drop_connection(key) };
        }
        if connection.is_read_by_call() && !given_up {
            self.core.queue(key);
            return Ok(());
        }
        let receiving = connection.io.receiving;
        if self.core.order == Order::Stop && self.core.is_quiet(key) {
            return match receiving {
                Receiving::No => self.drop_connection(key),
                // The kernel may already have taken bytes from the socket, and still delivers them.
                // So the connection ends only after the kernel has confirmed the cancellation.
                Receiving::Yes => self.stop_receiving(key),
                Receiving::Cancelled => Ok(()),
            };
        }
        if receiving == Receiving::No { self.receive(key) } else { Ok(()) }
    }

    fn receive(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        connection.io.receiving = Receiving::Yes;
        connection.io.operations += 1;
        let socket = connection.socket.as_raw_fd();
        // A bulk connection receives only one buffer through the ring, to learn that input has
        // arrived. The loop then reads the rest by system call.
        match connection.is_bulk() {
            true => self.ring.receive_once(socket, BUFFER_SIZE as u32, key),
            false => self.ring.receive(socket, key),
        }
    }

    fn stop_receiving(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        connection.io.receiving = Receiving::Cancelled;
        self.ring.cancel(Op::Receive, key)
    }

    /// Begins to end a connection as the service asked. Called when all its replies were sent. If
    /// the client has not ended its input yet, the connection lingers until it does.
    fn finish(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        if connection.ended || self.core.order == Order::Stop {
            return self.drop_connection(key);
        }
        transport::end_output(&connection.socket);
        self.core.detach(key);
        self.linger(key)
    }

    /// Receives and discards the input of a connection that the server has ended, until the client
    /// ends its input too.
    fn linger(&mut self, key: u32) -> io::Result<()> {
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        if connection.io.gone {
            if connection.io.operations == 0 {
                self.core.remove(key);
            }
        } else if connection.ended {
            return self.drop_connection(key);
        } else if connection.io.receiving == Receiving::No {
            return self.receive(key);
        }
        Ok(())
    }

    /// Ends a connection now. Removes it at once, or when the last of its operations in flight has
    /// completed.
    fn drop_connection(&mut self, key: u32) -> io::Result<()> {
        self.core.detach(key);
        let Some(connection) = self.core.connections.get_mut(key) else { return Ok(()) };
        if connection.io.operations > 0 {
            connection.io.gone = true;
            // Shutting down the socket completes all operations that wait for the socket.
            transport::abort(&connection.socket);
        } else {
            self.core.remove(key);
        }
        Ok(())
    }

    /// Drops all connections, and waits at most [`REAP`] until the kernel has completed their
    /// operations.
    fn close(mut self) -> io::Result<()> {
        for key in 0..self.core.connections.bound() {
            self.drop_connection(key)?;
        }
        let deadline = Instant::now() + REAP;
        let mut completions = Vec::new();
        loop {
            self.ring.harvest(&mut completions);
            for completion in completions.drain(..) {
                match completion.op {
                    Op::Alarm => {}
                    // The client was accepted too late, so its connection is closed.
                    Op::Accept if completion.result >= 0 => {
                        // SAFETY: the kernel has created this descriptor, and it has no other
                        // owner.
                        drop(unsafe { OwnedFd::from_raw_fd(completion.result) });
                    }
                    Op::Accept => {}
                    _ => self.completed(completion)?,
                }
            }
            if self.core.connections.len() == 0 || Instant::now() >= deadline {
                break;
            }
            // This timer ends the wait below if no other operation completes.
            *self.timer = Timespec::from(REAP / 10);
            // SAFETY: `timer` is boxed, and is not changed before the next call submits it.
            unsafe { self.ring.start_timer(&raw const *self.timer)? };
            self.ring.enter(true)?;
        }
        if self.core.connections.len() > 0 {
            // Operations of the remaining connections are still in flight, and the kernel may still
            // use this memory. So it is leaked instead of freed.
            std::mem::forget(self.buffers);
            std::mem::forget(self.staging);
        }
        Ok(())
    }
}
