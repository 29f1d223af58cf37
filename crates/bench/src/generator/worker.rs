//! One generator thread: an event loop over its share of the connections.
//!
//! The thread writes requests into one buffer and sends that buffer. It reads all available answers
//! into another buffer, and checks them together. It allocates nothing per request. A connection
//! has a buffer only while it holds unsent or incomplete bytes, so the state of thousands of
//! connections fits into the processor's cache.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::connection::{Book, Connection, Judge, Request, Window};
use super::pacing::Schedule;
use super::poll::{Interest, Poll, Ready, exact_timers, thread_cpu};
use super::record::{Faults, Tally};
use super::{Load, Shared, stamps};
use crate::interrupt::is_interrupted;
use crate::workload::{Source, Workload};
use crate::{Error, Result, machine};

/// The largest number of bytes per read.
const INPUT: usize = 128 * 1024;
/// The longest wait for events. It limits how late a thread notices the end of a run.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(50);
/// The time for which a thread that is pinned to a processor polls before it sleeps. Waking a
/// sleeping client costs the server processor time, so a generator that sleeps makes servers look
/// slower.
const POLLING: Duration = Duration::from_millis(2);
/// A server that sends no answer for this time, in nanoseconds, counts as dead.
const SILENCE: u64 = 60_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// The results that a thread hands over at its end.
#[derive(Debug)]
pub(super) struct WorkerReport {
    pub(super) faults: Faults,
    /// The numbers that counters returned; empty unless the load collects them.
    pub(super) counted: Vec<u64>,
    /// The start and the latency of every request, in nanoseconds; empty unless the load keeps
    /// them.
    pub(super) samples: Vec<(u64, u64)>,
    /// Processor time of the thread in the measured window, in nanoseconds, without fruitless
    /// polls.
    pub(super) cpu: u64,
    /// Length of the measured window, in nanoseconds.
    pub(super) window: u64,
}

