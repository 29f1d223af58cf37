//! The inputs of a command's execution, and the ways in which an execution ends.

use super::{CommandCounters, Dump, Points, ServerContext, expiry};
use crate::net::OutputBuffer;
use crate::policies::PolicyReader;
use larder_engine::{CommitPoint, Expiry, Item, KeptValue, Outcome, Refusal, Session, UnixSeconds};
use larder_protocol::StoreMode;
use larder_protocol::text::Get;

/// The inputs and the output of a command's execution.
pub(crate) struct Execution<'e, 'o> {
    /// The worker's handle of the engine.
    pub(crate) session: &'e Session,
    /// The state that all workers share.
    pub(crate) context: &'e ServerContext,
    /// The counters of this worker.
    pub(crate) counters: &'e CommandCounters,
    /// The policies of rate limits.
    pub(crate) policies: &'e PolicyReader,
    /// The output that receives the reply.
    pub(crate) output: &'e mut OutputBuffer<'o>,
    /// The commits that the reply waits for; `None` if it may be sent at once.
    pub(crate) points: Option<Points>,
}

impl Execution<'_, '_> {
    /// Returns the answer of an engine call. If the answer depends on a commit, adds the commit to
    /// `points`, so that the whole reply waits until the commit is durable.
    #[inline(always)]
    pub(crate) fn settle<T>(&mut self, outcome: Outcome<T>) -> Result<T, Unready> {
        match outcome {
            Outcome::Ready(answer) => Ok(answer),
            Outcome::AfterCommit(answer, point) => {
                self.wait_for(point);
                Ok(answer)
            }
            Outcome::NeedsRead | Outcome::NeedsSpace => Err(Unready::Again),
            Outcome::Refused(refusal) => Err(Unready::Refused(refusal)),
        }
    }

    /// Replies with a line.
    #[inline]
    pub(super) fn say(&mut self, line: &str) -> Executed {
        self.output.extend(line.as_bytes());
        Executed::Done
    }

    /// Replies with a line, unless `noreply` says that the client wants no reply.
    #[inline]
    pub(super) fn say_unless(&mut self, noreply: bool, line: &str) -> Executed {
        if noreply { Executed::Done } else { self.say(line) }
    }

    /// Removes all items at the time `at`, or now if `at` is `None`. The reply waits until the
    /// flush is durable.
    pub(super) fn flush_all(&mut self, at: Option<UnixSeconds>) -> Result<(), Unready> {
        let points = self.settle(self.session.flush_all(at))?;
        points.into_iter().for_each(|point| self.wait_for(point));
        Ok(())
    }

    #[cold]
    fn wait_for(&mut self, point: CommitPoint) {
        match &mut self.points {
            Some(points) => points.add(point),
            None => self.points = Some(Points::new(point)),
        }
    }

    /// Converts the expiry time `exptime` of a request to an [`Expiry`]. A relative `exptime`
    /// counts from now.
    #[inline]
    pub(super) fn expiry(&self, exptime: impl Into<i64>) -> Expiry {
        let context = self.context;
        expiry(exptime.into(), self.session.now(), context.started, context.wall_ahead)
    }
}

/// Converts the result of a request to an [`Executed`]. If the engine refused the request, calls
/// `refused` to write the reply.
#[inline]
pub(super) fn conclude(
    executed: Result<Executed, Unready>,
    refused: impl FnOnce(Refusal) -> Executed,
) -> Executed {
    match executed {
        Ok(executed) => executed,
        Err(Unready::Again) => Executed::Again,
        Err(Unready::Refused(refusal)) => refused(refusal),
    }
}

/// Converts a protocol's store mode to the engine's.
pub(crate) fn engine_mode(mode: StoreMode) -> larder_engine::StoreMode {
    use larder_engine::StoreMode as Engine;
    match mode {
        StoreMode::Set => Engine::Set,
        StoreMode::Add => Engine::Add,
        StoreMode::Replace => Engine::Replace,
        StoreMode::Append => Engine::Append,
        StoreMode::Prepend => Engine::Prepend,
    }
}

