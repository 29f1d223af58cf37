//! Batches of requests. The worker parses all requests of a batch, then prefetches the records of
//! all keys, then executes all requests. The worker reuses the memory of one batch for the next, so
//! a request costs no allocation.

use super::body::Announced;
use super::scratch::{Action, Entry, KeyBatch, Scratch};
use super::state::{Connection, State, Step};
use super::worker::Worker;
use crate::command::binary::Binary;
use crate::command::text::{PREFETCH_WINDOW, Text};
use crate::command::{Dialect, Executed};
use crate::latency::CommandClass;
use crate::net::{Flow, InputBuffer, OutputBuffer};
use larder_engine::Key;
use larder_protocol::{KeySink, Parse, Then};

/// The largest number of requests in a batch.
const REQUESTS_MAX: usize = 64;
/// Number of requests between the prefetch of a lock and its use. With a much larger number,
/// another thread would often take the lock's cache line away before the lock is used.
const LOCKS_AHEAD: usize = 4;

/// A dialect for which each worker has a [`Scratch`].
pub(super) trait Batched: Dialect {
    fn scratch(worker: &mut Worker) -> &mut Scratch<Self>;
}

impl Batched for Text {
    fn scratch(worker: &mut Worker) -> &mut Scratch<Self> {
        &mut worker.text
    }
}

impl Batched for Binary {
    fn scratch(worker: &mut Worker) -> &mut Scratch<Self> {
        &mut worker.binary
    }
}

/// Why parsing stopped.
enum Stop<'a, D: Dialect> {
    /// The batch is full.
    Full,
    /// No complete request is left. More input is needed.
    NeedMore,
    /// A request [ends the turn](crate::command::Properties::ends_turn).
    Turn,
    /// The value of a storage request has not arrived completely and must be received first.
    Value { request: D::Request<'a>, value: Announced },
    /// The last request was refused. `Then` says what to do with the input behind it.
    Then(Then),
}

/// Returns the offset in `whole` at which its subslice `part` ends.
pub(super) fn end_within(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize + part.len()
}

/// Parses requests into `entries` and returns why parsing stopped.
#[inline]
fn parse<'a, D: Dialect>(
    bytes: &'a [u8],
    keys: &mut KeyBatch<'_, 'a>,
    entries: &mut Vec<Entry<'a, D>>,
) -> Stop<'a, D> {
    let mut at = 0;
    while entries.len() < REQUESTS_MAX && keys.len() < PREFETCH_WINDOW {
        if at == bytes.len() {
            return Stop::NeedMore;
        }
        let (begin, keys_end) = (at, keys.len() + 1);
        let common = D::parse_common(&bytes[begin..], keys, |request, consumed| {
            at = begin + consumed;
            entries.push(Entry { action: Action::Execute(request), keys_end, end: at });
        });
        if common {
            continue;
        }
        match D::parse(&bytes[at..], keys) {
            Parse::Request { request, consumed } => {
                at += consumed;
                let entry =
                    Entry { action: Action::Execute(request), keys_end: keys.len(), end: at };
                entries.push(entry);
                if D::properties(&request).ends_turn {
                    return Stop::Turn;
                }
            }
            Parse::NeedMore { .. } => return Stop::NeedMore,
            Parse::NeedValue { request, header, value, trailer } => {
                return Stop::Value { request, value: Announced { header, value, trailer } };
            }
            Parse::Refused { reply, consumed, then } => {
                at += consumed;
                let rest = match then {
                    Then::Continue => None,
                    Then::Swallow(n) if bytes.len() - at >= n => {
                        at += n;
                        None
                    }
                    then => Some(Stop::Then(then)),
                };
                entries.push(Entry {
                    action: Action::Refuse(reply),
                    keys_end: keys.len(),
                    end: at,
                });
                if let Some(stop) = rest {
                    return stop;
                }
            }
        }
    }
    Stop::Full
}

impl Worker {
    /// Parses the requests in the input, prefetches their records, and executes them.
    pub(super) fn batch<D: Batched>(
        &mut self,
        connection: &mut Connection,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        let bytes = input.bytes();
        let mut entries = D::scratch(self).take_entries();
        let keys = D::scratch(self).take_keys();
        let mut keys = KeyBatch::new(&self.session, keys);
        let stop = parse::<D>(bytes, &mut keys, &mut entries);
        let waiting = match &stop {
            Stop::Value { request, .. } => D::properties(request).overwrites(),
            _ => false,
        };
        keys.fetch_records_of(&entries, waiting);
        let keys = keys.into_inner();
        let step = match self.execute_all(connection, &entries, &keys, input, output) {
            Some(interrupted) => interrupted,
            None => {
                let keys_end = entries.last().map_or(0, |entry| entry.keys_end);
                self.after(stop, connection, &keys[keys_end..], input, output)
            }
        };
        D::scratch(self).give_entries(entries);
        D::scratch(self).give_keys(keys);
        step
    }

