//! One connection of the load: its pending requests, and the checks of their answers.

use std::collections::VecDeque;

use larder_client::{Parser, Reply, Sink, Stream};

use super::record::{Faults, Tally, fits};
use crate::wire::{Asker, Replies, Wire};
use crate::workload::values::Expected;
use crate::workload::{Asked, Verb, Workload};

/// An unanswered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) asked: Asked,
    /// Number of the request's keys not yet matched with a value; kept only when values are
    /// verified.
    pub(crate) unmatched: u32,
    /// The time from which the latency is measured, in nanoseconds since the start of the run: when
    /// the request was due (open loop) or sent (closed loop). With `wire_times`, when it was sent,
    /// less the time for which it had to wait for the previous answer on its connection. So the
    /// latency includes this wait.
    pub(crate) start: u64,
}

/// A socket and its requests.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
    pub(crate) pending: VecDeque<Request>,
    /// Key numbers of the pending requests; kept only when values are verified.
    pub(crate) numbers: VecDeque<u64>,
    /// Due times of requests that wait until the connection can send them (open loop).
    pub(crate) backlog: VecDeque<u64>,
    /// When the last answer arrived, in nanoseconds since the start of the run.
    pub(crate) free_since: u64,
    /// Bytes of requests that the socket has not accepted yet.
    pub(crate) unsent: Vec<u8>,
    /// The expected content of the value that is arriving.
    pub(crate) arriving: Option<Expected>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, wire: Option<&dyn Wire>) -> Connection {
        Connection {
            stream,
            decoder: wire.map_or_else(Decoder::default, |wire| Decoder::Other(wire.replies())),
            pending: VecDeque::new(),
            numbers: VecDeque::new(),
            backlog: VecDeque::new(),
            free_since: 0,
            unsent: Vec::new(),
            arriving: None,
        }
    }
}

/// Splits the received bytes into replies.
#[derive(Debug)]
pub(crate) enum Decoder {
    Memcached(Parser),
    Other(Box<dyn Replies>),
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::Memcached(Parser::default())
    }
}

impl Decoder {
    /// Parses the next bytes of the replies, and passes the results to `judge`, which knows the
    /// pending requests.
    #[inline]
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
    ) -> std::result::Result<(), String> {
        match self {
            Decoder::Memcached(parser) => parser.feed(bytes, judge),
            Decoder::Other(replies) => replies.feed(bytes, judge),
        }
    }
}

/// The period whose requests are in the figures. Its limits are in nanoseconds since the start of
/// the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// If true, the figures have the requests whose [`Request::start`] is in the period. If false,
    /// they have those that were answered in the period.
    pub(crate) by_start: bool,
}

impl Window {
    #[inline]
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        let moment = if self.by_start { start } else { end };
        self.from <= moment && moment < self.to
    }
}

/// The results that one generator thread collects from its answers.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) window: Window,
    /// The tally of the current second.
    pub(crate) tally: Tally,
    pub(crate) faults: Faults,
    /// Number of requests answered since the start of the run, inside and outside the window.
    pub(crate) answered: u64,
    /// Number of keys in these requests.
    pub(crate) answered_keys: u64,
    /// The numbers that counters returned; `None` unless the load collects them.
    pub(crate) counted: Option<Vec<u64>>,
    /// The start of every request in the window and its latency, both in nanoseconds. A start
    /// counts from the beginning of the window. `None` unless the load keeps these samples.
    pub(crate) samples: Option<Vec<(u64, u64)>>,
    pub(crate) verify: bool,
    pub(crate) key: Vec<u8>,
}

impl Book {
    /// Keeps the start and the latency of a request, if the load wants them.
    #[inline]
    pub(crate) fn keep_sample(&mut self, start: u64, latency: u64) {
        if let Some(samples) = &mut self.samples {
            // In a closed loop, a request may have been sent before the period.
            samples.push((start.saturating_sub(self.window.from), latency));
        }
    }
}

/// Processes the answers that one read of a connection brought.
pub(crate) struct Judge<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) book: &'a mut Book,
    pub(crate) pending: &'a mut VecDeque<Request>,
    pub(crate) numbers: &'a mut VecDeque<u64>,
    pub(crate) arriving: &'a mut Option<Expected>,
    pub(crate) now: u64,
}

impl Judge<'_> {
    /// Finds the requested key to which an arriving value belongs, and sets the expected content.
    /// The value belongs to the first unmatched key of the oldest request that equals `key`. The
    /// unmatched keys before that key were misses.
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
            // Answers of meta commands and of other protocols do not repeat the key.
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

impl Asker for Judge<'_> {
    fn verb(&self) -> Option<Verb> {
        self.pending.front().map(|request| request.asked.verb)
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
                format!("{piece:?} differs from the stored value (about {key:?}, offset {offset})")
            });
        }
    }

    #[inline]
    fn reply(&mut self, reply: Reply<'_>, values: u32) {
        // An error that arrives before the answer to a run of quiet sets concerns one of these
        // sets. The run stays pending until its answer arrives.
        if let (Some(run), Reply::Error(line)) = (self.pending.front(), reply)
            && run.asked.verb == Verb::QuietSets
        {
            self.book.faults.error(line);
            return;
        }
        let Some(request) = self.pending.pop_front() else {
            self.book.faults.wrong(|| format!("{reply:?}, which answers no request"));
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
            self.book.tally.record(request.asked, &reply, values, latency);
            self.book.keep_sample(request.start, latency);
        }
    }
}