pub(super) struct Worker<'a> {
    load: &'a Load,
    workload: &'a Workload,
    shared: &'a Shared,
    index: usize,
    source: Source,
    schedule: Option<Schedule>,
    connections: Vec<Connection>,
    poll: Poll,
    book: Book,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The number of requests that this thread may still send.
    budget: u64,
    /// The number of requests sent and not yet answered, on all connections.
    in_flight: u64,
    /// The number of requests due and not yet sent, on all connections.
    waiting: u64,
    next_connection: usize,
    /// The thread's [`Worker::cpu`] and the time, when the measurement began.
    cpu_at_start: Option<(u64, u64)>,
    /// The same when the time of the measurement was over. The wait for the last answers follows
    /// and is not measured, because the thread is nearly idle then.
    cpu_at_end: Option<(u64, u64)>,
    /// Nanoseconds since the beginning of the measurement that the thread spent polling before a
    /// socket was ready.
    polled: u64,
    last_event: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        load: &'a Load,
        workload: &'a Workload,
        shared: &'a Shared,
        index: usize,
        connections: Vec<Connection>,
    ) -> Result<Worker<'a>> {
        let poll =
            Poll::new(connections.len()).map_err(|e| Error::io("cannot make an epoll", e))?;
        for (number, connection) in connections.iter().enumerate() {
            poll.add(connection.stream.as_fd(), number)
                .map_err(|e| Error::io("cannot watch a connection", e))?;
            if load.wire_times {
                stamps::enable(connection.stream.as_fd())
                    .map_err(|e| Error::io("cannot have the kernel note when answers come", e))?;
            }
        }
        let threads = load.threads as u64;
        let part = |index: u64| load.requests.map_or(u64::MAX, |all| all * index / threads);
        let schedule = Schedule::new(load.pacing, load.seed, index as u64, threads);
        let book = Book {
            window: Window { from: 0, to: u64::MAX, by_start: schedule.is_some() },
            tally: Tally::default(),
            faults: Faults::default(),
            answered: 0,
            answered_keys: 0,
            counted: load.collect_numbers.then(Vec::new),
            samples: load.keep_samples.then(Vec::new),
            verify: load.verify,
            key: Vec::new(),
        };
        Ok(Worker {
            source: workload.source(load.seed, index as u64, threads),
            budget: match load.requests {
                Some(_) => part(index as u64 + 1) - part(index as u64),
                None => u64::MAX,
            },
            load,
            workload,
            shared,
            index,
            schedule,
            connections,
            poll,
            book,
            output: Vec::with_capacity(64 * 1024),
            input: vec![0; INPUT],
            in_flight: 0,
            waiting: 0,
            next_connection: index,
            cpu_at_start: None,
            cpu_at_end: None,
            polled: 0,
            last_event: 0,
        })
    }

    /// Runs until the load ends. A failure also stops the other threads.
    pub(super) fn run(mut self) -> Result<WorkerReport> {
        exact_timers();
        self.shared.ready.wait();
        let pinned = self.load.cpu.map_or(Ok(()), machine::pin_thread);
        let done = pinned.and_then(|()| self.run_loop());
        self.shared.finished.fetch_add(1, Relaxed);
        if done.is_err() {
            self.shared.failed.store(true, Relaxed);
        }
        done?;
        let (cpu_from, from) = self.cpu_at_start.unwrap_or((0, 0));
        let (cpu_to, to) = self.cpu_at_end.unwrap_or_else(|| (self.cpu(), self.shared.now()));
        let report = WorkerReport {
            cpu: cpu_to.saturating_sub(cpu_from),
            window: to.saturating_sub(from),
            counted: self.book.counted.take().unwrap_or_default(),
            samples: self.book.samples.take().unwrap_or_default(),
            faults: self.book.faults,
        };
        Ok(report)
    }

    /// Returns the processor time of the thread in nanoseconds, without fruitless polls.
    fn cpu(&self) -> u64 {
        thread_cpu().saturating_sub(self.polled)
    }

    fn run_loop(&mut self) -> Result<()> {
        let warm = self.load.warm_up.as_nanos() as u64;
        let end = self.load.duration.map_or(u64::MAX, |duration| warm + duration.as_nanos() as u64);
        self.book.window = Window { from: warm, to: end, ..self.book.window };
        // The last measured second ends when the run ends, so it may be incomplete. Answers after
        // the end of the run count in further seconds.
        let (mut second, mut roll) = (0, end.min(warm + SECOND));
        let mut give_up = u64::MAX;
        if self.schedule.is_none() {
            let now = self.shared.now();
            for number in 0..self.connections.len() {
                self.top_up(number, now)?;
            }
        }
        loop {
            let now = self.shared.now();
            if self.cpu_at_start.is_none() && now >= warm {
                self.cpu_at_start = Some((self.cpu(), now));
            }
            if self.cpu_at_end.is_none() && now >= end {
                self.cpu_at_end = Some((self.cpu(), now));
            }
            while now >= roll {
                self.end_second(second);
                second += 1;
                roll = if roll < end { end.min(roll + SECOND) } else { roll + SECOND };
            }
            let over = now >= end || is_interrupted() || self.shared.failed.load(Relaxed);
            if give_up == u64::MAX && over {
                self.budget = 0;
                give_up = now.saturating_add(self.load.grace.as_nanos() as u64);
            }
            self.arrive(now.min(end.saturating_sub(1)), now)?;
            let idle = self.in_flight == 0 && self.waiting == 0;
            if (self.budget == 0 && idle) || now >= give_up || self.shared.failed.load(Relaxed) {
                break;
            }
            match self.load.blocking {
                true => self.turn_blocking(now)?,
                false => self.turn(now)?,
            }
        }
        self.abandon();
        self.end_second(second);
        Ok(())
    }

    /// Distributes due requests over the connections, round-robin. Every request due within the run
    /// counts, even if the thread handles it late.
    fn arrive(&mut self, until: u64, now: u64) -> Result<()> {
        while self.budget > 0 || self.load.duration.is_some() {
            let Some(schedule) = &mut self.schedule else { return Ok(()) };
            let due = schedule.due();
            if due > until {
                return Ok(());
            }
            schedule.advance();
            self.budget = self.budget.saturating_sub(1);
            let number = self.next_connection % self.connections.len();
            self.next_connection = number + 1;
            let connection = &mut self.connections[number];
            let free =
                connection.backlog.is_empty() && connection.pending.len() < self.load.pipeline;
            if free && self.book.window.holds(due, due) {
                self.book.tally.lag(now.saturating_sub(due));
            }
            connection.backlog.push_back(due);
            self.waiting += 1;
            self.top_up(number, now)?;
        }
        Ok(())
    }

    /// Waits for sockets or the next due request, and serves the ready sockets.
    fn turn(&mut self, now: u64) -> Result<()> {
        let due = match &self.schedule {
            Some(schedule) if self.budget > 0 => schedule.due().saturating_sub(now),
            _ => u64::MAX,
        };
        let timeout = Duration::from_nanos(due).min(WAIT_MAX);
        let count = match self.poll_first(now)? {
            0 => self.wait(timeout)?,
            count => count,
        };
        if count > 0 {
            self.last_event = now;
        }
        self.check_silence(now)?;
        for index in 0..count {
            let Ready { number, readable, writable } = self.poll.ready(index);
            if writable {
                self.send_rest(number)?;
            }
            if readable {
                self.receive(number)?;
            }
        }
        self.publish();
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<usize> {
        self.poll.wait(timeout).map_err(|e| Error::io("cannot wait for the connections", e))
    }

    /// Polls until a socket is ready, for at most [`POLLING`], and returns the number of ready
    /// sockets. Returns 0 at once in the open loop, or if the threads are not pinned. The time
    /// before a socket is ready does not count as processor time of the generator.
    fn poll_first(&mut self, now: u64) -> Result<usize> {
        if self.load.cpu.is_none() || self.schedule.is_some() {
            return Ok(0);
        }
        let end = now + POLLING.as_nanos() as u64;
        let mut last = now;
        loop {
            let count = self.wait(Duration::ZERO)?;
            let time = self.shared.now();
            if count > 0 || time >= end {
                if self.cpu_at_start.is_some() {
                    self.polled += last - now;
                }
                return Ok(count);
            }
            last = time;
        }
    }

    /// Waits for the answer on the only connection, and sends the next request.
    fn turn_blocking(&mut self, now: u64) -> Result<()> {
        let before = self.book.answered;
        while !self.connections[0].unsent.is_empty() {
            self.send_rest(0)?;
        }
        self.receive(0)?;
        if self.book.answered > before {
            self.last_event = now;
        }
        self.check_silence(now)?;
        self.publish();
        Ok(())
    }

    fn check_silence(&self, now: u64) -> Result<()> {
        match self.in_flight > 0 && now.saturating_sub(self.last_event) > SILENCE {
            true => Err(Error::server("the server has not answered for a minute")),
            false => Ok(()),
        }
    }

    fn publish(&self) {
        let published = &self.shared.progress[self.index];
        published.requests.store(self.book.answered, Relaxed);
        published.keys.store(self.book.answered_keys, Relaxed);
    }

    fn receive(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        loop {
            let received = match self.load.wire_times {
                true => stamps::receive(connection.stream.as_fd(), &mut self.input),
                false => {
                    connection.stream.receive(&mut self.input).map(|read| (read, Duration::ZERO))
                }
            };
            let (read, age) = match received {
                Ok((0, _)) => {
                    return Err(Error::server("the server closed a connection under load"));
                }
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("a connection broke under load", error)),
            };
            let before = connection.pending.len();
            connection.free_since = self.shared.now().saturating_sub(age.as_nanos() as u64);
            let mut judge = Judge {
                workload: self.workload,
                book: &mut self.book,
                pending: &mut connection.pending,
                numbers: &mut connection.numbers,
                arriving: &mut connection.arriving,
                now: connection.free_since,
            };
            connection.decoder.feed(&self.input[..read], &mut judge).map_err(Error::Void)?;
            self.in_flight -= (before - connection.pending.len()) as u64;
            if read < self.input.len() {
                break;
            }
        }
        let now = self.shared.now();
        self.top_up(number, now)
    }

    /// Sends the requests that the connection may send now. In the open loop these are the due
    /// ones. The closed loop sends a whole batch once the previous one is answered, so every server
    /// gets the same batches.
    fn top_up(&mut self, number: usize, now: u64) -> Result<()> {
        let depth = self.load.pipeline;
        let connection = &mut self.connections[number];
        if !connection.unsent.is_empty() {
            return Ok(());
        }
        self.output.clear();
        let open = self.schedule.is_some();
        if !open && !connection.pending.is_empty() {
            return Ok(());
        }
        while connection.pending.len() < depth {
            let start = match open {
                true => match connection.backlog.pop_front() {
                    Some(due) if self.load.wire_times => {
                        let held_back = connection.free_since.saturating_sub(due);
                        self.shared.now().saturating_sub(held_back)
                    }
                    Some(due) => due,
                    None => break,
                },
                false if self.budget == 0 => break,
                false => now,
            };
            let numbers = self.load.verify.then_some(&mut connection.numbers);
            let (source, output) = (&mut self.source, &mut self.output);
            let asked = match self.load.wire.as_deref() {
                None => self.workload.push_request(source, output, numbers),
                Some(wire) => self.workload.push_request_to(wire, source, output, numbers),
            };
            let Some(asked) = asked else {
                self.budget = 0;
                break;
            };
            if open {
                self.waiting -= 1;
            } else {
                self.budget -= 1;
            }
            self.in_flight += 1;
            connection.pending.push_back(Request { asked, unmatched: asked.keys, start });
        }
        if self.output.is_empty() {
            return Ok(());
        }
        let sent = send(&connection.stream, &self.output)?;
        if sent < self.output.len() {
            connection.unsent.extend_from_slice(&self.output[sent..]);
            self.watch(number, Interest::ReadWrite)?;
        }
        Ok(())
    }

    fn send_rest(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let sent = send(&connection.stream, &connection.unsent)?;
        connection.unsent.drain(..sent);
        if connection.unsent.is_empty() {
            connection.unsent = Vec::new();
            self.watch(number, Interest::Read)?;
            let now = self.shared.now();
            self.top_up(number, now)?;
        }
        Ok(())
    }

    fn watch(&self, number: usize, interest: Interest) -> Result<()> {
        self.poll
            .modify(self.connections[number].stream.as_fd(), number, interest)
            .map_err(|e| Error::io("cannot watch a connection", e))
    }

    /// Counts the unanswered requests, and adds the time that each has waited to the latencies.
    /// Without these times, the figures would hide a stall at the end of the run.
    fn abandon(&mut self) {
        let now = self.shared.now();
        let window = self.book.window;
        let first = self.workload.shape.mix.first();
        for connection in &mut self.connections {
            let sent = connection.pending.iter().map(|request| (request.asked.verb, request.start));
            let unsent = connection.backlog.iter().map(|&due| (first, due));
            for (verb, start) in sent.chain(unsent) {
                self.book.faults.unanswered += 1;
                if window.holds(start, start) {
                    let latency = now.saturating_sub(start);
                    self.book.tally.latency(verb, latency);
                    self.book.keep_sample(start, latency);
                }
            }
        }
    }

    /// Adds the tally of `second` to the tallies that the threads share. For the first thread this
    /// only moves the tally. So if a load has one thread, it never adds up histograms, which would
    /// delay its requests.
    fn end_second(&mut self, second: u64) {
        self.shared.add_second(second as usize, std::mem::take(&mut self.book.tally));
    }
}

fn send(stream: &larder_client::Stream, bytes: &[u8]) -> Result<usize> {
    loop {
        match stream.send(bytes) {
            Ok(sent) => return Ok(sent),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("a connection broke under load", error)),
        }
    }
}
