//! What commands are executed with, and how an execution ends.

use super::{CommandCounters, Dump, Points, ServerContext, expiry};
use crate::net::OutputBuffer;
use larder_engine::{CommitPoint, Expiry, Item, KeptValue, Outcome, Refusal, Session, UnixSeconds};
use larder_protocol::StoreMode;
use larder_protocol::text::Get;

/// What a command is executed with.
pub(crate) struct Execution<'e, 'o> {
    /// The worker's way into the engine.
    pub(crate) session: &'e Session,
    /// What all workers share.
    pub(crate) context: &'e ServerContext,
    /// What this worker counts.
    pub(crate) counters: &'e CommandCounters,
    /// Where the reply goes.
    pub(crate) output: &'e mut OutputBuffer<'o>,
    /// What the reply waits for; `None` if it may be sent at once.
    pub(crate) points: Option<Points>,
}

impl Execution<'_, '_> {
    /// The answer of an engine call. If it must not be said before a commit is durable, the whole
    /// reply waits for that.
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

    /// Replies with a line unless the client wants none.
    #[inline]
    pub(super) fn say_unless(&mut self, noreply: bool, line: &str) -> Executed {
        if noreply { Executed::Done } else { self.say(line) }
    }

    /// Empties the cache now or at a time; the reply waits until that is durable.
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

    /// The expiry that `exptime` means now.
    #[inline]
    pub(super) fn expiry(&self, exptime: impl Into<i64>) -> Expiry {
        expiry(exptime.into(), self.session.now(), self.context.started)
    }
}

/// How a request has ended; `refused` replies that the engine refused it.
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

/// The protocols' word in the engine's language.
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
    /// Nothing was done: memory is being reclaimed, or a record is being read. The same request is
    /// to be executed again when the worker was woken.
    Again,
    /// The reply up to somewhere in this value is in the output; the rest follows when the client
    /// has read.
    Value(Box<LongValue>),
    /// Only some keys of a retrieval are answered.
    Keys(Box<PartOfKeys>),
    /// A dump of all items begins.
    Dump(Box<Dump>),
    /// The connection ends when the output was sent.
    Close,
}

// It is handed on for every request, so it must fit into two registers.
const _: () = assert!(size_of::<Result<Executed, Unready>>() <= 16);

/// The first keys of a retrieval are answered. The connection takes the others from the input as if the retrieval
/// began with them, after `value`.
#[derive(Debug)]
pub(crate) struct PartOfKeys {
    /// The retrieval.
    pub(crate) get: Get,
    /// How many of its keys are answered or being answered.
    pub(crate) answered: usize,
    /// The value of the last of these, if it is long.
    pub(crate) value: Option<Box<LongValue>>,
}

/// A value that is longer than the output may become, while it is being sent.
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

/// How far a value was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of it.
    All,
    /// Up to the output's limit.
    Part,
    /// It is being read; to be tried again when the worker was woken.
    Wait,
    /// It has gone meanwhile: the reply cannot be finished, the connection must be closed.
    Gone,
}

/// Appends an item's value and `trailer`. A value up to the output's limit is copied whole, of a
/// longer one a part; the rest is returned.
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

/// Why an engine call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// It is to be called again when the worker was woken.
    Again,
    /// It was refused, which is to be the reply.
    Refused(Refusal),
}
