//! A thread that works on its own keys and on the shared counters, and that checks every answer.

use super::Shared;
use super::history::{KEYS, KeyState, Keys, Version};
use larder_disk::Random;
use larder_engine::{
    Arith, CommitPoint, CommitState, Counted, Create, Delete, Deleted, Expiry, Health, Outcome,
    Reads, Session, Store, Stored,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Interval after which a waiting worker repeats its call even if nothing has woken it.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The largest number of repetitions of one call.
const RETRIES_MAX: u32 = 600;
/// The number of operations after which a worker checks which changes have become durable.
const SETTLE: u64 = 64;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) struct Worker<'a> {
    shared: &'a Shared,
    keys: &'a mut Keys,
    random: Random,
    session: Session,
    now: u32,
}

/// The outcome of a call.
enum Done<T> {
    /// The answer, and the commit for which a client would have to wait before it gets the answer.
    Answer(T, Option<CommitPoint>),
    /// The call was refused and changed nothing.
    Refused,
    /// The machine stops. The call changed nothing.
    Stopped,
}

/// The outcome of a change that was answered.
enum Fate {
    Durable,
    /// The commit failed. In sync mode the engine has undone the change. In async mode a later
    /// commit covers the change.
    Failed,
    /// This commit makes the change durable, unless the machine stops first.
    Open(CommitPoint),
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared, keys: &'a mut Keys, random: Random) -> Worker<'a> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let session = shared.engine.session(waker);
        let mut worker = Worker { shared, keys, random, session, now: 0 };
        worker.tick();
        worker
    }

    /// Checks all keys after a start, then works until the machine stops.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for at in 0..KEYS as usize {
            let Some(found) = self.find(at)? else { return Ok(()) };
            let (now, evicts) = (self.now, self.shared.evicts);
            let checked = self.keys.histories[at].restarted(found, now, evicts);
            checked.map_err(|what| format!("key {at} of {}: {what}", self.keys.worker))?;
        }
        for step in 1.. {
            if self.shared.stops() {
                break;
            }
            self.act()?;
            self.shared.done.fetch_add(1, Relaxed);
            if step % SETTLE == 0 {
                self.settle();
            }
        }
        self.settle();
        self.session.sleep();
        Ok(())
    }

    /// Returns the state of a key after a start; `None` if the machine stops first.
    fn find(&mut self, at: usize) -> Result<Option<KeyState>, String> {
        for _ in 0..RETRIES_MAX {
            match self.get(at)? {
                Done::Answer(found, _) => return Ok(Some(found)),
                Done::Refused => self.refused("read")?,
                Done::Stopped => return Ok(None),
            }
            if self.shared.stops() {
                return Ok(None);
            }
            self.wait();
        }
        Err("a read is refused for ever".into())
    }

    fn tick(&mut self) {
        self.now = self.now.max(self.shared.now.load(Relaxed));
        self.session.tick(self.now);
    }

    fn act(&mut self) -> Result<(), String> {
        let at = (self.random.below(KEYS) * self.random.below(KEYS) / KEYS) as usize;
        match self.random.below(100) {
            0..45 => self.set(at),
            45..60 => self.delete(at),
            60..70 if !self.keys.counts.is_empty() => self.count(),
            _ => self.read(at),
        }
    }

    fn settle(&mut self) {
        let session = &self.session;
        let durable = |point| session.commit_state(point) == CommitState::Durable;
        for history in self.keys.histories.iter_mut().filter(|history| !history.is_settled()) {
            history.settle(durable);
        }
        for count in &mut self.keys.counts {
            let most = count.pending.iter().filter(|(_, point)| durable(*point)).map(|(n, _)| *n);
            count.durable = most.max().unwrap_or(0).max(count.durable);
            count.pending.retain(|(_, point)| !durable(*point));
        }
    }

    fn name(&self, at: usize) -> Vec<u8> {
        format!("{}-{at}-{}", self.keys.worker, "k".repeat(at % 60)).into_bytes()
    }

    /// Sleeps until the engine wakes the worker, or for [`RETRY_INTERVAL`].
    fn wait(&mut self) {
        self.session.sleep();
        thread::park_timeout(RETRY_INTERVAL);
        self.tick();
    }

    /// Repeats a call until it no longer waits.
    fn finish<T>(&mut self, call: impl FnMut(&Session) -> Outcome<T>) -> Result<Done<T>, String> {
        let mut reads = None;
        let finished = self.repeat(&mut reads, call);
        reads.into_iter().for_each(|reads| self.session.release(reads));
        finished
    }

    fn repeat<T>(
        &mut self,
        reads: &mut Option<Reads>,
        mut call: impl FnMut(&Session) -> Outcome<T>,
    ) -> Result<Done<T>, String> {
        for _ in 0..RETRIES_MAX {
            let outcome = call(&self.session);
            *reads = self.session.retake_reads(reads.take());
            match outcome {
                Outcome::Ready(answer) => return Ok(Done::Answer(answer, None)),
                Outcome::AfterCommit(answer, point) => {
                    return Ok(Done::Answer(answer, Some(point)));
                }
                Outcome::Refused(_) => return Ok(Done::Refused),
                Outcome::NeedsRead | Outcome::NeedsSpace if self.shared.stops() => {
                    return Ok(Done::Stopped);
                }
                Outcome::NeedsRead | Outcome::NeedsSpace => self.wait(),
            }
        }
        Err("a call waits for ever".into())
    }

    /// Returns the outcome of a change. If the answer to the change waits for the commit `point`,
    /// first waits until this commit is durable or has failed.
    fn follow(&mut self, key: &[u8], point: Option<CommitPoint>) -> Result<Fate, String> {
        let Some(point) = point else {
            if self.shared.syncs {
                return Err("a change was answered before it was durable".into());
            }
            return self.open_point(key).map(Fate::Open);
        };
        self.session.wake_on_commit(point);
        for _ in 0..RETRIES_MAX {
            match self.session.commit_state(point) {
                CommitState::Durable => return Ok(Fate::Durable),
                CommitState::Failed => return Ok(Fate::Failed),
                CommitState::Pending if self.shared.stops() => return Ok(Fate::Open(point)),
                CommitState::Pending => self.wait(),
            }
        }
        Err("a commit takes for ever".into())
    }

    /// Returns the open commit of the key's lane, for async mode. Once this commit is durable, a
    /// change that was just made to the key is durable too.
    fn open_point(&mut self, key: &[u8]) -> Result<CommitPoint, String> {
        for _ in 0..RETRIES_MAX {
            if let Some(lane) = self.shared.engine.lane_of(key) {
                let position = self.shared.engine.open_commit(lane);
                return Ok(CommitPoint { lane: lane as u32, position });
            }
            if self.shared.stops() {
                // The machine stops: return a commit that never becomes durable.
                return Ok(CommitPoint { lane: 0, position: u64::MAX });
            }
            self.wait();
        }
        Err("a key is on its way for ever".into())
    }

    /// Checks a refused call. The only valid reasons are a faulty device and the end of the life.
    fn refused(&self, what: &str) -> Result<(), String> {
        let faulty = self.shared.faulty.load(Relaxed) || self.shared.stops();
        if faulty || self.shared.engine.health() != Health::Good {
            return Ok(());
        }
        Err(format!("a {what} was refused"))
    }

    /// Returns the state of a key, after checking the bytes of its value.
    fn get(&mut self, at: usize) -> Result<Done<KeyState>, String> {
        let key = self.name(at);
        let slow = self.random.one_in(50);
        let answer = self.finish(|session| {
            session.get(&session.key(&key)).map(|item| {
                item.map(|item| {
                    let value = item.value();
                    let read = read_value(at, value);
                    if slow {
                        // During this pause, other threads overwrite, clean and evict. The bytes of
                        // this item must not change.
                        thread::park_timeout(Duration::from_millis(1));
                    }
                    (read, !slow || read == read_value(at, value))
                })
            })
        })?;
        match answer {
            Done::Answer(None, point) => Ok(Done::Answer(None, point)),
            Done::Answer(Some((Some(version), true)), point) => {
                Ok(Done::Answer(Some(version), point))
            }
            Done::Answer(Some(_), _) => Err(format!("key {at} has bytes that no worker wrote")),
            Done::Refused => Ok(Done::Refused),
            Done::Stopped => Ok(Done::Stopped),
        }
    }

    fn read(&mut self, at: usize) -> Result<(), String> {
        let found = match self.get(at)? {
            Done::Answer(found, _) => found,
            Done::Refused => return self.refused("read"),
            Done::Stopped => return Ok(()),
        };
        let now = self.now;
        let history = &mut self.keys.histories[at];
        let expected = history.current.filter(|version| version.lives(now));
        if found == expected {
            return Ok(());
        }
        if found.is_none() && self.shared.evicts {
            history.evicted();
            return Ok(());
        }
        Err(format!("key {at} of {}: read {found:?}: {history:?}", self.keys.worker))
    }

    fn set(&mut self, at: usize) -> Result<(), String> {
        let key = self.name(at);
        let len = match self.random.below(200) {
            0 if at.is_multiple_of(40) => 40_000 + self.random.below(60_000),
            1..40 => self.random.below(6_000),
            _ => self.random.below(1_500),
        };
        let expiry =
            if self.random.one_in(8) { self.now + 1 + self.random.below(20) as u32 } else { 0 };
        let version = Version { number: self.keys.next, expiry };
        self.keys.next += 1;
        let value = write_value(at, version, len as usize);
        let until = if expiry == 0 { Expiry::NEVER } else { Expiry::at(expiry) };
        self.keys.histories[at].begin(Some(version));
        let answer =
            self.finish(|session| session.store(&session.key(&key), Store::set(&value, 0, until)))?;
        self.end(at, &key, "set", answer, |stored| matches!(stored, Stored::Stored { .. }))
    }

    fn delete(&mut self, at: usize) -> Result<(), String> {
        let key = self.name(at);
        let now = self.now;
        let there = self.keys.histories[at].current.is_some_and(|version| version.lives(now));
        self.keys.histories[at].begin(None);
        let answer =
            self.finish(|session| session.delete(&session.key(&key), &Delete::default()))?;
        let evicts = self.shared.evicts;
        // The item may have expired between the beginning of the call and its execution in the
        // engine.
        let may_have_expired = self.keys.histories[at].current.is_some_and(|v| v.expiry != 0);
        match answer {
            Done::Answer(Deleted::NotFound, None) if !there || evicts || may_have_expired => {
                // The answer waits for no commit, so there is no change whose durability must be
                // tracked.
                self.keys.histories[at].refused();
                self.keys.histories[at].current = None;
                Ok(())
            }
            Done::Answer(Deleted::NotFound, _) if there && !evicts && !may_have_expired => {
                Err(format!("key {at} was not found: {:?}", self.keys.histories[at]))
            }
            answer => self.end(at, &key, "delete", answer, |_| true),
        }
    }

    /// Checks the answer to a change of a key and records its outcome.
    fn end<T: std::fmt::Debug>(
        &mut self,
        at: usize,
        key: &[u8],
        what: &str,
        answer: Done<T>,
        is_right: impl Fn(&T) -> bool,
    ) -> Result<(), String> {
        let point = match answer {
            Done::Answer(answer, point) if is_right(&answer) => point,
            Done::Answer(answer, _) => return Err(format!("a {what} was answered {answer:?}")),
            Done::Refused => {
                self.keys.histories[at].refused();
                return self.refused(what);
            }
            Done::Stopped => {
                self.keys.histories[at].refused();
                return Ok(());
            }
        };
        let fate = self.follow(key, point)?;
        let history = &mut self.keys.histories[at];
        match fate {
            Fate::Durable => history.durable_now(),
            // The change was undone, but it may have reached the device. A crash may show it, so
            // the history keeps it as a possible state.
            Fate::Failed if self.shared.syncs => {}
            Fate::Failed => history.stays(),
            Fate::Open(point) => history.changed(point),
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), String> {
        let at = self.random.below(self.keys.counts.len() as u64) as usize;
        let key = format!("counter-{at}").into_bytes();
        let create = Create { initial: 1, expiry: Expiry::NEVER };
        let arith = Arith { create: Some(create), ..Arith::add(1) };
        self.keys.counts[at].tried += 1;
        let answer = self.finish(|session| session.arith(&session.key(&key), &arith))?;
        let (counted, point) = match answer {
            Done::Answer(counted, point) => (counted, point),
            Done::Refused => return self.refused("count"),
            Done::Stopped => return Ok(()),
        };
        let Counted::Value { value, .. } = counted else {
            return Err(format!("a count was answered {counted:?}"));
        };
        let count = &mut self.keys.counts[at];
        count.seen = count.seen.max(value);
        if value <= count.durable {
            return Err(format!("counted to {value}: {count:?}"));
        }
        let fate = self.follow(&key, point)?;
        let count = &mut self.keys.counts[at];
        match fate {
            Fate::Durable => count.durable = count.durable.max(value),
            Fate::Failed => {}
            Fate::Open(point) => count.pending.push((value, point)),
        }
        Ok(())
    }
}

/// Returns a value that begins with the key's number `at` and the version. `len` more bytes follow,
/// which depend on both.
fn write_value(at: usize, version: Version, len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(len + 32);
    value.extend_from_slice(&(at as u64).to_le_bytes());
    value.extend_from_slice(&version.number.to_le_bytes());
    value.extend_from_slice(&version.expiry.to_le_bytes());
    let filling = version.number as u8 ^ at as u8;
    value.resize(value.len() + len, filling);
    value
}

/// Returns the version in these bytes, if they are an intact value of the key.
fn read_value(at: usize, value: &[u8]) -> Option<Version> {
    let (key, rest) = value.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (expiry, filling) = rest.split_first_chunk::<4>()?;
    let number = u64::from_le_bytes(*number);
    let filled = filling.iter().all(|&byte| byte == number as u8 ^ at as u8);
    let whole = u64::from_le_bytes(*key) == at as u64 && filled;
    whole.then(|| Version { number, expiry: u32::from_le_bytes(*expiry) })
}
