//! One connection of the load: what it has asked, and the judge of its answers.

use std::collections::VecDeque;

use larder_client::Stream;

use super::record::{Faults, Tally, fits};
use super::reply::{Parser, Reply, Sink};
use crate::workload::values::Expected;
use crate::workload::{Asked, Verb, Workload};

/// A request without an answer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) asked: Asked,
    /// How many of its keys no value has been matched with; only kept when values are verified.
    pub(crate) unmatched: u32,
    /// When it was due (open loop) or sent (closed loop), in nanoseconds since the start. Between the sockets:
    /// when it was sent, less what the last answer on its connection kept it waiting.
    pub(crate) start: u64,
}

/// A socket and its requests.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) parser: Parser,
    pub(crate) pending: VecDeque<Request>,
    /// Key numbers of the pending requests; kept only when values are verified.
    pub(crate) numbers: VecDeque<u64>,
    /// Due times of requests that wait for the connection (open loop).
    pub(crate) backlog: VecDeque<u64>,
    /// When the last answer came, in nanoseconds since the start.
    pub(crate) free_since: u64,
    /// Bytes that the socket did not take.
    pub(crate) unsent: Vec<u8>,
    /// What the value that is arriving must be; kept over reads.
    pub(crate) arriving: Option<Expected>,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Connection {
        Connection {
            stream,
            parser: Parser::new(),
            pending: VecDeque::new(),
            numbers: VecDeque::new(),
            backlog: VecDeque::new(),
            free_since: 0,
            unsent: Vec::new(),
            arriving: None,
        }
    }
}

/// When answers count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Decide by when the request was due instead of when it was answered.
    pub(crate) by_start: bool,
}

impl Window {
    #[inline]
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        let moment = if self.by_start { start } else { end };
        self.from <= moment && moment < self.to
    }
}

/// Everything that answers are written into; shared by the connections of a thread.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) window: Window,
    /// The current second.
    pub(crate) tally: Tally,
    pub(crate) faults: Faults,
    /// Answers since the start, counted or not.
    pub(crate) answered: u64,
    pub(crate) answered_keys: u64,
    /// The numbers that counters answered, when they are wanted.
    pub(crate) counted: Option<Vec<u64>>,
    pub(crate) verify: bool,
    pub(crate) key: Vec<u8>,
}

/// Takes the answers of one read of one connection.
pub(crate) struct Judge<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) book: &'a mut Book,
    pub(crate) pending: &'a mut VecDeque<Request>,
    pub(crate) numbers: &'a mut VecDeque<u64>,
    pub(crate) arriving: &'a mut Option<Expected>,
    pub(crate) now: u64,
}

impl Judge<'_> {
    /// The key that a value must belong to: the next one of the oldest request that matches. Keys
    /// that are passed over were misses.
    fn expect_value(&mut self, key: &[u8], length: usize) {
        *self.arriving = None;
        let Some(request) = self.pending.front_mut() else { return };
        if request.asked.verb.counts() {
            return;
        }
        let mut asked = false;
        while request.unmatched > 0 && !asked {
            let Some(number) = self.numbers.pop_front() else { break };
            request.unmatched -= 1;
            self.workload.key(number, &mut self.book.key);
            // Meta answers do not name the key.
            asked = key.is_empty() || key == self.book.key;
        }
        if !asked {
            self.book.faults.wrong(|| {
                format!("a value of {:?}, which was not asked for", String::from_utf8_lossy(key))
            });
            return;
        }
        let expected = self.workload.values.expected(&self.book.key);
        if expected.length != length {
            self.book.faults.wrong(|| {
                let key = String::from_utf8_lossy(&self.book.key).into_owned();
                format!("{length} bytes under {key:?} instead of {}", expected.length)
            });
            return;
        }
        *self.arriving = Some(expected);
    }
}

impl Sink for Judge<'_> {
    #[inline]
    fn value(&mut self, key: &[u8], length: usize) {
        if self.book.verify {
            self.expect_value(key, length);
        }
    }

    #[inline]
    fn body(&mut self, offset: usize, piece: &[u8]) {
        if let Some(expected) = self.arriving
            && !self.workload.values.matches(expected, offset, piece)
        {
            *self.arriving = None;
            self.book.faults.wrong(|| {
                let key = String::from_utf8_lossy(&self.book.key);
                let piece = String::from_utf8_lossy(&piece[..piece.len().min(60)]);
                format!("{piece:?} is not what was stored (about {key:?}, offset {offset})")
            });
        }
    }

    #[inline]
    fn reply(&mut self, reply: Reply<'_>) {
        // What a run of quiet sets answers before its end is about one of them.
        if let (Some(run), Reply::Error(line)) = (self.pending.front(), reply)
            && run.asked.verb == Verb::QuietSets
        {
            self.book.faults.error(line);
            return;
        }
        let Some(request) = self.pending.pop_front() else {
            self.book.faults.wrong(|| format!("{reply:?}, which nobody asked for"));
            return;
        };
        if self.book.verify {
            self.numbers.drain(..(request.unmatched as usize).min(self.numbers.len()));
        }
        if !fits(request.asked.verb, &reply) {
            let verb = request.asked.verb.name();
            self.book.faults.wrong(|| format!("{reply:?} as the answer to {verb}"));
            return;
        }
        match reply {
            Reply::Error(line) => self.book.faults.error(line),
            Reply::Number(number) => {
                if let Some(counted) = &mut self.book.counted {
                    counted.push(number);
                }
            }
            _ => {}
        }
        self.book.answered += 1;
        self.book.answered_keys += u64::from(request.asked.keys);
        if self.book.window.holds(request.start, self.now) {
            let latency = self.now.saturating_sub(request.start);
            self.book.tally.record(request.asked, &reply, latency);
        }
    }
}