    /// Executes a batch and consumes the input of the executed requests. Returns `None` if all
    /// requests were executed. Otherwise returns what the connection must do before it executes the
    /// remaining requests.
    #[inline]
    fn execute_all<D: Dialect>(
        &self,
        connection: &mut Connection,
        entries: &[Entry<'_, D>],
        keys: &[Key<'_>],
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Option<Step> {
        let bytes = input.bytes();
        let (mut done, mut keys_done) = (0, 0);
        let mut x = self.execution(output);
        for (number, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(number + LOCKS_AHEAD) {
                self.prefetch_lock(ahead, keys);
            }
            if x.output.is_full() {
                input.consume(done);
                return Some(Step::Stop(Flow::Drain));
            }
            let own = &keys[keys_done..entry.keys_end];
            let start = x.output.len();
            let executed = match &entry.action {
                Action::Execute(request) => D::execute(&mut x, request, own, None),
                Action::Refuse(refusal) => {
                    D::refuse(&mut x, refusal);
                    Executed::Done
                }
            };
            let answered = executed.keys(own.len().max(1));
            if self.sampler.counts(answered) {
                match &entry.action {
                    Action::Execute(request) => {
                        let (own, len) = (&own[..answered.min(own.len())], entry.end - done);
                        self.sample::<D>(request, own, len, &x.output.bytes()[start..]);
                    }
                    Action::Refuse(_) => self.sampler.pass_over(),
                }
            }
            let class = match &entry.action {
                Action::Execute(request) => D::class(request),
                Action::Refuse(_) => CommandClass::Other,
            };
            let withheld = match &entry.action {
                Action::Execute(request) if x.points.is_some() => {
                    let whole = &bytes[done..entry.end];
                    let waited = (0, connection.waits());
                    let timing = self.timer.apart(
                        class,
                        self.first_hash::<D>(request, own),
                        whole.len(),
                        waited,
                    );
                    connection.withhold_reply::<D>(&mut x, start, request, whole, &executed, timing)
                }
                _ => false,
            };
            if withheld {
                self.timer.note_apart();
            } else if !matches!(executed, Executed::Again) {
                self.timer.answered(class);
            }
            if !matches!(executed, Executed::Done) {
                let (step, end) = interrupt(connection, executed, bytes, own);
                input.consume(match end {
                    End::Before => done,
                    End::Within(end) => end,
                    End::Behind => entry.end,
                });
                return Some(step);
            }
            (done, keys_done) = (entry.end, entry.keys_end);
        }
        input.consume(done);
        None
    }

    /// If the request in `entry` most probably takes the lock of a stripe, prefetches this lock.
    #[inline]
    fn prefetch_lock<D: Dialect>(&self, entry: &Entry<'_, D>, keys: &[Key<'_>]) {
        if let Action::Execute(request) = &entry.action
            && D::properties(request).locks
            && let Some(key) = keys[..entry.keys_end].last()
        {
            self.session.prefetch_lock(key);
        }
    }

    /// Handles the input behind the last complete request of a batch. If parsing stopped at a
    /// storage request whose value has not arrived, `keys` are the keys of this request.
    fn after<D: Dialect>(
        &self,
        stop: Stop<'_, D>,
        connection: &mut Connection,
        keys: &[Key<'_>],
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Step {
        match stop {
            Stop::Full | Stop::Then(Then::Continue) => Step::Next,
            Stop::Turn => {
                input.postpone();
                Step::Stop(Flow::Read)
            }
            Stop::NeedMore => Step::Stop(Flow::Read),
            Stop::Then(Then::Close) => Step::Stop(Flow::Close),
            Stop::Then(Then::Swallow(n)) => {
                connection.state = State::Swallow(n);
                Step::Next
            }
            Stop::Then(Then::SkipLine) => {
                connection.state = State::SkipLine;
                Step::Next
            }
            Stop::Value { request, value } => {
                self.begin_body::<D>(connection, &request, keys, value, input, output)
            }
        }
    }
}

/// The position in the input at which the connection continues after [`interrupt`] has handled a
/// request.
enum End {
    /// Before the request, which must be executed again.
    Before,
    /// Within the request, at this offset in the input.
    Within(usize),
    /// Behind the request.
    Behind,
}

/// Prepares the connection for the work that `executed` requires before the next request. `bytes`
/// is the input and `keys` are the request's keys. Returns the next step, and the position in the
/// input at which the connection continues.
fn interrupt(
    connection: &mut Connection,
    executed: Executed,
    bytes: &[u8],
    keys: &[Key<'_>],
) -> (Step, End) {
    match executed {
        Executed::Done => {}
        Executed::Again => return (Step::Stop(Flow::Park), End::Before),
        Executed::Close => return (Step::Stop(Flow::Close), End::Behind),
        Executed::Value(value) => connection.value = Some(value),
        Executed::Dump(dump) => connection.state = State::Dump(dump),
        Executed::Keys(part) => {
            connection.value = part.value;
            connection.state = State::Keys(part.get);
            if let Some(last) = part.answered.checked_sub(1) {
                return (Step::Next, End::Within(end_within(bytes, keys[last].bytes())));
            }
        }
    }
    (Step::Next, End::Behind)
}