/// How an execution ended.
#[derive(Debug)]
pub(crate) enum Executed {
    /// The whole reply is in the output.
    Done,
    /// The request was not executed, for example because memory is being reclaimed, a record is
    /// being read, or a key is moving between lanes. The connection executes the request again
    /// after the worker is woken.
    Again,
    /// The output holds the reply and a part of a long value. The connection sends the rest of the
    /// value after the client has read the output.
    Value(Box<LongValue>),
    /// Only the first keys of a retrieval are answered.
    Keys(Box<PartOfKeys>),
    /// A dump of items or of prefix counters begins.
    Dump(Box<Dump>),
    /// The connection closes after the output is sent.
    Close,
}

impl Executed {
    /// Returns for how many keys the request was executed. `all` is the number of its keys.
    #[inline(always)]
    pub(crate) fn keys(&self, all: usize) -> usize {
        match self {
            Executed::Again => 0,
            Executed::Keys(part) => part.answered,
            _ => all,
        }
    }
}

// Every request returns this type. A type of at most 16 bytes is returned in two registers.
const _: () = assert!(size_of::<Result<Executed, Unready>>() <= 16);

/// A retrieval whose first keys are answered. The connection sends the rest of `value`, then parses
/// and answers the remaining keys from the input.
#[derive(Debug)]
pub(crate) struct PartOfKeys {
    pub(crate) get: Get,
    /// Number of answered keys. The answer to the last of these keys may be incomplete, see
    /// `value`.
    pub(crate) answered: usize,
    /// The rest of the last answered key's value, if the value exceeds the output's limit.
    pub(crate) value: Option<Box<LongValue>>,
}

/// A value longer than the output's limit, while it is being sent.
#[derive(Debug)]
pub(crate) struct LongValue {
    rest: KeptValue,
    trailer: &'static [u8],
}

impl LongValue {
    /// Sends more of the value.
    pub(crate) fn send(&mut self, output: &mut OutputBuffer<'_>) -> Sent {
        let room = output.limit().saturating_sub(output.len());
        match self.rest.read(room, |part| output.extend(part)) {
            Some(0) => {
                output.extend(self.trailer);
                Sent::All
            }
            Some(_) => Sent::Part,
            None => Sent::Gone,
        }
    }
}

/// The result of sending more of a value or dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The whole value or dump was sent.
    All,
    /// A part is left to send, because the output is full or a dump has taken its steps.
    Part,
    /// A record is being read from a device, or items are moving between lanes. The caller tries
    /// again after the worker is woken.
    Wait,
    /// The rest is no longer available. The reply cannot be finished, so the connection must be
    /// closed.
    Gone,
}

/// Appends an item's value and `trailer`, the protocol's mark for the end of a value. If the value
/// is longer than the output's limit, appends only a part of the value. Returns the rest then,
/// which includes `trailer`.
#[inline(always)]
pub(crate) fn put_value(
    output: &mut OutputBuffer<'_>,
    item: Item<'_>,
    trailer: &'static [u8],
) -> Option<Box<LongValue>> {
    let value = item.value();
    if value.len() <= output.limit() {
        let len = value.len() + trailer.len();
        let room = output.room(len);
        room[..value.len()].copy_from_slice(value);
        room[value.len()..len].copy_from_slice(trailer);
        output.advance(len);
        return None;
    }
    Some(put_part(output, item, trailer))
}

#[cold]
fn put_part(
    output: &mut OutputBuffer<'_>,
    item: Item<'_>,
    trailer: &'static [u8],
) -> Box<LongValue> {
    let sent = output.limit().saturating_sub(output.len());
    output.extend(&item.value()[..sent]);
    Box::new(LongValue { rest: item.keep_value(sent), trailer })
}

/// The reason why an engine call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// The call must be repeated after the worker is woken.
    Again,
    /// The engine refused the call. The client receives an error.
    Refused(Refusal),
}
